from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from patchkit.catalog import read_patch
from patchkit.errors import ManifestError
from patchkit.manifest import CHECKS, Patch, folder_digest, parse_patch, path_problem

EDIT = {"file": "demo_pkg/a.py", "codemod": "append", "params": {"new": "X = 1"}}
GOOD: dict[str, Any] = {
    "schema": 1,
    "revision": 1,
    "title": "A title",
    "why": "A reason.\nIn two lines.",
    "distribution": "demo-pkg",
    "versions": ">=1.0,<2",
}


def value(item: object) -> str:
    """Write a Python value as TOML."""
    if isinstance(item, dict):
        return "{ " + ", ".join(f"{k} = {value(v)}" for k, v in item.items()) + " }"
    if isinstance(item, list):
        return "[" + ", ".join(value(v) for v in item) + "]"
    if isinstance(item, str):
        plain = re.compile(r"[^ !#-\[\]-~]")
        return '"' + plain.sub(lambda found: f"\\U{ord(found[0]):08x}", item) + '"'
    return json.dumps(item)


def toml(fields: dict[str, Any] | None = None, edit: dict[str, Any] | None = None) -> str:
    """Write a manifest; a field that is None is left out."""
    lines = [f"{k} = {value(v)}" for k, v in (GOOD | (fields or {})).items() if v is not None]
    if fields is None or "edit" not in fields:
        table = EDIT | (edit or {})
        lines += ["[[edit]]", *(f"{k} = {value(v)}" for k, v in table.items() if v is not None)]
    return "\n".join([*lines, ""])


def parse(text: str, name: str = "p", **files: str) -> Patch:
    return parse_patch(name, {"patch.toml": text, **files}, "patches/p")


def problems(text: str, name: str = "p") -> list[str]:
    with pytest.raises(ManifestError) as caught:
        parse(text, name)
    first, *lines = caught.value.message.splitlines()
    assert first.startswith("patches/p/patch.toml: ")
    assert f"{len(lines)} problem" in first
    assert caught.value.hint
    return [line.strip() for line in lines]


def test_defaults() -> None:
    patch = parse(toml())
    assert (patch.default, patch.links, patch.checks) == (False, (), ())
    assert (patch.conflicts, patch.requires, patch.has_code) == ((), (), False)
    assert patch.why == "A reason.\nIn two lines."
    (edit,) = patch.edits
    assert (edit.matches, str(edit.versions)) == (1, "")
    assert edit.versions.contains("1.0")


def test_every_field() -> None:
    fields = {
        "revision": 3,
        "links": ["https://example.org/1", "https://example.org/2"],
        "distribution": "Demo.Pkg",
        "default": True,
        "checks": ["import"],
        "conflicts": ["q", "r-2"],
        "requires": ["s"],
    }
    edit = {"versions": "==1.5.*", "matches": 2, "codemod": "codemod.py:fix"}
    patch = parse(toml(fields, edit), **{"codemod.py": "def fix(): ...\r\n"})
    assert patch.revision == 3
    assert patch.links == ("https://example.org/1", "https://example.org/2")
    assert patch.distribution == "demo-pkg"
    assert patch.default
    assert patch.has_code
    assert patch.checks == ("import",)
    assert (patch.conflicts, patch.requires) == (("q", "r-2"), ("s",))
    assert patch.edits[0].matches == 2
    assert patch.snippets == {"codemod.py": "def fix(): ...\n"}


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("1.0", True),
        ("1.0+cu130", True),
        ("1.5rc1", True),
        ("1.0.dev1", False),
        ("2.0", False),
        ("2.0+local", False),
    ],
)
def test_pre_releases_and_local_builds_count(version: str, fits: bool) -> None:
    assert parse(toml()).fits(Version(version)) is fits


def test_edits_for_a_version_keep_the_order_of_the_manifest() -> None:
    edits = [EDIT | {"file": f"demo_pkg/{n}.py", "versions": v} for n, v in PER_VERSION]
    patch = parse(toml({"edit": edits}))
    assert [e.file for e in patch.edits_for(Version("1.1rc2"))] == [
        "demo_pkg/z.py",
        "demo_pkg/a.py",
    ]


PER_VERSION = [("z", ">=1.1rc1"), ("m", "<1.1rc1"), ("a", "")]


@pytest.mark.parametrize("field", list(GOOD))
def test_missing_field(field: str) -> None:
    assert problems(toml({field: None})) == [f"{field}: is missing"]


