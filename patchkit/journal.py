"""A file as it is, a change to it, and the journal of changes as JSON. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from patchkit.errors import LedgerError
from patchkit.ledger import (
    Bytecode,
    bytecode_from_dict,
    inside,
    link_text,
    newer_state,
    permission_bits,
    read_json,
    sha256_name,
    time_ns,
    typed,
)

JOURNAL_SCHEMA = 1


@dataclass(frozen=True)
class Snapshot:
    """A file as it is: bytes, permission bits, mtime (ns), and its link text if it is a link.

    ``uid`` and ``gid`` are kept for the file that replaces it.
    """

    data: bytes
    mode: int
    mtime_ns: int
    link: str | None = None
    uid: int = -1
    gid: int = -1

    @property
    def digest(self) -> str:
        """The sha256 (hex) of the bytes."""
        return digest_of(self.data)


@dataclass(frozen=True)
class Change:
    """One file to change: what is there now, and what is to be there (None: no file).

    ``bytecode`` is put back after the file; all other bytecode of the file is removed.
    """

    path: str
    before: Snapshot | None
    after: Snapshot | None
    bytecode: tuple[Bytecode, ...] = ()
    folders: tuple[str, ...] = ()


def digest_of(data: bytes) -> str:
    """Return the sha256 of ``data`` in hex."""
    return hashlib.sha256(data).hexdigest()


def text_digest(text: str | None) -> str | None:
    """Return the sha256 of a text in hex (None: no text)."""
    return None if text is None else digest_of(text.encode())


def snapshot_to_dict(snapshot: Snapshot | None) -> dict[str, Any] | None:
    """Return what the journal says of a file; its bytes are kept by their digest."""
    if snapshot is None:
        return None
    return {
        "sha256": snapshot.digest,
        "mode": snapshot.mode,
        "mtime_ns": snapshot.mtime_ns,
        "link": snapshot.link,
        "uid": snapshot.uid,
        "gid": snapshot.gid,
    }


def same_as(current: Snapshot | None, value: dict[str, Any] | None) -> bool:
    """Say whether a file is what the journal says: bytes and link."""
    return identity(value) == (current and (current.digest, current.link))


def identity(value: dict[str, Any] | None) -> tuple[str, str | None] | None:
    """Return what makes a file of the journal that file: its digest and its link."""
    return None if value is None else (value["sha256"], value["link"])


def load_journal(text: str, where: str) -> dict[str, Any]:
    """Read a journal, checked completely; raises LedgerError when it is damaged."""
    try:
        document: dict[str, Any] = read_json(text)
        if typed(document["schema"], int) > JOURNAL_SCHEMA:
            raise newer_state(where, document["schema"], JOURNAL_SCHEMA)
        _check_journal(document)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LedgerError(
            f"{where} is damaged ({error})",
            hint="See what can be put right with: patchkit repair --dry-run",
        ) from error
    return document


def _check_journal(document: dict[str, Any]) -> None:
    if document["schema"] != JOURNAL_SCHEMA:
        raise ValueError(f"schema {document['schema']}")
    _ = document["ledger_before"], document["ledger_after"]
    for version in typed(document["versions"], dict).values():
        typed(version, str)
    for name in typed(document["objects"], list):
        sha256_name(name)
    for change in typed(document["changes"], list):
        for path in [change["path"], *typed(change["folders"], list)]:
            inside(path)
        for item in typed(change["bytecode"], list):
            bytecode_from_dict(item)
        for value in (change["before"], change["after"]):
            if value is not None:
                _check_snapshot(value)


def _check_snapshot(value: dict[str, Any]) -> None:
    sha256_name(value["sha256"])
    permission_bits(value["mode"])
    time_ns(value["mtime_ns"])
    link_text(value["link"])
    for key in ("uid", "gid"):
        if not -1 <= typed(value[key], int) < 2**32:
            raise ValueError(f"{key} {value[key]}")
