"""JUnit XML of a result, for the test pages of CI systems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as ET

from patchkit.plaintext import one_line, plain
from patchkit.results import FAILED, SKIPPED, Check, Result, Row

_HEAD = '<?xml version="1.0" encoding="utf-8"?>\n'


def junit(result: Result, command: str) -> str:
    """Return one test suite: a case for the bytes of each patch, each check and each problem.

    The text declares UTF-8: write it so. Whatever the texts hold, it is valid XML.
    """
    cases = [
        *(_problem(number, text) for number, text in enumerate(result.problems, 1)),
        *_cases(result),
    ]
    seconds = sum(check.seconds for check in result.checks)
    totals = {
        "name": f"patchkit {plain(command)}",
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": "0",
        "skipped": str(sum(case.find("skipped") is not None for case in cases)),
        "time": f"{seconds:.3f}",
    }
    root = ET.Element("testsuites", totals)
    suite = ET.SubElement(root, "testsuite", totals)
    suite.extend(cases)
    if result.warnings:
        ET.SubElement(suite, "system-err").text = "\n".join(map(plain, result.warnings))
    ET.indent(root)
    return _HEAD + ET.tostring(root, encoding="unicode") + "\n"


def _problem(number: int, text: str) -> ET.Element:
    case = _case("patchkit", "problem" if number == 1 else f"problem {number}")
    _add(case, "failure", "problem", text, [])
    return case


def _cases(result: Result) -> Iterator[ET.Element]:
    rows = {row.id: row for row in result.rows}
    for patch in sorted({*rows, *(check.patch for check in result.checks)}):
        if patch in rows:
            yield _bytes(rows[patch])
        for check in result.checks:
            if check.patch == patch:
                yield _check(check, holds=result.holds(check))


def _bytes(row: Row) -> ET.Element:
    case = _case(row.id, "bytes")
    if row.ok:
        version = f"{row.distribution} {row.installed}".strip()
        _output(case, [row.state, version, row.detail, *row.files])
    else:
        about = f"{row.state}: {row.detail}" if row.detail else row.state
        _add(case, "failure", row.state, about, [f"next: {row.hint}"] if row.hint else [])
    return case


def _check(check: Check, *, holds: bool) -> ET.Element:
    case = _case(check.patch, check.name, check.seconds)
    word = check.proof or check.outcome
    message = f"{word}: {check.detail}" if check.proof else check.detail or word
    if not holds:
        message += " (--strict)" * (check.outcome != FAILED)
        _add(case, "failure", word, message, [*_calls(check), check.tail])
    elif check.outcome == SKIPPED:
        _add(case, "skipped", SKIPPED, message, [])
        _output(case, [check.tail])
    else:
        _output(case, [message, *_calls(check), check.tail])
    return case


def _calls(check: Check) -> list[str]:
    if not check.chain:
        return []
    return ["calls, from the public function to where it stops:", *(f"  {s}" for s in check.chain)]


def _case(patch: str, name: str, seconds: float = 0.0) -> ET.Element:
    fields = {"classname": one_line(patch), "name": one_line(name), "time": f"{seconds:.3f}"}
    return ET.Element("testcase", fields)


def _add(case: ET.Element, tag: str, kind: str, message: str, more: Sequence[str]) -> None:
    found = ET.SubElement(case, tag, {"type": one_line(kind), "message": one_line(message)})
    found.text = "\n".join(plain(text) for text in [message, *more] if text)


def _output(case: ET.Element, texts: Sequence[str]) -> None:
    if text := "\n".join(plain(text) for text in texts if text):
        ET.SubElement(case, "system-out").text = text
