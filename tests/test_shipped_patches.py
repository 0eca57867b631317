"""The shipped patches: which releases they are for, and what they do to the real sources."""

from __future__ import annotations

import ast
import hashlib
import importlib
import logging
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version

from patchkit.catalog import read_patch, shipped_folder
from patchkit.manifest import Patch
from patchkit.splice import apply_splices, find_overlap
from patchkit.transform import rewrite
from tests.wheels import flashinfer_wheel

OPERATOR = "flashinfer-fp4-quantize-custom-op"
DISABLE = "flashinfer-fp4-quantize-compiler-disable"
CUDA = "flashinfer-cuda-version"
PATCHES = {name: read_patch(shipped_folder() / name) for name in (OPERATOR, DISABLE, CUDA)}
CPP_EXT = "flashinfer/jit/cpp_ext.py"
SAMPLE = ("0.5.3", "0.6.3", "0.6.7.post3", "0.6.8.post1", "0.6.11", "0.7.0", "0.7.4")


@dataclass(frozen=True)
class Release:
    """One row of flashinfer_releases.txt."""

    version: str
    where: str
    parameters: int
    fp4_sha: str
    cuda: str
    cuda_sha: str

    @property
    def fp4_file(self) -> str:
        folder = "quantization/" if self.where == "quantization" else ""
        return f"flashinfer/{folder}fp4_quantization.py"


