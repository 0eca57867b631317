def cute_outputs(
    input, global_scale, sf_vec_size, sf_use_ue8m0, is_sf_swizzled_layout, is_sf_8x4_layout
):
    """The CuTe-DSL kernels: batches are flattened, strides of the input do not matter."""
    from flashinfer.cute_dsl import is_cute_dsl_available

    if not is_cute_dsl_available():
        raise RuntimeError(
            "CuTe-DSL backend requested but CuTe-DSL is not available. "
            "Please install the required dependencies."
        )
    check_cute_recipe(sf_vec_size, sf_use_ue8m0, is_sf_8x4_layout)
    m, k = check_cute_input(input, sf_vec_size)
    if sf_vec_size == 16 and global_scale is None:
        float(global_scale)  # the TypeError of the real function
    layout = "linear" if not is_sf_swizzled_layout else "8x4" if is_sf_8x4_layout else "128x4"
    x_q = input.new_empty((m, k // 2), dtype=torch.uint8)
    return x_q, cute_scales(input, m, k, sf_vec_size, layout)


def check_cute_recipe(sf_vec_size, sf_use_ue8m0, is_sf_8x4_layout):
    if (sf_vec_size, sf_use_ue8m0) not in ((16, False), (32, True)):
        raise ValueError(
            f"CuTe-DSL backend does not support sf_vec_size={sf_vec_size} with "
            f"sf_use_ue8m0={sf_use_ue8m0}. Supported: "
            f"(sf_vec_size=16, sf_use_ue8m0=False) for NVFP4, "
            f"(sf_vec_size=32, sf_use_ue8m0=True) for MXFP4."
        )
    if sf_vec_size == 32 and is_sf_8x4_layout and not cute_mxfp4_has_8x4:
        raise ValueError(
            "CuTe-DSL MXFP4 kernel does not support 8x4 layout. "
            "Supported: swizzled 128x4 and linear."
        )


def check_cute_input(input, sf_vec_size):
    if sf_vec_size == 16:
        supported = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
        assert input.dtype in supported, (
            f"Input dtype must be one of {supported}, got {input.dtype}"
        )
    else:
        assert input.dtype in (torch.float16, torch.bfloat16), (
            f"Input dtype must be float16 or bfloat16, got {input.dtype}"
        )
    assert input.device.type == "cuda", "Input must be on CUDA device"
    if input.dim() > 2:
        m, k = input.numel() // input.shape[-1], input.shape[-1]
    else:
        m, k = input.shape
    name = "NVFP4" if sf_vec_size == 16 else "MXFP4"
    assert k % sf_vec_size == 0, (
        f"K ({k}) must be divisible by {name}_SF_VEC_SIZE={sf_vec_size}"
    )
    return m, k


def cute_padded(input, m, k, sf_vec_size, layout, tile=8):
    """Rows padded to the tile of the layout, scale columns to 4, except in the linear layout."""
    rows, columns = m, k // sf_vec_size
    if layout != "linear":
        tile = 128 if layout == "128x4" else tile
        rows, columns = (m + tile - 1) // tile * tile, (columns + 3) // 4 * 4
    return input.new_empty((rows, columns), dtype=torch.uint8)


def cute_tma_tile(input, m, k):
    """The NVFP4 kernel for large inputs pads the rows of the 8x4 layout to 16."""
    large = any(m >= 1 << a and k >= 1 << (25 - a) for a in range(10, 17))
    return 16 if input.dtype != torch.float8_e4m3fn and k % 512 == 0 and large else 8
