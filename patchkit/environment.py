"""The target: its interpreter, its site-packages, and the distributions in them. Only reads.

The target interpreter is asked for its ``sys.path`` in a fresh process; nothing installed there
is imported. Finding one distribution lists folder names and opens that distribution's files only.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from packaging.utils import canonicalize_name
from packaging.version import Version

from patchkit.errors import TargetError
from patchkit.reading import read_regular

STATE_FOLDER = ".patchkit"

# Runs in the target interpreter: plain enough for Python 2.7 and for one without pip.
_ASK = """\
import json, sys
print("\\n<patchkit>" + json.dumps([p for p in sys.path if p]) + "</patchkit>")
"""

#: Brings back what a distribution installed; followed by a requirement.
REINSTALL = "pip install --force-reinstall --no-deps"


@dataclass(frozen=True)
class Target:
    """Where to look for distributions: ``path`` in the order the target interpreter searches.

    ``python`` is the interpreter that runs probes. A folder that is a target (``is_folder``) is
    put first on the path of that interpreter.
    """

    path: tuple[Path, ...]
    described: str
    python: str | None = None
    is_folder: bool = False


@dataclass(frozen=True)
class RecordRow:
    """One row of RECORD: the sha256 in hex, or None where RECORD gives none."""

    path: str
    sha256: str | None


@dataclass(frozen=True)
class Distribution:
    """An installed distribution: the folder that holds it, and its ``.dist-info``."""

    name: str
    version: Version
    site_packages: Path
    dist_info: Path

    @property
    def key(self) -> str:
        """The normalised name (PEP 503)."""
        return canonicalize_name(self.name)

    @property
    def requirement(self) -> str:
        """What to give pip to install exactly this again."""
        return f"{self.name}=={self.version}"

    @cached_property
    def record(self) -> Mapping[str, RecordRow]:
        """RECORD by path; raises TargetError when there is none to compare with."""
        hint = f"Reinstall it with: {REINSTALL} {self.requirement}"
        try:
            text = read_regular(self.dist_info / "RECORD").decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TargetError(
                f"{self.name} {self.version} has no readable RECORD, so nothing shows which "
                "bytes are original",
                hint=hint,
            ) from error
        try:
            return parse_record(text)
        except csv.Error as error:
            raise TargetError(
                f"{self.dist_info / 'RECORD'} is damaged: {error}", hint=hint
            ) from error

    @cached_property
    def editable(self) -> str:
        """The checkout an editable install points to, or ''."""
        try:
            info = json.loads(read_regular(self.dist_info / "direct_url.json", 1 << 20))
            if info.get("dir_info", {}).get("editable"):
                return str(info.get("url", "an unknown folder")).removeprefix("file://")
        except (OSError, ValueError, AttributeError, RecursionError):
            pass
        return ""


def parse_record(text: str) -> dict[str, RecordRow]:
    """Parse RECORD (packaging.python.org, "Recording installed projects").

    A path that is listed twice, with two digests, is taken as listed without one.
    """
    rows: dict[str, RecordRow] = {}
    for row in csv.reader(io.StringIO(text)):
        if row and row[0]:
            path = os.path.normpath(row[0]).replace(os.sep, "/")
            found = RecordRow(path, _hex_digest(row[1] if len(row) > 1 else ""))
            known = rows.setdefault(path, found)
            rows[path] = found if known == found else RecordRow(path, None)
    return rows


def _hex_digest(field: str) -> str | None:
    algorithm, _, value = field.partition("=")
    if algorithm != "sha256":
        return None
    try:
        digest = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except ValueError:
        return None
    return digest.hex() if len(digest) == 32 else None


def find_target(
    python: str | None, site_packages: str | None, environ: Mapping[str, str] = os.environ
) -> Target:
    """Choose the target: a folder, an interpreter, ``$VIRTUAL_ENV``, or the running interpreter.

    With a folder, ``python`` only says which interpreter runs probes.

    Raises TargetError when what was named is not there or does not answer.
    """
    if site_packages is not None:
        return _folder_target(Path(site_packages), python, environ)
    if python is not None:
        return _interpreter_target(_resolve_python(python))
    active = environ.get("VIRTUAL_ENV")
    if active and not os.path.isdir(active):
        raise TargetError(
            f"$VIRTUAL_ENV is {active}, and there is no such folder",
            hint="Unset it, or name a target with --python PATH or --site-packages DIR.",
        )
    if active and Path(active).resolve() != Path(sys.prefix).resolve():
        return _interpreter_target(_resolve_python(active))
    return Target(_folders(sys.path), f"python {sys.executable}", sys.executable)


def _folder_target(folder: Path, python: str | None, environ: Mapping[str, str]) -> Target:
    if not folder.is_dir():
        raise TargetError(
            f"--site-packages {folder}: no such folder",
            hint="Give the folder that holds the .dist-info folders.",
        )
    given = python or environ.get("VIRTUAL_ENV")
    chosen = _resolve_python(given) if given else sys.executable
    if python and shutil.which(chosen) is None:
        raise TargetError(
            f"--python {python}: no such interpreter",
            hint="Give the interpreter that uses the folder, or leave --python out.",
        )
    return Target((folder.resolve(),), f"folder {folder}", chosen, is_folder=True)


def _resolve_python(given: str) -> str:
    """Return the interpreter for a path to one, to an environment, or for a name on PATH."""
    path = Path(given)
    if path.is_dir():
        for name in ("bin/python", "bin/python3", "Scripts/python.exe"):
            if (path / name).exists():
                return os.path.abspath(path / name)
        raise TargetError(
            f"{given}: no interpreter in this folder",
            hint="Give an interpreter with --python, or a folder with --site-packages.",
        )
    return os.path.abspath(given) if os.sep in given else given


def _interpreter_target(python: str) -> Target:
    try:
        answer = subprocess.run(
            [python, "-c", _ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="ascii",
            errors="replace",  # the answer is ASCII; what else is printed there may be anything
            timeout=60,
            env={k: v for k, v in os.environ.items() if k != "PYTHONHOME"},
            cwd="/",
        )
        body = answer.stdout.rpartition("<patchkit>")[2].partition("</patchkit>")[0]
        path = json.loads(body)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        if isinstance(error, FileNotFoundError) and not os.path.exists(python):
            what = "file" if os.sep in python else "command on the PATH"
            raise TargetError(
                f"--python {python}: there is no such {what}",
                hint="Give an interpreter or an environment, or a folder with --site-packages.",
            ) from error
        raise TargetError(
            f"--python {python}: it does not run or does not answer ({_no_answer(error)})",
            hint="Try it yourself: "
            f"{python} -c 'import sys; print(sys.path)'; or name the folder with --site-packages.",
        ) from error
    return Target(_folders(path), f"python {python}", python)


def _no_answer(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "it cannot be started"
    if isinstance(error, ValueError):
        return "it is no Python interpreter, or a broken one"
    return "it takes longer than a minute"


def _folders(path: Iterable[str]) -> tuple[Path, ...]:
    seen: dict[Path, None] = {}
    for entry in path:
        if entry and os.path.isdir(entry):
            seen.setdefault(Path(entry).resolve())
    return tuple(seen)


def find_distribution(target: Target, name: str, *, certain: bool = False) -> Distribution | None:
    """Return the distribution of that name (any spelling, PEP 503), or None.

    As for the interpreter, the first folder of the path that has it wins, and where it may not
    look there is nothing (unless ``certain``). Raises TargetError when a folder cannot be listed
    or holds two of that name, when it is an egg, or when its metadata is unreadable.
    """
    key = canonicalize_name(name)
    for folder in target.path:
        found = _named_metadata(folder, key, certain)
        usable = [f for f in found if f.suffix == ".dist-info" and (f / "METADATA").is_file()]
        if len(usable) > 1:
            names = " and ".join(sorted(f.name for f in usable))
            raise TargetError(
                f"{folder} holds two installations of {key}: {names}",
                hint=_keep_one(target, folder, key),
            )
        if usable:
            return _read_distribution(folder, usable[0])
        if eggs := [f for f in found if f.suffix != ".dist-info"]:
            raise TargetError(
                f"{key} is installed as {eggs[0].name}, which has no RECORD of original bytes",
                hint=f"Reinstall it from a wheel: pip install --force-reinstall {key}",
            )
    return None


def _keep_one(target: Target, folder: Path, key: str) -> str:
    """Say how to get from two installations of a distribution to one."""
    python = shlex.quote(target.python or "python")
    environment = f"{python} -m pip uninstall {key}, the same again, then install one"
    fresh = shlex.quote(f"{folder}-new")
    given = (
        "pip install --upgrade --target leaves the old one's metadata behind. Install into a fresh "
        f"folder, and use that in place of {folder}: pip install --target {fresh} {key}==VERSION"
    )
    if target.is_folder:
        return given
    if target.python:
        return f"Remove both: {environment}."
    return f"In an environment, remove both: {environment}. In a folder: {given}"


def _named_metadata(folder: Path, key: str, certain: bool) -> list[Path]:
    found = []
    try:
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if isinstance(error, PermissionError) and not certain:
            return []
        raise TargetError(
            f"cannot list {folder}: {error.strerror}",
            hint="Mend the cause, then run the same command again.",
        ) from error
    with entries:
        for entry in entries:
            stem, dot, suffix = entry.name.rpartition(".")
            if not dot or suffix not in ("dist-info", "egg-info", "egg-link", "egg"):
                continue
            if canonicalize_name(_name_in(stem, suffix)) == key:
                found.append(folder / entry.name)
    return found


def _name_in(stem: str, suffix: str) -> str:
    if suffix == "egg-link":
        return stem
    return stem.rpartition("-")[0] if suffix == "dist-info" else stem.split("-")[0]


def _read_distribution(folder: Path, dist_info: Path) -> Distribution:
    headers: dict[str, str] = {}
    try:
        text = read_regular(dist_info / "METADATA").decode("utf-8", "replace")
        for line in text.splitlines():
            if not line.strip():
                break
            key, colon, value = line.partition(":")
            if colon and not line[0].isspace():
                headers.setdefault(key.lower(), value.strip())
        version = Version(headers["version"])
        return Distribution(_name(headers["name"]), version, folder, dist_info)
    except (OSError, KeyError, ValueError) as error:  # InvalidVersion, or a number too long
        raise TargetError(
            f"{dist_info}: its METADATA cannot be used ({type(error).__name__}: {error})",
            hint="Reinstall the distribution.",
        ) from error


def _name(text: str) -> str:
    """Return a name fit for a command to type; raises ValueError for what is none."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", text):
        raise ValueError(f"Name: {text[:200]!r}")
    return text


