"""Patches, state and installs from strangers: no code runs unasked, and every refusal is clear."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from patchkit import allowing, reading
from patchkit.environment import parse_record
from patchkit.ledger import salvage_files, salvage_strings
from patchkit.plaintext import visible
from patchkit.report import unified
from patchkit.results import FileDiff
from tests.conftest import HOSTILE, PATCH, A, Bench, Outcome, assert_refusal, invoke, tree
from tests.wheels import record_hash

ROOT = Path(__file__).resolve().parents[2]
F = "demo_pkg/a.py"

# Code that says that it ran, when it is read and when it is called.
CODE = """\
from pathlib import Path
from patchkit.source import Match
from patchkit.splice import Splice

Path({ran!r}).write_text("loaded")


def fix(source, patch, params):
    at = source.data.index(b"return 0")
    return [Match("enc", (Splice(at, at + 8, b"return -1"),))]
"""


@pytest.fixture
def coded(demo: Bench) -> Bench:
    """Patch p is code that leaves a file behind wherever it runs."""
    toml = PATCH.replace('"replace_block"', '"codemod.py:fix"').partition("params")[0]
    demo.patch("p", toml, codemod__py=CODE.format(ran=str(demo.folder / "ran")))
    return demo


def run(bench: Bench, verb: str, *args: str) -> Outcome:
    """Like ``bench.run``, which allows the code of its patches."""
    options = ["--site-packages", str(bench.site), "--patches", str(bench.patches)]
    return invoke(verb, *options, *args)


def ran(bench: Bench) -> bool:
    return (bench.folder / "ran").exists()


# Code from strangers


@pytest.mark.parametrize("command", ["apply p", "apply p --dry-run", "diff p"])
def test_code_does_not_run_unless_allowed(coded: Bench, command: str) -> None:
    before = coded.state()
    refused = run(coded, *command.split())
    assert refused.code == 1
    assert_refusal(refused)
    assert "p: its codemod.py may not run: nobody has allowed" in refused.err
    assert f"patchkit allow {coded.patches / 'p'}" in refused.err
    assert not ran(coded)
    assert coded.state() == before


def test_check_does_not_run_code_unless_allowed(coded: Bench) -> None:
    options = ["--patches", str(coded.patches), "--patch", "p", str(coded.site)]
    refused = invoke("check", *options)
    assert refused.code == 1
    assert "may not run" in refused.out
    assert not ran(coded)
    assert invoke("check", "--allow-code", str(coded.patches), *options).code == 0
    assert ran(coded)


@pytest.mark.parametrize("command", ["list", "status", "verify", "revert p", "repair", "allow"])
@pytest.mark.parametrize("asked", [False, True])
def test_the_other_commands_run_no_code_at_all(coded: Bench, command: str, asked: bool) -> None:
    if asked:
        assert invoke("allow", str(coded.patches)).code == 0
    verb, *rest = command.split()
    invoke("allow") if verb == "allow" else run(coded, verb, *rest)
    assert not ran(coded)


def test_list_shows_which_patches_are_code(coded: Bench) -> None:
    coded.patch("data")
    rows = {r["id"]: r for r in run(coded, "list", "--json").json["patches"]}
    assert (rows["p"]["runs_code"], rows["p"]["code_allowed"]) == (True, False)
    assert (rows["data"]["runs_code"], rows["data"]["code_allowed"]) == (False, False)
    assert "runs code of its own: nobody has allowed" in run(coded, "list").out
    assert invoke("allow", str(coded.patches)).code == 0
    rows = {r["id"]: r for r in run(coded, "list", "--json").json["patches"]}
    assert rows["p"]["code_allowed"] is True


def test_allowed_code_runs_until_anything_in_its_folder_changes(coded: Bench) -> None:
    said = invoke("allow", str(coded.patches))
    assert (said.code, said.out) == (0, f"allowed  {coded.patches / 'p'}\n")
    assert run(coded, "apply", "p").code == 0
    assert ran(coded)
    assert run(coded, "revert", "p").code == 0
    for name in ("codemod.py", "patch.toml", "data.txt"):
        (coded.folder / "ran").unlink(missing_ok=True)
        with (coded.patches / "p" / name).open("a") as file:
            file.write("\n# more\n")
        refused = run(coded, "apply", "p")
        assert refused.code == 1
        assert "was allowed, and has changed since" in refused.err
        assert not ran(coded)
        assert "changed since" in invoke("allow").out
        assert f"next: read it, then patchkit allow {coded.patches / 'p'}\n" in invoke("allow").out
        assert invoke("allow", str(coded.patches / "p")).code == 0
        assert run(coded, "apply", "p", "--dry-run").code == 0


def test_what_was_allowed_before_a_change_is_not_allowed_any_more(coded: Bench) -> None:
    """Allowed again, a folder has one row, and no earlier content of it may run."""
    codemod = coded.patches / "p/codemod.py"
    first = codemod.read_bytes()
    other = coded.patches / "other"
    shutil.copytree(coded.patches / "p", other)
    assert invoke("allow", str(coded.patches)).code == 0
    codemod.write_bytes(first + b"# more\n")
    assert invoke("allow", str(coded.patches / "p")).code == 0
    both = f"allowed  {other}\nallowed  {coded.patches / 'p'}\n"
    assert invoke("allow").out == both
    codemod.write_bytes(first)
    assert "was allowed, and has changed since" in run(coded, "apply", "p").err
    assert not ran(coded)
    assert invoke("allow", str(coded.patches / "p")).code == 0
    assert invoke("allow").out == both


def test_a_patch_that_lost_its_code_is_not_listed_as_changed(coded: Bench) -> None:
    assert invoke("allow", str(coded.patches)).code == 0
    coded.patch("p")
    (coded.patches / "p/codemod.py").unlink()
    assert "changed since" in invoke("allow").out
    assert invoke("allow", str(coded.patches / "p")).out == f"data only  {coded.patches / 'p'}\n"
    assert "no patch folder is allowed" in invoke("allow").out


def test_an_older_record_that_cannot_be_removed_is_said(
    coded: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert invoke("allow", str(coded.patches)).code == 0
    (coded.patches / "p/data.txt").write_text("other")

    def refused(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted", str(self))

    monkeypatch.setattr(Path, "unlink", refused)
    outcome = invoke("allow", str(coded.patches))
    assert outcome.code == 1
    assert "cannot remove " in outcome.err


def test_a_copy_elsewhere_is_not_allowed_with_it(coded: Bench) -> None:
    assert invoke("allow", str(coded.patches)).code == 0
    shutil.move(coded.patches, coded.folder / "moved")
    options = ["--site-packages", str(coded.site), "--patches", str(coded.folder / "moved")]
    assert "may not run" in invoke("apply", *options, "p").err
    assert not ran(coded)


def test_revoked(coded: Bench) -> None:
    assert invoke("allow", str(coded.patches)).code == 0
    assert invoke("allow", "--revoke", str(coded.folder)).out == f"revoked  {coded.patches / 'p'}\n"
    assert "nobody has allowed" in run(coded, "apply", "p").err
    nothing = invoke("allow", "--revoke", "nowhere")
    assert (nothing.code, nothing.out) == (
        0,
        f"nothing was allowed in {Path('nowhere').resolve()}\n",
    )
    assert "allow one with: patchkit allow FOLDER" in invoke("allow").out
    assert invoke("allow", "--revoke").code == 2
    assert not ran(coded)


def test_this_time_only(coded: Bench) -> None:
    assert run(coded, "apply", "p", "--allow-code", str(coded.patches)).code == 0
    assert not (coded.folder / "state").exists()
    assert run(coded, "revert", "p").code == 0
    refused = run(coded, "apply", "p", "--allow-code", str(coded.folder / "site"))
    assert "may not run" in refused.err
    assert run(coded, "apply", "p", "--allow-code", "no/such/folder").code == 2


@pytest.mark.parametrize("where", ["patches", "project", "parent"])
def test_folders_that_are_found_run_no_code(
    coded: Bench, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """./patches, a project's folders, and a project file in a parent folder are not trusted."""
    home = coded.folder
    if where != "patches":
        (home / "patchkit.toml").write_text('patches = ["p"]\nfolders = ["patches"]\n')
    (home / "deep/er").mkdir(parents=True)
    monkeypatch.chdir(home / "deep/er" if where == "parent" else home)
    names = ["p"] if where == "patches" else []
    assert "may not run" in invoke("apply", "--site-packages", str(coded.site), *names).err
    assert not ran(coded)


