def fake(input, global_scale, sf_vec_size, sf_use_ue8m0, is_sf_swizzled_layout):
    """0.2.8: vec 16 only, row-major only; the padded scales are seen as (-1, K / vec)."""
    if sf_vec_size != 16:
        raise NotImplementedError("sf_vec_size can only be 16")
    k = input.shape[-1]
    assert k % sf_vec_size == 0
    m = input.numel() // k
    size = m * (k // sf_vec_size)
    if is_sf_swizzled_layout:
        size = (m + 127) // 128 * 128 * ((k // sf_vec_size + 3) // 4 * 4)
    x_q = input.new_empty((*input.shape[:-1], k // 2), dtype=torch.uint8)
    sf = input.new_empty((size,), dtype=torch.uint8)
    return x_q, sf.reshape((-1, k // sf_vec_size))
