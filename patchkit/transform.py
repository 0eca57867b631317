"""Running codemods, and the guards around them: pristine bytes in, splices out. Pure."""

from __future__ import annotations

import shlex
import sys
import types
from collections.abc import Sequence

from patchkit.errors import PatchError
from patchkit.manifest import CODE, Edit, Patch
from patchkit.source import Codemod, Match, SourceFile, compile_problem
from patchkit.splice import Splice, apply_splices


def rewrite(path: str, data: bytes, patch: Patch, edits: Sequence[Edit]) -> tuple[Splice, ...]:
    """Return the splices that ``edits`` of one patch make on the pristine bytes of one file.

    Raises PatchError when an edit does not match exactly as often as it says, changes nothing,
    leaves the file unparsable, or when two edits overlap.
    """
    splices: list[Splice] = []
    source = SourceFile(path, data)
    for edit in edits:
        splices += _run(source, patch, edit)
    try:
        result = apply_splices(data, splices)
    except ValueError as error:
        raise PatchError(
            f"{patch.id}: two edits of {path} overlap: {error}", hint=_FIX.format(patch=patch)
        ) from error
    if result == data:
        raise PatchError(
            f"{patch.id}: matched 0 places in {path}: the file would not change",
            hint=_FIX.format(patch=patch),
        )
    if path.endswith(".py") and (problem := compile_problem(path, result)):
        raise PatchError(
            f"{patch.id}: {path} would not compile after the edit: {problem}",
            hint=_FIX.format(patch=patch),
        )
    return tuple(splices)


_FIX = "The patch is at fault; see {patch.folder}/patch.toml."


def _run(source: SourceFile, patch: Patch, edit: Edit) -> list[Splice]:
    codemod = load_codemod(patch, edit)
    try:
        matches = codemod(source, patch, edit.params)
    except PatchError as error:
        raise PatchError(f"{patch.id}: {error.message}", hint=error.hint) from error
    except (Exception, SystemExit) as error:
        raise PatchError(
            f"{patch.id}: codemod {edit.codemod} failed on {source.path}: "
            f"{type(error).__name__}: {error}",
            hint=_FIX.format(patch=patch),
        ) from error
    if not isinstance(matches, list) or not all(_is_match(m) for m in matches):
        raise PatchError(
            f"{patch.id}: codemod {edit.codemod} must return a list of Match",
            hint=_FIX.format(patch=patch),
        )
    found = [m for m in matches if any(s.text != source.data[s.start : s.end] for s in m.splices)]
    if len(found) != edit.matches:
        places = "".join(f"; {m.where}" for m in found)
        count = f"{len(found)} place{'s' * (len(found) != 1)}"
        raise PatchError(
            f"{patch.id}: {edit.codemod} matched {count} in {source.path}, "
            f"must match {edit.matches}{places}",
            hint="Make what it looks for longer, name the function it is inside, or raise matches."
            if len(found) > edit.matches
            else f"{_describe(edit)} is not in this file as the patch knows it; "
            "the installed release may need another patch.",
        )
    splices = [splice for match in found for splice in match.splices]
    if any(source.splits_character(at) for s in splices for at in (s.start, s.end)):
        raise PatchError(
            f"{patch.id}: {edit.codemod} would split a character of {source.path}",
            hint=_FIX.format(patch=patch),
        )
    return splices


def _is_match(value: object) -> bool:
    return (
        isinstance(value, Match)
        and isinstance(value.splices, tuple)
        and all(
            isinstance(s, Splice)
            and (type(s.start), type(s.end), type(s.text)) == (int, int, bytes)
            for s in value.splices
        )
    )


def _describe(edit: Edit) -> str:
    name = edit.params.get("function") or edit.params.get("inside")
    if not isinstance(name, str):
        return "What it looks for"
    return f"Function {name!r}" if "function" in edit.params else f"The block in function {name!r}"


def load_codemod(patch: Patch, edit: Edit) -> Codemod:
    """Return the codemod an edit names; ``codemod.py:function`` runs the patch's own code.

    Raises PatchError when there is no such codemod, or the user has not allowed that code.
    """
    if edit.codemod.startswith(CODE + ":"):
        return _load_own(patch, edit.codemod.partition(":")[2])
    from patchkit.codemods import CODEMODS

    if edit.codemod not in CODEMODS:
        raise PatchError(
            f"{patch.id}: there is no codemod {edit.codemod!r}",
            hint=f"Known are {', '.join(sorted(CODEMODS))}, or 'codemod.py:function'.",
        )
    return CODEMODS[edit.codemod]


def _load_own(patch: Patch, name: str) -> Codemod:
    if patch.barred:
        raise PatchError(
            f"{patch.id}: its {CODE} may not run: {patch.barred}",
            hint=f"Read {patch.folder}/{CODE}, then: patchkit allow {shlex.quote(patch.folder)}",
        )
    module = types.ModuleType(f"patchkit_codemod_{patch.id.replace('-', '_')}")
    sys.modules[module.__name__] = module  # dataclasses look there
    try:
        code = compile(patch.snippets[CODE], f"{patch.folder}/{CODE}", "exec", dont_inherit=True)
        exec(code, vars(module))
        function: Codemod = vars(module)[name]
    except (Exception, SystemExit) as error:
        raise PatchError(
            f"{patch.id}: {CODE} cannot be loaded: {type(error).__name__}: {error}",
            hint=_FIX.format(patch=patch),
        ) from error
    return function
