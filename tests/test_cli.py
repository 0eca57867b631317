"""The command line: refusals, JSON, help, and what it does not import."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from patchkit import __version__
from patchkit.cli import main
from patchkit.journal import digest_of
from tests.conftest import PATCH, A, Bench, Outcome, assert_refusal, invoke, tree
from tests.wheels import make_wheel, unpack

ROOT = Path(__file__).resolve().parents[1]
INFO = "demo_pkg-1.0.dist-info"
VERBS = ("list", "status", "diff", "apply", "verify", "check", "revert", "repair", "allow", "demo")
UNNAMED = ("list", "status", "repair")


# --- refusals: a way to get there, the command, and what the sentence must say


def nothing(bench: Bench) -> None:
    """Demo as it is."""


def out_of_range(bench: Bench) -> None:
    bench.patch("p", PATCH.replace(">=1.0,<2", ">=2"))


def no_match(bench: Bench) -> None:
    bench.patch("p", PATCH.replace("return 0", "return 5"))


def two_matches(bench: Bench) -> None:
    bench.patch("p", PATCH.replace('inside = "enc", ', ""))


def drift(bench: Bench) -> None:
    with (bench.site / "demo_pkg/a.py").open("ab") as file:
        file.write(b"\n")


def applied(bench: Bench) -> None:
    assert bench.run("apply", "p").code == 0


def drift_after_apply(bench: Bench) -> None:
    applied(bench)
    drift(bench)


def declared_conflict(bench: Bench) -> None:
    other = PATCH.replace('"enc"', '"dec"')
    bench.patch("q", other.replace("\n\n[[edit]]", '\nconflicts = ["p"]\n\n[[edit]]', 1))


def conflict_of_places(bench: Bench) -> None:
    bench.patch("q", PATCH.replace("return -1", "return 9"))


def conflict_with_applied(bench: Bench) -> None:
    applied(bench)
    conflict_of_places(bench)


def missing_requirement(bench: Bench) -> None:
    bench.patch("p", PATCH.replace("\n\n[[edit]]", '\nrequires = ["q"]\n\n[[edit]]', 1))
    bench.patch("q", PATCH.replace('"enc"', '"dec"'))


def required_by_another(bench: Bench) -> None:
    missing_requirement(bench)
    assert bench.run("apply", "p", "q").code == 0


def two_dist_infos(bench: Bench) -> None:
    bench.install({"demo_pkg/__init__.py": b""}, version="1.1")


def editable(bench: Bench) -> None:
    url = {"url": "file:///src/checkout", "dir_info": {"editable": True}}
    (bench.site / INFO / "direct_url.json").write_text(json.dumps(url))


def linked_folder(bench: Bench) -> None:
    (bench.site / "demo_pkg").rename(bench.folder / "elsewhere")
    (bench.site / "demo_pkg").symlink_to(bench.folder / "elsewhere")


def no_record(bench: Bench) -> None:
    (bench.site / INFO / "RECORD").unlink()


def no_digest_in_record(bench: Bench) -> None:
    record = bench.site / INFO / "RECORD"
    lines = record.read_text().splitlines()
    record.write_text("\n".join("demo_pkg/a.py,," if "a.py" in line else line for line in lines))


def damaged_record(bench: Bench) -> None:
    (bench.site / INFO / "RECORD").write_bytes(b"\xff\xfe\x00")


def damaged_ledger(bench: Bench) -> None:
    applied(bench)
    (bench.site / ".patchkit/ledger.json").write_text('{"schema": 1, "patches"')


def odd_ledger(bench: Bench) -> None:
    applied(bench)
    file = bench.site / ".patchkit/ledger.json"
    file.write_text(file.read_text().replace("demo_pkg/a.py", "../../a.py"))


def newer_ledger(bench: Bench) -> None:
    applied(bench)
    ledger = {"schema": 99, "patches": {}, "files": {}}
    (bench.site / ".patchkit/ledger.json").write_text(json.dumps(ledger))


def lost_original(bench: Bench) -> None:
    applied(bench)
    for kept in (bench.site / ".patchkit/objects").iterdir():
        kept.unlink()


def damaged_original(bench: Bench) -> None:
    applied(bench)
    for kept in (bench.site / ".patchkit/objects").iterdir():
        kept.write_bytes(b"other")


def damaged_journal(bench: Bench) -> None:
    applied(bench)
    (bench.site / ".patchkit/journal.json").write_text("{}")


def bad_manifest(bench: Bench) -> None:
    bench.patch("p", PATCH.replace("title", "titel"))


def file_of_another(bench: Bench) -> None:
    bench.install({"demo_pkg/a.py": A + b"#\n"}, name="rival")


def missing_file(bench: Bench) -> None:
    (bench.site / "demo_pkg/a.py").unlink()


def no_such_file(bench: Bench) -> None:
    bench.patch("p", PATCH.replace("demo_pkg/a.py", "demo_pkg/z.py"))


def other_project(bench: Bench) -> None:
    Path("patchkit.toml").write_text('patches = ["nope"]\n')


def empty_project(bench: Bench) -> None:
    Path("patchkit.toml").write_text("patches = []\n")


def bad_project(bench: Bench) -> None:
    Path("pyproject.toml").write_text("[tool.patchkit]\npatchs = []\n")


REFUSALS: list[tuple[Callable[[Bench], None], str, tuple[str, ...]]] = [
    (nothing, "apply nope", ("there is no patch 'nope'",)),
    (nothing, "apply p nope", ("there is no patch 'nope'",)),
    (nothing, "revert nope", ("there is no patch 'nope'",)),
    (nothing, "diff nope", ("there is no patch 'nope'",)),
    (nothing, "apply", ("no default patch fits",)),
    (out_of_range, "apply p", ("p", ">=2", "installed is 1.0")),
    (no_match, "apply p", ("matched 0 places in demo_pkg/a.py, must match 1",)),
    (no_match, "diff p", ("matched 0 places",)),
    (no_match, "apply p --dry-run", ("matched 0 places",)),
    (two_matches, "apply p", ("matched 2 places",)),
    (drift, "apply p", ("demo_pkg/a.py drifted",)),
    (drift_after_apply, "apply p", ("demo_pkg/a.py drifted",)),
    (drift_after_apply, "revert p", ("demo_pkg/a.py drifted", "p was applied")),
    (drift_after_apply, "revert --all", ("demo_pkg/a.py drifted",)),
    (declared_conflict, "apply p q", ("conflict: ", "p", "q")),
    (conflict_of_places, "apply p q", ("conflict: p and q", "demo_pkg/a.py")),
    (conflict_with_applied, "apply q", ("conflict: p and q", "demo_pkg/a.py")),
    (missing_requirement, "apply p", ("p requires q",)),
    (required_by_another, "revert q", ("p requires q",)),
    (two_dist_infos, "apply p", ("demo_pkg-1.0.dist-info and demo_pkg-1.1.dist-info",)),
    (editable, "apply p", ("/src/checkout",)),
    (linked_folder, "apply p", ("demo_pkg is a symbolic link",)),
    (no_record, "apply p", ("no readable RECORD",)),
    (damaged_record, "apply p", ("no readable RECORD",)),
    (no_digest_in_record, "apply p", ("gives no sha256 for demo_pkg/a.py",)),
    (damaged_ledger, "apply p", ("ledger.json is damaged",)),
    (damaged_ledger, "revert p", ("ledger.json is damaged",)),
    (damaged_ledger, "verify", ("ledger.json is damaged",)),
    (damaged_ledger, "status", ("ledger.json is damaged",)),
    (odd_ledger, "revert --all", ("ledger.json is damaged",)),
    (newer_ledger, "apply p", ("schema 99",)),
    (newer_ledger, "revert p", ("schema 99",)),
    (newer_ledger, "status", ("schema 99",)),
    (lost_original, "revert p", ("cannot be read",)),
    (lost_original, "verify", ("cannot be read",)),
    (damaged_original, "revert p", ("are damaged",)),
    (damaged_original, "verify", ("are damaged",)),
    (damaged_journal, "revert p", ("journal.json is damaged",)),
    (bad_manifest, "apply p", ("titel: unknown key",)),
    (bad_manifest, "list", ("titel: unknown key",)),
    (file_of_another, "apply p", ("demo_pkg-1.0 and rival-1.0",)),
    (missing_file, "apply p", ("demo_pkg/a.py is missing",)),
    (no_such_file, "apply p", ("demo_pkg/z.py",)),
    (other_project, "apply", ("there is no patch 'nope'",)),
    (empty_project, "apply", ("asks for no patches",)),
    (bad_project, "apply", ("patchs: unknown key",)),
]


@pytest.mark.parametrize(
    ("arrange", "command", "says"),
    REFUSALS,
    ids=[f"{arrange.__name__}-{command.replace(' ', '_')}" for arrange, command, _ in REFUSALS],
)
def test_refusal(
    demo: Bench, arrange: Callable[[Bench], None], command: str, says: tuple[str, ...]
) -> None:
    arrange(demo)
    outcome = demo.refuse(*command.split())
    for words in says:
        assert words in outcome.err

    before = demo.state()
    verb, *rest = command.split()
    as_json = demo.run(verb, "--json", *rest)
    assert as_json.code == 1
    assert as_json.err == ""
    assert as_json.json["schema"] == 1
    assert as_json.json["ok"] is False
    assert set(as_json.json["error"]) == {"message", "hint"}
    assert as_json.json["error"]["message"] in outcome.err
    assert as_json.json["error"]["hint"]
    assert demo.state() == before


def test_a_lost_ledger_is_said_by_every_command(demo: Bench) -> None:
    applied(demo)
    (demo.site / ".patchkit/ledger.json").unlink()
    before = demo.state()
    repair = f"patchkit repair --site-packages {demo.site}"
    for command in ("status", "revert --all", "revert p", "verify p"):
        outcome = demo.run(*command.split())
        assert outcome.code == 1, command
        problem = f"problem: {demo.site}: not as installed, and no ledger says why: demo_pkg/a.py"
        assert problem in outcome.out
        assert repair in outcome.out
        assert "left over" not in outcome.out
    assert f"next: {repair}, then patchkit apply" in demo.run("verify", "p").out
    assert repair in demo.refuse("apply", "p").err
    assert {k: v[3] for k, v in demo.state().items() if "lock" not in k} == {
        k: v[3] for k, v in before.items() if "lock" not in k
    }
    assert "nothing is recorded then; to apply again:" in demo.run("repair", "--dry-run").out
    mended = demo.run("repair")
    assert mended.code == 0
    assert "nothing is recorded now; to apply again:" in mended.out
    assert demo.run("status").code == 0
    assert demo.run("apply", "p").code == 0
    assert demo.run("revert", "--all").code == 0
    assert demo.read() == A


def test_originals_that_outlived_a_reinstall_are_in_nobodys_way(demo: Bench) -> None:
    """Only verify tells of them: nothing is patched that no ledger explains."""
    applied(demo)
    (demo.site / ".patchkit/ledger.json").unlink()
    (demo.site / "demo_pkg/a.py").write_bytes(A)
    for command in ("status", "revert --all", "apply p", "status", "revert --all", "status"):
        assert demo.run(*command.split()).code == 0, command

    applied(demo)
    (demo.site / ".patchkit/ledger.json").unlink()
    shutil.rmtree(demo.site / INFO)
    demo.install({"demo_pkg/__init__.py": b"", "demo_pkg/a.py": A + b"# 1.1\n"}, version="1.1")
    for command in ("status", "revert --all", "apply p", "status", "revert --all", "status"):
        assert demo.run(*command.split()).code == 0, command


def test_only_what_is_in_place_conflicts(demo: Bench) -> None:
    def states() -> dict[str, str]:
        found = demo.run("status", "--json").states
        return {patch: found[patch] for patch in ("p", "q")}

    declared_conflict(demo)
    applied(demo)
    assert states() == {"p": "applied", "q": "conflict"}
    patched = demo.read()
    (demo.site / "demo_pkg/a.py").write_bytes(patched + b"#\n")
    assert states() == {"p": "drifted", "q": "conflict"}
    (demo.site / "demo_pkg/a.py").write_bytes(A)
    assert states() == {"p": "not applied", "q": "not applied"}
    shutil.rmtree(demo.site / INFO)
    demo.install({"demo_pkg/__init__.py": b"", "demo_pkg/a.py": A}, version="1.1")
    assert states() == {"p": "upgraded underneath", "q": "not applied"}
    assert demo.run("apply", "q").code == 0


@pytest.mark.parametrize("arrange", [lost_original, damaged_original])
def test_an_original_that_is_gone_is_named_with_what_mends_it(
    demo: Bench, arrange: Callable[[Bench], None]
) -> None:
    arrange(demo)
    pip = f"pip install --upgrade --no-deps --target {demo.site} demo-pkg==1.0"
    refused = demo.refuse("revert", "p").err
    assert ", from before demo_pkg/a.py was patched, " in refused
    assert pip in refused

    status = demo.run("status")
    if arrange is lost_original:
        assert status.code == 1
        assert "no original is kept of demo_pkg/a.py" in status.out
        assert pip in status.out
    else:
        assert status.code == 0  # whether bytes are as they were is for verify to read

    (demo.site / "demo_pkg/a.py").write_bytes(A)
    for command in ("apply p", "status", "verify p", "revert p"):
        assert demo.run(*command.split()).code == 0, command
    assert demo.read() == A


def test_marks_of_list_do_not_run_together(demo: Bench) -> None:
    demo.patch("p", PATCH.replace("replace_block", "codemod.py:f"), codemod__py="")
    assert invoke("allow", str(demo.patches)).code == 0
    demo.patch("p", PATCH.replace("replace_block", "codemod.py:f"), codemod__py="#")
    said = "its folder was allowed, and has changed since; from "
    assert said + str(demo.patches / "p") in demo.run("list").out


def test_refusal_of_an_unknown_distribution(bench: Bench) -> None:
    bench.patch("p")
    assert "demo-pkg is not installed" in bench.refuse("apply", "p").err


@pytest.mark.parametrize("kind", ["egg-info", "egg-link"])
def test_refusal_of_what_is_no_wheel(bench: Bench, kind: str) -> None:
    bench.patch("p")
    names = {"egg-info": "demo_pkg-1.0-py3.11.egg-info", "egg-link": "demo-pkg.egg-link"}
    (bench.site / names[kind]).write_text("x")
    assert names[kind] in bench.refuse("apply", "p").err


@pytest.mark.parametrize(
    "options",
    [
        ["--site-packages", "no/such/folder"],
        ["--python", "no/such/python"],
        ["--python", "."],
        ["--python", "no-such-python-on-path"],
        ["--python", "false"],
        ["--patches", "no/such/folder"],
    ],
)
def test_refusal_of_a_target_that_is_not_there(bench: Bench, options: list[str]) -> None:
    outcome = invoke("apply", *options, "p")
    assert outcome.code == 1
    assert_refusal(outcome)


@pytest.mark.parametrize(
    "args",
    [
        ["nope"],
        ["apply", "--nope"],
        ["revert"],
        ["revert", "--all", "p"],
        ["verify", "--arch", "x"],
        ["verify", "--check", "x"],
    ],
)
def test_wrong_usage_is_exit_2(bench: Bench, args: list[str]) -> None:
    outcome = invoke(*args)
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Usage:" in outcome.err


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("verify", "import"),
        ("verify", "trace"),
        ("verify --gpu", "kernel"),
        ("check x.whl", "import"),
        ("check --all-releases", "trace"),
    ],
)
def test_a_check_that_is_asked_for_and_left_out_is_wrong_usage(
    bench: Bench, command: str, name: str
) -> None:
    """Else nothing would run, and exit 0 would say that it passed."""
    given = ["--check", "bytes", "--check", name, "--skip", name]
    outcome = bench.run(*command.split(), *given)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"--check {name} asks for what --skip {name} leaves out" in outcome.err


INSERT = PATCH.replace('"replace_block"', '"insert_in_function"').replace(
    'inside = "enc", old = "return 0", new = "return -1"', 'function = "enc", new = "log(1)"'
)


def test_a_renamed_patch_is_not_applied_a_second_time(demo: Bench) -> None:
    """Two insertions at one place do not overlap: both would be made."""
    demo.patch("p", INSERT)
    assert demo.run("apply", "p").code == 0
    (demo.patches / "p").rename(demo.patches / "q")
    demo.patch("q", INSERT.replace("revision = 1", "revision = 2"))
    refused = demo.refuse("apply", "q")
    assert "conflict: p and q make the same edits" in refused.err
    assert refused.err.endswith(f"patchkit revert --site-packages {demo.site} p\n")
    assert demo.run("revert", "p").code == 0
    assert demo.run("apply", "q").code == 0
    assert demo.read().count(b"log(1)") == 1


def test_every_missing_requirement_is_named(demo: Bench) -> None:
    needs = '\nrequires = ["q", "r"]\n\n[[edit]]'
    demo.patch("p", PATCH.replace("\n\n[[edit]]", needs, 1))
    demo.patch("q", INSERT)
    demo.patch("r", INSERT.replace('"enc"', '"dec"'))
    refused = demo.refuse("apply", "p")
    assert "p requires q and r, which must be applied too" in refused.err
    assert "patchkit apply q r p" in refused.err.replace(f" --site-packages {demo.site}", "")
    assert demo.run("apply", "p", "q", "r").code == 0
    refused = demo.refuse("revert", "q", "r")
    assert "p requires q and r, which would be reverted" in refused.err
    assert "patchkit revert p q r" in refused.err.replace(f" --site-packages {demo.site}", "")


@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_once_the_ledger_is_there_it_is_done(
    demo: Bench, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """What cannot be cleaned up after that is a warning; the next run does it."""
    if verb == "revert":
        applied(demo)
    unlink = Path.unlink

    def refused(self: Path, missing_ok: bool = False) -> None:
        if self.name == "journal.done":
            raise OSError(5, "Input/output error", str(self))
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", refused)
    outcome = demo.run(verb, "p")
    assert outcome.code == 0
    assert "done, but not cleaned up" in outcome.out
    monkeypatch.undo()
    monkeypatch.chdir(demo.folder)
    assert "interrupted" in demo.run("status").out
    assert demo.run(verb, "p").code == 0
    assert demo.run("status").code == 0
    assert demo.run("repair").out == "nothing to repair\n"
    assert (demo.read() == A) is (verb == "revert")


# --- what status says to type next


def upgrade(bench: Bench, version: str) -> None:
    shutil.rmtree(bench.site / INFO)
    bench.install({"demo_pkg/__init__.py": b"", "demo_pkg/a.py": A}, version=version)


def next_of(bench: Bench) -> str:
    """Return what status says to do about p, with what it says of the target left out."""
    status = bench.run("status", "--json")
    assert status.code == 1
    (hint,) = [row["hint"] for row in status.json["patches"] if row["id"] == "p"]
    return hint.replace(f" --site-packages {bench.site}", "")


def test_an_upgrade_that_the_patch_is_for_can_be_applied_to(demo: Bench) -> None:
    applied(demo)
    upgrade(demo, "1.1")
    assert next_of(demo) == "patchkit apply p, or patchkit revert p to forget it"
    applied(demo)
    assert demo.run("status").code == 0


@pytest.mark.parametrize("why", ["version", "editable", "range", "other distribution"])
def test_what_cannot_be_applied_again_is_not_said_to_be(demo: Bench, why: str) -> None:
    applied(demo)
    if why == "version":
        upgrade(demo, "2.0")
    elif why == "editable":
        upgrade(demo, "1.1")
        url = {"url": "file:///src/checkout", "dir_info": {"editable": True}}
        (demo.site / "demo_pkg-1.1.dist-info/direct_url.json").write_text(json.dumps(url))
    else:
        (demo.site / "demo_pkg/a.py").write_bytes(A)  # as a reinstall does
        assert next_of(demo) == "patchkit apply p"
        demo.install({"other/a.py": A}, name="other")
        other = ("demo-pkg", "other") if why == "other distribution" else (">=1.0,<2", ">=2")
        demo.patch("p", PATCH.replace(*other))
    assert next_of(demo) == "patchkit revert p (it does not fit what is installed)"
    demo.refuse("apply", "p")
    reverted = demo.run("revert", "p")
    assert reverted.code == 0
    assert "forgotten" in reverted.out
    assert demo.run("status").code == 0
    assert demo.read() == A


def test_a_patch_that_is_not_known_here_may_fit(demo: Bench) -> None:
    applied(demo)
    upgrade(demo, "2.0")
    demo.patches.rename(demo.folder / "elsewhere")
    assert next_of(demo) == "patchkit apply p, or patchkit revert p to forget it"


# --- drift and --force


def test_forced_revert_keeps_the_changed_file_beside(demo: Bench) -> None:
    before = demo.state()
    applied(demo)
    drift(demo)
    changed = demo.read()
    outcome = demo.run("revert", "--force", "p")
    assert outcome.code == 0
    new = set(demo.state()) - set(before)
    assert len(new) == 1
    (name,) = new
    assert str(demo.site / name) in outcome.out
    assert demo.read(name) == changed
    assert demo.read() == A
    (demo.site / name).unlink()
    assert demo.state() == before


BESIDE = "demo_pkg/a.py.drifted-" + digest_of(b"X\n")[:8]


def forced_revert(bench: Bench) -> Outcome:
    """Apply, change the file to the same bytes every time, and revert all the same."""
    applied(bench)
    (bench.site / "demo_pkg/a.py").write_bytes(b"X\n")
    outcome = bench.run("revert", "--force", "p")
    assert outcome.code == 0, outcome
    assert bench.read() == A
    return outcome


def test_a_kept_copy_that_was_edited_is_not_written_over(demo: Bench) -> None:
    for number, suffix in enumerate(["", "-2", "-3"]):
        outcome = forced_revert(demo)
        assert f"kept as {demo.site / BESIDE}{suffix}\n" in outcome.out
        assert demo.read(BESIDE + suffix) == b"X\n"
        (demo.site / (BESIDE + suffix)).write_bytes(b"mine %d\n" % number)
    assert [demo.read(BESIDE + end) for end in ("", "-2", "-3")] == [
        b"mine 0\n",
        b"mine 1\n",
        b"mine 2\n",
    ]


def test_a_kept_copy_with_the_same_bytes_stays_the_only_one(demo: Bench) -> None:
    forced_revert(demo)
    (demo.site / BESIDE).chmod(0o600)
    before = demo.state()
    assert f"kept as {demo.site / BESIDE}\n" in forced_revert(demo).out
    assert demo.state() == before


@pytest.mark.parametrize("kind", ["folder", "link to the same", "link to nothing", "fifo"])
def test_what_is_no_file_does_not_take_the_place_of_a_kept_copy(demo: Bench, kind: str) -> None:
    there = demo.site / BESIDE
    (demo.folder / "same").write_bytes(b"X\n")
    if kind == "folder":
        there.mkdir()
    elif kind == "fifo":
        os.mkfifo(there)
    else:
        there.symlink_to(demo.folder / kind.split()[-1])
    before = demo.state()
    forced_revert(demo)
    assert demo.read(BESIDE + "-2") == b"X\n"
    (demo.site / (BESIDE + "-2")).unlink()
    assert demo.state() == before


def test_verify_names_file_and_patch_of_drift(demo: Bench) -> None:
    applied(demo)
    drift(demo)
    before = demo.state()
    for verb in ("verify", "status"):
        outcome = demo.run(verb)
        assert outcome.code == 1
        assert "drifted" in outcome.out
        assert "demo_pkg/a.py" in outcome.out
        assert " p " in outcome.out
    assert demo.state() == before


def test_a_deleted_patched_file_is_drift_and_comes_back(demo: Bench) -> None:
    before = demo.state()
    applied(demo)
    (demo.site / "demo_pkg/a.py").unlink()
    assert "demo_pkg/a.py is missing" in demo.run("verify").out
    assert demo.run("revert", "p").code == 0
    assert demo.state() == before


# --- two patches on one file


def test_patches_come_and_go_in_any_order(demo: Bench) -> None:
    demo.patch("q", PATCH.replace('"enc"', '"dec"'))
    before = demo.state()
    applied(demo)
    only_p = demo.read()
    assert demo.run("apply", "q").code == 0
    both = demo.read()
    assert demo.run("revert", "p").code == 0
    assert demo.run("status", "--json").states == {**SHIPPED, "p": "not applied", "q": "applied"}
    assert demo.run("apply", "p").code == 0
    assert demo.read() == both
    assert demo.run("revert", "q").code == 0
    assert demo.read() == only_p
    assert demo.run("revert", "--all").code == 0
    assert demo.state() == before


SHIPPED = dict.fromkeys(sorted(p.parent.name for p in ROOT.glob("patches/*/patch.toml")))
SHIPPED = {name: "does not fit" for name in SHIPPED}


def test_revert_needs_neither_the_patch_nor_libcst(demo: Bench) -> None:
    before = demo.state()
    applied(demo)
    shutil.rmtree(demo.patches)
    code = "import sys; sys.modules['libcst'] = None; from patchkit.cli import main; main()"
    command = ["revert", "p", "--site-packages", str(demo.site)]
    done = subprocess.run([sys.executable, "-c", code, *command], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert demo.state() == before


def test_revert_works_with_a_broken_patch_folder(demo: Bench) -> None:
    before = demo.state()
    applied(demo)
    bad_manifest(demo)
    assert demo.run("revert", "p").code == 0
    assert demo.state() == before


# --- dry run, diff, status


def test_dry_run_writes_nothing(demo: Bench) -> None:
    before = demo.state()
    outcome = demo.run("apply", "p", "--dry-run")
    assert outcome.code == 0
    assert "demo_pkg/a.py" in outcome.out
    assert demo.state() == before
    applied(demo)
    before = demo.state()
    assert "already applied" in demo.run("apply", "p", "--dry-run").out
    assert demo.state() == before


@pytest.mark.parametrize("when", ["before", "after"])
def test_diff_is_what_patch_reads(demo: Bench, when: str) -> None:
    if when == "after":
        applied(demo)
    outcome = demo.run("diff", "p")
    assert outcome.code == 0
    assert "\x1b" not in outcome.out
    copy = demo.folder / "copy"
    unpack(make_wheel(demo.folder / "w", "demo-pkg", "1.0", {"demo_pkg/a.py": A}), copy)
    if shutil.which("patch"):
        text = outcome.out.encode()
        subprocess.run(["patch", "-p1", "-s"], cwd=copy, input=text, check=True)
        applied(demo)
        assert (copy / "demo_pkg/a.py").read_bytes() == demo.read()


def test_diff_of_drift_shows_the_change_from_outside(demo: Bench) -> None:
    applied(demo)
    with (demo.site / "demo_pkg/a.py").open("ab") as file:
        file.write(b"OUTSIDE = 1\n")
    assert "+OUTSIDE = 1" in demo.run("diff", "p").out


def test_project_file_chooses_the_patches(demo: Bench) -> None:
    Path("patchkit.toml").write_text('patches = ["p"]\nfolders = ["../patches"]\n')
    options = ("--site-packages", str(demo.site))
    assert invoke("verify", *options).code == 1
    assert invoke("apply", *options).code == 0
    assert invoke("verify", *options).code == 0
    assert b"return -1" in demo.read()


def test_verify_of_what_was_never_applied(demo: Bench) -> None:
    before = demo.state()
    assert demo.run("verify", "p").code == 1
    assert demo.run("verify").code == 1
    assert demo.state() == before


# --- JSON


@pytest.mark.parametrize("verb", ["list", "status", "diff", "apply", "verify", "revert", "repair"])
@pytest.mark.parametrize("ready", [False, True])
def test_json_parses(demo: Bench, verb: str, ready: bool) -> None:
    if ready:
        applied(demo)
    outcome = demo.run(verb, "--json", *([] if verb in UNNAMED else ["p"]))
    assert outcome.err == ""
    document = outcome.json
    assert document["schema"] == 1
    assert document["patchkit"] == __version__
    assert document["command"] == verb
    assert document["ok"] is (outcome.code == 0)
    assert document["error"] is None
    assert document["target"]["path"] == [str(demo.site.resolve())]
    assert all({"id", "state", "ok"} <= set(row) for row in document["patches"])
    if verb in ("apply", "revert"):
        changed = bool(document["changed"])
        assert changed is (ready is (verb == "revert"))


# --- help and start-up


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_examples(verb: str) -> None:
    outcome = invoke(verb, "--help")
    assert outcome.code == 0
    assert "Examples:" in outcome.out
    assert f"  patchkit {verb}" in outcome.out
    assert "Exit codes:" in outcome.out


def test_every_command_is_tested_here() -> None:
    assert set(main.commands) == set(VERBS)


def modules_of(*args: str, cwd: Path) -> tuple[int, set[str]]:
    """Exit code and modules of a fresh process that ran a command."""
    code = (
        "import json, sys\n"
        "from patchkit.cli import main\n"
        "code = 0\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as leaving:\n    code = leaving.code\n"
        "print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *args]
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True)
    found, names = json.loads(done.stderr.splitlines()[-1])
    return found, set(names)


@pytest.mark.parametrize("args", ["--help", "list", "status", "verify", "diff p", "revert p"])
def test_these_import_neither_libcst_nor_torch(demo: Bench, args: str) -> None:
    applied(demo)
    options = ["--site-packages", str(demo.site), "--patches", str(demo.patches)]
    words = args.split()
    command = words if args == "--help" else [*words, *options]
    code, modules = modules_of(*command, cwd=demo.folder)
    assert code == 0
    assert not {m.partition(".")[0] for m in modules} & {"libcst", "torch"}


def test_apply_does_not_import_the_codemod_framework(demo: Bench) -> None:
    options = ["--site-packages", str(demo.site), "--patches", str(demo.patches)]
    code, modules = modules_of("apply", "p", *options, cwd=demo.folder)
    assert code == 0
    assert "libcst" in modules
    assert "libcst.codemod" not in modules
    assert "torch" not in modules


def test_no_source_imports_the_codemod_framework() -> None:
    sources = sorted((ROOT / "patchkit").rglob("*.py"))
    assert sources
    assert [str(s) for s in sources if "libcst.codemod" in s.read_text()] == []


def test_one_distribution_among_many_is_found_without_reading_them(demo: Bench) -> None:
    """The count of opened files must not grow with the number of distributions."""

    def opened() -> int:
        code = (
            "import sys\n"
            "count = []\n"
            "sys.addaudithook(lambda e, a: count.append(a) if e == 'open' else None)\n"
            "from pathlib import Path\n"
            "from patchkit.environment import Target, find_distribution\n"
            "found = find_distribution(Target((Path(sys.argv[1]),), ''), 'demo-pkg')\n"
            "assert found and str(found.version) == '1.0'\n"
            "print(sum('.dist-info' in str(a[0]) for a in count))\n"
        )
        command = [sys.executable, "-c", code, str(demo.site)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return int(done.stdout)

    few = opened()
    for number in range(200):
        folder = demo.site / f"other_{number}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: other-{number}\nVersion: 1.0\n")
    assert opened() == few


def test_quiet_in_a_pipe(demo: Bench) -> None:
    command = [sys.executable, "-m", "patchkit", "apply", "p", "--site-packages", str(demo.site)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--patches", str(demo.patches)], env=environ, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout


def test_two_site_packages_of_one_target(demo: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One apply for distributions in two folders; one revert for both."""
    second = demo.folder / "second"
    files = {"other_pkg/b.py": A}
    unpack(make_wheel(demo.folder / "dist", "other-pkg", "1.0", files), second)
    demo.patch("q", PATCH.replace("demo-pkg", "other-pkg").replace("demo_pkg/a", "other_pkg/b"))
    monkeypatch.setenv("PYTHONPATH", f"{second}{os.pathsep}{demo.site}")
    options = ("--python", sys.executable, "--patches", str(demo.patches))
    before = tree(second), demo.state()
    assert invoke("apply", *options, "p", "q").code == 0
    states: Outcome = invoke("status", *options, "--json")
    assert (states.states["p"], states.states["q"]) == ("applied", "applied")
    assert (second / ".patchkit").is_dir()
    assert invoke("verify", *options).code == 0
    assert invoke("revert", *options, "--all").code == 0
    assert (tree(second), demo.state()) == before


