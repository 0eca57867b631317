"""Runs sweeps in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.robustness.conftest import Figure

ROOT = Path(__file__).resolve().parents[2]


def sweep(folder: Path, kind: str, situation: str, figure: Figure, name: str, **more: int) -> int:
    """Disturb a command at one point after another; returns how many there were."""
    asked = {"kind": kind, "situation": situation, "folder": str(folder), **more}
    command = [sys.executable, "-m", "tests.robustness.sweeps", json.dumps(asked)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    figure(name, found["points"])
    figure("lost", len(found["wrong"]))
    assert not found["wrong"], json.dumps(found["wrong"], indent=1)[:8000]
    return int(found["points"])
