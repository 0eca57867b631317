from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from packaging.version import Version

from patchkit.environment import (
    Distribution,
    Target,
    find_distribution,
    find_target,
    linked_folder,
    other_owners,
    parse_record,
)
from patchkit.errors import TargetError
from tests.wheels import make_wheel, record_hash, unpack

HASH = record_hash(b"x")
HEX = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"


def digests(text: str) -> dict[str, str | None]:
    return {path: row.sha256 for path, row in parse_record(text).items()}


# RECORD


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"a.py,{HASH},1", {"a.py": HEX}),
        (f"a.py,{HASH}=,1", {"a.py": HEX}),
        ("a.py,,", {"a.py": None}),
        ("a.py", {"a.py": None}),
        ("a.py,md5=abc,1", {"a.py": None}),
        ("a.py,sha256,1", {"a.py": None}),
        ("a.py,sha256=,1", {"a.py": None}),
        ("a.py,sha256=!!!!,1", {"a.py": None}),
        ("a.py,sha256=YWJj,1", {"a.py": None}),
        ("a.py,sha256=é,1", {"a.py": None}),
        ("a.py,sha256=A,1", {"a.py": None}),
        (f"a.py,{HASH},1,more,columns", {"a.py": HEX}),
        (f'"a,b.py",{HASH},1', {"a,b.py": HEX}),
        (f'"a""b.py",{HASH},1', {'a"b.py': HEX}),
        (f"./a//b/../c.py,{HASH},1", {"a/c.py": HEX}),
        (f"../../bin/a,{HASH},1", {"../../bin/a": HEX}),
        (f"é 漢.py,{HASH},1", {"é 漢.py": HEX}),
        (",,", {}),
        ("", {}),
        ("\n\n", {}),
    ],
)
def test_parse_record(line: str, expected: dict[str, str | None]) -> None:
    assert digests(line) == expected
    assert digests(line + "\r\n") == expected


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a" * 200_000 + b",,\n", None])
def test_record_that_cannot_be_used(tmp_path: Path, content: bytes | None) -> None:
    demo = installed(tmp_path)
    record = demo.dist_info / "RECORD"
    record.unlink()
    if content is not None:
        record.write_bytes(content)
    with pytest.raises(TargetError, match="RECORD") as caught:
        _ = demo.record
    assert "pip install --force-reinstall --no-deps demo-pkg==1.0" in caught.value.hint


# Finding a distribution


def installed(site: Path, name: str = "demo-pkg", version: str = "1.0") -> Distribution:
    module = name.replace("-", "_").replace(".", "_").lower()
    unpack(make_wheel(site.parent / "dist", name, version, {f"{module}/a.py": b"x"}), site)
    found = find(site, name)
    assert found is not None
    return found


def find(site: Path, name: str) -> Distribution | None:
    return find_distribution(Target((site,), "a folder"), name)


def folder(site: Path, name: str, metadata: str | None = None) -> Path:
    """Make a metadata folder; ``metadata`` are its headers."""
    (site / name).mkdir(parents=True)
    if metadata is not None:
        (site / name / "METADATA").write_text(metadata)
    return site / name


@pytest.mark.parametrize("spelling", ["demo.pkg", "DEMO-PKG", "demo__pkg", "Demo.-_Pkg"])
@pytest.mark.parametrize("name", ["Demo.Pkg", "demo-pkg", "DEMO_PKG"])
def test_any_spelling(tmp_path: Path, name: str, spelling: str) -> None:
    installed(tmp_path / "site", name)
    found = find(tmp_path / "site", spelling)
    assert found is not None
    assert (found.name, found.key, found.version) == (name, "demo-pkg", Version("1.0"))
    assert found.requirement == f"{name}==1.0"
    assert set(found.record) >= {"demo_pkg/a.py"}


@pytest.mark.parametrize(
    "name",
    ["Demo.Pkg-1.0.dist-info", "demo-pkg-1.0.dist-info", "demo_pkg-1.0+cu130.dist-info"],
)
def test_any_spelling_of_the_folder(tmp_path: Path, name: str) -> None:
    folder(tmp_path, name, "Name: Demo.Pkg\nVersion: 1.0\n\n")
    assert find(tmp_path, "demo-pkg") is not None


