from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patchkit import applying, checks, plan, results, touring
from tests.conftest import PATCH, A, Bench, invoke
from tests.wheels import flashinfer_wheel, unpack

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.glob("*.md")])


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def tables(text: str) -> Iterator[list[list[str]]]:
    """Give the body rows of every table of a page."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [re.split(r"(?<!\\)\|", line.strip("|"))[:] for line in block.splitlines()]
        yield [[cell.strip() for cell in row] for row in rows[2:]]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# Generated pages, links, README


def test_generated_pages_are_as_the_code_gives_them():
    pages = runpy.run_path(str(DOCS / "generate.py"))["pages"]()
    stale = [name for name, text in pages.items() if page(name) != text]
    assert not stale, "run: python docs/generate.py"
    assert max(map(len, page("commands.md").splitlines())) <= 90
    assert "prints in 90 columns" in page("commands.md")


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_links_lead_somewhere(file: Path):
    text = re.sub(r"```.*?```", "", file.read_text("utf-8"), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    missing = [link for link in links if not (file.parent / link.partition("#")[0]).exists()]
    assert not missing


def test_every_page_is_linked_from_the_readme():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert [p.name for p in DOCS.glob("*.md") if f"(docs/{p.name})" not in readme] == []


def test_readme_has_two_setup_commands_and_ci_runs_the_second():
    readme = (ROOT / "README.md").read_text("utf-8")
    try_it = readme.partition("## Try it")[2].partition("\n## ")[0]
    commands = re.findall(r"```bash\n(.*?)\n```", try_it, re.DOTALL)
    assert len(commands) == 2
    assert commands[1] in (ROOT / ".ci/run").read_text("utf-8").splitlines()


def comparable(text: str) -> str:
    """Give a transcript without what differs from machine to machine."""
    text = re.sub(r"\S+/patchkit-demo-\w+", "FOLDER", text)
    text = re.sub(r"[0-9a-f]{64}", "SHA256", text)
    return re.sub(r"\d+ files|@@ .* @@", "NUMBERS", text)


@pytest.mark.slow
def test_readme_shows_what_demo_prints(monkeypatch: pytest.MonkeyPatch):
    wheel = flashinfer_wheel(touring.RELEASE)
    monkeypatch.setattr(touring, "install", lambda _, folder: unpack(wheel, folder))
    outcome = invoke("demo")
    assert outcome.code == 0
    readme = (ROOT / "README.md").read_text("utf-8")
    (shown,) = re.findall(r"```text\n(1\. fetch.*?)```", readme, re.DOTALL)
    for part in shown.split("[...]\n"):
        assert comparable(part) in comparable(outcome.out)


# docs/writing-a-patch.md


def test_every_example_patch_applies(bench: Bench):
    text = page("writing-a-patch.md")
    bench.install(
        {
            "demo_pkg/__init__.py": b"",
            "demo_pkg/a.py": A,
            "demo_pkg/limits.cuh": b"#pragma once\n#define LIMIT 16\n",
        }
    )
    before = bench.state()
    assert A.decode() in text
    for name, body in re.findall(r"^`patches/(.+?)`:\n\n```\w+\n(.*?)^```", text, re.M | re.S):
        file = bench.patches / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(body)
    (shown,) = re.findall(r"```diff\n(.*?)^```", text, re.M | re.S)
    assert bench.run("diff", "enc-none").out == shown

    ids = sorted(folder.name for folder in bench.patches.iterdir())
    assert ids == ["dec-default", "enc-none", "raise-limit"]
    assert bench.run("apply", *ids).code == 0
    assert bench.run("verify", *ids).code == 0
    module: dict[str, Any] = {}
    exec((bench.site / "demo_pkg/a.py").read_text(), module)
    assert (module["enc"](None), module["dec"]()) == (-1, 0)
    assert "LIMIT 32" in (bench.site / "demo_pkg/limits.cuh").read_text()
    assert bench.run("revert", "--all").code == 0
    assert bench.state() == before


TABLES = ("[trace]", "[kernel]", "[[edit]]")


def test_every_field_of_a_patch_is_documented(bench: Bench):
    bench.patch("p", "nonsense = 1\n" + "".join(f"{t}\nnonsense = 1\n" for t in TABLES))
    said = bench.run("list").err
    known = [set(line.split(", ")) for line in re.findall(r"known are (.*)", said)]
    documented = [{code(r[0])[0] for r in t} for t in tables(page("writing-a-patch.md"))]
    assert sorted(map(sorted, known)) == sorted(map(sorted, documented))


# docs/json.md


def key_paths(value: Any, at: str = "") -> set[str]:
    """Give ``a``, ``a.b`` and ``a[].b`` for every key in a JSON value."""
    if isinstance(value, list):
        return {key for item in value for key in key_paths(item, f"{at}[]")}
    if not isinstance(value, dict):
        return set()
    found = set()
    for key, inner in value.items():
        path = f"{at}.{key}" if at else key
        found |= {path} | key_paths(inner, path)
    return found


def documented_keys(*headings: str) -> set[str]:
    sections = re.split(r"^## ", page("json.md"), flags=re.MULTILINE)
    chosen = [s for s in sections if s.partition("\n")[0] in headings]
    assert len(chosen) == len(headings)
    keys = {code(row[0])[0] for s in chosen for t in tables(s) for row in t}
    return {k for k in keys if k not in COMMANDS}


COMMANDS = {
    "list": ("Rows of patches", "Keys of list"),
    "status": ("Rows of patches",),
    "diff": ("Keys of diff",),
    "apply": ("Rows of patches", "Keys of apply"),
    "verify": ("Rows of patches", "Keys of verify"),
    "revert": ("Rows of patches",),
    "repair": ("Keys of repair",),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_json_has_exactly_the_documented_keys(demo: Bench, command: str):
    demo.patch("p", PATCH.replace("versions", 'checks = ["import"]\nversions', 1))
    names = [] if command in ("list", "status", "repair") else ["p"]
    runs = [demo.run(command, *names, "--json")]
    assert demo.run("apply", "p").code == 0
    runs.append(demo.run(command, *names, "--json"))
    assert demo.run("apply", "p").code == 0
    demo.patch("broken", "schema = 1\n")  # refused by all that read patches
    (demo.site / ".patchkit/ledger.json").write_text("{")  # ... and by all that need the ledger
    runs.append(demo.run(command, *names, "--json"))
    (demo.site / ".patchkit/ledger.json").write_text('{"schema": 2}')  # ... or may not touch it
    runs.append(demo.run(command, *names, "--json"))
    found = set().union(*(key_paths(run.json) for run in runs))
    assert found == documented_keys("All commands", *COMMANDS[command])
    assert [run.code == 0 for run in runs] == [run.json["ok"] for run in runs]
    assert all(run.json["schema"] == 1 and run.json["command"] == command for run in runs)


def test_json_of_allow(demo: Bench):
    demo.patch("p", PATCH.replace('"replace_block"', '"codemod.py:f"'), codemod__py="")
    runs = [invoke("allow", *args, "--json") for args in ([str(demo.patches)], [], ["none"])]
    found = set().union(*(key_paths(run.json) for run in runs))
    assert found == documented_keys("All commands", "Keys of allow") - {
        key for key in documented_keys("All commands") if key.startswith("target.")
    }
    assert invoke("allow", "--revoke", str(demo.patches), "--json").json["allowed"] == [
        {"folder": str(demo.patches / "p"), "state": "revoked"}
    ]


def test_wrong_usage_prints_no_json(demo: Bench):
    outcome = demo.run("revert", "--json")
    assert (outcome.code, outcome.out) == (2, "")


def test_words_of_checks_are_the_documented_ones():
    (rows,) = [t for t in tables(page("json.md")) if code(t[0][0]) == ["checks[].patch"]]
    words = {code(row[0])[0]: code(row[2]) for row in rows}
    assert tuple(words["checks[].name"]) == checks.NAMES[1:]
    assert words["checks[].outcome"] == [results.PASSED, results.FAILED, results.SKIPPED]
    proofs = [results.PROVEN, results.NO_LONGER_NEEDED, results.UNPROVEN, results.BROKEN]
    assert words["checks[].proof"] == ["--prove", *proofs]


def test_states_are_the_documented_ones():
    (rows,) = [t for t in tables(page("json.md")) if t[0][0] == "`list`"]
    states = {code(row[0])[0]: set(code(row[1])) - {"--dry-run"} for row in rows}
    recorded = {plan.APPLIED, plan.NOT_APPLIED, plan.DRIFTED, plan.UPGRADED, plan.GONE}
    assert states["list"] == {results.FITS, results.DOES_NOT_FIT}
    assert states["status"] == recorded | {results.DOES_NOT_FIT, results.CONFLICT, plan.FAULTY}
    assert states["verify"] == recorded | {plan.FAULTY}
    done = {plan.APPLIED, applying.REPLACED}
    assert states["apply"] == done | {f"would be {state}" for state in done} | {"already applied"}
    (concepts,) = [t for t in tables(page("concepts.md")) if t[0][0] == "`applied`"]
    assert {code(row[0])[0] for row in concepts} == states["status"] | states["verify"]


# docs/troubleshooting.md


def test_quoted_messages_are_in_the_code():
    texts = []
    for file in (ROOT / "patchkit").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    messages = [code(row[0])[0] for t in tables(page("troubleshooting.md")) for row in t]
    pieces = [p.strip(" .:;,()") for message in messages for p in message.split("…")]
    unknown = [p for p in pieces if len(p) > 3 and not any(p in text for text in texts)]
    assert messages
    assert not unknown


# docs/guarantees.md


def test_every_test_that_shows_a_guarantee_exists():
    named = re.findall(r"`(tests/[^`:]+)::(\w+)`", page("guarantees.md"))
    missing = [
        f"{file}::{name}"
        for file, name in named
        if f"\ndef {name}(" not in (ROOT / file).read_text("utf-8")
    ]
    assert len(named) > 50
    assert not missing


def test_every_guarantee_is_shown_by_a_test():
    promises = page("guarantees.md").partition("harness figures: end")[2]
    rows = [row for table in tables(promises) for row in table]
    assert len(rows) > 25
    assert [row[0] for row in rows if "::test_" not in row[2]] == []


# docs/architecture.md

MODULES = {p.stem: ast.parse(p.read_text("utf-8")) for p in (ROOT / "patchkit").glob("*.py")}


def imports(node: ast.AST, lazy: bool = False) -> Iterator[tuple[str, bool]]:
    """Give every module imported, and whether only when a function runs; typing-only ones not."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from ((alias.name, lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            names = [child.module or ""]
            if child.module == "patchkit":
                names = [f"patchkit.{alias.name}" for alias in child.names]
            yield from ((name, lazy) for name in names)
        yield from imports(child, lazy or isinstance(child, ast.FunctionDef))


