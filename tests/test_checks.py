"""Checks on made-up distributions: overlays, imports, and what is made of a trace."""

from __future__ import annotations

import importlib._bootstrap_external as bootstrap
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from patchkit import checks
from patchkit.checks import Options, Subject, overlay, run_checks
from patchkit.environment import Distribution, Target
from patchkit.manifest import MOVES_ON, ONE_OPERATOR, Trace
from patchkit.probing import ProbeOutcome
from patchkit.results import Check
from tests.conftest import PATCH, Bench, Outcome, tree

CHECKED = PATCH.replace('versions = ">=1.0,<2"', 'versions = ">=1.0,<2"\nchecks = ["import"]')


@pytest.fixture(autouse=True)
def _no_folder_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    yield
    assert list(scratch.iterdir()) == []


# overlays


@pytest.fixture
def installed(bench: Bench) -> Distribution:
    bench.install(
        {
            "pkg/__init__.py": b"from pkg.a import x\n",
            "pkg/a.py": b"x = 1\n",
            "pkg/data/table.txt": b"1 2 3",
            "pkg/sub/__init__.py": b"",
            "pkg/sub/deep/__init__.py": b"",
            "pkg/sub/deep/b.py": b"y = 1\n",
            "pkg/sub/deep/c.py": b"z = 1\n",
            "other/__init__.py": b"",
            "single.py": b"s = 1\n",
        },
        name="pkg",
    )
    for folder in ("pkg", "pkg/sub/deep"):
        (bench.site / folder / "__pycache__").mkdir()
        (bench.site / folder / "__pycache__/a.cpython-311.pyc").write_bytes(b"old")
    info = bench.site / "pkg-1.0.dist-info"
    return Distribution("pkg", Version("1.0"), bench.site, info)


def loaded(folder: Path, expression: str, *, then: Path | None = None) -> str:
    """Evaluate in a fresh interpreter that looks into these folders first."""
    code = f"import sys; sys.path[:0] = {[str(folder), str(then or folder)]!r}; {expression}"
    command = [sys.executable, "-B", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_overlay_has_other_bytes_and_links_the_rest(installed: Distribution) -> None:
    site = installed.site_packages
    before = tree(site)
    with overlay(installed, {"pkg/sub/deep/b.py": b"y = 2\n"}) as folder:
        assert folder.resolve() != site.resolve()
        assert (folder / "pkg/sub/deep/b.py").read_bytes() == b"y = 2\n"
        real = [p for p in folder.rglob("*") if not p.is_symlink()]
        assert sorted(p.relative_to(folder).as_posix() for p in real) == [
            "pkg",
            "pkg/sub",
            "pkg/sub/deep",
            "pkg/sub/deep/b.py",
        ]
        for link in ("pkg/a.py", "pkg/data", "pkg/sub/deep/c.py", "pkg/__init__.py"):
            assert (folder / link).is_symlink()
            assert (folder / link).samefile(site / link)
        assert not (folder / "other").exists()
        assert list(folder.rglob("__pycache__")) == []
        found = loaded(
            folder, "import pkg.sub.deep.b as b, pkg; print(b.y, pkg.x, b.__file__)", then=site
        )
        assert found == f"2 1 {folder}/pkg/sub/deep/b.py"
    assert not folder.exists()
    assert tree(site) == before


def test_overlay_without_a_file_and_with_one_more(installed: Distribution) -> None:
    site = installed.site_packages
    before = tree(site)
    changes = {"pkg/a.py": None, "pkg/new/more.py": b"n = 1\n", "pkg/__init__.py": b""}
    with overlay(installed, changes) as folder:
        assert not (folder / "pkg/a.py").exists()
        assert (folder / "pkg/new/more.py").read_bytes() == b"n = 1\n"
        code = "import importlib.util as u, pkg.new.more as m; print(m.n, u.find_spec('pkg.a'))"
        assert loaded(folder, code, then=site) == "1 None"
    assert tree(site) == before


def test_overlay_of_single_modules_and_nothing(installed: Distribution) -> None:
    with overlay(installed, {"single.py": b"s = 2\n"}) as folder:
        assert [p.name for p in folder.iterdir()] == ["single.py"]
        assert loaded(folder, "import single; print(single.s)") == "2"
    with overlay(installed, {}) as folder:
        assert list(folder.iterdir()) == []


def test_overlay_of_a_linked_target_leaves_what_is_linked_alone(
    installed: Distribution, tmp_path: Path
) -> None:
    site = installed.site_packages
    cache = tmp_path / "cache.py"
    (site / "pkg/a.py").rename(cache)
    (site / "pkg/a.py").symlink_to(cache)
    with overlay(installed, {"pkg/a.py": b"x = 2\n"}) as folder:
        assert (folder / "pkg/a.py").read_bytes() == b"x = 2\n"
        assert not (folder / "pkg/a.py").is_symlink()
    assert cache.read_bytes() == b"x = 1\n"


def test_overlay_goes_when_its_user_fails(installed: Distribution) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        overlay(installed, {"pkg/a.py": b""}) as folder,
    ):
        raise ZeroDivisionError
    assert not folder.exists()
    assert (installed.site_packages / "pkg/a.py").exists()


