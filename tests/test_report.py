from __future__ import annotations

import json
from dataclasses import replace

import click
import pytest

from patchkit.report import document, table
from patchkit.results import (
    FAILED,
    NO_LONGER_NEEDED,
    PASSED,
    PROVEN,
    SKIPPED,
    UNPROVEN,
    Check,
    Result,
    Row,
)
from tests.conftest import HOSTILE

ROW = Row("p", "applied", "", "demo-pkg", "1.0", 1, 1)
OTHER = replace(ROW, id="q", state="drifted", ok=False, hint="patchkit diff q", detail="bytes")
TRACE = Check("p", "trace", PASSED, "one graph", 12.34)
IMPORT = Check("p", "import", SKIPPED, "torch is not installed here", 0.04)


def test_checks_stand_under_their_patch():
    failed = Check(
        "q", "trace", FAILED, "stops in g", 4, chain=("f (a.py)", "g (b.py)"), tail="x\n\ny"
    )
    result = Result((ROW, OTHER), checks=(IMPORT, replace(TRACE, proof=PROVEN), failed))
    assert click.unstyle(table(result)) == (
        "applied  p  revision 1, demo-pkg 1.0\n"
        "  skipped  import     0.0 s  torch is not installed here\n"
        "  passed   trace     12.3 s  proven: one graph\n"
        "drifted  q  revision 1, demo-pkg 1.0, bytes\n"
        "         next: patchkit diff q\n"
        "  failed   trace      4.0 s  stops in g\n"
        "      calls, from the public function to where it stops:\n"
        "        f (a.py)\n"
        "        g (b.py)\n"
        "      its output ended:\n"
        "      | x\n"
        "      |\n"
        "      | y"
    )


@pytest.mark.parametrize(
    ("check", "strict", "colour"),
    [
        (TRACE, True, "green"),
        (IMPORT, False, "yellow"),
        (IMPORT, True, "red"),
        (replace(TRACE, proof=NO_LONGER_NEEDED), False, "yellow"),
        (replace(TRACE, proof=UNPROVEN), False, "yellow"),
        (replace(TRACE, proof=UNPROVEN), True, "red"),
        (replace(TRACE, proof=NO_LONGER_NEEDED), True, "red"),
        (replace(TRACE, outcome=FAILED), False, "red"),
    ],
)
def test_colours(check: Check, strict: bool, colour: str):
    text = table(Result((ROW,), checks=(check,), strict=strict))
    assert click.style(check.outcome, fg=colour) in text


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_probes_cannot_drive_the_terminal_or_start_a_line(text: str):
    check = Check("p", "trace", FAILED, text, 1.0, text, (text,))
    shown = click.unstyle(table(Result((ROW,), checks=(check,))))
    assert not set(shown) & set("\x00\x07\x08\x0d\x1b\x7f\x85\u202e\u2028")
    assert not [line for line in shown.split("\n")[1:] if line.lstrip().startswith("::stop")]
    shown.encode("utf-8")


def test_json_has_the_checks():
    check = replace(TRACE, chain=("f (a.py)",), tail="\x00")
    found = json.loads(document("verify", None, ok=True, result=Result((ROW,), checks=(check,))))
    assert found["checks"] == [
        {
            "patch": "p",
            "name": "trace",
            "outcome": "passed",
            "detail": "one graph",
            "seconds": 12.34,
            "tail": "\x00",
            "chain": ["f (a.py)"],
            "proof": "",
            "groups": [],
            "bench": None,
        }
    ]
    assert json.loads(document("verify", None, ok=False))["checks"] == []


def test_strictness_says_what_it_fails() -> None:
    checks = (Check("p", "trace", SKIPPED, "no torch"), Check("q", "import", PASSED))
    rows = (Row("p", "applied"), Row("q", "applied"))
    lax, strict = (Result(rows, checks=checks, strict=strict) for strict in (False, True))
    assert "--strict" not in table(lax)
    assert "not proven fails: trace of p\n" in click.unstyle(table(strict)) + "\n"


def test_what_a_ledger_says_cannot_play_with_the_terminal() -> None:
    row = Row("p\x1b[2J", "drifted", "a\u202eb", ok=False, hint="patchkit diff p\x07")
    result = Result((row,), problems=("x\x1b[1A",), warnings=("y\r",))
    shown = click.unstyle(table(result))
    assert not [c for c in shown if c not in "\n" and not c.isprintable()]
