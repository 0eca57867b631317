from flashinfer.quantization.nvfp4_quantization_utils import (
    _UNSET,
    nvfp4_4over6_code,
    nvfp4_4over6_fp8_input_error,
    nvfp4_4over6_from_code,
    resolve_nvfp4_4over6,
)


def to_operator(nvfp4_4over6, **arguments):
    """The 4over6 recipe as FlashInfer's own code; -1: omitted, the environment says at run time."""
    code = -1
    if nvfp4_4over6 is not _UNSET:
        code = nvfp4_4over6_code(resolve_nvfp4_4over6(nvfp4_4over6))
    return dict(arguments, nvfp4_4over6=code)


def from_operator(nvfp4_4over6, **arguments):
    return dict(arguments, nvfp4_4over6=nvfp4_4over6_from_code(nvfp4_4over6))


def check_recipe(input, sf_vec_size, sf_use_ue8m0, nvfp4_4over6):
    """Refuse an explicit recipe (a code above 0) where the real function does."""
    if nvfp4_4over6 <= 0:
        return
    if sf_vec_size != 16 or sf_use_ue8m0:
        raise ValueError(
            "nvfp4_4over6 applies to NVFP4 only (sf_vec_size=16, "
            f"sf_use_ue8m0=False); got sf_vec_size={sf_vec_size}, "
            f"sf_use_ue8m0={sf_use_ue8m0}."
        )
    if input.dtype == torch.float8_e4m3fn:
        raise nvfp4_4over6_fp8_input_error(input.dtype)