# --- several folders on the path of one target


@pytest.fixture
def two(demo: Bench, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, tuple[str, ...]]:
    """A folder before the one of demo on the path, and the options for both."""
    first = demo.folder / "first"
    first.mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{first}{os.pathsep}{demo.site}")
    return first, ("--python", sys.executable, "--patches", str(demo.patches))


def test_a_patched_copy_that_is_not_imported_does_not_count(
    demo: Bench, two: tuple[Path, tuple[str, ...]]
) -> None:
    first, options = two
    assert invoke("apply", *options, "p").code == 0
    unpack(demo.folder / "dist/demo_pkg-1.0-py3-none-any.whl", first)
    for verb in ("status", "verify"):
        outcome = invoke(verb, *options, "--json")
        assert (outcome.code, outcome.states["p"]) == (1, "not applied")
        (row,) = (r for r in outcome.json["patches"] if r["id"] == "p")
        assert str(first) in row["detail"]
    assert invoke("apply", *options, "p").code == 0
    for verb in ("status", "verify"):
        outcome = invoke(verb, *options, "--json")
        assert (outcome.code, outcome.states["p"]) == (0, "applied")


@pytest.mark.parametrize("which", ["first", "site"])
def test_drift_in_one_of_two_folders_is_said(
    demo: Bench, two: tuple[Path, tuple[str, ...]], which: str
) -> None:
    first, options = two
    assert invoke("apply", *options, "p").code == 0
    unpack(demo.folder / "dist/demo_pkg-1.0-py3-none-any.whl", first)
    assert invoke("apply", *options, "p").code == 0
    with (demo.folder / which / "demo_pkg/a.py").open("ab") as file:
        file.write(b"#")
    for verb in ("status", "verify"):
        outcome = invoke(verb, *options, "--json")
        assert (outcome.code, outcome.states["p"]) == (1, "drifted")


