"""A forked child under strace: the system calls it really makes, or errors and kills in them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import Outcome

# Everything that looks at files or changes them; sleeping, memory and signals are left out.
FILES = "trace=%file,%desc"


def why_not() -> str:
    """Why strace cannot be used here, or ''."""
    strace = shutil.which("strace")
    if strace is None:
        return "strace is not installed"
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    tracer = subprocess.Popen(
        [strace, "-qq", "-o", os.devnull, "-p", str(child)], stderr=subprocess.PIPE
    )
    attached = _attached(child, tracer)
    os.kill(child, signal.SIGCONT)
    os.waitpid(child, 0)
    _, problem = tracer.communicate()
    return "" if attached else f"strace may not attach here: {problem.decode().strip()}"


def traced(action: Callable[[], Outcome], log: Path, *options: str) -> Outcome:
    """Run ``action`` in a forked child that strace sees from its first call on."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.kill(os.getpid(), signal.SIGSTOP)
            outcome = action()
            text = json.dumps([outcome.code, outcome.out, outcome.err])
        except BaseException as error:
            text = json.dumps([70, "", f"{type(error).__name__}: {error}"])
        while text:
            with contextlib.suppress(OSError):  # an error that was meant for somebody else
                text = text.encode()[os.write(writing, text.encode()) :].decode()
        os._exit(0)
    os.close(writing)
    os.waitpid(child, os.WUNTRACED)
    command = ["strace", "-f", "-qq", "-y", "-s", "0", "-o", str(log), *options, "-p", str(child)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        assert _attached(child, tracer), tracer.stderr and tracer.stderr.read()
    finally:
        os.kill(child, signal.SIGCONT)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    tracer.communicate()
    if os.WIFSIGNALED(status):
        return Outcome(-os.WTERMSIG(status), "", "")
    return Outcome(*json.loads(text))


def _attached(child: int, tracer: subprocess.Popen[bytes]) -> bool:
    """Wait until the tracer has its child, or has given up."""
    while tracer.poll() is None:
        status = Path(f"/proc/{child}/status").read_text()
        if "TracerPid:\t0\n" not in status:
            return True
    return False


@dataclass(frozen=True)
class SystemCall:
    """One line of strace's: the call, its arguments as strace writes them, and what it gave."""

    name: str
    arguments: str
    result: str

    @property
    def failed(self) -> bool:
        return self.result.startswith("-1")

    @property
    def injected(self) -> bool:
        return "(INJECTED)" in self.result

    @property
    def paths(self) -> list[str]:
        """The paths named in the arguments, and those of handles in them."""
        return re.findall(r'"(/[^"]*)"', self.arguments) + re.findall(r"\d<(/.*?)>", self.arguments)


LINE = re.compile(r"\d+ +(\w+)\((.*)\) += (.*)$")


def system_calls(log: Path) -> Iterator[SystemCall]:
    """Read what strace wrote."""
    for line in log.read_text(errors="replace").splitlines():
        if found := LINE.match(line):
            yield SystemCall(*found.groups())
