"""Disturbs patchkit at one call after another, and looks at what comes next.

``python -m tests.robustness.sweeps '{"kind": ..., "situation": ..., "folder": ...}'`` prints JSON:
how many points were tried, and what was wrong after any of them. A warm process forks a child for
every run that is to be disturbed, and gives the other commands itself. A process that is killed
does not lose what it gave to the kernel, so ``os.fsync`` need not wait for the disk here; nor need
the same manifests be parsed a thousand times.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import json
import os
import pickle
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchkit.manifest import tomllib
from patchkit.store import TEMPORARY
from tests.conftest import Outcome
from tests.processes import warm
from tests.robustness.interposed import Call, interpose
from tests.robustness.scene import Scene, badly_said
from tests.robustness.traced import system_calls, traced

ERRORS = ("ENOSPC", "EIO", "EACCES", "EROFS", "EDQUOT", "EPERM")
LOOKS = ("stat", "lstat", "fstat", "readlink")


def can_fail(call: Call, name: str) -> bool:
    """Say whether a kernel gives this error to such a call."""
    if call.name == "created":
        return False
    if name in ("ENOSPC", "EDQUOT"):
        return call.takes_space
    if name in ("EROFS", "EPERM"):
        return call.changes and call.name not in ("write", "fsync")
    if name == "EACCES":
        return call.name not in ("write", "fsync", "flock", *LOOKS)
    return True


@dataclass
class Sweep:
    """One situation, disturbed at one point after another."""

    scene: Scene
    below: Path
    points: int = 0
    wrong: dict[str, list[str]] = field(default_factory=dict)

    def point(self, name: str, found: list[str]) -> None:
        self.points += 1
        if self.points % 50 == 0:
            gc.collect()
        found += self.scene.aftermath(self.points)
        if found:
            self.wrong[name] = found

    # Kills

    def kill(self, name: str, *disturbances: Callable[[], None]) -> bool:
        """Cut the command off, and what follows it too; says whether it was still running."""
        self.scene.reset()
        for disturb in disturbances:
            if self.scene.disturbed(disturb).code >= 0:
                return False
        self.point(name, [])
        return True

    def at_call(self, number: int) -> Callable[[], None]:
        left = number

        def act(call: Call) -> None:
            nonlocal left
            left -= call.changes
            if call.changes and left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        return lambda: interpose(act, self.below)

    def kills(self, stride: int, twice: int) -> None:
        """At every call, in every write, and twice: at a call of the run and of the next one."""
        call = 1
        while self.kill(f"call {call}", self.at_call(call)):
            call += stride
        for size in range(0, 6000, 311 * stride):
            self.kill(f"byte {size}", lambda: at_byte(size))  # noqa: B023
        for percent in (50, 75, 95) if twice else ():
            first = call * percent // 100
            for second in range(percent % 7 + 1, call, twice):
                name = f"calls {first} and {second}"
                self.kill(name, self.at_call(first), self.at_call(second))

    # Faults

    def fail(self, name: str, disturb: Callable[[], None], *, lasting: bool) -> None:
        """Let a call fail."""
        self.scene.reset()
        reading, writing = os.pipe()

        def watched() -> None:
            os.close(reading)
            os.environ["PATCHKIT_TEST_FAULT"] = str(writing)
            disturb()

        outcome = self.scene.disturbed(watched)
        os.close(writing)
        reached = os.read(reading, 1000).decode()
        os.close(reading)
        if reached:
            self.point(f"{name} {reached}", [*self.said(outcome, lasting)])

    def said(self, outcome: Outcome, lasting: bool) -> Iterator[str]:
        """How the command itself must have ended."""
        scene = self.scene
        yield from badly_said("disturbed", outcome)
        now, state = scene.contents(), scene.situation
        whole = (scene.states[state.first], scene.states[state.last])
        if outcome.code == 0 and now != whole[1]:
            yield f"exit 0, and not what was asked for: {outcome}"
        pending = (scene.bench.site / ".patchkit/journal.json").exists()
        if outcome.code != 1:
            return
        if pending and "interrupted" not in scene.bench.run("status").out:
            yield f"status does not say that there is a run to roll back: {outcome}"
        if pending and now != whole[1] and "Rolling back failed too" not in outcome.err:
            yield f"a run is left half-done, and nobody said so: {outcome}"
        if not pending and now not in whole:
            yield f"neither all nor nothing: {outcome}"
        if not pending and now == whole[0] != whole[1]:
            yield from self.changed(outcome, lasting)

    def changed(self, outcome: Outcome, lasting: bool) -> Iterator[str]:
        """What is no longer as before; what cannot be removed now may lie about, if its own."""
        before, after = self.scene.before, self.scene.bench.state()
        names = sorted(k for k in {*before, *after} if before.get(k) != after.get(k))
        if lasting:
            names = [k for k in names if not k.startswith(".patchkit") and TEMPORARY not in k]
        if names:
            yield f"changed: {names}: {outcome}"

    def failing(self, number: int, name: str, lasting: bool) -> Callable[[], None]:
        left, code, broken = number, getattr(errno, name), set[Call]()

        def act(call: Call) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                broken.add(call)
                text = f"{call.name} {call.path}"[:1000]
                os.write(int(os.environ["PATCHKIT_TEST_FAULT"]), text.encode())
            full = any(c.changes for c in broken) and call.changes and can_fail(call, name)
            if left == 0 or (lasting and (full or call in broken)):
                raise OSError(code, os.strerror(code), call.path)

        return lambda: interpose(act, self.below)

    def calls(self) -> list[Call]:
        """The calls of a whole run."""
        notes = self.below / "calls.txt"
        assert self.scene.command().code == 0  # so that nothing is left to be imported
        self.scene.reset()

        def recorded() -> None:
            file = notes.open("w")
            interpose(lambda call: print(call.name, call.path, file=file, flush=True), self.below)

        assert self.scene.disturbed(recorded).code == 0
        return [Call(*line.split(" ", 1)) for line in notes.read_text().splitlines()]

    def faults(self, every: bool, stride: int) -> None:
        """At each call every error that it can give; once, and from there on as a full disk does,
        or a folder that cannot be listed.

        The shorter run gives one of ``stride`` calls that change something, and a third as many of
        the others, one error in turn, and every second time a lasting one.
        """
        changing = 0
        for number, call in enumerate(self.calls(), 1):
            errors = [name for name in ERRORS if can_fail(call, name)]
            lasts = call.changes or call.name in ("listdir", "scandir")
            if every:
                for name in errors:
                    self.fault(name, number, lasting=False)
                    if lasts:
                        self.fault(name, number, lasting=True)
                continue
            changing += call.changes
            if errors and (changing % stride if call.changes else number % (3 * stride)) == 0:
                name = errors[number // 2 % len(errors)]
                self.fault(name, number, lasting=lasts and number // stride % 2 == 0)

    def fault(self, name: str, number: int, *, lasting: bool) -> None:
        how = f"{name} {'from' if lasting else 'at'} call {number}"
        self.fail(how, self.failing(number, name, lasting), lasting=lasting)

    def full_disk(self, stride: int) -> None:
        """A real file system, with ever more room left on it, until the command succeeds."""
        filler, room = self.below / "filler", 0
        while True:
            self.scene.reset()
            fill(filler, room)
            outcome = self.scene.disturbed(lambda: None)
            now = self.scene.contents()
            found = [*self.said(outcome, lasting=True)]
            filler.unlink()
            if outcome.code == 0 and now == self.scene.states[self.scene.situation.last]:
                return
            self.point(f"{room} bytes free: {outcome.err}", found)
            room += 1024 * stride

    # The same with real system calls, where strace may attach

    def traced(self, *options: str) -> Outcome:
        scene, log = self.scene, self.below / "strace.log"
        scene.reset()
        return traced(scene.command, log, *options)

    def traced_calls(self) -> list[tuple[str, int]]:
        """The system calls of a whole run: name, and the how many-th of that name it is."""
        assert self.scene.command().code == 0  # so that nothing is left to be imported
        assert self.traced("-e", CALLS).code == 0
        found, counted = [], Counter[str]()
        for call in system_calls(self.below / "strace.log"):
            counted[call.name] += 1
            if call.name not in ("lseek", "ioctl", "getcwd") and "pipe:" not in call.arguments:
                found.append((call.name, counted[call.name]))
        return found

    def traced_kills(self, stride: int) -> None:
        """Killed on entering every system call for files."""
        for name, number in self.traced_calls()[::stride]:
            inject = f"inject={name}:signal=SIGKILL:when={number}"
            outcome = self.traced("-e", f"trace={name}", "-e", inject)
            if outcome.code < 0:
                self.point(f"{name} {number}", [])

    def traced_faults(self, stride: int) -> None:
        """Each error at every system call that can give it; interrupted calls are made again."""
        calls = self.traced_calls()
        errors = [(*call, error) for call in calls for error in errors_of(call[0])]
        for name, number, error in errors[::stride]:
            inject = f"inject={name}:error={error}:when={number}"
            outcome = self.traced("-e", f"trace={name}", "-e", inject)
            hit = [c for c in system_calls(self.below / "strace.log") if c.injected]
            if not hit:
                continue
            found = [*self.said(outcome, lasting=False)]
            if error == "EINTR" and outcome.code == 1:
                found.append(f"an interrupted call was not made again: {outcome}")
            self.point(f"{error} at {name} {number}: {[c.paths for c in hit]}", found)


CALLS = "trace=%file,%desc"
SYSTEM_ERRORS = {
    "open|openat": "EIO EACCES ENOSPC EROFS EMFILE",
    "stat|lstat|fstat|newfstatat|statx|readlink|readlinkat": "EIO",
    "read|pread64": "EIO EINTR",
    "getdents64": "EIO",
    "write|pwrite64": "ENOSPC EIO EDQUOT EINTR",
    "fsync|fdatasync": "EIO ENOSPC EINTR",
    "rename|renameat|renameat2": "ENOSPC EIO EROFS EACCES",
    "unlink|unlinkat|rmdir": "EIO EROFS EACCES",
    "mkdir|mkdirat|symlink|symlinkat": "ENOSPC EIO EROFS EACCES",
    "chmod|fchmod|fchmodat|chown|fchown|fchownat|utimensat": "EIO EROFS EPERM",
    "flock": "EIO ENOLCK EINTR",
}


def errors_of(name: str) -> list[str]:
    """The errors that a system call can give."""
    return next((e.split() for n, e in SYSTEM_ERRORS.items() if name in n.split("|")), [])


def fill(file: Path, room: int) -> None:
    """Use up a file system, but for that many bytes."""
    with file.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(1024))
    os.truncate(file, max(0, file.stat().st_size - room))


def at_byte(number: int) -> None:
    """The kernel ends the process when it writes beyond this many bytes of any file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def once(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Parse a text only once; every caller has a copy of its own."""
    parsed = functools.cache(lambda text: pickle.dumps(parse(text)))
    return lambda text: pickle.loads(parsed(text))


def main(text: str) -> None:
    asked = json.loads(text)
    folder = Path(asked.pop("folder"))
    os.chdir(folder)
    warm()
    gc.freeze()  # children need not copy what they do not change
    gc.disable()
    os.fsync = lambda handle: None  # type: ignore[assignment]
    tomllib.loads = once(tomllib.loads)
    sweep = Sweep(Scene(folder, asked.pop("situation")), folder)
    getattr(sweep, asked.pop("kind"))(**asked)
    print(json.dumps({"points": sweep.points, "wrong": sweep.wrong}))


if __name__ == "__main__":
    main(*sys.argv[1:])