# imports


@pytest.fixture
def checked(bench: Bench) -> Callable[..., Outcome]:
    """Install files and apply a patch for demo_pkg/a.py; then verify, with nothing written."""

    def run(files: Mapping[str, bytes], edit: str = "return -1", *options: str) -> Outcome:
        bench.install({"demo_pkg/__init__.py": b"", **files})
        bench.patch("p", CHECKED.replace("return -1", edit))
        applied = bench.run("apply", "p")
        assert applied.code == 0, applied
        return verify(bench, *options)

    return run


def verify(bench: Bench, *options: str) -> Outcome:
    before = bench.state()
    outcome = bench.run("verify", "--json", *options)
    assert bench.state() == before
    return outcome


def check_of(outcome: Outcome) -> dict[str, Any]:
    (check,) = outcome.json["checks"]
    assert (check["patch"], check["name"]) == ("p", "import")
    return check


ENC = b"def enc(x):\n    if x is None:\n        return 0\n    return x\n"


def test_a_patched_module_that_imports(checked: Callable[..., Outcome]) -> None:
    outcome = checked({"demo_pkg/a.py": ENC})
    check = check_of(outcome)
    assert (outcome.code, check["outcome"], check["tail"]) == (0, "passed", "")
    assert check["detail"].startswith("demo_pkg.a; ")


def test_asserts_do_not_matter(checked: Callable[..., Outcome]) -> None:
    """Bytecode of -O and -OO differs; each is compared with its own."""
    code = b'"""About."""\nassert True\n' + ENC.replace(b":\n", b':\n    "Doc."\n    assert 1\n', 1)
    assert check_of(checked({"demo_pkg/a.py": code}))["outcome"] == "passed"


@pytest.mark.parametrize("optimize", ["", "1", "2"])
def test_stale_bytecode_is_found(checked: Callable[..., Outcome], bench: Bench, optimize: str):
    """An unchecked-hash cache outlives any rewrite: the file is right, another code runs."""
    assert checked({"demo_pkg/a.py": ENC}).code == 0
    source = bench.site / "demo_pkg/a.py"
    stale = compile(ENC, str(source), "exec", dont_inherit=True, optimize=int(optimize or 0))
    data = bootstrap._code_to_hash_pyc(stale, importlib.util.source_hash(ENC), checked=False)
    cached = Path(importlib.util.cache_from_source(str(source), optimization=optimize))
    cached.parent.mkdir(exist_ok=True)
    cached.write_bytes(data)
    (row,) = verify(bench).json["patches"]
    assert row["state"] == "faulty"  # the bytes already say so

    target = Target((bench.site,), "folder", sys.executable, is_folder=True)
    info = bench.site / "demo_pkg-1.0.dist-info"
    distribution = Distribution("demo-pkg", Version("1.0"), bench.site, info)
    patched = {"demo_pkg/a.py": source.read_bytes()}
    subject = Subject("p", distribution, ("import",), None, patched, {"demo_pkg/a.py": ENC})
    (check,) = run_checks(target, [subject], Options(), lambda _: None)
    assert check.outcome == "failed"
    assert "its cached bytecode is not the code in" in check.detail


def test_a_missing_dependency_is_a_reason_to_skip(checked: Callable[..., Outcome]) -> None:
    code = b"import no_such_module.inner\n" + ENC
    outcome = checked({"demo_pkg/a.py": code})
    check = check_of(outcome)
    assert (outcome.code, check["outcome"]) == (0, "skipped")
    assert check["detail"] == "no_such_module is not installed here"


def test_skipped_is_failed_when_strict(checked: Callable[..., Outcome]) -> None:
    code = b"import no_such_module.inner\n" + ENC
    assert checked({"demo_pkg/a.py": code}, "return -1", "--strict").code == 1


def test_a_module_of_its_own_that_is_missing(checked: Callable[..., Outcome]) -> None:
    code = b"import demo_pkg.not_built\n" + ENC
    check = check_of(checked({"demo_pkg/a.py": code}))
    assert check["outcome"] == "skipped"
    assert check["detail"].startswith("does not import here, unpatched either: ")
    assert "demo_pkg.not_built" in check["detail"]


