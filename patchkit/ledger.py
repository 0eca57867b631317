"""The ledger: what was applied to a site-packages, as data. Pure, to and from JSON.

It never says "applied". A patch is applied when the digests on disk say so (see
:func:`file_state`), and undoing it needs nothing but what is here and the kept bytes.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from patchkit.errors import LedgerError, NewerStateError
from patchkit.manifest import Trace, is_id, path_problem
from patchkit.splice import Splice, apply_splices

SCHEMA = 1


class FileState(enum.Enum):
    """What the bytes on disk are, compared with the ledger."""

    PATCHED = "patched"
    PRISTINE = "pristine"
    DRIFTED = "drifted"
    MISSING = "missing"


@dataclass(frozen=True)
class Bytecode:
    """A bytecode file that belonged to the pristine source and was set aside (kept by digest)."""

    path: str
    sha256: str
    mode: int
    mtime_ns: int


@dataclass(frozen=True)
class FileEntry:
    """A patched file: how it was before, and the digest it must have now.

    ``pristine`` is the sha256 of the original bytes, kept under that name, or None for a file a
    patch added. ``link`` is the text of the symbolic link the file was, or None. ``mode`` holds
    permission bits, ``mtime_ns`` nanoseconds since the epoch. ``folders`` are folders that did
    not exist before, outermost first.
    """

    path: str
    pristine: str | None
    patched: str
    mode: int
    mtime_ns: int
    link: str | None = None
    bytecode: tuple[Bytecode, ...] = ()
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class LedgerEntry:
    """One applied patch: which revision, on which version, and its splices by file."""

    id: str
    revision: int
    digest: str
    title: str
    link: str
    distribution: str
    version: str
    checks: tuple[str, ...]
    conflicts: tuple[str, ...]
    requires: tuple[str, ...]
    splices: Mapping[str, tuple[Splice, ...]]
    trace: Trace | None = None
    kernel: str = ""

    @property
    def requirement(self) -> str:
        """What to give pip to install exactly what the patch was applied to."""
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True)
class Ledger:
    """All applied patches of one site-packages and the files they changed, sorted."""

    entries: tuple[LedgerEntry, ...] = ()
    files: tuple[FileEntry, ...] = ()

    def entry(self, patch_id: str) -> LedgerEntry | None:
        """Return the entry of a patch, or None."""
        return next((e for e in self.entries if e.id == patch_id), None)

    def file(self, path: str) -> FileEntry | None:
        """Return the entry of a file, or None."""
        return next((f for f in self.files if f.path == path), None)

    def owners(self, path: str) -> tuple[LedgerEntry, ...]:
        """Return the patches that change a file, in canonical order."""
        return tuple(e for e in self.entries if path in e.splices)

    def files_of(self, entry: LedgerEntry) -> tuple[FileEntry, ...]:
        """Return the files a patch changes."""
        return tuple(f for f in self.files if f.path in entry.splices)

    def with_entry(self, entry: LedgerEntry) -> Ledger:
        """Return a ledger with this entry added, or put in place of the one with its id."""
        others = self.without(entry.id).entries
        return replace(self, entries=tuple(sorted([*others, entry], key=lambda e: e.id)))

    def without(self, *patch_ids: str) -> Ledger:
        """Return a ledger without these entries; files are left as they are."""
        return replace(self, entries=tuple(e for e in self.entries if e.id not in patch_ids))

    def with_file(self, path: str, file: FileEntry | None) -> Ledger:
        """Return a ledger with the entry of one file put in, replaced or taken out."""
        others = [f for f in self.files if f.path != path]
        files = [*others, file] if file else others
        return replace(self, files=tuple(sorted(files, key=lambda f: f.path)))


def compose(pristine: bytes, owners: Iterable[LedgerEntry], path: str) -> bytes:
    """Return the bytes of a file under all ``owners``; raises LedgerError when they overlap."""
    ordered = sorted(owners, key=lambda e: e.id)
    try:
        return apply_splices(pristine, [s for e in ordered for s in e.splices[path]])
    except ValueError as error:
        raise LedgerError(
            f"the recorded edits of {path} do not fit together: {error}",
            hint="The ledger was damaged or edited; reinstall the distribution, then apply again.",
        ) from error


def file_state(entry: FileEntry, digest: str | None) -> FileState:
    """Return the state of a file from the digest on disk (None: no such file)."""
    if digest == entry.patched:
        return FileState.PATCHED
    if digest == entry.pristine:
        return FileState.PRISTINE
    return FileState.MISSING if digest is None else FileState.DRIFTED


def dump_ledger(ledger: Ledger) -> str:
    """Return the ledger as JSON text, the same for the same ledger."""
    document = {
        "schema": SCHEMA,
        "patches": {e.id: _entry_to_dict(e) for e in ledger.entries},
        "files": {f.path: _file_to_dict(f) for f in ledger.files},
    }
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def load_ledger(text: str, where: str) -> Ledger:
    """Read a ledger; raises LedgerError when it is damaged or from a newer patchkit."""
    try:
        document = read_json(text)
        schema = typed(document["schema"], int)
        if schema > SCHEMA:
            raise newer_state(where, schema, SCHEMA)
        if schema < 1:
            raise ValueError(f"schema {schema}")
        entries = [_entry_from_dict(k, v) for k, v in sorted(document["patches"].items())]
        files = [_file_from_dict(k, v) for k, v in sorted(document["files"].items())]
        if stray := {path for e in entries for path in e.splices} ^ {f.path for f in files}:
            raise ValueError(f"{min(stray)} is not both a file and in a patch")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise LedgerError(
            f"{where} is damaged ({type(error).__name__}: {error})",
            hint="Original bytes are kept in the objects folder beside it. See what they can put "
            "right with: patchkit repair --dry-run",
        ) from error
    return Ledger(tuple(entries), tuple(files))


def read_json(text: str) -> Any:
    """Parse JSON; raises ValueError or RecursionError, also where an object has a key twice."""
    return json.loads(text, object_pairs_hook=_once_each)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"?')
_FILE_ROW = re.compile(r':\s*(?=\{\s*"bytecode":)')

_LONGEST_ROW = 1 << 16
_MOST_FAILED = 500
_ADDED_ROW = re.compile(
    r'"path":\s*("(?:[^"\\\n]|\\.)*"),\s*"before":\s*(?:'
    r'null,\s*"after":\s*\{\s*"sha256":\s*"([0-9a-f]{64})"'
    r'|\{\s*"sha256":\s*"([0-9a-f]{64})"[^{}]*\},\s*"after":\s*null)'
)


def salvage_strings(text: str) -> Iterator[tuple[str, int]]:
    """Give every JSON string on a line of a damaged text, and where it ends."""
    for match in _STRING.finditer(text):  # each character is looked at once: no quote, no matter
        found = match.group()
        if "\\" not in found and len(found) > 1 and found[-1] == '"':
            yield found[1:-1], match.end()
            continue
        with suppress(ValueError):
            yield json.loads(found), match.end()


def salvage_files(text: str) -> dict[str, FileEntry]:
    """Return the file entries that can still be read in a damaged ledger.

    It takes bounded time: no row is that long, and damage leaves few that cannot be read.
    """
    found = {}
    decoder, past, failed = json.JSONDecoder(), 0, 0
    for path, end in salvage_strings(text):
        row = _FILE_ROW.match(text, end) if end >= past else None
        if row is None:
            continue
        try:
            value, size = decoder.raw_decode(text[row.end() : row.end() + _LONGEST_ROW])
            found[path] = _file_from_dict(path, value)
            past = row.end() + size
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            failed += 1
            if failed > _MOST_FAILED:
                break
    return found


def salvage_added(text: str) -> set[tuple[str, str]]:
    """Return path and digest of files that a damaged journal says a patch had added.

    Nothing was there before, or nothing is to be there after.
    """
    found = set()
    for match in _ADDED_ROW.finditer(text):
        with suppress(ValueError):
            found.add((json.loads(match[1]), match[2] or match[3]))
    return found


def newer_state(where: str, schema: int, known: int) -> NewerStateError:
    """Return the refusal to touch what a newer patchkit wrote."""
    return NewerStateError(
        f"{where} has schema {schema}; this patchkit reads up to {known}",
        hint="Use the newer patchkit that wrote it: pip install --upgrade patchkit-ml",
    )


def _entry_to_dict(entry: LedgerEntry) -> dict[str, Any]:
    return {
        "revision": entry.revision,
        "digest": entry.digest,
        "title": entry.title,
        "link": entry.link,
        "distribution": entry.distribution,
        "version": entry.version,
        "checks": list(entry.checks),
        "conflicts": list(entry.conflicts),
        "requires": list(entry.requires),
        "splices": {
            path: [{"start": s.start, "end": s.end, "text": _to_text(s.text)} for s in splices]
            for path, splices in entry.splices.items()
        },
        "trace": None if entry.trace is None else asdict(entry.trace),
        "kernel": entry.kernel,
    }


def _entry_from_dict(name: str, value: Mapping[str, Any]) -> LedgerEntry:
    return LedgerEntry(
        id=patch_id(name),
        revision=typed(value["revision"], int),
        digest=typed(value["digest"], str),
        title=typed(value["title"], str),
        link=typed(value["link"], str),
        distribution=typed(value["distribution"], str),
        version=typed(value["version"], str),
        checks=tuple(typed(v, str) for v in typed(value["checks"], list)),
        conflicts=tuple(patch_id(v) for v in typed(value["conflicts"], list)),
        requires=tuple(patch_id(v) for v in typed(value["requires"], list)),
        splices={
            inside(path): tuple(
                Splice(typed(s["start"], int), typed(s["end"], int), _to_bytes(s["text"]))
                for s in typed(splices, list)
            )
            for path, splices in sorted(value["splices"].items())
        },
        trace=None if value["trace"] is None else _trace_from_dict(value["trace"]),
        kernel=typed(value.get("kernel", ""), str),  # it came after the first ledgers
    )


def _trace_from_dict(value: Mapping[str, Any]) -> Trace:
    return Trace(*(typed(value[f.name], str) for f in fields(Trace)))


def _file_to_dict(file: FileEntry) -> dict[str, Any]:
    return {
        "pristine": file.pristine,
        "patched": file.patched,
        "mode": file.mode,
        "mtime_ns": file.mtime_ns,
        "link": file.link,
        "folders": list(file.folders),
        "bytecode": [bytecode_to_dict(b) for b in file.bytecode],
    }


def _file_from_dict(path: str, value: Mapping[str, Any]) -> FileEntry:
    return FileEntry(
        path=inside(path),
        pristine=None if value["pristine"] is None else sha256_name(value["pristine"]),
        patched=sha256_name(value["patched"]),
        mode=permission_bits(value["mode"]),
        mtime_ns=time_ns(value["mtime_ns"]),
        link=link_text(value["link"]),
        folders=tuple(inside(v) for v in typed(value["folders"], list)),
        bytecode=tuple(bytecode_from_dict(b) for b in typed(value["bytecode"], list)),
    )


def bytecode_to_dict(item: Bytecode) -> dict[str, Any]:
    """Return a JSON object for a set-aside bytecode file."""
    return {"path": item.path, "sha256": item.sha256, "mode": item.mode, "mtime_ns": item.mtime_ns}


def bytecode_from_dict(value: Mapping[str, Any]) -> Bytecode:
    """Read what :func:`bytecode_to_dict` wrote."""
    return Bytecode(
        inside(value["path"]),
        sha256_name(value["sha256"]),
        permission_bits(value["mode"]),
        time_ns(value["mtime_ns"]),
    )


def typed(value: Any, kind: type) -> Any:
    """Return ``value``; raises TypeError unless its type is exactly ``kind``."""
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, found {type(value).__name__}")
    return value


def permission_bits(value: Any) -> int:
    """Return ``value``; raises ValueError or TypeError when no file can have such a mode."""
    if not 0 <= typed(value, int) <= 0o7777:
        raise ValueError(f"mode {value}")
    return int(value)


def time_ns(value: Any) -> int:
    """Return ``value``; raises ValueError or TypeError when it is no time a file can have."""
    if abs(typed(value, int)) >= 2**63:
        raise ValueError(f"time {value}")
    return int(value)


def link_text(value: Any) -> str | None:
    """Return ``value``; raises ValueError or TypeError when no link can lead there."""
    if value is not None and (not typed(value, str) or "\0" in value):
        raise ValueError(f"link {value!r}")
    return None if value is None else str(value)


def patch_id(value: Any) -> str:
    """Return ``value``; raises ValueError or TypeError unless it is the id of a patch.

    Hints print ids as part of commands to type.
    """
    if not is_id(typed(value, str)):
        raise ValueError(f"{value!r} is not a patch id")
    return str(value)


def inside(path: Any) -> str:
    """Return ``path``; raises ValueError or TypeError when it leaves site-packages.

    So no ledger, however it was edited, makes patchkit touch a path outside its folder.
    """
    if problem := path_problem(typed(path, str)):
        raise ValueError(f"path {path!r} {problem}")
    return str(path)


def sha256_name(value: Any) -> str:
    """Return ``value``; raises ValueError or TypeError unless it is a sha256 in hex."""
    if not re.fullmatch(r"[0-9a-f]{64}", typed(value, str)):
        raise ValueError(f"{value!r} is not a sha256")
    return str(value)


def _to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
