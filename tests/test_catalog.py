from __future__ import annotations

from pathlib import Path

import pytest

from patchkit.catalog import Project, load_catalog, load_project, read_patch, shipped_folder
from patchkit.errors import ManifestError, PatchkitError
from tests.conftest import PATCH


def patch(folder: Path, toml: str = PATCH) -> Path:
    folder.mkdir(parents=True)
    (folder / "patch.toml").write_text(toml)
    return folder


def own(*folders: Path, project: Project | None = None, cwd: Path) -> dict[str, str]:
    """Return id -> folder of the patches that are not shipped."""
    catalog = load_catalog(folders, project or Project(), cwd)
    return {p.id: p.folder for p in catalog.patches if p.id not in catalog.shipped}


# Catalog


def test_shipped(tmp_path: Path) -> None:
    catalog = load_catalog([], Project(), tmp_path)
    assert catalog.shipped == {p.id for p in catalog.patches}
    assert "flashinfer-cuda-version" in catalog.shipped
    assert [p.id for p in catalog.patches] == sorted(catalog.shipped)
    assert all(Path(p.folder).parent == shipped_folder() for p in catalog.patches)


def test_one_folder_or_a_folder_of_folders(tmp_path: Path) -> None:
    one, two = patch(tmp_path / "x/one"), patch(tmp_path / "x/two")
    (tmp_path / "x/no-patch").mkdir()
    (tmp_path / "x/README.md").write_text("")
    assert own(one, cwd=tmp_path) == {"one": str(one)}
    assert own(tmp_path / "x", cwd=tmp_path) == {"one": str(one), "two": str(two)}
    assert own(one, two, one, tmp_path / "x", cwd=tmp_path).keys() == {"one", "two"}


def test_name_of_a_folder_given_as_a_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(patch(tmp_path / "one"))
    assert own(Path("."), cwd=tmp_path).keys() == {"one"}


@pytest.mark.parametrize("kind", ["missing", "empty", "file", "deep"])
def test_no_patch_there(tmp_path: Path, kind: str) -> None:
    given = tmp_path / kind
    if kind == "file":
        given.write_text(PATCH)
    elif kind != "missing":
        given.mkdir()
    if kind == "deep":
        patch(given / "a/b")
    with pytest.raises(ManifestError, match=f"{kind}: no (patch in this|such) folder") as caught:
        own(given, cwd=tmp_path)
    assert "patch.toml" in caught.value.hint


def test_patches_of_the_working_folder(tmp_path: Path) -> None:
    patch(tmp_path / "patches/one")
    patch(tmp_path / "more/two")
    assert own(cwd=tmp_path).keys() == {"one"}
    project = Project(folders=(tmp_path / "more",))
    assert own(project=project, cwd=tmp_path).keys() == {"two"}
    with pytest.raises(ManifestError, match="nonsense"):
        own(project=Project(folders=(tmp_path / "nonsense",)), cwd=tmp_path)


def test_two_different_patches_of_one_id(tmp_path: Path) -> None:
    one = patch(tmp_path / "a/one")
    two = patch(tmp_path / "b/one", PATCH.replace("return -1", "return -2"))
    with pytest.raises(ManifestError, match="two different patches are called one") as caught:
        own(one, two, cwd=tmp_path)
    assert str(one) in caught.value.message
    assert str(two) in caught.value.message


def test_the_same_patch_twice_is_one(tmp_path: Path) -> None:
    one = patch(tmp_path / "a/one")
    two = patch(tmp_path / "b/one")
    (two / "patch.toml").write_bytes(PATCH.replace("\n", "\r\n").encode())
    (two / ".hidden").write_text("x")
    (two / "__pycache__").mkdir()
    (two / "__pycache__/codemod.cpython-311.pyc").write_bytes(b"\xff")
    assert own(one, two, cwd=tmp_path) == {"one": str(one)}


def test_shipped_id_cannot_be_taken(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="two different patches are called flashinfer-cuda"):
        own(patch(tmp_path / "flashinfer-cuda-version"), cwd=tmp_path)


def test_every_problem_of_every_folder(tmp_path: Path) -> None:
    patch(tmp_path / "x/One")
    patch(tmp_path / "x/two", PATCH.replace("revision = 1", "revision = 0"))
    patch(tmp_path / "x/three")
    (tmp_path / "x/three/snippet.py").write_bytes(b"\xff")
    with pytest.raises(ManifestError) as caught:
        own(tmp_path / "x", cwd=tmp_path)
    for words in ("'One'", "revision: must be 1 or more", "three/snippet.py"):
        assert words in caught.value.message