def test_an_unused_codemod_is_data(demo: Bench) -> None:
    demo.patch("p", PATCH, codemod__py=CODE.format(ran=str(demo.folder / "ran")))
    assert run(demo, "apply", "p").code == 0
    assert not ran(demo)


def test_no_id_of_a_shipped_patch_brings_code(coded: Bench) -> None:
    shipped = coded.patches / "flashinfer-cuda-version"
    (coded.patches / "p").rename(shipped)
    assert "two different patches" in run(coded, "list").err
    assert not ran(coded)


@pytest.mark.parametrize("kind", ["link", "folder", "other path", "no text"])
def test_a_record_that_is_none_allows_nothing(coded: Bench, kind: str) -> None:
    assert invoke("allow", str(coded.patches)).code == 0
    (found,) = allowing.allowed()
    if kind == "link":
        found.record.rename(coded.folder / "record")
        found.record.symlink_to(coded.folder / "record")
    elif kind == "folder":
        found.record.unlink()
        found.record.mkdir()
    else:
        found.record.write_bytes(b"/elsewhere" if kind == "other path" else b"\xff\x00")
    assert run(coded, "apply", "p").code == 1
    assert not ran(coded)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make somebody else's record")
def test_a_record_of_another_user_does_not_count(coded: Bench) -> None:
    """With sudo and a HOME that stays, root does not trust what the user has allowed."""
    assert invoke("allow", str(coded.patches)).code == 0
    (found,) = allowing.allowed()
    os.chown(found.record, 65534, 65534)
    assert run(coded, "apply", "p").code == 1
    assert not ran(coded)


