"""Probes against targets that misbehave: a clear outcome each, and nothing left behind."""

from __future__ import annotations

import ast
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from patchkit.probing import PROBES, Limits, ProbeOutcome, run_probe
from tests.conftest import tree

QUICK = Limits(seconds=30)
MODULE = "badly_behaved"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def _nothing_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Temporary folders go to an empty one, and no process that knows it is left."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    yield
    assert list(scratch.iterdir()) == []
    assert [p for p in processes() if str(scratch) in p] == []


def processes() -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            yield (process / "environ").read_text("utf-8", "replace")
        except OSError:
            continue


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def argument(site: Path) -> dict[str, Any]:
    path = str(site / MODULE / "__init__.py")
    return {
        "prepend": [str(site)],
        "modules": [{"name": MODULE, "path": path}],
        "load": True,
    }


def imports(site: Path, code: str, limits: Limits = QUICK, **options: Any) -> ProbeOutcome:
    """Let the import probe import a package of this code; nothing may change in its folder."""
    (site / MODULE).mkdir()
    (site / MODULE / "__init__.py").write_text(code)
    before = tree(site)
    outcome = run_probe(sys.executable, "import_probe.py", argument(site), limits=limits, **options)
    assert tree(site) == before
    return outcome


def error_of(outcome: ProbeOutcome) -> str:
    assert outcome.error == "", outcome
    (module,) = outcome.document["modules"]
    assert module["name"] == MODULE
    return str(module["error"])


def failed(outcome: ProbeOutcome, error: str, tail: str = "") -> None:
    assert (outcome.document, outcome.error) == ({}, error)
    assert tail in outcome.tail


# what is well


def test_an_import_and_its_time(site: Path) -> None:
    outcome = imports(site, "import os\n")
    assert error_of(outcome) == ""
    assert 0 < outcome.seconds < 30
    assert outcome.document["python"] == sys.version.split()[0]


def test_what_the_library_prints_is_kept_apart(site: Path) -> None:
    code = (
        "import os, sys\nprint('<patchkit>{}</patchkit>')\n"
        "os.write(1, b'<patchkit>')\nsys.stdout.flush()\n"
        "sys.__stdout__.write('{\"modules\": []}')\nos.system('echo \"<patchkit>{}\"')\n"
    )
    assert error_of(imports(site, code)) == ""


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise ValueError('no')", "ValueError: no"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import sys; sys.exit('done')", "SystemExit: done"),
        ("1 +", "SyntaxError: "),
        ("import no_such_module.x", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise type('Odd', (BaseException,), {})('x')", "Odd: x"),
    ],
)
def test_an_import_that_fails_says_why(site: Path, code: str, error: str) -> None:
    outcome = imports(site, code + "\n")
    assert error_of(outcome).startswith(error)
    missing = "no_such_module" if "no_such_module" in code else ""
    assert outcome.document["modules"][0]["missing"] == missing


def test_threads_and_exit_handlers_are_not_waited_for(site: Path) -> None:
    code = (
        "import atexit, threading, time\natexit.register(time.sleep, 600)\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
    )
    assert error_of(imports(site, code)) == ""


# torture


def test_it_leaves_early(site: Path) -> None:
    code = "import os\nprint('so far so good', flush=True)\nos._exit(0)\n"
    failed(imports(site, code), "it ended without an answer", "so far so good")


def test_it_leaves_with_an_exit_code(site: Path) -> None:
    failed(imports(site, "import os\nos._exit(7)\n"), "it ended with exit code 7")


def test_it_crashes(site: Path) -> None:
    code = "import ctypes\nctypes.string_at(0)\n"
    failed(imports(site, code), "it died of SIGSEGV", "in string_at")


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (6, "SIGABRT"), (40, "signal 40")])
def test_a_signal_ends_it(site: Path, number: int, name: str) -> None:
    failed(imports(site, f"import os\nos.kill(os.getpid(), {number})\n"), f"it died of {name}")


def test_it_hangs(site: Path) -> None:
    code = (
        "import signal, time\nprint('waiting', flush=True)\n"
        "for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(600)\n"
    )
    outcome = imports(site, code, Limits(seconds=1.5))
    failed(outcome, "it was still running after 1.5 s and was ended", "waiting")
    assert outcome.seconds < 10


def test_it_eats_memory(site: Path) -> None:
    code = (
        "import time\nx = []\nwhile len(x) < 400: x.append(b'x' * (4 << 20)); time.sleep(0.002)\n"
    )
    outcome = imports(site, code + "time.sleep(600)\n", Limits(seconds=30, memory=200 << 20))
    failed(outcome, "it took more than 200 MiB of memory and was ended")


def test_its_children_eat_memory(site: Path) -> None:
    code = "import os, time\nif not os.fork(): x = bytearray(b'x' * (300 << 20))\ntime.sleep(600)\n"
    outcome = imports(site, code, Limits(seconds=30, memory=200 << 20))
    failed(outcome, "it took more than 200 MiB of memory and was ended")


def test_it_prints_without_end(site: Path) -> None:
    code = "while True: print('x' * 100_000)\n"
    outcome = imports(site, code, Limits(seconds=30, output=10 << 20))
    failed(outcome, "it printed more than 10 MiB and was ended", "xxx")
    assert len(outcome.tail) < 10_000


