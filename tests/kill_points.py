"""Kills patchkit at every system call that changes something, and looks at what comes next.

``python -m tests.kill_points SCENARIO FOLDER STRIDE`` prints JSON: how many points there were and
what was wrong after any of them. What comes next is the same command again and then a revert, or
at every second point the revert alone; the stride thins out the points. One warm process forks a
child for every run that is to be killed. The child calls the real code; it is given kill points
(audit events of the interpreter, which come before a call, and the ends of ``os.open`` and
``os.fsync``), nothing is replaced. A killed process does not lose what it gave to the kernel, so
``os.fsync`` need not wait for the disk here.
"""

from __future__ import annotations

import json
import os
import py_compile
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.conftest import PATCH, A, Bench, Outcome, tree
from tests.processes import forked, warm

B = A + b"# b\n"
HARD, LINK, FIXED, NEW = "demo_pkg/a.py", "demo_pkg/l.py", "demo_pkg/sub/r.py", "demo_pkg/n/n.py"
PRISTINE = {HARD: A, LINK: B, FIXED: A, NEW: None}

EDIT = (
    '[[edit]]\nfile = "{}"\ncodemod = "replace_block"\n'
    'params = {{ inside = "{}", old = "return 0", new = "return {}" }}\n'
)
HEAD = PATCH.partition("[[edit]]")[0]
ADD = f'[[edit]]\nfile = "{NEW}"\ncodemod = "add_file"\nparams = {{ new = "X = 1\\n" }}\n'
PATCHES = {
    "p": HEAD + "".join(EDIT.format(f, "enc", -1) for f in (HARD, LINK, FIXED)) + ADD,
    "q": HEAD + EDIT.format(HARD, "dec", -2) + EDIT.format(FIXED, "dec", -2),
}

# What is applied first, the command that is killed, and the patches that it leaves applied.
SCENARIOS: dict[str, tuple[list[str], list[str], list[str]]] = {
    "apply": ([], ["apply", "p"], ["p"]),
    "revert": (["p"], ["revert", "p"], []),
    "apply-second": (["p"], ["apply", "q"], ["p", "q"]),
    "revert-first": (["p", "q"], ["revert", "p"], ["q"]),
}


def build(bench: Bench) -> None:
    """A fresh site-packages with a hard link, a symbolic link, a read-only file and bytecode."""
    for folder in (bench.site, bench.folder / "cache"):
        shutil.rmtree(folder, ignore_errors=True)
    (bench.folder / "cache").mkdir()
    files = {"demo_pkg/__init__.py": b"", HARD: A, LINK: B, FIXED: A}
    bench.install(files)
    os.link(bench.site / HARD, bench.folder / "cache/hard.py")
    (bench.site / LINK).rename(bench.folder / "cache/link.py")
    (bench.site / LINK).symlink_to(bench.folder / "cache/link.py")
    (bench.site / FIXED).chmod(0o444)
    for path in files:
        os.utime(bench.site / path, (10**9, 10**9))
    py_compile.compile(str(bench.site / HARD))
    py_compile.compile(str(bench.site / HARD), optimize=1)


class KillPoint:
    """Ends this process at the n-th system call that changes something."""

    EVENTS = frozenset(
        f"os.{name}"
        for name in ("remove", "rename", "mkdir", "rmdir", "symlink", "chmod", "chown", "utime")
    )

    def __init__(self, number: int) -> None:
        self.left = number

    def install(self) -> None:
        really_open = os.open

        def opened(path, flags, *rest, **options):
            handle = really_open(path, flags, *rest, **options)
            if flags & os.O_CREAT:
                self.count()
            return handle

        os.open = opened
        os.fsync = lambda handle: self.count()
        sys.addaudithook(self.hook)

    def hook(self, event: str, args: tuple) -> None:
        if event in self.EVENTS or (event == "open" and args[2] & os.O_CREAT):
            self.count()

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def at_call(number: int) -> Callable[[], None]:
    return KillPoint(number).install


def at_byte(number: int) -> Callable[[], None]:
    """The kernel ends the process when it writes beyond this many bytes of any file."""

    def install() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)

    return install


