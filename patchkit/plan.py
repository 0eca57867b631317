"""Plans: from what is installed and what is recorded to the changes to make. Pure.

Every file's new bytes are its pristine bytes under the splices of all patches on it, so a plan
does not depend on the order in which patches were asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.version import Version

from patchkit.errors import PatchError, PatchkitError
from patchkit.ledger import FileState, Ledger, LedgerEntry, compose, file_state
from patchkit.manifest import ADD_FILE, Edit, Patch
from patchkit.source import compile_problem
from patchkit.splice import Splice, find_overlap
from patchkit.transform import rewrite


@dataclass(frozen=True)
class Original:
    """The pristine bytes of a file, or None when the distribution has no such file."""

    path: str
    data: bytes | None


def edits_by_file(patch: Patch, version: Version) -> dict[str, list[Edit]]:
    """Group the edits of a patch for one version by file.

    Raises PatchError when no edit is meant for the version, or a file is both added and edited.
    """
    grouped: dict[str, list[Edit]] = {}
    for edit in patch.edits_for(version):
        grouped.setdefault(edit.file, []).append(edit)
    if not grouped:
        raise PatchError(
            f"{patch.id}: has no edit for {patch.distribution} {version}",
            hint=f"The patch is at fault; see {patch.folder}/patch.toml.",
        )
    for path, edits in grouped.items():
        if len(edits) > 1 and any(e.codemod == ADD_FILE for e in edits):
            raise PatchError(
                f"{patch.id}: {path} is added and edited by the same patch",
                hint="Put the whole new file into the snippet.",
            )
    return grouped


def make_entry(patch: Patch, version: Version, originals: Mapping[str, Original]) -> LedgerEntry:
    """Run the codemods of a patch on pristine bytes and return what the ledger will say of it.

    Raises PatchError when any edit does not match.
    """
    splices: dict[str, tuple[Splice, ...]] = {}
    for path, edits in edits_by_file(patch, version).items():
        data = originals[path].data
        added = edits[0].codemod == ADD_FILE
        if added and data is not None:
            raise PatchError(
                f"{patch.id}: {path} exists already, and the patch adds it",
                hint="This version of the distribution has the file; the patch may not be needed.",
            )
        if data is None and not added:
            raise PatchError(
                f"{patch.id}: {patch.distribution} {version} has no file {path}",
                hint="Look at file in patch.toml, or say for which versions the edit is; if "
                "somebody removed the file, reinstall the distribution.",
            )
        splices[path] = rewrite(path, data or b"", patch, edits)
    return LedgerEntry(
        id=patch.id,
        revision=patch.revision,
        digest=patch.digest,
        title=patch.title,
        link=patch.links[0] if patch.links else "",
        distribution=patch.distribution,
        version=str(version),
        checks=patch.checks,
        conflicts=patch.conflicts,
        requires=patch.requires,
        splices=splices,
        trace=patch.trace,
        kernel=patch.kernel,
    )


def check_together(entries: Iterable[LedgerEntry]) -> None:
    """Raise PatchkitError when entries of one target conflict or miss a requirement."""
    chosen = sorted(entries, key=lambda e: e.id)
    check_conflicts(chosen)
    missing = {e.id: sorted(set(e.requires) - {c.id for c in chosen}) for e in chosen}
    asking = [name for name in missing if missing[name]]
    if asking:
        all_missing = sorted({other for others in missing.values() for other in others})
        raise PatchkitError(
            f"{asking[0]} requires {' and '.join(missing[asking[0]])}, which must be applied too",
            hint=f"Apply them together: patchkit apply {' '.join([*all_missing, *asking])}",
        )


def check_conflicts(entries: Iterable[LedgerEntry]) -> None:
    """Raise PatchkitError when one entry names another under ``conflicts``."""
    chosen = sorted(entries, key=lambda e: e.id)
    ids = {e.id for e in chosen}
    for entry in chosen:
        for other in sorted(ids & set(entry.conflicts) - {entry.id}):
            raise PatchkitError(
                f"conflict: {entry.id} and {other} cannot both be applied",
                hint=f"Choose one; if the other is applied: patchkit revert {other}",
            )


def check_places(entries: Iterable[LedgerEntry]) -> None:
    """Raise PatchkitError when entries of one folder edit the same bytes of a file."""
    chosen = sorted(entries, key=lambda e: e.id)
    for path in sorted({path for e in chosen for path in e.splices}):
        owned = [(e.id, e.splices[path]) for e in chosen if path in e.splices]
        if hit := find_overlap(owned):
            raise PatchkitError(
                f"conflict: {hit[0]} and {hit[1]} edit the same place in {path} "
                f"(bytes {hit[2].start} to {hit[2].end})",
                hint=f"Choose one; if the other is applied: patchkit revert {hit[0]}",
            )


_MARKER = re.compile(rb"patchkit: \S+ revision [^\r\n]*")


def check_renamed(entries: Iterable[LedgerEntry]) -> None:
    """Raise PatchkitError when two entries make the same edits: one is the other, renamed.

    Insertions at one place do not overlap, so nothing else would keep them from being made twice.
    """
    found: dict[object, str] = {}
    for entry in sorted(entries, key=lambda e: e.id):
        edits = [
            (path, s.start, s.end, _MARKER.sub(b"", s.text))
            for path, splices in sorted(entry.splices.items())
            for s in splices
        ]
        other = found.setdefault(tuple(edits), entry.id)
        if edits and other != entry.id:
            raise PatchkitError(
                f"conflict: {other} and {entry.id} make the same edits: the edit is already there, "
                "or is asked for twice",
                hint=f"If one was renamed, take the old one out: patchkit revert {other}",
            )


def content(ledger: Ledger, original: Original) -> bytes | None:
    """Return the bytes a file must have under the ledger's patches (None: no such file).

    Raises PatchkitError when two of them add it, or a Python file would not compile with all.
    """
    owners = ledger.owners(original.path)
    if not owners:
        return original.data
    if original.data is None and len(owners) > 1:
        raise PatchkitError(
            f"conflict: {owners[0].id} and {owners[1].id} both add {original.path}",
            hint=f"Choose one; if the other is applied: patchkit revert {owners[0].id}",
        )
    data = compose(original.data or b"", owners, original.path)
    if len(owners) > 1 and original.path.endswith(".py"):
        names = " and ".join(e.id for e in owners)
        if problem := compile_problem(original.path, data):
            raise PatchError(
                f"conflict: {original.path} would not compile with {names}: {problem}",
                hint=f"Choose one; patchkit revert {owners[0].id}",
            )
    return data


@dataclass(frozen=True)
class EntryState:
    """The state of an applied patch, from the digests of its files: one word and the evidence."""

    state: str
    detail: str = ""
    files: tuple[tuple[str, FileState], ...] = ()


APPLIED = "applied"
NOT_APPLIED = "not applied"
DRIFTED = "drifted"
UPGRADED = "upgraded underneath"
GONE = "distribution gone"
FAULTY = "faulty"


def entry_state(
    ledger: Ledger,
    entry: LedgerEntry,
    digests: Mapping[str, str | None],
    installed: Version | None,
    listed: Mapping[str, str | None] | None = None,
) -> EntryState:
    """Say what an entry's files are now.

    ``digests`` maps path to sha256 (None: no such file); ``installed`` is the version found, or
    None when the distribution is gone. ``listed`` are the sha256 in its RECORD: a changed file
    that is as listed there came with another build of the same version.
    """
    if installed is None:
        return EntryState(GONE, f"{entry.distribution} is no longer installed")
    if str(installed) != entry.version:
        return EntryState(UPGRADED, f"applied to {entry.version}, installed is {installed}")
    states = tuple((f.path, file_state(f, digests[f.path])) for f in ledger.files_of(entry))
    changed = [p for p, s in states if s is FileState.DRIFTED]
    if rebuilt := [p for p in changed if listed and listed.get(p) == digests[p]]:
        return EntryState(
            UPGRADED, f"another build of {installed} brought {', '.join(rebuilt)}", states
        )
    missing = [p for p, s in states if s is FileState.MISSING and _was_there(ledger, p)]
    if changed or missing:
        words = [f"{p} was changed" for p in changed] + [f"{p} is missing" for p in missing]
        return EntryState(DRIFTED, "; ".join(words), states)
    lost = [p for p, s in states if s is not FileState.PATCHED]
    if lost:
        return EntryState(
            NOT_APPLIED, f"undone from outside (reinstalled?): {', '.join(lost)}", states
        )
    return EntryState(APPLIED, "", states)


def _was_there(ledger: Ledger, path: str) -> bool:
    file = ledger.file(path)
    return file is not None and file.pristine is not None
