"""Wheels for tests: real ones fetched with pip into a cache, and small ones made on the spot."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

CACHE = Path(
    os.environ.get("PATCHKIT_TEST_CACHE") or Path(__file__).resolve().parents[1] / ".cache/wheels"
)


WHEEL = b"""\
Wheel-Version: 1.0
Generator: tests
Root-Is-Purelib: true
Tag: py3-none-any
"""


def flashinfer_wheel(version: str) -> Path:
    """Return the wheel of a FlashInfer release, fetched once for all tests and processes."""
    pattern = f"flashinfer_python-{version}-*.whl"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(CACHE.glob(pattern)):
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            subprocess.run([*command, "-d", CACHE, f"flashinfer-python=={version}"], check=True)
    return next(CACHE.glob(pattern))


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes],
    *,
    modes: Mapping[str, int] | None = None,
) -> Path:
    """Write a wheel with these files and a right RECORD; returns its path."""
    stem = name.replace("-", "_").replace(".", "_").lower()
    info = f"{stem}-{version}.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": WHEEL,
    }
    rows = [f"{path},{record_hash(data)},{len(data)}" for path, data in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    wheel = folder / f"{stem}-{version}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in content.items():
            entry = zipfile.ZipInfo(path, (2024, 1, 2, 3, 4, 6))
            entry.external_attr = ((modes or {}).get(path, 0o644) | 0o100000) << 16
            archive.writestr(entry, data)
    return wheel


def record_hash(data: bytes) -> str:
    """Return the hash column of RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "sha256=" + digest.decode().rstrip("=")


def unpack(wheel: Path, site: Path) -> Path:
    """Unpack a pure wheel as an installer would; returns the folder."""
    site.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        for entry in archive.infolist():
            if mode := (entry.external_attr >> 16) & 0o777:
                (site / entry.filename).chmod(mode)
    return site
