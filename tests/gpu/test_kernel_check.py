"""``verify --gpu`` on real releases: stock, mended, and sabotaged in ways it must catch.

    pytest tests/gpu

runs them on a host with a GPU and nvcc (docs/gpu.md).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from patchkit.catalog import shipped_folder
from tests.conftest import Outcome, invoke, tree

OPERATOR = "flashinfer-fp4-quantize-custom-op"
SOFTWARE = "flashinfer-fp4-software-e2m1"
RELEASES = tuple(os.environ.get("PATCHKIT_GPU_RELEASES", "0.6.3 0.6.7.post3").split())
UTILS = "flashinfer/data/csrc/nv_internal/tensorrt_llm/kernels/quantization_utils.cuh"
KERNEL = "flashinfer/data/csrc/nv_internal/tensorrt_llm/kernels/quantization.cuh"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let modules be built in a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(tmp_path / "flashinfer"))
    monkeypatch.setenv("FLASHINFER_DISABLE_VERSION_CHECK", "1")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def needs_software() -> None:
    """Skip where the GPU converts E2M1 by itself."""
    import torch

    if torch.cuda.get_device_capability() >= (10, 0):
        pytest.skip("the kernel's body is not compiled out on this GPU")


def run(verb: str, site: Path, *options: str) -> Outcome:
    return invoke(verb, "--site-packages", str(site), *options)


def kernel_of(site: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Run the kernel check; returns the exit code and the first patch's result."""
    started = time.monotonic()
    only = ("--check", "kernel", "--gpu", "--json", "--timeout", "400")
    outcome = run("verify", site, *only, *options)
    (check, *_) = (c for c in outcome.json["checks"] if c["name"] == "kernel")
    print(f"exit {outcome.code}, {time.monotonic() - started:.1f} s: {check['detail']}")
    for group in check["groups"]:
        print(f"  {group['seconds']:6.1f} s  {len(group['cases']):3}  {group['name']}")
        for case in group["cases"]:
            if case["problem"]:
                print(f"          failed  {case['name']}: {case['problem']}")
    if check["tail"]:
        print(check["tail"])
    return outcome.code, check


@pytest.mark.usefixtures("needs_software")
@pytest.mark.parametrize("version", RELEASES)
def test_a_kernel_that_does_nothing(version: str, flashinfer_tree: Callable[[str], Path]):
    import torch

    site = flashinfer_tree(version)
    assert run("apply", site, OPERATOR).code == 0
    code, check = kernel_of(site)
    name = "SM{}{}".format(*torch.cuda.get_device_capability())
    assert code == 1
    assert check["detail"].startswith(f"this kernel does nothing on {name} in FlashInfer {version}")


PLAIN = """
import json, sys
import torch, flashinfer
x = torch.randn(128, 256, generator=torch.Generator().manual_seed(0)).to("cuda", torch.bfloat16)
scale = torch.ones(1, device="cuda")
blocks = [torch.full((n,), 0xA5, dtype=torch.uint8, device="cuda") for n in (128 * 128, 128 * 16)]
del blocks
codes, scales = flashinfer.fp4_quantize(x, scale)
torch.cuda.synchronize()
print("POISON", int((codes != 0xA5).sum()), int((scales != 0xA5).sum()))
"""


