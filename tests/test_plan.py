from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from patchkit.errors import PatchError, PatchkitError
from patchkit.ledger import FileEntry, FileState, Ledger, LedgerEntry
from patchkit.manifest import Edit, Patch
from patchkit.plan import (
    APPLIED,
    DRIFTED,
    GONE,
    NOT_APPLIED,
    UPGRADED,
    Original,
    check_places,
    check_together,
    content,
    edits_by_file,
    entry_state,
    make_entry,
)
from patchkit.splice import Splice

A, B, C = "demo_pkg/a.py", "demo_pkg/b.py", "demo_pkg/c.py"
V = Version("1.0")


def entry(
    patch_id: str,
    splices: dict[str, tuple[Splice, ...]],
    *,
    conflicts: tuple[str, ...] = (),
    requires: tuple[str, ...] = (),
) -> LedgerEntry:
    return LedgerEntry(
        patch_id, 1, "d", "t", "", "demo-pkg", "1.0", (), conflicts, requires, splices
    )


# A patched file, one that was replaced by pristine bytes, and one that the patch adds.
LEDGER = Ledger(
    (entry("p", {A: (), B: (), C: ()}),),
    (
        FileEntry(A, "old-a", "new-a", 0o644, 0),
        FileEntry(B, "old-b", "new-b", 0o644, 0),
        FileEntry(C, None, "new-c", 0o644, 0),
    ),
)


@pytest.mark.parametrize(
    ("a", "b", "c", "state", "named"),
    [
        ("new-a", "new-b", "new-c", APPLIED, ()),
        ("old-a", "new-b", "new-c", NOT_APPLIED, (A,)),
        ("old-a", "old-b", "new-c", NOT_APPLIED, (A, B)),
        ("old-a", "old-b", None, NOT_APPLIED, (A, B, C)),
        ("new-a", "new-b", None, NOT_APPLIED, (C,)),
        ("other", "new-b", "new-c", DRIFTED, (A,)),
        ("new-a", "new-b", "other", DRIFTED, (C,)),
        (None, "new-b", "new-c", DRIFTED, (A,)),
        (None, None, None, DRIFTED, (A, B)),
        ("other", "old-b", None, DRIFTED, (A,)),
        ("new-b", "new-a", "new-c", DRIFTED, (A, B)),
    ],
)
def test_entry_state(
    a: str | None, b: str | None, c: str | None, state: str, named: tuple[str, ...]
) -> None:
    found = entry_state(LEDGER, LEDGER.entries[0], {A: a, B: b, C: c}, V)
    assert found.state == state
    assert tuple(p for p in (A, B, C) if p in found.detail) == named
    assert [p for p, _ in found.files] == [A, B, C]


@pytest.mark.parametrize("digest", ["new-a", "old-a", "other", None])
def test_the_distribution_comes_before_the_bytes(digest: str | None) -> None:
    digests = {A: digest, B: digest, C: digest}
    gone = entry_state(LEDGER, LEDGER.entries[0], digests, None)
    assert gone.state == GONE
    assert "demo-pkg" in gone.detail
    upgraded = entry_state(LEDGER, LEDGER.entries[0], digests, Version("1.1"))
    assert upgraded.state == UPGRADED
    assert upgraded.detail == "applied to 1.0, installed is 1.1"


@pytest.mark.parametrize("version", ["1.0.0", "1.0+cu130", "1.0.post1", "0.9"])
def test_another_build_is_another_version(version: str) -> None:
    found = entry_state(LEDGER, LEDGER.entries[0], {A: "new-a", B: "new-b", C: "new-c"}, V)
    assert found.files == ((A, FileState.PATCHED), (B, FileState.PATCHED), (C, FileState.PATCHED))
    other = entry_state(LEDGER, LEDGER.entries[0], {}, Version(version))
    assert other.state == UPGRADED


def test_what_record_lists_is_another_build() -> None:
    digests: dict[str, str | None] = {A: "newer", B: "new-b", C: "new-c"}
    patch = LEDGER.entries[0]
    found = entry_state(LEDGER, patch, digests, V, {A: "newer", B: "old-b"})
    assert (found.state, A in found.detail) == (UPGRADED, True)
    for listed in ({}, {A: None}, {A: "old-a"}):
        assert entry_state(LEDGER, patch, digests, V, listed).state == DRIFTED


# Together


def test_conflict_names_both_whoever_says_so() -> None:
    p, q = entry("p", {}), entry("q", {}, conflicts=("p",))
    for pair in ([p, q], [q, p]):
        with pytest.raises(PatchkitError, match="conflict: q and p cannot both be applied"):
            check_together(pair)
    check_together([q, entry("r", {})])
    check_together([entry("q", {}, conflicts=("q",))])


def test_requirement() -> None:
    p = entry("p", {}, requires=("q",))
    with pytest.raises(PatchkitError, match="p requires q, which must be applied too") as caught:
        check_together([p])
    assert caught.value.hint == "Apply them together: patchkit apply q p"
    check_together([p, entry("q", {})])