@pytest.mark.parametrize("field", ["file", "codemod"])
def test_missing_field_of_an_edit(field: str) -> None:
    assert problems(toml(edit={field: None})) == [f"edit[0].{field}: is missing"]


def test_missing_edits() -> None:
    assert problems(toml({"edit": None})) == ["edit: is missing"]
    assert problems(toml({"edit": []})) == ["edit: is empty; a patch edits at least one file"]


@pytest.mark.parametrize(
    ("field", "wrong", "found"),
    [
        ("schema", "1", "must be an integer, not a string"),
        ("schema", True, "must be an integer, not true or false"),
        ("schema", 1.0, "must be an integer, not a number"),
        ("schema", 0, "must be 1 or more"),
        ("schema", 2, "is 2, this patchkit reads up to 1; upgrade patchkit"),
        ("revision", "1", "must be an integer, not a string"),
        ("revision", -1, "must be 1 or more"),
        ("title", 1, "must be a string, not an integer"),
        ("title", "", "is empty"),
        ("title", " \n", "is empty"),
        ("why", ["x"], "must be a string, not a list"),
        ("why", "", "is empty"),
        ("links", "https://example.org", "must be a list, not a string"),
        ("links", [1], "must be a list of strings"),
        ("distribution", 1, "must be a string, not an integer"),
        ("distribution", "", "is empty"),
        ("versions", 1, "must be a string, not an integer"),
        ("versions", "1.0", "'1.0' is not a version specifier such as '>=0.6,<0.7'"),
        ("versions", ">=x", "'>=x' is not a version specifier such as '>=0.6,<0.7'"),
        ("default", 1, "must be true or false, not an integer"),
        ("default", "yes", "must be true or false, not a string"),
        ("checks", ["imports"], f"'imports' is not a check; known are {', '.join(CHECKS)}"),
        ("checks", {"import": True}, "must be a list, not a table"),
        ("checks", 1, "must be a list, not an integer"),
        ("conflicts", "q", "must be a list, not a string"),
        ("conflicts", ["Q"], "'Q' is not a patch id"),
        ("requires", ["../q"], "'../q' is not a patch id"),
        ("requires", ["q\n"], "'q\\n' is not a patch id"),
        ("edit", "x", "must be a list, not a string"),
        ("edit", {"file": "a.py"}, "must be a list, not a table"),
    ],
)
def test_wrong_value(field: str, wrong: object, found: str) -> None:
    assert problems(toml({field: wrong})) == [f"{field}: {found}"]


@pytest.mark.parametrize(
    ("field", "wrong", "found"),
    [
        ("file", 1, "must be a string, not an integer"),
        ("file", "", "is empty"),
        ("codemod", ["append"], "must be a string, not a list"),
        ("codemod", "", "is empty"),
        ("codemod", "os.system", "'os.system' must be a name or 'codemod.py:function'"),
        ("codemod", "x.py:f", "'x.py:f' must be a name or 'codemod.py:function'"),
        ("codemod", "codemod.py:", "'codemod.py:' must be a name or 'codemod.py:function'"),
        ("codemod", "codemod.py:f", "'codemod.py:f' needs a codemod.py beside patch.toml"),
        ("params", ["x"], "must be a table, not a list"),
        ("versions", "about 1", "'about 1' is not a version specifier such as '>=0.6,<0.7'"),
        ("matches", 0, "must be 1 or more"),
        ("matches", True, "must be an integer, not true or false"),
    ],
)
def test_wrong_value_in_an_edit(field: str, wrong: object, found: str) -> None:
    assert f"edit[0].{field}: {found}" in problems(toml(edit={field: wrong}))


@pytest.mark.parametrize("field", ["title", "distribution"])
@pytest.mark.parametrize("text", ["a\nb", "a\x1b[2Jb", "a\u202eb", "a\x00b"])
def test_text_that_is_shown_in_one_line(field: str, text: str) -> None:
    (problem,) = problems(toml({field: text}))
    assert problem.startswith(f"{field}: ")


@pytest.mark.parametrize("text", ["https://e.org/\nimport os", "https://e.org/\u202e", "a b", ""])
def test_links_end_up_in_a_comment_of_the_patched_file(text: str) -> None:
    (problem,) = problems(toml({"links": [text]}))
    assert problem.startswith("links: ")


