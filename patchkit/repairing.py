"""The repair operation: a folder whose ledger is lost or damaged becomes true again.

Two witnesses are left: RECORD of the distributions says which bytes are pristine, and the kept
originals are found by their digest. What a damaged ledger or journal still says is only used where
the digest of the file on disk agrees with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from patchkit.environment import (
    REINSTALL,
    Distribution,
    Target,
    distributions_in,
    linked_folder,
    parent_folders,
)
from patchkit.errors import LedgerError, NewerStateError, PatchkitError, StoreError
from patchkit.journal import Change, Snapshot, digest_of
from patchkit.ledger import (
    FileEntry,
    Ledger,
    compose,
    salvage_added,
    salvage_files,
    salvage_strings,
)
from patchkit.manifest import path_problem
from patchkit.results import Notify, Repair, Result
from patchkit.sites import SitePlan, back_to_pristine, stores_of
from patchkit.store import TEMPORARY, Store

PUT_BACK = "put back"
REMOVED = "removed"
SET_ASIDE = "set aside"
ROLLED_BACK = "rolled back"
UNDECIDED = "undecided"
_DRIFTED = re.compile(r"\.drifted-[0-9a-f]{8}(-[0-9]+)?$")  # sites.keep_beside: never a patch's
_REQUIREMENT = re.compile(r"([A-Za-z0-9._]+)-([A-Za-z0-9._+!]+)\.dist-info")
_MOST_WORDS = 200_000  # each costs a look at the disk; no real ledger has that many
_OPEN = "undecided-"
_PYC = b"\r\n"  # bytes 2 and 3 of all bytecode; sources that begin so do not matter
_STATE_FILES = ("ledger.json", "journal.json", "journal.done")


def repair(target: Target, *, dry_run: bool, notify: Notify) -> Result:
    """Put back what an unusable ledger can no longer put back, and start from an empty one.

    A ledger that is whole is kept, and what it records is left alone. What cannot be decided is
    named, with what mends it. Raises PatchkitError when a newer patchkit wrote the state, before
    any folder is touched, or when something cannot be written: that is a finding where folders
    before that one were repaired.
    """
    stores = stores_of(target, notify)
    for store in stores:
        with store.reading():
            store.journal_problem()  # a newer patchkit's state is refused here
    results: list[Result] = []
    for store in stores:
        try:
            results.append(_repair_folder(store, dry_run))
        except PatchkitError as error:
            if not any(result.repairs for result in results):
                raise
            failed = Repair(str(store.folder), UNDECIDED, error.message, False, error.hint)
            results.append(Result((), repairs=(failed,)))
    return Result(
        (),
        warnings=tuple(w for r in results for w in r.warnings),
        changed=tuple(c for r in results for c in r.changed),
        repairs=tuple(f for r in results for f in r.repairs),
    )


def _repair_folder(store: Store, dry_run: bool) -> Result:
    with store.reading() if dry_run else store.locked():
        begun = store.interrupted() and not store.journal_problem()
        if begun and not dry_run:
            store.recover()
        plan = _Plan(store, SitePlan(store, Ledger())) if begun and dry_run else _plan(store)
        if begun:
            plan.findings.insert(0, _rolled_back(store))
        if not dry_run:
            _carry_out(plan)
        found = map(_would, plan.findings) if dry_run else plan.findings
        changed = tuple(str(store.root / c.path) for c in plan.site.changes)
        warnings = (*plan.site.warnings, *_afterwards(plan, "then" if dry_run else "now"))
        return Result((), warnings, changed=changed, repairs=tuple(found))


def _rolled_back(store: Store) -> Repair:
    detail = "an apply or revert was interrupted; what else there is shows after that"
    return Repair(str(store.folder), ROLLED_BACK, detail)


def _would(found: Repair) -> Repair:
    return replace(found, action=f"would be {found.action}") if found.ok else found


# What there is


@dataclass
class _Plan:
    """What is wrong in one folder, and what to do about it.

    Kept bytes that are ``live`` are in place and go; those ``held`` stay, for what is undecided.
    ``earlier`` are copies of unusable state, set aside by a repair that left something undecided.
    """

    store: Store
    site: SitePlan
    kept: dict[str, Snapshot] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    aside: dict[str, Snapshot] = field(default_factory=dict)
    strays: list[str] = field(default_factory=list)
    findings: list[Repair] = field(default_factory=list)
    live: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    earlier: list[str] = field(default_factory=list)
    dropped: tuple[str, ...] | None = None

    @property
    def settled(self) -> bool:
        """Say whether nothing is undecided."""
        return all(found.ok for found in self.findings)

    def say(self, path: str, action: str, detail: str, hint: str = "") -> None:
        full = str(self.store.root / path)
        self.findings.append(Repair(full, action, detail, action != UNDECIDED, hint))


def _plan(store: Store) -> _Plan:
    """Look at one folder; raises NewerStateError, or StoreError for state that cannot be read."""
    ledger, problem = _usable_ledger(store)
    plan = _Plan(store, SitePlan(store, Ledger() if problem else ledger))
    plan.kept = dict(_unnamed_originals(store, plan.site.ledger))
    plan.damaged = _object_names(store, plan.site.ledger) - plan.kept.keys()
    plan.earlier = [p.name for p in sorted(store.aside.glob(f"{_OPEN}*"))]
    names = [f"{store.aside.name}/{name}" for name in plan.earlier]
    states = _states(store, [*_STATE_FILES, *names] if problem else names)
    if problem:
        plan.dropped = tuple(entry.id for entry in ledger.entries)
    if states or problem or plan.kept or plan.damaged:
        _look_at_files(plan, "\n".join(states.values()))
        _look_at_originals(plan)
    for name in sorted(states.keys() - set(names)):
        _set_aside(plan, name, problem)
    _look_at_strays(plan)
    return plan


def _usable_ledger(store: Store) -> tuple[Ledger, str]:
    """Return the ledger, and why it cannot be relied on, or ''."""
    try:
        ledger = store.load()
    except NewerStateError:
        raise
    except LedgerError as error:
        return Ledger(), error.message
    return ledger, store.journal_problem() or _contradiction(store, ledger)


def _contradiction(store: Store, ledger: Ledger) -> str:
    """Say how a ledger contradicts itself or what is kept, as after an edit by hand, or ''."""
    for file in ledger.files:
        try:
            pristine = store.kept(file.pristine) if file.pristine else b""
            patched = compose(pristine, ledger.owners(file.path), file.path)
        except LedgerError as error:
            return error.message
        if digest_of(patched) != file.patched:
            return f"its edits of {file.path} do not give the digest that it has for that file"
    return ""


def _unnamed_originals(store: Store, ledger: Ledger) -> Iterator[tuple[str, Snapshot]]:
    """Give the undamaged kept bytes that the ledger does not name, by digest."""
    for path in store.strays(ledger):
        found = store.snapshot(path) if os.path.isfile(store.root / path) else None
        if found and path == f"{store.folder.name}/objects/{found.digest}":
            yield found.digest, found


def _object_names(store: Store, ledger: Ledger) -> set[str]:
    """Return the digests that kept bytes are called by, damaged ones too, if no entry has them."""
    strays = [path for path in store.strays(ledger) if os.path.isfile(store.root / path)]
    names = {path.rpartition("/")[2] for path in strays if "/objects/" in path}
    return {name for name in names if re.fullmatch(r"[0-9a-f]{64}", name)}


def _states(store: Store, names: Iterable[str]) -> dict[str, str]:
    """Return the texts of those files of the state folder that are there."""
    found = ((name, store.read_state(name)) for name in names)
    return {name: data.decode("utf-8", "replace") for name, data in found if data is not None}


def _set_aside(plan: _Plan, name: str, problem: str) -> None:
    """Plan a copy of an unusable file of the state; the next repair reads it while it is open."""
    path = f"{plan.store.folder.name}/{name}"
    if snapshot := plan.store.snapshot(path):
        copy = f"{'' if plan.settled else _OPEN}{name}-{snapshot.digest[:12]}"
        plan.aside[copy] = snapshot
        plan.say(path, SET_ASIDE, f"as {plan.store.aside / copy}: {problem}")


# Files


@dataclass(frozen=True)
class _Listed:
    """What the RECORDs of a folder say of one path."""

    digests: frozenset[str]
    owners: tuple[Distribution, ...]


def _look_at_files(plan: _Plan, texts: str) -> None:
    """Decide about every file of the distributions that the state has to do with."""
    known, words, added = salvage_files(texts), _words(texts), salvage_added(texts)
    recorded = {file.path for file in plan.site.ledger.files}
    listed = _listed(plan, words)
    unlisted = {w for w in words if w not in listed and _may_be_added(plan.store, w)}
    for path in sorted((listed.keys() | known.keys() | unlisted) - recorded):
        so_far = len(plan.findings)
        try:
            _look_at(plan, path, listed.get(path), known.get(path), added)
        except StoreError as error:
            plan.say(path, UNDECIDED, error.message, _reinstall(listed.get(path)))
        if not all(found.ok for found in plan.findings[so_far:]):
            plan.held |= listed[path].digests if path in listed else set()
            plan.held |= {known[path].pristine or ""} if path in known else set()
    plan.held &= plan.kept.keys() | (set() if texts else plan.damaged)
    for path in _begun(plan.store, listed.keys() | known.keys()):
        _remove_begun(plan, path)


def _begun(store: Store, paths: Iterable[str]) -> list[str]:
    """Return temporary files of patchkit's in and below the folders that ``paths`` lie in."""
    tops = {store.root / path.split("/")[0] for path in paths if "/" in path}
    found = {p for top in tops for p in top.rglob(f"*{TEMPORARY}")}
    found |= set(store.root.glob(f"*{TEMPORARY}"))
    return sorted(p.relative_to(store.root).as_posix() for p in found)


