"""One test, or several, for each kind of fault that broke other patch tools.

The numbers are those of the table in docs: fixture F is ``A`` of conftest, patch P is ``PATCH``.
"""

from __future__ import annotations

import compileall
import csv
import json
import os
import py_compile
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PATCH, A, Bench, assert_refusal, invoke, tree
from tests.processes import open_up, unprivileged, user
from tests.wheels import make_wheel, unpack

F = "demo_pkg/a.py"
PATCHED = A.replace(
    b"        return 0\n    return s(x)",
    b"        # patchkit: p revision 1, see https://example.org/1\n"
    b"        return -1\n    return s(x)",
)


def manifest(codemod: str, params: str, file: str = F, **fields: str) -> str:
    """A patch.toml with one edit; ``fields`` are lines to put in place of P's."""
    head, _, _ = PATCH.partition("[[edit]]")
    for key, value in fields.items():
        kept = [line for line in head.splitlines() if not line.startswith(f"{key} =")]
        head = "\n".join([*kept, f"{key} = {value}", ""])
    return f'{head}\n[[edit]]\nfile = "{file}"\ncodemod = "{codemod}"\nparams = {params}\n'


def uninstall(bench: Bench, info: str = "demo_pkg-1.0") -> None:
    """Remove what RECORD lists, and folders that are empty then, as pip does."""
    record = bench.site / f"{info}.dist-info/RECORD"
    paths = [bench.site / row[0] for row in csv.reader(record.read_text().splitlines()) if row]
    for path in paths:
        path.unlink(missing_ok=True)
        for pyc in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            pyc.unlink()
    for folder in sorted({p.parent for p in paths}, reverse=True):
        for empty in (folder / "__pycache__", folder):
            if empty.is_dir() and not any(empty.iterdir()):
                empty.rmdir()


