"""Real Python files, through the rewriter: read exactly or refused, edited in one place only.

The default run takes a fixed sample; ``--long`` takes every file of the standard library, of torch
and other installed libraries, and of a wheel of transformers, and edits every fourth.
"""

from __future__ import annotations

import ast
import codecs
import fcntl
import hashlib
import importlib.util
import subprocess
import sys
import sysconfig
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from packaging.version import Version

from patchkit.errors import PatchError
from patchkit.manifest import parse_patch
from patchkit.plan import Original, make_entry
from patchkit.source import SourceFile
from patchkit.splice import apply_splices
from tests.robustness.conftest import Figure
from tests.test_manifest import toml
from tests.wheels import CACHE

pytestmark = pytest.mark.slow

LIBRARIES = ("torch", "sympy", "hypothesis", "networkx")
SAMPLE, SHARDS, LONG_SHARDS = 40, 2, 24
TRANSFORMERS = "4.57.1"
NEW = "_patchkit_was_here = 1"


@dataclass(frozen=True)
class Item:
    """One file of the corpus."""

    name: str
    read: Callable[[], bytes]

    @property
    def place(self) -> int:
        """A number that only its name gives, to pick and to divide files by."""
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "big")


def in_folder(name: str, folder: Path) -> Iterator[Item]:
    for path in sorted(folder.rglob("*.py")):
        short = path.relative_to(folder).as_posix()
        if "site-packages" not in short and path.is_file():
            yield Item(f"{name}/{short}", path.read_bytes)


def standard_library() -> list[Item]:
    return [*in_folder("stdlib", Path(sysconfig.get_path("stdlib")))]


def installed() -> Iterator[Item]:
    for name in LIBRARIES:
        found = importlib.util.find_spec(name)
        if found and found.origin:
            yield from in_folder(name, Path(found.origin).parent)


def transformers() -> Iterator[Item]:
    """The files of a wheel, fetched once for all; nothing where it cannot be."""
    CACHE.mkdir(parents=True, exist_ok=True)
    pattern = f"transformers-{TRANSFORMERS}-*.whl"
    with (CACHE / "transformers.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(CACHE.glob(pattern)):
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", CACHE]
            subprocess.run([*command, f"transformers=={TRANSFORMERS}"], capture_output=True)
    for wheel in CACHE.glob(pattern):
        archive = zipfile.ZipFile(wheel)
        for name in archive.namelist():
            if name.endswith(".py"):
                yield Item(name, partial(archive.read, name))


def sample() -> list[Item]:
    found = [*standard_library(), *installed()]
    return sorted(found, key=lambda item: item.place)[:SAMPLE]


def everything() -> list[Item]:
    return [*standard_library(), *installed(), *transformers()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "shard" in metafunc.fixturenames:
        shards = LONG_SHARDS if metafunc.config.getoption("--long") else SHARDS
        metafunc.parametrize("shard", [f"{i + 1}of{shards}" for i in range(shards)])


def test_every_file_is_exact_or_refused(shard: str, figure: Figure, long: bool) -> None:
    number, _, count = shard.partition("of")
    items = everything() if long else sample()
    mine = [item for item in items if item.place % int(count) == int(number) - 1]
    tried: Counter[str] = Counter()
    wrong = {}
    for item in mine:
        for what in check(item.read(), edit=not long or item.place % 4 == 0):
            tried[what] += 1
            if what not in ("exact", "refused", "edited"):
                wrong[item.name] = what
    figure("files round-tripped", tried["exact"])
    figure("files refused", tried["refused"])
    figure("files edited", tried["edited"])
    figure("lost", len(wrong))
    assert wrong == {}
    assert tried["exact"] >= 0.9 * len(mine) > 0


def test_what_libcst_does_not_reproduce_is_refused() -> None:
    for data in (
        b"x = 1\ry = 2\r",
        b"x=1\n\x0cdef f():\n    pass\n",
        b"x = '\xe9'\n",
        b"def f(:\n",
    ):
        assert [*check(data)] == ["refused"]


def check(data: bytes, *, edit: bool = True) -> Iterator[str]:
    """Read a file, then put a statement into one of its functions."""
    source = SourceFile("demo_pkg/a.py", data)
    try:
        code = source.module.code
    except PatchError:
        yield "refused"
        return
    bom = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    yield "exact" if bom + code.encode(source.encoding) == data else "not reproduced"
    tree = parsed(data) if edit else None
    names = Counter(dict(functions(tree)).values()) if tree else Counter()
    if tree is None or not names:
        return
    name = min(names, key=lambda n: hashlib.sha256(n.encode() + data).digest())
    try:
        after = edited(data, name, names[name])
    except PatchError as error:
        yield "edited" if "broken line behind its colon" in error.message else f"{name}: {error}"
        return
    yield from compared(data, after, tree, name)


def compared(data: bytes, after: bytes, tree: ast.Module, name: str) -> Iterator[str]:
    """Say what is wrong with an edit, judged by other means than the rewriter's own."""
    result = parsed(after)
    if result is None:
        yield f"{name}: no longer compiles"
        return
    for node, qualname in functions(result):
        if qualname == name:
            inserted = [s for s in node.body if ast.unparse(s) == NEW]
            if len(inserted) != 1:
                yield f"{name}: inserted {len(inserted)} times"
                return
            place = node.body.index(inserted[0])
            node.body.remove(inserted[0])
            if place != begins_with_text(node):
                yield f"{name}: not the first statement"
                return
    if ast.dump(result) != ast.dump(tree):
        yield f"{name}: the code around it changed"
        return
    lines = {bytes(line) for line in data.splitlines(keepends=True)}
    fresh = [line for line in after.splitlines(keepends=True) if line not in lines]
    ends = {line[len(line.rstrip(b"\r\n")) :] for line in lines}
    if not {line[len(line.rstrip(b"\r\n")) :] for line in fresh} <= ends:
        yield f"{name}: a line end that the file does not have"
        return
    yield "edited"


def begins_with_text(node: ast.FunctionDef) -> bool:
    first = node.body[0]
    texts = (str, bytes)
    return (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, texts)
    )


def parsed(data: bytes) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(data, "a.py", "exec", dont_inherit=True)
            return ast.parse(data)
        except (SyntaxError, ValueError, RecursionError):
            return None


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[ast.FunctionDef, str]]:
    """Every function with its dotted name, found by Python's own parser."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if not isinstance(node, ast.ClassDef):
                yield node, prefix + node.name  # type: ignore[misc]
            yield from functions(node, f"{prefix}{node.name}.")
        else:
            yield from functions(node, prefix)


def edited(data: bytes, name: str, matches: int) -> bytes:
    """The file with a statement first in a function, by a patch."""
    edit = {"codemod": "insert_in_function", "params": {"function": name, "new": NEW}}
    text = toml(edit={**edit, "matches": matches})
    patch = parse_patch("p", {"patch.toml": text}, "patches/p")
    path = "demo_pkg/a.py"
    entry = make_entry(patch, Version("1.0"), {path: Original(path, data)})
    return apply_splices(data, entry.splices[path])