@pytest.mark.parametrize("name", ["demo", "pkg", "demo-pkg-extra", "", "*", "../demo-pkg"])
def test_unknown_name(tmp_path: Path, name: str) -> None:
    installed(tmp_path / "site")
    assert find(tmp_path / "site", name) is None


@pytest.mark.parametrize(
    "name", ["~emo_pkg-1.0.dist-info", "demo_pkg.dist-info", "dist-info", ".dist-info"]
)
def test_folders_that_only_look_like_one(tmp_path: Path, name: str) -> None:
    folder(tmp_path, name, "Name: demo-pkg\nVersion: 1.0\n")
    assert find(tmp_path, "demo-pkg") is None


def test_first_folder_of_the_path_wins(tmp_path: Path) -> None:
    installed(tmp_path / "a/site", version="1.0")
    installed(tmp_path / "b/site", version="2.0")
    path = (tmp_path / "none", tmp_path / "b/site", tmp_path / "a/site")
    found = find_distribution(Target(path, "x"), "demo-pkg")
    assert found is not None
    assert found.version == Version("2.0")
    assert found.site_packages == tmp_path / "b/site"


def test_two_of_one_name_in_one_folder(tmp_path: Path) -> None:
    installed(tmp_path / "site", version="1.0")
    folder(tmp_path / "site", "Demo.Pkg-1.1.dist-info", "Name: demo-pkg\nVersion: 1.1\n")
    with pytest.raises(TargetError, match="two installations") as caught:
        find(tmp_path / "site", "demo-pkg")
    assert "Demo.Pkg-1.1.dist-info and demo_pkg-1.0.dist-info" in caught.value.message


def test_ghost_of_an_uninstalled_one_does_not_count(tmp_path: Path) -> None:
    installed(tmp_path / "site", version="1.0")
    folder(tmp_path / "site", "demo_pkg-0.9.dist-info")
    found = find(tmp_path / "site", "demo-pkg")
    assert found is not None
    assert found.version == Version("1.0")


def test_ghost_alone_is_not_installed(tmp_path: Path) -> None:
    folder(tmp_path, "demo_pkg-0.9.dist-info")
    assert find(tmp_path, "demo-pkg") is None


@pytest.mark.parametrize(
    "name",
    [
        "demo_pkg-1.0-py3.11.egg-info",
        "demo_pkg.egg-info",
        "Demo.Pkg.egg-info",
        "demo_pkg-1.0-py3.11.egg",
        "demo-pkg.egg-link",
        "demo_pkg.egg-link",
    ],
)
def test_eggs_are_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    with pytest.raises(TargetError, match="no RECORD of original bytes") as caught:
        find(tmp_path, "demo-pkg")
    assert name in caught.value.message
    assert find(tmp_path, "demo") is None
    assert find(tmp_path, "pkg") is None


def test_wheel_comes_before_an_egg(tmp_path: Path) -> None:
    installed(tmp_path / "site")
    (tmp_path / "site/demo_pkg.egg-info").mkdir()
    assert find(tmp_path / "site", "demo-pkg") is not None


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "Name: demo-pkg\n",
        "Version: 1.0\n",
        "Name: demo-pkg\nVersion: one\n",
        "\nName: demo-pkg\nVersion: 1.0\n",
        "no headers at all",
        ": x\n",
    ],
)
def test_metadata_that_cannot_be_used(tmp_path: Path, metadata: str) -> None:
    folder(tmp_path, "demo_pkg-1.0.dist-info", metadata)
    with pytest.raises(TargetError, match="METADATA cannot be used") as caught:
        find(tmp_path, "demo-pkg")
    assert "demo_pkg-1.0.dist-info" in caught.value.message


