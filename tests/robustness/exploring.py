"""Hypothesis with a count of what was tried: a little in the default run, more with ``--long``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy, tuples

from tests.robustness.conftest import Figure

Check = Callable[..., None]


def explore(
    figure: Figure, examples: int, more: int, long: bool, *inputs: SearchStrategy[Any]
) -> Callable[[Check], None]:
    """Decorate a check, which is then made at once on that many inputs; they are counted.

    The default run tries the same inputs every time, the long one others each time.
    """

    def run(check: Check) -> None:
        tried = 0

        @settings(
            deadline=None,
            max_examples=more if long else examples,
            derandomize=not long,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(tuples(*inputs))
        def wrapped(values: tuple[Any, ...]) -> None:
            nonlocal tried
            tried += 1
            check(*values)

        try:
            wrapped()
        finally:
            figure("inputs fuzzed", tried)

    return run
