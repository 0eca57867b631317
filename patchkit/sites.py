"""One site-packages folder: what its ledger's entries are now, and a plan of changes to it."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path

from patchkit.environment import (
    STATE_FOLDER,
    Distribution,
    Target,
    find_distribution,
    parent_folders,
)
from patchkit.errors import PatchkitError, StoreError, TargetError
from patchkit.files import store_error
from patchkit.journal import Change, Snapshot, digest_of
from patchkit.ledger import FileEntry, Ledger, LedgerEntry
from patchkit.plan import APPLIED, DRIFTED, NOT_APPLIED, EntryState, entry_state
from patchkit.results import Notify, Result, Row
from patchkit.store import Store

INTERRUPTED = (
    "{root}: an apply or revert was interrupted; the next patchkit apply or revert rolls it back"
    " or finishes it"
)


@dataclass
class SitePlan:
    """What one site-packages needs: changes, the ledger after them, and originals to keep."""

    store: Store
    ledger: Ledger
    changes: list[Change] = field(default_factory=list)
    keep: list[Snapshot] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def stage(self) -> None:
        """Make the changes, all or none, so that they can still be taken back."""
        self.store.stage(self.changes, self.ledger, self.keep)

    def seal(self) -> None:
        """Record the changes; they are made then, even when cleaning up fails."""
        if problem := self.store.seal(self.ledger):
            self.warnings.append(
                f"{self.store.root}: done, but not cleaned up ({problem}); "
                "the next patchkit apply or revert does that"
            )


def stores_of(target: Target, notify: Notify) -> list[Store]:
    """Return the folders of the target that hold patchkit state."""
    return [Store(f, notify) for f in target.path if _holds_state(f)]


def recover(target: Target, notify: Notify) -> None:
    """Roll back, or finish, what an earlier run left half-done in any folder of the target."""
    for store in stores_of(target, notify):
        if store.interrupted():
            with store.writing():
                pass


def _holds_state(folder: Path) -> bool:
    """Say whether a folder has a state folder; where Python may not search, there is nothing."""
    try:
        return stat.S_ISDIR(os.stat(folder / STATE_FOLDER).st_mode)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    except OSError as error:
        raise store_error("look for", folder / STATE_FOLDER, error) from error


def installed_in(store: Store, name: str) -> Distribution | None:
    """Return the distribution of that name in this very folder, or None: it is really gone."""
    return find_distribution(Target((store.root,), ""), name, certain=True)


def state_of(store: Store, ledger: Ledger, entry: LedgerEntry) -> tuple[EntryState, str]:
    """Return the state of an entry, and the version installed ('' when gone)."""
    distribution = installed_in(store, entry.distribution)
    digests = {path: store.digest(path) for path in entry.splices}
    if distribution is None:
        return entry_state(ledger, entry, digests, None), ""
    version = distribution.version
    found = entry_state(ledger, entry, digests, version)
    if found.state == DRIFTED:  # only then is RECORD worth reading
        found = entry_state(ledger, entry, digests, version, _listed(distribution))
    return found, str(version)


def _listed(distribution: Distribution) -> dict[str, str | None]:
    """Return the sha256 by path in RECORD, nothing when it cannot be read."""
    try:
        return {path: row.sha256 for path, row in distribution.record.items()}
    except TargetError:
        return {}


def hidden_by(target: Target, store: Store, name: str) -> Path | None:
    """Return the folder whose copy of a distribution the target imports instead, or None."""
    try:
        found = find_distribution(target, name)
    except TargetError:
        return None
    return found.site_packages if found and found.site_packages != store.root else None


def as_seen(target: Target, store: Store, row: Row) -> tuple[bool, Row]:
    """Return the row of a recorded patch, and whether it is of a copy that is not imported.

    A patch in such a copy does nothing, however right its bytes are.
    """
    other = hidden_by(target, store, row.distribution)
    if other is None:
        return False, row
    if row.state != APPLIED:
        return row.state == NOT_APPLIED, row
    detail = f"applied to the copy in {store.root} only; {other} has one that comes first"
    hint = f"patchkit apply {row.id}"
    return True, replace(row, state=NOT_APPLIED, detail=detail, ok=False, hint=hint)


def row_each(found: Iterable[tuple[bool, Row]]) -> dict[str, Row]:
    """Join what :func:`as_seen` gives for several folders: of each patch the row that counts.

    What is wrong comes before what is right, and that before a copy that is not imported.
    """
    rows: dict[str, Row] = {}
    for _, row in sorted(found, key=lambda f: (f[0], f[1].ok)):
        rows.setdefault(row.id, row)
    return rows


def commit_all(
    stores: Sequence[Store],
    plan: Callable[[Store], SitePlan],
    check: Callable[[Sequence[SitePlan]], None],
) -> list[SitePlan]:
    """Plan under the locks, every folder before the first is written, then write all or none.

    ``check`` sees the plans of all folders and raises PatchkitError to refuse them.
    """
    with ExitStack() as stack:
        for store in stores:
            stack.enter_context(store.writing())
        plans = [plan(store) for store in stores]
        check(plans)
        try:
            for site in plans:
                site.stage()
        except BaseException as error:
            for site in plans:
                site.store.roll_back_after(error)
            raise
        for site in plans:
            site.seal()
    return plans


def entries_besides(target: Target, plans: Sequence[SitePlan]) -> list[LedgerEntry]:
    """Return what is recorded in folders of the target other than those of the plans.

    Patches of copies that the target does not import are left out.
    """
    planned = {site.store.root for site in plans}
    found = []
    for store in stores_of(target, lambda _: None):
        if store.root not in planned:
            with store.reading():
                entries = store.load().entries
            found += [e for e in entries if hidden_by(target, store, e.distribution) is None]
    return found


def result_of(plans: Iterable[SitePlan], warnings: Sequence[str] = ()) -> Result:
    """Join the plans of several folders into one result."""
    plans = list(plans)
    return Result(
        tuple(sorted((row for p in plans for row in p.rows), key=lambda r: r.id)),
        tuple([*warnings, *(w for p in plans for w in p.warnings)]),
        changed=tuple(sorted(str(p.store.root / c.path) for p in plans for c in p.changes)),
    )


def any_id(_: str) -> bool:
    """Take every id for that of a patch: for callers that have it from the catalog."""
    return True


def check_known(target: Target, absent: Iterable[str], known: Callable[[str], bool]) -> None:
    """Raise PatchkitError for the first id that is not recorded and not a patch either."""
    for patch_id in absent:
        if not known(patch_id):
            raise PatchkitError(
                f"there is no patch {patch_id!r}, neither recorded in {target.described} nor known",
                hint="See what there is with: patchkit status",
            )


def patched_snapshot(
    store: Store, entry: FileEntry, current: Snapshot | None, data: bytes
) -> Snapshot:
    """Return the patched file: a regular file, same mode and owner, in a second of its own.

    Bytecode caches compare whole seconds and size; a second that differs from the pristine and
    the present one makes every bytecode written for those stale (python/cpython#136224).
    """
    taken = {entry.mtime_ns // 10**9, current.mtime_ns // 10**9 if current else 0}
    now = time.time_ns()
    while now // 10**9 in taken:
        now += 10**9
    owner = (current.uid, current.gid) if current else store.owner()
    return Snapshot(data, entry.mode, now, None, *owner)


def back_to_pristine(
    site: SitePlan, entry: FileEntry, current: Snapshot | None, data: bytes | None
) -> None:
    """Plan to put back what was there before the first patch.

    A link that no longer leads to the original bytes (its cache was emptied) becomes a file.
    """
    if data is None:
        site.changes.append(Change(entry.path, current, None, folders=entry.folders))
        return
    link, full = entry.link, site.store.root / entry.path
    if link is not None and not site.store.link_holds(entry.path, link, digest_of(data)):
        site.warnings.append(f"{full} was a link to {link}, which is not the original: now a file")
        link = None
    owner = (current.uid, current.gid) if current else (-1, -1)
    snapshot = Snapshot(data, entry.mode, entry.mtime_ns, link, *owner)
    site.changes.append(Change(entry.path, current, snapshot, entry.bytecode))


def forget_file(site: SitePlan, file: FileEntry, distribution: Distribution | None) -> None:
    """Let go of a file whose distribution is gone or another version.

    Old bytes never go over new ones. What a patch added is removed if nobody changed it, with
    folders that are empty then if the distribution is gone, and the original comes back only
    where RECORD of what is installed now lists exactly it.
    """
    site.ledger = site.ledger.with_file(file.path, None)
    current = site.store.snapshot(file.path)
    if current is None or current.digest != file.patched:
        return
    listed = distribution.record.get(file.path) if distribution else None
    if file.pristine is None and listed is None:
        folders = file.folders if distribution else tuple(parent_folders(file.path))
        back_to_pristine(site, replace(file, folders=folders), current, None)
    elif file.pristine and listed and listed.sha256 == file.pristine:
        back_to_pristine(site, file, current, site.store.kept(file.pristine))
    else:
        site.warnings.append(f"{site.store.root / file.path} is still patched and was left alone")


def keep_beside(site: SitePlan, path: str, current: Snapshot) -> None:
    """Plan a copy of a drifted file beside it, under a free name that the warnings give."""
    copy = replace(current, link=None)
    first = f"{path}.drifted-{current.digest[:8]}"
    names = chain([first], (f"{first}-{number}" for number in count(2)))
    name = next(name for name in names if _is_place_for(site.store, name, copy))
    there = site.store.snapshot(name)
    site.changes.append(Change(name, there, there or copy))
    site.warnings.append(f"the changed file was kept as {site.store.root / name}")


def _is_place_for(store: Store, name: str, copy: Snapshot) -> bool:
    """Say whether nothing is at ``name``, or a file with the very bytes of the copy."""
    if not os.path.lexists(store.root / name):
        return True
    try:
        there = store.snapshot(name)
    except StoreError:  # a folder, a link to nothing, a file that cannot be read
        return False
    return there is not None and there.link is None and there.data == copy.data