def test_where_nothing_can_be_recorded(coded: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (coded.folder / "state").write_text("a file")
    refused = invoke("allow", str(coded.patches))
    assert refused.code == 1
    assert_refusal(refused)
    assert "--allow-code" in refused.err
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "")
    assert run(coded, "apply", "p").code == 1
    assert not ran(coded)


def test_a_patch_that_is_data_needs_no_permission(
    demo: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert invoke("allow", str(demo.patches)).out == f"data only  {demo.patches / 'p'}\n"
    assert not (demo.folder / "state").exists()
    assert run(demo, "apply", "p").code == 0
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "")
    assert invoke("allow", str(demo.patches)).code == 0


# Files that are none, and files without end


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def endless(path: Path) -> None:
    """A link to a device that never ends."""
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def gigabytes(path: Path) -> None:
    """A file of many gigabytes that needs no space."""
    path.unlink(missing_ok=True)
    path.touch()
    os.truncate(path, 1 << 36)


def folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


ODD = [fifo, endless, gigabytes, folder]
INFO = "demo_pkg-1.0.dist-info"

PLACES = {
    "manifest": ("patches/p/patch.toml", ["apply p", "list", "status"]),
    "code": ("patches/p/codemod.py", ["apply p", "list"]),
    "target": (f"site/{F}", ["apply p", "diff p"]),
    "record": (f"site/{INFO}/RECORD", ["apply p"]),
    "metadata": (f"site/{INFO}/METADATA", ["apply p"]),
    "project": ("cwd/patchkit.toml", ["apply", "list"]),
}


@pytest.mark.parametrize("command", [(p, c) for p, (_, cs) in PLACES.items() for c in cs])
@pytest.mark.parametrize("make", ODD)
def test_what_is_no_file_or_has_no_end(
    demo: Bench, make: Callable[[Path], None], command: tuple[str, str]
) -> None:
    place, line = command
    path = demo.folder / PLACES[place][0]
    make(path)
    if place in ("code", "project") and make is folder:
        pytest.skip("a folder of that name means nothing")
    if place == "project" and make in (fifo, endless):
        pytest.skip("only a file is looked for")
    names = {k: v for k, v in listing(demo.site).items()}
    refused = demo.run(*line.split())
    assert refused.code == 1, refused
    assert_refusal(refused)
    assert listing(demo.site) == names


def listing(site: Path) -> dict[str, int]:
    return {str(p): p.lstat().st_mtime_ns for p in site.rglob("*") if not p.is_dir()}


STATE = ["ledger.json", "journal.json", "journal.done", "lock", "objects", "aside"]


