"""Processes for tests: forked children of this warm one, without root's powers or cut off."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from patchkit.cli import main  # noqa: F401  (warm, so that children need not read it)
from tests.conftest import Bench, Outcome, invoke

NOBODY = 65534
KILLED = Outcome(-signal.SIGKILL, "", "")


def forked(action: Callable[[], Outcome]) -> Outcome:
    """Run ``action`` in a forked child; a child that a signal ended has a negative code."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            outcome = action()
            text = json.dumps([outcome.code, outcome.out, outcome.err])
        except BaseException as error:
            text = json.dumps([70, "", f"{type(error).__name__}: {error}"])
        with os.fdopen(writing, "w") as pipe:
            pipe.write(text)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return Outcome(-os.WTERMSIG(status), "", "")
    return Outcome(*json.loads(text))


def unprivileged(*args: str) -> Outcome:
    """Run the command line as a user whom permission bits stop, also where tests run as root.

    The caller makes the folders accessible with :func:`open_up` first.
    """
    warm()

    def action() -> Outcome:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        return invoke(*args)

    return forked(action)


def user(bench: Bench, *args: str) -> Outcome:
    """Run a command on a bench as the user of :func:`unprivileged`."""
    options = ["--site-packages", str(bench.site), "--patches", str(bench.patches)]
    return unprivileged(args[0], *options, *args[1:])


def open_up(folder: Path) -> None:
    """Give a folder and all below it to the user of :func:`unprivileged`."""
    if os.geteuid() == 0:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def warm() -> None:
    """Import all that a command may need: a child may have no right to read those files."""
    import codecs

    import libcst.metadata

    for encoding in ("ascii", "latin-1", "utf-8-sig", "idna", "unicode_escape"):
        codecs.lookup(encoding)
    libcst.metadata.MetadataWrapper(libcst.parse_module("x = 1")).resolve(
        libcst.metadata.ByteSpanPositionProvider
    )
    for module in ("applying", "reverting", "inspection", "codemods", "locate", "bytecode"):
        __import__(f"patchkit.{module}")
    sys.stdout.flush()
