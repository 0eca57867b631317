"""The operations that only read files: list, status and diff."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from patchkit.catalog import Catalog, Project
from patchkit.environment import Target, find_distribution, reinstall_hint
from patchkit.errors import TargetError
from patchkit.ledger import Ledger, LedgerEntry, compose
from patchkit.manifest import Patch
from patchkit.originals import ledger_lost, originals_of
from patchkit.plan import (
    APPLIED,
    DRIFTED,
    FAULTY,
    GONE,
    NOT_APPLIED,
    UPGRADED,
    edits_by_file,
    make_entry,
)
from patchkit.results import CONFLICT, DOES_NOT_FIT, FITS, FileDiff, Notify, Result, Row
from patchkit.selection import fit, select, unfit
from patchkit.sites import INTERRUPTED, as_seen, row_each, state_of, stores_of
from patchkit.store import Store


def list_patches(target: Target, catalog: Catalog) -> Result:
    """Return a row a known patch: whether it fits the target, and why not."""
    rows = [_known_row(target, patch, ()) for patch in catalog.patches]
    return Result(tuple(r if r.state == DOES_NOT_FIT else replace(r, state=FITS) for r in rows))


def status(target: Target, catalog: Catalog, notify: Notify) -> Result:
    """Say for every patch, recorded or known, what state it is in.

    Raises PatchkitError when a ledger or a distribution cannot be read.
    """
    found: list[tuple[bool, Row]] = []
    problems: list[str] = []
    recorded: list[LedgerEntry] = []
    for store in stores_of(target, notify):
        with store.reading():
            ledger = store.load()
            problems += interruption(store) or ledger_lost(store, ledger)
            for entry in ledger.entries:
                row = recorded_row(store, ledger, entry, catalog.find(entry.id))
                hidden, row = as_seen(target, store, _with_originals(store, ledger, entry, row))
                row = _with_what_works(target, row, catalog.find(entry.id))
                recorded += [entry] if row.state in (APPLIED, DRIFTED, FAULTY) else []
                found.append((hidden, row))
    rows = row_each(found)
    for patch in catalog.patches:
        if patch.id not in rows:
            rows[patch.id] = _known_row(target, patch, recorded)
    return Result(tuple(rows[k] for k in sorted(rows)), problems=tuple(problems))


def _with_originals(store: Store, ledger: Ledger, entry: LedgerEntry, row: Row) -> Row:
    """Return the row of what is applied, faulty where an original is no longer kept.

    Whether the kept bytes are undamaged is for ``verify``, which reads them.
    """
    files = ledger.files_of(entry) if row.state == APPLIED else ()
    gone = [f.path for f in files if f.pristine and not store.keeps(f.pristine)]
    if not gone:
        return row
    detail = f"applied, but revert cannot put it back: no original is kept of {', '.join(gone)}"
    hint = reinstall_hint(entry.requirement)
    return replace(row, state=FAULTY, ok=False, detail=detail, hint=hint)


def _with_what_works(target: Target, row: Row, known: Patch | None) -> Row:
    """Return the row with no hint to apply a patch that ``apply`` would say does not fit.

    One that is not known here may fit: it can lie in a folder that was not named.
    """
    if known is None or row.state not in (NOT_APPLIED, UPGRADED):
        return row
    try:
        found, why = fit(target, known)
    except TargetError:  # apply says what to do about that
        return row
    if found and found.key == row.distribution and not why:
        return row
    return replace(row, hint=f"patchkit revert {row.id} (it does not fit what is installed)")


def interruption(store: Store) -> list[str]:
    """Return the problem that an interrupted run is, if there is one."""
    return [INTERRUPTED.format(root=store.root)] if store.interrupted() else []


def recorded_row(store: Store, ledger: Ledger, entry: LedgerEntry, known: Patch | None) -> Row:
    """Return the row of a recorded patch; ``known`` is the same patch in the catalog."""
    found, installed = state_of(store, ledger, entry)
    detail = found.detail
    if found.state == APPLIED and known and known.digest != entry.digest:
        detail = f"recorded is revision {entry.revision}, known is {known.revision}"
        detail += " (edited since)" if known.revision == entry.revision else ""
    return Row(
        id=entry.id,
        state=found.state,
        detail=detail,
        distribution=entry.distribution,
        installed=installed,
        revision=known.revision if known else entry.revision,
        recorded_revision=entry.revision,
        ok=found.state == APPLIED,
        files=tuple(sorted(entry.splices)),
        hint=_next_step(found.state, entry.id),
    )


def _next_step(state: str, patch_id: str) -> str:
    return {
        NOT_APPLIED: f"patchkit apply {patch_id}",
        UPGRADED: f"patchkit apply {patch_id}, or patchkit revert {patch_id} to forget it",
        GONE: f"patchkit revert {patch_id}",
        DRIFTED: f"patchkit diff {patch_id}, then patchkit revert --force {patch_id}",
    }.get(state, "")


def _known_row(target: Target, patch: Patch, recorded: Sequence[LedgerEntry]) -> Row:
    row = Row(patch.id, NOT_APPLIED, "", patch.distribution, revision=patch.revision)
    try:
        distribution = find_distribution(target, patch.distribution)
    except TargetError as error:
        return replace(row, state=DOES_NOT_FIT, detail=error.message, hint=error.hint)
    if distribution is None:
        return replace(row, state=DOES_NOT_FIT, detail=f"{patch.distribution} is not installed")
    row = replace(row, installed=str(distribution.version))
    if why := unfit(patch, distribution):
        return replace(row, state=DOES_NOT_FIT, detail=why)
    against = [e.id for e in recorded if e.id in patch.conflicts or patch.id in e.conflicts]
    if against:
        return replace(row, state=CONFLICT, detail=f"with {', '.join(against)}, which is applied")
    return row


# diff


def diff(
    target: Target,
    load: Callable[[], Catalog],
    ids: Sequence[str],
    project: Project,
    notify: Notify,
) -> list[FileDiff]:
    """Return what recorded patches changed and what the others would change, file by file.

    ``load`` gives the catalog and is called only when a patch is not recorded. Raises
    PatchkitError as apply would.
    """
    found: list[FileDiff] = []
    recorded: set[str] = set()
    for store in stores_of(target, notify):
        with store.reading():
            ledger = store.load()
            for entry in ledger.entries:
                state = state_of(store, ledger, entry)[0].state
                if (not ids or entry.id in ids) and state in (APPLIED, DRIFTED):
                    recorded.add(entry.id)
                    found += _recorded_diff(store, ledger, entry)
    rest = [i for i in ids if i not in recorded]
    if rest or not recorded:
        found += _planned_diff(target, load(), rest, project, notify)
    return sorted(found, key=lambda d: (d.patch, d.path))


def _recorded_diff(store: Store, ledger: Ledger, entry: LedgerEntry) -> Iterator[FileDiff]:
    for file in ledger.files_of(entry):
        pristine = store.kept(file.pristine) if file.pristine else None
        after = compose(pristine or b"", [entry], file.path)
        yield FileDiff(entry.id, APPLIED, file.path, pristine, after)
        current = store.snapshot(file.path)
        if current and current.digest != file.patched:
            expected = compose(pristine or b"", ledger.owners(file.path), file.path)
            yield FileDiff(entry.id, DRIFTED, file.path, expected, current.data)


def _planned_diff(
    target: Target, catalog: Catalog, ids: Sequence[str], project: Project, notify: Notify
) -> Iterator[FileDiff]:
    wanted, _ = select(target, catalog, ids, project)
    for item in wanted:
        store = Store(item.distribution.site_packages, notify)
        with store.reading():
            paths = edits_by_file(item.patch, item.distribution.version)
            touched = dict.fromkeys(paths, item.distribution)
            originals = originals_of(store, store.load(), touched)
        entry = make_entry(item.patch, item.distribution.version, originals)
        for path in sorted(entry.splices):
            data = originals[path].data
            yield FileDiff(entry.id, "would apply", path, data, compose(data or b"", [entry], path))
