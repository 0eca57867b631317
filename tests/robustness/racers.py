"""Processes that race: ``python -m tests.robustness.racers ROLE FOLDER SEED COUNT SECONDS``.

A ``patcher`` gives one command after another; an ``importer`` imports the patched files again and
again, in this process and now and then in a fresh one. Both stop after COUNT rounds when SECONDS
is 0, else after SECONDS, and print JSON: what went wrong, and how many rounds there were.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.robustness.scene import FIXED, HARD, LINK

COMMANDS = (
    "apply p",
    "apply q",
    "apply p q",
    "revert p",
    "revert q",
    "revert --all",
    "status",
    "verify",
    "diff p",
)
# What enc(None) and dec(None) may give, in any state that a file may be in.
WHOLE = {(0, 0), (-1, 0), (0, -2), (-1, -2)}


def rounds(count: int, seconds: float, stop: Path) -> Iterator[int]:
    end, number = time.monotonic() + seconds, 0
    while (time.monotonic() < end if seconds else number < count) and not stop.exists():
        yield number
        number += 1


def patcher(folder: Path, seed: int, count: int, seconds: float) -> tuple[list[str], int]:
    from tests.conftest import Bench

    bench, wrong, done = Bench(folder, folder / "site", folder / "patches"), [], 0
    dice = random.Random(seed)
    for number in rounds(count, seconds, folder / "stop"):
        command = dice.choice(COMMANDS)
        outcome = bench.run(*command.split())
        fails = outcome.code not in (0, 1) or (outcome.code == 1 and command != "verify")
        if fails or "Traceback" in outcome.err or "interrupted" in outcome.out:
            wrong.append(f"{command}: {outcome}")
        done = number + 1
        (folder / f"progress-{seed}").write_text(str(done))
    return wrong, done


def importer(folder: Path, seed: int, count: int, seconds: float) -> tuple[list[str], int]:
    sys.path.insert(0, str(folder / "site"))
    sys.dont_write_bytecode = seed % 2 == 0
    names = [path.removesuffix(".py").replace("/", ".") for path in (HARD, LINK, FIXED)]
    modules, wrong, done = [importlib.import_module(name) for name in names], [], 0
    for number in rounds(count, seconds, folder / "stop"):
        try:
            for module in modules:
                importlib.invalidate_caches()
                importlib.reload(module)
                if (seen := (module.enc(None), module.dec(None))) not in WHOLE:
                    wrong.append(f"{module.__name__} gave {seen}")
            if number % 200 == 0:
                fresh()
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")
        done = number + 1
    return wrong, done


def fresh() -> None:
    """Import in a process of its own, which writes and reads bytecode."""
    code = "import demo_pkg.a, demo_pkg.l, demo_pkg.sub.r"
    environ = {**os.environ, "PYTHONPATH": sys.path[0]}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)


def main(role: str, folder: str, seed: str, count: str, seconds: str) -> None:
    os.chdir(folder)
    run = {"patcher": patcher, "importer": importer}[role]
    wrong, done = run(Path(folder), int(seed), int(count), float(seconds))
    print(json.dumps([wrong, done]))


if __name__ == "__main__":
    main(*sys.argv[1:])