def python(bench: Bench, code: str, *options: str) -> str:
    """What a fresh interpreter prints that sees the bench's site-packages."""
    environ = {**os.environ, "PYTHONPATH": str(bench.site)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def one_file(bench: Bench, data: bytes, codemod: str, params: str, name: str = "m.py") -> Bench:
    """A bench with one module of these bytes and a patch for it."""
    bench.install({"demo_pkg/__init__.py": b"", f"demo_pkg/{name}": data})
    bench.patch("p", manifest(codemod, params, f"demo_pkg/{name}"))
    return bench


LOG = '{ function = "f", new = "log(1)" }'


def test_case_01_second_run_changes_nothing(demo: Bench) -> None:
    assert demo.run("apply", "p").code == 0
    assert demo.read() == PATCHED
    after = demo.state()
    second = demo.run("apply", "p")
    assert (second.code, second.err) == (0, "")
    assert "already applied" in second.out
    assert demo.state() == after


def test_case_02_never_lands_in_another_function(bench: Bench) -> None:
    moved = b"def enc(x):\n    return s(coerce(x))\n\n\n" + A.replace(b"def enc(", b"def enc_old(")
    bench.install({F: moved})
    bench.patch("p")
    assert "'enc'" in bench.refuse("apply", "p").err


@pytest.mark.parametrize(
    "returned",
    [
        "[]",
        '[Match("all", ())]',
        '[Match("all", (Splice(0, 3, source.data[:3]),))]',
    ],
)
def test_case_03_a_codemod_that_changes_nothing_fails(demo: Bench, returned: str) -> None:
    code = "from patchkit.splice import Splice\nfrom patchkit.source import Match\n"
    code += f"def same(source, patch, params):\n    return {returned}\n"
    demo.patch("p", manifest("codemod.py:same", "{}"), codemod__py=code)
    outcome = demo.refuse("apply", "p")
    assert "matched 0 places" in outcome.err
    assert not (demo.site / ".patchkit").exists()


def test_case_04_two_patches_for_one_place_conflict(demo: Bench) -> None:
    demo.patch("p2", PATCH.replace("return -1", "return None"))
    outcome = demo.refuse("apply", "p", "p2")
    assert "conflict: p and p2" in outcome.err
    assert demo.run("apply", "p").code == 0
    assert "conflict: p and p2" in demo.refuse("apply", "p2").err


def test_case_05_hard_links_to_a_cache_are_not_written_through(demo: Bench) -> None:
    target, other, cache = (demo.site / F), demo.folder / "other.py", demo.folder / "cache.py"
    target.chmod(0o640)
    os.link(target, other)
    os.link(target, cache)
    assert target.stat().st_nlink == 3
    before, state = cache.stat(), demo.state()
    assert demo.run("apply", "p").code == 0
    assert demo.read() == PATCHED
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert demo.run("revert", "p").code == 0
    assert demo.state() == state
    assert cache.read_bytes() == other.read_bytes() == A
    assert (cache.stat().st_ino, cache.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert cache.stat().st_nlink == 2


@pytest.mark.parametrize("absolute", [True, False])
def test_case_06_a_linked_file_is_replaced_and_linked_again(demo: Bench, absolute: bool) -> None:
    target, cache = demo.site / F, demo.folder / "cache" / "a.py"
    cache.parent.mkdir()
    target.rename(cache)
    target.symlink_to(cache if absolute else "../../cache/a.py")
    before, cached = demo.state(), tree(cache.parent)
    assert demo.run("apply", "p").code == 0
    assert not target.is_symlink()
    assert demo.read() == PATCHED
    assert tree(cache.parent) == cached
    assert demo.run("revert", "p").code == 0
    assert demo.state() == before
    assert tree(cache.parent) == cached


def test_case_06_a_link_into_a_cache_that_was_emptied_comes_back_as_a_file(demo: Bench) -> None:
    target, cache = demo.site / F, demo.folder / "cache.py"
    target.rename(cache)
    target.symlink_to(cache)
    assert demo.run("apply", "p").code == 0
    cache.unlink()
    outcome = demo.run("revert", "p")
    assert outcome.code == 0
    assert not target.is_symlink()
    assert demo.read() == A
    assert str(cache) in outcome.out


def test_case_06_a_linked_folder_is_refused(demo: Bench) -> None:
    cache = demo.folder / "cache"
    (demo.site / "demo_pkg").rename(cache)
    (demo.site / "demo_pkg").symlink_to(cache)
    cached = tree(cache)
    assert str(demo.site / "demo_pkg") in demo.refuse("apply", "p").err
    assert tree(cache) == cached


Y = '{ old = "x + 10", new = "x + 99" }'


@pytest.mark.parametrize("name", ["demo_pkg/__pycache__", ".patchkit"])
def test_case_06_a_linked_folder_of_bytecode_or_state_is_refused(demo: Bench, name: str) -> None:
    elsewhere = demo.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.cpython-311.pyc").write_bytes(b"mine")
    (demo.site / name).symlink_to(elsewhere)
    before = demo.state()
    outcome = demo.run("apply", "p")
    assert outcome.code == 1
    assert f"{name} is a symbolic link" in outcome.err
    assert demo.state() == before
    assert [p.name for p in elsewhere.iterdir()] == ["a.cpython-311.pyc"]


def test_case_07_bytecode_of_the_same_second_and_size_is_not_run(bench: Bench) -> None:
    one_file(bench, b"def y(x):\n    return x + 10  # " + b" " * 60 + b"\n", "replace_block", Y)
    source, show = bench.site / "demo_pkg/m.py", "import demo_pkg.m; print(demo_pkg.m.y(0))"
    assert python(bench, show) == "10"
    before = bench.state()
    assert bench.run("apply", "p").code == 0
    seconds = {int(source.stat().st_mtime), int(before["demo_pkg/m.py"][4] / 1e9)}
    assert len(seconds) == 2, "a stale pyc of the other state must not match by its time"
    assert python(bench, show) == "99"
    assert python(bench, show) == "99"
    assert bench.run("revert", "p").code == 0
    assert bench.state() == before
    assert python(bench, show) == "10"


def test_case_07_patched_in_the_second_the_file_was_installed_in(bench: Bench) -> None:
    import time

    one_file(bench, b"def y(x):\n    return x + 10\n", "replace_block", Y)
    source = bench.site / "demo_pkg/m.py"
    for offset in range(3):  # whatever second the patch is applied in, one of these is it
        os.utime(source, (now := int(time.time()) + offset, now))
        assert bench.run("apply", "p").code == 0
        assert int(source.stat().st_mtime) != now
        assert bench.run("revert", "p").code == 0
        assert source.stat().st_mtime == now


def test_case_08_no_bytecode_of_any_kind_stays(bench: Bench) -> None:
    one_file(bench, b"def y(x):\n    return x + 10\n", "replace_block", Y)
    folder = bench.site / "demo_pkg"
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for level in (0, 1, 2):
        compileall.compile_dir(folder, quiet=2, optimize=level, invalidation_mode=unchecked)
    cached = folder / "__pycache__" / f"m.{sys.implementation.cache_tag}.pyc"
    shutil.copy(cached, folder / "__pycache__/m.cpython-399.pyc")
    shutil.copy(cached, folder / "__pycache__/m.pypy399-pp73.opt-2.pyc")
    other = folder / "__pycache__/m2.cpython-399.pyc"
    shutil.copy(cached, other)
    show = "import demo_pkg.m; print(demo_pkg.m.y(0))"
    assert python(bench, show) == "10"
    before = bench.state()

    assert bench.run("apply", "p").code == 0
    assert [p for p in folder.glob("__pycache__/m.*")] == []
    assert other.exists()
    assert python(bench, show) == python(bench, show, "-O") == python(bench, show, "-OO") == "99"
    assert bench.run("verify").code == 0

    assert bench.run("revert", "p").code == 0
    assert bench.state() == before
    assert python(bench, show) == python(bench, show, "-O") == "10"


def test_case_08_verify_finds_stale_bytecode_put_there_later(bench: Bench) -> None:
    one_file(bench, b"def y(x):\n    return x + 10\n", "replace_block", Y)
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    old = Path(py_compile.compile(str(bench.site / "demo_pkg/m.py"), invalidation_mode=unchecked))
    data = old.read_bytes()
    assert bench.run("apply", "p").code == 0
    old.parent.mkdir(exist_ok=True)
    old.write_bytes(data)
    outcome = bench.run("verify")
    assert outcome.code == 1
    assert "stale bytecode" in outcome.out
    assert "m." in outcome.out


def test_case_09_patch_files_with_crlf_give_the_same_bytes(demo: Bench) -> None:
    code = (
        "from patchkit.splice import Splice\nfrom patchkit.source import Match\n"
        "def add(source, patch, params):\n"
        "    end = len(source.data)\n"
        "    text = source.encode(patch.snippets['new.txt'], end)\n"
        '    return [Match("end", (Splice(end, end, text),))]\n'
    )
    toml = manifest("codemod.py:add", "{}") + (
        '\n[[edit]]\nfile = "demo_pkg/a.py"\ncodemod = "replace_block"\n'
        'params = { inside = "enc", old_file = "old.txt", new = """return -1\n""" }\n'
    )
    files = {"codemod__py": code, "new__txt": "\n\nX = 1\nY = 2\n", "old__txt": "return 0\n"}
    demo.patch("p", toml, **files)
    assert demo.run("apply", "p").code == 0
    expected = demo.read()
    assert b"return -1" in expected
    assert demo.run("revert", "p").code == 0
    for file in (demo.patches / "p").iterdir():
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert demo.run("apply", "p").code == 0
    assert demo.read() == expected
    for file in (demo.patches / "p").iterdir():
        file.write_bytes(file.read_bytes().replace(b"\r\n", b"\n"))
    assert "already applied" in demo.run("apply", "p").out


def without_marker(data: bytes) -> bytes:
    return b"".join(
        line for line in data.splitlines(keepends=True) if not line.lstrip().startswith(b"# patchk")
    )


def test_case_10_crlf_target(bench: Bench) -> None:
    data = b"def f():\r\n    return 1\r\n"
    one_file(bench, data, "insert_in_function", LOG)
    before = bench.state()
    assert bench.run("apply", "p").code == 0
    patched = bench.read("demo_pkg/m.py")
    assert without_marker(patched) == b"def f():\r\n    log(1)\r\n    return 1\r\n"
    assert patched.count(b"\n") == patched.count(b"\r\n")
    assert bench.run("revert", "p").code == 0
    assert bench.state() == before


def test_case_11_a_lone_final_cr_is_refused(bench: Bench) -> None:
    one_file(bench, b"x = 1\ry = 2\r", "insert_in_function", LOG)
    assert "not byte-preserving" in bench.refuse("apply", "p").err


def test_case_11_lone_cr_is_kept_where_no_tree_is_needed(bench: Bench) -> None:
    one_file(bench, b"x = 1\ry = 2\r", "replace_block", '{ old = "x = 1", new = "x = 3" }')
    assert bench.run("apply", "p").code == 0
    patched = bench.read("demo_pkg/m.py")
    assert patched.endswith(b"x = 3\ry = 2\r")
    assert b"\n" not in patched


@pytest.mark.parametrize(
    ("codemod", "params"),
    [
        ("insert_in_function", LOG),
        ("add_decorator", '{ function = "f", decorator = "d" }'),
        ("replace_block", '{ old = "x=1", new = "x=2" }'),
        ("append", '{ new = "z = 1" }'),
    ],
)
def test_case_12_a_form_feed_is_never_dropped(bench: Bench, codemod: str, params: str) -> None:
    one_file(bench, b"x=1\n\x0cdef f():\n    pass\n", codemod, params)
    before = bench.state()
    outcome = bench.run("apply", "p")
    if outcome.code:
        assert_refusal(outcome)
        assert bench.state() == before
    else:
        assert b"\x0c" in bench.read("demo_pkg/m.py")
        assert bench.run("revert", "p").code == 0
        assert bench.state() == before


@pytest.mark.parametrize(
    ("codemod", "params"),
    [
        ("insert_in_function", LOG),
        ("add_decorator", '{ function = "f", decorator = "d" }'),
        ("replace_block", '{ old = "return 1", new = "return 2", inside = "f" }'),
        ("append", '{ new = "z = 1" }'),
    ],
)
def test_case_13_bom_is_kept(bench: Bench, codemod: str, params: str) -> None:
    one_file(bench, b"\xef\xbb\xbfdef f():\n    return 1\n", codemod, params)
    before = bench.state()
    assert bench.run("apply", "p").code == 0
    patched = bench.read("demo_pkg/m.py")
    assert patched.startswith(b"\xef\xbb\xbf")
    assert patched.count(b"\xef\xbb\xbf") == 1
    compile(patched, "m.py", "exec")
    assert bench.run("revert", "p").code == 0
    assert bench.state() == before


def test_case_14_latin_1_stays_latin_1(bench: Bench) -> None:
    data = b"# -*- coding: latin-1 -*-\nNAME = '\xe9\xe8'\ndef f():\n    return '\xe9'\n"
    one_file(bench, data, "insert_in_function", '{ function = "f", new = "log(\\"\u00e9\\")" }')
    before = bench.state()
    assert bench.run("apply", "p").code == 0
    patched = bench.read("demo_pkg/m.py")
    assert b'    log("\xe9")\n' in patched
    assert b"'\xe9\xe8'" in patched
    assert bench.run("revert", "p").code == 0
    assert bench.state() == before


def test_case_14_text_the_encoding_does_not_have_is_refused(bench: Bench) -> None:
    data = b"# -*- coding: latin-1 -*-\ndef f():\n    return '\xe9'\n"
    one_file(bench, data, "insert_in_function", '{ function = "f", new = "log(\\"\u20ac\\")" }')
    assert "demo_pkg/m.py" in bench.refuse("apply", "p").err


@pytest.mark.parametrize(
    "data",
    [
        b"NAME = '\xe9'\ndef f():\n    return 1\n",
        b"# -*- coding: klingon -*-\ndef f():\n    return 1\n",
        b"# -*- coding: utf-8 -*-\ndef f():\n    return '\xe9'\n",
    ],
)
def test_case_14_bytes_that_are_no_text_are_refused_by_name(bench: Bench, data: bytes) -> None:
    one_file(bench, data, "insert_in_function", LOG)
    assert "demo_pkg/m.py" in bench.refuse("apply", "p").err


@pytest.mark.parametrize(
    ("codemod", "params", "expected"),
    [
        ("insert_in_function", LOG, b"def f():\n    log(1)\n    return 1"),
        (
            "add_decorator",
            '{ function = "f", decorator = "d" }',
            b"@d  # patchkit: p revision 1, see https://example.org/1\ndef f():\n    return 1",
        ),
        (
            "replace_block",
            '{ old = """    return 1\n""", new = """    return 2\n""" }',
            b"def f():\n    return 2",
        ),
        ("append", '{ new = "z = 1" }', b"def f():\n    return 1\nz = 1"),
    ],
)
def test_case_15_no_final_newline_is_added(
    bench: Bench, codemod: str, params: str, expected: bytes
) -> None:
    one_file(bench, b"def f():\n    return 1", codemod, params)
    before = bench.state()
    assert bench.run("apply", "p").code == 0
    assert without_marker(bench.read("demo_pkg/m.py")) == expected
    assert bench.run("revert", "p").code == 0
    assert bench.state() == before


def test_case_16_record_is_left_alone_and_nothing_lies_about(demo: Bench) -> None:
    before = demo.state()
    assert demo.run("apply", "p").code == 0
    after = demo.state()
    changed = {path for path in after if before.get(path) != after[path]}
    state = {path for path in after if path.split("/")[0] == ".patchkit"}
    assert changed - state == {F}
    assert set(before) <= set(after)
    names = {path for path in state if "/objects/" not in path}
    assert names == {
        ".patchkit",
        ".patchkit/ledger.json",
        ".patchkit/lock",
        ".patchkit/objects",
    }


def test_case_17_a_file_of_two_distributions_is_refused(bench: Bench) -> None:
    bench.install({"nv/__init__.py": b"X = 1\n"}, "one")
    bench.install({"nv/__init__.py": b"X = 2\n"}, "two")
    toml = manifest("replace_block", '{ old = "X = 2", new = "X = 3" }', "nv/__init__.py")
    bench.patch("p", toml.replace("demo-pkg", "two"))
    error = bench.refuse("apply", "p").err
    assert "one-1.0" in error
    assert "two-1.0" in error


def test_case_17_a_file_that_two_distributions_share_is_not_contested(bench: Bench) -> None:
    bench.install({"nv/__init__.py": b"X = 2\n"}, "one")
    bench.install({"nv/__init__.py": b"X = 2\n"}, "two")
    toml = manifest("replace_block", '{ old = "X = 2", new = "X = 3" }', "nv/__init__.py")
    bench.patch("p", toml.replace("demo-pkg", "two"))
    assert bench.run("apply", "p").code == 0


@pytest.mark.parametrize("written", ["demo.pkg", "DEMO-PKG", "demo__pkg", "Demo.Pkg", "demo-pkg"])
def test_case_18_names_are_found_in_any_spelling(bench: Bench, written: str) -> None:
    bench.install({F: A}, "Demo.Pkg")
    bench.patch("p", PATCH.replace('"demo-pkg"', f'"{written}"'))
    assert bench.run("apply", "p").code == 0
    assert bench.run("verify").code == 0
    assert bench.run("revert", "p").code == 0


def test_case_18_metadata_folder_as_old_installers_wrote_it(bench: Bench) -> None:
    bench.install({F: A}, "Demo.Pkg")
    (bench.site / "demo_pkg-1.0.dist-info").rename(bench.site / "Demo.Pkg-1.0.dist-info")
    bench.patch("p")
    assert bench.run("apply", "p").code == 0


def test_case_18_an_unknown_name_is_an_error(demo: Bench) -> None:
    demo.patch("p", PATCH.replace('"demo-pkg"', '"demo-pkgs"'))
    assert "demo-pkgs is not installed" in demo.refuse("apply", "p").err


def test_case_19_an_editable_install_is_refused(demo: Bench) -> None:
    url = {"url": "file:///src/checkout", "dir_info": {"editable": True}}
    (demo.site / "demo_pkg-1.0.dist-info/direct_url.json").write_text(json.dumps(url))
    outcome = demo.refuse("apply", "p")
    assert "/src/checkout" in outcome.err
    assert "already applied" not in outcome.err
    status = demo.run("status", "--json")
    assert status.states["p"] == "does not fit"


def test_case_20_eight_at_once_and_an_importer(demo: Bench) -> None:
    loop = (
        "import importlib, pathlib, sys\n"
        "seen = set()\n"
        "import demo_pkg.a\n"
        "while True:\n"
        "    last = pathlib.Path(sys.argv[1]).exists()\n"
        "    importlib.reload(demo_pkg.a)\n"
        "    seen.add((demo_pkg.a.enc(None), demo_pkg.a.dec(None)))\n"
        "    if last: break\n"
        "print(sorted(seen))\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(demo.site), "PYTHONDONTWRITEBYTECODE": "1"}
    stop = demo.folder / "stop"
    importer = subprocess.Popen(
        [sys.executable, "-c", loop, str(stop)], env=environ, stdout=subprocess.PIPE, text=True
    )
    apply = [sys.executable, "-m", "patchkit", "apply", "p"]
    apply += ["--site-packages", str(demo.site), "--patches", str(demo.patches)]
    root = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    runs = [subprocess.Popen(apply, env=root, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    outputs = [run.communicate()[0] for run in runs]
    stop.touch()
    seen, _ = importer.communicate()

    assert [run.returncode for run in runs] == [0] * 8
    assert sum("already applied" not in text for text in outputs) == 1
    assert importer.returncode == 0
    assert eval(seen) in ([(-1, 0)], [(-1, 0), (0, 0)])
    assert demo.read() == PATCHED
    assert demo.run("verify").code == 0
    assert demo.run("revert", "--all").code == 0
    assert demo.read() == A
    assert not (demo.site / ".patchkit").exists()


def read_only(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)


def test_case_21_verify_a_read_only_environment(shared: Bench) -> None:
    open_up(shared.folder)
    assert user(shared, "apply", "p").code == 0
    read_only(shared.site)
    before = shared.state()
    for command in (["verify"], ["status"], ["diff", "p"], ["list"], ["apply", "p"]):
        outcome = user(shared, *command)
        assert (outcome.code, outcome.err) == (0, ""), command
    assert shared.state() == before
    refused = user(shared, "revert", "p")
    assert_refusal(refused)
    assert "Permission denied" in refused.err
    assert shared.state() == before


def test_case_21_a_folder_that_may_not_be_searched(shared: Bench) -> None:
    """Python finds nothing there either."""
    open_up(shared.folder)
    shared.site.chmod(0)
    outcome = user(shared, "status")
    shared.site.chmod(0o755)
    assert (outcome.code, outcome.err) == (0, "")


def test_case_21_apply_where_it_may_not_write(shared: Bench) -> None:
    open_up(shared.folder)
    read_only(shared.site)
    before = shared.state()
    outcome = user(shared, "apply", "p")
    assert outcome.code == 1
    assert_refusal(outcome)
    assert "Permission denied" in outcome.err
    assert shared.state() == before
    assert user(shared, "apply", "p", "--dry-run").code == 0


@pytest.mark.parametrize("revision", [1, 2])
def test_case_22_an_edited_patch_replaces_the_old_one(demo: Bench, revision: int) -> None:
    before = demo.state()
    assert demo.run("apply", "p").code == 0
    edited = PATCH.replace("return -1", "return -2")
    demo.patch("p", edited.replace("revision = 1", f"revision = {revision}"))
    assert demo.run("status").code == 0
    assert "in place of revision 1" in demo.run("apply", "p").out
    marker = PATCHED.replace(b"revision 1", b"revision %d" % revision)
    assert demo.read() == marker.replace(b"return -1", b"return -2")
    assert demo.run("verify").code == 0
    assert demo.run("revert", "p").code == 0
    assert demo.state() == before


def test_case_22_an_edited_patch_that_leaves_a_file(demo: Bench) -> None:
    demo.patch("p", manifest("add_file", '{ new = "X = 1\\n" }', "demo_pkg/new/b.py"))
    before = demo.state()
    assert demo.run("apply", "p").code == 0
    demo.patch("p")
    assert demo.run("apply", "p").code == 0
    assert demo.read() == PATCHED
    assert not (demo.site / "demo_pkg/new").exists()
    assert demo.run("revert", "p").code == 0
    assert demo.state() == before


def test_case_23_upgraded_underneath(demo: Bench) -> None:
    assert demo.run("apply", "p").code == 0
    uninstall(demo)
    newer = A.replace(b"return 0", b"return 7")
    demo.install({"demo_pkg/__init__.py": b"", F: newer}, version="1.1")
    assert demo.run("status", "--json").states["p"] == "upgraded underneath"
    assert demo.run("status").code == demo.run("verify").code == 1
    outcome = demo.run("revert", "p")
    assert outcome.code == 0
    assert "upgraded underneath" in outcome.out
    assert demo.read() == newer
    assert not (demo.site / ".patchkit").exists()


def test_case_23_upgraded_underneath_then_applied_again(demo: Bench) -> None:
    assert demo.run("apply", "p").code == 0
    uninstall(demo)
    demo.install({"demo_pkg/__init__.py": b"", F: b"# newer\n" + A}, version="1.1")
    before = demo.state()
    assert demo.run("apply", "p").code == 0
    assert demo.read() == b"# newer\n" + PATCHED
    assert demo.run("verify").code == 0
    assert demo.run("revert", "p").code == 0
    assert {k: v for k, v in before.items() if ".patchkit" not in k} == demo.state()


def test_case_23_the_newer_version_holds_the_patched_bytes(demo: Bench) -> None:
    demo.patch("p", manifest("append", '{ new = "X = 1" }'))
    assert demo.run("apply", "p").code == 0
    patched = demo.read()
    uninstall(demo)
    demo.install({"demo_pkg/__init__.py": b"", F: patched}, version="1.1")
    assert demo.run("apply", "p").code == 0
    assert demo.run("revert", "p").code == 0
    assert demo.read() == patched


def test_case_22_a_patch_that_is_for_another_distribution_now(demo: Bench) -> None:
    demo.install({"other_pkg/b.py": A}, "other-pkg")
    assert demo.run("apply", "p").code == 0
    demo.patch("p", PATCH.replace("demo-pkg", "other-pkg").replace("demo_pkg/a", "other_pkg/b"))
    outcome = demo.refuse("apply", "p")
    assert "p is applied to demo-pkg, and is for other-pkg now" in outcome.err
    assert demo.run("revert", "p").code == 0
    assert demo.run("apply", "p").code == 0


def test_case_23_another_build_of_the_same_version(demo: Bench) -> None:
    """Old bytes go over no other build either, whatever its version is called."""
    assert demo.run("apply", "p").code == 0
    demo.install({"demo_pkg/__init__.py": b"", F: A.replace(b"u(x)", b"v(x)")})
    rebuilt = tree(demo.site / "demo_pkg")
    assert demo.run("status", "--json").states["p"] == "upgraded underneath"
    assert demo.run("verify").code == 1
    assert demo.run("revert", "--force", "p").code == 0
    assert tree(demo.site / "demo_pkg") == rebuilt
    assert demo.run("apply", "p").code == 0
    assert demo.read() == PATCHED.replace(b"u(x)", b"v(x)")
    assert demo.run("revert", "p").code == 0
    assert tree(demo.site / "demo_pkg") == rebuilt


def test_case_23_installed_while_patchkit_is_at_work(demo: Bench) -> None:
    """A newer file that appears after the old one was read is not written over."""
    code = (
        "from pathlib import Path\n"
        "from patchkit.splice import Splice\nfrom patchkit.source import Match\n"
        "def slow(source, patch, params):\n"
        "    Path(params['file']).write_bytes(b'new = True\\n')\n"
        "    return [Match('all', (Splice(0, 0, b'old = True\\n'),))]\n"
    )
    params = f"{{ file = {json.dumps(str(demo.site / F))} }}"
    demo.patch("p", manifest("codemod.py:slow", params), codemod__py=code)
    outcome = demo.run("apply", "p")
    assert outcome.code == 1
    assert_refusal(outcome)
    assert "was changed by another program" in outcome.err
    assert demo.read() == b"new = True\n"
    assert not (demo.site / ".patchkit").exists()


@pytest.mark.parametrize("ci", [None, "1"])
def test_case_24_failure_is_exit_1(bench: Bench, monkeypatch, ci: str | None) -> None:
    monkeypatch.delenv("CI", raising=False)
    if ci:
        monkeypatch.setenv("CI", ci)
    bench.install({F: A.replace(b"return 0", b"return 5")})
    bench.patch("p")
    assert "matched 0 places" in bench.refuse("apply", "p").err


def test_case_25_reinstalled_underneath(demo: Bench) -> None:
    assert demo.run("apply", "p").code == 0
    uninstall(demo)
    demo.install({"demo_pkg/__init__.py": b"", F: A})
    outcome = demo.run("verify")
    assert outcome.code == 1
    assert "not applied" in outcome.out
    assert demo.run("status").code == 1
    again = demo.run("apply", "p")
    assert again.code == 0
    assert "already applied" not in again.out
    assert demo.read() == PATCHED
    assert demo.run("verify").code == 0


def test_case_26_an_added_file_goes_after_uninstall(demo: Bench) -> None:
    demo.patch("p", manifest("add_file", '{ new = "X = 1\\n" }', "demo_pkg/extra/b.py"))
    assert demo.run("apply", "p").code == 0
    assert python(demo, "import demo_pkg.extra.b as b; print(b.X)") == "1"
    uninstall(demo)
    outcome = demo.run("verify")
    assert outcome.code == 1
    assert "distribution gone" in outcome.out
    assert "demo-pkg is no longer installed" in outcome.out
    assert demo.run("revert", "p").code == 0
    assert demo.state() == {}


def added(path: str) -> str:
    return manifest("add_file", '{ new = "X = 1\\n" }', path)


def test_case_26_an_added_folder_goes_with_the_last_patch_in_it(demo: Bench) -> None:
    demo.patch("p", added("demo_pkg/new/er/x.py"))
    demo.patch("q", added("demo_pkg/new/y.py"))
    before = demo.state()
    for order in (("p", "q"), ("q", "p")):
        for verb in ("apply", "revert"):
            for patch in order:
                assert demo.run(verb, patch).code == 0
        assert demo.state() == before


def test_case_26_a_file_is_added_once(demo: Bench) -> None:
    demo.patch("p", added("demo_pkg/new.py"))
    demo.patch("q", added("demo_pkg/new.py"))
    assert "conflict: p and q both add" in demo.refuse("apply", "p", "q").err
    assert demo.run("apply", "q").code == 0
    assert "conflict: p and q both add" in demo.refuse("apply", "p").err


def test_case_26_a_file_beside_an_added_one_is_not_swept_away(demo: Bench) -> None:
    demo.patch("p", manifest("add_file", '{ new = "X = 1\\n" }', "demo_pkg/extra/b.py"))
    assert demo.run("apply", "p").code == 0
    (demo.site / "demo_pkg/extra/mine.py").write_text("")
    assert demo.run("revert", "p").code == 0
    assert (demo.site / "demo_pkg/extra/mine.py").exists()
    assert not (demo.site / "demo_pkg/extra/b.py").exists()


TWO = PATCH + (
    '\n[[edit]]\nfile = "demo_pkg/sub/b.py"\ncodemod = "replace_block"\n'
    'params = { inside = "enc", old = "return 0", new = "return -1" }\n'
)


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_case_27_permission_ends_between_two_files(shared: Bench, command: str) -> None:
    shared.patch("p", TWO)
    open_up(shared.folder)
    if command == "revert":
        assert user(shared, "apply", "p").code == 0
    (shared.site / "demo_pkg/sub").chmod(0o555)
    before = shared.state()
    outcome = user(shared, command, "p")
    assert outcome.code == 1
    assert_refusal(outcome)
    assert "demo_pkg/sub/b.py: Permission denied" in outcome.err
    assert shared.state() == before
    (shared.site / "demo_pkg/sub").chmod(0o755)
    assert user(shared, command, "p").code == 0


def test_case_27_the_second_file_cannot_be_written(bench: Bench) -> None:
    bench.install({F: A, "demo_pkg/sub/b.py": A})
    bench.patch("p", TWO)
    compileall.compile_dir(bench.site, quiet=2)
    (bench.site / "demo_pkg/sub/.b.py.patchkit-tmp/x").mkdir(parents=True)
    assert "demo_pkg/sub/b.py" in bench.refuse("apply", "p").err


@pytest.mark.parametrize("limit", [0, 1, 100, 200, 400, 800, 1600, 3200, 6400])
def test_case_27_space_runs_out(bench: Bench, limit: int) -> None:
    import resource

    from tests.processes import forked

    second = A + b"# " + b"long " * 2000
    bench.install({F: A, "demo_pkg/sub/b.py": second})
    bench.patch("p", TWO)
    limit = limit or len(second) + 1  # the first file, the journal and all kept bytes fit
    bench.run("apply", "p", "--dry-run")
    before = bench.state()

    def action():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))  # the kernel refuses more
        return bench.run("apply", "p")

    outcome = forked(action)
    assert outcome.code == 1
    assert_refusal(outcome)
    assert "File too large" in outcome.err
    assert bench.state() == before


def test_case_27_the_second_site_packages_cannot_be_written(shared: Bench) -> None:
    """A patch for each of two folders: the first is put back when the second fails."""
    second = shared.folder / "second"
    wheel = make_wheel(shared.folder / "dist", "other-pkg", "1.0", {"other_pkg/b.py": A})
    unpack(wheel, second)
    shared.patch("q", PATCH.replace("demo-pkg", "other-pkg").replace(F, "other_pkg/b.py"))
    interpreter = shared.folder / "python"
    answer = json.dumps([str(second), str(shared.site)])
    interpreter.write_text(f"#!/bin/sh\necho '<patchkit>{answer}</patchkit>'\n")
    interpreter.chmod(0o755)
    open_up(shared.folder)
    args = ["--python", str(interpreter), "--patches", str(shared.patches), "p", "q"]
    for locked in (second, shared.site):
        package = next(p for p in locked.iterdir() if p.name.endswith("_pkg"))
        package.chmod(0o555)
        before = tree(second), shared.state()
        outcome = unprivileged("apply", *args)
        assert outcome.code == 1
        assert_refusal(outcome)
        assert (tree(second), shared.state()) == before
        package.chmod(0o755)
    assert unprivileged("apply", *args).code == 0
    assert b"return -1" in (second / "other_pkg/b.py").read_bytes()


def test_case_28_leftovers_of_a_killed_first_run_do_not_stay(demo: Bench) -> None:
    before = demo.state()
    (demo.site / ".patchkit").mkdir()
    assert demo.run("status").code == 0
    assert demo.run("revert", "--all").code == 0
    assert demo.state() == before
    assert invoke("list", "--site-packages", str(demo.site)).code == 0


# Killed at any call: see robustness/test_crashes.py.


# Whoever applies, with whatever umask: what patchkit adds is as open as the folder it lies in.


@pytest.mark.parametrize("umask", [0o077, 0o000])
def test_the_umask_of_who_applies_does_not_count(shared: Bench, umask: int) -> None:
    shared.patch("q", manifest("add_file", '{ new = "X = 1\\n" }', "demo_pkg/extra/b.py"))
    open_up(shared.folder)
    before = os.umask(umask)
    try:
        assert shared.run("apply", "p", "q").code == 0
    finally:
        os.umask(before)
    modes = {
        path.relative_to(shared.site).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in shared.site.rglob("*")
    }
    added = {".patchkit", ".patchkit/objects", "demo_pkg/extra"}
    assert {modes[name] for name in added} == {0o755}
    assert {modes[name] for name in modes if name.startswith(".patchkit/")} == {0o755, 0o644}
    assert modes["demo_pkg/extra/b.py"] == 0o644
    assert unprivileged("verify", "--site-packages", str(shared.site)).code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can apply for another user")
def test_what_root_applies_its_owner_can_revert(shared: Bench) -> None:
    shared.patch("q", manifest("add_file", '{ new = "X = 1\\n" }', "demo_pkg/extra/b.py"))
    open_up(shared.folder)
    before = shared.state()
    assert shared.run("apply", "p", "q").code == 0
    owners = {path.lstat().st_uid for path in shared.site.rglob("*")}
    assert owners == {shared.site.stat().st_uid}
    outcome = unprivileged("revert", "--all", "--site-packages", str(shared.site))
    assert outcome.code == 0, outcome
    assert shared.state() == before
