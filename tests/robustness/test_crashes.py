"""Killed after any file-system call: never torn, never lost, mended by the next command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.robustness.conftest import Figure
from tests.robustness.sweeping import sweep

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("situation", ["apply", "revert", "apply-second", "revert-first"])
def test_case_28_killed_at_any_call(
    tmp_path: Path, figure: Figure, long: bool, situation: str
) -> None:
    """At every call that changes something, in every write, and again while that is mended."""
    twice = 1 if long else 15
    points = sweep(tmp_path, "kills", situation, figure, "kill points tried", stride=1, twice=twice)
    assert points > 150
