"""Where patches come from: shipped with patchkit, the project's ``./patches``, ``--patches DIR``.

Only reads files. No code of a patch runs here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from patchkit.errors import ManifestError, PatchkitError
from patchkit.manifest import BARRED, MANIFEST, Patch, parse_patch, parse_toml
from patchkit.reading import read_regular

PROJECT_FILES = ("patchkit.toml", "pyproject.toml")
_LARGEST = 1 << 20
_LARGEST_TOML = 1 << 18
_MOST_FILES = 1000
_LARGEST_FOLDER = 1 << 24


@dataclass(frozen=True)
class Project:
    """A project's choice: which patches it wants and where its own are. ``file`` may be ''."""

    file: str = ""
    patches: tuple[str, ...] | None = None
    folders: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Catalog:
    """Every patch known, sorted by id, and which of them were shipped with patchkit."""

    patches: tuple[Patch, ...]
    shipped: frozenset[str] = frozenset()

    def get(self, patch_id: str, asked_by: str = "") -> Patch:
        """Return the patch with this id; raises PatchkitError, naming who asks, for none."""
        for patch in self.patches:
            if patch.id == patch_id:
                return patch
        raise PatchkitError(
            f"{asked_by}there is no patch {patch_id!r}",
            hint="See what there is with: patchkit list"
            + _similar(patch_id, [p.id for p in self.patches]),
        )

    def find(self, patch_id: str) -> Patch | None:
        """Return the patch with this id, or None."""
        return next((p for p in self.patches if p.id == patch_id), None)


