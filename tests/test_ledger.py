from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from patchkit.errors import LedgerError
from patchkit.ledger import (
    Bytecode,
    FileEntry,
    FileState,
    Ledger,
    LedgerEntry,
    compose,
    dump_ledger,
    file_state,
    load_ledger,
)
from patchkit.splice import Splice

ONE, TWO, THREE = (hashlib.sha256(t).hexdigest() for t in (b"1", b"2", b"3"))
A, B = "demo_pkg/a.py", "demo_pkg/b.py"


def entry(patch_id: str = "p", **splices: tuple[Splice, ...]) -> LedgerEntry:
    """Return an entry; a keyword is a file of demo_pkg."""
    return LedgerEntry(
        id=patch_id,
        revision=2,
        digest="abc",
        title="Títle",
        link="https://example.org/1",
        distribution="demo-pkg",
        version="1.0+cu130",
        checks=("import",),
        conflicts=("q",),
        requires=("r", "s"),
        splices={f"demo_pkg/{k}.py": v for k, v in splices.items()},
    )


FULL = Ledger(
    (
        entry("a", a=(Splice(0, 0, b"\xff\x00\r\n\xed\xb2\x80"), Splice(3, 9, "é😀".encode()))),
        entry("b", a=(), b=(Splice(5, 5, b""),)),
    ),
    (
        FileEntry(A, ONE, TWO, 0o644, 123456789, "../x\udcff/a.py", (), ()),
        FileEntry(
            B,
            None,
            THREE,
            0o755,
            0,
            None,
            (Bytecode("demo_pkg/__pycache__/b.cpython-311.pyc", ONE, 0o600, 5),),
            ("demo_pkg/new", "demo_pkg/new/er"),
        ),
    ),
)


def document() -> dict[str, Any]:
    return json.loads(dump_ledger(FULL))


def load(value: object) -> Ledger:
    return load_ledger(value if isinstance(value, str) else json.dumps(value), "ledger.json")


def test_round_trip() -> None:
    text = dump_ledger(FULL)
    assert load(text) == FULL
    assert dump_ledger(load(text)) == text
    assert text.isascii()
    assert text.endswith("}\n")


def test_round_trip_of_nothing() -> None:
    assert load(dump_ledger(Ledger())) == Ledger()


def test_text_does_not_depend_on_the_order_things_were_added() -> None:
    p, q = entry("p", a=(), b=()), entry("q", b=(), a=())
    files = FULL.files
    one = Ledger().with_entry(p).with_entry(q).with_file(A, files[0]).with_file(B, files[1])
    two = Ledger().with_file(B, files[1]).with_entry(q).with_file(A, files[0]).with_entry(p)
    assert one == two
    assert dump_ledger(one) == dump_ledger(two)


def test_every_truncation_is_noticed() -> None:
    text = dump_ledger(FULL).rstrip()
    for length in range(len(text)):
        with pytest.raises(LedgerError, match=r"ledger\.json is damaged"):
            load(text[:length])


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "1", '"x"', "{}", '{"schema": 1}', "\x00", "[" * 100_000, '{"a": ' * 50_000],
)
def test_not_a_ledger(text: str) -> None:
    with pytest.raises(LedgerError, match=r"ledger\.json is damaged") as caught:
        load(text)
    assert "objects" in caught.value.hint


@pytest.mark.parametrize("schema", [2, 99, 10**30])
def test_newer_schema(schema: int) -> None:
    with pytest.raises(LedgerError, match="this patchkit reads up to 1") as caught:
        load({"schema": schema, "things": "unheard of"})
    assert "upgrade" in caught.value.hint


@pytest.mark.parametrize("schema", [0, -1, 1.0, "1", None, True, [1]])
def test_nonsense_schema(schema: object) -> None:
    with pytest.raises(LedgerError, match="is damaged"):
        load(document() | {"schema": schema})


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every value in a JSON document."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [path, *(s for key, item in items for s in spots(item, (*path, key)))]


def changed(spot: tuple[Any, ...], change: Callable[[Any, Any], None]) -> dict[str, Any]:
    whole = document()
    parent: Any = whole
    for key in spot[:-1]:
        parent = parent[key]
    change(parent, spot[-1])
    return whole


KEYS = [s for s in spots(document()) if s and isinstance(s[-1], str)]
NULLABLE = {"pristine", "link", "trace"}


# Both patches edit A: without one of these the rest is a whole ledger.
DISPENSABLE = [("patches", "a"), *(("patches", p, "splices", A) for p in "ab")]
# Came after the first ledgers.
DISPENSABLE += [("patches", p, "kernel") for p in "ab"]


@pytest.mark.parametrize("spot", [s for s in KEYS if s not in DISPENSABLE])
def test_missing_key(spot: tuple[Any, ...]) -> None:
    with pytest.raises(LedgerError, match="is damaged"):
        load(changed(spot, lambda parent, key: parent.pop(key)))