def test_a_library_that_does_not_import_unpatched_either(checked: Callable[..., Outcome]) -> None:
    init = b"import os\nraise OSError('libcuda.so.1 is not there, for ' + __file__)\n"
    check = check_of(checked({"demo_pkg/__init__.py": init, "demo_pkg/a.py": ENC}))
    assert check["outcome"] == "skipped"
    assert "libcuda.so.1 is not there" in check["detail"]


@pytest.mark.parametrize(
    ("edit", "error"),
    [
        ("return -1\\nprint(1 / 0)", "ZeroDivisionError: "),
        ("return -1\\nimport no_such_module", "ModuleNotFoundError: "),
        ("return -1\\nraise SystemExit(0)", "SystemExit: 0"),
    ],
)
def test_a_patch_that_breaks_the_import(bench: Bench, edit: str, error: str) -> None:
    outcome = broken(bench, edit)
    check = check_of(outcome)
    assert (outcome.code, check["outcome"]) == (1, "failed")
    assert error in check["detail"]


@pytest.mark.parametrize(
    ("edit", "error", "tail"),
    [
        (
            "return -1\\nimport os; print('bye', flush=True); os._exit(0)",
            "without an answer",
            "bye",
        ),
        ("return -1\\nimport ctypes; ctypes.string_at(0)", "it died of SIGSEGV", "string_at"),
        ("return -1\\nwhile True: pass", "it was still running after 2 s", ""),
        (
            "return -1\\nimport json; json.dumps.__code__ = (lambda x: '{}').__code__",
            "cannot be understood",
            "",
        ),
    ],
)
def test_a_patch_that_breaks_the_probe(bench: Bench, edit: str, error: str, tail: str) -> None:
    outcome = broken(bench, edit, "--timeout", "2" if "while" in edit else "60")
    check = check_of(outcome)
    assert (outcome.code, check["outcome"]) == (1, "failed")
    assert error in check["detail"]
    assert tail in check["tail"]


def broken(bench: Bench, edit: str, *options: str) -> Outcome:
    bench.install({"demo_pkg/__init__.py": b"", "demo_pkg/a.py": b"def enc(x): pass\nOLD = 0\n"})
    toml = CHECKED.replace('inside = "enc", ', "").replace("return 0", "OLD = 0")
    bench.patch("p", toml.replace("return -1", edit.removeprefix("return -1\\n")))
    applied = bench.run("apply", "p")
    assert applied.code == 0, applied
    return verify(bench, *options)


# what is made of a trace

BARRIER = {
    "kind": "Unsupported",
    "text": "no\n from user code ...",
    "first_line": "no",
    "file": "subprocess.py",
    "function": "run",
    "line": "Popen()",
    "through": ["fp4_quantize (flashinfer/fp4.py)", "run (subprocess.py)"],
}


def traced(error: Mapping[str, Any] | None = None, *problems: str, archs: int = 1) -> dict:
    capture = {"error": error, "graphs": 0 if error else 1, "operators": [] if error else ["ns.op"]}
    run = {"architecture": "9.0", "capture": capture, "cases": 3, "problems": list(problems)}
    return {"schema": 1, "import_error": "", "missing": "", "runs": [run] * archs}


def unimportable(error: str, missing: str = "") -> dict:
    return {"schema": 1, "import_error": error, "missing": missing, "runs": []}


def judged(
    monkeypatch: pytest.MonkeyPatch,
    installed: Distribution,
    patched: object,
    pristine: object = None,
    *,
    gives: str = ONE_OPERATOR,
    prove: bool = True,
) -> Check:
    """Let the probe answer this for the patched and that for the pristine source."""

    def run_probe(_python: str, _program: str, argument: Any, **_: Any) -> ProbeOutcome:
        answer = pristine if "overlay" in argument["prepend"][0] else patched
        if isinstance(answer, ProbeOutcome):
            return answer
        return ProbeOutcome(json.loads(json.dumps(answer)))

    monkeypatch.setattr(checks, "run_probe", run_probe)
    site = installed.site_packages
    target = Target((site,), "folder", "python", is_folder=True)
    trace = Trace("fp4_quantize", gives, "Unsupported", "fp4_quantize")
    subject = Subject(
        "p", installed, ("trace",), trace, {"pkg/a.py": b"x = 2\n"}, {"pkg/a.py": b"x = 1\n"}
    )
    options = Options(architectures=("9.0",), prove=prove)
    (check,) = run_checks(target, [subject], options, lambda _: None)
    return check


