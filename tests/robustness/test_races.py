"""Many processes at once, some of them killed, while others import what is patched."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from patchkit.files import make_folder
from tests.conftest import Bench, assert_refusal
from tests.processes import open_up, user
from tests.robustness.conftest import Figure
from tests.robustness.scene import Scene
from tests.robustness.sweeping import ROOT

pytestmark = pytest.mark.slow

FOREVER = 10**9


def start(role: str, folder: Path, seed: int, count: int, seconds: float) -> subprocess.Popen[str]:
    words = [role, folder, seed, count, seconds]
    command = [sys.executable, "-m", "tests.robustness.racers", *map(str, words)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str]) -> tuple[list[str], int]:
    out, err = process.communicate()
    if process.returncode:
        return [f"ended with {process.returncode}: {err[-2000:]}"], 0
    wrong, done = json.loads(out)
    return wrong, done


def wait_for(file: Path, number: int, process: subprocess.Popen[str]) -> None:
    """Return when a patcher is that far, or has ended."""
    while process.poll() is None:
        if file.exists() and int(file.read_text() or 0) >= number:
            return


def without_bytecode(bench: Bench) -> dict[str, tuple]:
    return {k: v for k, v in bench.state().items() if "__pycache__" not in k}


def test_case_20_many_at_once(tmp_path: Path, monkeypatch, figure: Figure, long: bool) -> None:
    monkeypatch.chdir(tmp_path)
    patchers, importers, count, seconds = (32, 4, FOREVER, 60.0) if long else (6, 2, 25, 0.0)
    scene = Scene(tmp_path, "apply")
    scene.reset()
    bench, pristine = scene.bench, without_bytecode(scene.bench)
    watching = [
        start("importer", tmp_path, i, FOREVER, seconds and FOREVER) for i in range(importers)
    ]
    racing = [start("patcher", tmp_path, i, count, seconds) for i in range(patchers)]
    doomed = [start("patcher", tmp_path, 100 + i, FOREVER, 0) for i in range(2)]
    for number, process in enumerate(doomed):
        wait_for(tmp_path / f"progress-{100 + number}", 3 + number, process)
        process.kill()
        process.communicate()
    results = [ended(process) for process in racing]
    (tmp_path / "stop").touch()
    seen = [ended(process) for process in watching]
    figure("processes raced", len(racing) + len(watching) + len(doomed))
    figure("imports watched", sum(done for _, done in seen))
    wrong = [text for found, _ in [*results, *seen] for text in found]
    figure("lost", len(wrong))

    assert wrong == []
    assert all(process.returncode == -9 for process in doomed)
    assert all(done > 0 for _, done in [*results, *seen])
    assert bench.run("apply", "p").code == 0
    assert bench.run("revert", "q").code == 0
    assert scene.contents() == scene.states[("p",)]
    assert bench.run("verify").code == 0
    assert bench.run("revert", "--all").code == 0
    assert without_bytecode(bench) == pristine
    assert not (bench.site / ".patchkit").exists()
    assert [*scene.nothing_lost()] == []


def test_a_folder_that_another_process_removes_meanwhile(tmp_path: Path, monkeypatch) -> None:
    """It is there when it is to be made, and gone when it is looked at: it is made again."""
    folder, really = tmp_path / "new", os.mkdir
    folder.mkdir()

    def mkdir(path, *more, **options):
        try:
            really(path, *more, **options)
        finally:
            monkeypatch.setattr(os, "mkdir", really)
            folder.rmdir()

    monkeypatch.setattr(os, "mkdir", mkdir)
    make_folder(folder)
    assert folder.is_dir()


def has_open(process: int, file: Path) -> bool:
    """Whether a process has a file open now."""
    try:
        return any(handle.samefile(file) for handle in Path(f"/proc/{process}/fd").iterdir())
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="there is no /proc to look into")
def test_a_lock_whose_owner_was_killed(tmp_path: Path, monkeypatch) -> None:
    """The lock is the kernel's: it goes with its process, and its file alone stops nobody."""
    monkeypatch.chdir(tmp_path)
    scene = Scene(tmp_path, "apply")
    scene.reset()
    hold = (
        "import fcntl, os, sys\n"
        "os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)\n"
        "handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(handle, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    lock = scene.bench.site / ".patchkit/lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout
    assert holder.stdout.readline() == b"held\n"
    apply = [sys.executable, "-m", "patchkit", "apply", "p", "--site-packages"]
    apply += [str(scene.bench.site), "--patches", str(scene.bench.patches)]
    waiting = subprocess.Popen(apply, env={**os.environ, "PYTHONPATH": str(ROOT)})
    while waiting.poll() is None and not has_open(waiting.pid, lock):
        pass
    assert waiting.poll() is None, "it did not wait"
    holder.kill()
    holder.communicate()
    assert waiting.wait() == 0
    assert scene.contents() == scene.states[("p",)]
    assert [*scene.all_back()] == []


@pytest.fixture
def everybodys(shared: Bench) -> Bench:
    """A site-packages in which every user may make files, as on some shared hosts."""
    for path in [shared.site, shared.site / "demo_pkg"]:
        path.chmod(0o777)
    return shared


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of two users")
def test_a_lock_of_another_user(everybodys: Bench) -> None:
    """Who may not write the lock is told so, and whose it is; who may only read can still look."""
    before = everybodys.state()
    assert everybodys.run("apply", "p").code == 0
    patched = everybodys.state()
    assert stat.S_IMODE((everybodys.site / ".patchkit/lock").stat().st_mode) == 0o644
    for command in (["revert", "p"], ["revert", "--all"]):
        outcome = user(everybodys, *command)
        assert outcome.code == 1
        assert_refusal(outcome)
        assert f"cannot lock {everybodys.site}/.patchkit/lock: Permission denied" in outcome.err
        assert "Run as the user that owns the environment" in outcome.err
        assert everybodys.state() == patched
    for command in ("status", "verify"):
        assert user(everybodys, command).code == 0
    assert user(everybodys, "apply", "p").code == 0, "it is applied already"
    open_up(everybodys.folder)
    assert user(everybodys, "revert", "--all").code == 0
    assert everybodys.state() == before