def distributions_in(folder: Path) -> list[Distribution]:
    """Return the distributions of a folder that have metadata and a RECORD to be read."""
    found = []
    for dist_info in sorted(folder.glob("*.dist-info")):
        with contextlib.suppress(TargetError):
            distribution = _read_distribution(folder, dist_info)
            if distribution.record:
                found.append(distribution)
    return found


def rows_with(
    folder: Path, digests: Collection[str]
) -> tuple[list[tuple[Distribution, RecordRow]], bool]:
    """Return what the RECORDs of a folder list with these digests, and whether all could be read.

    A RECORD that mentions none of them is not parsed.
    """
    raw = [base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=") for sha256 in digests]
    found, whole = [], True
    for dist_info in sorted(folder.glob("*.dist-info")) if digests else ():
        try:
            data = read_regular(dist_info / "RECORD")
            data.decode("utf-8")
            if any(digest in data for digest in raw):
                distribution = _read_distribution(folder, dist_info)
                rows = distribution.record.values()
                found += [(distribution, row) for row in rows if row.sha256 in digests]
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError, TargetError):
            whole = False
    return found, whole


def other_owners(distribution: Distribution, paths: Sequence[str]) -> dict[str, list[str]]:
    """Return for each path the other distributions of that folder whose RECORD lists it otherwise.

    A path that another RECORD lists with the same hash is shared, not contested.
    """
    contested: dict[str, list[str]] = {}
    needles = [path.replace('"', '""').encode() for path in paths]
    for record in sorted(distribution.site_packages.glob("*.dist-info/RECORD")):
        if record.parent == distribution.dist_info:
            continue
        try:
            data = read_regular(record)
        except OSError:
            continue
        if not any(needle in data for needle in needles):
            continue
        try:
            rows = parse_record(data.decode("utf-8", "replace"))
        except csv.Error:
            continue
        for path in paths:
            mine = distribution.record.get(path)
            if path in rows and (mine is None or rows[path].sha256 != mine.sha256):
                contested.setdefault(path, []).append(record.parent.name.removesuffix(".dist-info"))
    return contested


def parent_folders(path: str) -> list[str]:
    """Return the folders that ``path`` lies in, outermost first."""
    return [p.as_posix() for p in reversed(PurePosixPath(path).parents) if p.name]


def linked_folder(site_packages: Path, path: str) -> Path | None:
    """Return the first folder on the way to ``path`` that is a symbolic link, or None."""
    folder = site_packages
    for part in path.split("/")[:-1]:
        folder = folder / part
        if folder.is_symlink():
            return folder
    return None


def tree_digest(folder: Path) -> tuple[str, int]:
    """Return a sha256 over path, kind, mode, link text and bytes of all files, and their count."""
    digest, count = hashlib.sha256(), 0
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        kind = stat.S_IFMT(info.st_mode)
        digest.update(os.fsencode(path.relative_to(folder)))
        digest.update(f"\0{kind}\0{stat.S_IMODE(info.st_mode)}\0".encode())
        if path.is_symlink():
            digest.update(os.fsencode(os.readlink(path)))
        elif path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        count += path.is_file()
    return digest.hexdigest(), count


def reinstall_hint(requirement: str) -> str:
    """Say what brings back the originals of a distribution that patches change."""
    return f"Reinstall it, then apply again: {REINSTALL} {requirement}"
