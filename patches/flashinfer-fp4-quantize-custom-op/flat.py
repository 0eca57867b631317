def fake(
    input,
    global_scale,
    sf_vec_size,
    sf_use_ue8m0,
    is_sf_swizzled_layout,
    is_sf_8x4_layout=False,
    enable_pdl=None,
):
    """0.2.9 to 0.6.7: the padded scales are seen as (-1, K / vec), which may not divide them."""
    if sf_vec_size != 16 and sf_vec_size != 32:
        raise NotImplementedError("sf_vec_size can only be 16 or 32")
    is_column_major = input.stride(-2) == 1
    if is_column_major:
        input = input.transpose(-2, -1)
    k = input.shape[-1]
    assert k % sf_vec_size == 0
    m = input.numel() // k
    size = m * (k // sf_vec_size)
    if is_sf_swizzled_layout:
        rows = 8 if is_sf_8x4_layout else 128
        size = (m + rows - 1) // rows * rows * ((k // sf_vec_size + 3) // 4 * 4)
    x_q = input.new_empty((*input.shape[:-1], k // 2), dtype=torch.uint8)
    sf = input.new_empty((size,), dtype=torch.uint8).reshape((-1, k // sf_vec_size))
    if is_column_major:
        return x_q.transpose(-2, -1), sf.transpose(-2, -1)
    return x_q, sf
