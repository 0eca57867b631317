"""What an apply or a revert writes, and in which order it reaches the disk.

Seen twice: through the interpreter, which works everywhere, and through strace where it may attach.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

from tests.conftest import Outcome
from tests.processes import forked, warm
from tests.robustness.conftest import Figure
from tests.robustness.interposed import Call, interpose
from tests.robustness.scene import FIXED, HARD, LINK, NEW, Scene
from tests.robustness.traced import FILES, SystemCall, system_calls, traced, why_not

pytestmark = pytest.mark.slow

TARGETS = (HARD, LINK, FIXED, NEW)
LEDGER, JOURNAL = ".patchkit/ledger.json", ".patchkit/journal.json"
LOCK, TEMPORARY = ".patchkit/lock", ".patchkit-tmp"


@dataclass(frozen=True)
class Step:
    """A call that changes something or flushes it; paths are relative to site-packages."""

    name: str
    path: str
    to: str = ""

    @property
    def entries(self) -> list[str]:
        """The paths whose entries in their folders this step changes."""
        moved = {"rename": [self.path, self.to]}
        made = ("create", "mkdir", "symlink", "remove", "rmdir")
        paths = moved.get(self.name, [self.path] if self.name in made else [])
        return [path for path in paths if TEMPORARY not in path]  # those are for one run


Steps = list[Step]
Watch = tuple[Scene, Steps]


def through_the_interpreter(scene: Scene, folder: Path) -> tuple[Outcome, Steps]:
    seen: list[tuple[str, str, str]] = []

    def note(call: Call) -> None:
        if call.changes and call.name != "created" and not _will_fail(call):
            seen.append((call.name, call.path, call.to))

    def action() -> Outcome:
        interpose(note, folder)
        outcome = scene.command()
        return Outcome(outcome.code, json.dumps(seen), outcome.err)

    outcome = forked(action)
    return outcome, [_step(scene, *row) for row in outcome.json]  # type: ignore[misc]


def _will_fail(call: Call) -> bool:
    """Whether a call that is about to be made cannot change anything."""
    there = os.path.lexists(call.path)
    if call.name == "rmdir":
        return not there or os.listdir(call.path) != []
    return there if call.name == "mkdir" else call.name == "remove" and not there


def through_strace(scene: Scene, folder: Path) -> tuple[Outcome, Steps]:
    outcome = traced(scene.command, folder / "strace.log", "-e", FILES)
    calls = system_calls(folder / "strace.log")
    return outcome, [_step(scene, *row) for call in calls for row in _read(call)]


NAMES = {
    "unlink": "remove", "unlinkat": "remove", "rmdir": "rmdir", "mkdir": "mkdir",
    "mkdirat": "mkdir", "rename": "rename", "renameat": "rename", "renameat2": "rename",
    "symlink": "symlink", "symlinkat": "symlink", "link": "link", "linkat": "link",
    "fsync": "fsync", "fdatasync": "fsync", "write": "write", "pwrite64": "write",
    "chmod": "chmod", "fchmod": "chmod", "fchmodat": "chmod", "chown": "chown",
    "fchown": "chown", "fchownat": "chown", "lchown": "chown", "utimensat": "utime",
    "truncate": "truncate", "ftruncate": "truncate",
}  # fmt: skip


def _read(call: SystemCall) -> Iterable[tuple[str, str, str]]:
    """What one system call changes; those that failed changed nothing."""
    if call.failed or not call.paths:
        return
    if call.name in ("open", "openat"):
        if re.search("O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", call.arguments):
            yield "create", call.paths[0], ""
    elif call.name == "rename":
        yield "rename", *call.paths[:2]
    elif call.name == "symlink":
        yield "symlink", call.paths[-1], ""
    elif call.name in NAMES:
        yield NAMES[call.name], call.paths[0], ""


def _step(scene: Scene, name: str, path: str, to: str) -> Step:
    def short(text: str) -> str:
        return os.path.relpath(text, scene.bench.site.resolve()) if text.startswith("/") else text

    return Step(name, short(path), short(to) if to and name != "symlink" else "")


@pytest.fixture(params=[through_the_interpreter, through_strace])
def way(request: pytest.FixtureRequest):
    if request.param is through_strace and (reason := why_not()):
        pytest.skip(reason)
    return request.param


@pytest.fixture(params=["apply", "revert", "apply-second", "revert-first"])
def watched(request: pytest.FixtureRequest, way, tmp_path: Path, monkeypatch, figure) -> Watch:
    monkeypatch.chdir(tmp_path)
    warm()
    scene = Scene(tmp_path, request.param)
    scene.reset()
    outcome, steps = way(scene, tmp_path)
    assert outcome.code == 0, outcome
    assert scene.contents() == scene.states[scene.situation.last]
    assert len(steps) > 50
    figure("system calls checked", len(steps))
    return scene, steps


def owned(path: str) -> bool:
    """Whether patchkit may write there: its state, its targets, and what lies about those."""
    if path == ".patchkit" or path.startswith(".patchkit/"):
        return True
    at = PurePosixPath(path)
    folder, name = at.parent.as_posix(), at.name
    for target in map(PurePosixPath, TARGETS):
        beside = f".{target.name}{TEMPORARY}"
        if folder == target.parent.as_posix() and name in (target.name, beside):
            return True
        cache = f"{target.parent}/__pycache__"
        bytecode = rf"\.?{target.stem}\.[^.]+(\.opt-\d)?\.pyc({re.escape(TEMPORARY)})?"
        if path == cache or (folder == cache and re.fullmatch(bytecode, name)):
            return True
    return path == PurePosixPath(NEW).parent.as_posix()


def test_nothing_is_written_that_patchkit_does_not_own(watched: Watch) -> None:
    _, steps = watched
    for step in steps:
        if step.name != "fsync":
            assert owned(step.path), step
            assert not step.to or owned(step.to), step


def test_no_target_is_written_in_place(watched: Watch) -> None:
    """A target is only ever renamed over or removed, so a hard link or a reader keeps its bytes."""
    scene, steps = watched
    files = {k for k in scene.before if scene.before[k][0] == 0o100000}
    for step in steps:
        if step.name not in ("rename", "remove", "fsync", "rmdir", "mkdir"):
            assert step.path not in TARGETS, step
            if step.path in files:
                assert step.path == LOCK, step
    assert {s.to for s in steps if s.name == "rename"} >= {HARD, FIXED}


def after(steps: Steps, position: int, wanted: Step) -> int | None:
    return next((i for i in range(position + 1, len(steps)) if steps[i] == wanted), None)


def decided(steps: Steps) -> int:
    """Where the ledger becomes the new one: from here on it says applied, or reverted."""
    return next(
        i
        for i, s in enumerate(steps)
        if (s.name == "rename" and s.to == LEDGER) or (s.name == "remove" and s.path == LEDGER)
    )


def journaled(steps: Steps) -> int:
    """Where the journal that names every file becomes valid: the last time it is written."""
    return max(i for i, s in enumerate(steps) if s.name == "rename" and s.to == JOURNAL)


def flushed(steps: Steps, first: int, last: int, *, by: int) -> None:
    """Check that what the steps from first to last change is on disk before the step ``by``."""
    for position in range(first, last):
        step = steps[position]
        if step.path == LOCK:
            continue  # nobody needs it after a power cut
        if step.name in ("write", "chmod", "chown", "utime") and _stays(steps, position):
            done = after(steps, position, Step("fsync", step.path))
            assert done is not None, f"{step} is never flushed"
            assert done < by, f"{step} is flushed too late"
        for path in step.entries:
            folder = _lasting_folder(steps, PurePosixPath(path).parent.as_posix(), position, by)
            done = after(steps, position, Step("fsync", folder))
            assert done is not None, f"{folder} is never flushed after {step}"
            assert done < by, f"{folder} is flushed too late after {step}"


def _stays(steps: Steps, position: int) -> bool:
    """Whether a file lives on: one that is removed again need not be flushed."""
    path = steps[position].path
    return not any(s.name == "remove" and s.path == path for s in steps[position:])


def _lasting_folder(steps: Steps, folder: str, position: int, by: int) -> str:
    """The folder, or the one above it when it is removed before that counts."""
    while any(s.name == "rmdir" and s.path == folder for s in steps[position:by]):
        folder = PurePosixPath(folder).parent.as_posix()
    return folder


def test_files_and_folders_are_on_disk_before_the_ledger_says_so(watched: Watch) -> None:
    _, steps = watched
    flushed(steps, 0, decided(steps), by=decided(steps))


def test_the_way_back_is_on_disk_before_the_first_file_changes(watched: Watch) -> None:
    """Originals and journal first: a power cut may come at any time."""
    _, steps = watched
    first = min(i for i, s in enumerate(steps) for p in s.entries if not p.startswith(".patchkit"))
    assert journaled(steps) < first
    flushed(steps, 0, journaled(steps) + 1, by=first)


def test_originals_outlive_the_decision(watched: Watch) -> None:
    """Nothing a roll-back needs goes before the ledger is the new one, and that is on disk."""
    _, steps = watched
    at = decided(steps)
    on_disk = after(steps, at, Step("fsync", ".patchkit"))
    assert on_disk is not None
    gone = [
        i
        for i, s in enumerate(steps)
        if s.name == "remove"
        and s.path.startswith(".patchkit/objects/")
        and TEMPORARY not in s.path
    ]
    assert all(i > on_disk for i in gone)
    assert all(i > on_disk for i, s in enumerate(steps) if s.path == JOURNAL and s.name == "rename")


def test_readers_write_nothing(tmp_path: Path, monkeypatch, way, figure: Figure) -> None:
    monkeypatch.chdir(tmp_path)
    warm()
    for command in ("status", "verify"):
        (tmp_path / command).mkdir()
        scene = Scene(tmp_path / command, command)
        scene.reset()
        outcome, steps = way(scene, tmp_path)
        assert (outcome.code, steps) == (0, [])


@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_a_whole_process_from_its_start(tmp_path: Path, figure: Figure, verb: str) -> None:
    """``strace -f python -m patchkit``, threads and children included: nothing else is written."""
    if reason := why_not():
        pytest.skip(reason)
    scene = Scene(tmp_path, verb)
    scene.reset()
    log = tmp_path / "strace.log"
    command = ["strace", "-f", "-y", "-s", "0", "-o", str(log), "-e", FILES]
    command += [sys.executable, "-m", "patchkit", *scene.situation.command]
    command += ["--site-packages", str(scene.bench.site), "--patches", str(scene.bench.patches)]
    root = Path(__file__).resolve().parents[2]
    environ = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    steps = [_step(scene, *row) for call in system_calls(log) for row in _read(call)]
    figure("system calls checked", len(steps))
    mine = [s for s in steps if not re.search(r"pipe:|/dev/", s.path)]
    assert [s for s in mine if s.name != "fsync" and not owned(s.path)] == []
    flushed(mine, 0, decided(mine), by=decided(mine))
