"""Real FlashInfer wheels on a simulated GPU host: what torch.compile makes of fp4_quantize."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from patchkit.catalog import read_patch, shipped_folder
from patchkit.checks import ARCHITECTURES
from patchkit.probing import Limits, run_probe
from patchkit.splice import apply_splices
from patchkit.transform import rewrite

OPERATOR = "flashinfer-fp4-quantize-custom-op"
DISABLE = "flashinfer-fp4-quantize-compiler-disable"
CUDA = "flashinfer-cuda-version"
RELEASES = {
    "0.5.3": ("10.0",),
    "0.6.3": ("9.0",),
    "0.6.7.post3": ARCHITECTURES,
    "0.6.8.post1": ("12.1",),
    "0.6.11": ("12.0",),
    "0.7.0": ("10.0",),
    "0.7.4": ("10.0",),
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("torch", "tvm_ffi", "einops")),
        reason="needs torch and what FlashInfer imports (pip install '.[test]')",
    ),
]


def patch_tree(site: Path, version: str, *names: str) -> dict[str, bytes]:
    """Patch a tree without a ledger; returns the bytes from before, by path."""
    before = {}
    for name in names:
        patch = read_patch(shipped_folder() / name)
        edits = patch.edits_for(Version(version))
        file = site / edits[0].file
        before[edits[0].file] = data = file.read_bytes()
        file.write_bytes(apply_splices(data, rewrite(edits[0].file, data, patch, edits)))
    return before


def trace(site: Path, *architectures: str, capture_only: bool = False) -> dict[str, Any]:
    """Run the trace probe on a site-packages folder."""
    outcome = run_probe(
        sys.executable,
        "trace_probe.py",
        {
            "prepend": [str(site)],
            "scenario": "fp4_quantize",
            "architectures": architectures or ("10.0",),
            "cuda": "13.0",
            "use_gpu": False,
            "capture_only": capture_only,
        },
        limits=Limits(seconds=240),
    )
    assert outcome.error == "", outcome.tail
    document = dict(outcome.document)
    assert (document["import_error"], document["missing"]) == ("", "")
    assert Path(document["file"]).is_relative_to(site)
    return document


@pytest.mark.parametrize("version", RELEASES)
def test_one_operator_with_the_real_outputs(
    version: str, flashinfer_tree: Callable[[str], Path]
) -> None:
    site = flashinfer_tree(version)
    patch_tree(site, version, OPERATOR)
    architectures = RELEASES[version]
    document = trace(site, *architectures)
    assert document["flashinfer"] == version
    assert tuple(run["architecture"] for run in document["runs"]) == architectures
    for run in document["runs"]:
        assert run["problems"] == []
        capture = run["capture"]
        assert (capture["error"], capture["graphs"]) == (None, 1)
        (operator,) = capture["operators"]
        assert operator.startswith("patchkit_flashinfer.fp4_quantize_")
        assert run["cases"] >= 23
        assert (run["simulated"], run["cuda"]) == (True, "13.0")


def functions(error: dict[str, Any]) -> list[str]:
    return [step.partition(" ")[0] for step in error["through"]]


def test_the_story_in_four_stages(
    flashinfer_tree: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # must not make everything look well
    site = flashinfer_tree("0.6.3")

    def stage(*names: str) -> dict[str, Any]:
        before = patch_tree(site, "0.6.3", *names)
        (run,) = trace(site, capture_only=True)["runs"]
        for path, data in before.items():
            (site / path).write_bytes(data)
        capture: dict[str, Any] = run["capture"]
        return capture

    # Stock: stops at the subprocess that asks for nvcc.
    error = stage()["error"]
    assert (error["kind"], error["file"]) == ("Unsupported", "subprocess.py")
    assert error["first_line"] == "Attempted to call function marked as skipped"
    assert error["through"] == [
        "fp4_quantize (flashinfer/fp4_quantization.py)",
        "get_fp4_quantization_module (flashinfer/fp4_quantization.py)",
        "gen_fp4_quantization_sm100_module (flashinfer/fp4_quantization.py)",
        "gen_fp4_quantization_module (flashinfer/fp4_quantization.py)",
        "is_cuda_version_at_least (flashinfer/jit/cpp_ext.py)",
        "get_cuda_version (flashinfer/jit/cpp_ext.py)",
        "get_cuda_path (flashinfer/jit/cpp_ext.py)",
        "run (subprocess.py)",
        "__init__ (subprocess.py)",
    ]

    # With only the CUDA version patch: stops at the next barrier, a clock.
    error = stage(CUDA)["error"]
    assert (error["kind"], error["file"]) == ("Unsupported", "flashinfer/jit/core.py")
    assert error["first_line"] == "Unsupported method call"
    assert error["function"] == "register"
    assert "datetime.now()" in error["line"]
    assert functions(error)[0] == "fp4_quantize"
    assert "get_cuda_version" not in functions(error)

    # Kept away from the function: fullgraph refuses, at the call itself.
    error = stage(DISABLE)["error"]
    assert (error["kind"], error["through"]) == ("Unsupported", [])
    assert error["first_line"] == "Skip calling `torch.compiler.disable()`d function"

    # The operator: one graph, one node, also together with the CUDA version patch.
    capture = stage(OPERATOR)
    assert (capture["error"], capture["graphs"], len(capture["operators"])) == (None, 1, 1)
    assert stage(CUDA, OPERATOR) == capture


def test_stock_with_questions_about_the_device(flashinfer_tree: Callable[[str], Path]) -> None:
    """0.7.4 asks for the properties of the device, and refuses those below SM100."""
    site = flashinfer_tree("0.7.4")
    old, new = trace(site, "9.0", "10.0", capture_only=True)["runs"]
    refused, stopped = old["capture"]["error"], new["capture"]["error"]
    assert functions(refused)[-1] == "_check_block_scale_quantization_support"
    assert functions(stopped)[-1] == "__init__"
    assert {"fp4_quantize", "get_cuda_version"} <= set(functions(stopped))
    assert (refused["kind"], stopped["kind"]) == ("Unsupported", "Unsupported")


def test_a_library_that_is_not_there_is_named(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "flashinfer").mkdir(parents=True)
    (site / "flashinfer/__init__.py").write_text("import no_such_module.inner\n")
    outcome = run_probe(
        sys.executable,
        "trace_probe.py",
        {
            "prepend": [str(site)],
            "scenario": "fp4_quantize",
            "architectures": ["9.0"],
            "cuda": "12.8",
            "use_gpu": False,
            "capture_only": False,
        },
    )
    assert outcome.error == ""
    assert outcome.document["missing"] == "no_such_module"
    assert outcome.document["import_error"] == (
        "ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert outcome.document["runs"] == []


def test_no_gpu_to_use(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    argument = {"prepend": [], "scenario": "fp4_quantize", "use_gpu": True, "capture_only": False}
    outcome = run_probe(sys.executable, "trace_probe.py", argument)
    assert outcome.document["import_error"] == "no GPU in the target"
