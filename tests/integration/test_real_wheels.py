"""The whole job on real FlashInfer wheels."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Outcome, invoke
from tests.wheels import flashinfer_wheel, unpack

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
RELEASES = ("0.5.3", "0.6.3", "0.6.7.post3", "0.6.8.post1", "0.6.11", "0.7.0", "0.7.4")
DEFAULT = "flashinfer-fp4-quantize-custom-op"
OTHERS = ("flashinfer-cuda-version", "flashinfer-fp4-quantize-compiler-disable")

Install = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in an empty folder, and leave no gigabytes in pytest's own."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    yield
    for folder in [*tmp_path.glob("fi-*"), tmp_path / "untouched"]:
        shutil.rmtree(folder, ignore_errors=True)


def patchkit(*args: str) -> Outcome:
    """Run the command in a process of its own."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "patchkit", *args]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    return Outcome(done.returncode, done.stdout, done.stderr)


def tree(folder: Path) -> dict[str, tuple]:
    """Path -> mode, size, time and link text; bytes are for ``diff -r``: some wheels are large."""
    found = {}
    for path in folder.rglob("*"):
        info = path.lstat()
        link = os.readlink(path) if path.is_symlink() else ""
        times = (info.st_size, info.st_mtime_ns) if path.is_file() else ()
        found[path.relative_to(folder).as_posix()] = (info.st_mode, *times, link)
    return found


def same_as_untouched(version: str, site: Path, tmp_path: Path) -> None:
    """``diff -r`` with a fresh copy of the wheel finds nothing."""
    fresh = unpack(flashinfer_wheel(version), tmp_path / "untouched")
    done = subprocess.run(["diff", "-r", site, fresh], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("version", RELEASES)
def test_apply_verify_revert(flashinfer_tree: Install, tmp_path: Path, version: str) -> None:
    site = flashinfer_tree(version)
    options = ("--site-packages", str(site))
    run = patchkit if version == RELEASES[-1] else invoke
    before = tree(site)

    outcome = run("apply", *options, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.states == {DEFAULT: "applied"}
    changed = [Path(path) for path in outcome.json["changed"]]
    assert changed
    for path in changed:
        ast.parse(path.read_bytes())
        assert b"patchkit: " in path.read_bytes()
        assert b"import patchkit" not in path.read_bytes()

    assert run("status", *options, "--json").states[DEFAULT] == "applied"
    assert run("status", *options).code == 0
    assert run("verify", "--check", "bytes", *options).code == 0
    after = tree(site)
    own = {path for path in after if path.split("/")[0] == ".patchkit"}
    files = {path.relative_to(site).as_posix() for path in changed}
    assert {path for path in after if after[path] != before.get(path)} - own == files

    again = run("apply", *options)
    assert again.code == 0
    assert "already applied" in again.out
    assert tree(site) == after

    assert run("revert", *options, "--all").code == 0
    assert tree(site) == before
    same_as_untouched(version, site, tmp_path)


@pytest.mark.parametrize("version", [RELEASES[0], RELEASES[2], RELEASES[4]])
def test_the_patches_that_are_not_on_by_default(
    flashinfer_tree: Install, tmp_path: Path, version: str
) -> None:
    site = flashinfer_tree(version)
    options = ("--site-packages", str(site))
    before = tree(site)
    outcome = invoke("apply", *options, *OTHERS, "--json")
    assert outcome.states == dict.fromkeys(OTHERS, "applied")
    for path in outcome.json["changed"]:
        ast.parse(Path(path).read_bytes())
    assert invoke("verify", "--check", "bytes", *options).code == 0
    refused = invoke("apply", *options)
    assert refused.code == 1
    assert "conflict: " in refused.err
    assert invoke("revert", *options, "flashinfer-cuda-version").code == 0
    assert invoke("status", *options, "--json").states[OTHERS[1]] == "applied"
    assert invoke("revert", *options, "--all").code == 0
    assert tree(site) == before


def test_a_byte_more_is_drift(flashinfer_tree: Install) -> None:
    site = flashinfer_tree("0.7.0")
    options = ("--site-packages", str(site))
    before = tree(site)
    (path,) = invoke("apply", *options, "--json").json["changed"]
    drifted = Path(path).read_bytes() + b"\n"
    Path(path).write_bytes(drifted)
    verify = invoke("verify", "--check", "bytes", *options)
    assert verify.code == 1
    assert DEFAULT in verify.out
    assert Path(path).relative_to(site).as_posix() in verify.out
    assert invoke("revert", *options, "--all").code == 1
    assert Path(path).read_bytes() == drifted
    forced = invoke("revert", *options, "--all", "--force")
    assert forced.code == 0
    (beside,) = set(tree(site)) - set(before)
    assert str(site / beside) in forced.out
    assert (site / beside).read_bytes() == drifted
    (site / beside).unlink()
    assert tree(site) == before


def test_upgrade_from_one_release_to_another(flashinfer_tree: Install, tmp_path: Path) -> None:
    site = flashinfer_tree("0.6.11")
    options = ("--site-packages", str(site))
    assert invoke("apply", *options).code == 0
    for name in ("flashinfer", "flashinfer_python-0.6.11.dist-info"):
        shutil.rmtree(site / name)
    unpack(flashinfer_wheel("0.7.0"), site)
    assert invoke("status", *options, "--json").states[DEFAULT] == "upgraded underneath"
    assert invoke("verify", "--check", "bytes", *options).code == 1
    assert invoke("apply", *options).code == 0
    assert invoke("verify", "--check", "bytes", *options).code == 0
    assert invoke("revert", *options, "--all").code == 0
    same_as_untouched("0.7.0", site, tmp_path)
