"""What the sweeps work on: one environment, four situations, and what must hold after anything."""

from __future__ import annotations

import os
import py_compile
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import PATCH, A, Bench, Outcome, invoke, tree
from tests.processes import forked

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


@dataclass(frozen=True)
class Situation:
    """What is applied first, the command that is disturbed, and what a whole run leaves applied."""

    first: tuple[str, ...]
    command: tuple[str, ...]
    last: tuple[str, ...]


SITUATIONS = {
    "apply": Situation((), ("apply", "p"), ("p",)),
    "revert": Situation(("p",), ("revert", "p"), ()),
    "apply-second": Situation(("p",), ("apply", "q"), ("p", "q")),
    "revert-first": Situation(("p", "q"), ("revert", "p"), ("q",)),
    "status": Situation(("p", "q"), ("status",), ("p", "q")),
    "verify": Situation(("p", "q"), ("verify",), ("p", "q")),
}

Contents = dict[str, "bytes | None"]


class Scene:
    """A bench with a hard link, a symbolic link, a read-only file and bytecode, put up quickly."""

    def __init__(self, folder: Path, situation: str) -> None:
        self.bench = Bench(folder, folder / "site", folder / "patches")
        self.situation = SITUATIONS[situation]
        for name, toml in PATCHES.items():
            self.bench.patch(name, toml)
        self.states = {ids: self._contents_with(ids) for ids in ((), ("p",), ("q",), ("p", "q"))}
        self._build()
        self.pristine, self.cache = self.bench.state(), tree(folder / "cache")
        if self.situation.first:
            self._must("apply", *self.situation.first)
        self.before = self.bench.state()
        self._template = folder / "template"
        for name in ("site", "cache"):
            shutil.copytree(folder / name, self._template / name, symlinks=True)

    def reset(self) -> None:
        """Put up the environment as it is before the command."""
        for name in ("site", "cache"):
            shutil.rmtree(self.bench.folder / name, ignore_errors=True)
            shutil.copytree(self._template / name, self.bench.folder / name, symlinks=True)
        if not self.situation.first:
            self._link()

    def _build(self) -> None:
        site, cache = self.bench.site, self.bench.folder / "cache"
        for folder in (site, cache):
            shutil.rmtree(folder, ignore_errors=True)
        cache.mkdir()
        self.bench.install({"demo_pkg/__init__.py": b"", HARD: A, LINK: B, FIXED: A})
        (site / LINK).rename(cache / "link.py")
        (site / LINK).symlink_to(cache / "link.py")
        (site / FIXED).chmod(0o444)
        for path in (HARD, FIXED):
            os.utime(site / path, (10**9, 10**9))
        for level in (0, 1):
            py_compile.compile(str(site / HARD), optimize=level)
        py_compile.compile(str(site / "demo_pkg/__init__.py"))  # this one stays
        self._link()

    def _link(self) -> None:
        """Make a target and its twin in the cache one file with two names."""
        hard = self.bench.folder / "cache/hard.py"
        hard.unlink(missing_ok=True)
        os.link(self.bench.site / HARD, hard)

    def _contents_with(self, ids: tuple[str, ...]) -> Contents:
        self._build()
        if ids:
            self._must("apply", *ids)
        return self.contents()

    def _must(self, *args: str) -> None:
        outcome = self.bench.run(*args)
        assert outcome.code == 0, outcome

    def contents(self) -> Contents:
        """The bytes of every file that patches change."""
        paths = {path: self.bench.site / path for path in PRISTINE}
        return {k: p.read_bytes() if p.exists() else None for k, p in paths.items()}

    def disturbed(self, disturb: Callable[[], None]) -> Outcome:
        """Run the command in a forked child in which ``disturb`` was called first."""

        def action() -> Outcome:
            disturb()
            return self.command()

        return forked(action)

    def command(self) -> Outcome:
        """Run the command, with no file-system call of the tests' own."""
        verb, *ids = self.situation.command
        folders = ("--site-packages", self.bench.site, "--patches", self.bench.patches)
        return invoke(verb, *map(str, folders), *ids)

    # What must hold

    def nothing_lost(self) -> Iterator[str]:
        """Every file is one of those that there can be, and the cache is as it was."""
        for path, data in self.contents().items():
            if data not in [state[path] for state in self.states.values()]:
                yield f"{path} is torn or lost"
        if tree(self.bench.folder / "cache") != self.cache:
            yield "the cache was changed"

    def readers_say_so(self) -> Iterator[str]:
        """Commands that only read answer, and write nothing."""
        now = self.bench.state()
        for command in ("status", "verify"):
            outcome = forked(lambda: self.bench.run(command))  # noqa: B023
            yield from badly_said(command, outcome)
        if self.bench.state() != now:
            yield "status or verify wrote something"

    def same_again(self) -> Iterator[str]:
        """The same command does what it would have done."""
        outcome = self.bench.run(*self.situation.command)
        if outcome.code != 0:
            yield f"again: {outcome}"
        if self.contents() != self.states[self.situation.last]:
            yield "again: the bytes are not those of a whole run"
        if self.situation.last and (outcome := self.bench.run("verify")).code != 0:
            yield f"verify: {outcome}"

    def all_back(self) -> Iterator[str]:
        """Reverting brings back everything as it was, and leaves nothing else."""
        outcome = self.bench.run("revert", "--all")
        if outcome.code != 0:
            yield f"revert: {outcome}"
        now = self.bench.state()
        different = sorted(k for k in {*now, *self.pristine} if now.get(k) != self.pristine.get(k))
        if different:
            yield f"revert: not as before: {different}"
        if tree(self.bench.folder / "cache") != self.cache:
            yield "revert: the cache was changed"

    def aftermath(self, number: int) -> list[str]:
        """What is wrong after a disturbance; what is tried next goes with its number."""
        found = [*self.nothing_lost()]
        if number % 3 == 0:
            found += self.readers_say_so()
        if number % 2 == 0:
            found += self.same_again()
        return [*found, *self.all_back()]


def badly_said(command: str, outcome: Outcome) -> Iterator[str]:
    """What is wrong with how a command ended: exit 0, or exit 1 with its reason."""
    if outcome.code not in (0, 1) or "Traceback" in outcome.out + outcome.err:
        yield f"{command}: {outcome}"
    if outcome.code == 1 and not outcome.out:
        lines = outcome.err.splitlines()
        if not lines or not lines[0].startswith("error: ") or len(lines[0]) < 15:
            yield f"{command}: exit 1 without a reason: {outcome}"
