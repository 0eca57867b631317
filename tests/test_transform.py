from __future__ import annotations

import codecs
import warnings
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from patchkit.errors import PatchError
from patchkit.manifest import Edit, Patch
from patchkit.source import SourceFile
from patchkit.splice import apply_splices
from patchkit.transform import rewrite

PATH = "demo_pkg/a.py"
TREE = "from patchkit.splice import Splice\nfrom patchkit.source import Match\n"

# A codemod that needs the syntax tree: puts "log(1)" in front of every function f.
BEFORE = (
    TREE
    + """
def fix(source, patch, params):
    found = []
    for node in source.functions(params.get("function", "f")):
        at = source.line_start(source.span(node)[0])
        text = source.encode(source.indentation(at) + params.get("text", "log(1)") + "\\n", at)
        found.append(Match(f"line {source.line_of(at)}", (Splice(at, at, text),)))
    return found
"""
)


def make_patch(code: str = BEFORE) -> Patch:
    return Patch(
        id="p",
        revision=1,
        title="t",
        why="w",
        links=(),
        distribution="demo-pkg",
        versions=SpecifierSet(),
        default=False,
        checks=(),
        conflicts=(),
        requires=(),
        edits=(),
        snippets={"codemod.py": code},
        digest="",
        folder="patches/p",
        barred="",
    )


def edit(codemod: str = "codemod.py:fix", matches: int = 1, **params: Any) -> Edit:
    return Edit(PATH, SpecifierSet(), codemod, params, matches)


def run(data: bytes, *edits: Edit, code: str = BEFORE, path: str = PATH) -> bytes:
    return apply_splices(data, rewrite(path, data, make_patch(code), edits or (edit(),)))


def refusal(data: bytes, *edits: Edit, code: str = BEFORE, path: str = PATH) -> PatchError:
    with pytest.raises(PatchError) as caught:
        run(data, *edits, code=code, path=path)
    return caught.value


def body(text: str) -> str:
    """Return a codemod whose body is ``text``."""
    return TREE + "def fix(source, patch, params):\n    " + text.replace("\n", "\n    ")


# Bytes


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"def f():\n    return 1\n", b"log(1)\ndef f():\n    return 1\n"),
        (b"def f():\r\n    return 1\r\n", b"log(1)\r\ndef f():\r\n    return 1\r\n"),
        (b"def f():\n    return 1", b"log(1)\ndef f():\n    return 1"),
        (b"def f(): return 1", b"log(1)\ndef f(): return 1"),
        # The line end of the neighbour, in a file that mixes them.
        (b"a = 1\r\ndef f():\n    pass\n", b"a = 1\r\nlog(1)\ndef f():\n    pass\n"),
        (b"a = 1\ndef f():\r\n    pass\n", b"a = 1\nlog(1)\r\ndef f():\r\n    pass\n"),
        (b"a = 1\r\ndef f(): pass", b"a = 1\r\nlog(1)\r\ndef f(): pass"),
        (b"if a:\n\tdef f():\n\t\tpass\n", b"if a:\n\tlog(1)\n\tdef f():\n\t\tpass\n"),
        (b"#!/usr/bin/python\n\ndef f(): 1\n", b"#!/usr/bin/python\n\nlog(1)\ndef f(): 1\n"),
        (b'"""\r\nx\n"""\ndef f(): 1\n', b'"""\r\nx\n"""\nlog(1)\ndef f(): 1\n'),
    ],
)
def test_bytes_outside_the_edit_stay(data: bytes, expected: bytes) -> None:
    assert run(data) == expected


def test_bom_stays() -> None:
    data = codecs.BOM_UTF8 + b"def f():\n    return 1\n"
    assert run(codecs.BOM_UTF8 + b"x = 1\n" + data[3:]) == (
        codecs.BOM_UTF8 + b"x = 1\nlog(1)\n" + data[3:]
    )


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("utf-8", 'é = "漢字 😀"\n\n\ndef f():\n    """ü"""\n'),
        ("latin-1", '# -*- coding: latin-1 -*-\né = "éè"\n\n\ndef f():\n    """ü"""\n'),
        ("cp1252", '#!/bin/sh\n# vim: set fileencoding=cp1252 :\né = "€"\ndef f(): "ü"\n'),
        ("koi8-r", '# coding: koi8-r\nж = "яжд"\ndef f(): "ж"\n'),
        ("euc-jp", '# coding: euc-jp\n変数 = "漢字"\ndef f(): "字"\n'),
        ("gbk", '# coding: gbk\nx = "汉字"\ndef f(): "字"\n'),
    ],
)
def test_encodings(encoding: str, text: str) -> None:
    data = text.encode(encoding)
    expected = text.replace("def f", "log('é')\ndef f") if encoding in ("utf-8", "latin-1") else ""
    if expected:
        assert run(data, edit(text="log('é')")) == expected.encode(encoding)
    assert run(data) == text.replace("def f", "log(1)\ndef f").encode(encoding)


