"""The file-system calls that this process makes, one by one, with something done at each.

Nothing of patchkit is replaced, and every call that is let through is the real one. The audit
events of the interpreter come right before a call; ``os.open``, ``os.fsync``, ``os.stat`` and the
file that ``os.fdopen`` gives have none that would do and are wrapped. A write is made in two
halves, with a point between them.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHANGES = {
    f"os.{name}": name
    for name in ("remove", "rename", "mkdir", "rmdir", "symlink", "link", "truncate")
} | {f"os.{name}": name for name in ("chmod", "chown", "utime")}
READS = {"os.listdir": "listdir", "os.scandir": "scandir", "fcntl.flock": "flock"}
# Behind the call where an audit event came before it, so that each has a point on either side.
WRAPPED = ("stat", "lstat", "fstat", "readlink")

REAL = {name: getattr(os, name) for name in ("open", "fdopen", "fsync", *WRAPPED)}


@dataclass(frozen=True)
class Call:
    """One call: its name, the path it is for, and for a rename where that leads."""

    name: str
    path: str
    to: str = ""

    @property
    def changes(self) -> bool:
        return self.name in {*CHANGES.values(), "create", "created", "write", "fsync"}

    @property
    def takes_space(self) -> bool:
        return self.name in ("create", "write", "mkdir", "symlink", "rename", "fsync")


def interpose(act: Callable[[Call], None], below: Path) -> None:
    """Let ``act`` see every call from here on that is for something below a folder.

    There is no way back, so this is for a forked child. ``act`` may raise OSError: the call
    fails with it, and is not made.
    """
    folder = os.path.realpath(below)
    busy = False

    def seen(name: str, path: Any, to: Any = None) -> None:
        nonlocal busy
        if busy:
            return
        busy = True
        try:
            call = Call(name, _text(path), _text(to) if to is not None else "")
            if call.path.startswith(folder):
                act(call)
        finally:
            busy = False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in CHANGES:
            second = args[1] if event in ("os.rename", "os.symlink", "os.link") else None
            if event == "os.symlink":  # its first argument is a text; the second is what is made
                seen(CHANGES[event], args[1])
            else:
                seen(CHANGES[event], args[0], second)
        elif event in READS:
            seen(READS[event], args[0])
        elif event == "open":
            writes = args[2] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
            seen("create" if writes else "read", args[0])

    def opened(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        handle: int = REAL["open"](path, flags, *rest, **options)
        if flags & os.O_CREAT:
            try:
                seen("created", path)
            except BaseException:
                os.close(handle)
                raise
        return handle

    def fsync(handle: int) -> None:
        seen("fsync", handle)

    class InHalves(io.FileIO):
        def write(self, data: Any) -> int:
            written = super().write(bytes(data)[: max(1, len(data) // 2)])
            seen("write", self.fileno())
            return written

    def fdopen(handle: int, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if mode != "wb":
            return REAL["fdopen"](handle, mode, *rest, **options)
        return io.BufferedWriter(InHalves(handle, mode), buffer_size=1 << 20)

    def wrapped(name: str) -> Callable[..., Any]:
        def call(path: Any, *rest: Any, **options: Any) -> Any:
            seen(name, path)
            return REAL[name](path, *rest, **options)

        return call

    os.open, os.fsync, os.fdopen = opened, fsync, fdopen  # type: ignore[assignment]
    for name in WRAPPED:
        setattr(os, name, wrapped(name))
    sys.addaudithook(hook)


def _text(path: Any) -> str:
    if isinstance(path, int):
        try:
            return str(REAL["readlink"](f"/proc/self/fd/{path}"))
        except OSError:
            return f"handle {path}"
    return os.path.abspath(os.fsdecode(path))