def _remove_begun(plan: _Plan, path: str) -> None:
    """Plan to remove a temporary file, before the file beside it is written by that name."""
    try:
        current, folders = plan.store.snapshot(path), tuple(parent_folders(path))
    except StoreError as error:
        plan.say(path, UNDECIDED, error.message, f"Look at it, then remove it: rm {path}")
        return
    if current is None:
        return
    where = _keep_aside(plan, path, current)
    plan.say(path, REMOVED, f"begun by a run that was cut off; kept as {where}")
    plan.site.changes.insert(0, Change(path, current, None, folders=folders))


def _words(texts: str) -> set[str]:
    """Return the JSON strings in texts, however damaged they are; of very many, the first."""
    words: set[str] = set()
    for word, _ in salvage_strings(texts):
        words.add(word)
        if len(words) == _MOST_WORDS:
            break
    return words


def _listed(plan: _Plan, words: set[str]) -> dict[str, _Listed]:
    """Return the files of every distribution of which an original is kept or a file is named."""
    found: dict[str, _Listed] = {}
    for distribution in distributions_in(plan.store.root):
        rows = {p: r.sha256 for p, r in distribution.record.items() if not path_problem(p)}
        named = plan.kept.keys() | plan.damaged
        if not any(sha256 in named or path in words for path, sha256 in rows.items()):
            continue
        for path, sha256 in rows.items():
            old = found.get(path, _Listed(frozenset(), ()))
            digests = old.digests | ({sha256} if sha256 else set())
            found[path] = _Listed(digests, (*old.owners, distribution))
    return found


