"""Cached bytecode that Python would run although the source says something else."""

from __future__ import annotations

import _imp
from pathlib import Path

from patchkit.reading import read_regular

_CHECKED = 0b10
_HASHED = 0b01


def stale_bytecode(cached: Path, source: Path) -> bool:
    """Say whether ``cached`` would be run without being the bytecode of ``source``.

    Only hash-based bytecode that Python does not check can be: the other kinds carry the source's
    time and size, or its hash, and Python compares them itself (PEP 552).
    """
    try:
        header, code = read_regular(cached)[:16], read_regular(source)
    except OSError:
        return False
    flags = int.from_bytes(header[4:8], "little")
    if len(header) < 16 or not flags & _HASHED or flags & _CHECKED:
        return False
    magic = int.from_bytes(header[:4], "little")
    return header[8:16] != _imp.source_hash(magic, code)
