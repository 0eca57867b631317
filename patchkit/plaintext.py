"""Foreign texts made fit to show: control characters become visible, terminal colours go."""

from __future__ import annotations

import re

_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_ODD = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # controls other than tab and newline
    "\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ufeff"  # text directions, separators
    "\\ud800-\\udfff\\ufffe\\uffff]"  # what UTF-8 or XML cannot hold
)


def visible(text: str) -> str:
    r"""Write control, direction and unencodable characters as ``\x00`` or ``\u202e``."""
    return _ODD.sub(_escape, text)


def plain(text: str) -> str:
    """Drop the colour codes of terminals and make what is left visible."""
    return visible(_COLOURS.sub("", text))


def one_line(text: str) -> str:
    """Return a text as ``plain`` does, its lines joined by spaces."""
    return " ".join(line.strip() for line in plain(text).split("\n")).strip()


def _escape(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