@pytest.mark.parametrize(
    "metadata",
    [
        "name: demo-pkg\nVERSION: 1.0\n",
        "Summary: x\n Version: 9\nName: demo-pkg\nVersion: 1.0\n\nVersion: 8\n",
        "Name: demo-pkg\r\nVersion: 1.0\r\n\r\n",
        "Name: demo-pkg\nVersion: 1.0\nVersion: 2.0\n",
        ": x\n\tx\n:\nName: demo-pkg\nVersion: 1.0\n",
    ],
)
def test_metadata_as_tools_write_it(tmp_path: Path, metadata: str) -> None:
    info = folder(tmp_path, "demo_pkg-1.0.dist-info")
    (info / "METADATA").write_bytes(metadata.encode())
    found = find(tmp_path, "demo-pkg")
    assert found is not None
    assert (found.name, found.version) == ("demo-pkg", Version("1.0"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, ""),
        ("{", ""),
        ("[]", ""),
        ("null", ""),
        ('{"url": "file:///src/a%20b", "dir_info": {}}', ""),
        ('{"url": "file:///src", "dir_info": {"editable": false}}', ""),
        ('{"url": "file:///src", "dir_info": []}', ""),
        ('{"url": "https://e.org/a.whl", "archive_info": {}}', ""),
        ('{"url": "file:///src/demo", "dir_info": {"editable": true}}', "/src/demo"),
        ('{"dir_info": {"editable": true}}', "an unknown folder"),
    ],
)
def test_editable(tmp_path: Path, content: str | None, expected: str) -> None:
    demo = installed(tmp_path / "site")
    if content is not None:
        (demo.dist_info / "direct_url.json").write_text(content)
    assert demo.editable == expected


