"""The check operation: rehearse patches on releases that are not installed.

A release is fetched and unpacked into a temporary folder; there every patch is applied, verified
and reverted, and its trace is tried with and without it. No environment is touched.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from patchkit import report
from patchkit.applying import apply
from patchkit.catalog import Catalog, Project
from patchkit.checks import BYTES, Options, Subject, run_checks
from patchkit.environment import Target, find_distribution, tree_digest
from patchkit.errors import PatchkitError
from patchkit.manifest import Patch
from patchkit.plaintext import visible
from patchkit.releases import releases_of, unpacked
from patchkit.results import DOES_NOT_FIT, FAILED, FITS, PROVEN, Check, Notify, Result, Row
from patchkit.reverting import revert
from patchkit.selection import unfit
from patchkit.sites import any_id, stores_of
from patchkit.store import Store
from patchkit.verifying import subject_of, verify

BAD = "bad"
APPLY, REVERT = "apply", "revert"


@dataclass(frozen=True)
class Release:
    """One release and what came of each patch: a row, and checks apply, bytes, revert, trace.

    ``error`` says why the release could not be looked at, ``hint`` what to type then; there is
    nothing else in that case.
    """

    name: str
    version: str
    result: Result
    error: str = ""
    hint: str = ""


def rehearse(
    given: Sequence[str],
    patches: Sequence[Patch],
    target: Target,
    options: Options,
    *,
    jobs: int,
    notify: Notify,
) -> list[Release]:
    """Rehearse patches on every release given, in that order; ``jobs`` releases at a time.

    ``given`` are requirements, wheels or folders; ``target`` is the environment whose
    interpreter runs the traces.
    """
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        return list(pool.map(lambda g: _one(g, patches, target, options, notify), given))


def choose(
    catalog: Catalog, ids: Sequence[str], project: Project, *, everything: bool
) -> list[Patch]:
    """Return the named patches, else all, or the project's set, or the defaults.

    Raises PatchkitError when a named patch is unknown.
    """
    if ids or (project.patches and not everything):
        return [catalog.get(i) for i in ids or project.patches or ()]
    return [p for p in catalog.patches if p.default or everything]


def left_out(target: Target, patches: Sequence[Patch]) -> list[str]:
    """Return the ids of patches that are applied in the target and are not among these."""
    applied: set[str] = set()
    for store in stores_of(target, lambda _: None):
        with contextlib.suppress(PatchkitError):  # a damaged ledger is for status to tell
            applied |= {entry.id for entry in store.load().entries}
    return sorted(applied - {patch.id for patch in patches})


def in_range(patches: Sequence[Patch]) -> list[str]:
    """Return a requirement for every release that at least one patch is for, lowest first.

    Raises PatchkitError when pip does not answer.
    """
    found: list[str] = []
    for name in sorted({p.distribution for p in patches}):
        mine = [p for p in patches if p.distribution == name]
        versions = [v for v in releases_of(name) if any(p.fits(v) for p in mine)]
        found += [f"{name}=={version}" for version in versions]
    return found


def _one(
    given: str, patches: Sequence[Patch], target: Target, options: Options, notify: Notify
) -> Release:
    notify(f"{given} ...")
    with tempfile.TemporaryDirectory(prefix="patchkit-check-") as name:
        try:
            site = unpacked(given, Path(name) / "site-packages")
            here = Target((site.resolve(),), given, target.python, is_folder=True)
            # In the copy of a folder that is patched already, the patches are taken out first.
            revert(here, (), everything=True, force=False, known=any_id, notify=notify)
            return _rehearsed(given, patches, here, options, notify)
        except PatchkitError as error:
            return Release(given, "", Result(()), error.message, error.hint)


def _rehearsed(
    given: str, patches: Sequence[Patch], here: Target, options: Options, notify: Notify
) -> Release:
    rows: list[Row] = []
    checks: list[Check] = []
    subjects: list[Subject] = []
    versions: set[str] = set()
    before = tree_digest(here.path[0])
    for patch in patches:
        row = _row(here, patch)
        versions |= {row.installed} - {""}
        if row.state == FITS:
            row, found, subject = _round_trip(row, patch, here, before, options, notify)
            if any(check.outcome == FAILED for check in found):
                before = tree_digest(here.path[0])  # what it left is not the next patch's fault
            checks += found
            subjects += [subject] if subject else []
        rows.append(row)
    if not versions:
        raise PatchkitError(
            f"{given} holds no distribution that one of these patches is for: {names}"
            if (names := ", ".join(patch.id for patch in patches))
            else f"there is no patch to check {given} with: none is applied by default",
            hint="Name a patch with --patch; all are listed by: patchkit list",
        )
    checks += run_checks(here, subjects, options, notify)
    result = Result(tuple(rows), checks=tuple(checks), strict=options.strict)
    return Release(given, ", ".join(sorted(versions)), result)


def _row(here: Target, patch: Patch) -> Row:
    row = Row(patch.id, DOES_NOT_FIT, "", patch.distribution, revision=patch.revision)
    distribution = find_distribution(here, patch.distribution)
    if distribution is None:
        return replace(row, detail=f"{patch.distribution} is not in it")
    row = replace(row, installed=str(distribution.version))
    why = unfit(patch, distribution)
    return replace(row, detail=why) if why else replace(row, state=FITS)


def _round_trip(
    row: Row,
    patch: Patch,
    here: Target,
    before: tuple[str, int],
    options: Options,
    notify: Notify,
) -> tuple[Row, list[Check], Subject | None]:
    """Apply, verify the bytes, revert to ``before``; returns what is to be traced besides."""
    catalog, done = Catalog((patch,)), []
    try:
        apply(here, catalog, [patch.id], Project(), dry_run=False, notify=notify)
        done.append(Check(patch.id, APPLY, "passed"))
        bytes_only = replace(options, names=(BYTES,), prove=False)
        verified = verify(
            here, [patch.id], Project(), lambda: catalog, bytes_only, known=any_id, notify=notify
        )
        done.append(_check(patch, BYTES, verified.ok, "; ".join(_details(verified))))
        subject = _subject(here, patch)
        revert(here, [patch.id], everything=False, force=False, known=any_id, notify=notify)
        same = tree_digest(here.path[0]) == before
        done.append(_check(patch, REVERT, same, "the folder is not as before"))
    except PatchkitError as error:
        step = (APPLY, BYTES, REVERT)[len(done)]
        done.append(Check(patch.id, step, FAILED, error.message))
        return replace(row, ok=False, state=BAD, detail=f"{step} was refused"), done, None
    return row, done, subject


def _check(patch: Patch, name: str, holds: bool, detail: str) -> Check:
    return Check(patch.id, name, "passed" if holds else FAILED, "" if holds else detail)


def _details(result: Result) -> Iterator[str]:
    yield from result.problems
    yield from (row.detail for row in result.rows if not row.ok)


def _subject(here: Target, patch: Patch) -> Subject:
    store = Store(here.path[0])
    ledger = store.load()
    entry = ledger.entry(patch.id)
    assert entry is not None  # it was applied just now
    # By the time of the checks the patch is reverted: it is tried in an overlay.
    return replace(subject_of(store, ledger, entry), in_place=False)


# What is shown


def verdict(releases: Sequence[Release], *, must_fit: bool) -> Result:
    """Join all releases into one result; with ``must_fit`` each needs a patch that fits."""
    rows = tuple(row for r in releases for row in r.result.rows)
    problems = [f"{r.name}: {r.error}" for r in releases if r.error]
    for release in releases if must_fit else ():
        if not release.error and all(row.state == DOES_NOT_FIT for row in release.result.rows):
            problems.append(f"{release.name}: no patch fits")
    return Result(
        rows,
        problems=tuple(problems),
        checks=tuple(c for r in releases for c in r.result.checks),
        strict=any(r.result.strict for r in releases),
    )


def release_dict(release: Release) -> dict[str, Any]:
    """Return a release as a JSON object."""
    return {
        "release": release.name,
        "version": release.version,
        "error": release.error,
        "hint": release.hint,
        "patches": [report.row_dict(row) for row in release.result.rows],
        "checks": [report.check_dict(check) for check in release.result.checks],
    }


def table(
    releases: Sequence[Release], warnings: Sequence[str] = (), problems: Sequence[str] = ()
) -> str:
    """Return what ``check`` shows: each release, its patches, their checks; then what is left."""
    parts = []
    for release in releases:
        body = f"error: {release.error}" if release.error else report.table(release.result)
        body += f"\nhint: {release.hint}" if release.hint else ""
        parts.append(f"{release.name}\n" + "\n".join(f"  {line}" for line in body.splitlines()))
    if warnings or problems:
        rest = Result((), warnings=tuple(warnings), problems=tuple(problems))
        parts.append(report.table(rest))
    return "\n".join(parts)


_LEGEND = """\
`yes`: applied, verified and reverted to the same bytes, and every check passed. `proven`: besides,
the unpatched source stops where the patch says. `-`: the release has no code that the patch is
for. Where a cell says anything else, its number leads to the reason below the table.
"""


def support_page(releases: Sequence[Release], patches: Sequence[Patch]) -> str:
    """Return a Markdown table: a row a release, a column a patch, and every reason below it."""
    notes: dict[str, int] = {}
    names = [p.id for p in patches]
    lines = ["| release | " + " | ".join(f"`{n}`" for n in names) + " |"]
    lines.append("|---" * (len(names) + 1) + "|")
    for release in releases:
        cells = [_cell(release, name, notes) for name in names]
        version = release.version or release.name.partition("==")[2] or release.name
        lines.append(f"| {version} | " + " | ".join(cells) + " |")
    reasons = [f"{number}. {text}" for text, number in notes.items()]
    return visible("\n".join([_LEGEND, *lines, "", *reasons]).rstrip() + "\n")


def _cell(release: Release, patch: str, notes: dict[str, int]) -> str:
    if release.error:
        return _noted("not looked at", release.error, notes)
    row = next(r for r in release.result.rows if r.id == patch)
    if row.state == DOES_NOT_FIT:
        return "-"
    checks = [c for c in release.result.checks if c.patch == patch]
    odd = [c for c in checks if c.outcome != "passed" or c.proof not in ("", PROVEN)]
    if not odd:
        return PROVEN if any(c.proof for c in checks) else "yes"
    return ", ".join(_noted(f"{c.name} {c.proof or c.outcome}", c.detail, notes) for c in odd)


def _noted(word: str, reason: str, notes: dict[str, int]) -> str:
    reason = " ".join(reason.split())
    return f"{word} ({notes.setdefault(reason, len(notes) + 1)})" if reason else word
