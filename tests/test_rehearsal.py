from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from patchkit import rehearsal, releases
from patchkit.results import Check, Result, Row
from tests.conftest import PATCH, A, Bench, Outcome, invoke, tree
from tests.wheels import make_wheel

FILES = {"demo_pkg/__init__.py": b"", "demo_pkg/a.py": A}


@pytest.fixture
def shelf(bench: Bench) -> Bench:
    """A bench with patch p and nothing installed."""
    bench.patch("p")
    return bench


def check(bench: Bench, *args: str) -> Outcome:
    return invoke("check", "--patches", str(bench.patches), *args)


def names(outcome: Outcome) -> list[tuple[str, str]]:
    return [(c["name"], c["outcome"]) for c in outcome.json["releases"][0]["checks"]]


DONE = [("apply", "passed"), ("bytes", "passed"), ("revert", "passed")]


def test_a_wheel_that_fits(shelf: Bench) -> None:
    wheel = make_wheel(shelf.folder / "dist", "demo-pkg", "1.3", FILES)
    before = tree(shelf.folder)
    outcome = check(shelf, str(wheel), "--patch", "p", "--json")
    assert outcome.code == 0
    (release,) = outcome.json["releases"]
    assert (release["version"], release["error"]) == ("1.3", "")
    assert [(r["id"], r["state"]) for r in release["patches"]] == [("p", "fits")]
    assert names(outcome) == DONE
    assert tree(shelf.folder) == before


def test_a_folder_is_copied_not_changed(shelf: Bench) -> None:
    shelf.install(FILES)
    before = shelf.state()
    outcome = check(shelf, str(shelf.site), "--patch", "p", "--json")
    assert outcome.code == 0
    assert names(outcome) == DONE
    assert shelf.state() == before


def test_a_folder_that_is_patched_is_looked_at_as_it_was_before(shelf: Bench) -> None:
    shelf.install(FILES)
    shelf.patch("q", PATCH.replace('"enc"', '"dec"'))
    assert shelf.run("apply", "p", "q").code == 0
    before = shelf.state()
    outcome = check(shelf, str(shelf.site), "--patch", "p", "--json")
    assert outcome.code == 0
    assert names(outcome) == DONE
    assert shelf.state() == before
    (shelf.site / "demo_pkg/a.py").write_bytes(b"mine")
    outcome = check(shelf, str(shelf.site), "--patch", "p", "--json")
    assert outcome.code == 1
    assert "drifted" in outcome.json["releases"][0]["error"]


def test_what_is_applied_and_was_not_checked_is_named(shelf: Bench) -> None:
    shelf.install(FILES)
    shelf.patch(
        "q", PATCH.replace('"enc"', '"dec"').replace("revision", "default = true\nrevision")
    )
    wheel = str(make_wheel(shelf.folder / "dist", "demo-pkg", "1.3", FILES))
    target = ("--site-packages", str(shelf.site))
    assert shelf.run("apply", "p", "q").code == 0
    outcome = check(shelf, wheel, *target)
    assert outcome.code == 0
    assert "applied in the target, and not checked: p; name them with --patch" in outcome.out
    assert "warning" not in check(shelf, wheel, *target, "--patch", "q").out
    (shelf.site / ".patchkit/ledger.json").write_text("{")
    assert check(shelf, wheel, *target).code == 0


def test_no_patch_to_check_with(shelf: Bench) -> None:
    wheel = str(make_wheel(shelf.folder / "dist", "demo-pkg", "1.3", FILES))
    (release,) = check(shelf, wheel, "--json").json["releases"]
    assert "one of these patches is for: flashinfer-" in release["error"]
    assert "Name a patch with --patch" in release["hint"]


def test_an_sdist_is_laid_out_as_if_installed(shelf: Bench) -> None:
    root = shelf.folder / "demo_pkg-1.5"
    (root / "demo_pkg").mkdir(parents=True)
    for path, data in FILES.items():
        (root / path).write_bytes(data)
    (root / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: demo-pkg\nVersion: 1.5\n")
    sdist = shelf.folder / "demo_pkg-1.5.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        archive.add(root, root.name)
    outcome = check(shelf, str(sdist), "--patch", "p", "--json")
    assert outcome.code == 0
    assert outcome.json["releases"][0]["version"] == "1.5"
    assert names(outcome) == DONE


def test_a_release_out_of_range_is_exit_1_and_says_why(shelf: Bench) -> None:
    wheel = make_wheel(shelf.folder / "dist", "demo-pkg", "2.1", FILES)
    outcome = check(shelf, str(wheel), "--patch", "p")
    assert outcome.code == 1
    assert "does not fit" in outcome.out
    assert "is for demo-pkg >=1.0,<2, installed is 2.1" in outcome.out


def test_code_that_moved_on_is_exit_1_and_names_the_function(shelf: Bench) -> None:
    moved = A.replace(b"return 0", b"return None", 1)
    wheel = make_wheel(shelf.folder / "dist", "demo-pkg", "1.9", {**FILES, "demo_pkg/a.py": moved})
    outcome = check(shelf, str(wheel), "--patch", "p", "--json")
    assert outcome.code == 1
    (row,) = outcome.json["releases"][0]["patches"]
    assert row["state"] == "bad"
    assert row["detail"] == "apply was refused"
    assert "matched 0 places" in outcome.json["releases"][0]["checks"][0]["detail"]
    assert names(outcome) == [("apply", "failed")]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("no such thing", "neither a file, a folder, nor a requirement"),
        ("demo-pkg>=1.0", "does not name one release"),
        ("demo-pkg", "does not name one release"),
    ],
)
def test_what_is_no_release(shelf: Bench, given: str, words: str) -> None:
    outcome = check(shelf, given, "--patch", "p", "--json")
    assert outcome.code == 1
    assert words in outcome.json["releases"][0]["error"]
    hint = outcome.json["releases"][0]["hint"]
    assert hint
    shown = check(shelf, given, "--patch", "p").out
    assert f"\n  hint: {hint}\n" in shown
    assert "(" not in shown


