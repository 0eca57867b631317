from __future__ import annotations

import pytest

from patchkit.splice import Splice, apply_splices, find_overlap, overlap

DATA = b"0123456789"


@pytest.mark.parametrize(
    ("splices", "expected"),
    [
        ([], DATA),
        ([Splice(0, 0, b"a")], b"a0123456789"),
        ([Splice(10, 10, b"a")], b"0123456789a"),
        ([Splice(0, 10, b"")], b""),
        ([Splice(2, 4, b"ab")], b"01ab456789"),
        ([Splice(5, 6, b"y"), Splice(2, 4, b"x")], b"01x4y6789"),
        ([Splice(2, 4, b"x"), Splice(4, 6, b"y")], b"01xy6789"),
        # Insertions at one place keep the order given.
        ([Splice(3, 3, b"b"), Splice(3, 3, b"a")], b"012ba3456789"),
        # At the edges of a replaced range, whichever comes first.
        ([Splice(2, 4, b"x"), Splice(2, 2, b"<"), Splice(4, 4, b">")], b"01<x>456789"),
        ([Splice(4, 4, b">"), Splice(2, 2, b"<"), Splice(2, 4, b"x")], b"01<x>456789"),
    ],
)
def test_apply(splices: list[Splice], expected: bytes) -> None:
    assert apply_splices(DATA, splices) == expected


@pytest.mark.parametrize(
    "splices",
    [
        [Splice(-1, 0, b"")],
        [Splice(-3, -1, b"")],
        [Splice(4, 3, b"")],
        [Splice(10, 11, b"")],
        [Splice(11, 11, b"")],
        [Splice(2, 5, b""), Splice(4, 6, b"")],
        [Splice(2, 5, b"x"), Splice(2, 5, b"x")],
        [Splice(2, 5, b""), Splice(3, 3, b"a")],
    ],
)
def test_refuses(splices: list[Splice]) -> None:
    with pytest.raises(ValueError, match="overlaps or lies outside"):
        apply_splices(DATA, splices)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((2, 5), (5, 7), False),
        ((2, 5), (4, 7), True),
        ((2, 5), (2, 5), True),
        ((2, 9), (4, 5), True),
        ((2, 5), (2, 2), False),
        ((2, 5), (5, 5), False),
        ((2, 5), (3, 3), True),
        ((3, 3), (3, 3), False),
    ],
)
def test_overlap(a: tuple[int, int], b: tuple[int, int], expected: bool) -> None:
    first, second = Splice(*a, b"x"), Splice(*b, b"y")
    assert overlap(first, second) is expected
    assert overlap(second, first) is expected


def test_find_overlap_names_both() -> None:
    owned = [
        ("a", [Splice(0, 1, b"")]),
        ("b", [Splice(8, 9, b""), Splice(3, 5, b"")]),
        ("c", [Splice(4, 6, b"")]),
    ]
    assert find_overlap(owned) == ("b", "c", Splice(3, 5, b""))
    assert find_overlap(owned[:2]) is None


def test_find_overlap_does_not_compare_a_patch_with_itself() -> None:
    assert find_overlap([("a", [Splice(0, 5, b""), Splice(2, 3, b"")])]) is None
