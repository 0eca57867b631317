"""The option ``--long``, and the figures of a robustness run, which pytest prints at its end."""

from __future__ import annotations

from collections import Counter

import pytest

PREFIX = "figure: "
ORDER = (
    "kill points tried",
    "faults injected",
    "files round-tripped",
    "files refused",
    "files edited",
    "inputs fuzzed",
    "processes raced",
    "imports watched",
    "system calls checked",
    "lost",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        action="store_true",
        help="tests/robustness: every point, every file, more inputs (tests/robustness/README.md)",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    totals: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, value in report.user_properties:
                    if name.startswith(PREFIX):
                        totals[name.removeprefix(PREFIX)] += value
    if totals:
        terminalreporter.section("robustness")
    for name in sorted(totals, key=ORDER.index):
        terminalreporter.write_line(f"{name:<26} {totals[name]:>9,}")
