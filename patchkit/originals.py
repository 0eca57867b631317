"""The original bytes of files to patch, with proof: RECORD, or the ledger and the kept bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from patchkit.environment import (
    Distribution,
    distributions_in,
    linked_folder,
    other_owners,
    reinstall_hint,
)
from patchkit.errors import StoreError, TargetError
from patchkit.journal import Snapshot
from patchkit.ledger import Ledger
from patchkit.manifest import path_problem
from patchkit.plan import Original
from patchkit.store import Store


def originals_of(
    store: Store, ledger: Ledger, touched: Mapping[str, Distribution]
) -> dict[str, Original]:
    """Return the pristine bytes of every file to touch.

    Raises PatchkitError when one drifted, lies behind a linked folder, is claimed by two
    distributions, cannot be shown to be original, or is one whose ledger was lost.
    """
    by_distribution: dict[Path, list[str]] = {}
    for path, distribution in touched.items():
        by_distribution.setdefault(distribution.dist_info, []).append(path)
    for paths in by_distribution.values():
        _check_owners(touched[paths[0]], paths)
    found = {path: _original(store, ledger, touched[path], path) for path in touched}
    _refuse_shared(store, ledger, touched)
    return found


def unexplained(store: Store, ledger: Ledger) -> list[str]:
    """Return the files whose originals are kept though no ledger says that they are patched.

    Only those that differ from RECORD, which lists the very bytes that are kept: the ledger was
    lost, or a run was killed and the file then changed; ``repair`` puts them back. What outlived a
    reinstall or an upgrade is not among them.
    """
    kept = {path.rpartition("/")[2] for path in store.strays(ledger)}
    if not kept:
        return []
    recorded = {file.path for file in ledger.files}
    listed = [row for d in distributions_in(store.root) for row in d.record.values()]
    found = {r.path for r in listed if r.sha256 in kept and not path_problem(r.path)} - recorded
    right = {(r.path, r.sha256) for r in listed}
    return sorted(p for p in found if (p, _digest(store, p)) not in right)


def _digest(store: Store, path: str) -> str | None:
    try:
        return store.digest(path)
    except StoreError:
        return None


def _refuse_shared(store: Store, ledger: Ledger, touched: Mapping[str, Distribution]) -> None:
    """Refuse to take for a file's own an original that is kept, unexplained, for another one."""
    rows = (distribution.record.get(path) for path, distribution in touched.items())
    strays = {path.rpartition("/")[2] for path in store.strays(ledger)}
    if not strays & {row.sha256 for row in rows if row}:
        return
    if files := unexplained(store, ledger):
        raise TargetError(
            f"{store.root}: not as installed, and no ledger says why: {', '.join(files)}",
            hint="Originals are kept. Put them back, then apply again: patchkit repair",
        )


def ledger_lost(store: Store, ledger: Ledger) -> list[str]:
    """Return the problem that a lost ledger is, if there is one."""
    if not (files := unexplained(store, ledger)):
        return []
    return [
        f"{store.root}: not as installed, and no ledger says why: {', '.join(files)}; the "
        "originals are kept: put them back with: patchkit repair"
    ]


def _check_owners(distribution: Distribution, paths: Sequence[str]) -> None:
    for path, others in other_owners(distribution, paths).items():
        mine = distribution.dist_info.name.removesuffix(".dist-info")
        raise TargetError(
            f"{path} belongs to two distributions: {mine} and {', '.join(others)}",
            hint="Uninstall one of them, reinstall the other, then apply again.",
        )


def _original(store: Store, ledger: Ledger, distribution: Distribution, path: str) -> Original:
    folder, _, _ = path.rpartition("/")
    bytecode = f"{folder}/__pycache__/" if folder else "__pycache__/"
    if link := linked_folder(store.root, path) or linked_folder(store.root, bytecode):
        raise TargetError(
            f"{link} is a symbolic link; patchkit does not write through linked folders",
            hint="Install the distribution itself into this environment "
            "(uv: --link-mode=copy or hardlink).",
        )
    row = distribution.record.get(path)
    entry, current = ledger.file(path), store.snapshot(path)
    digest = current.digest if current else None
    recorded = row.sha256 if row else None
    if entry and digest == entry.patched and entry.pristine == recorded:
        return Original(path, store.kept(entry.pristine) if entry.pristine else None)
    if row is None:
        return _unlisted(store, distribution, path, current)
    if recorded is None:
        raise TargetError(
            f"RECORD of {distribution.requirement} gives no sha256 for {path}, so nothing shows "
            "which bytes are original",
            hint=reinstall_hint(distribution.requirement),
        )
    if current is None:
        raise TargetError(
            f"{store.root / path} is missing", hint=_mend(store, ledger, distribution, path)
        )
    if digest != recorded and entry:
        owner = ledger.owners(path)[0].id
        raise TargetError(
            f"{store.root / path} drifted: it was changed since {owner} was applied",
            hint=f"See how with: patchkit diff {owner}. To put the original back and keep the "
            f"changed file beside it: patchkit revert --force {owner}",
        )
    if digest != recorded:
        raise TargetError(
            f"{store.root / path} drifted: it is neither as installed nor as patched",
            hint=_mend(store, ledger, distribution, path),
        )
    return Original(path, current.data)


def _unlisted(
    store: Store, distribution: Distribution, path: str, current: Snapshot | None
) -> Original:
    """Accept a file that RECORD does not list only when it is one that a patch is to add."""
    top = path.split("/")[0]
    if not any(listed.split("/")[0] == top for listed in distribution.record):
        raise TargetError(
            f"{path} does not lie in {distribution.requirement}",
            hint="Look at file in patch.toml: a patch changes files of its own distribution, and "
            "adds files only beside them.",
        )
    if current is not None:
        raise TargetError(
            f"{store.root / path} is not listed in RECORD of {distribution.requirement}",
            hint="Something else put it there; move it away, then apply again.",
        )
    return Original(path, None)


def _mend(store: Store, ledger: Ledger, distribution: Distribution, path: str) -> str:
    if path in unexplained(store, ledger):
        return (
            "Its original is kept, though no ledger says so. Put it back, then apply again: "
            "patchkit repair"
        )
    return reinstall_hint(distribution.requirement)
