"""Patches, state and installs from strangers: no code runs unasked, and every refusal is clear."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from patchkit import allowing
from tests.conftest import PATCH, Bench, Outcome, assert_refusal, invoke

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
        assert invoke("allow", str(coded.patches / "p")).code == 0
        assert run(coded, "apply", "p", "--dry-run").code == 0


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
    assert invoke("allow").out == "no code is allowed there\n"
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


def test_a_patch_that_is_data_needs_no_permission(demo: Bench) -> None:
    assert invoke("allow", str(demo.patches)).out == f"data only  {demo.patches / 'p'}\n"
    assert not (demo.folder / "state").exists()
    assert run(demo, "apply", "p").code == 0
