"""The disk is full, broken, read-only or forbidden at any call: a clear error, nothing changed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.robustness.conftest import Figure
from tests.robustness.sweeping import sweep
from tests.robustness.traced import why_not

pytestmark = pytest.mark.slow

WRITERS = ["apply", "revert", "apply-second", "revert-first"]


@pytest.mark.parametrize("situation", [*WRITERS, "status", "verify"])
def test_a_call_that_fails(tmp_path: Path, figure: Figure, long: bool, situation: str) -> None:
    """Once or lasting, one error at a call; in the long run every one, once and lasting."""
    stride = {"apply": 2, "revert": 2, "apply-second": 4, "revert-first": 4}.get(situation, 1)
    more = {"every": long, "stride": stride}
    points = sweep(tmp_path, "faults", situation, figure, "faults injected", **more)
    assert points > (200 // stride if situation in WRITERS else 30)


@pytest.mark.parametrize("situation", [*WRITERS, "status", "verify"])
def test_a_system_call_that_fails(
    tmp_path: Path, figure: Figure, long: bool, situation: str
) -> None:
    """The same in the kernel's own calls, by ``strace --inject``."""
    if reason := why_not():
        pytest.skip(reason)
    stride = 4 if long else 60
    sweep(tmp_path, "traced_faults", situation, figure, "faults injected", stride=stride)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("mount is not there")
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("situation", WRITERS)
def test_a_disk_that_is_really_full(
    small_disk: Path, figure: Figure, long: bool, situation: str
) -> None:
    points = sweep(small_disk, "full_disk", situation, figure, "faults injected", stride=4)
    assert points > 1