def test_text_the_encoding_cannot_hold() -> None:
    error = refusal(b"# coding: latin-1\ndef f(): pass\n", edit(text="log('漢')"))
    assert "iso-8859-1 has no '漢'" in error.message
    assert PATH in error.message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"x = 1\ry = 2\rdef f(): 1\r", "not byte-preserving"),
        (b"x = '\xe9'\ndef f(): 1\n", "encoding"),
        (b"\n\nx = '\xe9'\ndef f(): 1\n", "byte 7 is not utf-8"),
        (b"# coding: nonsense\ndef f(): 1\n", "encoding"),
        (codecs.BOM_UTF8 + b"# coding: latin-1\ndef f(): 1\n", "encoding"),
        (b"# coding: rot13\nqrs s(): 1\n", "encoding"),
        (b"# coding: hex\n00\n", "encoding"),
        # Stateful: an offset in the text says nothing about one in the bytes.
        ('# coding: utf-7\né = "é"\ndef f(): 1\n'.encode("utf-7"), "encoding"),
        ("# coding: iso-2022-jp\nx = '漢字'\ndef f(): 1\n".encode("iso-2022-jp"), "encoding"),
        (b"# coding: unicode_escape\nx = '\\u00e9'\ndef f(): 1\n", "encoding"),
        (b"def f(:\n", "cannot parse"),
        (b"def f(): 1\0\n", "cannot parse"),
        (b"\xff\xfed\x00e\x00f\x00", "encoding"),
    ],
)
def test_refused_by_name(data: bytes, words: str) -> None:
    error = refusal(data)
    assert words in error.message
    assert PATH in error.message
    assert error.hint


def test_form_feed_that_libcst_drops() -> None:
    assert "not byte-preserving" in refusal(b"x=1\n\x0cdef f():\n    pass\n").message


def test_form_feed_is_kept_by_edits_that_need_no_tree() -> None:
    data = b"x=1\n\x0cdef f():\n    pass\n"
    result = run(data, edit("replace_block", old="x=1", new="x=2"))
    assert result.endswith(b"x=2\n\x0cdef f():\n    pass\n")


@pytest.mark.parametrize(
    "text",
    ["not " * 3000 + "1", "a" + "()" * 20000, "lambda: " * 9000 + "1", "(" * 5000 + ")" * 5000],
    ids=["not", "calls", "lambda", "parentheses"],
)
def test_deep_nesting_is_refused(text: str) -> None:
    assert "parse" in refusal(f"x = {text}\ndef f(): 1\n".encode()).message


# Results that do not compile, and noise


def test_result_that_does_not_compile() -> None:
    error = refusal(b"def f(): 1\n", edit(text="log(("))
    assert "would not compile after the edit" in error.message
    assert "patches/p/patch.toml" in error.hint


def test_result_that_cannot_be_compiled_at_all() -> None:
    replaced = edit("replace_block", old="1", new="not " * 20000 + "1")
    assert "would not compile" in refusal(b"x = 1\n", replaced).message


@pytest.mark.parametrize("path", ["demo_pkg/a.pyi", "demo_pkg/a.json", "demo_pkg/a.cu"])
def test_other_files_need_not_compile(path: str) -> None:
    replaced = edit("replace_block", old="old", new="((")
    assert b"((" in run(b"old\n", replaced, path=path)


@pytest.mark.filterwarnings("error")
def test_warnings_of_the_compiler_are_nobodys_business() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert b"log(1)" in run(b"x = '\\d' is 1\ndef f(): 1\n")
    assert caught == []
    assert b"log(1)" in run(b"x = '\\d' is 1\ndef f(): 1\n")


# What a codemod gives back


def test_matches_nothing() -> None:
    error = refusal(b"def g(): 1\n", edit(function="f"))
    assert "codemod.py:fix matched 0 places in demo_pkg/a.py, must match 1" in error.message
    assert error.hint.startswith("Function 'f' is not in this file")


