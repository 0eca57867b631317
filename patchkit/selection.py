"""Which patches to apply: those named, the project's set, or the defaults that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from patchkit.catalog import Catalog, Project
from patchkit.environment import Distribution, Target, find_distribution
from patchkit.errors import PatchkitError, TargetError
from patchkit.manifest import Patch


@dataclass(frozen=True)
class Wanted:
    """A patch to apply, and the distribution it is for."""

    patch: Patch
    distribution: Distribution


def select(
    target: Target, catalog: Catalog, ids: Sequence[str], project: Project
) -> tuple[list[Wanted], list[str]]:
    """Choose what to apply: the named patches, the project's set, or the defaults that fit.

    Returns them and why a default was left out. Raises PatchkitError when a named patch is
    unknown or does not fit, or when nothing is left to apply.
    """
    named = list(dict.fromkeys(ids or project.patches or ()))
    if named:
        asked_by = "" if ids else f"{project.file}: "
        return [_must_fit(target, catalog.get(i, asked_by)) for i in named], []
    if project.patches is not None:
        raise PatchkitError(
            f"{project.file} asks for no patches", hint="Add ids to its list, or name patches."
        )
    chosen, left_out = [], []
    for patch in (p for p in catalog.patches if p.default):
        found, why = fit(target, patch)
        if found and not why:
            chosen.append(Wanted(patch, found))
        else:
            left_out.append(f"{patch.id}: {why}")
    if not chosen:
        raise PatchkitError(
            "no default patch fits: " + ("; ".join(left_out) or "there are none"),
            hint="See what there is with: patchkit list; or name another target with --python.",
        )
    return chosen, left_out


def _must_fit(target: Target, patch: Patch) -> Wanted:
    found, why = fit(target, patch)
    if found is None:
        hint = "Name another target with --python PATH or --site-packages DIR."
        raise TargetError(f"{patch.id}: {why}", hint=hint)
    if why:
        hint = "Install it from a wheel instead." if found.editable else _LIST
        raise PatchkitError(f"{patch.id}: {why}", hint=hint)
    return Wanted(patch, found)


def fit(target: Target, patch: Patch) -> tuple[Distribution | None, str]:
    """Return the distribution a patch is for, if it is there, and why the patch does not fit."""
    found = find_distribution(target, patch.distribution)
    if found is None:
        return None, f"{patch.distribution} is not installed in {target.described}"
    return found, unfit(patch, found)


_LIST = "See which patches fit with: patchkit list"


def unfit(patch: Patch, distribution: Distribution) -> str:
    """Say why a patch is not for an installed distribution, or return ''."""
    if not patch.fits(distribution.version):
        return f"is for {patch.distribution} {patch.range}, installed is {distribution.version}"
    if distribution.editable:
        return (
            f"{distribution.name} is an editable install of {distribution.editable}; "
            "patchkit does not edit checkouts"
        )
    return ""