@pytest.mark.parametrize("name", ["../demo", "demo pkg", "-demo", "demo/pkg", "démo"])
def test_distribution_is_a_name(name: str) -> None:
    (problem,) = problems(toml({"distribution": name}))
    assert problem.startswith("distribution: ")


@pytest.mark.parametrize(
    "path",
    [
        "../a.py",
        "demo_pkg/../../a.py",
        "demo_pkg/..",
        "/etc/passwd",
        "C:/a.py",
        "C:a.py",
        "demo_pkg//a.py",
        "./a.py",
        "demo_pkg/./a.py",
        "demo_pkg/",
        "",
        "demo_pkg\\a.py",
        "..\\a.py",
        "demo_pkg/a\x00.py",
        "demo_pkg/a\n.py",
        "demo_pkg/\u202eyp.a",
        "demo_pkg/a\udc80.py",
        "demo_pkg-1.0.dist-info/RECORD",
        "demo_pkg.egg-info/PKG-INFO",
        "demo_pkg-1.0.data/a.py",
        ".patchkit/ledger.json",
    ],
)
def test_path_that_leaves_the_distribution(path: str) -> None:
    assert path_problem(path)
    if path and path.isprintable():
        (problem,) = problems(toml(edit={"file": path}))
        assert problem.startswith("edit[0].file: ")
        assert repr(path) in problem


@pytest.mark.parametrize(
    "path", ["a.py", "demo_pkg/a.py", "demo_pkg/data/..x/a b.cu", "demo_pkg/é.py", "x/.patchkit/a"]
)
def test_path_inside(path: str) -> None:
    assert path_problem(path) == ""


def test_unknown_keys() -> None:
    first, second = problems(toml({"titel": "x"}, {"match": 1}))
    assert first.startswith("edit[0].match: unknown key; known are codemod, file, ")
    assert second.startswith("titel: unknown key; known are checks, conflicts, ")


def test_all_problems_at_once() -> None:
    edits = [EDIT | {"file": "/a"}, 5, EDIT | {"matches": 0, "x": 1}]
    found = problems(toml({"revision": 0, "why": None, "new": 1, "edit": edits}), "Bad_Name")
    assert [line.partition(": ")[0] for line in found] == [
        "id",
        "revision",
        "why",
        "edit[0].file",
        "edit[1]",
        "edit[2].matches",
        "edit[2].x",
        "new",
    ]


@pytest.mark.parametrize("name", ["", "P", "a_b", "a--b", "-a", "a-", "a.b", "a\n", "../a", "é"])
def test_bad_folder_name(name: str) -> None:
    (problem,) = problems(toml(), name)
    assert problem.startswith("id: ")


@pytest.mark.parametrize(
    "text", ["", "x", "[[edit]\n", "a = 1\na = 2", "a = " + "[" * 3000, "a = 1e", 'a = "\0"']
)
def test_not_toml_or_empty(text: str) -> None:
    with pytest.raises(ManifestError, match=r"patches/p/patch\.toml"):
        parse(text)


def test_no_manifest() -> None:
    with pytest.raises(ManifestError, match=r"p/patch\.toml: no such file"):
        parse_patch("p", {"notes.md": ""})


def write(folder: Path, newline: bytes) -> Path:
    files = {
        "patch.toml": toml() + "# end\n",
        "codemod.py": "def f():\n    return 1\n",
        "more/snippet.py": "'''a\n\nb'''\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode().replace(b"\n", newline))
    return folder


def test_crlf_folder_is_the_lf_folder(tmp_path: Path) -> None:
    lf = read_patch(write(tmp_path / "lf/p", b"\n"))
    crlf = read_patch(write(tmp_path / "crlf/p", b"\r\n"))
    assert crlf.digest == lf.digest
    assert crlf.snippets == lf.snippets
    assert crlf.edits == lf.edits


def test_digest_of_a_folder() -> None:
    base = {"a": "1", "b": "2"}
    assert folder_digest(base) == folder_digest(dict(reversed(base.items())))
    others = [{"a": "1"}, {"a": "12", "b": ""}, {"a": "1", "c": "2"}, {"a": "1\n", "b": "2"}]
    assert len({folder_digest(files) for files in [base, *others]}) == 5


def test_file_name_that_is_not_utf8() -> None:
    assert folder_digest({"a\udcff": "1"}) != folder_digest({"a": "1"})
