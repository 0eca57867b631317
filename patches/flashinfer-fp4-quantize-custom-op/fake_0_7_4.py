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
    batch_invariant,
):
    """0.7.4: backend "auto", batch_invariant, no GPU below SM100."""
    if sf_vec_size != 16 and sf_vec_size != 32:
        raise NotImplementedError("sf_vec_size can only be 16 or 32")
    check_recipe(input, sf_vec_size, sf_use_ue8m0, nvfp4_4over6)
    if batch_invariant:
        if backend != "auto":
            raise ValueError(
                "fp4_quantize: batch_invariant=True requires backend='auto' "
                f"(got backend={backend!r})"
            )
        # A last stride of 1 makes any input row-major here.
        is_column_major = (
            input.dim() >= 2 and input.stride(-2) == 1 and input.stride(-1) != 1
        )
        k = input.shape[-2] if is_column_major else input.shape[-1]
        check_batch_invariant(k, sf_vec_size, sf_use_ue8m0, nvfp4_4over6)
        return padded_outputs(
            input, sf_vec_size, is_sf_swizzled_layout, is_sf_8x4_layout, is_column_major
        )
    if backend == "auto":
        backend = "cuda"
    if backend == "cute-dsl":
        check_cute_recipe(sf_vec_size, sf_use_ue8m0, is_sf_8x4_layout)
    if backend in ("cuda", "cute-dsl") and torch.cuda.is_available():
        # Where there is no GPU to ask, the operator refuses when it runs.
        _check_block_scale_quantization_support(input.device, "fp4_quantize")
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
        raise ValueError(
            f"Unknown backend: {backend}. Must be 'auto', 'cuda' or 'cute-dsl'."
        )
    return cuda_outputs(input, sf_vec_size, is_sf_swizzled_layout, is_sf_8x4_layout)


def check_batch_invariant(k, sf_vec_size, sf_use_ue8m0, nvfp4_4over6):
    """Refuse what the batch-invariant classes refuse, the device apart."""
    from flashinfer.batch_invariant.support import unsupported

    if (sf_vec_size, sf_use_ue8m0) not in ((16, False), (32, True)):
        raise unsupported(
            "nvfp4.quant / mxfp4.quant",
            f"sf_vec_size = {sf_vec_size} with sf_use_ue8m0 = {sf_use_ue8m0}",
            "sf_vec_size = 16 with e4m3 scales (the NVFP4 class) or sf_vec_size = 32 "
            "with UE8M0 scales (the MXFP4 class)",
        )
    name = "nvfp4.quant" if sf_vec_size == 16 else "mxfp4.quant"
    if nvfp4_4over6 > 0:
        raise unsupported(
            name,
            "an NVFP4 4over6 scale-candidate search",
            "the plain NVFP4 recipe (nvfp4_4over6=None): a candidate search is another "
            "specification",
        )
    if k <= 0 or k % sf_vec_size:
        raise unsupported(name, f"K = {k}", f"K a positive multiple of {sf_vec_size}")