def written(site: Path) -> list[int]:
    """Call the library as a program of the user would, with FlashInfer's own cache."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("POISON")]
    return [int(word) for word in line.split()[1:]]


@pytest.mark.usefixtures("needs_software")
@pytest.mark.parametrize("version", RELEASES)
def test_mended_and_back(version: str, flashinfer_tree: Callable[[str], Path], tmp_path: Path):
    site = flashinfer_tree(version)
    before = tree(site)
    assert written(site) == [0, 0]  # and its module is built and cached now
    assert run("apply", site, OPERATOR, SOFTWARE).code == 0
    assert min(written(site)) > 0
    bench = tmp_path / "bench.json"
    code, check = kernel_of(site, "--bench", str(bench))  # modules are not built yet
    assert (code, check["outcome"]) == (0, "passed"), check["detail"]
    assert len([case for group in check["groups"] for case in group["cases"]]) > 200
    code, again = kernel_of(site)  # now they are
    assert (code, again["outcome"]) == (0, "passed"), again["detail"]
    print(json.dumps(json.loads(bench.read_text())))
    assert run("revert", site, "--all").code == 0
    assert {k: v for k, v in tree(site).items() if "__pycache__" not in k} == before
    assert written(site) == [0, 0]  # not the module of the patch


# Sabotage: a copy of a shipped patch, one thing in it made wrong.


def edited(name: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return edit


def also(file: str, old: str, new: str, matches: int = 1) -> Callable[[Path], None]:
    """Add an edit to the patch."""

    def edit(folder: Path) -> None:
        table = f"""
        [[edit]]
        file = "{file}"
        codemod = "replace_block"
        matches = {matches}
        params = {{ old = {json.dumps(old)}, new = {json.dumps(new)} }}
        """
        with (folder / "patch.toml").open("a") as manifest:
            manifest.write(textwrap.dedent(table))

    return edit


IN_KERNEL = {
    "swapped nibbles": (
        edited(
            "software_e2m1.cuh",
            "return codes |",
            "codes = (codes & 0x0F0F0F0Fu) << 4 | (codes >> 4 & 0x0F0F0F0Fu);\n  return codes |",
        ),
        "codes",
    ),
    "one threshold off": (
        edited(
            "software_e2m1.cuh",
            "float const a = fabsf(x);",
            "float a = fabsf(x);\n  if (a == 0.25f) a = 0.26f;",
        ),
        "codes",
    ),
    "8x4 offsets for 128x4": (
        also(
            UTILS,
            "? get_sf_out_offset_128x4(batchIdx, mIdx, kIdx, numRows, numColVecs)",
            "? get_sf_out_offset_8x4(batchIdx, mIdx, kIdx, numRows, numColVecs)",
        ),
        "scales",
    ),
    "padding not zeroed": (
        also(
            KERNEL,
            "            // Column padding: Set the SF padding to 0.\n"
            "            if (sf_out != nullptr) {",
            "            if (false) {",
        ),
        "never written",
    ),
    "scale inverted": (
        also(
            UTILS,
            "float SFScaleVal, uint8_t* SFout) {",
            "float SFScaleVal, uint8_t* SFout) {\n  SFScaleVal = 1.0f / SFScaleVal;",
        ),
        "scales",
    ),
}


@pytest.mark.usefixtures("needs_software")
@pytest.mark.parametrize("name", IN_KERNEL)
def test_sabotaged_kernel(name: str, flashinfer_tree: Callable[[str], Path], tmp_path: Path):
    edit, words = IN_KERNEL[name]
    site, folder = flashinfer_tree(RELEASES[0]), tmp_path / "patches/sabotaged"
    shutil.copytree(shipped_folder() / SOFTWARE, folder)
    edit(folder)
    patches = ("--patches", str(folder.parent))
    applied = run("apply", site, *patches, "sabotaged", OPERATOR)
    assert applied.code == 0, applied
    code, check = kernel_of(site, *patches)
    assert (code, check["outcome"]) == (1, "failed")
    assert words in check["detail"]


@pytest.mark.usefixtures("needs_software")
def test_wrong_stride_in_the_fake(flashinfer_tree: Callable[[str], Path], tmp_path: Path):
    site, folder = flashinfer_tree(RELEASES[0]), tmp_path / "patches/sabotaged"
    shutil.copytree(shipped_folder() / OPERATOR, folder)
    edited("flat.py", "return x_q.transpose(-2, -1),", "return x_q.mT.contiguous(),")(folder)
    patches = ("--patches", str(folder.parent))
    assert run("apply", site, *patches, "sabotaged", SOFTWARE).code == 0
    code, check = kernel_of(site, *patches)
    assert code == 1
    failing = {
        (group["name"], case["name"])
        for group in check["groups"]
        for case in group["cases"]
        if case["problem"]
    }
    assert failing
    assert all("column-major" in case for _, case in failing)
    assert {group for group, _ in failing} >= {"compiled: eager", "compiled: inductor", "opcheck"}


COMPILED = """
import torch, flashinfer
x = torch.randn(256, 130, generator=torch.Generator().manual_seed(0)).to("cuda", torch.bfloat16)
x, scale = x.t().contiguous().t(), torch.ones(1, device="cuda")
def run(x, scale):
    codes, scales = flashinfer.fp4_quantize(-x, scale)
    return codes ^ 1, scales ^ 1
got, want = torch.compile(run, fullgraph=True)(x, scale), run(x, scale)
assert all(a.stride() == b.stride() and torch.equal(a, b) for a, b in zip(got, want)), "differs"
"""


def compiled(site: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Compile a column-major call in a fresh process, with Inductor's cache in a folder."""
    paths = os.pathsep.join([str(site), *sys.path])
    environ = {**os.environ, "PYTHONPATH": paths, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", COMPILED], env=environ, capture_output=True, text=True
    )


CODEMOD = """\
import re
from dataclasses import replace

from patchkit.codemods import wrap_custom_op


def wrap(source, patch, table):
    (match,) = wrap_custom_op(source, patch, table)
    (splice,) = match.splices
    text = re.sub(rb"fp4_quantize_[0-9a-f]{12}", b"fp4_quantize_v1", splice.text)
    return [replace(match, splices=(replace(splice, text=text),))]
"""


@pytest.mark.usefixtures("needs_software")
def test_stale_cache_of_inductor_with_an_old_fake(
    flashinfer_tree: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The right fake is cached under a name without a digest; a wrong one must still be caught."""
    site, folder, cache = flashinfer_tree(RELEASES[0]), tmp_path / "patches/fixed", tmp_path / "ind"
    shutil.copytree(shipped_folder() / OPERATOR, folder)
    edited("patch.toml", '"wrap_custom_op"', '"codemod.py:wrap"')(folder)
    (folder / "codemod.py").write_text(CODEMOD)
    patches = ("--patches", str(folder.parent))
    allowed = (*patches, "--allow-code", str(folder.parent))
    assert run("apply", site, *allowed, "fixed", SOFTWARE).code == 0
    assert (first := compiled(site, cache)).returncode == 0, first.stderr[-2000:]
    edited("patch.toml", "revision = 1", "revision = 2")(folder)
    edited("flat.py", "return x_q.transpose(-2, -1),", "return x_q.mT.contiguous(),")(folder)
    assert run("apply", site, *allowed, "fixed").code == 0
    stale = compiled(site, cache)
    print(f"with the stale cache: exit {stale.returncode}, with a fresh one: ", end="")
    print(f"exit {compiled(site, tmp_path / 'fresh').returncode}")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    code, check = kernel_of(site, *patches)
    assert code == 1
    assert "compiled: inductor" in {
        group["name"] for group in check["groups"] if any(c["problem"] for c in group["cases"])
    }
