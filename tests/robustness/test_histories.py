"""What others do after a run was killed, or a ledger lost: no original and no work is lost."""

from __future__ import annotations

import hashlib
import os
import py_compile
import shutil
from pathlib import Path

import pytest

from patchkit.store import Store
from tests.conftest import PATCH, A, Bench
from tests.robustness.test_repair import F, aside, kill_at, ledger, without_state

B, C = "demo_pkg/b.py", "demo_pkg/c.py"
HEAD = PATCH.partition("[[edit]]")[0]
EDIT = (
    '[[edit]]\nfile = "{}"\ncodemod = "replace_block"\n'
    'params = {{ inside = "{}", old = "return 0", new = "return -1" }}\n'
)
ADD = '[[edit]]\nfile = "demo_pkg/bn.py"\ncodemod = "add_file"\nparams = { new = "X = 1\\n" }\n'
MINE = b"mine\n"


def edit(path: str, inside: str = "enc") -> str:
    return EDIT.format(path, inside)


@pytest.fixture
def three(bench: Bench) -> Bench:
    """Patch p for a.py and c.py, q for b.py; a.py and b.py are the same bytes."""
    bench.install({"demo_pkg/__init__.py": b"", F: A, B: A, C: A + b"# c\n"})
    bench.patch("p", HEAD + edit(F) + edit(C))
    bench.patch("q", HEAD + edit(B, "dec"))
    return bench


def upgrade(bench: Bench, files: dict[str, bytes]) -> dict[str, bytes]:
    """Install 1.1 over 1.0, as pip does; returns its files."""
    shutil.rmtree(bench.site / "demo_pkg-1.0.dist-info")
    bench.install({"demo_pkg/__init__.py": b"", **files}, version="1.1")
    return {**files}


def read(bench: Bench, *paths: str) -> dict[str, bytes | None]:
    found = {path: bench.site / path for path in paths}
    return {path: file.read_bytes() if file.exists() else None for path, file in found.items()}


def back_by_repair(bench: Bench, mine: bytes | None = MINE) -> None:
    """``status`` names a.py, and ``repair`` puts it back and keeps what was there."""
    assert f"no ledger says why: {F}" in bench.run("status").out
    assert bench.run("repair").code == 0
    assert bench.read() == A
    assert mine is None or mine in aside(bench).values()


# An original that is also that of another file


def test_an_original_is_not_taken_for_that_of_another_file(three: Bench) -> None:
    assert three.run("apply", "p").code == 0
    ledger(three).unlink()
    refused = three.refuse("apply", "q")
    assert f"no ledger says why: {F}" in refused.err
    assert "patchkit repair" in refused.err
    assert three.run("repair").code == 0
    assert (three.read(), three.read(C)) == (A, A + b"# c\n")
    assert three.run("apply", "q").code == 0


def test_an_original_outlives_the_other_file_that_it_belongs_to(three: Bench) -> None:
    assert three.run("apply", "q").code == 0
    kill_at(three, "c.py", "apply", "p")
    (three.site / F).write_bytes(MINE)
    assert f"no ledger says why: {F}" in three.run("revert", "--all").out
    back_by_repair(three)


def test_an_original_outlives_an_entry_for_an_older_version(three: Bench) -> None:
    assert three.run("apply", "p").code == 0
    upgrade(three, {F: A, B: A, C: A + b"# c 1.1\n"})
    kill_at(three, "c.py", "apply", "p")
    (three.site / F).write_bytes(MINE)
    assert three.run("revert", "p").code == 0
    back_by_repair(three)


def test_an_original_stays_while_record_cannot_be_read(three: Bench) -> None:
    record = three.site / "demo_pkg-1.0.dist-info/RECORD"
    text = record.read_bytes()
    kill_at(three, "c.py", "apply", "p")
    (three.site / F).write_bytes(MINE)
    record.write_bytes(b"\xff")
    three.run("revert", "--all")
    record.write_bytes(text)
    back_by_repair(three)


# What looks as the run was to leave it, and comes from elsewhere


def test_a_newer_version_that_has_the_patched_bytes_stays(bench: Bench) -> None:
    bench.install({"demo_pkg/__init__.py": b"", F: A, C: A})
    bench.patch("p", HEAD + edit(F) + ADD + edit(C))
    kill_at(bench, "c.py", "apply", "p")
    patched = read(bench, F, "demo_pkg/bn.py")
    newer = upgrade(bench, {**patched, C: A + b"# 1.1\n"})  # type: ignore[dict-item]
    assert bench.run("revert", "--all").code == 0
    assert read(bench, *newer) == newer
    assert not (bench.site / ".patchkit").exists()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_file_that_was_missing_is_not_removed_again(three: Bench, version: str) -> None:
    assert three.run("apply", "p").code == 0
    (three.site / F).unlink()
    kill_at(three, "c.py", "revert", "p")
    assert three.read() == A
    if version == "1.1":
        upgrade(three, {F: A, B: A, C: A + b"# c 1.1\n"})
    assert three.run("revert", "--all").code == 0
    assert three.read() == A


