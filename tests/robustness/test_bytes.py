"""Generated Python files under every codemod: no byte changes but those of what is edited."""

from __future__ import annotations

import ast
import io
import re
import tempfile
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libcst as cst
import pytest
from hypothesis import strategies as st
from packaging.version import Version

from patchkit.codemods import CODEMODS
from patchkit.errors import PatchError
from patchkit.manifest import Patch, parse_patch
from patchkit.plan import Original, make_entry
from patchkit.splice import apply_splices
from tests.conftest import Bench
from tests.robustness.conftest import Figure
from tests.robustness.exploring import explore
from tests.robustness.test_corpus import compared, functions, parsed
from tests.test_manifest import toml
from tests.test_properties import indented, python_files

PATH, VERSION = "demo_pkg/a.py", Version("1.0")
FAKE = "def fake(**arguments):\n    return arguments\n"


@dataclass(frozen=True)
class Named:
    """A function of a generated file: dotted name, how often it is defined, what it takes."""

    name: str
    count: int
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Module:
    data: bytes
    named: tuple[Named, ...]

    @property
    def may_be_refused(self) -> bool:
        """Whether LibCST, or tokenize, loses something of it by itself; then it must be refused."""
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(self.data).readline)
            text = self.data.decode(encoding)
            return cst.parse_module(text).code != text
        except (cst.ParserSyntaxError, SyntaxError):
            return True


# {n} is a number, {i} the indentation, {v} what the function gives.
PIECES: list[tuple[list[str], list[tuple[str, int, tuple[str, ...]]]]] = [
    (
        [
            "@overload",
            "def f{n}(x: int) -> int: ...",
            "@overload",
            "def f{n}(x: str) -> str: ...",
            "def f{n}(x):",
            "{i}return {v}",
        ],
        [("f{n}", 3, ("x",))],
    ),
    (
        [
            "if TYPE_CHECKING:",
            "{i}def f{n}(x): ...",
            "else:",
            "{i}def f{n}(x):",
            "{i}{i}return {v}",
        ],
        [("f{n}", 2, ("x",))],
    ),
    (
        ["try:", "{i}import nothing", "except ImportError:", "{i}def f{n}(x): return {v}"],
        [("f{n}", 1, ("x",))],
    ),
    (
        [
            "def f{n}(x, *rest):",
            '{i}"""Doc of f{n}."""',
            "{i}def g(y=1):",
            "{i}{i}return {v}",
            "{i}return g()",
        ],
        [("f{n}", 1, ("x", "*rest")), ("f{n}.g", 1, ("y",))],
    ),
    (
        [
            "class C{n}(object):",
            "{i}class D:",
            "{i}{i}async def m(self): return {v}",
            "",
            "{i}@property",
            "{i}def p(self):",
            "{i}{i}'doc'",
            "{i}{i}return {v}",
            "{i}@p.setter",
            "{i}def p(self, value): pass",
            "{i}x = 1",
        ],
        [("C{n}.D.m", 1, ("self",)), ("C{n}.p", 2, ())],
    ),
    (
        [
            "@same",
            "# between",
            "@same(",
            "{i}1,",
            ")",
            "async def f{n}(a: int = (1,",
            "   2), *, b='''",
            "def f{n}(x): return 0",
            "''') -> int:",
            "{i}# first a comment",
            "",
            "{i}return {v}  # why",
        ],
        [("f{n}", 1, ("a", "*", "b"))],
    ),
    (
        ["défi{n} = lambda x: x", "def ünï{n}(ä): 'doc'; x = 'é'; return {v};"],
        [("ünï{n}", 1, ("ä",))],
    ),
    (
        ["def f{n}(x):", "{i}if x:", "{i}{i}return {v}", "{i}else:", "{i}{i}return \\", "1"],
        [("f{n}", 1, ("x",))],
    ),
    (
        ["text{n} = '''", "def f{n}(x):", "    return {v}", "'''", "def f{n}(x):", "{i}return {v}"],
        [("f{n}", 1, ("x",))],
    ),
    (
        ["def f{n}(x):", "{i}with x as y, \\", "{i}{i}{i}x as z:", "{i}{i}return {v}", "{i}#end"],
        [("f{n}", 1, ("x",))],
    ),
    (["def f{n}(x):", "\f{i}return {v}"], [("f{n}", 1, ("x",))]),
    (["\f", "def f{n}(x):", "{i}return {v}"], [("f{n}", 1, ("x",))]),
]  # fmt: skip


