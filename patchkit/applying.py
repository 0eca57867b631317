"""The apply operation: plan every folder, then write, all or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from patchkit.catalog import Catalog, Project
from patchkit.environment import Distribution, Target, parent_folders
from patchkit.errors import PatchkitError
from patchkit.files import changed_meanwhile
from patchkit.journal import Change, Snapshot, digest_of
from patchkit.ledger import FileEntry, Ledger, LedgerEntry
from patchkit.originals import originals_of
from patchkit.plan import (
    APPLIED,
    NOT_APPLIED,
    UPGRADED,
    Original,
    check_conflicts,
    check_places,
    check_renamed,
    check_together,
    content,
    edits_by_file,
    make_entry,
)
from patchkit.results import Notify, Result, Row
from patchkit.selection import Wanted, select
from patchkit.sites import (
    INTERRUPTED,
    SitePlan,
    back_to_pristine,
    commit_all,
    entries_besides,
    forget_file,
    installed_in,
    patched_snapshot,
    result_of,
    state_of,
)
from patchkit.store import Store

REPLACED = "replaced"

# Applying


def apply(
    target: Target,
    catalog: Catalog,
    ids: Sequence[str],
    project: Project,
    *,
    dry_run: bool,
    notify: Notify,
) -> Result:
    """Apply patches, completely or not at all; files already right are not touched.

    Raises PatchkitError when anything is not as it must be; nothing is changed then.
    """
    wanted, left_out = select(target, catalog, ids, project)
    stores = [
        Store(root, notify) for root in sorted({w.distribution.site_packages for w in wanted})
    ]
    groups = {s.root: [w for w in wanted if w.distribution.site_packages == s.root] for s in stores}

    def plan(store: Store) -> SitePlan:
        return plan_apply(store, groups[store.root], notify)

    def check(plans: Sequence[SitePlan]) -> None:
        here = [entry for site in plans for entry in site.ledger.entries]
        check_together([*here, *entries_besides(target, plans)])

    with ExitStack() as stack:
        for store in stores:
            stack.enter_context(store.reading())
        if dry_run or all(_nothing_to_do(s, groups[s.root]) for s in stores):
            problems = [INTERRUPTED.format(root=s.root) for s in stores if s.interrupted()]
            plans = [plan(s) for s in stores]
            check(plans)
            result = result_of(plans, left_out)
            return replace(result, rows=_would(result.rows), problems=tuple(problems))
    return result_of(commit_all(stores, plan, check), left_out)


def _would(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Word what a dry run found; what is applied already is said as it is."""
    return tuple(
        replace(row, state=f"would be {row.state}", recorded_revision=0)
        if row.state in (APPLIED, REPLACED)
        else row
        for row in rows
    )


def _nothing_to_do(store: Store, wanted: Sequence[Wanted]) -> bool:
    """Say whether all is applied as asked; then nothing is written, not even a lock."""
    if store.interrupted():
        return False
    ledger = store.load()
    return all(_is_applied(store, ledger, item) for item in wanted)


def _is_applied(store: Store, ledger: Ledger, item: Wanted) -> bool:
    entry = ledger.entry(item.patch.id)
    return (
        entry is not None
        and entry.digest == item.patch.digest
        and state_of(store, ledger, entry)[0].state == APPLIED
    )


def plan_apply(store: Store, wanted: Sequence[Wanted], notify: Notify) -> SitePlan:
    """Plan one folder: what an upgrade or reinstall undid is dropped, the rest must be exact.

    Raises PatchkitError when a file drifted, an edit does not match, or patches conflict.
    """
    before = store.load()
    site = SitePlan(store, before)
    touched: dict[str, Distribution] = {}
    dropped = _drop_undone(site, wanted, touched)
    fresh = [w for w in wanted if not _is_applied(store, before, w)]
    if fresh:
        notify("rewriting " + ", ".join(w.patch.id for w in fresh) + " ...")
    for item in fresh:
        old = site.ledger.entry(item.patch.id)
        if old is not None and old.distribution != item.distribution.key:
            now = item.patch.distribution
            raise PatchkitError(
                f"{old.id} is applied to {old.distribution}, and is for {now} now",
                hint=f"Take it out first: patchkit revert {old.id}",
            )
        paths = [
            *edits_by_file(item.patch, item.distribution.version),
            *(old.splices if old else ()),
        ]
        touched |= dict.fromkeys(paths, item.distribution)
    originals = originals_of(store, before, touched)
    for item in wanted:
        site.rows.append(_apply_one(site, item, originals, fresh=item in fresh))
    check_conflicts(site.ledger.entries)
    check_places(site.ledger.entries)
    for path in sorted(touched):
        _plan_file(site, before, originals[path])
    check_renamed(site.ledger.entries)
    for file in before.files:
        if file.path not in touched and not site.ledger.owners(file.path):
            forget_file(site, file, dropped.get(file.path))
    return site


