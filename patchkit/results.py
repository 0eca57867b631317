"""What operations give back: rows and results, plain values that report.py renders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

DOES_NOT_FIT = "does not fit"
CONFLICT = "conflict"
FITS = "fits"

Notify = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """The state of one patch in the target. ``ok`` is False when it is not as it should be.

    ``revision`` is the known patch's, ``recorded_revision`` the applied one's (0: not applied).
    """

    id: str
    state: str
    detail: str = ""
    distribution: str = ""
    installed: str = ""
    revision: int = 0
    recorded_revision: int = 0
    ok: bool = True
    files: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True)
class Result:
    """What an operation found or did: one row a patch, problems of the whole, and warnings.

    ``changed`` are the full paths of files written or removed, or, in a dry run, to be.
    """

    rows: tuple[Row, ...]
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True when the environment is in the state asked for."""
        return not self.problems and all(row.ok for row in self.rows)


@dataclass(frozen=True)
class FileDiff:
    """One file under one patch alone: the bytes before and after (None: no such file)."""

    patch: str
    state: str
    path: str
    before: bytes | None
    after: bytes | None