def test_a_revert_that_was_killed_is_rolled_back_as_a_whole(three: Bench) -> None:
    """RECORD lists what a revert puts back; that alone does not make it another version's."""
    assert three.run("apply", "p").code == 0
    patched = read(three, F, C)
    kill_at(three, "c.py", "revert", "p")
    assert three.run("apply", "p").code == 0
    assert read(three, F, C) == patched
    assert three.run("status").code == 0


# Links, folders, bytecode


@pytest.mark.parametrize("became", ["changed", "gone"])
def test_a_link_that_leads_elsewhere_by_now_is_not_put_back(three: Bench, became: str) -> None:
    cache, target = three.folder / "cache.py", three.site / F
    target.rename(cache)
    target.symlink_to(cache)
    kill_at(three, "c.py", "apply", "p")
    cache.write_bytes(b"other\n") if became == "changed" else cache.unlink()
    assert three.run("revert", "--all").code == 0
    assert not target.is_symlink()
    assert three.read() == A
    assert three.run("status").code == 0


@pytest.mark.parametrize("command", ["revert p", "revert --force p", "repair"])
def test_a_folder_that_is_gone_comes_back_with_its_file(bench: Bench, command: str) -> None:
    deep = "demo_pkg/sub/deep/c.py"
    bench.install({"demo_pkg/__init__.py": b"", F: A, deep: A + b"# c\n"})
    bench.patch("p", HEAD + edit(F) + edit(deep))
    before = without_state(bench.state())
    assert bench.run("apply", "p").code == 0
    shutil.rmtree(bench.site / "demo_pkg/sub")
    if command == "repair":
        ledger(bench).unlink()
    assert bench.run(*command.split()).code == 0
    after = without_state(bench.state())
    assert {k: v[3] for k, v in after.items()} == {k: v[3] for k, v in before.items()}


def test_a_folder_that_came_back_goes_when_the_run_is_rolled_back(bench: Bench) -> None:
    deep = "demo_pkg/a/c.py"
    bench.install({"demo_pkg/__init__.py": b"", F: A, deep: A, "demo_pkg/z.py": A})
    bench.patch("p", HEAD + edit(deep) + edit("demo_pkg/z.py"))
    assert bench.run("apply", "p").code == 0
    shutil.rmtree(bench.site / "demo_pkg/a")
    before = without_state(bench.state())
    kill_at(bench, "z.py", "revert", "p")
    assert (bench.site / deep).read_bytes() == A
    with Store(bench.site).writing():
        pass
    # the file is as RECORD has it, so it stays; nothing else has changed
    after = without_state(bench.state())
    assert {k: v for k, v in after.items() if not k.startswith("demo_pkg/a/")}.keys() == {
        *before,
        "demo_pkg/a",
    }


@pytest.mark.parametrize("harm", ["gone", "damaged"])
@pytest.mark.parametrize("killed", [False, True])
def test_kept_bytecode_that_cannot_be_used_does_not_stop_the_way_back(
    three: Bench, harm: str, killed: bool
) -> None:
    py_compile.compile(str(three.site / F))
    cached = Path(three.site, "demo_pkg/__pycache__")
    (data,) = (file.read_bytes() for file in cached.iterdir())
    if killed:
        kill_at(three, "c.py", "apply", "p")
    else:
        assert three.run("apply", "p").code == 0
    (kept,) = (f for f in (three.site / ".patchkit/objects").iterdir() if f.read_bytes() == data)
    os.chmod(kept, 0o600)
    kept.unlink() if harm == "gone" else kept.write_bytes(b"junk")
    assert three.run("revert", "--all").code == 0
    assert three.read() == A
    assert not (three.site / ".patchkit").exists()
    assert three.run("status").code == 0


def test_a_journal_whose_originals_are_gone_names_repair(three: Bench) -> None:
    kill_at(three, "c.py", "apply", "p")
    shutil.rmtree(three.site / ".patchkit/objects")
    assert "patchkit repair" in three.run("apply", "p").err


# What is left of a run


def test_a_forced_revert_that_was_killed_leaves_nothing_of_its_own(three: Bench) -> None:
    assert three.run("apply", "p").code == 0
    (three.site / F).write_bytes(b"first\n")
    kill_at(three, "c.py", "revert", "--force", "p")
    (three.site / F).write_bytes(b"second\n")
    assert three.run("revert", "--force", "p").code == 0
    assert not (three.site / ".patchkit").exists()


def test_a_copy_that_a_forced_revert_had_begun_goes(three: Bench) -> None:
    assert three.run("apply", "p").code == 0
    (three.site / F).write_bytes(b"first\n")
    copy = f"a.py.drifted-{hashlib.sha256(three.read()).hexdigest()[:8]}"
    kill_at(three, copy, "revert", "--force", "p")
    begun = three.site / f"demo_pkg/.{copy}.patchkit-tmp"
    assert begun.exists()
    (three.site / F).write_bytes(b"second\n")
    assert three.run("revert", "--force", "p").code == 0
    assert not begun.exists()


def test_a_repair_does_not_write_over_what_it_set_aside(three: Bench) -> None:
    assert three.run("apply", "p").code == 0
    for text in (b"one", b"two"):
        (three.site / ".patchkit/notes.txt").write_bytes(text)
        assert three.run("repair").code == 0
    assert sorted(aside(three).values()) == [b"one", b"two"]