@pytest.mark.parametrize(
    "code",
    [
        "import json; json.dumps = lambda *a, **k: 'rubbish'",
        "import json; json.dumps = lambda *a, **k: '[]'",
        "import json; json.dumps = lambda *a, **k: '[' * 100_000",
    ],
)
def test_json_is_broken(site: Path, tmp_path: Path, code: str) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/sitecustomize.py").write_text(code + "\n")
    environ = {"PYTHONPATH": str(tmp_path / "broken")}
    failed(imports(site, "", environ=environ), "it ended without an answer")


def test_json_cannot_be_used(site: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/sitecustomize.py").write_text("import json; json.loads = None\n")
    environ = {"PYTHONPATH": str(tmp_path / "broken")}
    outcome = imports(site, "", environ=environ)
    failed(outcome, "it ended with exit code 1", "'NoneType' object is not callable")


SPAWN = """\
import os, subprocess, sys
options = dict(start_new_session={apart}, stdin=subprocess.DEVNULL)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], **options)
with open({file!r}, "w") as note:
    note.write(str(child.pid))
"""


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("end", ["", "os._exit(3)\n", "import time; time.sleep(600)\n"])
def test_a_child_process_is_not_left_behind(
    site: Path, tmp_path: Path, apart: bool, end: str
) -> None:
    note = tmp_path / "pid"
    outcome = imports(site, SPAWN.format(apart=apart, file=str(note)) + end, Limits(seconds=3))
    assert bool(outcome.error) == bool(end)
    wait_for(lambda: not alive(int(note.read_text())))


def test_temporary_files_of_the_library_are_not_left_behind(site: Path) -> None:
    code = "import os, tempfile\nos.chmod(tempfile.mkdtemp(), 0o500)\ntempfile.mkstemp()\n"
    assert error_of(imports(site, code)) == ""


# interpreters


def script(path: Path, text: str, mode: int = 0o755) -> Path:
    path.write_text(text)
    path.chmod(stat.S_IFREG | mode)
    return path


def run_in(python: object, site: Path) -> ProbeOutcome:
    return run_probe(str(python), "import_probe.py", argument(site), limits=QUICK)


def test_no_such_interpreter(site: Path, tmp_path: Path) -> None:
    python = tmp_path / "no/python"
    failed(run_in(python, site), f"{python} does not run: No such file or directory")


def test_a_folder_for_an_interpreter(site: Path) -> None:
    failed(run_in(site, site), f"{site} does not run: Permission denied")


def test_a_file_that_is_not_a_program(site: Path, tmp_path: Path) -> None:
    python = script(tmp_path / "python", "hello\n")
    failed(run_in(python, site), f"{python} does not run: Exec format error")


def test_a_program_that_is_not_python(site: Path, tmp_path: Path) -> None:
    python = script(tmp_path / "python", '#!/bin/sh\necho "I am no python: $1"\n')
    failed(run_in(python, site), "it ended without an answer", "I am no python: -B")


def test_no_room_for_scratch(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    outcome = run_in(sys.executable, site)
    failed(outcome, f"{sys.executable} does not run: No such file or directory")


# patchkit is told to end

RUNNER = """\
import json, sys, tempfile
from patchkit.probing import run_probe
tempfile.tempdir = sys.argv[2]
run_probe(sys.executable, "import_probe.py", json.loads(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_a_signal_to_patchkit_ends_the_probe_too(
    site: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    note = tmp_path / "pid"
    (site / MODULE).mkdir()
    hang = f"import time\nopen({str(note) + '.own'!r}, 'w').write(str(os.getpid()))\n"
    hang += "time.sleep(600)\n"
    text = SPAWN.format(apart=False, file=str(note)) + hang
    (site / MODULE / "__init__.py").write_text(text)
    command = [sys.executable, "-c", RUNNER, json.dumps(argument(site)), tempfile.gettempdir()]
    process = subprocess.Popen(
        command,
        cwd=PROBES.parents[1],
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # nohup and & ignore some
    )
    own = Path(f"{note}.own")
    wait_for(lambda: own.exists() and own.read_text() != "")
    process.send_signal(number)
    assert process.wait(timeout=20) == code
    wait_for(lambda: not alive(int(note.read_text())))
    wait_for(lambda: not alive(int(own.read_text())))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# the programs


@pytest.mark.parametrize("program", sorted(p.name for p in PROBES.glob("*.py")))
def test_probes_stand_alone_and_run_on_old_interpreters(program: str) -> None:
    parsed = ast.parse((PROBES / program).read_text(), feature_version=(3, 9))
    names = {
        name.split(".")[0]
        for node in without_typing(parsed)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in (
            [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or "."]
        )
    }
    assert names <= sys.stdlib_module_names


def without_typing(tree: ast.AST) -> Iterator[ast.AST]:
    """Give every node, but for what is imported for types only."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"):
            yield node
            yield from without_typing(node)


def test_the_environment_of_a_probe(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    code = (
        "import os, json\n"
        "raise ValueError(json.dumps({k: os.environ.get(k) for k in "
        "('PYTHONHOME', 'TMPDIR', 'TORCHINDUCTOR_CACHE_DIR', 'GIVEN')}))\n"
    )
    error = error_of(imports(site, code, environ={"GIVEN": "x"}))
    found = json.loads(error.partition(": ")[2])
    assert (found["PYTHONHOME"], found["GIVEN"]) == (None, "x")
    for name in ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR"):
        assert found[name].startswith(tempfile.gettempdir() + os.sep)
