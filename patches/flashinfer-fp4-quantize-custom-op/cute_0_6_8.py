cute_mxfp4_has_8x4 = False


def cute_scales(input, m, k, sf_vec_size, layout):
    """0.6.8 to 0.6.11: MXFP4 scales are seen as (-1, K / 32); TMA for large inputs."""
    if sf_vec_size == 32:
        sf = cute_padded(input, m, k, sf_vec_size, layout)
        return sf.reshape(-1, k // sf_vec_size)
    tile = cute_tma_tile(input, m, k) if layout == "8x4" else 8
    return cute_padded(input, m, k, sf_vec_size, layout, tile)