def test_of_the_versions_there_are_the_newest_few_are_named(
    shelf: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = ", ".join(f"0.{minor}" for minor in range(100))
    said = f"ERROR: Could not find a version (from versions: {every})\nERROR: No match"
    program = f"import sys; sys.exit({said!r})"
    monkeypatch.setattr(releases, "_pip", lambda: [sys.executable, "-c", program])
    error = check(shelf, "demo-pkg==9.9", "--patch", "p", "--json").json["releases"][0]["error"]
    assert "(from versions: ..., 0.95, 0.96, 0.97, 0.98, 0.99)" in error
    assert "0.94" not in error


def test_a_damaged_wheel_and_a_wheel_of_something_else(shelf: Bench) -> None:
    damaged = shelf.folder / "damaged-1.0-py3-none-any.whl"
    damaged.write_bytes(b"not a zip")
    other = make_wheel(shelf.folder / "dist", "other", "1.0", {"other.py": b"x = 1\n"})
    outcome = check(shelf, str(damaged), str(other), "--patch", "p", "--json")
    assert outcome.code == 1
    first, second = (r["error"] for r in outcome.json["releases"])
    assert "cannot be unpacked" in first
    assert "holds no distribution that one of these patches is for" in second


METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


def sdist(folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / "demo-pkg-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, BytesIO(data))
    return path


@pytest.mark.parametrize(
    ("name", "version"),
    [("demo-pkg", "../../../../evil"), ("../../../../evil", "1"), ("demo-pkg", ""), ("", "1.0")],
)
def test_an_sdist_that_would_leave_its_folder(shelf: Bench, name: str, version: str) -> None:
    text = METADATA.format(name=name, version=version).encode()
    files = {"d/demo_pkg/__init__.py": b"", "d/demo_pkg-../__init__.py": b"", "d/PKG-INFO": text}
    before = set(os.listdir(tempfile.gettempdir()))
    outcome = check(shelf, str(sdist(shelf.folder, files)), "--patch", "p", "--json")
    assert outcome.code == 1
    assert "cannot be unpacked" in outcome.json["releases"][0]["error"]
    found = set(os.listdir(tempfile.gettempdir())) - before
    assert not [name for name in found if "evil" in name]


def truncated(wheel: Path, source: Path) -> None:
    source.write_bytes(source.read_bytes()[:60])


def empty(wheel: Path, source: Path) -> None:
    sdist(source.parent, {})


def encrypted(wheel: Path, source: Path) -> None:
    flagged = wheel.read_bytes().replace(b"PK\3\4\x14\0\0\0", b"PK\3\4\x14\0\1\0")
    wheel.write_bytes(flagged.replace(b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0"))


def unknown_method(wheel: Path, source: Path) -> None:
    data = wheel.read_bytes().replace(b"PK\3\4\x14\0\0\0\0\0", b"PK\3\4\x14\0\0\0\x63\0")
    central = b"PK\1\2\x14\3\x14\0\0\0"
    wheel.write_bytes(data.replace(central + b"\0\0", central + b"\x63\0"))


@pytest.mark.parametrize("spoil", [truncated, empty, encrypted, unknown_method])
def test_archives_that_cannot_be_read(shelf: Bench, spoil: Callable[[Path, Path], None]) -> None:
    wheel = make_wheel(shelf.folder / "dist", "demo-pkg", "1.0", FILES)
    files = {"d/demo_pkg/__init__.py": b"", "d/PKG-INFO": b"Name: demo-pkg\nVersion: 1.0\n"}
    source = sdist(shelf.folder, files)
    before = wheel.read_bytes(), source.read_bytes()
    spoil(wheel, source)
    spoiled = wheel if wheel.read_bytes() != before[0] else source
    assert (wheel.read_bytes(), source.read_bytes()) != before
    outcome = check(shelf, str(spoiled), "--patch", "p", "--json")
    assert outcome.code == 1
    assert "cannot be unpacked" in outcome.json["releases"][0]["error"]


def test_a_folder_with_odd_names_and_one_with_what_is_no_file(shelf: Bench) -> None:
    shelf.install(FILES)
    (shelf.site / "demo_pkg" / os.fsdecode(b"\xff.txt")).write_text("x")
    assert check(shelf, str(shelf.site), "--patch", "p").code == 0
    os.mkfifo(shelf.site / "demo_pkg/pipe")
    outcome = check(shelf, str(shelf.site), "--patch", "p", "--json")
    assert outcome.code == 1
    assert "cannot be copied" in outcome.json["releases"][0]["error"]


def test_releases_and_all_releases_exclude_each_other(shelf: Bench) -> None:
    assert check(shelf).code == 2
    assert check(shelf, "x", "--all-releases").code == 2


def test_output_that_cannot_be_written_is_refused_before_the_first_release(shelf: Bench) -> None:
    wheel = str(make_wheel(shelf.folder / "dist", "demo-pkg", "1.3", FILES))
    for file, why in (("no/x.md", "no folder no"), ("", "it is a folder")):
        outcome = check(shelf, wheel, "--patch", "p", "--output", file)
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err.startswith(f"error: cannot write {Path(file)}: {why}\nhint: ")
        assert wheel not in outcome.err  # what it says before it looks at a release
    assert "\nhint: mkdir -p no\n" in check(shelf, wheel, "--output", "no/x.md").err


@pytest.mark.parametrize("form", ["--json", ""])
def test_output_that_cannot_be_written_in_the_end_loses_no_result(shelf: Bench, form: str) -> None:
    wheel = make_wheel(shelf.folder / "dist", "demo-pkg", "1.3", FILES)
    full = ("--patch", "p", "--output", "/dev/full", *filter(None, [form]))
    outcome = check(shelf, str(wheel), *full)
    problem = "cannot write /dev/full: No space left on device"
    assert outcome.code == 1
    if form:
        assert outcome.json["problems"] == [problem]
        assert names(outcome) == DONE
    else:
        assert "fits" in outcome.out
        assert outcome.out.endswith(f"problem: {problem}\n")


def test_a_name_that_is_no_utf8_can_be_written_into_the_table(shelf: Bench) -> None:
    error = rehearsal.Release("\udcff.whl", "", Result(()), "no \udcff")
    page = rehearsal.support_page([error], [shelf_patch(shelf)])
    assert "| \\udcff.whl | not looked at (1) |" in page
    assert "1. no \\udcff\n" in page


@pytest.mark.parametrize("jobs", ["0", "-3", "x"])
def test_a_number_of_jobs_that_is_none(shelf: Bench, jobs: str) -> None:
    outcome = check(shelf, "x.whl", "--patch", "p", "--jobs", jobs)
    assert outcome.code == 2
    assert "'--jobs'" in outcome.err


def test_several_releases_at_a_time_keep_their_order(shelf: Bench) -> None:
    wheels = [
        str(make_wheel(shelf.folder / "dist", "demo-pkg", version, FILES))
        for version in ("1.2", "1.1", "2.0", "1.10")
    ]
    table = Path("support.md")
    outcome = check(shelf, *wheels, "--patch", "p", "--jobs", "3", "--output", str(table), "--json")
    assert [r["version"] for r in outcome.json["releases"]] == ["1.2", "1.1", "2.0", "1.10"]
    rows = [line for line in table.read_text().splitlines() if line.startswith("| 1")]
    assert rows == ["| 1.2 | yes |", "| 1.1 | yes |", "| 1.10 | yes |"]
    assert "| 2.0 | - |" in table.read_text()


def test_the_table_gives_a_reason_for_every_cell_that_is_not_yes(shelf: Bench) -> None:
    patches = [p for p in [shelf_patch(shelf)]]
    trace = Check("p", "trace", "skipped", "torch is not\ninstalled here")
    proven = Check("p", "trace", "passed", "one graph", proof="proven")
    gone = Check(
        "p", "trace", "passed", "the unpatched source passes too", proof="no longer needed"
    )
    releases = [release("1.0", trace), release("1.1", proven), release("1.2", gone)]
    releases.append(rehearsal.Release("demo-pkg==1.3", "", Result(()), "no wheel"))
    page = rehearsal.support_page(releases, patches)
    assert "| 1.0 | trace skipped (1) |" in page
    assert "| 1.1 | proven |" in page
    assert "| 1.2 | trace no longer needed (2) |" in page
    assert "| 1.3 | not looked at (3) |" in page
    assert "1. torch is not installed here\n2. the unpatched source passes too\n3. no wheel" in page


def release(version: str, *checks: Check) -> rehearsal.Release:
    row = Row("p", "fits", distribution="demo-pkg", installed=version)
    return rehearsal.Release(f"demo-pkg=={version}", version, Result((row,), checks=checks))


def shelf_patch(bench: Bench):
    from patchkit.catalog import read_patch

    return read_patch(bench.patch("p", PATCH))
