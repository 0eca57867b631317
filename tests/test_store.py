from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patchkit.errors import LedgerError, NewerStateError, PatchkitError, StoreError
from patchkit.journal import Change, Snapshot, digest_of
from patchkit.ledger import Bytecode, FileEntry, Ledger, LedgerEntry, dump_ledger
from patchkit.store import TEMPORARY, Store
from tests.conftest import tree

A, B, C = "pkg/a.py", "pkg/b.py", "pkg/new/c.py"
OLD, NEW = b"x = 1\n", b"x = 22\n"
KEEP = [Snapshot(OLD, 0o640, 10**18 + 5)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A folder with two files of one package."""
    make_site(tmp_path / "site")
    return Store(tmp_path / "site")


def make_site(site: Path) -> None:
    (site / "pkg").mkdir(parents=True)
    for path in (A, B):
        (site / path).write_bytes(OLD)
        (site / path).chmod(0o640)
        os.utime(site / path, ns=(10**18, 10**18 + 5))


def ledger(*paths: str, pristine: bytes | None = OLD, patched: bytes = NEW) -> Ledger:
    """Return a ledger of one patch on these files."""
    kept = None if pristine is None else digest_of(pristine)
    entry = LedgerEntry(
        "p", 1, "d", "t", "", "pkg", "1.0", (), (), (), {path: () for path in sorted(paths)}
    )
    files = [FileEntry(path, kept, digest_of(patched), 0o640, 5) for path in sorted(paths)]
    return Ledger((entry,), tuple(files))


def change(store: Store, path: str, data: bytes | None = NEW, **rest: Any) -> Change:
    """Return the change of one file to ``data``."""
    before = store.snapshot(path)
    after = None
    if data is not None:
        after = replace(before or Snapshot(b"", 0o644, 0), data=data, mtime_ns=7 * 10**9, link=None)
    return Change(path, before, after, **rest)


def commit(store: Store, *paths: str) -> None:
    with store.writing():
        store.commit([change(store, path) for path in paths], ledger(*paths), KEEP)


def objects(store: Store) -> set[str]:
    folder = store.folder / "objects"
    return {p.name for p in folder.iterdir()} if folder.is_dir() else set()


def pyc(store: Store, *names: str) -> list[Path]:
    folder = store.root / "pkg/__pycache__"
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(name.encode())
    return [folder / name for name in names]


# Reading


def test_reading_leaves_nothing_behind(store: Store) -> None:
    before = tree(store.root)
    with store.reading():
        assert store.load() == Ledger()
        assert not store.interrupted()
        assert store.leftovers() == []
    assert tree(store.root) == before


def test_snapshot(store: Store) -> None:
    (store.root / "pkg/link.py").symlink_to("a.py")
    found = store.snapshot(A)
    assert found == Snapshot(OLD, 0o640, 10**18 + 5, None, os.getuid(), os.getgid())
    assert store.snapshot("pkg/link.py") == replace(found, link="a.py")
    assert store.digest("pkg/link.py") == store.digest(A) == hashlib.sha256(OLD).hexdigest()
    assert store.snapshot("pkg/none.py") is None
    assert store.snapshot("none/none.py") is None
    assert store.snapshot("pkg/a.py/none.py") is None
    assert store.digest("none") is None


@pytest.mark.parametrize("kind", ["folder", "fifo", "device", "dangling", "loop", "to a folder"])
def test_snapshot_of_what_is_no_file(store: Store, kind: str) -> None:
    full = store.root / "pkg/x.py"
    if kind == "folder":
        full.mkdir()
    elif kind == "fifo":
        os.mkfifo(full)
    else:
        links = {"device": "/dev/zero", "dangling": "none", "loop": "x.py", "to a folder": "."}
        full.symlink_to(links[kind])
    with pytest.raises(StoreError, match=r"pkg/x\.py"):
        store.snapshot("pkg/x.py")


@pytest.mark.parametrize(
    ("name", "belongs"),
    [
        ("a.cpython-311.pyc", True),
        ("a.cpython-311.opt-1.pyc", True),
        ("a.cpython-311.opt-2.pyc", True),
        ("a.pypy310.pyc", True),
        ("a.cpython-313t.pyc", True),
        ("a.b.cpython-311.pyc", False),
        ("ab.cpython-311.pyc", False),
        ("a.cpython-311.pyo", False),
        ("a.txt", False),
        ("A.cpython-311.pyc", False),
    ],
)
def test_bytecode_of(store: Store, name: str, belongs: bool) -> None:
    (file,) = pyc(store, name)
    assert store.bytecode_of(A) == ([file] if belongs else [])
    assert store.bytecode_of("pkg/a.cu") == []
    assert store.bytecode_of("none/a.py") == []


@pytest.mark.parametrize("damage", ["gone", "changed", "folder"])
def test_kept_bytes_are_checked(store: Store, damage: str) -> None:
    commit(store, A)
    kept = store.folder / "objects" / digest_of(OLD)
    assert store.kept(digest_of(OLD)) == OLD
    kept.unlink()
    if damage == "changed":
        kept.write_bytes(NEW)
    elif damage == "folder":
        kept.mkdir()
    with pytest.raises(LedgerError, match=digest_of(OLD)[:12]):
        store.kept(digest_of(OLD))


# Commits


def test_commit_and_back(store: Store) -> None:
    before = tree(store.root)
    inode = (store.root / A).stat().st_ino
    commit(store, A, B)
    assert (store.root / A).read_bytes() == (store.root / B).read_bytes() == NEW
    assert (store.root / A).stat().st_ino != inode
    assert (store.root / A).stat().st_mode & 0o777 == 0o640
    assert store.load() == ledger(A, B)
    assert objects(store) == {digest_of(OLD)}
    assert store.leftovers() == []
    assert not store.interrupted()
    with store.writing():
        back = [
            Change(path, store.snapshot(path), Snapshot(store.kept(digest_of(OLD)), 0o640, when))
            for path, when in ((A, 10**18 + 5), (B, 10**18 + 5))
        ]
        store.commit(back, Ledger())
    assert tree(store.root) == before


def test_hard_links_keep_their_bytes(store: Store, tmp_path: Path) -> None:
    os.link(store.root / A, tmp_path / "cache.py")
    commit(store, A)
    assert (tmp_path / "cache.py").read_bytes() == OLD
    assert (tmp_path / "cache.py").stat().st_nlink == 1


def test_links_are_replaced_and_put_back(store: Store, tmp_path: Path) -> None:
    (tmp_path / "cache.py").write_bytes(OLD)
    (store.root / A).unlink()
    (store.root / A).symlink_to("../../cache.py")
    before = store.snapshot(A)
    commit(store, A)
    assert not (store.root / A).is_symlink()
    with store.writing():
        store.commit([Change(A, store.snapshot(A), before)], Ledger())
    assert os.readlink(store.root / A) == "../../cache.py"
    assert (tmp_path / "cache.py").read_bytes() == OLD


def test_files_that_come_and_go_with_their_folders(store: Store) -> None:
    before = tree(store.root)
    folders = ("pkg/new",)
    recorded = ledger(C, pristine=None)
    with store.writing():
        store.commit([change(store, C, folders=folders)], recorded)
    assert (store.root / C).read_bytes() == NEW
    assert store.load() == recorded
    with store.writing():
        store.commit([change(store, C, None, folders=folders)], Ledger())
    assert tree(store.root) == before


def test_folder_that_someone_else_uses_stays(store: Store) -> None:
    with store.writing():
        store.commit([change(store, C, folders=("pkg/new",))], ledger(C, pristine=None))
    (store.root / "pkg/new/mine.txt").write_text("x")
    with store.writing():
        store.commit([change(store, C, None, folders=("pkg/new",))], Ledger())
    assert os.listdir(store.root / "pkg/new") == ["mine.txt"]


def test_bytecode_is_dropped_and_put_back(store: Store) -> None:
    mine = pyc(store, "a.cpython-311.pyc", "a.cpython-311.opt-1.pyc", "a.pypy310.pyc")
    (other,) = pyc(store, "b.cpython-311.pyc")
    mine[0].chmod(0o600)
    before = tree(store.root)
    kept = [item for item, _ in store.keep_bytecode(A)]
    assert [item.path for item in kept] == sorted(f"pkg/__pycache__/{p.name}" for p in mine)
    pristine = store.snapshot(A)
    recorded = ledger(A)
    recorded = recorded.with_file(A, replace(recorded.files[0], bytecode=tuple(kept)))
    with store.writing():
        keep = [*KEEP, *(snapshot for _, snapshot in store.keep_bytecode(A))]
        store.commit([change(store, A)], recorded, keep)
    assert os.listdir(store.root / "pkg/__pycache__") == [other.name]
    pyc(store, "a.cpython-399.pyc")
    with store.writing():
        back = Change(A, store.snapshot(A), pristine, tuple(kept))
        store.commit([back], Ledger())
    assert tree(store.root) == before


def test_nothing_to_do_writes_nothing(store: Store) -> None:
    commit(store, A)
    before = tree(store.root)
    with store.writing():
        store.commit([], store.load(), KEEP)
        store.commit([Change("pkg/none.py", None, None)], store.load())
    assert tree(store.root) == before


# Failures


def block(store: Store, path: str) -> Path:
    """Make every attempt to write ``path`` fail: a full folder lies where its temporary goes."""
    full = store.root / path
    blocker = full.with_name(f".{full.name}{TEMPORARY}")
    (blocker / "x").mkdir(parents=True)
    return blocker


def unblock(blocker: Path) -> None:
    (blocker / "x").rmdir()
    blocker.rmdir()


def test_second_of_two_fails(store: Store) -> None:
    pyc(store, "a.cpython-311.pyc", "b.cpython-311.pyc")
    blocker = block(store, B)
    before = tree(store.root)
    with pytest.raises(StoreError, match=r"cannot write .*pkg/b\.py") as caught:
        commit(store, A, B)
    assert caught.value.hint
    assert tree(store.root) == before
    unblock(blocker)
    commit(store, A, B)
    assert (store.root / A).read_bytes() == (store.root / B).read_bytes() == NEW


def test_failure_after_an_earlier_commit_keeps_that(store: Store) -> None:
    commit(store, A)
    block(store, B)
    before = tree(store.root)
    changes = [change(store, A, b"x = 333\n"), change(store, B)]
    with pytest.raises(StoreError), store.writing():
        store.commit(changes, ledger(A, B, patched=b"x = 333\n"), KEEP)
    assert tree(store.root) == before
    assert store.load() == ledger(A)


def test_failure_behind_a_removed_file(store: Store) -> None:
    """The folder that went with the file has to come back first."""
    with store.writing():
        store.commit([change(store, C, folders=("pkg/new",))], ledger(C, pristine=None))
    block(store, B)
    before = tree(store.root)
    removed = change(store, C, None, folders=("pkg/new",))
    with pytest.raises(StoreError), store.writing():
        store.commit([removed, change(store, B)], ledger(B), KEEP)
    assert tree(store.root) == before


def test_failure_behind_an_added_file(store: Store) -> None:
    block(store, B)
    before = tree(store.root)
    added = change(store, C, folders=("pkg/new",))
    with pytest.raises(StoreError), store.writing():
        store.commit([added, change(store, B)], ledger(B), KEEP)
    assert tree(store.root) == before


def test_failure_behind_a_link(store: Store, tmp_path: Path) -> None:
    (tmp_path / "cache.py").write_bytes(OLD)
    (store.root / A).unlink()
    (store.root / A).symlink_to(tmp_path / "cache.py")
    block(store, B)
    before = tree(store.root)
    with pytest.raises(StoreError):
        commit(store, A, B)
    assert tree(store.root) == before


def test_target_that_someone_else_wrote_meanwhile(store: Store) -> None:
    changes = [change(store, A), change(store, B)]
    (store.root / B).write_bytes(b"theirs\n")
    before = tree(store.root)
    with pytest.raises(StoreError, match="was changed by another program"), store.writing():
        store.commit(changes, ledger(A, B), KEEP)
    assert tree(store.root) == before


def test_target_that_became_a_folder(store: Store) -> None:
    changes = [change(store, A), change(store, B)]
    (store.root / B).unlink()
    (store.root / B / "x").mkdir(parents=True)
    before = tree(store.root)
    with pytest.raises(StoreError), store.writing():
        store.commit(changes, ledger(A, B), KEEP)
    assert (store.root / A).read_bytes() == OLD
    (store.root / B / "x").rmdir()
    (store.root / B).rmdir()
    (store.root / B).write_bytes(OLD)
    with store.writing():
        pass
    assert not store.folder.exists()
    assert before.keys() - {"pkg/b.py/x"} == tree(store.root).keys()


@pytest.mark.parametrize("name", ["ledger.json", "journal.json", f"objects/{digest_of(OLD)}"])
def test_state_that_cannot_be_written(store: Store, name: str) -> None:
    blocker = store.folder / (name + TEMPORARY)
    (blocker / "x").mkdir(parents=True)
    before = {k: v for k, v in tree(store.root).items() if not k.startswith(".patchkit")}
    with pytest.raises(StoreError, match="cannot write"):
        commit(store, A)
    after = {k: v for k, v in tree(store.root).items() if not k.startswith(".patchkit")}
    assert after == before
    unblock(blocker)
    commit(store, A)
    assert store.leftovers() == []


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_state_folder_that_is_none(store: Store, kind: str) -> None:
    if kind == "file":
        store.folder.write_text("x")
    else:
        store.folder.symlink_to("nowhere")
    before = tree(store.root)
    with pytest.raises(StoreError, match=r"\.patchkit"):
        commit(store, A)
    assert tree(store.root) == before


# Recovery


def die(store: Store, code: str) -> None:
    """Run ``code`` in another process, with the names of this module; it must kill itself."""
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom tests.test_store import *\n"
        "def die(*_): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"store = Store(Path({str(store.root)!r}))\n{code}"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[1])
    assert done.returncode == -signal.SIGKILL


# A real run that the kernel ends when it is about to replace a file, or the ledger.
KILLED_AT = """
replace_file = os.replace
def replace_or_die(source, target, **rest):
    if str(target).endswith(sys.argv[0] or {where!r}):
        die()
    replace_file(source, target, **rest)
os.replace = replace_or_die
sys.argv[0] = ''
commit(store, A, B)
"""


@pytest.fixture(scope="module")
def crashed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose run was killed after the first of two files."""
    site = tmp_path_factory.mktemp("crashed") / "site"
    make_site(site)
    die(Store(site), KILLED_AT.format(where="pkg/b.py"))
    return site


@pytest.fixture
def crashed(crashed_once: Path, tmp_path: Path) -> Store:
    shutil.copytree(crashed_once, tmp_path / "crashed", symlinks=True)
    return Store(tmp_path / "crashed")


@pytest.mark.parametrize("where", ["pkg/a.py", "pkg/b.py"])
def test_killed_between_the_files(store: Store, where: str) -> None:
    pyc(store, "a.cpython-311.pyc")
    before = tree(store.root)
    die(store, KILLED_AT.format(where=where))
    assert store.interrupted()
    assert (store.root / A).read_bytes() == (OLD if where == A else NEW)
    notes: list[str] = []
    with Store(store.root, notes.append).writing():
        pass
    assert any("rolling back" in note for note in notes)
    assert tree(store.root) == before


def test_killed_run_is_rolled_back_before_the_next_commit(crashed: Store) -> None:
    commit(crashed, B)
    assert (crashed.root / A).read_bytes() == OLD
    assert (crashed.root / B).read_bytes() == NEW
    assert crashed.load() == ledger(B)
    assert crashed.leftovers() == []


def test_file_changed_since_the_crash_is_left_alone(crashed: Store) -> None:
    (crashed.root / A).write_bytes(b"mine\n")
    with crashed.writing():
        pass
    assert (crashed.root / A).read_bytes() == b"mine\n"
    assert not crashed.folder.exists()


def test_file_changed_since_the_crash_that_could_not_be_read_at_first(
    crashed: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (crashed.root / A).write_bytes(b"mine\n")
    monkeypatch.setattr(Store, "_left_alone", lambda *_: set())
    with crashed.writing():
        pass
    assert (crashed.root / A).read_bytes() == b"mine\n"


def test_distribution_removed_since_the_crash(crashed: Store) -> None:
    for file in (crashed.root / "pkg").iterdir():
        file.unlink()
    (crashed.root / "pkg").rmdir()
    with crashed.writing():
        pass
    assert list(crashed.root.iterdir()) == []


def test_journal_of_a_finished_run_does_not_undo_it(store: Store) -> None:
    """Cut off after the ledger was written: what was to come is there."""
    journal = store.folder / "journal.json"
    with store.writing():
        store.stage([change(store, A)], ledger(A), KEEP)
        text = journal.read_text()
        store.seal(ledger(A))
    journal.write_text(text)
    assert store.interrupted()
    with store.writing():
        pass
    assert (store.root / A).read_bytes() == NEW
    assert store.load() == ledger(A)
    assert not store.interrupted()


def test_staged_changes_can_be_taken_back(store: Store) -> None:
    before = tree(store.root)
    with store.writing():
        store.stage([change(store, A)], ledger(A), KEEP)
        assert (store.root / A).read_bytes() == NEW
        store.roll_back_after(KeyError("another folder failed"))
        assert (store.root / A).read_bytes() == OLD
    assert tree(store.root) == before


def journal(store: Store) -> dict[str, Any]:
    return json.loads((store.folder / "journal.json").read_text())


JOURNAL_DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "no schema": lambda j: j.pop("schema"),
    "older": lambda j: j.update(schema=0),
    "no ledger_before": lambda j: j.pop("ledger_before"),
    "no versions": lambda j: j.pop("versions"),
    "a version is no text": lambda j: j["versions"].update(x=1),
    "no ledger_after": lambda j: j.pop("ledger_after"),
    "no changes": lambda j: j.pop("changes"),
    "changes of a wrong type": lambda j: j.update(changes="ab"),
    "change of a wrong type": lambda j: j.update(changes=[1]),
    "path outside": lambda j: j["changes"][0].update(path="../outside.py"),
    "absolute path": lambda j: j["changes"][0].update(path="/outside.py"),
    "path of a wrong type": lambda j: j["changes"][0].update(path=1),
    "folder outside": lambda j: j["changes"][0].update(folders=["../outside"]),
    "no folders": lambda j: j["changes"][0].pop("folders"),
    "before of a wrong type": lambda j: j["changes"][0].update(before="x"),
    "before without mode": lambda j: j["changes"][0]["before"].pop("mode"),
    "mode of a wrong type": lambda j: j["changes"][0]["before"].update(mode="644"),
    "link of a wrong type": lambda j: j["changes"][0]["before"].update(link=5),
    "digest with a path": lambda j: j["changes"][0]["before"].update(sha256="../../x"),
    "after without digest": lambda j: j["changes"][0]["after"].pop("sha256"),
    "bytecode of a wrong type": lambda j: j["changes"][0].update(bytecode=[{}]),
    "bytecode outside": lambda j: j["changes"][0].update(
        bytecode=[{"path": "../x", "sha256": "0" * 64, "mode": 0, "mtime_ns": 0}]
    ),
}


@pytest.mark.parametrize("damage", JOURNAL_DAMAGE)
def test_damaged_journal(crashed: Store, damage: str) -> None:
    document = journal(crashed)
    JOURNAL_DAMAGE[damage](document)
    (crashed.folder / "journal.json").write_text(json.dumps(document))
    before = tree(crashed.root)
    with pytest.raises(LedgerError, match=r"journal\.json is damaged"), crashed.writing():
        pass
    assert tree(crashed.root) == before
    assert digest_of(OLD) in objects(crashed)


def test_journal_of_a_newer_patchkit(crashed: Store) -> None:
    file = crashed.folder / "journal.json"
    file.write_text(json.dumps(journal(crashed) | {"schema": 2, "changes": "unheard of"}))
    before = tree(crashed.root)
    with pytest.raises(NewerStateError, match="reads up to 1"), crashed.writing():
        pass
    assert tree(crashed.root) == before


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_journal_that_is_none(crashed: Store, text: bytes) -> None:
    (crashed.folder / "journal.json").write_bytes(text)
    with pytest.raises(LedgerError, match=r"journal\.json"), crashed.writing():
        pass
    assert digest_of(OLD) in objects(crashed)


def test_originals_lost_since_the_crash(crashed: Store) -> None:
    (crashed.folder / "objects" / digest_of(OLD)).unlink()
    with pytest.raises(LedgerError, match="kept bytes"), crashed.writing():
        pass
    assert (crashed.root / A).read_bytes() == NEW
    assert crashed.interrupted()


# The lock


def test_lock_of_a_dead_process_does_not_block(store: Store) -> None:
    die(store, "with store.writing():\n    die()\n")
    assert (store.folder / "lock").exists()
    commit(store, A)
    with store.reading():
        assert store.load() == ledger(A)


def test_writers_and_readers_wait_for_a_writer(store: Store) -> None:
    reader, writer = (
        f"from pathlib import Path\nfrom patchkit.store import Store\n"
        f"def say(text): print(text, flush=True)\n"
        f"with Store(Path({str(store.root)!r}), say).{kind}(): print('in')\n"
        for kind in ("reading", "writing")
    )
    with store.writing():
        started = [
            subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
            for code in (reader, writer)
        ]
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting for another patchkit to finish ...\n"
    for process in started:
        assert process.communicate()[0] == "in\n"
        assert process.returncode == 0
    assert not store.folder.exists()


def test_two_readers_do_not_wait_for_each_other(store: Store) -> None:
    commit(store, A)
    with store.reading(), Store(store.root).reading():
        pass


# What is left


def test_leftovers(store: Store) -> None:
    commit(store, A)
    assert store.leftovers() == []
    for name in ("x", "objects/abc", f"ledger.json{TEMPORARY}", f"../pkg/.a.py{TEMPORARY}"):
        (store.folder / name).write_text("x")
    assert store.leftovers() == sorted(
        [
            ".patchkit/x",
            ".patchkit/objects/abc",
            f".patchkit/ledger.json{TEMPORARY}",
            f"pkg/.a.py{TEMPORARY}",
        ]
    )


def test_empty_state_folder_goes(store: Store) -> None:
    with store.writing():
        assert store.folder.is_dir()
    assert not store.folder.exists()
    (store.folder / "objects").mkdir(parents=True)
    (store.folder / f"objects/x{TEMPORARY}").write_text("x")
    with store.writing():
        pass
    assert not store.folder.exists()


def lose_ledger(store: Store) -> set[str]:
    commit(store, A)
    (store.folder / "ledger.json").unlink()
    return objects(store)


def test_objects_without_a_ledger_are_kept(store: Store) -> None:
    kept = lose_ledger(store)
    with store.writing():
        pass
    assert objects(store) == kept == {digest_of(OLD)}
    assert store.leftovers() == [f".patchkit/objects/{digest_of(OLD)}"]


def test_objects_without_a_ledger_outlive_the_next_commit(store: Store) -> None:
    lose_ledger(store)
    (store.root / B).write_bytes(b"y = 1\n")
    with store.writing():
        recorded = ledger(B, pristine=b"y = 1\n")
        store.commit([change(store, B)], recorded, [Snapshot(b"y = 1\n", 0o644, 0)])
    assert objects(store) == {digest_of(OLD), digest_of(b"y = 1\n")}
    with store.writing():
        store.commit([change(store, B, b"y = 1\n")], Ledger())
    assert objects(store) == {digest_of(OLD)}
    assert store.leftovers() == [f".patchkit/objects/{digest_of(OLD)}"]


def test_objects_of_a_crash_do_not_outlive_its_roll_back(store: Store) -> None:
    lost = digest_of(b"lost")
    (store.folder / "objects").mkdir(parents=True)
    (store.folder / "objects" / lost).write_bytes(b"lost")
    die(store, KILLED_AT.format(where="pkg/b.py"))
    assert objects(store) == {lost, digest_of(OLD)}
    with store.writing():
        pass
    assert objects(store) == {lost}


def test_bytecode_that_is_a_link_is_not_set_aside(store: Store) -> None:
    (file,) = pyc(store, "a.cpython-311.pyc")
    file.rename(file.with_name("real"))
    file.symlink_to("real")
    assert store.keep_bytecode(A) == ()


def test_keep_bytecode(store: Store) -> None:
    (file,) = pyc(store, "a.cpython-311.pyc")
    os.utime(file, ns=(3, 4))
    file.chmod(0o604)
    name = f"pkg/__pycache__/{file.name}"
    data = file.read_bytes()
    ((item, snapshot),) = store.keep_bytecode(A)
    assert item == Bytecode(name, digest_of(data), 0o604, 4)
    assert (snapshot.data, snapshot.mode, snapshot.mtime_ns) == (data, 0o604, 4)


def test_damaged_ledger_is_not_written_over(store: Store) -> None:
    commit(store, A)
    text = dump_ledger(ledger(A))[:-9]
    (store.folder / "ledger.json").write_text(text)
    before = tree(store.root)
    with contextlib.suppress(PatchkitError), store.writing():
        store.load()
    with pytest.raises(LedgerError):
        store.leftovers()
    assert tree(store.root) == before
