"""What operations give back: rows and results, plain values that report.py renders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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


PASSED = "passed"
FAILED = "failed"
SKIPPED = "skipped"

PROVEN = "proven"
NO_LONGER_NEEDED = "no longer needed"
BROKEN = "broken"
UNPROVEN = "unproven"


@dataclass(frozen=True)
class Case:
    """One case of a check and what was wrong with it ("": nothing)."""

    name: str
    problem: str = ""


@dataclass(frozen=True)
class Group:
    """Cases of one kind, with the seconds they took together."""

    name: str
    seconds: float
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Check:
    """What one check of one patch gave: passed, failed, or skipped with its reason.

    ``chain`` are the calls from the public function to where a trace stopped, outermost first.
    ``tail`` is the end of what a probe that failed had printed. ``proof`` is the word that
    ``--prove`` gives: proven, no longer needed (the unpatched source passes too), unproven (it
    fails, but not where the patch says), or broken (the patched source fails). ``groups`` are the
    cases that the kernel check ran, ``bench`` what it measured (docs/gpu.md).
    """

    patch: str
    name: str
    outcome: str
    detail: str = ""
    seconds: float = 0.0
    tail: str = ""
    chain: tuple[str, ...] = ()
    proof: str = ""
    groups: tuple[Group, ...] = ()
    bench: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Repair:
    """One thing that a repair found: the full path, what is done about it, and why.

    ``ok`` is False when it cannot be decided; ``hint`` then says what mends it.
    """

    path: str
    action: str
    detail: str
    ok: bool = True
    hint: str = ""


@dataclass(frozen=True)
class Result:
    """What an operation found or did: one row a patch, problems of the whole, and warnings.

    ``changed`` are the full paths of files written or removed, or, in a dry run, to be. With
    ``strict``, skipped checks and patches that are not proven are failures too.
    """

    rows: tuple[Row, ...]
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    strict: bool = False
    repairs: tuple[Repair, ...] = ()

    @property
    def ok(self) -> bool:
        """True when the environment is in the state asked for."""
        return (
            not self.problems
            and all(row.ok for row in self.rows)
            and all(repair.ok for repair in self.repairs)
            and all(self.holds(check) for check in self.checks)
        )

    def holds(self, check: Check) -> bool:
        """Say whether a check is as it should be."""
        if check.outcome == FAILED or check.proof == BROKEN:
            return False
        return not self.strict or (check.outcome == PASSED and check.proof in ("", PROVEN))


@dataclass(frozen=True)
class FileDiff:
    """One file under one patch alone: the bytes before and after (None: no such file)."""

    patch: str
    state: str
    path: str
    before: bytes | None
    after: bytes | None
