cute_mxfp4_has_8x4 = True


def cute_scales(input, m, k, sf_vec_size, layout):
    """0.6.13 to 0.6.15: as 0.6.12, but no TMA where the environment asks for 4over6."""
    import os

    if sf_vec_size == 32:
        sf = cute_padded(input, m, k, sf_vec_size, layout)
        return sf.reshape(-1, k // sf_vec_size)
    tma = layout == "8x4" and os.environ.get("FLASHINFER_NVFP4_4OVER6") != "1"
    tile = cute_tma_tile(input, m, k) if tma else 8
    return cute_padded(input, m, k, sf_vec_size, layout, tile)
