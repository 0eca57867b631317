"""Properties that must hold for whatever is generated: files, splices, ledgers, manifests."""

from __future__ import annotations

import codecs
import inspect
import itertools
import json
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from patchkit.errors import LedgerError, ManifestError, PatchError
from patchkit.ledger import (
    Bytecode,
    FileEntry,
    Ledger,
    LedgerEntry,
    compose,
    dump_ledger,
    load_ledger,
)
from patchkit.manifest import Patch, parse_patch
from patchkit.plan import Original, check_places, check_together, content, make_entry
from patchkit.source import SourceFile
from patchkit.splice import Splice, apply_splices, overlap
from tests.conftest import Bench, invoke, tree
from tests.test_manifest import toml

PATH, VERSION = "demo_pkg/a.py", Version("1.0")
SLOW = settings(
    deadline=None,
    derandomize=True,
    max_examples=120,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


# Python files


@dataclass(frozen=True)
class PythonFile:
    """A generated module: its bytes, and its functions by dotted name with what each returns."""

    data: bytes
    functions: dict[str, int]

    @property
    def is_plain(self) -> bool:
        """True when nothing in it is an excuse to refuse the file."""
        return b"\f" not in self.data

    def source(self) -> SourceFile:
        return SourceFile(PATH, self.data)


BLOCKS = [
    ["return {v}"],
    ['"""Doc."""', "return {v}"],
    ['"""Doc.', "more", '    """', "", "return {v}"],
    ["# comment", "", "x = 1; return {v}"],
    ["def g():", "{i}return 0", "return {v}"],
    ["if True:", "{i}return {v}  # why", "return 0"],
    ["x = '''a", "  b'''", "return {v}"],
    ["x = 1 + \\", "  1", "return (", "{v}", ")"],
    ["class K:", "{i}def m(self): return 0", "", "return {v}"],
    ["async def h():", "{i}return 0", "try:", "{i}return {v}", "finally:", "{i}pass"],
]
LINES = [
    "return {v}",
    '"doc"; return {v}',
    "x = 1; return {v};",
    "return {v}  # comment",
    "pass; return {v}",
]
BEFORE = [[], ["@same"], ["@same", "@same  # twice"], ["# comment"], ["", ""], ["@same", ""]]
CONTAINERS = [
    ([], []),
    (["if True:"], ["else:", "{i}pass"]),
    (["try:"], ["except E:", "{i}pass"]),
    (["class {c}:", '{i}"""Doc."""'], []),
    (["if TYPE_CHECKING:", "{i}pass", "else:"], []),
    (["with nothing:"], []),
]


def indented(lines: Iterable[str], indent: str) -> list[str]:
    """Indent code; a line that continues a string or a backslash keeps its place."""
    found, inside = [], False
    for line in lines:
        found.append(line if inside or not line else indent + line)
        if len(re.findall("'''|\"\"\"", line)) == 1:
            inside = not inside
    return found


@st.composite
def functions(draw: st.DrawFn, number: int) -> tuple[str, list[str]]:
    """Return a dotted name and the lines that define it, inside something or not."""
    indent = draw(st.sampled_from(["    ", "\t", "  "]))
    head = draw(st.sampled_from(["def", "async def"])) + f" f{number}({draw(ARGUMENTS)}):"
    if draw(st.booleans()):
        lines = [f"{head} {draw(st.sampled_from(LINES))}"]
    else:
        lines = [head, *indented(draw(st.sampled_from(BLOCKS)), indent)]
    lines = [*draw(st.sampled_from(BEFORE)), *lines]
    opening, closing = draw(st.sampled_from(CONTAINERS))
    if opening:
        lines = [*opening, *indented(lines, indent), *closing]
    values = {"v": number + 100, "i": indent, "c": f"C{number}"}
    name = f"C{number}.f{number}" if "class {c}:" in opening else f"f{number}"
    return name, [re.sub(r"\{([vic])\}", lambda m: str(values[m[1]]), line) for line in lines]


ARGUMENTS = st.sampled_from(["", "a=1", "*args", "a=1, *, b: int = 2", "**kw"])


@st.composite
def python_files(draw: st.DrawFn, feeds: bool = True) -> PythonFile:
    """Return a module with any mixture of line ends, encodings, layouts and definitions."""
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "latin-1", "cp1252"]))
    lines = draw(st.sampled_from([[], ["#!/usr/bin/env python"], ["#!/usr/bin/env python", ""]]))
    lines = lines[:1]
    if encoding in ("latin-1", "cp1252"):
        lines = [*lines, f"# -*- coding: {encoding} -*-"]
    lines = [*lines, *draw(st.sampled_from([[], ['"""Doc é."""', ""], ["é = 'ü' + \"ß\""]]))]
    if encoding.startswith("utf-8"):
        lines += draw(st.sampled_from([[], ["漢字 = '😀'"], ["# 漢", ""]]))
    header, names = len(lines), {}
    for number in range(draw(st.integers(1, 4))):
        name, more = draw(functions(number))
        names[name] = number + 100
        between = st.sampled_from([[], [""], ["", "", "# between é"], ["x = 1"]])
        lines += [*more, *draw(between)]
    if feeds and draw(st.integers(0, 5)) == 0:
        lines.insert(draw(st.integers(header, len(lines))), "\f")
    ends = draw(st.sampled_from([["\n"], ["\r\n"], ["\n", "\r\n"]]))
    text = "".join(line + draw(st.sampled_from(ends)) for line in lines)
    if draw(st.booleans()):
        text = text.rstrip("\r\n")
    return PythonFile(text.encode(encoding), names)


