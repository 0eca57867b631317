"""Running probes: a fresh process in the target interpreter, bounded in time and memory.

A probe that dies, hangs, prints rubbish or eats memory gives a failed outcome with the tail of
its output. All its processes are ended, however it goes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

PROBES = Path(__file__).resolve().parent / "probes"
_FLAGS = ("-B", "-X", "faulthandler")
_TAIL_LINES = 12
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Limits:
    """How long a probe may run (seconds), what its processes may hold and may print (bytes)."""

    seconds: float = 300.0
    memory: int = 16 << 30
    output: int = 64 << 20


@dataclass(frozen=True)
class ProbeOutcome:
    """What a probe gave: its JSON object, or what went wrong with the tail of its output."""

    document: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    tail: str = ""
    seconds: float = 0.0


def run_probe(
    python: str,
    program: str,
    argument: Mapping[str, Any],
    *,
    flags: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    limits: Limits | None = None,
) -> ProbeOutcome:
    """Run ``probes/<program>`` in the target interpreter and return its JSON object.

    The probe gets a scratch folder for every cache it may write, and writes no bytecode. Where
    patchkit is told to end while it runs, it is ended first.
    """
    started = time.monotonic()
    try:
        with _scratch_folder() as scratch, _signals_unwind():
            command = [python, *_FLAGS, *flags, str(PROBES / program), json.dumps(argument)]
            outcome = _probe(command, scratch, environ or {}, limits or Limits())
    except OSError as problem:
        outcome = ProbeOutcome(error=f"{python} does not run: {problem.strerror or problem}")
    return replace(outcome, seconds=time.monotonic() - started)


def _probe(
    command: Sequence[str], scratch: str, environ: Mapping[str, str], limits: Limits
) -> ProbeOutcome:
    output, errors = Path(scratch, "stdout"), Path(scratch, "stderr")
    with output.open("wb") as out, errors.open("wb") as err:
        error = _run(command, out, err, _environ(scratch, environ), limits)
    document = _document(output)
    if document is not None and not error:
        return ProbeOutcome(document)
    return ProbeOutcome({}, error or "it ended without an answer", _tail(errors) or _tail(output))


@contextmanager
def _scratch_folder() -> Iterator[str]:
    """Give a temporary folder; in the end it is gone, and all processes that know it are."""
    with tempfile.TemporaryDirectory(
        prefix="patchkit-probe-", ignore_cleanup_errors=True
    ) as scratch:
        try:
            yield scratch
        finally:
            _end_strays(scratch)


def _end_strays(scratch: str) -> None:
    """End processes that left the probe's group, by the folder's name in their environment."""
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if scratch.encode() in environ.read_bytes():
                os.kill(int(environ.parent.name), signal.SIGKILL)


@contextmanager
def _signals_unwind() -> Iterator[None]:
    """Let SIGTERM and SIGHUP leave through the finally clauses, as Ctrl-C does."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _environ(scratch: str, extra: Mapping[str, str]) -> dict[str, str]:
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TRITON_CACHE_DIR": "triton",
        "FLASHINFER_WORKSPACE_BASE": "flashinfer",
        "XDG_CACHE_HOME": "cache",
        "CUDA_CACHE_PATH": "cuda",
        "TMPDIR": "tmp",
    }
    made = {name: os.path.join(scratch, folder) for name, folder in caches.items()}
    for folder in made.values():
        os.makedirs(folder)
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONHOME"}
    made |= {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**kept, **made, **extra}


def _run(
    command: Sequence[str],
    out: IO[bytes],
    err: IO[bytes],
    environ: Mapping[str, str],
    limits: Limits,
) -> str:
    """Run to the end or to a limit; returns what went wrong, or ''."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        env=environ,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + limits.seconds
        while (code := _wait(process)) is None:
            if time.monotonic() > deadline:
                return f"it was still running after {limits.seconds:g} s and was ended"
            if _memory(process.pid) > limits.memory:
                return f"it took more than {limits.memory >> 20} MiB of memory and was ended"
            if _written(out, err) > limits.output:
                return f"it printed more than {limits.output >> 20} MiB and was ended"
        return _death(code)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(timeout=_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _written(*files: IO[bytes]) -> int:
    return sum(os.fstat(file.fileno()).st_size for file in files)


def _death(code: int) -> str:
    if code < 0:
        known = [s.name for s in signal.Signals if s == -code]
        return f"it died of {known[0] if known else f'signal {-code}'}"
    return f"it ended with exit code {code}" if code else ""


def _memory(group: int) -> int:
    """Return the resident bytes of all processes of a session (0 where /proc does not tell)."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(page * resident for session, resident in _processes() if session == group)


def _processes() -> Iterator[tuple[int, int]]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat.read_text("utf-8", "replace").rpartition(")")[2].split()
            yield int(fields[3]), int(fields[21])


def _document(output: Path) -> Mapping[str, Any] | None:
    text = output.read_text("utf-8", "replace")
    body = text.rpartition("<patchkit>")[2].partition("</patchkit>")
    if not body[1]:
        return None
    try:
        document = json.loads(body[0])
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _tail(output: Path) -> str:
    lines = output.read_bytes()[-20_000:].decode("utf-8", "replace").strip().splitlines()
    return "\n".join(line[:400] for line in lines[-_TAIL_LINES:])
