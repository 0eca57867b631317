if device_arch in ("80", "86", "87", "89", "90"):
    # A name of its own: nothing built without the patch, or by another revision, has it.
    device_arch += "_patchkit_e2m1_r1"
    nvcc_flags = [*nvcc_flags, "-DPATCHKIT_SOFTWARE_E2M1"]