def _may_be_added(store: Store, word: str) -> bool:
    if path_problem(word) or word.endswith(".pyc") or _DRIFTED.search(word):
        return False
    return os.path.isfile(store.root / word)


def _look_at(
    plan: _Plan,
    path: str,
    listed: _Listed | None,
    known: FileEntry | None,
    added: set[tuple[str, str]],
) -> None:
    store = plan.store
    current = store.snapshot(path)
    digest = current.digest if current else None
    right = set(listed.digests) if listed else set()
    if not right and known and known.pristine and digest in (known.patched, known.pristine):
        right = {known.pristine}  # no RECORD says otherwise
    if digest in right:
        plan.live |= {digest} if digest else set()
        return
    if link := linked_folder(store.root, path):
        raise StoreError(f"it differs from RECORD, and lies behind a link: {link}")
    originals = sorted(right & plan.kept.keys())
    if len(originals) == 1:
        _put_back(plan, path, current, plan.kept[originals[0]], known)
    elif current and listed is None and (known is None or known.pristine is None):
        certain = (path, current.digest) in added or (known and known.patched == current.digest)
        _remove_added(plan, path, current, known, bool(certain))
    elif right or (known and current):
        what = "it was changed" if current else "it is missing"
        plan.say(path, UNDECIDED, f"{what}, and no original is kept", _reinstall(listed))


def _put_back(
    plan: _Plan, path: str, current: Snapshot | None, kept: Snapshot, known: FileEntry | None
) -> None:
    plan.live.add(kept.digest)
    if known and known.pristine == kept.digest:
        bytecode = tuple(item for item in known.bytecode if item.sha256 in plan.kept)
        plan.live |= {item.sha256 for item in bytecode}
        entry, detail = replace(known, bytecode=bytecode), "as the damaged ledger describes it"
    else:
        mode = current.mode if current else kept.mode
        entry = replace(_entry(path), pristine=kept.digest, mode=mode, mtime_ns=kept.mtime_ns)
        whose = "the file there was" if current else "the kept original"
        detail = f"as RECORD lists it, with the mode of {whose}"
    if current and not (known and known.patched == current.digest):
        detail += f"; what was there is kept as {_keep_aside(plan, path, current)}"
    plan.say(path, PUT_BACK, detail)
    back_to_pristine(plan.site, entry, current, kept.data)


