"""The original bytes of files to patch, with proof: RECORD, or the ledger and the kept bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from patchkit.environment import Distribution, linked_folder, other_owners
from patchkit.errors import TargetError
from patchkit.journal import Snapshot
from patchkit.ledger import Ledger
from patchkit.plan import Original
from patchkit.store import Store


def originals_of(
    store: Store, ledger: Ledger, touched: Mapping[str, Distribution]
) -> dict[str, Original]:
    """Return the pristine bytes of every file to touch.

    Raises PatchkitError when one drifted, lies behind a linked folder, is claimed by two
    distributions, or cannot be shown to be original.
    """
    by_distribution: dict[Path, list[str]] = {}
    for path, distribution in touched.items():
        by_distribution.setdefault(distribution.dist_info, []).append(path)
    for paths in by_distribution.values():
        _check_owners(touched[paths[0]], paths)
    return {path: _original(store, ledger, touched[path], path) for path in touched}


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
            hint=_reinstall(distribution),
        )
    if current is None:
        raise TargetError(f"{store.root / path} is missing", hint=_reinstall(distribution))
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
            hint=_reinstall(distribution),
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
            hint="A patch may only add files beside files of its own distribution.",
        )
    if current is not None:
        raise TargetError(
            f"{store.root / path} is not listed in RECORD of {distribution.requirement}",
            hint="Something else put it there; move it away, then apply again.",
        )
    return Original(path, None)


def _reinstall(distribution: Distribution) -> str:
    return (
        "Reinstall it, then apply again: "
        f"pip install --force-reinstall --no-deps {distribution.requirement}"
    )
