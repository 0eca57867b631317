"""The only writer of site-packages: lock, journal, atomic replacement, kept bytes, bytecode.

State lives in ``<site-packages>/.patchkit/``: ``ledger.json``, ``objects/<sha256>``, ``lock`` and,
while files are being replaced, ``journal.json``. A file is never written in place: a temporary
file beside it is renamed over it, so that hard links into a cache keep their bytes. Order of
a commit: objects, journal, files, bytecode, ledger, then the journal goes: it is renamed first,
so that nobody rolls back while kept bytes are being dropped. Whoever finds a journal rolls back
what it names, unless the ledger already is the one that was to come.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shlex
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from patchkit.environment import (
    STATE_FOLDER,
    Distribution,
    RecordRow,
    linked_folder,
    parent_folders,
    reinstall_hint,
    rows_with,
)
from patchkit.errors import LedgerError, NewerStateError, PatchkitError, StoreError
from patchkit.files import (
    changed_meanwhile,
    keep_owner,
    make_folder,
    open_lock,
    same_file,
    stat_through,
    store_error,
    sync_folder,
    write_temporary,
)
from patchkit.journal import (
    JOURNAL_SCHEMA,
    Change,
    Snapshot,
    digest_of,
    identity,
    load_journal,
    same_as,
    snapshot_to_dict,
    text_digest,
)
from patchkit.ledger import (
    Bytecode,
    Ledger,
    bytecode_from_dict,
    bytecode_to_dict,
    dump_ledger,
    load_ledger,
)
from patchkit.manifest import path_problem
from patchkit.reading import LARGEST, read_regular

TEMPORARY = ".patchkit-tmp"
ASIDE = "aside"
_LARGEST_STATE = 1 << 24
_STATE = {"ledger.json", "journal.json", "journal.done", "lock", "objects", ASIDE}


@dataclass
class Store:
    """The state of one site-packages folder, and the only way to change its files."""

    root: Path
    notify: Callable[[str], None] = field(default=lambda _: None)

    @property
    def folder(self) -> Path:
        """``<site-packages>/.patchkit``."""
        return self.root / STATE_FOLDER

    @property
    def aside(self) -> Path:
        """Where a repair puts what it replaces; only the next repair may read it."""
        return self.folder / ASIDE

    @property
    def _ledger_path(self) -> Path:
        return self.folder / "ledger.json"

    @property
    def _journal_path(self) -> Path:
        return self.folder / "journal.json"

    @property
    def _done_path(self) -> Path:
        return self.folder / "journal.done"

    # Reading

    def load(self) -> Ledger:
        """Return the ledger, empty when there is none; raises LedgerError."""
        text = self._read_text(self._ledger_path)
        return Ledger() if text is None else load_ledger(text, str(self._ledger_path))

    def interrupted(self) -> bool:
        """Say whether an apply or revert was cut off and still has to be rolled back."""
        return self._journal_path.exists() or self._done_path.exists()

    def abandoned(self) -> bool:
        """Say whether the state folder is there for nothing: a run was cut off as it began."""
        if not self.folder.is_dir() or self._ledger_path.exists():
            return False
        return [p.name for p in _listdir(self.folder)] != [ASIDE]

    def link_holds(self, path: str, link: str, sha256: str | None) -> bool:
        """Say whether a link with the text ``link`` at ``path`` would lead to those bytes."""
        full = (self.root / path).parent / link
        try:
            return digest_of(read_regular(full)) == sha256
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EINVAL, errno.EFBIG):
                return False
            raise store_error("read", full, error) from error

    def snapshot(self, path: str) -> Snapshot | None:
        """Return the file at ``path`` as it is, or None; raises StoreError for what is no file."""
        full = self.root / path
        try:
            info = os.lstat(full)
            link = os.readlink(full) if stat.S_ISLNK(info.st_mode) else None
            real = stat_through(full) if link is not None else info
            if not stat.S_ISREG(real.st_mode):
                raise StoreError(
                    f"{full} is not a regular file", hint="Reinstall the distribution."
                )
            data = read_regular(full)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise store_error("read", full, error) from error
        mode, owner = stat.S_IMODE(real.st_mode), (real.st_uid, real.st_gid)
        return Snapshot(data, mode, real.st_mtime_ns, link, *owner)

    def digest(self, path: str) -> str | None:
        """Return the sha256 of the bytes at ``path``, or None when there is no file."""
        found = self.snapshot(path)
        return found.digest if found else None

    def kept(self, sha256: str) -> bytes:
        """Return kept bytes; raises LedgerError when they are gone or not what their name says."""
        try:
            data = read_regular(self.folder / "objects" / sha256)
        except OSError as error:
            raise self._unusable(sha256, f"cannot be read ({error.strerror})") from error
        if digest_of(data) != sha256:
            raise self._unusable(sha256, "are damaged")
        return data

    def keeps(self, sha256: str) -> bool:
        """Say whether there are kept bytes of that name, without a look at them."""
        return os.path.lexists(self.folder / "objects" / sha256)

    def _unusable(self, sha256: str, why: str) -> LedgerError:
        """Return the refusal for kept bytes, with whose they are and what mends it."""
        what, hint = f"the kept bytes {sha256[:12]}", "Reinstall the distribution, then apply again"
        ledger = Ledger()
        with contextlib.suppress(PatchkitError):
            ledger = self.load()
        for file in ledger.files:
            if sha256 in (file.pristine, *(item.sha256 for item in file.bytecode)):
                what += f", from before {file.path} was patched,"
                hint = reinstall_hint(ledger.owners(file.path)[0].requirement)
                break
        if self.interrupted():
            hint = "See what can be put right with: patchkit repair --dry-run"
        return LedgerError(f"{what} {why}", hint=hint)

    def bytecode_of(self, path: str) -> list[Path]:
        """Return every cached bytecode file of a source: all tags, all optimisation levels.

        Raises StoreError where that cannot be told: none must stay unnoticed.
        """
        source = self.root / path
        if source.suffix != ".py":
            return []
        prefix, cache = source.stem + ".", source.parent / "__pycache__"
        try:
            names = sorted(os.listdir(cache))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise store_error("read", cache, error) from error
        return [
            cache / name
            for name in names
            if name.startswith(prefix)
            and name.endswith(".pyc")
            and "." not in name[len(prefix) :].removesuffix(".pyc").replace(".opt-", "")
        ]

    def leftovers(self) -> list[str]:
        """Return paths of patchkit's own that no ledger entry explains, relative to the root."""
        if not self.folder.is_dir():
            return []
        ledger = self.load()
        return sorted([*self.strays(ledger), *self.temporaries(f.path for f in ledger.files)])

    def strays(self, ledger: Ledger) -> list[str]:
        """Return what lies in the state folder and does not belong to ``ledger``."""
        wanted = _object_names(ledger)
        found = [p for p in _listdir(self.folder / "objects") if p.name not in wanted]
        found += [p for p in _listdir(self.folder) if p.name not in _STATE]
        return sorted(str(p.relative_to(self.root)) for p in found)

    def temporaries(self, paths: Iterable[str]) -> list[str]:
        """Return files that a run which was cut off had begun beside ``paths``."""
        folders = {(self.root / path).parent for path in paths}
        folders |= {folder / "__pycache__" for folder in folders}
        found = [p for f in folders for p in _listdir(f) if p.name.endswith(TEMPORARY)]
        return sorted(str(p.relative_to(self.root)) for p in found)

    def keep_bytecode(self, path: str) -> tuple[tuple[Bytecode, Snapshot], ...]:
        """Return the bytecode files of a source as they are, to be kept."""
        kept = []
        for file in self.bytecode_of(path):
            snapshot = self.snapshot(file.relative_to(self.root).as_posix())
            if snapshot and snapshot.link is None:
                name = file.relative_to(self.root).as_posix()
                item = Bytecode(name, snapshot.digest, snapshot.mode, snapshot.mtime_ns)
                kept.append((item, snapshot))
        return tuple(kept)

    # Locking

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Wait until no one is writing; writes nothing and needs no write permission."""
        handle = self._lock(os.O_RDONLY, fcntl.LOCK_SH)
        try:
            yield
        finally:
            if handle is not None:
                os.close(handle)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the folder for writing, and first roll back what an earlier run left half-done."""
        with self.locked():
            self.recover()
            yield

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for writing as it is.

        The lock is the kernel's (flock): it goes with its process, however that ends. A state
        folder that ends up empty is removed. Raises StoreError when the folder is not writable.
        """
        handle = self._lock(os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)
        assert handle is not None
        try:
            yield
        finally:
            try:
                self._remove_empty_state()
            finally:
                os.close(handle)

    def _lock(self, flags: int, kind: int) -> int | None:
        path = self.folder / "lock"
        for folder in (self.folder, self.folder / "objects", self.aside):
            if folder.is_symlink():
                raise StoreError(
                    f"{folder} is a symbolic link; patchkit keeps its state in the folder itself",
                    hint="Remove the link.",
                )
        said = False
        while True:
            handle = None
            try:
                if flags & os.O_CREAT:
                    make_folder(self.folder)
                handle = open_lock(path, flags)
                if flags & os.O_CREAT:
                    self._share(handle)
                said = self._wait(handle, kind, said)
                if same_file(handle, path):
                    return handle
                os.close(handle)
            except FileNotFoundError:
                if flags & os.O_CREAT:
                    if not self.root.is_dir():
                        raise
                    continue  # another process removed the folder just now
                return None
            except OSError as error:
                if flags & os.O_CREAT:
                    self._leave(handle)
                if handle is not None:
                    os.close(handle)
                raise store_error("lock", path, error) from error

    def _leave(self, handle: int | None) -> None:
        """Remove a state folder that was made for nothing; one that another run uses stays."""
        path = self.folder / "lock"
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # where there is no lock in it yet
        with contextlib.suppress(OSError):
            mine = open_lock(path, os.O_RDWR) if handle is None else os.dup(handle)
            try:
                fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if same_file(mine, path):
                    self._remove_empty_state()
            finally:
                os.close(mine)

    def _share(self, handle: int) -> None:
        """Let everyone read the lock, and its folder's owner write it, whoever made it."""
        if os.fstat(handle).st_uid == os.geteuid():
            os.fchmod(handle, 0o644)
            keep_owner(handle, *self.owner())

    def owner(self) -> tuple[int, int]:
        """Return user and group of the folder: what patchkit adds to it is theirs."""
        found = os.stat(self.root)
        return found.st_uid, found.st_gid

    def plain_mode(self) -> int:
        """Return the mode of a plain file that is as open as the folder, whatever the umask."""
        return stat.S_IMODE(os.stat(self.root).st_mode) & 0o666

    def _wait(self, handle: int, kind: int, said: bool) -> bool:
        """Take the lock; return whether the user has been told, once, that there is a wait."""
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if not said:
                self.notify("waiting for another patchkit to finish ...")
            fcntl.flock(handle, kind)
            return True
        return said

    def _remove_empty_state(self) -> None:
        """Remove the state folder when nothing is recorded; the lock goes last.

        Kept bytes without a ledger are somebody's originals whose ledger was lost: they stay.
        """
        if self._ledger_path.exists() or self.interrupted():
            return
        objects = self.folder / "objects"
        with contextlib.suppress(OSError):
            for file in [*_listdir(objects), *_listdir(self.folder)]:
                if file.name.endswith(TEMPORARY):
                    file.unlink()
            with contextlib.suppress(FileNotFoundError):
                objects.rmdir()
            (self.folder / "lock").unlink()
            self.folder.rmdir()

    # Writing

    def commit(
        self, changes: Sequence[Change], ledger: Ledger, keep: Sequence[Snapshot] = ()
    ) -> None:
        """Make all changes and record ``ledger``, or leave everything as it was.

        ``keep`` are files whose bytes the new ledger refers to by digest. Call it inside
        :meth:`writing`. Raises StoreError, after rolling back, when a file cannot be written.
        """
        self.stage(changes, ledger, keep)
        self.seal(ledger)

    def stage(
        self,
        changes: Sequence[Change],
        ledger: Ledger,
        keep: Sequence[Snapshot] = (),
        *,
        repairing: bool = False,
    ) -> None:
        """Make all changes of a :meth:`commit`, so that only :meth:`seal` is left to do.

        Until then :meth:`recover` takes them back; so does an error here. When ``repairing``, the
        ledger before may be unreadable, and no kept bytes go with it.
        """
        changes = [self._with_folders(c) for c in changes if c.before or c.after]
        new_text = dump_ledger(ledger) if ledger.entries else None
        for path, size in [(c.path, len(c.after.data)) for c in changes if c.after]:
            _check_size(self.root / path, size, LARGEST)
        _check_size(self._ledger_path, len(new_text or ""), _LARGEST_STATE)
        if not changes and not repairing and self._read_text(self._ledger_path) == new_text:
            return
        try:
            with self._refusing():
                before = Ledger() if repairing else self.load()
                own = _object_names(before)
                self._write_journal(changes, new_text, keep, own, _versions(before, ledger))
                for change in changes:
                    if self.snapshot(change.path) != change.before:
                        raise changed_meanwhile(self.root / change.path)
                    self._replace(change)
                if new_text is not None:
                    self._write_beside(self._ledger_path, self._plain(new_text.encode()))
        except BaseException as error:
            self.roll_back_after(error)
            raise

    def seal(self, ledger: Ledger) -> str:
        """Record ``ledger`` and let go of the way back; does nothing when nothing was staged.

        Once the ledger is in place the changes are made, whatever comes. Returns what then went
        wrong, or '': the next run that writes here does what is left to do.
        """
        if not self._journal_path.exists():
            return ""
        try:
            with self._refusing():
                self._put_ledger(there=bool(ledger.entries))
        except BaseException as error:
            self.roll_back_after(error)
            raise
        try:
            with self._refusing():
                self._step("flush", STATE_FOLDER, sync_folder)
                self._finish(_object_names(ledger))
        except StoreError as error:
            return error.message
        return ""

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Let what the system refuses come out as a StoreError, wherever it does."""
        try:
            yield
        except OSError as error:
            path = Path(os.fsdecode(error.filename)) if error.filename else self.folder
            raise store_error("use", path, error) from error

    def roll_back_after(self, error: BaseException) -> None:
        """Take back what was staged, because of ``error``, which the caller raises again."""
        try:
            self.recover()
        except PatchkitError as second:
            if isinstance(error, PatchkitError):
                error.hint = (
                    f"{error.hint} Rolling back failed too ({second.message}); nothing is lost: "
                    "run patchkit status once the cause is mended."
                )

    def _write_journal(
        self,
        changes: Sequence[Change],
        new_text: str | None,
        keep: Sequence[Snapshot],
        own: set[str],
        versions: Mapping[str, str],
    ) -> None:
        kept_bytecode = {c.path: self.keep_bytecode(c.path) for c in changes}
        kept = [*keep, *(c.before for c in changes if c.before)]
        kept += [snapshot for rows in kept_bytecode.values() for _, snapshot in rows]
        names = sorted(own | ({snapshot.digest for snapshot in kept} - self._objects()))
        # Should the run be cut off while it keeps them:
        self._write_journal_of([], self._ledger_digest(), names, versions)
        for snapshot in kept:
            self._keep(snapshot)
        rows = [
            {
                "path": c.path,
                "before": snapshot_to_dict(c.before),
                "after": snapshot_to_dict(c.after),
                "bytecode": [bytecode_to_dict(b) for b, _ in kept_bytecode[c.path]],
                "folders": list(c.folders),
            }
            for c in changes
        ]
        self._write_journal_of(rows, text_digest(new_text), names, versions)

    def _write_journal_of(
        self,
        changes: list[dict[str, Any]],
        ledger_after: str | None,
        objects: list[str],
        versions: Mapping[str, str],
    ) -> None:
        """Write the journal. Until it names the changes, no ledger but the one before is right."""
        document = {
            "schema": JOURNAL_SCHEMA,
            "ledger_before": self._ledger_digest(),
            "ledger_after": ledger_after,
            "versions": versions,
            "objects": objects,
            "changes": changes,
        }
        text = json.dumps(document, indent=1)
        self._write_state(self._journal_path, self._plain(text.encode()))

    def _ledger_digest(self) -> str | None:
        data = self.read_state(self._ledger_path.name)
        return None if data is None else digest_of(data)

    def _keep(self, source: Snapshot) -> None:
        """Keep the bytes of a file, no more open than any file that held them, and its time."""
        name = f"{STATE_FOLDER}/objects/{source.digest}"
        there = self.snapshot(name)
        mode = source.mode & 0o777
        if there and there.data == source.data:
            mode &= there.mode
            if mode == there.mode:
                return
        self._step("create", f"{STATE_FOLDER}/objects", make_folder)
        self._write_state(self.root / name, replace(source, mode=mode, link=None))

    def set_aside(self, name: str, source: Snapshot) -> None:
        """Write a copy of a file into the folder of what a repair replaces."""
        self._step("create", f"{STATE_FOLDER}/{ASIDE}", make_folder)
        self._write_state(self.aside / name, replace(source, link=None))

    def move_aside(self, path: str) -> None:
        """Move something that lies in the state folder to where a repair puts things aside."""
        self._step("create", f"{STATE_FOLDER}/{ASIDE}", make_folder)
        name, number = Path(path).name, 1
        while os.path.lexists(self.aside / name):
            number += 1
            name = f"{Path(path).name}-{number}"
        self._step("move", path, lambda p: p.replace(self.aside / name))

    def rename_aside(self, name: str, new: str) -> None:
        """Give something that was set aside another name."""
        path = f"{STATE_FOLDER}/{ASIDE}/{name}"
        self._step("rename", path, lambda p: p.replace(self.aside / new))

    def let_go(self, digests: Iterable[str]) -> None:
        """Drop kept bytes that are in place again."""
        for sha256 in sorted(digests):
            self._step(
                "remove", f"{STATE_FOLDER}/objects/{sha256}", lambda p: p.unlink(missing_ok=True)
            )

    def _check_way(self, paths: Iterable[str]) -> None:
        """Raise StoreError when a path lies behind a linked folder, whoever asks to write there."""
        for path in paths:
            if link := linked_folder(self.root, path):
                raise StoreError(
                    f"{link} is a symbolic link; patchkit does not write through linked folders",
                    hint="Put the folder itself in its place, then run the same command again.",
                )

    def _with_folders(self, change: Change) -> Change:
        """Name the folders that are missing on the way to a file that is to come."""
        if change.after is None or change.folders:
            return change
        way = parent_folders(change.path)
        missing = tuple(folder for folder in way if not os.path.lexists(self.root / folder))
        return replace(change, folders=missing)

    def _replace(self, change: Change) -> None:
        self._check_way(_ways(change.path, change.bytecode, change.folders))
        for folder in change.folders:
            if change.after is not None:
                self._step("create", folder, make_folder)
        self._put(change.path, change.after)
        self._drop_bytecode(change.path)
        for item in change.bytecode:
            self._restore_bytecode(item)
        if change.after is None:
            self._remove_folders(change.folders)

    def _put(self, path: str, snapshot: Snapshot | None) -> None:
        """Make ``path`` what ``snapshot`` says, atomically: never written in place."""
        full = self.root / path
        temporary = full.with_name(f".{full.name}{TEMPORARY}")
        try:
            if snapshot is None:
                full.unlink(missing_ok=True)
            else:
                write_temporary(temporary, snapshot)
                os.replace(temporary, full)
            sync_folder(full.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise store_error("write", full, error) from error

    def _drop_bytecode(self, path: str) -> None:
        cache = (self.root / path).parent / "__pycache__"
        begun = f".{Path(path).stem}."
        cut_off = [
            p for p in _listdir(cache) if p.name.startswith(begun) and p.name.endswith(TEMPORARY)
        ]
        stale = [*self.bytecode_of(path), *cut_off]
        for file in stale:
            self._step("remove", file.relative_to(self.root).as_posix(), lambda p: p.unlink())
        if stale:
            self._step("flush", cache.relative_to(self.root).as_posix(), sync_folder)
        with contextlib.suppress(OSError):
            if path.endswith(".py") and not os.listdir(cache):
                cache.rmdir()
                sync_folder(cache.parent)

    def _restore_bytecode(self, item: Bytecode) -> None:
        """Put bytecode back, unless what was kept of it is gone: Python makes it anew."""
        try:
            snapshot = Snapshot(self.kept(item.sha256), item.mode, item.mtime_ns)
        except LedgerError as error:
            if _refused(error):
                raise
            self.notify(f"{self.root / item.path} stays away: {error.message}")
            return
        self._step("create", str(Path(item.path).parent), make_folder)
        self._put(item.path, snapshot)

    def _remove_folders(self, folders: Sequence[str]) -> None:
        """Remove folders that a patch added; one that somebody else uses stays."""
        for folder in reversed(folders):
            try:
                (self.root / folder).rmdir()
                sync_folder((self.root / folder).parent)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR):
                    raise store_error("remove", self.root / folder, error) from error

    def _step(self, verb: str, path: str, action: Callable[[Path], object]) -> None:
        full = self.root / path
        try:
            action(full)
        except OSError as error:
            raise store_error(verb, full, error) from error

    def _put_ledger(self, *, there: bool) -> None:
        """Make the ledger the one written beside it, or remove it: needs no space on disk."""
        name = f"{STATE_FOLDER}/ledger.json"
        if there:
            self._step("write", name, _beside(self._ledger_path).replace)
        elif self._ledger_path.exists():
            self._step("remove", name, lambda p: p.unlink())

    def _plain(self, data: bytes) -> Snapshot:
        """Return a file of the state that everyone may read, as who may read the folder can."""
        return Snapshot(data, 0o644, time.time_ns(), None, *self.owner())

    def _write_beside(self, path: Path, state: Snapshot) -> None:
        try:
            write_temporary(_beside(path), state)
        except OSError as error:
            with contextlib.suppress(OSError):
                _beside(path).unlink()
            raise store_error("write", path, error) from error

    def _write_state(self, path: Path, state: Snapshot) -> None:
        self._write_beside(path, state)
        try:
            _beside(path).replace(path)
            sync_folder(path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                _beside(path).unlink(missing_ok=True)
            raise store_error("write", path, error) from error

    def _finish(self, wanted: set[str]) -> None:
        """Drop the bytes this run no longer needs, and the journal, which first gets another name.

        The bytes are what a roll-back needs: from here on there is none. Bytes that the journal
        does not name belong to a ledger that was lost: they stay, as do originals of files that
        are not in place and that no ledger explains.
        """
        if self._journal_path.exists():
            name = f"{STATE_FOLDER}/journal.json"
            self._step("rename", name, lambda p: p.replace(self._done_path))
            self._step("flush", STATE_FOLDER, sync_folder)
        objects = self.folder / "objects"
        text = self._read_text(self._done_path)
        journal = load_journal(text, str(self._done_path)) if text is not None else None
        gone = self._objects() & set(journal["objects"]) - wanted if journal else set()
        if gone and journal:
            gone -= self._still_needed(gone, journal)
        done = [objects / name for name in sorted(gone)]
        begun = [*_listdir(objects), *_listdir(self.folder)]
        for file in [*done, *(p for p in begun if p.name.endswith(TEMPORARY))]:
            name = file.relative_to(self.root).as_posix()
            self._step("remove", name, lambda p: p.unlink(missing_ok=True))
        with contextlib.suppress(OSError):
            objects.rmdir()
        self._step("remove", f"{STATE_FOLDER}/journal.done", lambda p: p.unlink(missing_ok=True))
        self._step("flush", STATE_FOLDER, sync_folder)

    def _still_needed(self, digests: set[str], journal: dict[str, Any]) -> set[str]:
        """Return those originals that RECORD lists for a file which holds others, unexplained.

        Somebody wrote over the file after a run was killed, or the ledger that recorded it was
        lost. While a RECORD cannot be read, whatever a file held that was changed since counts.
        """
        rows, whole = rows_with(self.root, digests)
        recorded = {file.path for file in self.load().files}
        needed = {
            row.sha256 or ""
            for _, row in rows
            if row.path not in recorded and not path_problem(row.path) and not self._holds(row)
        }
        for change in () if whole else journal["changes"]:
            if change["before"] and self._may_be_foreign(change):
                needed.add(change["before"]["sha256"])
        return needed

    def _may_be_foreign(self, row: dict[str, Any]) -> bool:
        try:
            return self._is_foreign(row)
        except StoreError:
            return True

    def _holds(self, row: RecordRow) -> bool:
        """Say whether a file is as RECORD has it; raises StoreError when it cannot be read now."""
        try:
            return self.digest(row.path) == row.sha256
        except StoreError as error:
            if _refused(error):
                raise
            return False

    def read_state(self, name: str) -> bytes | None:
        """Return the bytes of a file of the state folder, None for none; raises StoreError."""
        path = self.folder / name
        try:
            return read_regular(path, _LARGEST_STATE)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            refusal = store_error("read", path, error)
            if error.errno in (errno.EFBIG, errno.EINVAL):  # patchkit writes no such file
                moved = f"mv {shlex.quote(str(path))} {shlex.quote(f'{path.parent}-{path.name}')}"
                refusal.hint = f"Move it away, then mend the rest: {moved}; patchkit repair"
            raise refusal from error

    def _read_text(self, path: Path) -> str | None:
        data = self.read_state(path.name)
        try:
            return None if data is None else data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise LedgerError(
                f"{path} is damaged ({error})",
                hint="See what can be put right with: patchkit repair --dry-run",
            ) from error

    # Recovery

    def recover(self) -> None:
        """Finish or roll back what an interrupted run left; does nothing when there is none.

        A file that somebody else changed since is left alone (:meth:`_left_alone`).
        """
        with self._refusing():
            if not self.interrupted():
                return
            wanted = self._wanted()
            journal = self._journal()
            left = self._left_alone(journal)
            if self._journal_path.exists():
                self._recover_from(journal, left)
            self._finish(wanted if self._agrees(journal, left) else self._objects())

    def _wanted(self) -> set[str]:
        """Return the kept bytes that the ledger needs: all, when it cannot be read.

        Raises NewerStateError: what a newer patchkit recorded is not for this one to clean up.
        """
        try:
            return _object_names(self.load())
        except NewerStateError:
            raise
        except LedgerError:
            return self._objects()

    def _objects(self) -> set[str]:
        """Return the names of all kept bytes; raises StoreError where they cannot be listed."""
        folder = self.folder / "objects"
        try:
            return set(os.listdir(folder))
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise store_error("read", folder, error) from error

    def _journal(self) -> dict[str, Any]:
        """Return the journal of the interrupted run; raises LedgerError."""
        path = self._journal_path if self._journal_path.exists() else self._done_path
        return load_journal(self._read_text(path) or "", str(path))

    def _agrees(self, journal: dict[str, Any], left: set[str]) -> bool:
        """Say whether ledger and files are both from before the run, or both from after it.

        Where they are not, the ledger was lost or replaced meanwhile, and any of the kept bytes
        may be the only copy of an original. A ledger alone, gone or older, does not show that the
        run came to its end: where files were to change, one has to be what it was to be. What is
        ``left`` alone says nothing.
        """
        ledgers = (journal["ledger_before"], journal["ledger_after"])
        if (now := self._ledger_digest()) not in ledgers:
            return False
        sealed = now == ledgers[1] != ledgers[0]
        rows = [c for c in journal["changes"] if c["path"] not in left]
        rows = [c for c in rows if identity(c["before"]) != identity(c["after"])]
        try:
            found = [(self.snapshot(row["path"]), row) for row in rows]
        except StoreError:
            return False
        if sealed and rows and not any(same_as(file, row["after"]) for file, row in found):
            return False
        other = "before" if sealed else "after"
        return not any(same_as(file, row[other]) for file, row in found)

    def _sealed(self, journal: dict[str, Any]) -> bool:
        """Say whether the ledger is the one that was to come: then the run came to its end."""
        before, after = journal["ledger_before"], journal["ledger_after"]
        return bool(self._ledger_digest() == after != before)

    def _left_alone(self, journal: dict[str, Any]) -> set[str]:
        """Return the paths that a roll-back must not touch: somebody else wrote there since.

        Such a file is neither as before the run nor as it was to be, or it only looks as it was to
        be: a reinstall or an upgrade brought it. The copy that a forced revert made of a file that
        was changed again stays too: nothing else may hold those bytes.
        """
        if self._sealed(journal):
            return set()
        rows = journal["changes"]
        listed, _ = rows_with(self.root, {row["after"]["sha256"] for row in rows if row["after"]})
        left, gone = set(), set()
        for row in rows:
            with contextlib.suppress(StoreError):  # it will come again when this row's turn comes
                foreign = self._is_foreign(row)
                if foreign and row["before"]:
                    gone.add(row["before"]["sha256"])
                if foreign or self._brought(row, listed, journal["versions"]):
                    left.add(row["path"])
        copies = (r for r in rows if r["before"] is None and r["after"])
        return left | {row["path"] for row in copies if row["after"]["sha256"] in gone}

    def _is_foreign(self, row: dict[str, Any]) -> bool:
        found = self.snapshot(row["path"])
        return not same_as(found, row["before"]) and not same_as(found, row["after"])

    def _brought(
        self,
        row: dict[str, Any],
        listed: Sequence[tuple[Distribution, RecordRow]],
        versions: Mapping[str, str],
    ) -> bool:
        """Say whether a distribution of another version than the run met has the file as it is.

        A file that was missing before the run and is as RECORD has it counts as well.
        """
        found = self.snapshot(row["path"])
        if found is None or same_as(found, row["before"]):
            return False
        mine = [d for d, r in listed if (r.path, r.sha256) == (row["path"], found.digest)]
        if row["before"] is None:
            return bool(mine)
        return any(versions.get(d.key, str(d.version)) != str(d.version) for d in mine)

    def journal_problem(self) -> str:
        """Say why :meth:`recover` could not do its work, or return ''; raises NewerStateError."""
        self._wanted()
        try:
            journal = self._journal() if self.interrupted() else {"changes": []}
            for change in journal["changes"] if self._journal_path.exists() else ():
                if change["before"]:
                    self.kept(change["before"]["sha256"])
        except NewerStateError:
            raise
        except LedgerError as error:
            return error.message
        return ""

    def _recover_from(self, journal: dict[str, Any], left: set[str]) -> None:
        """Roll back every change that can be; the first error is raised after the others."""
        if self._sealed(journal):
            return
        self.notify("rolling back an interrupted run ...")
        errors = []
        for change in reversed(journal["changes"]):
            try:
                with self._refusing():
                    self._roll_back(change, left)
            except PatchkitError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _roll_back(self, change: dict[str, Any], left: set[str]) -> None:
        path = change["path"]
        full = self.root / path
        bytecode = [bytecode_from_dict(item) for item in change["bytecode"]]
        self._check_way(_ways(path, bytecode, change["folders"]))
        with contextlib.suppress(OSError):
            full.with_name(f".{full.name}{TEMPORARY}").unlink()
        if path in left:
            return
        current, before = self.snapshot(path), change["before"]
        untouched = same_as(current, before)
        if not untouched and not same_as(current, change["after"]):
            return  # it could not be read when it was to be told what to leave alone
        for folder in change["folders"] if before else ():
            self._step("create", folder, make_folder)
        if not untouched:
            self._put(path, self._as_before(path, before) if before else None)
        self._drop_bytecode(path)
        for item in bytecode:
            self._restore_bytecode(item)
        if before is None:
            self._remove_folders(change["folders"])

    def _as_before(self, path: str, value: dict[str, Any]) -> Snapshot:
        """Return what was there, as a file where a link no longer leads to those bytes."""
        names = ("mode", "mtime_ns", "link", "uid", "gid")
        before = Snapshot(self.kept(value["sha256"]), *(value[name] for name in names))
        if before.link is None or self.link_holds(path, before.link, before.digest):
            return before
        self.notify(f"{self.root / path} was a link to what is no longer the original: now a file")
        return replace(before, link=None)


def _object_names(ledger: Ledger) -> set[str]:
    names = {f.pristine for f in ledger.files if f.pristine}
    return names | {b.sha256 for f in ledger.files for b in f.bytecode}


def _versions(*ledgers: Ledger) -> dict[str, str]:
    """Return the versions that the entries of ledgers were applied to; the last ledger counts."""
    entries = [entry for ledger in ledgers for entry in ledger.entries]
    return {canonicalize_name(entry.distribution): entry.version for entry in entries}


def _refused(error: PatchkitError) -> bool:
    """Say whether the system refused to read what may be there, so that another try may do."""
    cause = error.__cause__
    return isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)


def _listdir(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _check_size(path: Path, size: int, largest: int) -> None:
    """Raise StoreError before a file is written that could not be read again."""
    if size > largest:
        raise StoreError(
            f"{path} would be larger than {largest} bytes", hint="Apply fewer or smaller patches."
        )


def _ways(path: str, bytecode: Iterable[Bytecode], folders: Iterable[str]) -> list[str]:
    """Return what a change of one file may write: it, its bytecode, and folders around it."""
    cache = (Path(path).parent / "__pycache__" / "x").as_posix()
    return [path, cache, *(item.path for item in bytecode), *(f"{f}/x" for f in folders)]


def _beside(path: Path) -> Path:
    return path.with_name(path.name + TEMPORARY)


def say_on_terminal(text: str) -> None:
    """Print progress on a terminal; say nothing in a pipe."""
    if sys.stderr is not None and sys.stderr.isatty():  # None: closed by who started us
        print(f"patchkit: {text}", file=sys.stderr)
