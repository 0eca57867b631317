from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from patchkit.junit import junit
from patchkit.plaintext import plain
from patchkit.results import (
    BROKEN,
    FAILED,
    NO_LONGER_NEEDED,
    PASSED,
    PROVEN,
    SKIPPED,
    Check,
    Result,
    Row,
)
from tests.conftest import HOSTILE

ROW = Row("p", "applied", "", "demo-pkg", "1.0", 1, 1, files=("demo_pkg/a.py",))
TRACE = Check("p", "trace", PASSED, "one graph", 12.34)


def suite(result: Result) -> ET.Element:
    root = ET.fromstring(junit(result, "verify").encode())
    (found,) = root
    assert (root.tag, found.tag, found.get("name")) == (
        "testsuites",
        "testsuite",
        "patchkit verify",
    )
    return found


def cases(result: Result) -> dict[str, ET.Element]:
    return {f"{case.get('classname')} {case.get('name')}": case for case in suite(result)}


def test_a_case_for_the_bytes_and_for_each_check_with_its_time():
    found = cases(Result((ROW,), checks=(replace(TRACE, name="import", seconds=0.5), TRACE)))
    assert list(found) == ["p bytes", "p import", "p trace"]
    assert [case.get("time") for case in found.values()] == ["0.000", "0.500", "12.340"]
    assert [child.tag for case in found.values() for child in case] == ["system-out"] * 3
    assert "demo_pkg/a.py" in (found["p bytes"].findtext("system-out") or "")
    assert found["p trace"].findtext("system-out") == "one graph"


def test_counts_are_those_of_the_cases():
    result = Result(
        (ROW, replace(ROW, id="q", ok=False, state="drifted")),
        problems=("left over",),
        checks=(TRACE, replace(TRACE, outcome=SKIPPED), replace(TRACE, outcome=FAILED)),
    )
    found = suite(result)
    counts = {key: found.get(key) for key in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {
        "tests": "6",
        "failures": "3",
        "errors": "0",
        "skipped": "1",
        "time": "37.020",
    }


def test_a_row_that_is_not_as_it_should_be_fails_with_what_to_type_next():
    row = replace(ROW, state="drifted", detail="other bytes", ok=False, hint="patchkit diff p")
    failure = cases(Result((row,)))["p bytes"].find("failure")
    assert failure is not None
    assert failure.attrib == {"type": "drifted", "message": "drifted: other bytes"}
    assert failure.text == "drifted: other bytes\nnext: patchkit diff p"


def test_a_failed_trace_has_its_calls_and_the_output():
    check = replace(TRACE, outcome=FAILED, detail="stops", chain=("f (a.py)", "g (b.py)"), tail="t")
    failure = cases(Result((ROW,), checks=(check,)))["p trace"].find("failure")
    assert failure is not None
    assert failure.get("message") == "stops"
    assert (failure.text or "").split("\n") == [
        "stops",
        "calls, from the public function to where it stops:",
        "  f (a.py)",
        "  g (b.py)",
        "t",
    ]


@pytest.mark.parametrize(
    ("check", "strict", "tag", "message"),
    [
        (replace(TRACE, outcome=SKIPPED, detail="no torch"), False, "skipped", "no torch"),
        (
            replace(TRACE, outcome=SKIPPED, detail="no torch"),
            True,
            "failure",
            "no torch (--strict)",
        ),
        (replace(TRACE, proof=PROVEN), True, "system-out", None),
        (replace(TRACE, proof=NO_LONGER_NEEDED), False, "system-out", None),
        (
            replace(TRACE, proof=NO_LONGER_NEEDED),
            True,
            "failure",
            "no longer needed: one graph (--strict)",
        ),
        (replace(TRACE, outcome=FAILED, proof=BROKEN), False, "failure", "broken: one graph"),
    ],
)
def test_what_a_check_becomes(check: Check, strict: bool, tag: str, message: str | None):
    result = Result((ROW,), checks=(check,), strict=strict)
    (child,) = cases(result)["p trace"]
    assert (child.tag, child.get("message")) == (tag, message)
    assert (tag == "failure") != result.ok
    assert check.proof in "".join(child.itertext())


def test_problems_are_cases_and_warnings_are_kept():
    found = suite(Result((), problems=("one", "two"), warnings=("mind",)))
    assert [case.get("name") for case in found.findall("testcase")] == ["problem", "problem 2"]
    assert [f.text for f in found.iter("failure")] == ["one", "two"]
    assert found.findtext("system-err") == "mind"


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_gives_valid_xml_that_holds_it(text: str):
    row = Row(text, text, text, text, text, ok=False, hint=text, files=(text,))
    check = Check(text, text, FAILED, text, 1.0, text, (text,), text)
    result = Result((row,), (text,), (text,), checks=(check,))
    found = suite(result)
    whole = "".join(found.itertext())
    assert plain(text) in whole
    assert not set(whole) & set("\x00\x08\x1b\x7f\x85\u202e\u2028")
