"""The newcomer's tour (``patchkit demo``): the whole job on a real wheel in a temporary folder."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from patchkit import inspection, report
from patchkit.applying import apply
from patchkit.catalog import Catalog, Project, load_catalog
from patchkit.checks import BYTES, Options
from patchkit.environment import Target, find_target, tree_digest
from patchkit.errors import PatchkitError
from patchkit.releases import install
from patchkit.results import Result
from patchkit.reverting import revert
from patchkit.sites import any_id
from patchkit.store import say_on_terminal
from patchkit.verifying import verify

RELEASE = "0.6.7.post3"

Say = Callable[[str], object]


@dataclass(frozen=True)
class Tour:
    """What the tour found: a sha256 over the folder before, patched, and after revert."""

    release: str
    files: int
    before: str
    patched: str
    after: str


def tour(release: str, *, keep: bool, say: Say) -> Tour:
    """Fetch, apply, look, verify, revert, and prove that every byte is back.

    Raises PatchkitError when a step fails, which on a healthy machine means the download.
    """
    folder = Path(tempfile.mkdtemp(prefix="patchkit-demo-"))
    try:
        site = folder / "site-packages"
        say(f"1. fetch flashinfer-python {release} with pip, into {site}")
        install(f"flashinfer-python=={release}", site)
        return _walk(release, site, say)
    finally:
        if keep:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _walk(release: str, site: Path, say: Say) -> Tour:
    target = find_target(None, str(site))
    catalog = load_catalog((), Project(), site)
    before = tree_digest(site)
    say(f"   {before[1]} files, sha256 over all: {before[0]}\n")

    say("2. patchkit apply")
    _require(apply(target, catalog, (), Project(), dry_run=False, notify=say_on_terminal), say)
    say("\n3. patchkit status")
    _require(inspection.status(target, catalog, say_on_terminal), say)
    say("\n4. patchkit diff")
    diffs = inspection.diff(target, lambda: catalog, (), Project(), say_on_terminal)
    say(report.unified(diffs, colour=sys.stdout.isatty(), terminal=sys.stdout.isatty()))
    patched = tree_digest(site)
    say(f"   sha256 over all, patched:  {patched[0]}\n")
    say("5. patchkit verify --check bytes")
    _require(_verify_bytes(target, catalog), say)
    say("\n6. patchkit revert --all")
    back = revert(target, (), everything=True, force=False, known=any_id, notify=say_on_terminal)
    _require(back, say)
    after = tree_digest(site)
    say(f"   sha256 over all, before:   {before[0]}\n   sha256 over all, after:    {after[0]}")
    if after != before or patched == before:
        raise PatchkitError("the folder is not byte-identical after revert", hint=_REPORT)
    say("   equal: every file, mode and link is as it was")
    return Tour(release, before[1], before[0], patched[0], after[0])


def _verify_bytes(target: Target, catalog: Catalog) -> Result:
    options = Options(names=(BYTES,))
    return verify(
        target, (), Project(), lambda: catalog, options, known=any_id, notify=say_on_terminal
    )


_REPORT = "This is a bug in patchkit; please report it with the output above."


def _require(result: Result, say: Say) -> None:
    say(report.changes(result))
    if not result.ok:
        raise PatchkitError("this step of the tour failed", hint=_REPORT)
