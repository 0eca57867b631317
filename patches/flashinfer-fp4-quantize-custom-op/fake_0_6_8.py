def fake(
    input,
    global_scale,
    sf_vec_size,
    sf_use_ue8m0,
    is_sf_swizzled_layout,
    is_sf_8x4_layout,
    is_global_scale_inversed=False,
    enable_pdl=None,
    backend="cuda",
):
    """0.6.8 to 0.7.0."""
    if sf_vec_size != 16 and sf_vec_size != 32:
        raise NotImplementedError("sf_vec_size can only be 16 or 32")
    if backend == "cute-dsl":
        return cute_outputs(
            input,
            global_scale,
            sf_vec_size,
            sf_use_ue8m0,
            is_sf_swizzled_layout,
            is_sf_8x4_layout,
        )
    elif backend != "cuda":
        raise ValueError(f"Unknown backend: {backend}. Must be 'cuda' or 'cute-dsl'.")
    return cuda_outputs(input, sf_vec_size, is_sf_swizzled_layout, is_sf_8x4_layout)