def own_imports(name: str) -> set[str]:
    found = {m.split(".")[1] for m, _ in imports(MODULES[name]) if m.startswith("patchkit.")}
    return found & set(MODULES)


def documented_modules() -> dict[str, str]:
    (rows,) = tables(page("architecture.md"))
    return {code(row[0])[0]: row[2] for row in rows}


def test_every_module_is_on_the_page():
    assert set(documented_modules()) == set(MODULES) - {"__init__", "__main__"}  # one row each


def test_imports_go_one_way():
    order = list(documented_modules())
    upward = {
        (name, other)
        for name in order
        for other in own_imports(name)
        if order.index(other) <= order.index(name)
    }
    assert not upward


def test_pure_modules_do_no_io():
    forbidden = {"os", "pathlib", "subprocess", "shutil", "tempfile", "socket", "fcntl", "glob"}
    calls = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "print", "input"}
    pure = [name for name, kind in documented_modules().items() if kind == "pure"]
    for name in pure:
        assert own_imports(name) <= set(pure), name
        for node in ast.walk(MODULES[name]):
            if isinstance(node, ast.Import):
                assert not {alias.name for alias in node.names} & forbidden, name
            if isinstance(node, ast.ImportFrom) and node.module in forbidden:
                assert {alias.name for alias in node.names} == {"PurePosixPath"}, name
            if isinstance(node, ast.Call):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                assert called not in calls, name


def test_only_the_store_changes_files():
    writing = {"unlink", "rmdir", "mkdir", "write_text", "write_bytes", "symlink", "rename"}
    writing |= {"touch", "chmod", "fchmod", "fchown", "utime", "symlink_to", "hardlink_to"}
    for name, tree in MODULES.items():
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        called = {func.attr for func in calls if isinstance(func, ast.Attribute)}
        writers = ("store", "files", "allowing", "checks", "releases", "cli")
        assert name in writers or not called & writing, name


def test_heavy_imports_are_where_they_belong():
    for name, tree in MODULES.items():
        found = set(imports(tree))
        roots = {(module.partition(".")[0], lazy) for module, lazy in found}
        assert not {root for root, _ in roots} & {"torch", "flashinfer", "sglang", "vllm"}, name
        assert ("libcst", True) not in roots or name in ("source", "codemods"), name
        assert ("libcst", False) not in roots or name == "locate", name
        assert not any(module.startswith("libcst.codemod") for module, _ in found), name
        assert ("patchkit.locate", False) not in set(imports(tree)), name
