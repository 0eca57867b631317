"""Whose code may run: patch folders that the user has allowed, by path and content.

One file for each folder, with what was allowed last, in ``$XDG_STATE_HOME/patchkit/allowed`` or
``~/.local/state/patchkit/allowed``: its name is the sha256 of path and content, it holds the path.
So code that changed, or moved, must be allowed again. Records of other users do not count.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from patchkit.errors import PatchkitError
from patchkit.manifest import BARRED, Patch
from patchkit.reading import read_regular


@dataclass(frozen=True)
class Allowed:
    """One record: the folder, the digest over both, and the file that says so."""

    folder: Path
    key: str
    record: Path


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the user's records; raises PatchkitError when there is no home."""
    given = environ.get("XDG_STATE_HOME", "")
    base = given if os.path.isabs(given) else os.path.expanduser("~/.local/state")
    if not os.path.isabs(base) or (base != given and environ.get("HOME") == ""):
        raise PatchkitError(
            "there is no home folder to keep in what is allowed",
            hint="Set HOME or XDG_STATE_HOME, or give --allow-code DIR each time.",
        )
    return Path(base, "patchkit", "allowed")


def barred(patch: Patch) -> str:
    """Say why the code of a patch may not run, or return '' when the user has allowed it."""
    folder, key = _key(patch)
    try:
        mine = [a for a in allowed() if a.folder == folder]
    except PatchkitError:
        return BARRED
    if any(a.key == key for a in mine):
        return ""
    return "its folder was allowed, and has changed since" if mine else BARRED


def allowed() -> Iterator[Allowed]:
    """Give every record of this user; raises PatchkitError when there is no home."""
    folder = state_folder()
    with suppress(OSError):
        for name in sorted(os.listdir(folder)):
            if found := _read(folder / name):
                yield found


def _read(record: Path) -> Allowed | None:
    try:
        info = record.lstat()
        if info.st_uid != os.geteuid() or not stat.S_ISREG(info.st_mode):
            return None
        folder = Path(os.fsdecode(read_regular(record, 1 << 16)))
    except (OSError, ValueError):
        return None
    return Allowed(folder, record.name, record)


def allow(patch: Patch) -> Path:
    """Record that the code of a patch, as it is now and no other, may run; returns the folder."""
    folder, key = _key(patch)
    where = state_folder()
    temporary = where / f".{key}.{os.getpid()}"
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.write_bytes(os.fsencode(folder))
        temporary.replace(where / key)
    except OSError as error:
        raise _cannot("write", where, error) from error
    _remove([a for a in allowed() if a.folder == folder and a.key != key])
    return folder


def forget(patch: Patch) -> None:
    """Forget what was allowed of a patch that has no code any more."""
    folder, _ = _key(patch)
    try:
        found = [a for a in allowed() if a.folder == folder]
    except PatchkitError:  # no home: nothing is recorded
        return
    _remove(found)


def still_as_allowed(found: Allowed, patch: Patch) -> bool:
    """Say whether a patch read from an allowed folder is what was allowed."""
    return _key(patch)[1] == found.key


def revoke(folder: Path) -> list[Path]:
    """Forget what was allowed for a folder and those below it; returns which they were."""
    folder = folder.resolve()
    found = [a for a in allowed() if folder in (a.folder, *a.folder.parents)]
    _remove(found)
    return sorted({a.folder for a in found})


def _remove(found: Iterable[Allowed]) -> None:
    for old in found:
        try:
            old.record.unlink(missing_ok=True)
        except OSError as error:
            raise _cannot("remove", old.record, error) from error


def _key(patch: Patch) -> tuple[Path, str]:
    folder = Path(patch.folder).resolve()
    return folder, hashlib.sha256(os.fsencode(folder) + b"\0" + patch.digest.encode()).hexdigest()


def _cannot(verb: str, path: Path, error: OSError) -> PatchkitError:
    return PatchkitError(
        f"cannot {verb} {path}: {error.strerror}",
        hint="Mend the cause, or give --allow-code DIR each time.",
    )