def run_module(data: bytes) -> tuple[dict[str, Any], list[str]]:
    """Execute a module and return its namespace and what it logs."""
    log: list[str] = []

    def decorate(function: Any) -> Any:
        log.append("decorated")
        return function

    namespace: dict[str, Any] = {
        "__name__": "demo",
        "same": lambda function: function,
        "nothing": __import__("contextlib").nullcontext(),
        "TYPE_CHECKING": False,
        "log": log.append,
        "decorate": decorate,
    }
    exec(compile(data, PATH, "exec", dont_inherit=True), namespace)
    return namespace, log


def call(namespace: dict[str, Any], name: str) -> Any:
    first, _, rest = name.partition(".")
    function = getattr(namespace[first], rest) if rest else namespace[first]
    result = function()
    if not inspect.iscoroutine(result):
        return result
    with pytest.raises(StopIteration) as stopped:
        result.send(None)
    return stopped.value.value


# Patches for them


def make_patch(patch_id: str, codemod: str, **params: Any) -> Patch:
    text = toml(edit={"file": PATH, "codemod": codemod, "params": params})
    return parse_patch(patch_id, {"patch.toml": text}, f"patches/{patch_id}")


def patches_for(file: PythonFile, name: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return id -> codemod and params of patches that each leave ``name`` returning something."""
    short = name.replace(".", "-").lower()
    return {
        f"log-{short}": ("insert_in_function", {"function": name, "new": "log('in')"}),
        f"decorate-{short}": ("add_decorator", {"function": name, "decorator": "decorate"}),
        f"again-{short}": ("add_decorator", {"function": name, "decorator": "same"}),
        f"append-{short}": ("append", {"new": f"LAST = {name!r}\n"}),
    }


def entry_for(patch: Patch, file: PythonFile) -> LedgerEntry | None:
    """Return the ledger entry, or None where the file may be refused and was."""
    try:
        return make_entry(patch, VERSION, {PATH: Original(PATH, file.data)})
    except PatchError as error:
        if file.is_plain or "not byte-preserving" not in error.message:
            raise
        return None


def ids_of(ledger: Ledger) -> frozenset[str]:
    return frozenset(entry.id for entry in ledger.entries)


def line_ends(data: bytes) -> set[bytes]:
    return set(re.findall(rb"\r\n|\r|\n", data))


def line_ends_around(data: bytes, offset: int) -> set[bytes]:
    """Return the line ends next to a place: the one before it and the one behind it."""
    before = re.findall(rb"\r\n|\r|\n", data[:offset])[-1:]
    behind = re.findall(rb"\r\n|\r|\n", data[offset:])[:1]
    return {*before, *behind} or {b"\n"}


@SLOW
@given(python_files(), st.data())
def test_one_patch_changes_what_it_says_and_nothing_else(
    file: PythonFile, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(file.functions)))
    patch_id, (codemod, params) = data.draw(
        st.sampled_from(sorted(patches_for(file, name).items()))
    )
    patch = make_patch(patch_id, codemod, **params)
    entry = entry_for(patch, file)
    if entry is None:
        return
    assert make_entry(patch, VERSION, {PATH: Original(PATH, file.data)}) == entry
    after = apply_splices(file.data, entry.splices[PATH])
    assert after.startswith(codecs.BOM_UTF8) == file.data.startswith(codecs.BOM_UTF8)
    assert after.endswith((b"\n", b"\r")) == file.data.endswith((b"\n", b"\r"))
    for splice in entry.splices[PATH]:
        assert line_ends(splice.text) <= line_ends_around(file.data, splice.start)
    assert patch.id.encode() in after
    before_names, before_log = run_module(file.data)
    names, log = run_module(after)
    assert before_log == []
    assert log == ["decorated"] * (params.get("decorator") == "decorate")
    for function, value in file.functions.items():
        log.clear()
        assert call(before_names, function) == call(names, function) == value
        assert log == (["in"] if codemod == "insert_in_function" and function == name else [])
    assert names.get("LAST") == (name if codemod == "append" else None)


@SLOW
@given(python_files(), st.data())
def test_order_does_not_matter_and_every_way_back_is_exact(
    file: PythonFile, data: st.DataObject
) -> None:
    known = {k: v for name in file.functions for k, v in patches_for(file, name).items()}
    ids = data.draw(st.lists(st.sampled_from(sorted(known)), unique=True, min_size=2, max_size=3))
    made = [entry_for(make_patch(i, known[i][0], **known[i][1]), file) for i in ids]
    entries = [entry for entry in made if entry is not None]
    original = Original(PATH, file.data)
    check_together(entries)
    check_places(entries)
    results: dict[frozenset[str], bytes | None] = {frozenset(): file.data}
    for order in itertools.permutations(entries):
        ledger = Ledger()
        for entry in order:
            ledger = ledger.with_entry(entry)
            data_now = content(ledger, original)
            assert results.setdefault(ids_of(ledger), data_now) == data_now
        for entry in order:
            ledger = ledger.without(entry.id)
            data_now = content(ledger, original)
            assert results.setdefault(ids_of(ledger), data_now) == data_now
    assert len(set(results.values())) == len(results)


@SLOW
@given(python_files(feeds=False))
def test_every_function_is_found_where_it_is(file: PythonFile) -> None:
    source = file.source()
    for name in file.functions:
        (node,) = source.functions(name)
        start, end = source.span(node)
        text = file.data[start:end].decode(source.encoding)
        assert re.match(rf"(async )?def {name.rpartition('.')[2]}\(", text)
        assert f"return {file.functions[name]}" in text or f"{file.functions[name]}" in text
        assert source.line_of(start) == 1 + len(
            re.findall(rb"\r\n|\n", file.data[: source.line_start(start)])
        )


@settings(SLOW, max_examples=15)
@given(python_files(), st.data())
def test_apply_and_revert_on_disk(file: PythonFile, data: st.DataObject) -> None:
    """Twice is once, any order of reverting goes back by the same bytes, the end is the start."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "site").mkdir()
        bench = Bench(folder, folder / "site", folder / "patches")
        bench.install({"demo_pkg/__init__.py": b"", PATH: file.data})
        known = patches_for(file, data.draw(st.sampled_from(sorted(file.functions))))
        ids = data.draw(st.permutations(sorted(known)))[:2]
        for patch_id in ids:
            codemod, params = known[patch_id]
            bench.patch(patch_id, toml(edit={"file": PATH, "codemod": codemod, "params": params}))
        states = [bench.state()]
        for patch_id in ids:
            outcome = bench.run("apply", patch_id)
            if outcome.code and not file.is_plain:
                assert bench.state() == states[-1]
                return
            assert outcome.code == 0, outcome.err
            states.append(bench.state())
            assert bench.run("apply", patch_id).code == 0
            assert bench.state() == states[-1]
        assert invoke("verify", "--site-packages", str(bench.site)).code == 0
        before = (bench.site / PATH).read_bytes()
        assert bench.run("revert", ids[0]).code == 0
        assert bench.run("apply", ids[0]).code == 0
        assert (bench.site / PATH).read_bytes() == before
        for patch_id in data.draw(st.permutations(ids)):
            assert bench.run("revert", patch_id).code == 0
        assert tree(bench.site) == states[0]


# Splices


def naive(data: bytes, splices: list[Splice]) -> bytes:
    """Walk over the bytes, one by one."""
    covered = {i for s in splices for i in range(s.start, s.end)}
    out = b""
    for i in range(len(data) + 1):
        out += b"".join(s.text for s in splices if s.start == s.end == i)
        out += b"".join(s.text for s in splices if s.start == i < s.end)
        out += b"" if i in covered else data[i : i + 1]
    return out


SPLICES = st.lists(
    st.builds(
        lambda start, length, text: Splice(start, start + length, text),
        st.integers(0, 12),
        st.integers(0, 4),
        st.binary(max_size=3),
    ),
    max_size=5,
)


@settings(SLOW, max_examples=600)
@given(st.binary(max_size=12), SPLICES)
@example(b"0123", [Splice(2, 4, b"x"), Splice(2, 2, b"<"), Splice(4, 4, b">")])
def test_splices_are_the_naive_model_or_refused(data: bytes, splices: list[Splice]) -> None:
    bad = any(overlap(a, b) for a, b in itertools.combinations(splices, 2))
    if bad or any(s.end > len(data) for s in splices):
        with pytest.raises(ValueError, match="overlaps or lies outside"):
            apply_splices(data, splices)
    else:
        assert apply_splices(data, splices) == naive(data, splices)


@settings(SLOW, max_examples=300)
@given(st.binary(min_size=12, max_size=12), st.lists(SPLICES, max_size=4))
def test_owners_compose_in_any_order(data: bytes, owned: list[list[Splice]]) -> None:
    entries = [
        LedgerEntry(f"p{i}", 1, "", "", "", "d", "1", (), (), (), {"a": tuple(splices)})
        for i, splices in enumerate(owned)
    ]
    every = [s for e in entries for s in e.splices["a"]]
    if any(overlap(a, b) for a, b in itertools.combinations(every, 2)) or any(
        s.end > len(data) for s in every
    ):
        with pytest.raises(LedgerError):
            compose(data, entries, "a")
        return
    for order in itertools.permutations(entries):
        assert compose(data, order, "a") == naive(data, every)


# Ledgers and manifests

SHA = st.binary(min_size=32, max_size=32).map(bytes.hex)
PATHS = st.sampled_from(["a.py", "demo_pkg/a.py", "demo_pkg/b c.cu", "é/漢.json"])
MODES = st.integers(0, 0o7777)
TIMES = st.integers(1 - 2**63, 2**63 - 1)
WORDS = st.lists(st.sampled_from(["a", "b-2", "import"]), max_size=2).map(tuple)


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    ledger = Ledger()
    spans = st.builds(Splice, st.integers(), st.integers(), st.binary(max_size=20))
    splices = st.dictionaries(PATHS, st.lists(spans, max_size=3).map(tuple), max_size=3)
    text = st.text(max_size=10)
    for patch_id in draw(st.lists(st.sampled_from(["a", "b", "c-1"]), unique=True)):
        fields = [draw(text) for _ in range(5)]
        words = [draw(WORDS) for _ in range(3)]
        entry = LedgerEntry(patch_id, draw(st.integers()), *fields, *words, draw(splices))
        ledger = ledger.with_entry(entry)
    bytecode = st.builds(Bytecode, PATHS, SHA, MODES, TIMES)
    for path in sorted({p for e in ledger.entries for p in e.splices}):
        file = FileEntry(
            path,
            draw(st.none() | SHA),
            draw(SHA),
            draw(MODES),
            draw(TIMES),
            draw(st.none() | st.text("a/.é", min_size=1)),
            draw(st.lists(bytecode, max_size=2).map(tuple)),
            draw(st.lists(PATHS, max_size=2).map(tuple)),
        )
        ledger = ledger.with_file(path, file)
    return ledger


@SLOW
@given(ledgers())
def test_ledger_round_trip(ledger: Ledger) -> None:
    text = dump_ledger(ledger)
    assert load_ledger(text, "x") == ledger
    assert dump_ledger(load_ledger(text, "x")) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | SHA,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)


