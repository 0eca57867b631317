"""The disk is full, broken, read-only or forbidden at any call: a clear error, nothing changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.robustness.conftest import Figure
from tests.robustness.sweeping import sweep

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "situation", ["apply", "revert", "apply-second", "revert-first", "status", "verify"]
)
def test_a_call_that_fails(tmp_path: Path, figure: Figure, long: bool, situation: str) -> None:
    """Each error at every call, once and lasting; the default run gives each a part of them."""
    stride = 1 if long else 6
    sweep(tmp_path, "faults", situation, figure, "faults injected", stride=stride)