@st.composite
def modules(draw: st.DrawFn) -> Module:
    """A file that Python accepts, with what real files hold and tools lose."""
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "latin-1"]))
    lines = draw(st.sampled_from([[], ["#!/usr/bin/env python3"]]))[:]
    lines += ["# vim: set fileencoding=latin-1 :"] if encoding == "latin-1" else []
    lines += draw(st.sampled_from([[], ['"""Doc é."""'], ["# ü", ""], ["from x import (", "y)"]]))
    named = []
    for number in range(draw(st.integers(1, 3))):
        piece, names = draw(st.sampled_from(PIECES[:-2] + PIECES))
        values = {
            "n": number,
            "i": draw(st.sampled_from(["    ", "\t", "  ", "   ", "\t "])),
            "v": number + 100,
        }
        lines += [line.format(**values) for line in piece]
        named += [Named(name.format(**values), *more) for name, *more in names]
        lines += draw(st.sampled_from([[], [""], ["", "", "# é"], ["x = 1"], ["\t", "    "]]))
    ends = draw(st.sampled_from([["\n"], ["\r\n"], ["\n", "\r\n"], ["\n", "\r\n", "\r"]]))
    text = "".join(line + draw(st.sampled_from(ends)) for line in lines)
    if draw(st.booleans()):
        text = text.rstrip("\r\n")
    return Module(text.encode(encoding), tuple(named))


def edits_of(named: Named) -> dict[str, dict[str, Any]]:
    """The params of every codemod that edits a function, or the file around it."""
    function = {"function": named.name}
    short = named.name.rpartition(".")[2]
    takes = [*named.parameters]
    found: dict[str, dict[str, Any]] = {
        "insert_in_function": {**function, "new": "_patchkit_was_here = 1"},
        "add_decorator": {**function, "decorator": "decorate"},
        "append": {"new": "LAST = 1\nMORE = 2\n"},
        "replace_block": {"inside": named.name, "old": "return", "new": "return  0,"},
    }
    if named.parameters:  # else there are two kinds of it, which take different things
        whole = f"def {short}(x):\n    if x:\n        return 1\n\n    return '''\n  2'''\n"
        found["replace_function"] = {**function, "parameters": takes, "new": whole}
        body = "if 1:\n    return 1\nreturn 2\n"
        found["replace_body"] = {**function, "parameters": takes, "new": body, "part": "body"}
    return found


def make(named: Named, codemod: str, params: dict[str, Any], matches: int | None = None) -> Patch:
    count = matches or (1 if codemod == "append" else named.count)
    real = codemod if codemod in CODEMODS else "replace_function"
    text = toml(edit={"file": PATH, "codemod": real, "params": params, "matches": count})
    return parse_patch("p", {"patch.toml": text, "fake.py": FAKE}, "patches/p")


def test_every_codemod_leaves_the_rest_alone(figure: Figure, long: bool) -> None:
    used = set()

    @explore(figure, 400, 6000, long, modules(), st.data())
    def check(module: Module, data: st.DataObject) -> None:
        tree = parsed(module.data)
        assert tree is not None, module.data
        named = data.draw(st.sampled_from(module.named))
        codemod, params = data.draw(st.sampled_from(sorted(edits_of(named).items())))
        used.add(codemod)
        if codemod == "replace_block" and (count := returns(module.data, tree, named.name)):
            patch = make(named, codemod, params, count)
        else:
            patch = make(named, codemod, params)
        try:
            entry = make_entry(patch, VERSION, {PATH: Original(PATH, module.data)})
        except PatchError as error:
            if not module.may_be_refused and not refusable(error, codemod):
                raise
            return
        assert make_entry(patch, VERSION, {PATH: Original(PATH, module.data)}) == entry
        after = apply_splices(module.data, entry.splices[PATH])
        assert parsed(after) is not None
        check_outside(module, tree, named, codemod, after)
        if codemod == "insert_in_function":
            assert [*compared(module.data, after, tree, named.name)] == ["edited"]
        for splice in entry.splices[PATH]:
            inserted = set(re.findall(rb"\r\n|\r|\n", splice.text))
            assert inserted <= ends_around(module.data, splice.start, splice.end)

    assert used >= {"insert_in_function", "add_decorator", "append", "replace_function"}


def refusable(error: PatchError, codemod: str) -> bool:
    """Whether a clear refusal is right: what the patch says does not go with the file."""
    words = ["broken line behind its colon", "would not compile after the edit"]
    words += ["matched 0 places"] * (codemod == "replace_block")
    return any(word in error.message for word in words)


def nodes(tree: ast.Module, name: str) -> list[ast.FunctionDef]:
    return [node for node, found in functions(tree) if found == name]


def returns(data: bytes, tree: ast.Module, name: str) -> int:
    """How often the word is in the definitions of a function, decorators left out."""
    return sum(
        data[lines_of(data)[n.lineno - 1] : end_of(data, n)].count(b"return")
        for n in nodes(tree, name)
    )


def lines_of(data: bytes) -> list[int]:
    return [0, *(found.end() for found in re.finditer(rb"\r\n|\r|\n", data))]


def end_of(data: bytes, node: ast.stmt) -> int:
    lines = [*lines_of(data), len(data)]
    return lines[node.end_lineno or 0]