OPENED = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "open" else None)
from pathlib import Path
from patchkit.environment import Target, find_distribution
site = Path(sys.argv[1])
opened.clear()
found = find_distribution(Target((site,), "x"), "Demo.Pkg")
assert found is not None and found.version
print(sum(1 for path in opened if str(path).startswith(str(site))))
"""


@pytest.mark.parametrize("others", [1, 300])
def test_finding_one_opens_no_metadata_of_the_others(tmp_path: Path, others: int) -> None:
    site = tmp_path / "site"
    installed(site)
    for number in range(others):
        # A folder in place of the file: whoever opens it fails.
        (site / f"other{number}-1.0.dist-info/METADATA").mkdir(parents=True)
    answer = subprocess.run(
        [sys.executable, "-c", OPENED, site], capture_output=True, text=True, check=True
    )
    assert int(answer.stdout) == 1


# The target


def test_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    target = find_target(None, str(tmp_path / "link"), {})
    assert target.path == (tmp_path.resolve(),)
    assert str(tmp_path / "link") in target.described


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_folder_that_is_none(tmp_path: Path, kind: str) -> None:
    if kind == "file":
        (tmp_path / kind).write_text("")
    with pytest.raises(TargetError, match=f"{kind}: no such folder"):
        find_target(None, str(tmp_path / kind), {})


@pytest.mark.parametrize("python", ["./nosuch", "nosuch-python"])
def test_an_interpreter_for_a_folder_that_is_none(tmp_path: Path, python: str) -> None:
    with pytest.raises(TargetError, match=f"--python {python}: no such interpreter"):
        find_target(python, str(tmp_path), {})


def test_running_interpreter() -> None:
    target = find_target(None, None, {})
    assert target.python == sys.executable
    assert Path(os.__file__).resolve().parent in target.path
    assert find_target(None, None, {"VIRTUAL_ENV": sys.prefix}) == target


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A bare virtual environment: no pip, no patchkit."""
    command = [sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"]
    subprocess.run(command, check=True)
    return tmp_path / "env"


def packages(environment: Path) -> Path:
    (found,) = environment.resolve().glob("lib/python*/site-packages")
    return found


def test_interpreter_environment_or_variable(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = packages(environment)
    python = environment / "bin/python"
    monkeypatch.setenv("PATH", f"{python.parent}:{os.environ['PATH']}")
    for target in (
        find_target(str(python), None, {}),
        find_target(str(environment), None, {}),
        find_target("python", None, {}),
        find_target(None, None, {"VIRTUAL_ENV": str(environment)}),
        find_target(str(python), None, {"VIRTUAL_ENV": "/nonsense"}),
    ):
        assert site in target.path
        assert Path(sys.prefix) / "lib" not in target.path
    folder_wins = find_target(str(python), str(site), {"VIRTUAL_ENV": str(environment)})
    assert folder_wins.path == (site,)


def test_interpreter_relative_to_the_working_folder(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(environment)
    assert packages(environment) in find_target("bin/python", None, {}).path
    assert packages(environment) in find_target("../env", None, {}).path
    assert packages(environment) in find_target(None, None, {"VIRTUAL_ENV": "../env"}).path


@pytest.mark.parametrize(
    "noise",
    [
        "print('hello', end='')",
        "print('<patchkit>[]</patchkit>')",
        "import sys; sys.stdout.buffer.write(b'caf\\xe9\\n')",
        "import sys; print('warning', file=sys.stderr)",
        "import atexit; atexit.register(print, 'bye')",
        "import os; os.write(1, b'\\0\\xff')",
    ],
)
def test_noise_of_the_target(environment: Path, noise: str) -> None:
    (packages(environment) / "sitecustomize.py").write_text(noise)
    assert packages(environment) in find_target(str(environment), None, {}).path


def test_path_that_is_not_utf8(environment: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(environment.parent) + b"/caf\xe9"))
    odd.mkdir()
    code = f"import sys; sys.path.append({str(odd)!a})"
    (packages(environment) / "sitecustomize.py").write_text(code)
    assert odd in find_target(str(environment), None, {}).path


def test_target_imports_nothing_installed(environment: Path) -> None:
    (packages(environment) / "json2.py").write_text("raise SystemExit(3)")
    (packages(environment) / "packaging.py").write_text("raise SystemExit(3)")
    assert packages(environment) in find_target(str(environment), None, {}).path


@pytest.mark.parametrize("what", ["missing", "folder", "script", "text", "silent"])
def test_interpreter_that_is_none(tmp_path: Path, what: str) -> None:
    path = tmp_path / what
    if what == "folder":
        path.mkdir()
    elif what != "missing":
        path.write_text({"script": "#!/bin/sh\nexit 3\n", "text": "x"}.get(what, "#!/bin/true\n"))
        path.chmod(0o755 if what != "text" else 0o644)
    with pytest.raises(TargetError, match=what) as caught:
        find_target(str(path), None, {})
    assert "--site-packages" in caught.value.hint


def test_stale_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="VIRTUAL_ENV"):
        find_target(None, None, {"VIRTUAL_ENV": str(tmp_path / "gone")})


def test_zip_files_and_missing_folders_on_the_path_are_left_out(environment: Path) -> None:
    code = "import sys; sys.path += ['', '/nonsense', sys.executable, sys.path[-1]]"
    (packages(environment) / "sitecustomize.py").write_text(code)
    path = find_target(str(environment), None, {}).path
    assert len(set(path)) == len(path)
    assert all(folder.is_dir() for folder in path)
    assert Path("/") not in path


# Owners


def record_of(site: Path, name: str, text: str) -> None:
    info = folder(site, f"{name}-1.0.dist-info", f"Name: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_bytes(text.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(
    ("row", "contested"),
    [
        (f"demo_pkg/a.py,{record_hash(b'other')},5", True),
        (f"./demo_pkg/a.py,{record_hash(b'other')},5", True),
        ("demo_pkg/a.py,,", True),
        (f"demo_pkg/a.py,{HASH},1", False),
        (f"demo_pkg/a.py.orig,{record_hash(b'other')},5", False),
        (f"other/demo_pkg/a.py,{record_hash(b'other')},5", False),
        (f"demo_pkg/A.py,{record_hash(b'other')},5", False),
        (f"\udcff,,\ndemo_pkg/a.py,{record_hash(b'other')},5", True),
    ],
)
def test_other_owners(tmp_path: Path, row: str, contested: bool) -> None:
    demo = installed(tmp_path / "site")
    record_of(tmp_path / "site", "zother", row + "\n")
    record_of(tmp_path / "site", "other", row + "\n")
    expected = {"demo_pkg/a.py": ["other-1.0", "zother-1.0"]} if contested else {}
    assert other_owners(demo, ["demo_pkg/a.py", "demo_pkg/b.py"]) == expected


def test_file_that_only_another_lists(tmp_path: Path) -> None:
    demo = installed(tmp_path / "site")
    record_of(tmp_path / "site", "other", f"demo_pkg/b.py,{HASH},1\n")
    assert other_owners(demo, ["demo_pkg/b.py"]) == {"demo_pkg/b.py": ["other-1.0"]}


@pytest.mark.parametrize("path", ['demo_pkg/a"b.py', "demo_pkg/a,b.py", "demo_pkg/é.py"])
def test_names_that_record_quotes(tmp_path: Path, path: str) -> None:
    demo = installed(tmp_path / "site")
    quoted = path.replace('"', '""')
    record_of(tmp_path / "site", "other", f'"{quoted}",{HASH},1\n')
    assert other_owners(demo, [path]) == {path: ["other-1.0"]}


@pytest.mark.parametrize("damage", ["folder", "csv"])
def test_damaged_record_of_another_is_not_in_the_way(tmp_path: Path, damage: str) -> None:
    demo = installed(tmp_path / "site")
    if damage == "folder":
        (tmp_path / "site/other-1.0.dist-info/RECORD").mkdir(parents=True)
    else:
        record_of(tmp_path / "site", "other", "demo_pkg/a.py" + "x" * 200_000 + ",,\n")
    assert other_owners(demo, ["demo_pkg/a.py"]) == {}


def test_linked_folder(tmp_path: Path) -> None:
    (tmp_path / "real/sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real/sub/a.py").symlink_to("/nonsense")
    assert linked_folder(tmp_path, "real/sub/a.py") is None
    assert linked_folder(tmp_path, "link/sub/a.py") == tmp_path / "link"
    assert linked_folder(tmp_path, "link") is None
    assert linked_folder(tmp_path, "none/a.py") is None


def test_what_a_target_is_asked_runs_on_old_interpreters() -> None:
    from patchkit import environment

    tree = compile(environment._ASK, "ask", "exec")
    assert tree.co_names[:2] == ("json", "sys")
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", environment._ASK], capture_output=True, text=True
    )
    inside = done.stdout.partition("<patchkit>")[2].partition("</patchkit>")[0]
    assert json.loads(inside)
    assert textwrap.dedent(environment._ASK) == environment._ASK