ELSEWHERE = {**BARRIER, "through": ["other (flashinfer/fp4.py)"]}
DEAD = ProbeOutcome(error="it died of SIGSEGV", tail="in string_at")

VERDICTS = [
    # patched, pristine, gives, outcome, proof, words
    (traced(), traced(BARRIER), ONE_OPERATOR, "passed", "proven", "subprocess.py"),
    (traced(BARRIER), traced(BARRIER), ONE_OPERATOR, "failed", "broken", "subprocess.py"),
    (traced(None, "plain: x"), traced(BARRIER), ONE_OPERATOR, "failed", "broken", "plain: x"),
    (traced(ELSEWHERE), traced(BARRIER), MOVES_ON, "passed", "proven", "subprocess.py"),
    (traced(), traced(BARRIER), MOVES_ON, "passed", "proven", "capture passes"),
    (traced(BARRIER), traced(BARRIER), MOVES_ON, "failed", "broken", "still stops"),
    (traced(), traced(), ONE_OPERATOR, "passed", "no longer needed", "passes"),
    (DEAD, traced(BARRIER), ONE_OPERATOR, "failed", "broken", "it died of SIGSEGV"),
    (traced(), DEAD, ONE_OPERATOR, "skipped", "", "it died of SIGSEGV"),
    (unimportable("E: x"), unimportable("E: x"), ONE_OPERATOR, "skipped", "", "E: x"),
    (unimportable("E: x"), traced(BARRIER), ONE_OPERATOR, "failed", "broken", "E: x"),
    (unimportable("M: y", "y"), unimportable("M: y", "y"), ONE_OPERATOR, "skipped", "", "y is not"),
    (unimportable("M: y", "y"), traced(BARRIER), ONE_OPERATOR, "failed", "broken", "M: y"),
]


@pytest.mark.parametrize(("patched", "pristine", "gives", "outcome", "proof", "words"), VERDICTS)
def test_proof(
    monkeypatch: pytest.MonkeyPatch,
    installed: Distribution,
    patched: object,
    pristine: object,
    gives: str,
    outcome: str,
    proof: str,
    words: str,
) -> None:
    check = judged(monkeypatch, installed, patched, pristine, gives=gives)
    assert (check.outcome, check.proof) == (outcome, proof), check
    assert words in check.detail
    without = judged(monkeypatch, installed, patched, pristine, gives=gives, prove=False)
    assert without.proof == ""
    if pristine is not DEAD:
        assert without.outcome == outcome


def test_a_failed_trace_has_its_chain_of_calls(
    monkeypatch: pytest.MonkeyPatch, installed: Distribution
) -> None:
    check = judged(monkeypatch, installed, traced(BARRIER), prove=False)
    assert check.chain == ("fp4_quantize (flashinfer/fp4.py)", "run (subprocess.py)")


def damaged() -> Iterator[object]:
    """Answers that a probe would not give, one for each value of a right one."""
    for error in (None, BARRIER):
        right = traced(error, "a problem")
        for path in paths(right):
            for value in (None, 3, "x", [], {}, [3]):
                answer = json.loads(json.dumps(right))
                place = answer
                for key in path[:-1]:
                    place = place[key]
                if place[path[-1]] != value:
                    place[path[-1]] = value
                    yield answer
                    del place[path[-1]]
                    yield answer


def paths(value: object, before: tuple = ()) -> Iterator[tuple]:
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in items:
        yield (*before, key)
        yield from paths(inner, (*before, key))


def test_a_damaged_answer_never_passes_and_never_raises(
    monkeypatch: pytest.MonkeyPatch, installed: Distribution
) -> None:
    for answer in damaged():
        for gives in (ONE_OPERATOR, MOVES_ON):
            check = judged(monkeypatch, installed, answer, answer, gives=gives)
            assert check.outcome in ("passed", "failed", "skipped")
            if not isinstance(answer.get("runs"), list) or not answer["runs"]:
                assert check.outcome != "passed"


def test_no_interpreter(installed: Distribution) -> None:
    trace = Trace("fp4_quantize", ONE_OPERATOR, "Unsupported", "fp4_quantize")
    subject = Subject("p", installed, ("import", "trace"), trace, {"pkg/a.py": b""}, {})
    target = Target((installed.site_packages,), "folder", None, is_folder=True)
    found = run_checks(target, [subject], Options(), lambda _: None)
    assert [c.name for c in found] == ["import", "trace"]
    assert all("there is no interpreter to run it in" in c.detail for c in found)
    assert all(c.outcome == "failed" for c in found)
