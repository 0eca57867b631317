from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.test_environments import lab  # noqa: F401
from tests.robustness.figures import ORDER, PREFIX

Figure = Callable[[str, int], None]


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """Add to a figure that is printed at the end of the run."""

    def add(name: str, number: int) -> None:
        assert name in ORDER, name
        record_property(PREFIX + name, number)

    return add


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    """True in the run that tries everything."""
    return bool(request.config.getoption("--long"))
