        "90": gen_fp4_quantization_sm90_module,
        **{
            arch: functools.partial(
                gen_fp4_quantization_module,
                [
                    f"-gencode=arch=compute_{arch},code=sm_{arch}",
                    "-DFLASHINFER_ENABLE_FP8_E8M0",
                    "-DFLASHINFER_ENABLE_FP4_E2M1",
                ],
                arch,
            )
            for arch in ("80", "86", "87", "89")
        },
