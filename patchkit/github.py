"""GitHub workflow commands of a result: what it found, as annotations of a workflow run."""

from __future__ import annotations

from collections.abc import Iterator

from patchkit.plaintext import one_line, plain
from patchkit.results import PROVEN, SKIPPED, Check, Result, Row

_ERROR, _WARNING, _NOTICE = "error", "warning", "notice"


def annotate(result: Result) -> str:
    """Return a line each for what is wrong, worth a warning, or skipped; what passed has none."""
    return "\n".join(_commands(result))


def _commands(result: Result) -> Iterator[str]:
    for text in result.problems:
        yield _command(_ERROR, "patchkit", text)
    for row in result.rows:
        if not row.ok:
            yield _command(_ERROR, f"{row.id}: {row.state}", _about_row(row))
    for check in result.checks:
        if level := _level(result, check):
            word = check.proof or check.outcome
            yield _command(level, f"{check.patch}: {check.name} {word}", _about_check(check))
    for text in result.warnings:
        yield _command(_WARNING, "patchkit", text)


def _level(result: Result, check: Check) -> str:
    if not result.holds(check):
        return _ERROR
    if check.proof not in ("", PROVEN):
        return _WARNING
    return _NOTICE if check.outcome == SKIPPED else ""


def _about_row(row: Row) -> str:
    return "\n".join(t for t in (row.detail or row.state, row.hint and f"next: {row.hint}") if t)


def _about_check(check: Check) -> str:
    calls = [f"  {step}" for step in check.chain]
    lines = [check.detail or check.outcome, *(["calls:"] if calls else []), *calls, check.tail]
    return "\n".join(line for line in lines if line)


def _command(level: str, title: str, message: str) -> str:
    return f"::{level} title={_property(one_line(title))}::{_data(plain(message))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
