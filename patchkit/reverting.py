"""The revert operation. Needs nothing but the ledger and the kept bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from patchkit.environment import Target
from patchkit.errors import PatchkitError
from patchkit.journal import Change, digest_of
from patchkit.ledger import FileEntry, FileState, LedgerEntry, compose, file_state
from patchkit.originals import ledger_lost
from patchkit.plan import GONE, NOT_APPLIED, UPGRADED, EntryState
from patchkit.results import Notify, Result, Row
from patchkit.sites import (
    SitePlan,
    back_to_pristine,
    check_known,
    commit_all,
    entries_besides,
    forget_file,
    installed_in,
    keep_beside,
    patched_snapshot,
    result_of,
    state_of,
    stores_of,
)
from patchkit.store import Store


def revert(
    target: Target,
    ids: Sequence[str],
    *,
    everything: bool,
    force: bool,
    known: Callable[[str], bool],
    notify: Notify,
) -> Result:
    """Take patches out: the bytes, mode, link and bytecode from before them come back.

    ``known`` says whether an id that is not recorded is a patch at all. Raises PatchkitError on
    drift (unless ``force``: the drifted file is kept beside), when another patch requires one of
    these, or when an id is unknown; nothing is changed then.
    """
    stores = stores_of(target, notify)
    recorded = {store.root: _recorded(store) for store in stores}
    present = {patch_id for ids_here in recorded.values() for patch_id in ids_here}
    chosen = sorted(present) if everything else list(dict.fromkeys(ids))
    absent = [i for i in chosen if i not in present]
    check_known(target, absent, known)
    busy = [s for s in stores if s.interrupted() or s.abandoned() or recorded[s.root] & set(chosen)]

    def check(plans: Sequence[SitePlan]) -> None:
        staying = [entry for site in plans for entry in site.ledger.entries]
        _check_required([*staying, *entries_besides(target, plans)], set(chosen) & present)

    plans = commit_all(busy, lambda store: plan_revert(store, chosen, force), check)
    problems = [p for s in stores for p in _lost(s)] if everything or absent else []
    result = result_of(plans)
    extra = [Row(i, NOT_APPLIED, "there is nothing to revert") for i in absent]
    rows = tuple(sorted([*result.rows, *extra], key=lambda r: r.id))
    return replace(result, rows=rows, problems=tuple(problems))


def _recorded(store: Store) -> set[str]:
    with store.reading():
        return {entry.id for entry in store.load().entries}


def _lost(store: Store) -> list[str]:
    with store.reading():
        return ledger_lost(store, store.load())


def plan_revert(store: Store, ids: Iterable[str], force: bool) -> SitePlan:
    """Plan the way back for one folder; raises PatchkitError before anything is written."""
    site = SitePlan(store, store.load())
    before = site.ledger
    chosen = [e for e in before.entries if e.id in set(ids)]
    site.ledger = before.without(*(e.id for e in chosen))
    states = {e.id: state_of(store, before, e) for e in chosen}
    for file in before.files:
        owners = [e for e in before.owners(file.path) if e in chosen]
        if not owners:
            continue
        if states[owners[0].id][0].state in (GONE, UPGRADED):
            if not site.ledger.owners(file.path):
                forget_file(site, file, installed_in(store, owners[0].distribution))
        else:
            _revert_file(site, file, owners[0].id, force)
    site.rows += [_row(e, *states[e.id]) for e in chosen]
    return site


def _check_required(staying: Sequence[LedgerEntry], leaving: set[str]) -> None:
    asking = {e.id: sorted(leaving & set(e.requires)) for e in staying}
    asking = {name: needed for name, needed in sorted(asking.items()) if needed}
    for name, needed in asking.items():
        raise PatchkitError(
            f"{name} requires {' and '.join(needed)}, which would be reverted",
            hint=f"Revert them together: patchkit revert {' '.join(sorted({*asking, *leaving}))}",
        )


def _row(entry: LedgerEntry, found: EntryState, installed: str) -> Row:
    forgotten = found.state in (GONE, UPGRADED, NOT_APPLIED)
    return Row(
        id=entry.id,
        state="forgotten" if forgotten else "reverted",
        detail=f"{found.state}: {found.detail}" if forgotten else "",
        distribution=entry.distribution,
        installed=installed,
        revision=entry.revision,
        files=tuple(sorted(entry.splices)),
    )


def _revert_file(site: SitePlan, file: FileEntry, patch_id: str, force: bool) -> None:
    store = site.store
    current = store.snapshot(file.path)
    state = file_state(file, current.digest if current else None)
    pristine = store.kept(file.pristine) if file.pristine else None
    if state is FileState.DRIFTED and current is not None:
        if not force:
            raise PatchkitError(
                f"{store.root / file.path} drifted: it was changed since {patch_id} was applied",
                hint=f"See how with: patchkit diff {patch_id}. To put the original back and keep "
                f"the changed file beside it: patchkit revert --force {patch_id}",
            )
        keep_beside(site, file.path, current)
    owners = site.ledger.owners(file.path)
    if not owners:
        site.ledger = site.ledger.with_file(file.path, None)
        if state is not FileState.PRISTINE:
            back_to_pristine(site, file, current, pristine)
        return
    data = compose(pristine or b"", owners, file.path)
    entry = replace(file, patched=digest_of(data))
    site.ledger = site.ledger.with_file(file.path, entry)
    if state is not FileState.PRISTINE:  # else undone from outside: the others show as not applied
        site.changes.append(
            Change(file.path, current, patched_snapshot(store, entry, current, data))
        )