def test_overlap_names_both_and_the_file() -> None:
    p, q = entry("p", {A: (Splice(0, 5, b""),)}), entry("q", {A: (Splice(4, 6, b""),)})
    for pair in ([p, q], [q, p]):
        with pytest.raises(PatchkitError, match=f"conflict: p and q edit the same place in {A}"):
            check_places(pair)
    check_places([p, replace(q, splices={B: (Splice(4, 6, b""),)})])


def test_together_in_any_order() -> None:
    entries = [
        entry("p", {A: (Splice(0, 2, b"P"), Splice(2, 2, b"p"))}),
        entry("q", {A: (Splice(2, 2, b"q"),), B: ()}, requires=("p",)),
        entry("r", {A: (Splice(2, 4, b"R"),)}),
    ]
    results = set()
    for order in itertools.permutations(entries):
        check_together(iter(order))
        check_places(iter(order))
        ledger = Ledger()
        for item in order:
            ledger = ledger.with_entry(item)
        results.add(text_of(ledger))
    assert results == {b"PpqR456"}


def text_of(ledger: Ledger) -> bytes | None:
    moved = [replace(e, splices={"a.txt": e.splices[A]}) for e in ledger.entries]
    return content(Ledger(tuple(moved)), Original("a.txt", b"0123456"))


# Content


def test_content_without_patches_is_the_original() -> None:
    assert content(Ledger(), Original(A, b"x")) == b"x"
    assert content(Ledger(), Original(A, None)) is None


def test_content_of_an_added_file() -> None:
    ledger = Ledger((entry("p", {A: (Splice(0, 0, b"x = 1\n"),)}),))
    assert content(ledger, Original(A, None)) == b"x = 1\n"


def test_patches_that_only_compile_alone() -> None:
    data = b"x = 1\n"
    p, q = entry("p", {A: (Splice(4, 4, b"("),)}), entry("q", {A: (Splice(5, 5, b"("),)})
    with pytest.raises(PatchError, match="would not compile with p and q"):
        content(Ledger((p, q)), Original(A, data))
    q = replace(q, splices={A: (Splice(5, 5, b")"),)})
    assert content(Ledger((p, q)), Original(A, data)) == b"x = (1)\n"


# Entries


def make_patch(*edits: Edit, links: tuple[str, ...] = ()) -> Patch:
    return Patch(
        id="p",
        revision=3,
        title="t",
        why="w",
        links=links,
        distribution="demo-pkg",
        versions=SpecifierSet(),
        default=False,
        checks=("import",),
        conflicts=("c",),
        requires=("r",),
        edits=edits,
        snippets={},
        digest="digest",
        folder="patches/p",
    )


def edit(file: str, new: str, codemod: str = "replace_block", versions: str = "") -> Edit:
    params = {"new": new} if codemod == "add_file" else {"old": "1", "new": new}
    return Edit(file, SpecifierSet(versions), codemod, params, 1)


def test_make_entry() -> None:
    patch = make_patch(edit(B, "3"), edit(A, "2"), edit(C, "4\n", "add_file"), links=("l", "m"))
    originals = {A: Original(A, b"x = 1\n"), B: Original(B, b"y = 1\n"), C: Original(C, None)}
    made = make_entry(patch, Version("1.0+cu130"), originals)
    assert (made.id, made.revision, made.digest, made.link) == ("p", 3, "digest", "l")
    assert (made.distribution, made.version) == ("demo-pkg", "1.0+cu130")
    assert (made.checks, made.conflicts, made.requires) == (("import",), ("c",), ("r",))
    assert sorted(made.splices) == [A, B, C]
    ledger = Ledger((made,))
    assert content(ledger, originals[A]).endswith(b"x = 2\n")  # type: ignore[union-attr]
    assert content(ledger, originals[C]).endswith(b"4\n")  # type: ignore[union-attr]
    assert make_entry(patch, Version("1.0+cu130"), originals) == made


def test_file_that_is_not_there() -> None:
    with pytest.raises(PatchError, match=f"p: demo-pkg 1.0 has no file {A}"):
        make_entry(make_patch(edit(A, "2")), V, {A: Original(A, None)})


@pytest.mark.parametrize("data", [b"x = 1\n", b""])
def test_added_file_that_is_there(data: bytes) -> None:
    with pytest.raises(PatchError, match=f"p: {A} exists already, and the patch adds it"):
        make_entry(make_patch(edit(A, "2", "add_file")), V, {A: Original(A, data)})


def test_empty_file_is_a_file() -> None:
    with pytest.raises(PatchError, match="matched 0 places"):
        make_entry(make_patch(edit(A, "2")), V, {A: Original(A, b"")})


def test_edits_by_file() -> None:
    one, two, three = edit(B, "1", versions="<2"), edit(A, "2"), edit(B, "3", versions=">=2")
    patch = make_patch(one, two, three)
    assert edits_by_file(patch, V) == {B: [one], A: [two]}
    assert edits_by_file(patch, Version("1.9rc1")) == {B: [one], A: [two]}
    assert edits_by_file(patch, Version("2.1.dev0")) == {A: [two], B: [three]}
    with pytest.raises(PatchError, match=r"p: has no edit for demo-pkg 1\.0"):
        edits_by_file(make_patch(three), V)
    with pytest.raises(PatchError, match=f"p: {A} is added and edited by the same patch"):
        edits_by_file(make_patch(two, edit(A, "x", "add_file")), V)