@settings(SLOW, max_examples=150)
@given(ledgers(), st.data())
def test_edited_ledger_is_read_or_refused(ledger: Ledger, data: st.DataObject) -> None:
    """Nothing but a LedgerError, and what is read stays inside site-packages."""
    whole: Any = json.loads(dump_ledger(ledger))
    spot = whole
    for _ in range(data.draw(st.integers(0, 6))):
        keys = sorted(spot) if isinstance(spot, dict) else list(range(len(spot)))
        inner = [k for k in keys if isinstance(spot[k], (dict, list)) and spot[k]]
        if not inner:
            break
        spot = spot[data.draw(st.sampled_from(inner))]
    keys = sorted(spot) if isinstance(spot, dict) else list(range(len(spot)))
    spot[data.draw(st.sampled_from(keys))] = data.draw(JSON)
    try:
        again = load_ledger(json.dumps(whole), "x")
    except LedgerError:
        return
    assert all(".." not in file.path.split("/") for file in again.files)
    assert load_ledger(dump_ledger(again), "x") == again


@settings(SLOW, max_examples=300)
@given(st.text(max_size=40) | st.binary(max_size=40).map(lambda b: b.decode("latin-1")))
@example("\ufeff")
@example("a = 1979-05-27T07:32:00Z")
def test_manifest_of_noise(text: str) -> None:
    with pytest.raises(ManifestError):
        parse_patch("p", {"patch.toml": text})


@settings(SLOW, max_examples=200)
@given(
    st.sampled_from(
        ["schema", "revision", "title", "why", "links", "distribution", "versions", "checks"]
    ),
    st.sampled_from(["file", "versions", "codemod", "params", "matches"]),
    st.integers() | st.text(max_size=8) | st.booleans() | st.lists(st.text(max_size=3), max_size=2),
)
def test_manifest_with_one_strange_value(field: str, inner: str, strange: object) -> None:
    """A patch, or a ManifestError that names exactly the field."""
    for text, where in ((toml({field: strange}), field), (toml(edit={inner: strange}), inner)):
        try:
            patch = parse_patch("p", {"patch.toml": text})
        except ManifestError as error:
            _, *problems = error.message.splitlines()
            if {p.strip().partition(": ")[0].rpartition(".")[2] for p in problems} != {where}:
                raise
        else:
            assert patch == parse_patch("p", {"patch.toml": text.replace("\n", "\r\n")})