def read_releases() -> tuple[Release, ...]:
    lines = Path(__file__).with_name("flashinfer_releases.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return tuple(Release(a, b, int(c), d, e, f) for a, b, c, d, e, f in rows)


RELEASES = read_releases()
BY_VERSION = {release.version: release for release in RELEASES}


# --- which edit for which release -----------------------------------------------------------


def test_table_is_sorted_and_whole() -> None:
    versions = [Version(release.version) for release in RELEASES]
    assert versions == sorted(set(versions))
    assert (str(versions[0]), str(versions[-1])) == ("0.2.8rc1", "0.7.4")
    assert len(versions) == 98


@pytest.mark.parametrize("release", RELEASES, ids=lambda r: r.version)
@pytest.mark.parametrize("suffix", ["", "+cu130"])
def test_exactly_one_edit_fits_each_release(release: Release, suffix: str) -> None:
    version = Version(release.version + suffix)
    for name in (OPERATOR, DISABLE):
        assert PATCHES[name].fits(version)
        (edit,) = PATCHES[name].edits_for(version)
        assert edit.file == release.fp4_file
    (edit,) = PATCHES[OPERATOR].edits_for(version)
    assert len([n for n in edit.params["parameters"] if n != "*"]) == release.parameters
    assert PATCHES[CUDA].fits(version) == (release.cuda != "-")
    if release.cuda != "-":
        (edit,) = PATCHES[CUDA].edits_for(version)
        assert edit.file == CPP_EXT
        wanted = "nvcc.py" if release.cuda == "fallback" else "nvcc_or_torch.py"
        assert edit.params["snippet"] == wanted


@pytest.mark.parametrize("version", ["0.2.7.post1", "0.7.4.post1", "0.7.5rc1", "0.8.0", "1.0"])
def test_other_releases_are_out_of_range(version: str) -> None:
    assert not any(patch.fits(Version(version)) for patch in PATCHES.values())


@pytest.mark.parametrize("version", ["0.6.8rc2", "0.6.9.post1", "0.6.17rc2", "0.7.3", "0.7.4rc1"])
def test_no_gap_between_the_ranges(version: str) -> None:
    for patch in PATCHES.values():
        assert len(patch.edits_for(Version(version))) == 1


def test_manifests_agree_with_each_other() -> None:
    assert [name for name, patch in PATCHES.items() if patch.default] == [OPERATOR]
    assert PATCHES[OPERATOR].conflicts == (DISABLE,)
    assert PATCHES[DISABLE].conflicts == (OPERATOR,)
    assert {folder.name for folder in shipped_folder().iterdir() if folder.is_dir()} >= set(PATCHES)


@pytest.mark.parametrize("name", PATCHES)
def test_every_snippet_is_used(name: str) -> None:
    patch = PATCHES[name]
    used: set[str] = set()
    for edit in patch.edits:
        used.update(edit.params.get("snippets", ()), [edit.params.get("snippet", "")])
    assert set(patch.snippets) == used - {""}


# --- on the real sources --------------------------------------------------------------------


@cache
def source(version: str, path: str) -> bytes:
    with zipfile.ZipFile(flashinfer_wheel(version)) as archive:
        return archive.read(path)


def splices(patch: Patch, version: str) -> Any:
    edits = patch.edits_for(Version(version))
    return rewrite(edits[0].file, source(version, edits[0].file), patch, edits)


@pytest.mark.slow
@pytest.mark.parametrize("version", SAMPLE)
def test_table_describes_the_wheel(version: str) -> None:
    release = BY_VERSION[version]
    for path, digest in ((release.fp4_file, release.fp4_sha), (CPP_EXT, release.cuda_sha)):
        assert hashlib.sha256(source(version, path)).hexdigest().startswith(digest)


@pytest.mark.slow
@pytest.mark.parametrize("version", SAMPLE)
@pytest.mark.parametrize("name", PATCHES)
def test_patch_only_inserts_and_the_result_parses(name: str, version: str) -> None:
    patch = PATCHES[name]
    data = source(version, patch.edits_for(Version(version))[0].file)
    found = splices(patch, version)
    assert all(splice.start == splice.end for splice in found)
    after = apply_splices(data, found)
    ast.parse(after)
    added = b"".join(splice.text for splice in found).decode()
    assert f"patchkit: {name} revision {patch.revision}, see {patch.links[0]}" in added
    assert "import patchkit" not in added


@pytest.mark.slow
def test_conflicting_patches_would_even_stand_together() -> None:
    mine, other = (splices(PATCHES[name], "0.6.3") for name in (OPERATOR, DISABLE))
    assert find_overlap([(OPERATOR, mine), (DISABLE, other)]) is None


# --- get_cuda_version -----------------------------------------------------------------------

MODULES = {
    "nvcc-only": """
@functools.cache
def get_cuda_version() -> Version:
    return Version(ask_nvcc())
""",
    "fallback": """
@functools.cache
def get_cuda_version() -> Version:
    try:
        return Version(ask_nvcc())
    except (RuntimeError, FileNotFoundError, subprocess.CalledProcessError) as e:
        if torch.version.cuda is None:
            raise RuntimeError("no nvcc, no CUDA in torch") from e
        return Version(torch.version.cuda)
""",
}
HEAD = """
import functools
import subprocess

import torch
from packaging.version import Version

calls = []


def ask_nvcc():
    calls.append(1)
    if isinstance(answer, Exception):
        raise answer
    return answer

"""


@pytest.fixture(params=["nvcc-only", "fallback"])
def cpp_ext(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """A stand-in for cpp_ext.py with that kind of get_cuda_version, patched and imported."""

    def load(nvcc: object, torch_cuda: str | None) -> Any:
        version = "0.3.1" if request.param == "nvcc-only" else "0.6.3"
        data = (HEAD + MODULES[request.param]).encode()
        edits = PATCHES[CUDA].edits_for(Version(version))
        after = apply_splices(data, rewrite(CPP_EXT, data, PATCHES[CUDA], edits))
        (tmp_path / "stand_in_cpp_ext.py").write_bytes(after)
        compiler = SimpleNamespace(is_compiling=lambda: False)
        torch = SimpleNamespace(version=SimpleNamespace(cuda=torch_cuda), compiler=compiler)
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "stand_in_cpp_ext", raising=False)
        module = importlib.import_module("stand_in_cpp_ext")
        module.answer = nvcc
        return module

    return load


def test_nvcc_decides_and_a_difference_is_logged_once(
    cpp_ext: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    module = cpp_ext("12.4", "13.0")
    assert [module.get_cuda_version() for _ in range(3)] == [Version("12.4")] * 3
    assert len(module.calls) == 1
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "nvcc is for CUDA 12.4, torch for CUDA 13.0" in record.getMessage()


@pytest.mark.parametrize("torch_cuda", ["12.4", None])
def test_nothing_is_logged_without_a_difference(
    cpp_ext: Callable[..., Any], caplog: pytest.LogCaptureFixture, torch_cuda: str | None
) -> None:
    assert cpp_ext("12.4", torch_cuda).get_cuda_version() == Version("12.4")
    assert not caplog.records


ABSENT = [
    FileNotFoundError("nvcc"),
    RuntimeError("Could not find nvcc"),
    subprocess.CalledProcessError(1, "nvcc"),
]


@pytest.mark.parametrize("error", ABSENT, ids=lambda e: type(e).__name__)
def test_torch_answers_where_nvcc_is_absent(
    cpp_ext: Callable[..., Any], caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    module = cpp_ext(error, "12.9")
    assert module.get_cuda_version() == module.get_cuda_version() == Version("12.9")
    assert len(module.calls) == 1, "the answer must be kept"
    assert not caplog.records


def test_neither_is_an_error_with_its_cause(cpp_ext: Callable[..., Any]) -> None:
    module = cpp_ext(FileNotFoundError("nvcc"), None)
    with pytest.raises(RuntimeError) as caught:
        module.get_cuda_version()
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_torch_answers_while_dynamo_traces_and_is_not_kept(cpp_ext: Callable[..., Any]) -> None:
    module = cpp_ext("12.4", "13.0")
    module.torch.compiler.is_compiling = lambda: True
    assert module.get_cuda_version() == Version("13.0")
    assert not module.calls
    module.torch.compiler.is_compiling = lambda: False
    assert module.get_cuda_version() == Version("12.4")


def test_cache_can_be_cleared_and_asked(cpp_ext: Callable[..., Any]) -> None:
    module = cpp_ext("12.4", "12.4")
    assert module.get_cuda_version() == Version("12.4")
    module.answer = "12.9"
    assert module.get_cuda_version() == Version("12.4")
    module.get_cuda_version.cache_clear()
    assert module.get_cuda_version() == Version("12.9")
    assert module.get_cuda_version.cache_info().currsize == 1
    assert module.get_cuda_version.__name__ == "get_cuda_version"