@pytest.mark.parametrize("name", STATE)
@pytest.mark.parametrize("make", ODD)
@pytest.mark.parametrize("command", ["status", "verify", "apply p", "revert p", "repair"])
def test_state_that_is_no_file(
    demo: Bench, make: Callable[[Path], None], name: str, command: str
) -> None:
    """A clear refusal, or nothing to complain about; never a wait, a traceback or a change."""
    assert demo.run("apply", "p").code == 0
    path = demo.site / ".patchkit" / name
    if path.is_dir():
        path.rename(demo.folder / "moved")
    make(path)
    before, files = path.lstat(), demo.read()
    outcome = demo.run(*command.split())
    assert outcome.code in (0, 1)
    assert "Traceback" not in outcome.err
    assert demo.read() in (files, A)
    if name in ("ledger.json", "objects") or (name == "lock" and outcome.code == 1):
        assert demo.read() == files
    after = path.lstat() if os.path.lexists(path) else before
    assert (after.st_mode, after.st_size) == (before.st_mode, before.st_size)


@pytest.mark.parametrize("make", ODD)
def test_kept_original_that_is_no_file(demo: Bench, make: Callable[[Path], None]) -> None:
    assert demo.run("apply", "p").code == 0
    (kept,) = (demo.site / ".patchkit/objects").iterdir()
    make(kept)
    for command in ("verify", "revert p"):
        refused = demo.run(*command.split())
        assert refused.code == 1
        assert "the kept bytes" in refused.err


@pytest.mark.parametrize("make", ODD)
def test_bytecode_that_is_no_file(demo: Bench, make: Callable[[Path], None]) -> None:
    (demo.site / "demo_pkg/__pycache__").mkdir()
    make(demo.site / "demo_pkg/__pycache__/a.cpython-311.pyc")
    outcome = demo.run("apply", "p")
    assert outcome.code == 1
    assert_refusal(outcome)
    assert demo.read() == A


