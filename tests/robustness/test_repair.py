"""``patchkit repair``: whatever became of the ledger, originals come back and no byte is lost."""

from __future__ import annotations

import hashlib
import json
import os
import py_compile
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from patchkit.journal import digest_of
from patchkit.store import Store
from tests.conftest import PATCH, A, Bench, Outcome, tree
from tests.processes import forked, open_up, unprivileged
from tests.wheels import make_wheel, record_hash, unpack

F = "demo_pkg/a.py"
STATE = ".patchkit"
ADDED = "demo_pkg/new/n.py"
ADD = f'[[edit]]\nfile = "{ADDED}"\ncodemod = "add_file"\nparams = {{ new = "X = 1\\n" }}\n'


def ledger(bench: Bench) -> Path:
    return bench.site / STATE / "ledger.json"


def lost(bench: Bench) -> None:
    ledger(bench).unlink()


def truncated(bench: Bench) -> None:
    os.truncate(ledger(bench), ledger(bench).stat().st_size * 2 // 3)


def cut_to_nothing(bench: Bench) -> None:
    os.truncate(ledger(bench), 0)


def not_text(bench: Bench) -> None:
    data = ledger(bench).read_bytes()
    ledger(bench).write_bytes(data[:90] + b"\xff\x00" + data[90:])


def edited(bench: Bench) -> None:
    """A ledger that can be read and lies: the digest of what was patched is another."""
    document = json.loads(ledger(bench).read_text())
    document["files"][F]["patched"] = "0" * 64
    ledger(bench).write_text(json.dumps(document))


def edited_splice(bench: Bench) -> None:
    document = json.loads(ledger(bench).read_text())
    document["patches"]["p"]["splices"][F][0]["start"] = 0
    ledger(bench).write_text(json.dumps(document))


def key_twice(bench: Bench) -> None:
    text = ledger(bench).read_text()
    ledger(bench).write_text(text.replace('"schema": 1', '"schema": 1, "schema": 1'))


DAMAGE = [lost, truncated, cut_to_nothing, not_text, edited, edited_splice, key_twice]


def without_state(found: dict[str, tuple]) -> dict[str, tuple]:
    return {k: v for k, v in found.items() if not k.startswith(STATE)}


def aside(bench: Bench) -> dict[str, bytes]:
    folder = bench.site / STATE / "aside"
    return {p.name: p.read_bytes() for p in folder.iterdir()} if folder.is_dir() else {}


def kept(bench: Bench) -> set[bytes]:
    return {p.read_bytes() for p in (bench.site / STATE / "objects").iterdir()}


def undecided(outcome: Outcome) -> set[str]:
    """Return the paths that repair could not decide about; it then exits 1."""
    rows = [line.split() for line in outcome.out.splitlines()]
    found = {row[-1] for row in rows if row[:1] == ["undecided"]}
    assert outcome.code == (1 if found else 0), outcome
    return found


def clean(bench: Bench) -> None:
    """Nothing is recorded, nothing is left over, and the next apply and revert work."""
    found = bench.run("verify", "--json").json
    assert found["error"] is None
    assert found["problems"] == [f"no patch is recorded in folder {bench.site}"]
    assert bench.run("status").code == 0
    assert bench.run("repair").out == "nothing to repair\n"
    before = bench.state()
    assert bench.run("apply", "p").code == 0
    assert bench.run("verify", "p").code == 0
    assert bench.run("revert", "--all").code == 0
    assert without_state(bench.state()) == without_state(before)


@pytest.mark.parametrize("damage", DAMAGE)
def test_originals_come_back_and_the_bad_ledger_is_kept(
    demo: Bench, damage: Callable[[Bench], None]
) -> None:
    (demo.site / F).chmod(0o640)
    py_compile.compile(str(demo.site / F))
    before = demo.state()
    assert demo.run("apply", "p").code == 0
    patched = demo.read()
    damage(demo)
    bad = ledger(demo).read_bytes() if ledger(demo).exists() else None

    there = demo.state()
    would = demo.run("repair", "--dry-run")
    assert would.code == 0
    assert "would be put back" in would.out
    assert demo.state() == there

    done = demo.run("repair")
    assert (done.code, done.err) == (0, "")
    same = would.out.replace("would be ", "").replace("recorded then", "recorded now")
    assert "may be removed" not in would.out
    assert done.out.partition("warning: what was set aside may")[0].split() == same.split()
    assert demo.read() == A
    after = without_state(demo.state())
    rest = before.keys() - {f"demo_pkg/__pycache__/{n}" for n in os.listdir(demo.site / "demo_pkg")}
    assert {k: v for k, v in after.items() if k in rest} == {k: before[k] for k in after}
    assert bad is None or bad in aside(demo).values()
    known = bad is not None and damage not in (edited, cut_to_nothing)
    assert known or patched in aside(demo).values()
    clean(demo)


def test_what_a_readable_part_says_is_put_back_exactly(demo: Bench) -> None:
    """A truncated ledger still describes its files: link, mode, time and bytecode come back."""
    cache = demo.folder / "cache.py"
    (demo.site / F).rename(cache)
    (demo.site / F).symlink_to(cache)
    py_compile.compile(str(demo.site / F))
    before = demo.state()
    assert demo.run("apply", "p").code == 0
    truncated(demo)
    assert demo.run("repair").code == 0
    assert without_state(demo.state()) == before
    clean(demo)


def test_a_ledger_that_is_whole_is_left_alone(demo: Bench) -> None:
    assert demo.run("apply", "p").code == 0
    before = demo.state()
    done = demo.run("repair")
    assert (done.code, done.out) == (0, "nothing to repair\n")
    assert demo.state() == before
    (demo.site / F).write_bytes(b"mine\n")  # drift is for revert --force
    assert demo.run("repair").out == "nothing to repair\n"
    assert demo.read() == b"mine\n"


def test_nothing_there_is_nothing_to_repair(demo: Bench) -> None:
    before = demo.state()
    assert demo.run("repair").out == "nothing to repair\n"
    assert demo.state() == before


@pytest.mark.parametrize("name", ["ledger.json", "journal.json", "journal.done"])
@pytest.mark.parametrize("command", ["repair", "repair --dry-run", "apply p", "revert p", "status"])
def test_what_a_newer_patchkit_wrote_is_not_touched(demo: Bench, name: str, command: str) -> None:
    assert demo.run("apply", "p").code == 0
    if name != "ledger.json" and command == "status":
        pytest.skip("status only says that a journal is there")
    (demo.site / STATE / name).write_text('{"schema": 2, "things": "unheard of"}')
    outcome = demo.refuse(*command.split())
    assert f"{name} has schema 2; this patchkit reads up to 1" in outcome.err
    assert "pip install --upgrade patchkit-ml" in outcome.err


def test_newer_state_in_one_folder_keeps_the_others_as_they_are(
    demo: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from patchkit.environment import Target
    from patchkit.errors import NewerStateError
    from patchkit.repairing import repair

    assert demo.run("apply", "p").code == 0
    other = demo.folder / "other"
    shutil.copytree(demo.site, other)
    truncated(demo)
    (other / STATE / "ledger.json").write_text('{"schema": 2}')
    before = demo.state(), tree(other)
    with pytest.raises(NewerStateError):
        repair(Target((demo.site, other), "both"), dry_run=False, notify=print)
    assert (demo.state(), tree(other)) == before


def test_an_error_in_one_folder_does_not_hide_what_was_done_before(
    demo: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from patchkit.environment import Target
    from patchkit.errors import StoreError
    from patchkit.repairing import repair

    assert demo.run("apply", "p").code == 0
    third = demo.folder / "third"
    others = (demo.folder / "other", third)
    for other in others:
        shutil.copytree(demo.site, other)
        (other / STATE / "ledger.json").unlink()
    truncated(demo)
    really = Store.stage

    def stage(self: Store, *args: object, **rest: object) -> None:
        if self.root == others[0]:
            raise StoreError("no space", hint="Free some.")
        really(self, *args, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "stage", stage)
    found = repair(Target((demo.site, *others), "all"), dry_run=False, notify=print)
    assert not found.ok
    rows = [(f.path, f.action, f.hint) for f in found.repairs if f.action != "set aside"]
    failed = (str(others[0] / STATE), "undecided", "Free some.")
    put_back = [(str(site / F), "put back", "") for site in (demo.site, third)]
    assert rows == [put_back[0], failed, put_back[1]]
    shutil.rmtree(demo.site / STATE)
    with pytest.raises(StoreError):
        repair(Target(others, "all"), dry_run=False, notify=print)


# What cannot be decided


def test_without_an_original_the_command_that_mends_is_named(demo: Bench) -> None:
    assert demo.run("apply", "p").code == 0
    shutil.rmtree(demo.site / STATE / "objects")
    truncated(demo)
    patched, bad = demo.read(), ledger(demo).read_bytes()
    for arguments in (["repair", "--dry-run"], ["repair"]):
        outcome = demo.run(*arguments)
        assert outcome.code == 1
        assert ["undecided", str(demo.site / F)] in [li.split() for li in outcome.out.splitlines()]
        assert f"--target {demo.site} demo-pkg==1.0" in outcome.out
    assert demo.read() == patched
    assert aside(demo) == {n: bad for n in aside(demo)}
    assert len(aside(demo)) == 1
    (demo.site / F).write_bytes(A)  # as that command does
    clean(demo)


def test_two_originals_for_one_file_are_not_chosen_between(demo: Bench) -> None:
    assert demo.run("apply", "p").code == 0
    other = A + b"# other\n"
    unpack(make_wheel(demo.folder / "dist", "rival", "1.0", {F: other}), demo.folder / "rival")
    info = "rival-1.0.dist-info"
    shutil.copytree(demo.folder / "rival" / info, demo.site / info)
    Store(demo.site)._keep(Store(demo.folder / "rival").snapshot(F))  # type: ignore[arg-type]
    patched = demo.read()
    lost(demo)
    outcome = demo.run("repair")
    assert outcome.code == 1
    assert "undecided" in outcome.out
    assert "demo-pkg==1.0 rival==1.0" in outcome.out
    assert demo.read() == patched
    assert {A, other} <= kept(demo)
    assert demo.run("repair").code == 1


def test_a_wrong_record_is_not_believed_against_the_kept_original(demo: Bench) -> None:
    """RECORD that was edited after apply lists bytes nobody has: the file is named, not touched."""
    assert demo.run("apply", "p").code == 0
    record = demo.site / "demo_pkg-1.0.dist-info/RECORD"
    record.write_text(record.read_text().replace(record_hash(A), record_hash(b"nobody")))
    truncated(demo)
    patched = demo.read()
    assert demo.run("repair").code == 1
    assert demo.read() == patched
    assert A in kept(demo)


@pytest.mark.parametrize("row", ["", "demo_pkg/a.py,,\n"])
def test_no_digest_in_record_leaves_the_ledger_as_witness(demo: Bench, row: str) -> None:
    assert demo.run("apply", "p").code == 0
    record = demo.site / "demo_pkg-1.0.dist-info/RECORD"
    lines = [li for li in record.read_text().splitlines(True) if not li.startswith(F)]
    record.write_text("".join([row, *lines]))
    truncated(demo)
    assert demo.run("repair").code == 0
    assert demo.read() == A


def test_a_file_behind_a_linked_folder_is_named_and_not_written(demo: Bench) -> None:
    assert demo.run("apply", "p").code == 0
    elsewhere = demo.folder / "elsewhere"
    (demo.site / "demo_pkg").rename(elsewhere)
    (demo.site / "demo_pkg").symlink_to(elsewhere)
    truncated(demo)
    before = tree(elsewhere)
    outcome = demo.run("repair")
    assert outcome.code == 1
    assert "lies behind a link" in outcome.out
    assert tree(elsewhere) == before


def test_what_is_undecided_stays_so_until_it_is_right(bench: Bench) -> None:
    """One original of two is lost, and the state that names the file is unusable."""
    bench.install({"demo_pkg/__init__.py": b"", F: A, "demo_pkg/b.py": A + b"#\n"})
    edit = PATCH.partition("[[edit]]")[2].replace("a.py", "b.py")
    bench.patch("p", f"{PATCH}\n[[edit]]{edit}")
    assert bench.run("apply", "p").code == 0
    (bench.site / STATE / "objects" / hashlib.sha256(A + b"#\n").hexdigest()).unlink()
    bad = ledger(bench).read_bytes()
    there = {str(bench.site / "demo_pkg/b.py")}
    assert undecided(bench.run("repair")) == there
    assert bench.read() == A
    for command in ("repair", "repair --dry-run", "repair"):
        outcome = bench.run(*command.split())
        assert undecided(outcome) == there
        assert "forget it with: rm" in outcome.out
        assert "may be removed" not in outcome.out
    (bench.site / "demo_pkg/b.py").write_bytes(A + b"#\n")
    assert bench.run("repair").out == "nothing to repair\n"
    (name,) = (n for n, data in aside(bench).items() if data == bad)
    assert name.startswith("ledger.json-")
    clean(bench)
    (bench.site / "demo_pkg/b.py").write_bytes(b"mine\n")
    assert bench.run("repair").out == "nothing to repair\n"


@pytest.mark.parametrize("damage", [lost, cut_to_nothing])
def test_an_original_stays_when_no_record_can_say_whose_it_is(
    demo: Bench, damage: Callable[[Bench], None]
) -> None:
    py_compile.compile(str(demo.site / F))
    assert demo.run("apply", "p").code == 0
    damage(demo)
    record = demo.site / "demo_pkg-1.0.dist-info/RECORD"
    text = record.read_bytes()
    record.write_bytes(b"\xff")
    name = hashlib.sha256(A).hexdigest()
    for _ in range(2):
        outcome = demo.run("repair")
        assert undecided(outcome) == {str(demo.site / STATE / "objects" / name)}
        assert "demo_pkg==1.0" in outcome.out
        assert "rm -r" not in outcome.out
    record.write_bytes(text)
    assert demo.run("repair").code == 0
    assert demo.read() == A
    clean(demo)


def test_an_added_file_whose_digest_is_torn_off_is_named(demo: Bench) -> None:
    demo.patch("p", PATCH + ADD)
    assert demo.run("apply", "p").code == 0
    text = ledger(demo).read_text()
    ledger(demo).write_text(text[: text.index(ADDED) + len(ADDED) + 4])
    assert undecided(demo.run("repair")) == {str(demo.site / ADDED)}
    assert undecided(demo.run("repair")) == {str(demo.site / ADDED)}
    shutil.rmtree((demo.site / ADDED).parent)
    clean(demo)


def test_what_a_lost_ledger_leaves_behind_is_said(demo: Bench) -> None:
    demo.patch("p", PATCH + ADD)
    assert demo.run("apply", "p").code == 0
    lost(demo)
    outcome = demo.run("repair")
    assert outcome.code == 0
    assert "files that patches had added may be left" in outcome.out


# More than one file, patch, distribution, folder


def test_files_that_patches_added_go(demo: Bench) -> None:
    demo.patch("p", PATCH + ADD)
    before = demo.state()
    assert demo.run("apply", "p").code == 0
    truncated(demo)
    assert demo.run("repair").code == 0
    assert without_state(demo.state()) == before
    clean(demo)


def test_an_added_file_that_was_changed_is_named(demo: Bench) -> None:
    demo.patch("p", PATCH + ADD)
    assert demo.run("apply", "p").code == 0
    (demo.site / ADDED).write_text("X = 2\n")
    truncated(demo)
    outcome = demo.run("repair")
    assert outcome.code == 1
    assert f"rm {demo.site / ADDED}" in outcome.out
    assert (demo.site / ADDED).read_text() == "X = 2\n"


def test_what_was_removed_is_kept_aside(demo: Bench) -> None:
    demo.patch("p", PATCH + ADD)
    assert demo.run("apply", "p").code == 0
    added = demo.read(ADDED)
    truncated(demo)
    assert demo.run("repair").code == 0
    assert not (demo.site / ADDED).exists()
    assert added in aside(demo).values()


@pytest.mark.parametrize("taken", [False, True])
def test_a_drifted_file_that_revert_kept_is_not_removed(demo: Bench, taken: bool) -> None:
    """The journal says that nothing was there before: the copy is the user's all the same."""
    other = demo.site / f"{F}.drifted-{digest_of(b'mine')[:8]}"
    if taken:
        other.write_bytes(b"edited")
    assert demo.run("apply", "p").code == 0
    (demo.site / F).write_bytes(b"mine")
    kill_at(demo, "journal.done", "revert", "--force", "--all")
    (copy,) = set(demo.site.glob("demo_pkg/a.py.drifted-*")) - ({other} if taken else set())
    (demo.site / STATE / "journal.json").rename(demo.site / STATE / "journal.done")
    with (demo.site / STATE / "journal.done").open("a") as file:
        file.write("]")
    assert demo.run("repair").code == 0
    assert copy.read_bytes() == b"mine"


def mtime_renamed(bench: Bench, file: str = F) -> None:
    document = json.loads(ledger(bench).read_text())
    document["files"][file]["m"] = document["files"][file].pop("mtime_ns")
    ledger(bench).write_text(json.dumps(document, indent=2, sort_keys=True))


def test_a_package_file_is_not_taken_for_one_that_a_patch_added(demo: Bench) -> None:
    """Neither its row in the ledger nor RECORD can be read."""
    assert demo.run("apply", "p").code == 0
    patched = demo.read()
    mtime_renamed(demo)
    (demo.site / "demo_pkg-1.0.dist-info/RECORD").write_bytes(b"\xff")
    outcome = demo.run("repair")
    assert outcome.code == 1
    assert ["undecided", str(demo.site / F)] in [li.split() for li in outcome.out.splitlines()]
    assert demo.read() == patched


@pytest.mark.parametrize("where", ["patches", "files"])
def test_a_ledger_that_names_a_file_of_somebody_else(demo: Bench, where: str) -> None:
    """It holds the digest of that file as well, but not as that of what a patch had added."""
    assert demo.run("apply", "p").code == 0
    mine = demo.site / "mine.py"
    mine.write_bytes(b"MINE = 1\n")
    document = json.loads(ledger(demo).read_text())
    row = dict(document["files"][F], pristine=None)
    document["files"]["mine.py"] = row if where == "files" else None
    document["patches"]["p"]["title"] = hashlib.sha256(mine.read_bytes()).hexdigest()
    ledger(demo).write_text(json.dumps(document, sort_keys=True))
    outcome = demo.run("repair")
    assert outcome.code == 1
    assert ["undecided", str(mine)] in [li.split() for li in outcome.out.splitlines()]
    assert mine.read_bytes() == b"MINE = 1\n"
    assert demo.read() == A


@pytest.mark.parametrize("damage", DAMAGE)
def test_several_distributions_and_patches(demo: Bench, damage: Callable[[Bench], None]) -> None:
    demo.install({"other_pkg/b.py": A + b"#\n"}, name="other-pkg")
    other = PATCH.replace("demo-pkg", "other-pkg").replace("demo_pkg/a.py", "other_pkg/b.py")
    demo.patch("o", other)
    demo.patch("q", PATCH.replace('"enc"', '"dec"'))
    before = demo.state()
    assert demo.run("apply", "p", "q", "o").code == 0
    damage(demo)
    assert demo.run("repair").code == 0
    after = without_state(demo.state())
    assert {k: v[3] for k, v in after.items()} == {k: v[3] for k, v in before.items()}
    clean(demo)


def test_originals_of_a_lost_ledger_beside_a_newer_ledger(demo: Bench) -> None:
    """The ledger was lost, then another patch was applied: that one stays as it is."""
    demo.install({"other_pkg/b.py": A + b"#\n"}, name="other-pkg")
    other = PATCH.replace("demo-pkg", "other-pkg").replace("demo_pkg/a.py", "other_pkg/b.py")
    assert demo.run("apply", "p").code == 0
    lost(demo)
    demo.patch("o", other)
    assert demo.run("apply", "o").code == 0
    assert demo.run("verify", "o").code == 1  # left over: the original of p
    assert demo.run("repair").code == 0
    assert demo.read() == A
    assert demo.run("verify", "o").code == 0


def test_what_was_upgraded_since_is_left_alone(demo: Bench) -> None:
    assert demo.run("apply", "p").code == 0
    newer = A + b"# 1.1\n"
    shutil.rmtree(demo.site / "demo_pkg-1.0.dist-info")
    demo.install({"demo_pkg/__init__.py": b"", F: newer}, version="1.1")
    truncated(demo)
    assert demo.run("repair").code == 0
    assert demo.read() == newer
    assert A in aside(demo).values()
    clean(demo)


def test_what_does_not_belong_in_the_state_folder_is_set_aside(demo: Bench) -> None:
    assert demo.run("apply", "p").code == 0
    (demo.site / STATE / "notes.txt").write_text("mine")
    (demo.site / STATE / "objects/short").write_text("x")
    os.mkfifo(demo.site / STATE / "objects/fifo")
    assert demo.run("verify", "p").code == 1
    assert demo.run("repair").code == 0
    assert demo.run("verify", "p").code == 0
    folder = demo.site / STATE / "aside"
    assert sorted(os.listdir(folder)) == ["fifo", "notes.txt", "short"]


def test_a_damaged_original_is_set_aside_and_named(demo: Bench) -> None:
    assert demo.run("apply", "p").code == 0
    (kept,) = (demo.site / STATE / "objects").iterdir()
    kept.write_bytes(b"damaged")
    outcome = demo.run("repair")
    assert outcome.code == 1
    assert "the kept bytes" in outcome.out
    assert b"damaged" in aside(demo).values()


def test_a_damaged_original_of_a_lost_ledger_still_names_its_file(demo: Bench) -> None:
    assert demo.run("apply", "p").code == 0
    lost(demo)
    (demo.site / STATE / "objects" / hashlib.sha256(A).hexdigest()).write_bytes(b"damaged")
    for command in ("repair --dry-run", "repair", "repair"):
        assert undecided(demo.run(*command.split())) == {str(demo.site / F)}
    (demo.site / F).write_bytes(A)
    assert demo.run("repair").code == 0
    assert not (demo.site / STATE / "objects").exists() or not kept(demo)
    clean(demo)


# Interrupted runs


def kill_at(bench: Bench, name: str, *args: str) -> None:
    """Run a command that the kernel ends when it is about to replace a file of that name."""
    really = os.replace

    def action() -> Outcome:
        def replace(source: str, target: str, **rest: int) -> None:
            if str(target).endswith(name):
                os.kill(os.getpid(), 9)
            really(source, target, **rest)

        os.replace = replace  # type: ignore[assignment]
        return bench.run(*args)

    assert forked(action).code == -9


def two_files(bench: Bench) -> dict[str, tuple]:
    bench.install({"demo_pkg/__init__.py": b"", F: A, "demo_pkg/b.py": A})
    edit = PATCH.partition("[[edit]]")[2].replace("a.py", "b.py")
    bench.patch("p", f"{PATCH}\n[[edit]]{edit}\n{ADD}")
    return bench.state()


@pytest.mark.parametrize("command", ["apply", "revert"])
@pytest.mark.parametrize("journal", ["whole", "truncated", "nonsense"])
@pytest.mark.parametrize("damage", [None, *DAMAGE])
def test_interrupted(
    bench: Bench, command: str, journal: str, damage: Callable[[Bench], None] | None
) -> None:
    before = two_files(bench)
    if command == "revert":
        assert bench.run("apply", "p").code == 0
    kill_at(bench, "n.py" if command == "apply" else "b.py", command, "p")
    file = bench.site / STATE / "journal.json"
    if journal == "truncated":
        os.truncate(file, file.stat().st_size - 9)
    elif journal == "nonsense":
        file.write_text("[]")
    if damage and ledger(bench).exists():
        damage(bench)
    assert bench.run("repair", "--dry-run").code == 0
    done = bench.run("repair")
    assert done.code == 0, done
    if command == "revert" and journal == "whole" and damage is None:
        assert bench.run("verify", "p").code == 0
        assert bench.run("revert", "p").code == 0
    after = without_state(bench.state())
    if command == "revert" and damage in (lost, cut_to_nothing):
        after.pop(ADDED, None)  # nothing says any more that a patch had added it
        after.pop("demo_pkg/new", None)
    assert {k: v[3] for k, v in after.items()} == {k: v[3] for k, v in before.items()}


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("apply", "no default patch fits"),
        ("apply nope", "there is no patch 'nope'"),
        ("apply p", "installed is 1.0"),
        ("apply q", "unknown key"),
        ("revert nope", "there is no patch 'nope'"),
    ],
)
@pytest.mark.parametrize("killed", ["apply", "revert"])
def test_the_next_apply_or_revert_rolls_back_also_when_it_is_refused(
    bench: Bench, killed: str, command: str, says: str
) -> None:
    """As status says: whatever it has against the patches it is asked for."""
    before = two_files(bench)
    if killed == "revert":
        assert bench.run("apply", "p").code == 0
        before = bench.state()
    kill_at(bench, "n.py" if killed == "apply" else "b.py", killed, "p")
    assert "an apply or revert was interrupted; the next" in bench.run("status").out
    bench.patch("p", PATCH.replace(">=1.0,<2", ">=2"))
    if command == "apply q":
        bench.patch("q", "nonsense = 1\n")
    if command.startswith("apply"):
        half = bench.state()
        assert bench.run(*command.split(), "--dry-run").code == 1
        assert bench.state() == half
    refused = bench.run(*command.split())
    assert refused.code == 1
    assert says in refused.err
    assert {k: v for k, v in bench.state().items() if "lock" not in k} == {
        k: v for k, v in before.items() if "lock" not in k
    }


def die_letting_go(bench: Bench, *args: str) -> None:
    """Run a command that is killed when it is about to drop bytes that it kept."""
    really = Store._step

    def action() -> Outcome:
        def step(self: Store, verb: str, path: str, act: Callable[[Path], object]) -> None:
            if verb == "remove" and "/objects/" in path:
                os.kill(os.getpid(), 9)
            really(self, verb, path, act)

        Store._step = step  # type: ignore[method-assign]
        return bench.run(*args)

    assert forked(action).code == -9


@pytest.mark.parametrize("again", [False, True])
def test_written_over_after_an_apply_that_was_killed(bench: Bench, again: bool) -> None:
    """The roll-back leaves what is not the run's own alone, and does not let the original go."""
    bench.install({"demo_pkg/__init__.py": b"", F: A, "demo_pkg/b.py": A + b"# b\n"})
    edit = PATCH.partition("[[edit]]")[2].replace("a.py", "b.py")
    bench.patch("p", f"{PATCH}\n[[edit]]{edit}")
    before = bench.state()
    kill_at(bench, "b.py", "apply", "p")
    (bench.site / F).write_bytes(b"mine\n")
    if again:
        die_letting_go(bench, "apply", "p")
    refused = bench.run("apply", "p")
    assert refused.code == 1
    assert "patchkit repair" in refused.err
    assert bench.read() == b"mine\n"
    said = bench.run("status")
    assert said.code == 1
    assert f"not as installed, and no ledger says why: {F}" in said.out
    assert bench.run("repair").code == 0
    assert {k: v[3] for k, v in without_state(bench.state()).items()} == {
        k: v[3] for k, v in before.items()
    }
    assert b"mine\n" in aside(bench).values()
    assert bench.run("apply", "p").code == 0
    assert bench.run("revert", "--all").code == 0


def test_installed_again_after_an_apply_that_was_killed(bench: Bench) -> None:
    """What an upgrade wrote over is not a lost original."""
    two_files(bench)
    kill_at(bench, "b.py", "apply", "p")
    shutil.rmtree(bench.site / "demo_pkg-1.0.dist-info")
    newer = A.replace(b"return s(x)", b"return s(x, 1)")
    bench.install({"demo_pkg/__init__.py": b"", F: newer, "demo_pkg/b.py": newer}, version="1.1")
    (begun,) = [k for k in bench.state() if k.endswith("py.patchkit-tmp")]
    before = {k: v[3] for k, v in without_state(bench.state()).items() if k != begun}
    assert bench.run("apply", "p").code == 0
    assert bench.run("revert", "p").code == 0
    assert {k: v[3] for k, v in bench.state().items()} == before


def test_written_over_after_a_forced_revert_that_was_killed(bench: Bench) -> None:
    """The copy of the first changed file stays: nothing else holds those bytes."""
    two_files(bench)
    assert bench.run("apply", "p").code == 0
    (bench.site / F).write_bytes(b"first\n")
    kill_at(bench, "b.py", "revert", "--force", "p")
    assert bench.read() == A
    (bench.site / F).write_bytes(b"second\n")
    assert bench.run("revert", "--force", "p").code == 0
    found = {p.read_bytes() for p in (bench.site / "demo_pkg").iterdir() if p.is_file()}
    assert {A, b"first\n", b"second\n"} <= found
    assert bench.read() == A


@pytest.mark.parametrize("at", ["ledger.json-", "objects/", "journal.json", "a.py", "b.py", "done"])
@pytest.mark.parametrize("damage", [truncated, lost])
def test_a_repair_that_is_killed_is_done_by_the_next(
    bench: Bench, at: str, damage: Callable[[Bench], None]
) -> None:
    before = two_files(bench)
    assert bench.run("apply", "p").code == 0
    damage(bench)
    really = Path.replace

    def action() -> Outcome:
        def replace(self: Path, target: Path) -> Path:
            if at in str(target):
                os.kill(os.getpid(), 9)
            return really(self, target)

        Path.replace = replace  # type: ignore[method-assign]
        return bench.run("repair")

    if at.endswith(".py"):
        kill_at(bench, at, "repair")
    else:
        forked(action)
    if bench.run("apply", "p").code == 0:  # where the repair was as good as done
        assert bench.run("revert", "p").code == 0
    assert bench.run("repair").code == 0
    after = without_state(bench.state())
    if damage is lost:
        after.pop(ADDED, None)
        after.pop("demo_pkg/new", None)
    assert {k: v[3] for k, v in after.items()} == {k: v[3] for k, v in before.items()}


@pytest.mark.parametrize("then", ["repair", "revert --all", "apply p"])
@pytest.mark.parametrize("damage", [lost, "restored"])
def test_a_ledger_lost_while_originals_were_being_kept(
    bench: Bench, then: str, damage: Callable[[Bench], None] | str
) -> None:
    """The run was cut off before its journal named a change: its ledger to come is not proven."""
    bench.install({"demo_pkg/__init__.py": b"", F: A, "demo_pkg/b.py": A + b"#\n"})
    bench.patch("o", PATCH.replace("demo_pkg/a.py", "demo_pkg/b.py"))
    bench.patch("p")
    before = bench.state()
    assert bench.run("apply", "p").code == 0
    older = ledger(bench).read_bytes()
    assert bench.run("apply", "o").code == 0
    command = ["revert", "--all"] if damage is lost else ["revert", "o"]
    really = Store._keep

    def action() -> Outcome:
        Store._keep = lambda *_: os.kill(os.getpid(), 9)  # type: ignore[assignment,return-value]
        return bench.run(*command)

    assert forked(action).code == -9
    assert Store._keep is really
    if callable(damage):
        damage(bench)
    else:
        ledger(bench).write_bytes(older)
    bench.run(*then.split())
    bench.run("repair")
    bench.run("revert", "--all")
    after = without_state(bench.state())
    assert {k: v[3] for k, v in after.items()} == {k: v[3] for k, v in before.items()}


def test_a_ledger_lost_in_a_revert_of_files_that_were_changed_since(demo: Bench) -> None:
    """No file is what the run was to make it: nothing shows that it came to its end."""
    assert demo.run("apply", "p").code == 0
    kill_at(demo, "a.py", "revert", "p")
    lost(demo)
    (demo.site / F).write_bytes(b"mine\n")
    demo.run("repair")
    assert demo.read() == A
    assert b"mine\n" in aside(demo).values()


NESTED = ('"a": {"bytecode":' * 500 + "1" + "}" * 500 + ",") * 1700
ROW = (
    '{"bytecode":[],"folders":[],"link":null,"mode":0,"mtime_ns":0,"patched":"%064d",'
    '"pristine":null}'
)
BOMBS = {
    "strings": lambda: ",".join(f'"{n}"' for n in range(1_300_000)),
    "nested": lambda: "{" + NESTED,
    "unclosed": lambda: '"a":{"bytecode":[],"b":' * 650_000,
    "rows": lambda: ",".join(f'"d/{n}":' + ROW % n for n in range(40_000)),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_crafted_ledger_takes_bounded_time(demo: Bench, bomb: str) -> None:
    assert demo.run("apply", "p").code == 0
    ledger(demo).write_text(BOMBS[bomb]())
    assert ledger(demo).stat().st_size < 1 << 24
    begun = time.process_time()
    assert demo.run("repair").code == 0
    assert time.process_time() - begun < 20
    assert demo.read() == A


@pytest.mark.parametrize("what", ["large", "folder"])
@pytest.mark.parametrize("command", ["repair", "repair --dry-run", "status"])
def test_a_ledger_that_patchkit_never_wrote(demo: Bench, what: str, command: str) -> None:
    assert demo.run("apply", "p").code == 0
    if what == "large":
        os.truncate(ledger(demo), (1 << 24) + 1)
    else:
        ledger(demo).unlink()
        ledger(demo).mkdir()
    hint = demo.refuse(*command.split()).err.splitlines()[-1]
    move, _, then = hint.partition(": ")[2].partition(": ")[2].partition("; ")
    assert then.startswith("patchkit repair")
    subprocess.run(move, shell=True, check=True)
    assert demo.run("repair").code == 0
    assert demo.read() == A


# Rights


def test_where_nothing_may_be_written(demo: Bench) -> None:
    assert demo.run("apply", "p").code == 0
    truncated(demo)
    way = [p for p in demo.site.parents if p.stat().st_mode & 0o005 != 0o005]
    folders = (demo.site, demo.site / "demo_pkg", demo.site / STATE)
    for folder in (*way, *folders):
        folder.chmod(0o755 if folder in way else 0o555)
    before = demo.state()
    options = ["--site-packages", str(demo.site)]
    assert unprivileged("repair", *options, "--dry-run").code == 0
    refused = unprivileged("repair", *options)
    assert refused.code == 1
    assert "cannot lock" in refused.err
    assert demo.state() == before
    for folder in folders:
        folder.chmod(0o755)


def test_originals_are_as_private_as_their_source(demo: Bench) -> None:
    (demo.site / F).chmod(0o600)
    assert demo.run("apply", "p").code == 0
    (kept,) = (demo.site / STATE / "objects").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    (demo.site / F).write_bytes(b"SECRET = 1\n")
    (demo.site / F).chmod(0o640)
    truncated(demo)
    assert demo.run("repair").code == 0
    modes = {p.name[:4]: p.stat().st_mode & 0o777 for p in (demo.site / STATE / "aside").iterdir()}
    assert modes["a.py"] == 0o640


def test_one_content_of_two_files_is_kept_as_the_more_private(bench: Bench) -> None:
    two_files(bench)
    (bench.site / F).chmod(0o644)
    (bench.site / "demo_pkg/b.py").chmod(0o600)
    assert bench.run("apply", "p").code == 0
    (kept,) = (bench.site / STATE / "objects").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act for somebody else")
def test_what_root_repairs_belongs_to_whom_it_belonged(demo: Bench) -> None:
    open_up(demo.site)
    assert demo.run("apply", "p").code == 0
    truncated(demo)
    assert demo.run("repair").code == 0
    owners = {p.lstat().st_uid for p in [demo.site, *demo.site.rglob("*")]}
    assert owners == {demo.site.stat().st_uid}
    assert demo.site.stat().st_uid != 0
