"""The kinds of fault beside those of test_cases.py, numbered like the one each lies next to."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from patchkit.bytecode import stale_bytecode
from tests.conftest import PATCH, A, Bench, assert_refusal, tree
from tests.processes import open_up
from tests.test_cases import (
    LOG,
    PATCHED,
    F,
    added,
    manifest,
    one_file,
    python,
    uninstall,
    user,
)
from tests.wheels import make_wheel, record_hash

# 1: run again


@pytest.mark.parametrize("again", [["apply", "p"], ["apply", "p", "q"], ["apply", "p", "p"]])
def test_01_again_in_other_words(demo: Bench, again: list[str]) -> None:
    demo.patch("q", PATCH.replace('"enc"', '"dec"'))
    assert demo.run("apply", "p").code == 0
    assert demo.run(*again).code == 0
    assert demo.run("apply", "p", "q").code == 0
    both = demo.read()
    assert (both.count(b"return -1"), both.count(b"return 0")) == (2, 0)
    state = demo.state()
    assert demo.run(*again).code == 0
    assert demo.state() == state


def test_01_reverting_again_is_no_error(demo: Bench) -> None:
    before = demo.state()
    assert demo.run("apply", "p").code == 0
    for _ in range(2):
        assert demo.run("revert", "p").code == 0
        assert demo.run("revert", "--all").code == 0
        assert demo.state() == before


@pytest.mark.parametrize("what", ["time", "mode", "copied"])
def test_01_what_is_not_bytes_does_not_make_it_another_file(demo: Bench, what: str) -> None:
    """Touched, opened up or copied in place, the file is applied as it was, and not written."""
    assert demo.run("apply", "p").code == 0
    file = demo.site / F
    if what == "time":
        os.utime(file, (1, 1))
    elif what == "mode":
        file.chmod(0o600)
    else:
        file.rename(file.with_suffix(".old"))
        shutil.copy2(file.with_suffix(".old"), file)
        file.with_suffix(".old").unlink()
    before = demo.state()
    assert "already applied" in demo.run("apply", "p").out
    assert demo.run("verify").code == 0
    assert demo.state() == before
    assert demo.run("revert", "p").code == 0
    assert demo.read() == A


# 2: the wrong function

ELSEWHERE = [
    b"class C:\n    def enc(self, x):\n        return 0\n",
    b"def outer():\n    def enc(x):\n        return 0\n    return enc\n",
    b"enc = lambda x: 0\n\n\ndef enc_(x):\n    return 0\n",
    b'TEXT = """\ndef enc(x):\n    return 0\n"""\n',
    b"# def enc(x):\n#     return 0\n",
    b"class enc:\n    def __call__(self, x):\n        return 0\n",
    b"from other import enc\n\n\ndef dec(x):\n    return 0\n",
]


@pytest.mark.parametrize("data", ELSEWHERE)
@pytest.mark.parametrize("codemod", ["replace_block", "insert_in_function", "add_decorator"])
def test_02_what_only_looks_like_the_function(bench: Bench, data: bytes, codemod: str) -> None:
    params = {
        "replace_block": '{ inside = "enc", old = "return 0", new = "return -1" }',
        "insert_in_function": '{ function = "enc", new = "log(1)" }',
        "add_decorator": '{ function = "enc", decorator = "d" }',
    }
    one_file(bench, data, codemod, params[codemod])
    error = bench.refuse("apply", "p").err
    assert "matched 0 places" in error
    assert "enc" in error


@pytest.mark.parametrize("name", ["C.enc", "dec.enc", "enc.enc", "enc.C", "a.enc", "enc.", ".enc"])
def test_02_the_whole_name_counts(demo: Bench, name: str) -> None:
    """Only a function in what is named before it, not another one of that name."""
    demo.patch("p", PATCH.replace('inside = "enc"', f'inside = "{name}"'))
    assert "matched 0 places" in demo.refuse("apply", "p").err


@pytest.mark.parametrize(
    "data",
    [
        b"def enc(x):\n    return 0\n\n\ndef enc(x):\n    return 0\n",
        b"if A:\n    def enc(x):\n        return 0\nelse:\n    def enc(x):\n        return 0\n",
        b"def enc(x):\n    if x:\n        return 0\n    return 0\n",
    ],
)
def test_02_one_place_too_many_is_not_guessed_at(bench: Bench, data: bytes) -> None:
    one_file(
        bench, data, "replace_block", '{ inside = "enc", old = "return 0", new = "return -1" }'
    )
    error = bench.refuse("apply", "p").err
    assert "matched 2 places" in error
    assert error.count("block in line ") == 2, "both are named"


# 3: says applied, changes nothing


@pytest.mark.parametrize(
    ("codemod", "params"),
    [
        ("replace_block", '{ old = "return 0", new = "return 0" }'),
        ("replace_block", '{ old = "return s(x)", new = "return s(x)" }'),
        ("replace_block", '{ old = "no such text", new = "x" }'),
        ("replace_block", '{ inside = "nobody", old = "return 0", new = "return 1" }'),
        ("insert_in_function", '{ function = "nobody", new = "x = 1" }'),
        ("add_decorator", '{ function = "C.nobody", decorator = "d" }'),
    ],
)
def test_03_nothing_to_find_is_a_failure(demo: Bench, codemod: str, params: str) -> None:
    demo.patch("p", manifest(codemod, params))
    assert "matched 0 places" in demo.refuse("apply", "p").err
    assert not (demo.site / ".patchkit").exists()


def test_03_one_edit_of_several_that_finds_nothing(demo: Bench) -> None:
    """The others are not made either."""
    more = PATCH.partition("[[edit]]")[2].replace("return 0", "return 9")
    demo.patch("p", f"{PATCH}\n[[edit]]{more}")
    assert "matched 0 places" in demo.refuse("apply", "p").err


# 4: two patchers


@pytest.mark.parametrize("order", [["p", "q", "r"], ["r", "q", "p"]])
def test_04_one_of_three_that_conflicts(demo: Bench, order: list[str]) -> None:
    demo.patch("q", PATCH.replace("return -1", "return None"))
    demo.patch("r", PATCH.replace('"enc"', '"dec"'))
    assert "conflict: p and q" in demo.refuse("apply", *order).err
    assert demo.run("apply", "r", "p").code == 0
    state = demo.state()
    assert "conflict: p and q" in demo.refuse("apply", *order).err
    assert demo.state() == state


@pytest.mark.parametrize("who", ["p", "q"])
def test_04_a_conflict_that_one_side_declares(demo: Bench, who: str) -> None:
    head = {"p": PATCH, "q": PATCH.replace('"enc"', '"dec"')}
    other = "q" if who == "p" else "p"
    for name, toml in head.items():
        line = f'conflicts = ["{other}"]\n' if name == who else ""
        demo.patch(name, toml.replace("[[edit]]", f"{line}\n[[edit]]"))
    error = demo.refuse("apply", "p", "q").err
    assert f"conflict: {who} and {other} cannot both be applied" in error
    for first, second in (("p", "q"), ("q", "p")):
        assert demo.run("apply", first).code == 0
        assert "cannot both be applied" in demo.refuse("apply", second).err
        assert demo.run("revert", first).code == 0


def test_04_edited_by_hand_between_two_patches(demo: Bench) -> None:
    """The second patch does not swallow what somebody changed after the first."""
    demo.patch("q", PATCH.replace('"enc"', '"dec"'))
    assert demo.run("apply", "p").code == 0
    (demo.site / F).write_bytes(demo.read() + b"# by hand\n")
    before = demo.state()
    for command in (["apply", "q"], ["revert", "p"], ["revert", "--all"]):
        assert "drifted" in demo.refuse(*command).err
    assert demo.state() == before
    assert demo.run("revert", "--force", "p").code == 0
    assert demo.read() == A
    assert len(list((demo.site / "demo_pkg").glob("a.py.drifted-*"))) == 1


# 5 and 6: one file under several names, links of all kinds


def test_05_two_targets_that_are_one_file(bench: Bench) -> None:
    """Hard links to each other: each is patched by itself, and gets its own bytes back."""
    bench.install({F: A, "demo_pkg/b.py": A})
    (bench.site / "demo_pkg/b.py").unlink()
    os.link(bench.site / F, bench.site / "demo_pkg/b.py")
    bench.patch("p")
    before = bench.state()
    assert bench.run("apply", "p").code == 0
    assert bench.read("demo_pkg/b.py") == A
    assert bench.run("revert", "p").code == 0
    assert bench.state() == before


@pytest.mark.parametrize("kind", ["chain", "sibling", "unlisted"])
def test_06_links_that_lead_further(demo: Bench, kind: str) -> None:
    target, cache = demo.site / F, demo.folder / "cache"
    cache.mkdir()
    if kind == "sibling":
        target.rename(demo.site / "demo_pkg/real.py")
        target.symlink_to("real.py")
    else:
        target.rename(cache / "a.py")
        (cache / "link.py").symlink_to("a.py" if kind == "chain" else cache / "a.py")
        target.symlink_to(cache / "link.py")
    before, cached = demo.state(), tree(cache)
    assert demo.run("apply", "p").code == 0
    assert demo.read() == PATCHED
    assert not target.is_symlink()
    assert tree(cache) == cached
    assert demo.run("revert", "p").code == 0
    assert (demo.state(), tree(cache)) == (before, cached)


@pytest.mark.parametrize("kind", ["dangling", "loop", "folder", "pipe"])
def test_06_a_target_that_is_no_file(demo: Bench, kind: str) -> None:
    target = demo.site / F
    target.unlink()
    if kind == "folder":
        target.mkdir()
    elif kind == "pipe":
        os.mkfifo(target)
    else:
        target.symlink_to("a.py" if kind == "loop" else "nowhere.py")
    names = sorted(path.name for path in (demo.site / "demo_pkg").iterdir())
    outcome = demo.run("apply", "p")
    assert outcome.code == 1
    assert outcome.err.startswith("error: ")
    assert "a.py" in outcome.err
    assert sorted(path.name for path in (demo.site / "demo_pkg").iterdir()) == names
    assert not (demo.site / ".patchkit").exists()


@pytest.mark.parametrize("kind", ["dangling", "loop", "folder"])
def test_06_what_became_of_a_patched_file(demo: Bench, kind: str) -> None:
    """Commands say so and keep the original; put right again, all is well."""
    before = demo.state()
    assert demo.run("apply", "p").code == 0
    target = demo.site / F
    patched = target.read_bytes()
    target.unlink()
    if kind == "folder":
        target.mkdir()
    else:
        target.symlink_to("a.py" if kind == "loop" else "nowhere.py")
    for command in (["status"], ["verify"], ["revert", "p"], ["apply", "p"]):
        outcome = demo.run(*command)
        assert outcome.code == 1, command
        assert "a.py" in outcome.out + outcome.err, command
    target.rmdir() if kind == "folder" else target.unlink()
    target.write_bytes(patched)
    assert demo.run("status").code == 0
    assert demo.run("revert", "p").code == 0
    assert demo.state() == before


# 7 and 8: bytecode in other places


def test_08_bytecode_of_a_package_and_of_names_with_dots(bench: Bench) -> None:
    data = b"def y(x):\n    return x + 10\n"
    bench.install({"demo_pkg/__init__.py": data, "demo_pkg/a.b.py": data, "demo_pkg/a.py": data})
    edit = manifest("replace_block", '{ old = "x + 10", new = "x + 99" }', "demo_pkg/__init__.py")
    more = edit.partition("[[edit]]")[2].replace("__init__", "a.b")
    bench.patch("p", f"{edit}\n[[edit]]{more}")
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for name in ("__init__", "a.b", "a"):
        py_compile.compile(str(bench.site / f"demo_pkg/{name}.py"), invalidation_mode=unchecked)
    before = bench.state()
    kept = [path for path in before if "/a.cpython" in path or "/a.b." in path]
    assert bench.run("apply", "p").code == 0
    names = {path.name for path in (bench.site / "demo_pkg/__pycache__").iterdir()}
    assert [name for name in names if name.startswith(("__init__.", "a.b."))] == []
    assert any(name.startswith("a.cpython") for name in names), kept
    assert python(bench, "import demo_pkg; print(demo_pkg.y(0))") == "99"
    assert bench.run("revert", "p").code == 0
    assert before == {k: v for k, v in bench.state().items() if k in before}
    assert python(bench, "import demo_pkg; print(demo_pkg.y(0))") == "10"


def test_08_bytecode_beside_its_source_is_not_run(bench: Bench) -> None:
    """As ``compileall -b`` writes it. Python takes the source where there is one."""
    one_file(bench, b"def y(x):\n    return x + 10\n", "replace_block", Y)
    source = bench.site / "demo_pkg/m.py"
    py_compile.compile(str(source), cfile=str(source) + "c")
    before = bench.state()
    assert bench.run("apply", "p").code == 0
    assert python(bench, "import demo_pkg.m; print(demo_pkg.m.y(0))", "-B") == "99"
    assert bench.run("verify").code == 0
    assert bench.run("revert", "p").code == 0
    assert bench.state() == before


Y = '{ old = "x + 10", new = "x + 99" }'


@pytest.mark.parametrize("damage", [b"", b"\0", b"\0" * 16, b"x" * 100])
def test_08_bytecode_that_is_damaged_comes_back_as_it_was(bench: Bench, damage: bytes) -> None:
    one_file(bench, b"def y(x):\n    return x + 10\n", "replace_block", Y)
    cache = Path(py_compile.compile(str(bench.site / "demo_pkg/m.py")))
    cache.write_bytes(damage)
    before = bench.state()
    assert not stale_bytecode(cache, bench.site / "demo_pkg/m.py")
    assert bench.run("apply", "p").code == 0
    assert not cache.exists()
    assert bench.run("revert", "p").code == 0
    assert bench.state() == before


def test_08_bytecode_that_may_not_be_listed(shared: Bench) -> None:
    """It might be stale, so nothing is written."""
    for name in ("a", "__init__"):
        py_compile.compile(str(shared.site / f"demo_pkg/{name}.py"))
    open_up(shared.folder)
    cache = shared.site / "demo_pkg/__pycache__"
    before = shared.state()
    cache.chmod(0o300)
    outcome = user(shared, "apply", "p")
    cache.chmod(0o755)
    assert outcome.code == 1
    assert_refusal(outcome)
    assert f"cannot read {cache}: Permission denied" in outcome.err
    assert shared.state() == before
    assert user(shared, "apply", "p").code == 0
    cache.chmod(0o300)
    assert user(shared, "revert", "p").code == 1
    cache.chmod(0o755)
    assert user(shared, "revert", "p").code == 0
    assert shared.state() == before


@pytest.mark.parametrize("verb", ["status", "verify", "revert", "apply"])
def test_21_a_folder_that_may_not_be_listed(shared: Bench, verb: str) -> None:
    """What cannot be seen is not gone: the original is kept."""
    open_up(shared.folder)
    before = shared.state()
    assert user(shared, "apply", "p").code == 0
    patched = shared.state()
    shared.site.chmod(0o300)
    outcome = user(shared, verb, *(["p"] if verb != "status" else []))
    shared.site.chmod(0o755)
    assert outcome.code == 1
    assert "gone" not in outcome.out
    assert shared.state() == patched
    assert user(shared, "revert", "p").code == 0
    assert shared.state() == before


# 9 to 15: what files and patches hold


@pytest.mark.parametrize("end", ["\r\n", "\r"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_09_a_manifest_as_other_editors_save_it(demo: Bench, end: str, bom: str) -> None:
    assert demo.run("apply", "p").code == 0
    folder = demo.patches / "p"
    (folder / "patch.toml").write_bytes((bom + PATCH.replace("\n", end)).encode())
    if end == "\r":  # TOML has no such line end
        outcome = demo.run("apply", "p")
        assert (outcome.code, outcome.err[:7]) in ((0, ""), (1, "error: "))
    else:
        assert "already applied" in demo.run("apply", "p").out
    assert demo.read() == PATCHED


@pytest.mark.parametrize("before", [b"\n", b"\r\n"])
@pytest.mark.parametrize("behind", [b"\n", b"\r\n"])
def test_10_line_ends_of_the_neighbours(bench: Bench, before: bytes, behind: bytes) -> None:
    data = (
        b"import a" + before + b"def f():" + before + b"    return 1" + behind + b"x = 1" + behind
    )
    one_file(bench, data, "insert_in_function", LOG)
    state = bench.state()
    assert bench.run("apply", "p").code == 0
    after = bench.read("demo_pkg/m.py")
    assert after.startswith(data[: data.index(b"    return")])
    assert after.endswith(data[data.index(b"    return") :])
    inserted = after[data.index(b"    return") : -len(data[data.index(b"    return") :])]
    ends = {line[len(line.rstrip(b"\r\n")) :] for line in inserted.splitlines(keepends=True)}
    assert ends <= {before, behind}
    assert len(ends) == 1
    assert bench.run("revert", "p").code == 0
    assert bench.state() == state


@pytest.mark.parametrize("indent", [b" ", b"  ", b"\t", b"        ", b" \t", b"\t "])
def test_10_indentation_of_the_neighbours(bench: Bench, indent: bytes) -> None:
    data = b"class C:\n" + indent + b"def f(self):\n" + indent * 2 + b"return 1\n"
    one_file(bench, data, "insert_in_function", '{ function = "C.f", new = "if 1:\\n    pass" }')
    assert bench.run("apply", "p").code == 0
    lines = bench.read("demo_pkg/m.py").split(b"\n")
    assert indent * 2 + b"if 1:" in lines
    assert bench.run("revert", "p").code == 0
    assert bench.read("demo_pkg/m.py") == data


@pytest.mark.parametrize(
    ("cookie", "encoding", "text"),
    [
        ("# -*- coding: utf-8 -*-", "utf-8-sig", "ü漢"),
        ("# coding: cp1252", "cp1252", "€ü"),
        ("#!/bin/python\n# vim: set fileencoding=iso-8859-15 :", "iso-8859-15", "€"),
        ("# coding: koi8-r", "koi8-r", "Ж"),
        ("# coding: shift_jis", "shift_jis", "漢字"),
        ("# coding: euc-jp", "euc-jp", "漢字"),
        ("# coding: gb18030", "gb18030", "漢字"),
        ("# coding: ascii", "ascii", "plain"),
    ],
)
@pytest.mark.parametrize("codemod", ["insert_in_function", "replace_block", "append"])
def test_14_encodings_are_kept_or_refused(
    bench: Bench, cookie: str, encoding: str, text: str, codemod: str
) -> None:
    params = {
        "insert_in_function": LOG,
        "replace_block": '{ old = "return 1", new = "return 2" }',
        "append": '{ new = "z = 1" }',
    }
    data = f"{cookie}\nNAME = '{text}'\ndef f():\n    return 1  # {text}\n".encode(encoding)
    one_file(bench, data, codemod, params[codemod])
    state = bench.state()
    outcome = bench.run("apply", "p")
    if outcome.code == 0:
        show = "import demo_pkg.m as m; print(ascii(m.NAME))"
        assert python(bench, show, "-B") == ascii(text)
        start = data.index(b"def f")
        assert bench.read("demo_pkg/m.py").startswith(data[:start])
        assert bench.run("revert", "p").code == 0
    else:
        assert "demo_pkg/m.py" in outcome.err
    assert bench.state() == state


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-7"])
def test_14_what_python_itself_does_not_read_is_refused(bench: Bench, encoding: str) -> None:
    data = "# coding: x\ndef f():\n    return 'ü'\n".replace("coding: x", f"coding: {encoding}")
    one_file(bench, data.encode(encoding), "insert_in_function", LOG)
    assert "demo_pkg/m.py" in bench.refuse("apply", "p").err


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"\xef\xbb\xbf", b"# c", b"x = 1\n\x0c\n", b"'''a\nb'''"]
)
def test_15_files_with_nearly_nothing_in_them(bench: Bench, data: bytes) -> None:
    one_file(bench, data, "append", '{ new = "z = 1" }')
    state = bench.state()
    assert bench.run("apply", "p").code == 0
    after = bench.read("demo_pkg/m.py")
    assert after.startswith(data)
    assert python(bench, "import demo_pkg.m; print(demo_pkg.m.z)", "-B") == "1"
    assert bench.run("revert", "p").code == 0
    assert bench.state() == state


# 16 to 19: what installers recorded


def record(bench: Bench) -> Path:
    return bench.site / "demo_pkg-1.0.dist-info/RECORD"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(f"{F},sha256=", f"{F},md5="),
        lambda text: text.replace(record_hash(A), ""),
        lambda text: text.replace(record_hash(A), "sha256=!!!"),
        lambda text: text.replace(record_hash(A), record_hash(b"other")),
        lambda text: text.replace(f"{F},", "demo_pkg/gone.py,"),
        lambda text: "",
        lambda text: text + '"unclosed',
        lambda text: "\0" + text,
    ],
)
def test_16_a_record_that_proves_nothing(demo: Bench, change: Callable[[str], str]) -> None:
    """Without proof that bytes are original nothing is written; a damaged row elsewhere is fine."""
    text = record(demo).read_text()
    assert record_hash(A) in text
    record(demo).write_text(change(text))
    before = demo.state()
    outcome = demo.run("apply", "p")
    if outcome.code == 0:
        assert demo.read() == PATCHED
        assert demo.run("revert", "p").code == 0
    else:
        assert outcome.err.startswith("error: ")
        assert "hint: " in outcome.err
    assert demo.state() == before


@pytest.mark.parametrize(
    "row", ["../../outside.py,,", "/etc/passwd,,", '"a,b.py",sha256=x,1', ",,"]
)
def test_16_strange_rows_beside_the_one_that_counts(demo: Bench, row: str) -> None:
    record(demo).write_text(f"{row}\n{record(demo).read_text()}")
    before = demo.state()
    assert demo.run("apply", "p").code == 0
    assert demo.read() == PATCHED
    assert demo.run("revert", "p").code == 0
    assert demo.state() == before


def test_16_record_changed_while_patched(demo: Bench) -> None:
    """As some deploy tools do, to make their own check pass: verify says so."""
    before = demo.state()
    assert demo.run("apply", "p").code == 0
    text = record(demo).read_text()
    record(demo).write_text(text.replace(record_hash(A), record_hash(PATCHED)))
    assert demo.run("verify").code == 1
    record(demo).write_text(text)
    assert demo.run("verify").code == 0
    assert demo.run("revert", "p").code == 0
    assert {k: v[:4] for k, v in demo.state().items()} == {k: v[:4] for k, v in before.items()}


def test_17_three_owners_of_one_path(bench: Bench) -> None:
    for name in ("one", "two", "three"):
        bench.install({"nv/__init__.py": f"X = '{name}'\n".encode()}, name)
    toml = manifest("replace_block", '{ old = "X", new = "Y" }', "nv/__init__.py")
    bench.patch("p", toml.replace("demo-pkg", "three"))
    error = bench.refuse("apply", "p").err
    assert all(f"{name}-1.0" in error for name in ("one", "two", "three"))


def test_17_a_second_owner_that_comes_later(demo: Bench) -> None:
    """Another distribution writes over a patched file: that is drift, and the original is kept."""
    assert demo.run("apply", "p").code == 0
    demo.install({F: b"X = 2\n"}, "other")
    before = demo.state()
    assert demo.run("verify").code == 1
    outcome = demo.run("revert", "p")
    assert outcome.code == 1
    assert demo.state() == before
    assert demo.run("revert", "--force", "p").code == 0
    assert demo.read() == A
    assert any(
        path.read_bytes() == b"X = 2\n" for path in (demo.site / "demo_pkg").glob("*drifted*")
    )


@pytest.mark.parametrize("version", ["1.0+cu129", "1.0rc1", "1.0.post3", "1.0.dev1", "1!1.0", "1"])
def test_18_versions_of_all_kinds(bench: Bench, version: str) -> None:
    bench.install({"demo_pkg/__init__.py": b"", F: A}, version=version)
    toml = PATCH.replace(">=1.0,<2", ">=1.0.dev0,<2" if "!" not in version else ">=1!1.0")
    bench.patch("p", toml)
    before = bench.state()
    assert bench.run("apply", "p").code == 0
    assert bench.run("verify").code == 0
    assert bench.run("status", "--json").states["p"] == "applied"
    assert bench.run("revert", "p").code == 0
    assert bench.state() == before


@pytest.mark.parametrize(
    "info",
    [
        {"url": "file:///src", "dir_info": {}},
        {"url": "file:///src", "dir_info": {"editable": False}},
        {"url": "https://example.org/x.whl", "archive_info": {}},
        {"url": "https://example.org/x.git", "vcs_info": {"vcs": "git"}},
    ],
)
def test_19_from_a_url_but_not_editable(demo: Bench, info: dict) -> None:
    (demo.site / "demo_pkg-1.0.dist-info/direct_url.json").write_text(json.dumps(info))
    assert demo.run("apply", "p").code == 0
    assert demo.read() == PATCHED


# 21: no permission


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file immutable")
@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_21_an_immutable_file(demo: Bench, verb: str) -> None:
    if shutil.which("chattr") is None:
        pytest.skip("chattr is not there")
    if verb == "revert":
        assert demo.run("apply", "p").code == 0
    target = demo.site / F
    made = subprocess.run(["chattr", "+i", target], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"this file system has no immutable files: {made.stderr.strip()}")
    before = demo.state()
    try:
        outcome = demo.run(verb, "p")
        assert outcome.code == 1
        assert "Operation not permitted" in outcome.err
        assert demo.state() == before
    finally:
        subprocess.run(["chattr", "-i", target], check=True)
    assert demo.run(verb, "p").code == 0


# 22 and 23: patches and releases that change


def test_22_a_patch_that_was_renamed(demo: Bench) -> None:
    """The old name stays recorded; the new one is another patch, for the same place."""
    before = demo.state()
    assert demo.run("apply", "p").code == 0
    (demo.patches / "p").rename(demo.patches / "p-new")
    assert demo.run("status", "--json").states["p"] == "applied"
    assert "conflict: p and p-new" in demo.refuse("apply", "p-new").err
    assert demo.run("revert", "p").code == 0
    assert demo.run("apply", "p-new").code == 0
    assert demo.run("revert", "--all").code == 0
    assert demo.state() == before


def test_22_a_patch_that_was_deleted(demo: Bench) -> None:
    before = demo.state()
    assert demo.run("apply", "p").code == 0
    shutil.rmtree(demo.patches)
    assert demo.run("verify").code == 0
    assert demo.run("diff", "p").code == 0
    assert demo.run("revert", "p").code == 0
    assert demo.state() == before


@pytest.mark.parametrize("edited", ["return 0", "no such place", "import ("])
def test_22_an_edited_patch_that_does_not_work(demo: Bench, edited: str) -> None:
    """What is applied stays applied."""
    assert demo.run("apply", "p").code == 0
    old, new = ("return 0", edited) if edited != "no such place" else (edited, "return -1")
    demo.patch("p", PATCH.replace('old = "return 0"', f'old = "{old}"').replace("return -1", new))
    before = demo.state()
    demo.refuse("apply", "p")
    assert demo.state() == before
    assert demo.run("verify").code == 0


@pytest.mark.parametrize("version", ["0.9", "1.0+local", "1.0.post1", "1.1"])
def test_23_any_other_version_is_another_version(demo: Bench, version: str) -> None:
    assert demo.run("apply", "p").code == 0
    uninstall(demo)
    newer = A.replace(b"return u(x)", b"return v(x)")
    demo.install({"demo_pkg/__init__.py": b"", F: newer}, version=version)
    assert demo.run("status", "--json").states["p"] == "upgraded underneath"
    assert demo.run("verify").code == 1
    assert demo.run("revert", "p").code == 0
    assert demo.read() == newer
    assert not (demo.site / ".patchkit").exists()


def test_23_a_release_in_which_the_file_is_gone(demo: Bench) -> None:
    assert demo.run("apply", "p").code == 0
    uninstall(demo)
    demo.install({"demo_pkg/__init__.py": b"", "demo_pkg/c.py": A}, version="1.1")
    before = {k: v for k, v in demo.state().items() if ".patchkit" not in k}
    assert demo.run("verify").code == 1
    outcome = demo.run("apply", "p")
    assert outcome.code == 1
    assert demo.run("revert", "p").code == 0
    assert demo.state() == before


@pytest.mark.parametrize("kept", [0, 1])
def test_25_half_reinstalled(bench: Bench, kept: int) -> None:
    """An installer that stopped half-way put back one of two files."""
    second = "demo_pkg/sub/b.py"
    bench.install({"demo_pkg/__init__.py": b"", F: A, second: A})
    more = PATCH.partition("[[edit]]")[2].replace(F, second)
    bench.patch("p", f"{PATCH}\n[[edit]]{more}")
    before = bench.state()
    assert bench.run("apply", "p").code == 0
    (bench.site / (F, second)[kept]).write_bytes(A)
    assert bench.run("status").code == bench.run("verify").code == 1
    assert bench.run("status", "--json").states["p"] != "applied"
    assert bench.run("apply", "p").code == 0
    assert bench.read(F) == bench.read(second) == PATCHED
    assert bench.run("verify").code == 0
    assert bench.run("revert", "p").code == 0
    assert {k: v[:4] for k, v in bench.state().items()} == {k: v[:4] for k, v in before.items()}


# 26: files that come and go


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_26_something_is_where_a_file_is_to_be_added(demo: Bench, kind: str) -> None:
    demo.patch("p", added("demo_pkg/new.py"))
    place = demo.site / "demo_pkg/new.py"
    if kind == "file":
        place.write_text("MINE = 1\n")
    elif kind == "folder":
        (place / "x").mkdir(parents=True)
    else:
        place.symlink_to(demo.site / F)
    assert "demo_pkg/new.py" in demo.refuse("apply", "p").err


def test_26_a_file_where_a_folder_is_to_be_added(demo: Bench) -> None:
    demo.patch("p", added("demo_pkg/new/er/x.py"))
    (demo.site / "demo_pkg/new").write_text("a file\n")
    before = demo.state()
    outcome = demo.run("apply", "p")
    assert outcome.code == 1
    assert "demo_pkg/new" in outcome.err
    assert demo.state() == before


def test_26_an_added_file_that_the_next_release_brings_itself(demo: Bench) -> None:
    """It is the release's then: not removed by ``revert``, whatever it holds."""
    demo.patch("p", added("demo_pkg/extra/b.py"))
    assert demo.run("apply", "p").code == 0
    own = (demo.site / "demo_pkg/extra/b.py").read_bytes()
    for data in (own, b"X = 'upstream'\n"):
        files = {"demo_pkg/__init__.py": b"", F: A, "demo_pkg/extra/b.py": data}
        uninstall(demo)
        demo.install(files, version="1.1")
        assert demo.run("revert", "p").code == 0
        assert demo.read("demo_pkg/extra/b.py") == data
        uninstall(demo, "demo_pkg-1.1")
        demo.install({"demo_pkg/__init__.py": b"", F: A})
        shutil.rmtree(demo.site / "demo_pkg/extra", ignore_errors=True)
        assert demo.run("apply", "p").code == 0


