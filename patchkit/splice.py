"""Splices: replacements of byte ranges, the only form in which a patch changes a file.

All splices of all patches on one file are offsets into the *pristine* bytes, so patches that do
not overlap can be applied in any order and taken out one by one with the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Splice:
    """Replace ``data[start:end]`` with ``text``. An insertion has ``start == end`` (bytes)."""

    start: int
    end: int
    text: bytes


def overlap(a: Splice, b: Splice) -> bool:
    """Say whether two splices claim the same pristine bytes.

    An insertion at the edge of a replaced range touches none of its bytes and is allowed, and so
    are two insertions at one place; an insertion strictly inside a replaced range is not.
    """
    if a.start == a.end or b.start == b.end:
        inserted, other = (a, b) if a.start == a.end else (b, a)
        return other.start < inserted.start < other.end
    return a.start < b.end and b.start < a.end


def apply_splices(data: bytes, splices: Iterable[Splice]) -> bytes:
    """Return ``data`` with every splice applied; insertions at one place keep the order given.

    Raises ValueError when a splice lies outside ``data`` or two of them overlap.
    """
    ordered = sorted(splices, key=lambda s: (s.start, s.end))
    pieces: list[bytes] = []
    position = 0
    for splice in ordered:
        if not position <= splice.start <= splice.end <= len(data):
            raise ValueError(f"splice {splice.start}:{splice.end} overlaps or lies outside")
        pieces += [data[position : splice.start], splice.text]
        position = splice.end
    return b"".join([*pieces, data[position:]])


def find_overlap(
    owned: Sequence[tuple[str, Sequence[Splice]]],
) -> tuple[str, str, Splice] | None:
    """Return the first two owners whose splices overlap, and where, or None."""
    for i, (first, mine) in enumerate(owned):
        for second, theirs in owned[i + 1 :]:
            for a in mine:
                for b in theirs:
                    if overlap(a, b):
                        return first, second, a
    return None
