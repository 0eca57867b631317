"""Reading files that may be anything: only regular ones, none too large, and never a wait."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

LARGEST = 64 << 20


def read_regular(path: Path, largest: int = LARGEST) -> bytes:
    """Return the bytes of a regular file of at most ``largest`` bytes; links are followed.

    Raises OSError, also for what is no regular file: a FIFO would wait, a device might never end.
    """
    _check_regular(os.stat(path), path, largest)
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        _check_regular(os.fstat(handle), path, largest)
        return file.read()


def _check_regular(found: os.stat_result, path: Path, largest: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if found.st_size > largest:
        raise OSError(errno.EFBIG, f"larger than {largest} bytes", str(path))