def run(bench: Bench, *args: str, kill: Callable[[], None] | None = None) -> Outcome:
    """Run a command here, or in a forked child that is to be killed."""
    if kill is None:
        return bench.run(*args)

    def action() -> Outcome:
        kill()
        return bench.run(*args)

    return forked(action)


def reference(bench: Bench) -> dict[str, dict[str, bytes | None]]:
    """The bytes of every file with each set of patches applied."""
    states = {}
    for patches in ([], ["p"], ["q"], ["p", "q"]):
        build(bench)
        if patches:
            assert run(bench, "apply", *patches).code == 0
        states["".join(patches)] = contents(bench)
    return states


def contents(bench: Bench) -> dict[str, bytes | None]:
    paths = {path: bench.site / path for path in PRISTINE}
    return {k: p.read_bytes() if p.exists() else None for k, p in paths.items()}


class Trial:
    """One scenario, cut off at one point after another."""

    def __init__(self, bench: Bench, scenario: str) -> None:
        self.bench = bench
        self.applied, self.command, self.after = SCENARIOS[scenario]
        self.states = reference(bench)
        self.points = 0
        self.wrong: dict[str, list[str]] = {}
        self.pristine: dict[str, tuple] = {}
        self.cache: dict[str, tuple] = {}

    def prepare(self) -> None:
        build(self.bench)
        self.pristine, self.cache = self.bench.state(), tree(self.bench.folder / "cache")
        if self.applied:
            assert run(self.bench, "apply", *self.applied).code == 0

    def point(self, name: str, *kills: Callable[[], None]) -> bool:
        """Cut the command off, and what follows it too; says whether it was still running."""
        self.prepare()
        for kill in kills:
            if run(self.bench, *self.command, kill=kill).code >= 0:
                return False
        self.points += 1
        found = [*self.torn()]
        if self.points % 2:
            found += self.finish()
        found += self.revert()
        if found:
            self.wrong[name] = found
        return True

    def torn(self) -> Iterator[str]:
        now = contents(self.bench)
        for path, data in now.items():
            if data not in [state[path] for state in self.states.values()]:
                yield f"{path} is torn or lost"
        if tree(self.bench.folder / "cache") != self.cache:
            yield "the cache was changed"
        for command in ("status", "verify") if self.points % 3 == 0 else ():
            if (outcome := run(self.bench, command)).code not in (0, 1):
                yield f"{command}: {outcome}"

    def finish(self) -> Iterator[str]:
        again = run(self.bench, *self.command)
        if again.code != 0:
            yield f"again: {again}"
        if contents(self.bench) != self.states["".join(self.after)]:
            yield "again: the bytes are not those of a whole run"
        if self.after and (outcome := run(self.bench, "verify")).code != 0:
            yield f"verify: {outcome}"

    def revert(self) -> Iterator[str]:
        outcome = run(self.bench, "revert", "--all")
        if outcome.code != 0:
            yield f"revert: {outcome}"
        now = self.bench.state()
        different = sorted(k for k in {*now, *self.pristine} if now.get(k) != self.pristine.get(k))
        if different:
            yield f"revert: not as before: {different}"
        if tree(self.bench.folder / "cache") != self.cache:
            yield "revert: the cache was changed"


def sweep(trial: Trial, stride: int) -> None:
    """Cut off at every call, within writes, and twice: at a call of the run and of the next."""
    call = 1
    while trial.point(f"call {call}", at_call(call)):
        call += stride
    for size in range(0, 6000, 311 * stride):
        trial.point(f"byte {size}", at_byte(size))
    for percent in (50, 75, 95):
        first = call * percent // 100
        for second in range(percent % 7 + 1, call, 7 * stride):
            trial.point(f"calls {first} and {second}", at_call(first), at_call(second))


def main(scenario: str, folder: str, stride: str) -> None:
    bench = Bench(Path(folder), Path(folder) / "site", Path(folder) / "patches")
    os.chdir(folder)
    warm()
    os.fsync = lambda handle: None
    for name, toml in PATCHES.items():
        bench.patch(name, toml)
    trial = Trial(bench, scenario)
    sweep(trial, int(stride))
    print(json.dumps({"points": trial.points, "wrong": trial.wrong}))


if __name__ == "__main__":
    main(*sys.argv[1:])