def test_files_as_large_as_allowed_are_not_exceeded_by_a_patch(
    demo: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("patchkit.store.LARGEST", len(A))
    assert "would be larger than" in demo.refuse("apply", "p").err
    monkeypatch.setattr("patchkit.store.LARGEST", reading.LARGEST)
    monkeypatch.setattr("patchkit.store._LARGEST_STATE", 100)
    assert "ledger.json would be larger" in demo.refuse("apply", "p").err


def test_a_patch_of_very_many_files(demo: Bench) -> None:
    for number in range(1001):
        (demo.patches / "p" / f"{number}.txt").touch()
    assert "at most 1000 files" in demo.refuse("list").err


def test_a_link_out_of_a_patch_is_not_followed(demo: Bench) -> None:
    secret = demo.folder / "secret"
    secret.write_text("SECRET")
    (demo.patches / "p/new.py").symlink_to(secret)
    assert "new.py: is a link that leads out of the patch" in demo.refuse("apply", "p").err


# Links that lead out of site-packages


def planted(demo: Bench, name: str) -> Path:
    """Something of somebody's that a link in the state folder leads to."""
    victim = demo.folder / "victim"
    victim.mkdir(mode=0o700)
    (victim / "file").write_text("mine")
    (victim / "file").chmod(0o600)
    state = demo.site / ".patchkit"
    state.mkdir(exist_ok=True)
    (state / name).symlink_to(victim / "file" if "." in name or name == "lock" else victim)
    return victim


@pytest.mark.parametrize("name", ["lock", "objects", "aside", "ledger.json.patchkit-tmp"])
@pytest.mark.parametrize("command", ["apply p", "revert p", "repair", "status"])
def test_links_in_the_state_folder_are_not_followed(demo: Bench, name: str, command: str) -> None:
    """As root, to write through one could change any file: its mode, its owner, its bytes."""
    victim = planted(demo, name)
    before = tree(victim)
    outcome = demo.run(*command.split())
    assert tree(victim) == before
    if not name.endswith("tmp"):
        assert outcome.code == 1
        assert_refusal(outcome)
        assert demo.read() == A


@pytest.mark.parametrize("what", ["folder", "cache"])
@pytest.mark.parametrize("command", ["revert p", "revert --force p", "apply p"])
def test_nothing_is_written_through_a_folder_that_became_a_link(
    demo: Bench, what: str, command: str
) -> None:
    (demo.site / "demo_pkg/__pycache__").mkdir()
    (demo.site / "demo_pkg/__pycache__/a.cpython-311.pyc").write_bytes(b"x" * 20)
    assert demo.run("apply", "p").code == 0
    place = demo.site / ("demo_pkg" if what == "folder" else "demo_pkg/__pycache__")
    elsewhere = demo.folder / "elsewhere"
    if place.exists():
        place.rename(elsewhere)
    else:
        elsewhere.mkdir()
    place.symlink_to(elsewhere)
    (elsewhere / "a.cpython-311.pyc").write_bytes(b"mine")
    if command == "apply p":
        demo.patch("p", PATCH.replace("return -1", "return -2"))
    before = tree(elsewhere)
    refused = demo.run(*command.split())
    assert refused.code == 1
    assert "is a symbolic link" in refused.err
    assert tree(elsewhere) == before


def test_a_journal_does_not_lead_through_a_link(demo: Bench) -> None:
    """A planted journal asks to "roll back" a file behind a link that leads out."""
    assert demo.run("apply", "p").code == 0
    victim = demo.folder / "victim"
    victim.mkdir()
    (victim / "x.py").write_text("mine")
    (demo.site / "out").symlink_to(victim)
    (kept,) = (demo.site / ".patchkit/objects").iterdir()
    from patchkit.journal import digest_of

    now = {"mode": 0o644, "mtime_ns": 1, "link": None, "uid": -1, "gid": -1}
    change = {
        "path": "out/x.py",
        "before": now | {"sha256": kept.name},
        "after": now | {"sha256": digest_of(b"mine")},
        "bytecode": [],
        "folders": [],
    }
    journal = {
        "schema": 1,
        "ledger_before": None,
        "ledger_after": "0",
        "versions": {},
        "objects": [],
    }
    file = demo.site / ".patchkit/journal.json"
    file.write_text(json.dumps(journal | {"changes": [change]}))
    for command in ("apply p", "revert p", "repair"):
        refused = demo.run(*command.split())
        assert refused.code == 1
        assert "out is a symbolic link" in refused.err
        assert (victim / "x.py").read_text() == "mine"


# Texts


BAD_PATHS = [
    "../x.py",
    "/etc/passwd",
    "demo_pkg/../../x.py",
    "demo_pkg//a.py",
    "demo_pkg/a.py/",
    "C:/x.py",
    "demo_pkg\\\\a.py",
    ".patchkit/ledger.json",
    ".PatchKit/ledger.json",
    "demo_pkg-1.0.dist-info/RECORD",
    "Demo_Pkg-1.0.DIST-INFO/RECORD",
    "demo_pkg/a\\u0000.py",
    "demo_pkg/a\\u202e.py",
    "demo_pkg/a\\u0007.py",
    "demo_pkg/a\\ufeff.py",
    "demo_pkg/a\\n.py",
    "demo_pkg/__pycache__/a.cpython-311.pyc",
    "demo_pkg/a.PYC",
    "demo_pkg/" + "x" * 250,
    "demo_pkg" + "/x" * 2000,
]


@pytest.mark.parametrize("path", BAD_PATHS)
@pytest.mark.parametrize("codemod", ["replace_block", "add_file"])
def test_paths_that_no_patch_may_touch(demo: Bench, path: str, codemod: str) -> None:
    toml = PATCH.replace(F, path).replace("replace_block", codemod)
    demo.patch("p", toml)
    refused = demo.refuse("apply", "p")
    assert "patch.toml" in refused.err
    assert "edit[0].file: " in refused.err
    shown = refused.err.replace("\n", "")
    assert shown.isprintable()


def test_files_that_differ_only_in_case(demo: Bench) -> None:
    edit = PATCH.partition("[[edit]]")[2].replace("a.py", "A.py")
    demo.patch("p", f"{PATCH}\n[[edit]]{edit}")
    assert "demo_pkg/A.py and demo_pkg/a.py differ only in case" in demo.refuse("apply", "p").err
    demo.patch("p", Codemod__py="", codemod__py="")
    assert "Codemod.py and codemod.py: differ only in case" in demo.refuse("apply", "p").err


BOMBS = {
    "dotted key": "a." * 100_000 + "a = 1",
    "dotted table": "[" + "a." * 100_000 + "a]",
    "quoted dots": '"a,".' * 20_000 + "a = 1",
    "nested lists": "a = " + "[" * 100_000,
    "nested tables": "a = " + "{a=" * 50_000,
    "long number": "schema = " + "9" * 5000,
    "long hex number": "schema = 0x" + "f" * 5000,
    "key twice": "schema = 1\nschema = 1",
    "nul": 'a = "\x00"',
    "versions of a long number": PATCH.replace(">=1.0,<2", ">=" + "9" * 5000),
    "control in a key": PATCH.replace("why", '"w\\u001b[31mhy"'),
    "very large revision": PATCH.replace("revision = 1", "revision = 99999999999"),
}


@pytest.fixture
def must_end() -> Iterator[None]:
    """Break off a test that goes on for ever; how long it takes is not measured."""

    def give_up(*_: object) -> None:
        raise AssertionError("it does not come to an end")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_a_line_of_many_dots_is_not_parsed(demo: Bench) -> None:
    """tomllib takes time with the square of their number."""
    demo.patch("p", "a." * 501 + "a = 1")
    assert "line 1 holds more than 500 dots" in demo.refuse("apply", "p").err


@pytest.mark.usefixtures("must_end")
@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("place", ["patch", "project"])
def test_toml_bombs(demo: Bench, name: str, place: str) -> None:
    if place == "patch":
        demo.patch("p", BOMBS[name])
    else:
        Path("patchkit.toml").write_text(BOMBS[name])
    refused = demo.refuse("apply", "p")
    assert ("patch.toml" if place == "patch" else "patchkit.toml") in refused.err
    assert refused.err.replace("\n", "").isprintable()


@pytest.mark.parametrize("key", ["folders", "patches"])
def test_nul_in_a_project(demo: Bench, key: str) -> None:
    Path("patchkit.toml").write_text(f'{key} = ["a\\u0000b"]\n')
    assert f"{key}: " in demo.refuse("apply").err


JSON_BOMBS = {
    "nested lists": "[" * 1_000_000,
    "nested tables": '{"a":' * 200_000,
    "long number": '{"schema": ' + "9" * 100_000,
    "key twice": '{"schema": 1, "schema": 1, "patches": {}, "files": {}}',
    "not a number": '{"schema": NaN}',
    "endless string": '"' + "a" * 2_000_000,
    "escaped quotes": '"' + '\\\\"' * 100_000,
    "half characters": '{"schema": 1, "patches": {}, "files": {"\\\\ud800": 1}}',
    "bom": '\ufeff{"schema": 1, "patches": {}, "files": {}}',
}


@pytest.mark.usefixtures("must_end")
@pytest.mark.parametrize("name", JSON_BOMBS)
@pytest.mark.parametrize("file", ["ledger.json", "journal.json", "journal.done"])
def test_json_bombs(demo: Bench, name: str, file: str) -> None:
    assert demo.run("apply", "p").code == 0
    (demo.site / ".patchkit" / file).write_text(JSON_BOMBS[name])
    assert f"{file} is damaged" in demo.refuse("apply", "p").err
    assert f"{file} is damaged" in demo.refuse("revert", "p").err
    assert demo.run("repair").code == 0
    assert demo.read() == A


ROW = '"demo_pkg/a.py": {"bytecode": '


@pytest.mark.usefixtures("must_end")
@pytest.mark.parametrize(
    "text", [ROW * 3_000, '"' * 200_000, '"\\\\' * 100_000, ROW + "[" * 100_000]
)
def test_salvage_comes_to_an_end(text: str) -> None:
    assert salvage_files(text) == {}
    assert len(list(salvage_strings(text))) <= len(text)


@pytest.mark.parametrize("where", ["id", "requires", "conflicts"])
@pytest.mark.parametrize("bad", ["x; rm -rf ~", "a\nb", "\x1b[2J", "\u202ex", "../x", "A"])
def test_ids_in_a_ledger_are_ids(demo: Bench, where: str, bad: str) -> None:
    """They end up in commands that hints tell people to type."""
    assert demo.run("apply", "p").code == 0
    file = demo.site / ".patchkit/ledger.json"
    document = json.loads(file.read_text())
    if where == "id":
        document["patches"][bad] = document["patches"].pop("p")
    else:
        document["patches"]["p"][where] = [bad]
    file.write_text(json.dumps(document))
    refused = demo.refuse("status")
    assert "ledger.json is damaged" in refused.err
    assert refused.err.replace("\n", "").isprintable()


METADATA = {
    "a command": "Name: x; rm -rf ~\nVersion: 1.0\n",
    "colours": "Name: \x1b[31mdemo-pkg\nVersion: 1.0\n",
    "direction": "Name: demo\u202epkg\nVersion: 1.0\n",
    "long name": f"Name: {'x' * 5000}\nVersion: 1.0\n",
    "long number": f"Name: demo-pkg\nVersion: {'9' * 5000}\n",
    "no version": f"Name: demo-pkg\nVersion: {'1.' * 5000}x\n",
}


@pytest.mark.parametrize("name", METADATA)
def test_metadata_from_strangers(demo: Bench, name: str) -> None:
    (demo.site / INFO / "METADATA").write_text(METADATA[name])
    refused = demo.refuse("apply", "p")
    assert f"{INFO}: its METADATA cannot be used" in refused.err
    assert refused.err.replace("\n", "").isprintable()
    assert "rm -rf" not in refused.err.partition("hint:")[2]


RECORDS = {
    "nul": "demo_pkg/a.py\0,,\n",
    "long field": "x" * 200_000 + ",,\n",
    "traversal": f"../../../demo_pkg/a.py,{record_hash(A)},1\n",
    "twice": f"{F},{record_hash(A)},1\n{F},{record_hash(b'')},1\n",
    "no base64": f"{F},sha256=!!!,1\n",
    "another algorithm": f"{F},md5=abc,1\n",
}


@pytest.mark.parametrize("name", RECORDS)
def test_record_from_strangers(demo: Bench, name: str) -> None:
    """It is the witness of what is original: what it does not say clearly, it does not say."""
    (demo.site / INFO / "RECORD").write_text(RECORDS[name])
    demo.refuse("apply", "p")
    demo.run("repair")


def test_a_path_listed_twice_alike_is_listed() -> None:
    row = f"{F},{record_hash(A)},1\n"
    assert parse_record(row + row) == parse_record(row)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"dir_info": 1}', "[]", "\x00"])