def _remove_added(
    plan: _Plan, path: str, current: Snapshot, known: FileEntry | None, certain: bool
) -> None:
    """Take out a file that no RECORD lists, where the state says that a patch added those bytes."""
    full = plan.store.root / path
    if certain and not _DRIFTED.search(path):
        folders = known.folders if known else tuple(parent_folders(path))
        back_to_pristine(plan.site, replace(_entry(path), folders=folders), current, None)
        detail = f"a patch had added it; kept as {_keep_aside(plan, path, current)}"
        plan.say(path, REMOVED, detail)
    elif known:
        hint = f"Look at it, then remove it: rm {full}"
        plan.say(path, UNDECIDED, "a patch had added it, and it was changed since", hint)
    else:
        hint = f"If a patch had added it: rm {full}. Else reinstall the distribution it belongs to."
        plan.say(path, UNDECIDED, "the damaged state names it, and no RECORD lists it", hint)


def _keep_aside(plan: _Plan, path: str, current: Snapshot) -> Path:
    """Plan a copy of a file that is replaced or removed, and return where."""
    name = f"{path.rpartition('/')[2]}-{current.digest[:12]}"
    plan.aside[name] = current
    return plan.store.aside / name


def _entry(path: str) -> FileEntry:
    return FileEntry(path, None, "", 0o644, 0)


def _reinstall(listed: _Listed | None) -> str:
    if listed is None:
        return "Reinstall the distribution that it belongs to."
    names = " ".join(d.requirement for d in listed.owners)
    return f"{REINSTALL} {names}"


# The state folder


def _look_at_originals(plan: _Plan) -> None:
    """Hold the originals of which no RECORD can say whose they are, as one cannot be read."""
    read = {d.dist_info for d in distributions_in(plan.store.root)}
    unread = sorted(set(plan.store.root.glob("*.dist-info")) - read)
    for digest, kept in sorted(plan.kept.items()) if unread else ():
        if digest in plan.live | plan.held or kept.data[2:4] == _PYC:
            continue
        plan.held.add(digest)
        detail = f"the original of a file, and RECORD cannot be read: {', '.join(map(str, unread))}"
        hint = "Reinstall what has no readable RECORD, then: patchkit repair"
        names = [_REQUIREMENT.fullmatch(folder.name) for folder in unread]
        if all(names):
            wanted = " ".join(f"{name[1]}=={name[2]}" for name in names if name)
            hint = f"{REINSTALL} {wanted}, then: patchkit repair"
        plan.say(f"{plan.store.folder.name}/objects/{digest}", UNDECIDED, detail, hint)


def _look_at_strays(plan: _Plan) -> None:
    """Plan to set aside what nothing needs, unless its bytes are in place."""
    for path in plan.store.strays(plan.site.ledger):
        if path.rpartition("/")[2] not in plan.live | plan.held:
            plan.strays.append(path)
            detail = f"in {plan.store.aside}: nothing that is recorded needs it"
            plan.say(path, SET_ASIDE, detail)


def _carry_out(plan: _Plan) -> None:
    """Write copies, then the files and the ledger, all or none; then drop what is in place."""
    store, site = plan.store, plan.site
    for name, snapshot in sorted(plan.aside.items()):
        store.set_aside(name, snapshot)
    for path in plan.strays:
        store.move_aside(path)
    if site.changes or plan.dropped is not None:
        store.stage(site.changes, site.ledger, repairing=True)
        site.seal()
    store.let_go((plan.live - plan.held) & (plan.kept.keys() | plan.damaged))
    for name in plan.earlier if plan.settled else ():
        store.rename_aside(name, name.removeprefix(_OPEN))


def _afterwards(plan: _Plan, when: str) -> Iterator[str]:
    """Say what is to be done next."""
    root, aside = plan.store.root, plan.store.aside
    if plan.dropped is not None or (plan.site.changes and not plan.site.ledger.entries):
        again = " ".join(["patchkit apply", *(plan.dropped or ())])
        yield f"{root}: nothing is recorded {when}; to apply again: {again}"
    if not plan.dropped and any(found.action == PUT_BACK for found in plan.findings):
        yield f"{root}: files that patches had added may be left: no whole ledger names them"
    if plan.earlier and not plan.settled:
        forget = " ".join(str(aside / name) for name in plan.earlier)
        yield f"should what is undecided be right as it is, let repair forget it with: rm {forget}"
    originals = any(path.rpartition("/")[2] in plan.kept for path in plan.strays)
    if (plan.aside or plan.strays) and plan.settled and not originals and when == "now":
        yield f"what was set aside may be removed when nobody misses it: rm -r {aside}"
