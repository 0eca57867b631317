if device_arch in ("80", "86", "87", "89", "90"):
    # A name of its own: neither FlashInfer's cache nor a compiled wheel has this module.
    nvcc_flags = [*nvcc_flags, "-DPATCHKIT_SOFTWARE_E2M1"]
    device_arch += "_patchkit_software_e2m1_1"