def test_direct_url_from_strangers(demo: Bench, text: str) -> None:
    (demo.site / INFO / "direct_url.json").write_text(text)
    assert demo.run("apply", "p").code == 0


@pytest.mark.parametrize("text", ["home = \x00", "\xff" * 1000, "home = /nowhere\nversion = x"])
def test_pyvenv_from_strangers(demo: Bench, text: str) -> None:
    environment = demo.folder / "env"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin/python").symlink_to("/bin/false")
    (environment / "pyvenv.cfg").write_text(text)
    refused = invoke("list", "--python", str(environment))
    assert refused.code == 1
    assert_refusal(refused)


# What is shown


@pytest.mark.parametrize("text", [*HOSTILE, "\x1b[2K\x1b[1A", "\u2067\u2066"])
def test_a_diff_on_a_terminal_shows_what_is_there(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    shown = unified([FileDiff("p", "applied", F, b"", data)], colour=False, terminal=True)
    assert shown == visible(shown)
    exact = unified([FileDiff("p", "applied", F, b"", data)], colour=False)
    assert data.decode("utf-8", "replace") in exact.replace("\n+", "\n").replace(
        "def \n+", "def \n"
    )


def test_a_folder_name_from_strangers_is_shown_plainly(demo: Bench) -> None:
    name = demo.patches / "a\x1b[31m\u202eb"
    name.mkdir()
    (name / "patch.toml").write_text(PATCH)
    refused = demo.refuse("list")
    assert refused.err.replace("\n", "").isprintable()


@pytest.mark.usefixtures("must_end")
def test_no_command_has_a_regular_expression_that_takes_long() -> None:
    """Every pattern of patchkit, on what makes naive ones take for ever."""
    import patchkit.cli
    import patchkit.codemods
    import patchkit.github
    import patchkit.ledger
    import patchkit.manifest
    import patchkit.plaintext
    import patchkit.webpage

    modules = [getattr(patchkit, n) for n in ("cli", "codemods", "github", "ledger", "manifest")]
    modules += [patchkit.plaintext, patchkit.webpage]
    found = [v for m in modules for v in vars(m).values() if isinstance(v, re.Pattern)]
    assert len(found) >= 5
    pieces = ["a", "a-", "a.", '"', '\\"', "\\", " ", "\x1b[", "\x1b]", "0;", "\r", ":"]
    texts = [piece * 50_000 for piece in pieces]
    for pattern in found:
        for text in (f"{text}!" for text in texts):
            given = text if isinstance(pattern.pattern, str) else text.encode()
            pattern.match(given)
            if "Z" not in str(pattern.pattern)[-3:]:  # those with \Z are for whole texts
                sum(1 for _ in pattern.finditer(given))
