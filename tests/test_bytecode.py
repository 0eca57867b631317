from __future__ import annotations

import py_compile
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from patchkit.bytecode import stale_bytecode

OLD, NEW = "print(10)\n", "print(9999)\n"
Mode = py_compile.PycInvalidationMode


def compiled(folder: Path, mode: Mode) -> tuple[Path, Path]:
    source = folder / "mod.py"
    source.write_text(OLD)
    cached = py_compile.compile(str(source), invalidation_mode=mode, doraise=True)
    assert cached is not None
    return Path(cached), source


def runs(folder: Path, *options: str) -> str:
    """Return what importing the module prints: what Python really does."""
    command = [sys.executable, "-B", *options, "-c", "import mod"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("mode", list(Mode))
def test_says_what_python_does(tmp_path: Path, mode: Mode, changed: bool) -> None:
    cached, source = compiled(tmp_path, mode)
    if changed:
        source.write_text(NEW)
    assert stale_bytecode(cached, source) is (mode is Mode.UNCHECKED_HASH and changed)
    assert (runs(tmp_path) == "10") is (stale_bytecode(cached, source) or not changed)


def test_optimised_bytecode(tmp_path: Path) -> None:
    _, source = compiled(tmp_path, Mode.UNCHECKED_HASH)
    cached = Path(cache_from_source(str(source), optimization="1"))
    py_compile.compile(
        str(source), str(cached), optimize=1, invalidation_mode=Mode.UNCHECKED_HASH, doraise=True
    )
    assert not stale_bytecode(cached, source)
    source.write_text(NEW)
    assert stale_bytecode(cached, source)
    assert runs(tmp_path, "-O") == "10"


def test_bytecode_of_another_python_carries_its_own_hash(tmp_path: Path) -> None:
    """The hash is keyed with the magic number of the Python that wrote it."""
    cached, source = compiled(tmp_path, Mode.UNCHECKED_HASH)
    data = cached.read_bytes()
    cached.write_bytes((3390).to_bytes(2, "little") + b"\r\n" + data[4:])
    assert stale_bytecode(cached, source)


@pytest.mark.parametrize("length", [0, 1, 4, 8, 12, 15])
def test_truncated(tmp_path: Path, length: int) -> None:
    cached, source = compiled(tmp_path, Mode.UNCHECKED_HASH)
    source.write_text(NEW)
    cached.write_bytes(cached.read_bytes()[:length])
    assert not stale_bytecode(cached, source)


def test_missing_files(tmp_path: Path) -> None:
    cached, source = compiled(tmp_path, Mode.UNCHECKED_HASH)
    source.unlink()
    assert not stale_bytecode(cached, source)
    cached.unlink()
    assert not stale_bytecode(cached, source)
    cached.mkdir()
    assert not stale_bytecode(cached, source)
