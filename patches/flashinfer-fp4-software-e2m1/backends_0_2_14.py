    elif backend == "90":
        module = gen_fp4_quantization_sm90_module().build_and_load()
    elif backend in ("80", "86", "87", "89"):
        module = gen_fp4_quantization_module(
            [flag.replace("90a", backend) for flag in sm90a_nvcc_flags], backend
        ).build_and_load()
