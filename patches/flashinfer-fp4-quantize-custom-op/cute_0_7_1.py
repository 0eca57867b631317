cute_mxfp4_has_8x4 = True


def cute_scales(input, m, k, sf_vec_size, layout):
    """0.7.1 and later: the 8x4 layout is padded to 8 rows by every kernel."""
    return cute_padded(input, m, k, sf_vec_size, layout)
