"""Rendering: tables for people, JSON for programs, unified diffs for both. Returns text."""

from __future__ import annotations

import difflib
import json
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import click

from patchkit import __version__
from patchkit.catalog import Catalog
from patchkit.environment import Target
from patchkit.errors import PatchkitError
from patchkit.manifest import Patch
from patchkit.plaintext import one_line, plain, visible
from patchkit.results import PROVEN, SKIPPED, Check, FileDiff, Result, Row

JSON_SCHEMA = 1
CHANGED_SINCE = "changed since"

_GOOD = ("applied", "already applied", "reverted", "fits", "ok")
_BAD = ("drifted", "faulty", "upgraded underneath", "distribution gone")


def table(result: Result) -> str:
    """Return a line a patch (state, id, what is to know of it), then problems and warnings.

    The checks of a patch are shown under it.
    """
    width = max((len(row.state) for row in result.rows), default=0)
    names = max((len(row.id) for row in result.rows), default=0)
    lines = []
    for row in result.rows:
        state = click.style(row.state.ljust(width), fg=_colour(row))
        lines.append(f"{state}  {visible(row.id.ljust(names))}  {visible(_about(row))}".rstrip())
        if row.hint and not row.ok:
            lines.append(f"{' ' * width}  next: {visible(row.hint)}")
        lines += _checks(result, row.id)
    problems = [*result.problems, *_strictness(result)]
    lines += [click.style(f"problem: {visible(text)}", fg="red") for text in problems]
    lines += [click.style(f"warning: {visible(text)}", fg="yellow") for text in result.warnings]
    return "\n".join(lines)


def _strictness(result: Result) -> Iterator[str]:
    """Say what fails only because it was asked to be strict."""
    lax = replace(result, strict=False)
    names = [f"{c.name} of {c.patch}" for c in result.checks if lax.holds(c) > result.holds(c)]
    if names:
        yield f"with --strict, a check that is skipped or not proven fails: {', '.join(names)}"


def _colour(row: Row) -> str:
    if not row.ok or row.state in _BAD:
        return "red"
    return "green" if row.state.startswith(_GOOD) else "yellow"


def _about(row: Row) -> str:
    revision = row.recorded_revision or row.revision
    parts = [f"revision {revision}"] if revision else []
    if row.installed:
        parts.append(f"{row.distribution} {row.installed}")
    if row.detail:
        parts.append(row.detail)
    return ", ".join(parts)


def _checks(result: Result, patch: str) -> Iterator[str]:
    words = max((len(check.outcome) for check in result.checks), default=0)
    names = max((len(check.name) for check in result.checks), default=0)
    for check in result.checks:
        if check.patch == patch:
            outcome = click.style(check.outcome.ljust(words), fg=_check_colour(result, check))
            detail = ": ".join(text for text in (check.proof, one_line(check.detail)) if text)
            line = f"  {outcome}  {check.name.ljust(names)}  {check.seconds:6.1f} s  {detail}"
            yield line.rstrip()
            yield from _cases(check)
            yield from _evidence(check)


def _check_colour(result: Result, check: Check) -> str:
    if not result.holds(check):
        return "red"
    mild = check.outcome == SKIPPED or check.proof not in ("", PROVEN)
    return "yellow" if mild else "green"


def _cases(check: Check) -> Iterator[str]:
    """Give every case of a check, a paragraph a group; what failed on lines of its own."""
    for group in check.groups:
        listed = ", ".join(case.name for case in group.cases)
        text = f"{group.name} ({len(group.cases)}, {group.seconds:.1f} s): {listed}"
        yield textwrap.fill(one_line(text), 100, initial_indent=" " * 6, subsequent_indent=" " * 8)
        for case in group.cases:
            if case.problem:
                line = f"{one_line(case.name)}: {one_line(case.problem)}"
                yield " " * 8 + click.style("failed", fg="red") + f"  {line}"


def _evidence(check: Check) -> Iterator[str]:
    """Give the calls to where a trace stopped, and how the output of a probe ended."""
    if check.chain:
        yield "      calls, from the public function to where it stops:"
        yield from (f"        {one_line(step)}" for step in check.chain)
    if check.tail:
        yield "      its output ended:"
        yield from (f"      | {line}".rstrip() for line in plain(check.tail).split("\n"))


def changes(result: Result) -> str:
    """Return the table and below it every file written or removed."""
    lines = [table(result)] if result.rows or result.problems or result.warnings else []
    return "\n".join([*lines, *(f"  {visible(path)}" for path in result.changed)])


def repairs(result: Result) -> str:
    """Return what ``repair`` found, a line each, then warnings."""
    width = max((len(found.action) for found in result.repairs), default=0)
    lines = []
    for found in result.repairs:
        action = click.style(found.action.ljust(width), fg="yellow" if found.ok else "red")
        lines.append(f"{action}  {visible(found.path)}")
        lines.append(f"{' ' * width}  {visible(found.detail)}")
        lines += [f"{' ' * width}  next: {visible(found.hint)}"] if found.hint else []
    rest = table(result)
    return "\n".join([*lines, *([rest] if rest else [])]) or "nothing to repair"