def test_matches_twice_names_both_places() -> None:
    error = refusal(b"def f(): 1\ndef f(): 2\n")
    assert "matched 2 places in demo_pkg/a.py, must match 1; line 1; line 2" in error.message


def test_matches_as_often_as_it_says() -> None:
    assert run(b"def f(): 1\ndef f(): 2\n", edit(matches=2)).count(b"log(1)") == 2
    assert "matched 1 place in" in refusal(b"def f(): 1\n", edit(matches=2)).message


@pytest.mark.parametrize(
    "text",
    ["return []", "return [Match('x', ())]", "return [Match('x', (Splice(0, 3, b'def'),))]"],
)
def test_changes_nothing(text: str) -> None:
    assert "matched 0 places" in refusal(b"def f(): 1\n", code=body(text)).message


def test_two_edits_that_undo_each_other() -> None:
    code = body("return [Match('x', (Splice(*params['at'], params['text'].encode()),))]")
    edits = [edit(at=[0, 4], text=""), edit(at=[4, 4], text="def ")]
    assert "matched 0 places" in refusal(b"def f(): 1\n", *edits, code=code).message


@pytest.mark.parametrize(
    "text",
    [
        "return None",
        "return source.module",
        "return b''",
        "return (Match('x', (Splice(0, 0, b'#'),)),)",
        "return [Splice(0, 0, b'#')]",
        "return [Match('x', ('nonsense',))]",
        "return [Match('x', Splice(0, 0, b'#'))]",
        "return [Match('x', None)]",
        "return [Match('x', (Splice(0, 0, '#'),))]",
        "return [Match('x', (Splice(0, None, b'#'),))]",
        "return [Match('x', (Splice(0.0, 1.0, b'#'),))]",
    ],
)
def test_returns_the_wrong_type(text: str) -> None:
    error = refusal(b"def f(): 1\n", code=body(text))
    assert error.message == "p: codemod codemod.py:fix must return a list of Match"


@pytest.mark.parametrize("at", ["-1, 0", "5, 4", "0, 99", "99, 99"])
def test_splice_outside_the_file(at: str) -> None:
    error = refusal(b"def f(): 1\n", code=body(f"return [Match('x', (Splice({at}, b'#'),))]"))
    assert "overlap" in error.message
    assert PATH in error.message


@pytest.mark.parametrize(
    "text",
    [
        "raise ValueError('boom')",
        "raise SystemExit(0)",
        "import sys; sys.exit('boom')",
        "def g(): g()\ng()",
        "1 / 0",
    ],
)
def test_raises(text: str) -> None:
    error = refusal(b"def f(): 1\n", code=body(text))
    assert error.message.startswith("p: codemod codemod.py:fix failed on demo_pkg/a.py: ")


@pytest.mark.parametrize(
    "code", ["", "fix = 1", "def fix(:", "1 / 0", "import nonsense_x", "raise SystemExit(0)"]
)
def test_code_that_cannot_be_loaded(code: str) -> None:
    error = refusal(b"def f(): 1\n", code=code)
    assert error.message.startswith("p: codemod")
    assert error.hint


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_code_may_hold_a_dataclass(future: str) -> None:
    code = future + BEFORE + "\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n  a: int\n"
    assert b"log(1)" in run(b"def f(): 1\n", code=code)


def test_unknown_codemod() -> None:
    error = refusal(b"x = 1\n", edit("nonsense"))
    assert error.message == "p: there is no codemod 'nonsense'"
    assert "append" in error.hint


def test_overlapping_edits() -> None:
    edits = [
        edit("replace_block", old="x = 1", new="x = 2"),
        edit("replace_block", old="= 1", new="= 3"),
    ]
    error = refusal(b"x = 1\n", *edits)
    assert "two edits of demo_pkg/a.py overlap" in error.message


def test_every_edit_sees_the_pristine_file() -> None:
    first = edit("replace_block", old="one", new="two")
    second = edit("replace_block", old="two", new="three")
    assert "matched 0 places" in refusal(b"x = 'one'\n", first, second).message


def test_part_of_a_character_is_never_replaced() -> None:
    # In Shift-JIS the second byte of U+8868 is a backslash, in GBK that of U+4E02 an at sign.
    data = "# coding: shift_jis\nx = '表'\n".encode("shift_jis")
    with pytest.raises(PatchError):
        run(data, edit("replace_block", old="\\", new="/"))


# Functions


def lines(text: str, name: str) -> list[int]:
    source = SourceFile(PATH, text.encode())
    return [source.line_of(source.span(node)[0]) for node in source.functions(name)]


