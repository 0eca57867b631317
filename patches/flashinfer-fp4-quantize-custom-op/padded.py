def cuda_outputs(input, sf_vec_size, is_sf_swizzled_layout, is_sf_8x4_layout):
    """0.6.8 and later, the CUDA kernels."""
    is_column_major = input.stride(-2) == 1
    k = input.shape[-2] if is_column_major else input.shape[-1]
    assert k % sf_vec_size == 0
    return padded_outputs(
        input, sf_vec_size, is_sf_swizzled_layout, is_sf_8x4_layout, is_column_major
    )


def padded_outputs(
    input, sf_vec_size, is_sf_swizzled_layout, is_sf_8x4_layout, is_column_major
):
    """Scales with their padded rows and columns; both outputs transposed as the input is."""
    if is_column_major:
        input = input.transpose(-2, -1)
    k = input.shape[-1]
    rows, columns = input.numel() // k, k // sf_vec_size
    if is_sf_swizzled_layout:
        tile = 8 if is_sf_8x4_layout else 128
        rows, columns = (rows + tile - 1) // tile * tile, (columns + 3) // 4 * 4
    x_q = input.new_empty((*input.shape[:-1], k // 2), dtype=torch.uint8)
    sf = input.new_empty((rows, columns), dtype=torch.uint8)
    if is_column_major:
        return x_q.transpose(-2, -1), sf.transpose(-2, -1)
    return x_q, sf