def check_outside(
    module: Module, tree: ast.Module, named: Named, codemod: str, after: bytes
) -> None:
    """All that lies before the first and behind the last definition is as it was."""
    data = module.data
    if codemod == "append":
        assert after.startswith(data)
        return
    found = nodes(tree, named.name)
    first = min(d.lineno for n in found for d in [n, *n.decorator_list])
    start = lines_of(data)[first - 1]
    behind = data[max(end_of(data, n) for n in found) :]
    assert after.startswith(data[:start])
    assert after.endswith(behind)


def ends_around(data: bytes, start: int, end: int) -> set[bytes]:
    """The line ends of the line before, of those replaced, and of the line behind."""
    before = re.findall(rb"\r\n|\r|\n", data[:start])[-1:]
    behind = re.findall(rb"\r\n|\r|\n", data[end:])[:1]
    return {*before, *re.findall(rb"\r\n|\r|\n", data[start:end]), *behind} or {b"\n"}


def test_wrapped_operators_leave_the_rest_alone(figure: Figure, long: bool) -> None:
    params = {
        "function": "f",
        "parameters": ["x"],
        "namespace": "demo_ns",
        "op": "f",
        "schema": "(Tensor x) -> Tensor",
        "snippets": ["fake.py"],
    }
    named = Named("f", 1, ("x",))

    @explore(figure, 60, 1000, long, python_files())
    def check(file: Any) -> None:
        end = b"\r\n" if b"\r\n" in file.data else b"\n"
        shut = file.data if file.data.endswith(b"\n") else file.data + end
        data = shut + end.join([b"def f(x):", b"    return x", b"last = 1"])
        try:
            patch = make(named, "wrap_custom_op", params)
            entry = make_entry(patch, VERSION, {PATH: Original(PATH, data)})
        except PatchError:
            if not Module(data, ()).may_be_refused:
                raise
            return
        after = apply_splices(data, entry.splices[PATH])
        assert after.startswith(shut)
        assert after.endswith(end.join([b"def f(x):", b"    return x", b"last = 1"]))
        assert parsed(after) is not None
        assert b"\n" not in after[len(shut) :].replace(end, b"")


def test_added_files_take_nothing_from_their_neighbours(figure: Figure, long: bool) -> None:
    text = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=60)

    @explore(figure, 60, 1000, long, text)
    def check(new: str) -> None:
        patch = make(Named("", 1, ()), "add_file", {"new": f"# {new!r}\n'''x'''\nX = 1"})
        entry = make_entry(patch, VERSION, {PATH: Original(PATH, None)})
        (splice,) = entry.splices[PATH]
        assert splice.text.endswith(f"# {new!r}\n'''x'''\nX = 1".encode())


@pytest.mark.slow
def test_on_disk_there_and_back(figure: Figure, long: bool) -> None:
    """Twice is once, the order of patches does not matter, the way back ends where it began."""

    @explore(figure, 20, 150, long, modules(), st.data())
    def check(module: Module, data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve()
            (folder / "site").mkdir()
            bench = Bench(folder, folder / "site", folder / "patches")
            bench.install({"demo_pkg/__init__.py": b"", PATH: module.data})
            ids = put_patches(bench, module, data)
            start = bench.state()
            results = set()
            for order in (ids, ids[::-1]):
                applied = [i for i in order if bench.run("apply", i).code == 0]
                assert module.may_be_refused or applied
                state = bench.state()
                assert all(bench.run("apply", i).code == 0 for i in applied)
                assert bench.state() == state
                results.add((frozenset(applied), (bench.site / PATH).read_bytes()))
                for patch_id in data.draw(st.permutations(applied)):
                    assert bench.run("revert", patch_id).code == 0
                assert bench.state() == start
            if len({ids for ids, _ in results}) == 1:
                assert len(results) == 1


def put_patches(bench: Bench, module: Module, data: st.DataObject) -> list[str]:
    """Patches that do not meet: one of each kind that only inserts."""
    named = data.draw(st.sampled_from(module.named))
    params = edits_of(named)
    for codemod in ("insert_in_function", "add_decorator", "append"):
        count = 1 if codemod == "append" else named.count
        edit = {"codemod": codemod, "params": params[codemod], "matches": count}
        bench.patch(codemod.replace("_", "-"), toml(edit=edit))
    return ["insert-in-function", "add-decorator", "append"]


def test_pieces_are_what_they_say() -> None:
    """Each piece, by itself and indented, holds the functions that it names."""
    for piece, names in PIECES:
        lines = [line.format(n=0, i="    ", v=1) for line in piece]
        for text in ("\n".join(lines), "\n".join(["if 1:", *indented(lines, "  ")])):
            tree = parsed(text.encode())
            if tree is None:
                continue
            for name, count, _ in names:
                assert len(nodes(tree, name.format(n=0))) == count
