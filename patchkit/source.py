"""A file to edit: bytes, syntax tree, and offsets of nodes in it; what a codemod takes and gives.

LibCST only *locates* here. What it would generate is never written: a codemod returns splices,
so every byte outside the edited nodes is the byte that was there. Pure.
"""

from __future__ import annotations

import ast
import codecs
import re
import tokenize
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import TYPE_CHECKING, Any

from patchkit.errors import PatchError
from patchkit.manifest import Patch
from patchkit.splice import Splice

if TYPE_CHECKING:
    import libcst as cst


_LARGEST_TREE = 1 << 23


@dataclass(frozen=True)
class Match:
    """One place a codemod found: a description for people and what to change there."""

    where: str
    splices: tuple[Splice, ...]


Codemod = Callable[["SourceFile", Patch, Mapping[str, Any]], "list[Match]"]


class SourceFile:
    """A file to edit: its bytes, its syntax tree, and byte offsets of nodes in it.

    ``path`` is the POSIX path relative to site-packages and only used in messages.
    """

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.data = data

    @cached_property
    def encoding(self) -> str:
        """The codec of the text, without BOM: PEP 263 cookie for Python, UTF-8 for the rest."""
        if not self.path.endswith((".py", ".pyi")):
            return "utf-8"
        try:
            name, _ = tokenize.detect_encoding(BytesIO(self.data).readline)
        except SyntaxError as error:
            raise PatchError(
                f"{self.path}: cannot tell its encoding: {error.msg or error}",
                hint="The file is not valid Python; reinstall the distribution.",
            ) from error
        return "utf-8" if name == "utf-8-sig" else name

    @cached_property
    def text(self) -> str:
        """The file decoded (a BOM is kept as U+FEFF); raises PatchError naming file and byte."""
        try:
            text = self.data.decode(self.encoding)
        except UnicodeDecodeError as error:
            raise PatchError(
                f"{self.path}: byte {error.start} is not {self.encoding}",
                hint="The file cannot be edited safely; reinstall the distribution.",
            ) from error
        except LookupError as error:
            raise self._unusable_encoding() from error
        if self.encoding != "utf-8" and not _stateless(text, self.data, self.encoding):
            raise self._unusable_encoding()
        return text

    def _unusable_encoding(self) -> PatchError:
        return PatchError(
            f"{self.path}: places in text of encoding {self.encoding} cannot be told exactly",
            hint="The file cannot be edited safely.",
        )

    @cached_property
    def module(self) -> cst.Module:
        """The syntax tree; raises PatchError unless LibCST reproduces the file byte for byte."""
        return self._wrapper.module

    @cached_property
    def _wrapper(self) -> cst.MetadataWrapper:
        import libcst as cst

        if len(self.data) > _LARGEST_TREE:
            raise PatchError(
                f"{self.path}: larger than {_LARGEST_TREE} bytes",
                hint="Edit it with the replace_block codemod, which needs no syntax tree.",
            )
        text = self.text  # a clean error for undecodable bytes comes first
        # Python bounds how deep code may nest; LibCST overflows the stack and ends the process.
        if problem := compile_problem(self.path, self.data, ast.PyCF_ONLY_AST):
            raise PatchError(
                f"{self.path}: Python cannot parse it: {problem}",
                hint="The file is not valid for the Python that runs patchkit.",
            )
        try:
            module = cst.parse_module(text[len(self._bom) and 1 :])
            code = module.code
        except Exception as error:  # ParserSyntaxError, and whatever else a hostile file provokes
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise PatchError(
                f"{self.path}: LibCST cannot parse it: {reason[0]}",
                hint="If python itself accepts the file, edit it with the replace_block codemod.",
            ) from error
        if self._bom + code.encode(self.encoding) != self.data:
            raise PatchError(
                f"{self.path}: not byte-preserving: LibCST does not reproduce this file exactly",
                hint="Edit it with the replace_block codemod, which does not need LibCST.",
            )
        return cst.MetadataWrapper(module, unsafe_skip_copy=True)

    @property
    def _bom(self) -> bytes:
        return codecs.BOM_UTF8 if self.data.startswith(codecs.BOM_UTF8) else b""

    @cached_property
    def _spans(self) -> Mapping[cst.CSTNode, Any]:
        from libcst.metadata import ByteSpanPositionProvider

        return self._wrapper.resolve(ByteSpanPositionProvider)

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the byte offsets ``(start, end)`` of a node of :attr:`module`."""
        span = self._spans[node]  # in bytes of UTF-8, whatever the file's encoding
        return self._offset(span.start), self._offset(span.start + span.length)

    def _offset(self, utf8_offset: int) -> int:
        if self.encoding == "utf-8":
            return utf8_offset + len(self._bom)
        before = self.text.encode("utf-8")[:utf8_offset].decode("utf-8")
        return len(before.encode(self.encoding))

    def splits_character(self, offset: int) -> bool:
        """Say whether a byte offset lies inside a character (which UTF-8 cannot do unnoticed)."""
        if self.encoding == "utf-8":
            return False
        try:
            self.data[:offset].decode(self.encoding)
        except UnicodeDecodeError:
            return True
        return False

    def functions(self, qualname: str) -> list[cst.FunctionDef]:
        """Return every definition of a dotted name, also inside ``if``, ``try`` and ``with``.

        ``"f"`` finds module-level functions, ``"C.m"`` methods, ``"f.g"`` functions inside ``f``.
        """
        from patchkit.locate import find_functions

        return find_functions(self.module, qualname)

    def line_start(self, offset: int) -> int:
        """Return the offset of the first byte, behind a BOM, of the line that holds ``offset``."""
        end = max(self.data.rfind(b"\n", 0, offset), self.data.rfind(b"\r", 0, offset))
        return max(end + 1, len(self._bom))

    def line_of(self, offset: int) -> int:
        """Return the line number, from 1, of a byte offset."""
        return len(re.findall(rb"\r\n|\r|\n", self.data[: self.line_start(offset)])) + 1

    def indentation(self, offset: int) -> str:
        """Return the white space at the start of the line that holds ``offset``."""
        found = re.match(rb"[ \t\f]*", self.data[self.line_start(offset) :])
        return found.group().decode("ascii") if found else ""

    def newline(self, offset: int) -> bytes:
        """Return the line end that the line at ``offset`` uses, else the one before, else LF."""
        after = re.compile(rb"\r\n|\r|\n").search(self.data, offset)
        if after:
            return after.group()
        before = re.findall(rb"\r\n|\r|\n", self.data[:offset])
        return before[-1] if before else b"\n"

    def encode(self, text: str, offset: int) -> bytes:
        """Return ``text`` in the file's encoding, with the line ends used around ``offset``.

        Raises PatchError when the file's encoding cannot hold the text.
        """
        try:
            encoded = text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise PatchError(
                f"{self.path}: its encoding {self.encoding} has no {error.object[error.start]!r}",
                hint="Write that part of the patch in ASCII.",
            ) from error
        return encoded.replace(b"\n", self.newline(offset))


def _stateless(text: str, data: bytes, encoding: str) -> bool:
    """Say whether every character is encoded on its own, so that offsets can be added up."""
    try:
        codes = {character: character.encode(encoding) for character in set(text)}
    except UnicodeEncodeError:
        return False
    return b"".join(codes[character] for character in text) == data


def compile_problem(path: str, data: bytes, flags: int = 0) -> str:
    """Say why Python would refuse a file, or return ''. ``flags`` are those of :func:`compile`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the library's code, not about the edit
        try:
            compile(data, path, "exec", flags, dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return str(error) or type(error).__name__
    return ""
