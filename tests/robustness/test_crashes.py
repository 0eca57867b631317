"""Killed after any file-system call: never torn, never lost, mended by the next command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.robustness.conftest import Figure
from tests.robustness.sweeping import sweep
from tests.robustness.traced import why_not

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("situation", ["apply", "revert", "apply-second", "revert-first"])
def test_case_28_killed_at_any_call(
    tmp_path: Path, figure: Figure, long: bool, situation: str
) -> None:
    """At every call that changes something, in every write, and again while that is mended."""
    stride = 1 if long or situation in ("apply", "revert") else 2
    more = {"stride": stride, "twice": 2 if long else 30}
    points = sweep(tmp_path, "kills", situation, figure, "kill points tried", **more)
    assert points > 150 // stride


@pytest.mark.parametrize("situation", ["apply", "revert", "apply-second", "revert-first"])
def test_case_28_killed_in_any_system_call(
    tmp_path: Path, figure: Figure, long: bool, situation: str
) -> None:
    """The same by strace, which kills on entering a call, those that only read included."""
    if reason := why_not():
        pytest.skip(reason)
    stride = 4 if long else 40
    sweep(tmp_path, "traced_kills", situation, figure, "kill points tried", stride=stride)