@pytest.mark.parametrize("wrong", [None, True, 1.5, "\udcff", [[]], {"x": 1}])
@pytest.mark.parametrize("spot", spots(document())[1:])
def test_wrong_type(spot: tuple[Any, ...], wrong: object) -> None:
    whole = changed(spot, lambda parent, key: parent.__setitem__(key, wrong))
    try:
        again = load(whole)
    except LedgerError:
        return
    assert isinstance(again, Ledger)
    assert (wrong is None and spot[-1] in NULLABLE) or isinstance(wrong, str)


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("mode", -1),
        ("mode", 0o170644),
        ("mode", 10**20),
        ("mtime_ns", 10**30),
        ("mtime_ns", -(2**63)),
        ("link", "a\0b"),
        ("link", ""),
    ],
)
def test_what_no_file_can_have(key: str, wrong: object) -> None:
    with pytest.raises(LedgerError, match="is damaged"):
        load(changed(("files", A, key), lambda parent, k: parent.__setitem__(k, wrong)))


@pytest.mark.parametrize("bad", ["../x", "/etc/passwd", "a/../../x", "", ".", "a//b", "a\x00b"])
@pytest.mark.parametrize("where", ["file", "splice", "folder", "bytecode"])
def test_no_path_leaves_the_folder(bad: str, where: str) -> None:
    whole = document()
    if where == "file":
        whole["files"][bad] = whole["files"].pop(A)
    elif where == "splice":
        whole["patches"]["a"]["splices"][bad] = []
    elif where == "folder":
        whole["files"][B]["folders"] = [bad]
    else:
        whole["files"][B]["bytecode"][0]["path"] = bad
    with pytest.raises(LedgerError, match="is damaged"):
        load(whole)


@pytest.mark.parametrize(
    "bad", ["", "abc", ONE.upper(), ONE[:-1], ONE + "0", ONE[:-1] + "g", ONE + "\n", "../" + ONE]
)
@pytest.mark.parametrize("where", ["pristine", "patched", "bytecode"])
def test_digest_is_lower_case_hex(bad: str, where: str) -> None:
    whole = document()
    if where == "bytecode":
        whole["files"][B]["bytecode"][0]["sha256"] = bad
    else:
        whole["files"][A][where] = bad
    with pytest.raises(LedgerError, match="is damaged"):
        load(whole)


@pytest.mark.parametrize(
    "damage",
    [
        # Nothing would notice that the file is not as patched.
        lambda whole: whole["files"].pop(A),
        # Nothing would ever put the file back.
        lambda whole: whole["patches"].clear(),
    ],
)
def test_entries_and_files_belong_together(damage: Callable[[Any], None]) -> None:
    whole = document()
    damage(whole)
    with pytest.raises(LedgerError, match="is damaged"):
        load(whole)


@pytest.mark.parametrize("surrogate", ["d800", "d83d", "dc00", "dc7f", "dd00"])
def test_text_that_never_came_from_bytes(surrogate: str) -> None:
    whole = document()
    whole["patches"]["a"]["splices"][A][0]["text"] = f"a{chr(int(surrogate, 16))}z"
    with pytest.raises(LedgerError, match="is damaged"):
        load(whole)


def test_looking_up() -> None:
    assert FULL.entry("b") == FULL.entries[1]
    assert FULL.entry("z") is None
    assert FULL.file(B) == FULL.files[1]
    assert FULL.file("z") is None
    assert [e.id for e in FULL.owners(A)] == ["a", "b"]
    assert [e.id for e in FULL.owners(B)] == ["b"]
    assert FULL.files_of(FULL.entries[0]) == FULL.files[:1]
    assert FULL.files_of(FULL.entries[1]) == FULL.files


def test_changing_gives_a_new_ledger() -> None:
    newer = replace(FULL.entries[0], revision=3)
    assert FULL.with_entry(newer).entry("a") == newer
    assert len(FULL.with_entry(newer).entries) == 2
    assert FULL.without("a", "z").entries == FULL.entries[1:]
    assert FULL.without("a").files == FULL.files
    assert FULL.with_file(A, None).files == FULL.files[1:]
    moved = replace(FULL.files[0], mode=0)
    assert FULL.with_file(A, moved).file(A) == moved
    assert FULL.entries[0].revision == 2


def test_compose_takes_owners_in_canonical_order() -> None:
    p, q = entry("p", a=(Splice(1, 1, b"p"),)), entry("q", a=(Splice(1, 1, b"q"),))
    assert compose(b"01", [p, q], A) == compose(b"01", [q, p], A) == b"0pq1"


@pytest.mark.parametrize("splice", [Splice(0, 1, b""), Splice(9, 9, b""), Splice(-1, 0, b"")])
def test_compose_refuses_what_does_not_fit(splice: Splice) -> None:
    p, q = entry("p", a=(Splice(0, 2, b"p"),)), entry("q", a=(splice,))
    with pytest.raises(LedgerError, match="do not fit together") as caught:
        compose(b"01", [p, q], A)
    assert A in caught.value.message


@pytest.mark.parametrize(
    ("pristine", "digest", "expected"),
    [
        (ONE, TWO, FileState.PATCHED),
        (ONE, ONE, FileState.PRISTINE),
        (ONE, THREE, FileState.DRIFTED),
        (ONE, None, FileState.MISSING),
        (None, TWO, FileState.PATCHED),
        (None, THREE, FileState.DRIFTED),
        (None, None, FileState.PRISTINE),
    ],
)
def test_file_state(pristine: str | None, digest: str | None, expected: FileState) -> None:
    assert file_state(FileEntry(A, pristine, TWO, 0o644, 0), digest) is expected