NESTED = """\
def f():
    def g():
        def f(): ...
    class C:
        def f(self): ...
class C:
    def f(self): ...
    @property
    def p(self): ...
    @p.setter
    def p(self, value): ...
    class D:
        async def f(self): ...
    if a:
        def h(self): ...
    else:
        def h(self): ...
if a:
    def f(): ...
elif b:
    async def f(): ...
else:
    with c:
        for d in e:
            while True:
                try:
                    def f(): ...
                except E:
                    def f(): ...
                else:
                    def f(): ...
                finally:
                    def f(): ...
match a:
    case 1:
        def f(): ...
@overload
def o(a: int) -> int: ...
@overload
def o(a: str) -> str: ...
def o(a): return a
f = lambda: 1
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f", [1, 19, 21, 27, 29, 31, 33, 36]),
        ("f.g", [2]),
        ("f.g.f", [3]),
        ("f.C.f", [5]),
        ("C.f", [7]),
        ("C.p", [9, 11]),
        ("C.D.f", [13]),
        ("C.h", [15, 17]),
        ("o", [38, 40, 41]),
        ("g", []),
        ("D.f", []),
        ("C", []),
        ("f.f", []),
        ("", []),
        ("f.", []),
        (".f", []),
    ],
)
def test_functions(name: str, expected: list[int]) -> None:
    assert lines(NESTED, name) == expected


# Offsets


def test_span_is_in_bytes_of_the_file() -> None:
    for encoding in ("utf-8", "latin-1", "cp1252"):
        text = f"# coding: {encoding}\né = 'üß'\nif é:\n    def f(ö): return 'ä'\nx = 1\n"
        data = text.encode(encoding)
        source = SourceFile(PATH, data)
        (node,) = source.functions("f")
        start, end = source.span(node)
        assert data[start:].startswith(b"def f(")
        assert data[start:end].decode(encoding).startswith("def f(ö): return 'ä'")


def test_span_behind_a_bom() -> None:
    data = codecs.BOM_UTF8 + "é = 1\ndef f(): return 1\n".encode()
    source = SourceFile(PATH, data)
    assert data[source.span(source.functions("f")[0])[0] :].startswith(b"def f()")


MIXED = b"a\r\n  b\n\tc\r\n\r\nlast"


@pytest.mark.parametrize(
    ("offset", "start", "line", "newline", "indentation"),
    [
        (0, 0, 1, b"\r\n", ""),
        (1, 0, 1, b"\r\n", ""),
        (3, 3, 2, b"\n", "  "),
        (6, 3, 2, b"\n", "  "),
        (8, 7, 3, b"\r\n", "\t"),
        (11, 11, 4, b"\r\n", ""),
        (13, 13, 5, b"\r\n", ""),
        (17, 13, 5, b"\r\n", ""),
    ],
)
def test_lines(offset: int, start: int, line: int, newline: bytes, indentation: str) -> None:
    source = SourceFile("a.txt", MIXED)
    assert source.line_start(offset) == start
    assert source.line_of(offset) == line
    assert source.newline(offset) == newline
    assert source.indentation(offset) == indentation


def test_newline_of_a_file_without_any() -> None:
    assert SourceFile("a.txt", b"").newline(0) == b"\n"
    assert SourceFile("a.txt", b"x").newline(1) == b"\n"


def test_encode_uses_the_line_end_at_the_place() -> None:
    source = SourceFile("a.txt", MIXED)
    assert source.encode("é\nü\n", 0) == "é\r\nü\r\n".encode()
    assert source.encode("é\nü\n", 4) == "é\nü\n".encode()


@pytest.mark.parametrize(
    ("path", "data", "encoding"),
    [
        ("a.py", b"# coding: latin-1\n", "iso-8859-1"),
        ("a.pyi", b"# coding: latin-1\n", "iso-8859-1"),
        ("a.cu", b"// coding: latin-1\n", "utf-8"),
        ("a.py", b"\n# coding: latin-1\n", "iso-8859-1"),
        ("a.py", b"x\n# coding: latin-1\n", "utf-8"),
        ("a.py", codecs.BOM_UTF8, "utf-8"),
        ("a.py", codecs.BOM_UTF8 + b"# coding: utf-8\n", "utf-8"),
        ("a.py", b"# coding: utf-8-sig\n", "utf-8"),
    ],
)
def test_encoding(path: str, data: bytes, encoding: str) -> None:
    assert SourceFile(path, data).encoding == encoding