def test_lookup(tmp_path: Path) -> None:
    catalog = load_catalog([patch(tmp_path / "one")], Project(), tmp_path)
    assert catalog.get("one") == catalog.find("one")
    assert catalog.find("two") is None
    with pytest.raises(PatchkitError, match="there is no patch 'ones'") as caught:
        catalog.get("ones")
    assert "did you mean one?" in caught.value.hint
    assert "patchkit list" in caught.value.hint


# One folder


@pytest.mark.parametrize("name", ["patch.toml", "snippet.py", "sub/snippet.py"])
@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * ((1 << 20) + 1)])
def test_file_that_is_no_text_or_huge(tmp_path: Path, name: str, content: bytes) -> None:
    folder = patch(tmp_path / "one")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    with pytest.raises(ManifestError, match=name):
        read_patch(folder)


def test_what_belongs_to_a_patch(tmp_path: Path) -> None:
    folder = patch(tmp_path / "one")
    (folder / "sub").mkdir()
    (folder / "sub/snippet.py").write_bytes(b"\xef\xbb\xbfx\r\n")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    (folder / ".git").mkdir()
    (folder / ".git/HEAD").write_bytes(b"\xff")
    found = read_patch(folder)
    assert found.snippets == {"sub/snippet.py": "x\n"}
    before = found.digest
    (folder / "sub/snippet.py").write_text("y")
    assert read_patch(folder).digest != before


def test_manifest_may_start_with_a_bom(tmp_path: Path) -> None:
    folder = patch(tmp_path / "one")
    (folder / "patch.toml").write_bytes(b"\xef\xbb\xbf" + PATCH.encode())
    assert read_patch(folder).id == "one"


def test_file_name_that_is_not_utf8(tmp_path: Path) -> None:
    folder = patch(tmp_path / "one")
    (folder / "caf\udce9.txt").write_text("x")
    assert set(read_patch(folder).snippets) == {"caf\udce9.txt"}


# Project


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_no_project(tmp_path: Path) -> None:
    assert load_project(tmp_path) == Project()


def test_nearest_file_that_says_something(tmp_path: Path) -> None:
    outer = write(tmp_path / "patchkit.toml", 'patches = ["one"]\nfolders = ["p", "/abs"]\n')
    write(tmp_path / "a/pyproject.toml", "[tool.other]\n")
    inner = write(tmp_path / "a/b/pyproject.toml", "[tool.patchkit]\npatches = []\n")
    (tmp_path / "a/b/c").mkdir()
    expected = Project(str(outer), ("one",), (tmp_path / "p", Path("/abs")))
    assert load_project(tmp_path) == load_project(tmp_path / "a") == expected
    assert load_project(tmp_path / "a/b/c") == Project(str(inner), (), ())


def test_patchkit_toml_comes_before_pyproject_toml(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", '[tool.patchkit]\npatches = ["one"]\n')
    file = write(tmp_path / "patchkit.toml", "")
    assert load_project(tmp_path) == Project(str(file), None, ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "not valid TOML"),
        ("patches = 1", "patches: must be a list of strings"),
        ("patches = [1]", "patches: must be a list of strings"),
        ('folders = "x"', "folders: must be a list of strings"),
        ("patch = []\npatches = 1", "2 problems"),
        ("patch = []", "patch: unknown key"),
        ("[patches]", "patches: must be a list of strings"),
    ],
)
def test_bad_project_file(tmp_path: Path, text: str, words: str) -> None:
    file = write(tmp_path / "patchkit.toml", text)
    with pytest.raises(ManifestError, match=words) as caught:
        load_project(tmp_path)
    assert str(file) in caught.value.message


@pytest.mark.parametrize(
    "text", ["tool = 1", "[tool]\npatchkit = 1", '[tool]\npatchkit = ["x"]', "[[tool]]", "tool ="]
)
def test_bad_pyproject(tmp_path: Path, text: str) -> None:
    file = write(tmp_path / "pyproject.toml", f"{text}\n# patchkit")
    with pytest.raises(ManifestError) as caught:
        load_project(tmp_path)
    assert str(file) in caught.value.message


def test_pyproject_that_does_not_speak_of_patchkit_is_not_ours_to_read(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", "tool =")
    assert load_project(tmp_path) == Project()


@pytest.mark.parametrize("content", [b"\xff", b"#" * ((1 << 20) + 1)])
def test_project_file_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "patchkit.toml").write_bytes(content)
    with pytest.raises(ManifestError, match=r"patchkit\.toml"):
        load_project(tmp_path)


def test_folder_that_cannot_be_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a service user who was started in the home of root."""

    def is_file(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", is_file)
    with pytest.raises(ManifestError, match="cannot be looked for: Permission denied") as caught:
        load_project(tmp_path)
    assert "cd /" in caught.value.hint