def test_requirements_and_conflicts_reach_over_folders(
    demo: Bench, two: tuple[Path, tuple[str, ...]]
) -> None:
    first, options = two
    unpack(make_wheel(demo.folder / "dist", "other-pkg", "1.0", {"other_pkg/b.py": A}), first)
    other = PATCH.replace("demo-pkg", "other-pkg").replace("demo_pkg/a", "other_pkg/b")
    demo.patch("q", other.replace("[[edit]]", 'requires = ["p"]\n[[edit]]'))
    assert "q requires p" in invoke("apply", *options, "q").err
    assert invoke("apply", *options, "--dry-run", "q").code == 1
    assert invoke("apply", *options, "p", "q").code == 0
    assert "q requires p" in invoke("revert", *options, "p").err
    assert invoke("revert", *options, "p", "q").code == 0
    demo.patch("q", other.replace("[[edit]]", 'conflicts = ["p"]\n[[edit]]'))
    assert invoke("apply", *options, "q").code == 0
    before = tree(demo.site)
    outcome = invoke("apply", *options, "p")
    assert (outcome.code, "conflict: q and p" in outcome.err) == (1, True)
    assert tree(demo.site) == before


# --- what a command is started with


def shell(demo: Bench, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command line with patchkit, its target and its patches in ``$P``."""
    options = f"--site-packages {demo.site} --patches {demo.patches}"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PY": sys.executable, "OPTIONS": options}
    command = f'p() {{ verb=$1; shift; "$PY" -m patchkit "$verb" $OPTIONS "$@"; }}; {command}'
    return subprocess.run(["bash", "-c", command], env=environ, capture_output=True, text=True)


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams(demo: Bench, closed: str) -> None:
    before = demo.state()
    for command in ("apply p", "status", "diff p", "verify"):
        done = shell(demo, f"p {command} {closed}")
        assert (done.returncode, done.stderr) == (0, "")
    assert b"return -1" in demo.read()
    assert shell(demo, f"p revert p {closed}").returncode == 0
    assert demo.state() == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("verb", ["status", "status --json"])
def test_output_that_cannot_be_printed(demo: Bench, verb: str) -> None:
    done = shell(demo, f"p {verb} > /dev/full")
    assert done.returncode == 1
    assert done.stderr == "error: cannot write the output: No space left on device\n"


def test_working_folder_that_is_gone(demo: Bench) -> None:
    done = shell(
        demo, f"mkdir {demo.folder}/x; cd {demo.folder}/x; rmdir {demo.folder}/x; p status"
    )
    assert (done.returncode, done.stderr) == (0, "")
