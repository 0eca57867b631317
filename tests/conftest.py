from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from patchkit.cli import main
from tests.robustness.figures import pytest_addoption, pytest_terminal_summary  # noqa: F401
from tests.wheels import flashinfer_wheel, make_wheel, unpack


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long, so that two workers end at the same time."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


A = b"""def enc(x):
    if x is None:
        return 0
    return s(x)


def dec(x):
    if x is None:
        return 0
    return u(x)
"""

PATCH = """\
schema = 1
revision = 1
title = "enc gives -1 for None"
why = "A test needs it."
links = ["https://example.org/1"]
distribution = "demo-pkg"
versions = ">=1.0,<2"

[[edit]]
file = "demo_pkg/a.py"
codemod = "replace_block"
params = { inside = "enc", old = "return 0", new = "return -1" }
"""

# Texts that reports must show without being taken in by them.
HOSTILE = [
    "</script><script>alert(1)</script><img src=x onerror=alert(1)>",
    "<![CDATA[ ]]> --> <!-- &amp; &#0; \" ' {title} %s",
    "a\n::error title=x::y\r\n::set-output name=a::b%0A::stop-commands::z",
    "nul \x00 bell \x07 escape \x1b[31mred\x1b[0m \x1b]0;title\x07 del \x7f next line \x85",
    "right to left \u202e isolate \u2066 line \u2028 mark \ufeff none \ufffe \uffff",
    "lone surrogate \udc80 \ud800",
]


@dataclass
class Outcome:
    """What one call of the command line gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)

    @property
    def states(self) -> dict[str, str]:
        return {row["id"]: row["state"] for row in self.json["patches"]}


@dataclass
class Bench:
    """A site-packages folder, patches for it, and the command line aimed at both."""

    folder: Path
    site: Path
    patches: Path

    def install(self, files: Mapping[str, bytes], name: str = "demo-pkg", version: str = "1.0"):
        return unpack(make_wheel(self.folder / "dist", name, version, files), self.site)

    def patch(self, name: str, toml: str = PATCH, **files: str) -> Path:
        folder = self.patches / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "patch.toml").write_text(toml)
        for file, text in files.items():
            (folder / file.replace("__", ".")).write_text(text)
        return folder

    def run(self, *args: str) -> Outcome:
        options = ["--site-packages", str(self.site)]
        if self.patches.is_dir():
            options += ["--patches", str(self.patches)]
            if args[0] in ("apply", "diff", "check"):
                options += ["--allow-code", str(self.patches)]
        return invoke(args[0], *options, *args[1:])

    def state(self) -> dict[str, tuple]:
        return tree(self.site)

    def refuse(self, *args: str) -> Outcome:
        """Run what must be refused: exit 1, one sentence and a hint, and nothing changed."""
        before = self.state()
        outcome = self.run(*args)
        assert outcome.code == 1, outcome
        assert_refusal(outcome)
        assert self.state() == before
        return outcome

    def read(self, path: str = "demo_pkg/a.py") -> bytes:
        return (self.site / path).read_bytes()


def assert_refusal(outcome: Outcome) -> None:
    """The shape every refusal has on stderr: ``error: `` with one sentence, then ``hint: ``."""
    assert outcome.out == ""
    lines = outcome.err.splitlines()
    assert lines[0].startswith("error: "), outcome.err
    assert len(lines[0]) > len("error: ")
    assert [line for line in lines if line.startswith("hint: ")] == lines[-1:], outcome.err
    assert "Traceback" not in outcome.err


def invoke(*args: str) -> Outcome:
    result = CliRunner().invoke(main, args)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def tree(folder: Path) -> dict[str, tuple]:
    """Path -> kind, mode, link text and sha256 of everything below a folder."""
    found: dict[str, tuple] = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        link = os.readlink(path) if path.is_symlink() else ""
        data = path.read_bytes() if path.is_file() else b""
        kind, mode = stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode)
        mtime = info.st_mtime_ns if path.is_file() and not link else 0
        row = (kind, mode, link, hashlib.sha256(data).hexdigest(), mtime)
        found[path.relative_to(folder).as_posix()] = row
    return found


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """An empty bench; the working folder holds no project of its own."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "site").mkdir()
    return Bench(tmp_path, tmp_path / "site", tmp_path / "patches")


@pytest.fixture
def demo(bench: Bench) -> Bench:
    """demo-pkg 1.0 with two functions that hold the same guard, and patch p for one of them."""
    bench.install({"demo_pkg/__init__.py": b"", "demo_pkg/a.py": A})
    bench.patch("p")
    return bench


@pytest.fixture
def flashinfer_tree(tmp_path: Path) -> Callable[[str], Path]:
    """Give a fresh site-packages folder that holds one real FlashInfer release."""
    return lambda version: unpack(flashinfer_wheel(version), tmp_path / f"fi-{version}")


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Demo in a folder that any user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="patchkit-test-"))
    folder.chmod(0o755)
    (folder / "site").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    bench = Bench(folder, folder / "site", folder / "patches")
    bench.install({"demo_pkg/__init__.py": b"", "demo_pkg/a.py": A, "demo_pkg/sub/b.py": A})
    bench.patch("p")
    yield bench
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)
