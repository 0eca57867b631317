"""verify against real wheels: proof of the shipped patches, and sabotaged ones caught."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from patchkit.catalog import shipped_folder
from tests.conftest import Outcome, invoke, tree

OPERATOR = "flashinfer-fp4-quantize-custom-op"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("torch", "tvm_ffi", "einops")),
        reason="needs torch and what FlashInfer imports (pip install '.[test]')",
    ),
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)


def run(verb: str, site: Path, *options: str) -> Outcome:
    return invoke(verb, "--site-packages", str(site), *options)


def check_of(outcome: Outcome, name: str) -> dict[str, Any]:
    (check,) = (c for c in outcome.json["checks"] if c["name"] == name)
    return check


def test_proven_with_the_patch_and_a_reason_without(
    flashinfer_tree: Callable[[str], Path],
) -> None:
    site = flashinfer_tree("0.6.3")
    assert run("apply", site).code == 0
    before = tree(site)
    proof = ("--prove", "--arch", "10.0", "--json")
    outcome = run("verify", site, *proof)
    assert outcome.code == 0, outcome
    check = check_of(outcome, "trace")
    assert (check["patch"], check["outcome"], check["proof"]) == (OPERATOR, "passed", "proven")
    assert check_of(outcome, "import")["outcome"] == "passed"
    assert tree(site) == before

    assert run("revert", site, "--all").code == 0
    before = tree(site)
    outcome = run("verify", site, *proof, "--strict", "--check", "trace")
    assert outcome.code == 1
    check = check_of(outcome, "trace")
    assert check["outcome"] == "failed"
    assert "subprocess.py" in check["detail"]
    assert check["chain"][0] == "fp4_quantize (flashinfer/fp4_quantization.py)"
    assert "get_cuda_version (flashinfer/jit/cpp_ext.py)" in check["chain"]
    assert tree(site) == before


# Sabotage: a copy of the shipped patch, one thing in it made wrong.

CODEMOD = """\
import re
from dataclasses import replace

from patchkit.codemods import wrap_custom_op


def wrap(source, patch, table):
    (match,) = wrap_custom_op(source, patch, table)
    (splice,) = match.splices
    text = splice.text.decode()
    text, found = re.subn({old!r}, {new!r}, text)
    assert found
    return [replace(match, splices=(replace(splice, text=text.encode()),))]
"""


def edited(file: str, old: str, new: str) -> Callable[[Path], None]:
    """Replace text in a file of the patch."""

    def edit(folder: Path) -> None:
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))

    return edit


def generated(old: str, new: str, namespace: str = "patchkit_flashinfer") -> Callable[[Path], None]:
    """Replace what a regular expression matches in what the codemod inserts."""

    def edit(folder: Path) -> None:
        edited("patch.toml", '"wrap_custom_op"', '"codemod.py:wrap"')(folder)
        edited("patch.toml", "patchkit_flashinfer", namespace)(folder)
        (folder / "codemod.py").write_text(CODEMOD.format(old=old, new=new))

    return edit


BY_POSITION = (
    'return current["function"](arguments["input"], arguments["global_scale"], '
    'arguments["sf_vec_size"], arguments["sf_use_ue8m0"], arguments["is_sf_swizzled_layout"], '
    'arguments["is_sf_8x4_layout"], arguments["enable_pdl"], '
    'backend=arguments["backend"])'
)

SABOTAGE = {
    "wrong stride": (
        "0.6.3",
        edited("flat.py", "return x_q.transpose(-2, -1),", "return x_q.mT.contiguous(),"),
        "column-major",
    ),
    "wrong padded row count": (
        "0.6.3",
        edited("flat.py", "rows = 8 if is_sf_8x4_layout else 128", "rows = 8"),
        "plain",
    ),
    "int64 instead of uint8": (
        "0.6.3",
        edited("flat.py", "(size,), dtype=torch.uint8", "(size,), dtype=torch.int64"),
        "int64",
    ),
    "data-dependent fake": (
        "0.6.3",
        edited("flat.py", "size = m *", "size = int(global_scale.item()) + m *"),
        "fullgraph stops",
    ),
    "strides may change": (
        "0.6.3",
        edited("patch.toml", 'op = "fp4', 'tags = ["pt2_compliant_tag"]\n    op = "fp4'),
        "tags",
    ),
    "shape is a constant": (
        "0.6.3",
        edited("flat.py", "m = input.numel() // k", "m = int(input.numel()) // k"),
        "dynamic: one graph",
    ),
    "namespace of upstream": (
        "0.6.12",
        edited("patch.toml", 'namespace = "patchkit_flashinfer"', 'namespace = "flashinfer"'),
        "own namespace",
    ),
    "name of upstream's operator": (
        "0.6.12",
        generated(r"fp4_quantize_[0-9a-f]{12}", "fp4_quantize", namespace="flashinfer"),
        "only the unpatched source imports",
    ),
    "forwarded by position": (
        "0.6.11",
        generated(r'return current\["function"\]\(\*\*arguments\)', BY_POSITION),
        "is_global_scale_inversed",
    ),
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_sabotage_is_caught(
    name: str, flashinfer_tree: Callable[[str], Path], tmp_path: Path
) -> None:
    version, edit, words = SABOTAGE[name]
    site, folder = flashinfer_tree(version), tmp_path / "patches/sabotaged"
    shutil.copytree(shipped_folder() / OPERATOR, folder)
    edit(folder)
    patches = ("--patches", str(folder.parent))
    applied = run("apply", site, *patches, "--allow-code", str(folder.parent), "sabotaged")
    assert applied.code == 0, applied
    before = tree(site)
    outcome = run("verify", site, *patches, "--check", "trace", "--arch", "10.0", "--json")
    assert outcome.code == 1, outcome
    check = check_of(outcome, "trace")
    assert check["outcome"] == "failed"
    assert words in check["detail"], check
    assert tree(site) == before
