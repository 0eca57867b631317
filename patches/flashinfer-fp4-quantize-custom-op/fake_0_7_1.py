def fake(
    input,
    global_scale,
    sf_vec_size,
    sf_use_ue8m0,
    is_sf_swizzled_layout,
    is_sf_8x4_layout,
    is_global_scale_inversed,
    enable_pdl,
    backend,
    nvfp4_4over6,
):
    """0.7.1 to 0.7.2."""
    if sf_vec_size != 16 and sf_vec_size != 32:
        raise NotImplementedError("sf_vec_size can only be 16 or 32")
    check_recipe(input, sf_vec_size, sf_use_ue8m0, nvfp4_4over6)
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