def _similar(name: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def shipped_folder() -> Path:
    """Return the folder of shipped patches, in a wheel or in a checkout."""
    here = Path(__file__).resolve().parent
    return here / "_patches" if (here / "_patches").is_dir() else here.parent / "patches"


def _never(_: Patch) -> str:
    return BARRED


def load_catalog(
    folders: Sequence[str | Path],
    project: Project,
    cwd: Path,
    barred: Callable[[Patch], str] = _never,
) -> Catalog:
    """Read all patches. Raises ManifestError naming every problem in every folder.

    ``barred`` says why the code of a patch that was not shipped may not run ('': it may).
    """
    shipped = _patch_folders(shipped_folder())
    own = [f for given in folders for f in patches_in(Path(given), "--patches")]
    own += [f for given in project.folders for f in patches_in(given, f"{project.file}: folders:")]
    if not project.folders:
        own += _patch_folders(cwd / "patches")
    found: dict[str, Patch] = {}
    problems: list[str] = []
    for folder in [*shipped, *own]:
        try:
            patch = read_patch(folder)
            why = barred(patch) if patch.has_code and folder not in shipped else ""
            _add(found, replace(patch, barred=why))
        except ManifestError as error:
            problems.append(error.message)
    if problems:
        raise ManifestError("\n".join(problems), hint="See docs/writing-a-patch.md.")
    patches = tuple(found[k] for k in sorted(found))
    return Catalog(patches, frozenset(folder.name for folder in shipped))


def _add(found: dict[str, Patch], patch: Patch) -> None:
    other = found.setdefault(patch.id, patch)
    if other.barred and not patch.barred:
        found[patch.id] = patch
    if other.digest != patch.digest:
        raise ManifestError(
            f"two different patches are called {patch.id}: {other.folder} and {patch.folder}"
        )


def patches_in(folder: Path, asked_by: str) -> list[Path]:
    """Return a patch folder, or those a folder holds; raises ManifestError for none."""
    try:
        if (folder / MANIFEST).exists():
            return [folder]
        found = _patch_folders(folder)
    except OSError as error:
        raise ManifestError(
            f"{asked_by} {folder}: cannot be read: {error.strerror}", hint="Give another folder."
        ) from error
    if not found:
        what = "no patch in this folder" if folder.is_dir() else "no such folder"
        raise ManifestError(
            f"{asked_by} {folder}: {what}",
            hint=f"A patch is a folder with a {MANIFEST}; give it, or the folder it lies in.",
        )
    return found


def _patch_folders(folder: Path) -> list[Path]:
    return sorted(manifest.parent for manifest in folder.glob(f"*/{MANIFEST}"))


def read_patch(folder: Path) -> Patch:
    """Read one patch folder; raises ManifestError naming file and field of each problem."""
    files: dict[str, str] = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if not _ignored(name) and _is_part(file, folder):
            files[name] = _read_text(file, _LARGEST_TOML if name == MANIFEST else _LARGEST)
            if len(files) > _MOST_FILES or sum(map(len, files.values())) > _LARGEST_FOLDER:
                raise ManifestError(
                    f"{folder}: a patch has at most {_MOST_FILES} files and {_LARGEST_FOLDER} bytes"
                )
    return parse_patch(folder.resolve().name, files, str(folder))


def _is_part(file: Path, folder: Path) -> bool:
    """Say whether there is a file to read; raises ManifestError for what a patch must not hold."""
    if file.is_dir() or not file.exists():  # a dangling link is nothing
        return False
    if file.is_symlink() and folder.resolve() not in file.resolve().parents:
        raise ManifestError(f"{file}: is a link that leads out of the patch")
    return True


def _ignored(name: str) -> bool:
    parts = name.split("/")
    return "__pycache__" in parts or any(part.startswith(".") for part in parts)


def _read_text(file: Path, largest: int) -> str:
    try:
        return read_regular(file, largest).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(
            f"{file}: cannot be read as UTF-8 text: {error}", hint="Fix the file."
        ) from error
    except OSError as error:
        raise ManifestError(
            f"{file}: cannot be read: {error.strerror}", hint="Fix the file."
        ) from error


def load_project(cwd: Path) -> Project:
    """Return ``patchkit.toml`` or ``[tool.patchkit]`` of the nearest folder that has one.

    Keys: ``patches`` (ids to apply) and ``folders`` (where the project's own patches are,
    relative to the file). Raises ManifestError naming file and field.
    """
    for folder in [cwd, *cwd.parents]:
        for name in PROJECT_FILES:
            file = folder / name
            if not _is_file(file):
                continue
            text = _read_text(file, _LARGEST_TOML)
            if name != "patchkit.toml" and "patchkit" not in text:
                continue  # somebody else's, and none of ours to find fault with
            table = parse_toml(text, str(file))
            if name == "patchkit.toml":
                return _read_project(file, table)
            tool = _table(file, "tool", table.get("tool", {}))
            if "patchkit" in tool:
                return _read_project(file, _table(file, "tool.patchkit", tool["patchkit"]))
    return Project()


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError as error:
        raise ManifestError(
            f"{file}: cannot be looked for: {error.strerror}",
            hint="Start patchkit in a folder that you may read, such as: cd /",
        ) from error


def _table(file: Path, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ManifestError(f"{file}: {key}: must be a table", hint="Fix the file.")
    return value


def _read_project(file: Path, table: dict[str, Any]) -> Project:
    problems = [f"{key}: unknown key" for key in sorted(set(table) - {"patches", "folders"})]
    for key in ("patches", "folders"):
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            problems.append(f"{key}: must be a list of strings")
        elif odd := [v for v in value if not v.isprintable()]:
            problems.append(f"{key}: {odd[0]!r} holds a control or invisible character")
    if problems:
        lines = "\n".join(f"  {p}" for p in problems)
        raise ManifestError(
            f"{file}: {len(problems)} problem{'s' * (len(problems) > 1)}\n{lines}",
            hint='Known keys are patches = ["id", ...] and folders = ["dir", ...].',
        )
    patches = tuple(table["patches"]) if "patches" in table else None
    folders = tuple(file.parent / folder for folder in table.get("folders", []))
    return Project(str(file), patches, folders)
