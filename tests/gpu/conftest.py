"""Tests that need a GPU, its driver and nvcc; skipped with a reason where they are not."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest


def missing() -> str:
    """Say what is not there for these tests, or ''."""
    for name in ("torch", "tvm_ffi", "einops"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    import torch

    if not torch.cuda.is_available():
        return "torch sees no GPU"
    found = shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists()
    return "" if found else "no nvcc on PATH or in /usr/local/cuda"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    reason = missing() if here else ""
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
