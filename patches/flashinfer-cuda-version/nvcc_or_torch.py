def _patchkit_get_cuda_version(cached):
    """Let torch answer while Dynamo traces and where nvcc is absent; report where they differ."""
    import logging

    import torch

    @functools.cache
    def answer():
        try:
            found = cached()
        except (RuntimeError, FileNotFoundError, subprocess.CalledProcessError) as e:
            if torch.version.cuda is None:
                raise RuntimeError(
                    "nvcc not found and PyTorch is not built with CUDA support. "
                    "Could not determine CUDA version."
                ) from e
            return Version(torch.version.cuda)
        if torch.version.cuda and Version(torch.version.cuda).release[:2] != found.release[:2]:
            logging.getLogger(__name__).warning(
                "nvcc is for CUDA %s, torch for CUDA %s: nvcc's version decides what is built.",
                found,
                torch.version.cuda,
            )
        return found

    @functools.wraps(cached)
    def get_cuda_version():
        # Nothing is built while Dynamo traces, and the answer must not stay in the cache.
        if torch.compiler.is_compiling() and torch.version.cuda:
            return Version(torch.version.cuda)
        return answer()

    def cache_clear():
        answer.cache_clear()
        cached.cache_clear()

    get_cuda_version.cache_clear = cache_clear
    get_cuda_version.cache_info = cached.cache_info
    get_cuda_version.cache_parameters = cached.cache_parameters
    return get_cuda_version
