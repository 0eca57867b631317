"""``verify --junit --html --github``: what is written and printed, and only what was named."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.conftest import PATCH, Bench


@pytest.fixture
def applied(demo: Bench) -> Bench:
    demo.patch("p", PATCH.replace("versions", 'checks = ["import"]\nversions', 1))
    assert demo.run("apply", "p").code == 0
    return demo


def failures(file: Path) -> list[str]:
    return [str(found.get("message")) for found in ET.parse(file).iter("failure")]


def test_all_three_at_once(applied: Bench):
    before = applied.state()
    outcome = applied.run("verify", "--junit", "j.xml", "--html", "page.html", "--github")
    assert outcome.code == 0
    assert "::" not in outcome.out
    assert sorted(os.listdir()) == ["j.xml", "page.html"]
    assert applied.state() == before
    cases = [case.get("name") for case in ET.parse("j.xml").iter("testcase")]
    assert cases == ["bytes", "import"]
    html = Path("page.html").read_text("utf-8")
    assert "Verified</h1>" in html
    assert '<ins class="add">+        return -1\n</ins>' in html


def test_without_the_options_nothing_is_written(applied: Bench):
    assert applied.run("verify", "--check", "bytes").code == 0
    assert os.listdir() == []


def test_drift_is_in_every_report(applied: Bench):
    with (applied.site / "demo_pkg/a.py").open("ab") as file:
        file.write(b"# hot-fix\n")
    outcome = applied.run("verify", "--junit", "j.xml", "--html", "page.html", "--github")
    assert outcome.code == 1
    assert failures(Path("j.xml"))[0].startswith("drifted: ")
    assert '<ins class="add">+# hot-fix\n</ins>' in Path("page.html").read_text("utf-8")
    (line,) = [line for line in outcome.out.split("\n") if line.startswith("::")]
    assert line.startswith("::error title=p%3A drifted::")
    assert f"--site-packages {applied.site}" in line


def test_a_refusal_is_in_every_report(applied: Bench):
    (applied.site / ".patchkit/ledger.json").write_text("{")
    outcome = applied.run("verify", "--junit", "j.xml", "--html", "page.html", "--github")
    assert outcome.code == 1
    message = outcome.err.splitlines()[0].removeprefix("error: ")
    assert failures(Path("j.xml")) == [message]
    assert "Not verified</h1>" in Path("page.html").read_text("utf-8")
    assert outcome.out.startswith("::error title=patchkit::")


def test_lost_originals_leave_a_page_without_the_changes(applied: Bench):
    with (applied.site / "demo_pkg/a.py").open("ab") as file:
        file.write(b"\n")
    for kept in (applied.site / ".patchkit/objects").iterdir():
        kept.unlink()
    assert applied.run("verify", "--html", "page.html").code == 1
    html = Path("page.html").read_text("utf-8")
    assert "drifted" in html
    assert "the changes cannot be shown: " in html


def test_a_file_that_cannot_be_written_is_a_problem_and_the_rest_is_shown(applied: Bench):
    Path("j.xml").symlink_to("j.xml")
    outcome = applied.run("verify", "--junit", "j.xml", "--html", "page.html", "--json")
    assert outcome.code == 1
    (problem,) = outcome.json["problems"]
    assert problem.startswith("cannot write j.xml: ")
    assert outcome.states == {"p": "applied"}
    assert Path("page.html").exists()


def test_a_folder_that_is_not_there_is_refused_before_any_work(applied: Bench):
    outcome = applied.refuse("verify", "--junit", "out put/j.xml")
    assert outcome.err == (
        "error: cannot write out put/j.xml: no folder out put\nhint: mkdir -p 'out put'\n"
    )


@pytest.mark.parametrize(
    "options",
    [
        ["--github", "--json"],
        ["--junit", "a", "--html", "a"],
        ["--html", "."],
    ],
)
def test_wrong_usage(applied: Bench, options: list[str]):
    assert applied.run("verify", *options).code == 2
    assert os.listdir() == []
