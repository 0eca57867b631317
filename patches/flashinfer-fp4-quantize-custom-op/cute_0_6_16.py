cute_mxfp4_has_8x4 = True


def cute_scales(input, m, k, sf_vec_size, layout):
    """0.6.16 to 0.7.0: TMA only where the environment asks for it."""
    import os

    tma = (
        sf_vec_size == 16
        and layout == "8x4"
        and os.environ.get("FLASHINFER_NVFP4_QUANTIZE_USE_TMA") == "1"
        and os.environ.get("FLASHINFER_NVFP4_4OVER6") != "1"
    )
    tile = cute_tma_tile(input, m, k) if tma else 8
    return cute_padded(input, m, k, sf_vec_size, layout, tile)
