"""Real FlashInfer wheels on a simulated GPU host: what torch.compile makes of fp4_quantize."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from patchkit.catalog import read_patch, shipped_folder
from patchkit.splice import apply_splices
from patchkit.transform import rewrite
from tests.integration.trace_program import BEGIN, END

OPERATOR = "flashinfer-fp4-quantize-custom-op"
DISABLE = "flashinfer-fp4-quantize-compiler-disable"
CUDA = "flashinfer-cuda-version"
SAMPLE = ("0.5.3", "0.6.3", "0.6.7.post3", "0.6.8.post1", "0.6.11", "0.7.0", "0.7.4")
PROGRAM = Path(__file__).with_name("trace_program.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("torch", "tvm_ffi", "einops")),
        reason="needs torch and what FlashInfer imports (pip install '.[test]')",
    ),
]


def patch_tree(site: Path, version: str, *names: str) -> None:
    for name in names:
        patch = read_patch(shipped_folder() / name)
        edits = patch.edits_for(Version(version))
        file = site / edits[0].file
        data = file.read_bytes()
        file.write_bytes(apply_splices(data, rewrite(edits[0].file, data, patch, edits)))


def trace(site: Path, tmp_path: Path, *options: str) -> dict[str, Any]:
    """Run the trace program on a site-packages folder in a process of its own."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "FLASHINFER_"))},
        "PYTHONPATH": str(site),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "FLASHINFER_WORKSPACE_BASE": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, PROGRAM, *options],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.count(BEGIN) == 1, done.stderr[-3000:]
    document: dict[str, Any] = json.loads(done.stdout.split(BEGIN)[1].split(END)[0])
    assert Path(document["file"]).is_relative_to(site)
    assert done.returncode == (0 if document["ok"] else 1)
    return document


@pytest.mark.parametrize("version", SAMPLE)
def test_one_operator_with_the_real_outputs(
    version: str, flashinfer_tree: Callable[[str], Path], tmp_path: Path
) -> None:
    site = flashinfer_tree(version)
    patch_tree(site, version, OPERATOR)
    document = trace(site, tmp_path, "--capability", "12.0" if version == "0.6.11" else "10.0")
    assert document["capture"]["error"] is None
    assert document["problems"] == []
    assert document["capture"]["graphs"] == 1
    (operator,) = document["capture"]["operators"]
    assert operator.startswith("patchkit_flashinfer.fp4_quantize_")
    assert document["cases"] >= 23
    assert document["ok"]


def stage(
    flashinfer_tree: Callable[[str], Path], tmp_path: Path, *names: str
) -> dict[str, Any] | None:
    site = flashinfer_tree("0.6.3")
    patch_tree(site, "0.6.3", *names)
    error: dict[str, Any] | None = trace(site, tmp_path, "--capture-only")["capture"]["error"]
    return error


def test_stage_1_stock_stops_at_the_subprocess(
    flashinfer_tree: Callable[[str], Path], tmp_path: Path
) -> None:
    error = stage(flashinfer_tree, tmp_path)
    assert error is not None
    assert error["kind"] == "Unsupported"
    assert any(step.startswith("get_cuda_version ") for step in error["through"])
    assert error["file"].endswith("subprocess.py")


def test_stage_2_cuda_version_moves_the_failure_on(
    flashinfer_tree: Callable[[str], Path], tmp_path: Path
) -> None:
    error = stage(flashinfer_tree, tmp_path, CUDA)
    assert error is not None
    assert error["kind"] == "Unsupported"
    assert "subprocess" not in error["text"]
    assert error["file"].endswith("flashinfer/jit/core.py")
    assert "datetime.now()" in error["line"]


def test_stage_3_compiler_disable_is_refused_by_fullgraph(
    flashinfer_tree: Callable[[str], Path], tmp_path: Path
) -> None:
    error = stage(flashinfer_tree, tmp_path, DISABLE)
    assert error is not None
    assert error["first_line"] == "Skip calling `torch.compiler.disable()`d function"


def test_stage_4_operator_and_cuda_version_together_give_one_graph(
    flashinfer_tree: Callable[[str], Path], tmp_path: Path
) -> None:
    assert stage(flashinfer_tree, tmp_path, CUDA, OPERATOR) is None
