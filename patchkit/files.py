"""Writing one file or folder: beside its target first, with mode, owner and time, and flushed."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from patchkit.errors import StoreError
from patchkit.journal import Snapshot


def same_file(handle: int, path: Path) -> bool:
    """Say whether an open file is the one now at ``path``."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(handle)
    return (mine.st_dev, mine.st_ino) == (found.st_dev, found.st_ino)


def open_lock(path: Path, flags: int) -> int:
    """Open the lock, never through a link to somebody's file, and never waiting at a FIFO."""
    handle = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return handle


def write_temporary(path: Path, snapshot: Snapshot) -> None:
    """Write a new file beside its target, with mode, owner and time, and flush it to disk."""
    path.unlink(missing_ok=True)
    if snapshot.link is not None:
        os.symlink(snapshot.link, path)
        return
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(snapshot.data)
        file.flush()
        keep_owner(file.fileno(), snapshot.uid, snapshot.gid)
        os.fchmod(file.fileno(), snapshot.mode)
        os.utime(file.fileno(), ns=(snapshot.mtime_ns, snapshot.mtime_ns))
        os.fsync(file.fileno())


def make_folder(path: Path) -> None:
    """Make a folder with the mode and owner of the one it lies in, unless it is there."""
    while True:
        try:
            path.mkdir()
            break
        except FileExistsError:
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                continue  # another process removed it just now
            if stat.S_ISDIR(found.st_mode) or path.is_dir():
                return
            raise
    parent = os.stat(path.parent)
    os.chmod(path, stat.S_IMODE(parent.st_mode))
    keep_owner(path, parent.st_uid, parent.st_gid)
    sync_folder(path.parent)


def keep_owner(file: int | Path, uid: int, gid: int) -> None:
    """Give a file the owner another had, where that is allowed and means anything."""
    try:
        os.chown(file, uid, gid)
    except OSError as error:  # EINVAL: an owner that this user namespace has no number for
        if error.errno not in (errno.EPERM, errno.EINVAL):
            raise


def stat_through(full: Path) -> os.stat_result:
    """Return the stat of what a link leads to; raises StoreError when that is nothing."""
    try:
        return os.stat(full)
    except FileNotFoundError as error:
        raise StoreError(
            f"{full} is a link to a file that does not exist", hint="Reinstall the distribution."
        ) from error


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, where its file system can."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def changed_meanwhile(path: Path) -> StoreError:
    """Return the refusal to write over what another program, such as pip, wrote just now."""
    return StoreError(
        f"{path} was changed by another program while patchkit was at work",
        hint="When that has finished, run the same command again.",
    )


def store_error(verb: str, path: Path, error: OSError) -> StoreError:
    """Return the refusal for an OSError: what could not be done, and what to do about it."""
    reasons = {
        errno.EACCES: "Run as the user that owns the environment.",
        errno.EPERM: "Run as the user that owns the environment.",
        errno.EROFS: "The file system is mounted read-only; patch where the image is built.",
        errno.ENOSPC: "Free some space, then run the same command again.",
        errno.EDQUOT: "Free some space, then run the same command again.",
    }
    return StoreError(
        f"cannot {verb} {path}: {error.strerror or error}",
        hint=reasons.get(error.errno or 0, "Mend the cause, then run the same command again."),
    )