def catalog_table(catalog: Catalog, result: Result) -> str:
    """Return what ``list`` shows: each patch, what it is for, and whether it fits."""
    lines = []
    for row in result.rows:
        patch = catalog.get(row.id)
        marks = ["default"] if patch.default else []
        marks += [_code_mark(patch)] if patch.has_code else []
        marks += [] if row.id in catalog.shipped else [f"from {visible(patch.folder)}"]
        title = click.style(row.id, bold=True) + (f"  ({'; '.join(marks)})" if marks else "")
        fit = click.style(row.state, fg=_colour(row))
        why = f": {visible(row.detail)}" if row.detail else f" {row.distribution} {row.installed}"
        lines += [
            title,
            f"    {patch.title} (revision {patch.revision})",
            f"    for {patch.distribution} {patch.range}: {fit}{why}",
        ]
    return "\n".join(lines) or "no patches"


def _code_mark(patch: Patch) -> str:
    return "runs code of its own" + (f": {patch.barred}" if patch.barred else "")


def allowed(rows: Sequence[Mapping[str, str]], warnings: Sequence[str]) -> str:
    """Return what ``allow`` shows: a line a folder, and what to type where it changed."""
    width = max((len(row["state"]) for row in rows), default=0)
    lines = []
    for row in rows:
        lines.append(f"{row['state'].ljust(width)}  {one_line(row['folder'])}")
        if row["state"] == CHANGED_SINCE:
            again = f"patchkit allow {shlex.quote(row['folder'])}"
            lines.append(f"{' ' * width}  next: read it, then {one_line(again)}")
    lines += map(visible, warnings)
    return "\n".join(lines) or "no patch folder is allowed; allow one with: patchkit allow FOLDER"


def catalog_rows(catalog: Catalog, result: Result) -> list[dict[str, Any]]:
    """Return the rows of ``list --json``."""
    rows = []
    for row in result.rows:
        patch = catalog.get(row.id)
        rows.append(
            {
                **row_dict(row),
                "title": patch.title,
                "why": patch.why,
                "links": list(patch.links),
                "versions": patch.range,
                "default": patch.default,
                "shipped": row.id in catalog.shipped,
                "runs_code": patch.has_code,
                "code_allowed": patch.has_code and not patch.barred,
                "folder": patch.folder,
            }
        )
    return rows


def row_dict(row: Row) -> dict[str, Any]:
    """Return a row as a JSON object."""
    return {**asdict(row), "files": list(row.files)}


def check_dict(check: Check) -> dict[str, Any]:
    """Return a check as a JSON object."""
    return {**asdict(check), "chain": list(check.chain), "groups": list(map(asdict, check.groups))}


def bench(result: Result) -> str:
    """Return what the kernel check measured as a JSON document (docs/gpu.md).

    Raises PatchkitError when nothing was: an earlier file is left alone then.
    """
    found = next((check.bench for check in result.checks if check.bench), None)
    if not found:
        raise PatchkitError(
            "nothing was measured, so --bench writes nothing", hint="See the check."
        )
    return json.dumps(found, indent=2) + "\n"


def document(
    command: str,
    target: Target | None,
    *,
    ok: bool,
    patches: Sequence[Mapping[str, Any]] = (),
    result: Result | None = None,
    error: PatchkitError | None = None,
    **extra: Any,
) -> str:
    """Return the JSON document of a command (docs/json.md)."""
    fields: dict[str, Any] = {
        "schema": JSON_SCHEMA,
        "patchkit": __version__,
        "command": command,
        "ok": ok,
        "target": _target(target),
        "patches": list(patches),
        "checks": [check_dict(check) for check in result.checks] if result else [],
        "strict": result.strict if result else False,
        "problems": list(result.problems) if result else [],
        "warnings": list(result.warnings) if result else [],
        "changed": list(result.changed) if result else [],
        "error": {"message": error.message, "hint": error.hint} if error else None,
        **extra,
    }
    return json.dumps(fields, indent=2)


def _target(target: Target | None) -> dict[str, Any] | None:
    if target is None:
        return None
    path = [str(folder) for folder in target.path]
    return {"described": target.described, "python": target.python, "path": path}


def unified(diffs: Iterable[FileDiff], *, colour: bool, terminal: bool = False) -> str:
    """Return unified diffs, one header line a patch and file; ``patch -p1`` reads them.

    On a ``terminal`` no character of a file can hide or feign anything.
    """
    return "".join(_unified(diff, colour, terminal) for diff in diffs)


def _unified(diff: FileDiff, colour: bool, terminal: bool) -> str:
    before, after = (_lines(data) for data in (diff.before, diff.after))
    old = "/dev/null" if diff.before is None else f"a/{diff.path}"
    new = "/dev/null" if diff.after is None else f"b/{diff.path}"
    head = f"# {diff.patch} ({diff.state})\n"
    body = []
    for line in difflib.unified_diff(before, after, old, new):
        text = line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
        text = visible(text) if terminal else text
        body.append(_coloured(text) if colour else text)
    return (click.style(head, bold=True) if colour else head) + "".join(body)


def _lines(data: bytes | None) -> list[str]:
    if data is None:
        return []
    lines = data.decode("utf-8", "replace").split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _coloured(line: str) -> str:
    if line.startswith(("---", "+++")):
        return click.style(line, bold=True)
    colours = {"+": "green", "-": "red", "@": "cyan"}
    colour = colours.get(line[:1])
    return click.style(line, fg=colour) if colour else line
