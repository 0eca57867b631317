"""The verify operation: bytes of what is recorded, then the checks its patches name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from patchkit.bytecode import stale_bytecode
from patchkit.catalog import Catalog, Project
from patchkit.checks import Options, Subject, run_checks
from patchkit.environment import Target, find_distribution
from patchkit.errors import TargetError
from patchkit.inspection import interruption, recorded_row
from patchkit.ledger import Ledger, LedgerEntry, compose
from patchkit.manifest import KERNEL
from patchkit.originals import ledger_lost
from patchkit.plan import FAULTY, NOT_APPLIED
from patchkit.results import Notify, Result, Row
from patchkit.selection import fit
from patchkit.sites import as_seen, check_known, installed_in, row_each, stores_of
from patchkit.store import Store


def verify(
    target: Target,
    ids: Sequence[str],
    project: Project,
    load: Callable[[], Catalog],
    options: Options,
    *,
    known: Callable[[str], bool],
    notify: Notify,
) -> Result:
    """Verify what is recorded, and that what ``ids`` or the project ask for is. Writes nothing.

    A row a patch: bytes against the ledger and RECORD, kept originals, stale bytecode. Then the
    checks of patches whose bytes are right. Problems are interrupted runs, lost ledgers, leftovers,
    and nothing recorded at all; then the defaults that fit stand for what is missing.

    ``load`` gives the catalog and is called only for patches that are not recorded, ``known``
    says whether an id is a patch at all. Raises PatchkitError when one is not.
    """
    found: list[tuple[bool, Row]] = []
    subjects: list[Subject] = []
    problems: list[str] = []
    lost: list[str] = []
    for store in stores_of(target, notify):
        with store.reading():
            ledger = store.load()
            lost += (here := ledger_lost(store, ledger))
            problems += (
                interruption(store)
                or here
                or [f"left over in {store.root}: {name}" for name in store.leftovers()]
            )
            for entry in ledger.entries:
                if not ids or entry.id in ids:
                    hidden, row = as_seen(target, store, _verify_entry(store, ledger, entry))
                    found.append((hidden, row))
                    subjects += [subject_of(store, ledger, entry)] if row.ok else []
    rows = row_each(found)
    check_known(target, [i for i in ids if i not in rows], known)
    asked = list(ids or project.patches or ())
    if not rows and not asked:
        problems.append(f"no patch is recorded in {target.described}")
        asked = _defaults_that_fit(target, load())
    absent = [i for i in asked if i not in rows]
    first = "patchkit repair, then " if lost else ""
    rows |= {i: _not_recorded(target, i, first) for i in absent}
    if options.prove and absent:
        subjects += _absent_subjects(target, load(), absent)
    checks = run_checks(target, subjects, options, notify)
    if options.gpu and not any(check.name == KERNEL for check in checks):
        problems.append(
            "nothing was run on the GPU: no patch that is as recorded has a kernel check"
        )
    return Result(
        tuple(rows[k] for k in sorted(rows)),
        problems=tuple(problems),
        checks=tuple(checks),
        strict=options.strict,
    )


def _not_recorded(target: Target, patch_id: str, first: str) -> Row:
    detail = f"is not recorded in {target.described}"
    return Row(patch_id, NOT_APPLIED, detail, ok=False, hint=f"{first}patchkit apply {patch_id}")


def _defaults_that_fit(target: Target, catalog: Catalog) -> list[str]:
    return [p.id for p in catalog.patches if p.default and not fit(target, p)[1]]


# Bytes


def _verify_entry(store: Store, ledger: Ledger, entry: LedgerEntry) -> Row:
    row = recorded_row(store, ledger, entry, None)
    faults = list(_faults(store, ledger, entry)) if row.ok else []
    return replace(row, ok=False, state=FAULTY, detail="; ".join(faults)) if faults else row


def _faults(store: Store, ledger: Ledger, entry: LedgerEntry) -> Iterator[str]:
    distribution = installed_in(store, entry.distribution)
    record = distribution.record if distribution else {}
    for file in ledger.files_of(entry):
        listed = record.get(file.path)
        if (listed.sha256 if listed else None) != file.pristine:
            yield f"RECORD lists other bytes for {file.path} than the ledger kept"
        if file.pristine:
            store.kept(file.pristine)
        for cached in store.bytecode_of(file.path):
            if stale_bytecode(cached, store.root / file.path):
                yield f"stale bytecode {cached.relative_to(store.root)}"


# What to check


def subject_of(store: Store, ledger: Ledger, entry: LedgerEntry) -> Subject:
    """Return what to check of an applied patch; raises LedgerError when its originals are gone."""
    distribution = installed_in(store, entry.distribution)
    if distribution is None:  # it was there when its row was made
        raise TargetError(
            f"{entry.distribution} was removed from {store.root} while patchkit looked at it",
            hint="Run the same command again.",
        )
    files = ledger.files_of(entry)
    pristine = {f.path: store.kept(f.pristine) if f.pristine else None for f in files}
    others = [e for e in ledger.entries if e.distribution == entry.distribution]
    return Subject(
        patch=entry.id,
        distribution=distribution,
        checks=entry.checks,
        trace=entry.trace,
        kernel=entry.kernel,
        patched={path: compose(data or b"", [entry], path) for path, data in pristine.items()},
        pristine=pristine,
        alone=len(others) == 1,
    )


def _absent_subjects(target: Target, catalog: Catalog, ids: Sequence[str]) -> Iterator[Subject]:
    """Give patches that are not in place: their checks show what is the matter without them."""
    for patch_id in ids:
        patch = catalog.find(patch_id)
        distribution = find_distribution(target, patch.distribution) if patch else None
        if patch and distribution:
            yield Subject(patch.id, distribution, patch.checks, patch.trace, {}, {}, applied=False)
