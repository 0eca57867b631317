name, nvcc_flags = "", sm100a_nvcc_flags
arch = "".join(map(str, torch.cuda.get_device_capability())) if torch.cuda.is_available() else ""
if arch in ("80", "86", "87", "89", "90"):
    # A name of its own: nothing built without the patch, or by another revision, has it.
    name = f"fp4_quantization_{arch}_patchkit_e2m1_r1"
    target = "90a" if arch == "90" else arch
    nvcc_flags = [flag.replace("100a", target) for flag in nvcc_flags]
    nvcc_flags.append("-DPATCHKIT_SOFTWARE_E2M1")