def test_the_way_from_two_installations_to_one_fits_the_target(tmp_path: Path) -> None:
    """pip uninstall does not reach a folder of pip install --target, and needs its interpreter."""
    for version in ("1.0", "1.1"):
        unpack(make_wheel(tmp_path / "dist", "pkg", version, {}), tmp_path / "a b")
    root = tmp_path / "a b"
    hints = []
    for target in (
        Target((root,), "", "/x y/python", is_folder=True),
        Target((root,), "", "/x y/python"),
        Target((root,), ""),
    ):
        with pytest.raises(TargetError, match="two installations of pkg") as caught:
            find_distribution(target, "pkg")
        hints.append(caught.value.hint)
    assert f"pip install --target '{root}-new' pkg==VERSION" in hints[0]
    assert "uninstall" not in hints[0]
    assert hints[1].startswith("Remove both: '/x y/python' -m pip uninstall pkg, the same again")
    assert "python -m pip uninstall pkg" in hints[2]
    assert f"'{root}-new'" in hints[2]


@pytest.mark.parametrize(
    ("python", "why"),
    [
        ("./nosuch", "there is no such file"),
        ("nosuch-python", "there is no such command on the PATH"),
        ("/bin/ls", "it is no Python interpreter, or a broken one"),
        ("/etc/passwd", "Permission denied"),
    ],
)
def test_why_an_interpreter_does_not_answer_is_said_in_words(python: str, why: str) -> None:
    with pytest.raises(TargetError, match=why):
        find_target(python, None, {})