def _drop_undone(
    site: SitePlan, wanted: Sequence[Wanted], touched: dict[str, Distribution]
) -> dict[str, Distribution | None]:
    """Drop entries of the wanted distributions that an upgrade or a reinstall undid.

    Returns what is installed now for each file of theirs. A reinstall can undo a patch in part:
    the files it left patched are added to ``touched``, so that they follow the ledger again.
    """
    keys = {w.distribution.key for w in wanted}
    ids = {w.patch.id for w in wanted}
    files: dict[str, Distribution | None] = {}
    for entry in site.ledger.entries:
        if entry.distribution not in keys:
            continue
        found, _ = state_of(site.store, site.ledger, entry)
        if found.state not in (UPGRADED, NOT_APPLIED):
            continue
        if entry.id not in ids:
            site.warnings.append(
                f"{entry.id} is no longer applied ({found.detail}) and was dropped from the "
                f"ledger; apply it again with: patchkit apply {entry.id}"
            )
        distribution = installed_in(site.store, entry.distribution)
        files |= dict.fromkeys(entry.splices, distribution)
        if found.state == NOT_APPLIED and distribution:
            touched |= dict.fromkeys(entry.splices, distribution)
        site.ledger = site.ledger.without(entry.id)
    return files


def _apply_one(
    site: SitePlan, item: Wanted, originals: Mapping[str, Original], *, fresh: bool
) -> Row:
    old = site.ledger.entry(item.patch.id)
    if old is not None and not fresh:
        return _row(item, "already applied", old)
    entry = make_entry(item.patch, item.distribution.version, originals)
    site.ledger = site.ledger.with_entry(entry)
    row = _row(item, REPLACED if old else APPLIED, entry)
    return replace(row, detail=f"in place of revision {old.revision}") if old else row


def _row(item: Wanted, state: str, entry: LedgerEntry) -> Row:
    return Row(
        id=entry.id,
        state=state,
        distribution=item.distribution.name,
        installed=str(item.distribution.version),
        revision=item.patch.revision,
        recorded_revision=entry.revision,
        files=tuple(sorted(entry.splices)),
    )


# Files


def _plan_file(site: SitePlan, before: Ledger, original: Original) -> None:
    """Add the change that brings one file to what the ledger being built says."""
    path = original.path
    current, entry = site.store.snapshot(path), before.file(path)
    pristine = None if original.data is None else digest_of(original.data)
    on_disk = (pristine, current.digest if current else None)
    if entry is None or (entry.pristine, entry.patched) != on_disk:
        if on_disk[1] != pristine:
            raise changed_meanwhile(site.store.root / path)
        entry = _fresh_file(site, path, current)
    data = content(site.ledger, original)
    if data is None or not site.ledger.owners(path):
        site.ledger = site.ledger.with_file(path, None)
        if current and current.data != original.data:
            back_to_pristine(site, entry, current, original.data)
        return
    entry = replace(entry, patched=digest_of(data))
    site.ledger = site.ledger.with_file(path, entry)
    if original.data is not None:
        owner = (current.uid, current.gid) if current else site.store.owner()
        kept = Snapshot(original.data, entry.mode, entry.mtime_ns, None, *owner)
        site.keep.append(kept)
    if current is None or current.data != data:
        after = patched_snapshot(site.store, entry, current, data)
        site.changes.append(Change(path, current, after, folders=entry.folders))


def _fresh_file(site: SitePlan, path: str, current: Snapshot | None) -> FileEntry:
    """Describe a file as it is before its first patch."""
    if current is None:
        added = {folder for file in site.ledger.files for folder in file.folders}
        missing = tuple(
            f for f in parent_folders(path) if f in added or not (site.store.root / f).is_dir()
        )
        return FileEntry(path, None, "", site.store.plain_mode(), 0, folders=missing)
    bytecode = site.store.keep_bytecode(path)
    site.keep += [snapshot for _, snapshot in bytecode]
    return FileEntry(
        path=path,
        pristine=current.digest,
        patched="",
        mode=current.mode,
        mtime_ns=current.mtime_ns,
        link=current.link,
        bytecode=tuple(item for item, _ in bytecode),
    )
