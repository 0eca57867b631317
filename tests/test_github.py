from __future__ import annotations

import re
from dataclasses import replace

import pytest

from patchkit.github import annotate
from patchkit.results import (
    BROKEN,
    FAILED,
    NO_LONGER_NEEDED,
    PASSED,
    SKIPPED,
    UNPROVEN,
    Check,
    Result,
    Row,
)
from tests.conftest import HOSTILE

ROW = Row("p", "applied", "", "demo-pkg", "1.0", 1, 1)
TRACE = Check("p", "trace", PASSED, "one graph", 12.3)


def commands(text: str) -> list[tuple[str, str, str]]:
    """Read workflow commands as the runner does: level, title and message of each line."""
    found = []
    for line in text.split("\n") if text else []:
        match = re.fullmatch(r"::(error|warning|notice) title=([^:,]*)::(.*)", line)
        assert match, line
        found.append((match[1], decode(match[2], ",:"), decode(match[3], "")))
    return found


def decode(text: str, more: str) -> str:
    for character in "\r\n" + more:
        text = text.replace(f"%{ord(character):02X}", character)
    return text.replace("%25", "%")


def test_what_passed_has_none():
    assert annotate(Result((ROW,), checks=(TRACE,))) == ""


def test_problems_rows_checks_and_warnings():
    row = replace(ROW, state="drifted", detail="other bytes", ok=False, hint="patchkit diff p")
    check = replace(TRACE, outcome=FAILED, detail="stops", chain=("f (a.py)", "g (b.py)"), tail="t")
    result = Result((row,), ("mind",), ("left over",), checks=(check,))
    assert commands(annotate(result)) == [
        ("error", "patchkit", "left over"),
        ("error", "p: drifted", "other bytes\nnext: patchkit diff p"),
        ("error", "p: trace failed", "stops\ncalls:\n  f (a.py)\n  g (b.py)\nt"),
        ("warning", "patchkit", "mind"),
    ]


@pytest.mark.parametrize(
    ("check", "strict", "level"),
    [
        (replace(TRACE, outcome=SKIPPED), False, "notice"),
        (replace(TRACE, outcome=SKIPPED), True, "error"),
        (replace(TRACE, proof=NO_LONGER_NEEDED), False, "warning"),
        (replace(TRACE, proof=UNPROVEN), False, "warning"),
        (replace(TRACE, proof=UNPROVEN), True, "error"),
        (replace(TRACE, proof=NO_LONGER_NEEDED), True, "error"),
        (replace(TRACE, outcome=FAILED, proof=BROKEN), False, "error"),
    ],
)
def test_levels(check: Check, strict: bool, level: str):
    result = Result((ROW,), checks=(check,), strict=strict)
    ((found, title, _),) = commands(annotate(result))
    assert found == level
    assert title == f"p: trace {check.proof or check.outcome}"
    assert result.ok == (level != "error")


def test_escapes():
    (line,) = annotate(Result((), problems=("50%, a: b\nc",))).split("\n")
    assert line == "::error title=patchkit::50%25, a: b%0Ac"
    (line,) = annotate(Result((Row("a:b,c%", "odd", ok=False),))).split("\n")
    assert line == "::error title=a%3Ab%2Cc%25%3A odd::odd"


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_makes_a_command_of_its_own(text: str):
    check = Check(text, text, FAILED, text, 1.0, text, (text,), text)
    result = Result(
        (Row(text, text, text, ok=False, hint=text),), (text,), (text,), checks=(check,)
    )
    assert [level for level, _, _ in commands(annotate(result))] == ["error"] * 3 + ["warning"]
