        "90": gen_fp4_quantization_sm90_module,
        **{
            arch: functools.partial(
                gen_fp4_quantization_module,
                [flag.replace("90a", arch) for flag in sm90a_nvcc_flags],
                arch,
            )
            for arch in ("80", "86", "87", "89")
        },
