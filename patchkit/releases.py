"""Releases that are not installed: listed, fetched with pip or uv, and unpacked into a folder."""

from __future__ import annotations

import base64
import email.parser
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from patchkit.errors import PatchkitError

# What zipfile and tarfile raise for damaged, encrypted or strange archives.
_UNUSABLE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
)
# The newest few of all the versions that pip lists, lowest first.
_VERSIONS = re.compile(r"\(from versions: [^()]*, ([^,()]+(?:, [^,()]+){4})\)")
_TRY = "Try it yourself: pip download --no-deps "


def install(requirement: str, folder: Path) -> None:
    """Install one distribution, without what it needs, into a folder, with pip or uv.

    Raises PatchkitError with the end of the installer's output when it fails.
    """
    _run([*_installer(), "--no-deps", "--target", str(folder), requirement], requirement)


def unpacked(given: str, folder: Path) -> Path:
    """Put a release into ``folder`` as if it was installed there, and return the folder.

    ``given`` is a requirement such as ``flashinfer-python==0.6.12``, a wheel or sdist file, or a
    folder with a ``.dist-info``. Raises PatchkitError when it cannot be had.
    """
    path = Path(given)
    if path.is_dir():
        try:
            shutil.copytree(path, folder, symlinks=True, dirs_exist_ok=True)
        except OSError as error:  # shutil.Error is one, with all that happened
            raise PatchkitError(
                f"{path} cannot be copied: {error}", hint="Give a folder of plain files."
            ) from error
        return folder
    if path.is_file():
        return _unpack(path, folder)
    with tempfile.TemporaryDirectory(prefix="patchkit-fetch-") as fetched:
        return _unpack(_download(_exact(given), Path(fetched)), folder)


def _exact(given: str) -> str:
    try:
        requirement = Requirement(given)
    except InvalidRequirement:
        raise PatchkitError(
            f"{given}: neither a file, a folder, nor a requirement",
            hint="Give a release such as flashinfer-python==0.6.12, or a wheel.",
        ) from None
    if len(requirement.specifier) != 1 or next(iter(requirement.specifier)).operator != "==":
        raise PatchkitError(
            f"{given} does not name one release", hint=f"Write {requirement.name}==VERSION."
        )
    return given


def _download(requirement: str, folder: Path) -> Path:
    """Fetch a wheel, or, where there is none, the sdist."""
    command = [*_pip(), "download", "--quiet", "--no-deps", "-d", str(folder), requirement]
    try:
        _run([*command, "--only-binary=:all:"], requirement)
    except PatchkitError:
        # The metadata of an sdist is made by its own build script, which may need what is here.
        _run([*command, "--no-binary=:all:", "--no-build-isolation"], requirement)
    return next(folder.iterdir())


def _unpack(file: Path, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if file.suffix == ".whl":
            with zipfile.ZipFile(file) as wheel:
                wheel.extractall(folder)
        else:
            _unpack_sdist(file, folder)
    except _UNUSABLE as error:
        raise PatchkitError(f"{file} cannot be unpacked: {error}", hint="Fetch it anew.") from error
    return folder


def _unpack_sdist(file: Path, folder: Path) -> None:
    """Lay out the packages of an sdist as an installer would, with a METADATA and a RECORD."""
    with tempfile.TemporaryDirectory(prefix="patchkit-sdist-") as name:
        with tarfile.open(file) as archive:
            archive.extractall(name, filter="data")
        root = next(Path(name).iterdir(), Path(name))
        for package in sorted(p.parent for p in root.glob("*/__init__.py")):
            if package.name not in ("tests", "docs"):
                shutil.copytree(package, folder / package.name)
        text = (root / "PKG-INFO").read_text("utf-8", "replace")
    info = folder / f"{_stem(text)}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(text, "utf-8")
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    rows = [f"{p.relative_to(folder).as_posix()},{_hash(p)}," for p in files]
    (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,", ""]), "utf-8")


def _stem(metadata: str) -> str:
    """Return ``name-version``, fit for a file name; raises ValueError for what is neither."""
    headers = email.parser.HeaderParser().parsestr(metadata)
    name, version = headers["Name"] or "", Version(headers["Version"] or "")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise ValueError(f"{name!r} is no name of a distribution")
    return f"{canonicalize_name(name).replace('-', '_')}-{version}"


def _hash(file: Path) -> str:
    digest = hashlib.sha256(file.read_bytes()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")


def releases_of(distribution: str) -> list[Version]:
    """Return every release pip finds, pre-releases too, lowest first; raises PatchkitError."""
    command = [*_pip(), "index", "versions", "--pre", distribution]
    found = re.search(r"Available versions: (.*)", _run(command, distribution))
    versions = []
    for text in (found.group(1) if found else "").split(","):
        try:
            versions.append(Version(text.strip()))
        except InvalidVersion:
            continue
    return sorted(versions)


def _pip() -> list[str]:
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if path := shutil.which("pip3"):
        return [path]
    raise PatchkitError("there is no pip here to fetch releases with", hint="Install pip.")


def _installer() -> list[str]:
    if find_spec("pip") is None and (path := shutil.which("uv")):
        return [path, "pip", "install", "--quiet"]
    return [*_pip(), "install", "--quiet"]


def _run(command: Sequence[str], what: str) -> str:
    environ = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environ)
    except OSError as error:
        raise PatchkitError(f"cannot run {command[0]}: {error.strerror}", hint="") from error
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        tail = _VERSIONS.sub(lambda found: f"(from versions: ..., {found[1]})", tail)
        raise PatchkitError(f"fetching {what} failed:\n{tail}", hint=_TRY + what)
    return done.stdout