@pytest.mark.parametrize("which", ["deleted", "edited"])
def test_26_an_added_file_that_somebody_touched(demo: Bench, which: str) -> None:
    demo.patch("p", added("demo_pkg/extra/b.py"))
    before = demo.state()
    assert demo.run("apply", "p").code == 0
    file = demo.site / "demo_pkg/extra/b.py"
    file.unlink() if which == "deleted" else file.write_text("MINE = 1\n")
    assert demo.run("verify").code == 1
    if which == "edited":
        assert "drifted" in demo.refuse("revert", "p").err
        assert demo.run("revert", "--force", "p").code == 0
        (kept,) = (demo.site / "demo_pkg/extra").glob("b.py.drifted-*")
        assert kept.read_text() == "MINE = 1\n"
        shutil.rmtree(demo.site / "demo_pkg/extra")
    else:
        assert demo.run("revert", "p").code == 0
    assert {k: v for k, v in demo.state().items() if "extra" not in k} == before


# 27: modes are part of what comes back


@pytest.mark.parametrize("mode", [0o400, 0o444, 0o600, 0o755, 0o4755, 0o1644])
def test_27_every_mode_is_kept(demo: Bench, mode: int) -> None:
    if os.geteuid() != 0 and not mode & 0o200 and not mode & 0o400:
        pytest.skip("not readable")
    target = demo.site / F
    target.chmod(mode)
    before = demo.state()
    assert demo.run("apply", "p").code == 0
    assert stat.S_IMODE(target.stat().st_mode) == mode
    assert demo.run("revert", "p").code == 0
    assert demo.state() == before


@pytest.mark.parametrize("seconds", [0, 1, -1, 2**31, 2**33, 1_600_000_000.123456])
def test_27_every_time_comes_back(demo: Bench, seconds: float) -> None:
    target = demo.site / F
    os.utime(target, ns=(int(seconds * 10**9), int(seconds * 10**9)))
    before = demo.state()
    assert demo.run("apply", "p").code == 0
    assert demo.run("revert", "p").code == 0
    assert demo.state() == before


def test_wheels_that_are_made_here_are_right(tmp_path: Path) -> None:
    """What these tests stand on: RECORD holds the digest of what is in the wheel."""
    import zipfile

    with zipfile.ZipFile(make_wheel(tmp_path, "demo-pkg", "1.0", {F: A})) as wheel:
        assert (
            f"{F},{record_hash(A)},{len(A)}" in wheel.read("demo_pkg-1.0.dist-info/RECORD").decode()
        )
