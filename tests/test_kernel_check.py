"""What ``verify --gpu`` makes of the kernel probe's answer, and a run where there is no GPU."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path
from typing import Any

import click
import pytest
from packaging.version import Version

from patchkit import checks
from patchkit.checks import KERNEL, Options, Subject, run_checks
from patchkit.environment import Distribution, Target
from patchkit.errors import PatchkitError
from patchkit.probing import ProbeOutcome
from patchkit.report import bench as bench_text
from patchkit.report import table
from patchkit.results import Check, Result, Row
from tests.conftest import PATCH, Bench

WITH_KERNEL = PATCH.replace(
    "\n[[edit]]", 'checks = ["kernel"]\n\n[kernel]\nscenario = "fp4_quantize"\n\n[[edit]]'
)

ANSWER: dict[str, Any] = {
    "schema": 1,
    "gpu": "NVIDIA H200",
    "architecture": "SM90",
    "import_error": "",
    "missing": "",
    "trouble": "",
    "nothing": "",
    "notes": [],
    "groups": [
        {
            "name": "values: 128x4 nvfp4 bfloat16",
            "seconds": 0.5,
            "cases": [{"name": "M1 K16 zero", "problem": ""}, {"name": "M5 K48", "problem": ""}],
        },
        {"name": "opcheck", "seconds": 2, "cases": [{"name": "128x4 nvfp4", "problem": ""}]},
    ],
    "bench": None,
}


def judged(monkeypatch: pytest.MonkeyPatch, site: Path, answer: Any, **options: Any) -> list[Check]:
    """Let the probe answer this, for two patches of one distribution; counts the runs."""
    runs = []

    def run_probe(_python: str, program: str, _argument: Any, **given: Any) -> ProbeOutcome:
        runs.append((program, given["environ"]))
        if isinstance(answer, ProbeOutcome):
            return answer
        return ProbeOutcome(json.loads(json.dumps(answer)), seconds=1.5)

    monkeypatch.setattr(checks, "run_probe", run_probe)
    info = site / "pkg-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "RECORD").write_text("")
    distribution = Distribution("pkg", Version("1.0"), site, info)
    subjects = [
        Subject(name, distribution, (KERNEL,), None, {"pkg/a.cu": b"x"}, {}, kernel="fp4_quantize")
        for name in ("p", "q")
    ]
    target = Target((site,), "folder", "python", is_folder=True)
    found = run_checks(target, subjects, Options(**{"gpu": True, **options}), lambda _: None)
    assert [program for program, _ in runs] == ["kernel_probe.py"] * bool(found)
    return found


def verdict(monkeypatch: pytest.MonkeyPatch, site: Path, **changes: Any) -> Check:
    first, second = judged(monkeypatch, site, {**ANSWER, **changes})
    assert (first.patch, second.patch) == ("p", "q")
    assert (second.outcome, second.detail) == (first.outcome, f"{first.detail} (as for p)")
    assert second.groups == ()
    return first


def test_passed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check = verdict(monkeypatch, tmp_path, notes=["left out: this"])
    assert (check.outcome, check.seconds) == ("passed", 1.5)
    assert check.detail == "3 cases on NVIDIA H200 (SM90); left out: this"
    assert [len(group.cases) for group in check.groups] == [2, 1]


def test_every_case_is_in_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check = verdict(monkeypatch, tmp_path)
    text = table(Result((Row("p", "applied"),), checks=(check,)))
    assert "values: 128x4 nvfp4 bfloat16 (2, 0.5 s): M1 K16 zero, M5 K48" in text
    assert "opcheck (1, 2.0 s): 128x4 nvfp4" in text


def test_a_failed_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    groups = copy.deepcopy(ANSWER["groups"])
    groups[0]["cases"][1]["problem"] = "3 codes are wrong\n::error::x"
    check = verdict(monkeypatch, tmp_path, groups=groups, notes=["a note"])
    assert check.outcome == "failed"
    assert check.detail.startswith("1 of 3 cases failed; first: M5 K48: 3 codes are wrong")
    assert check.detail.endswith("; a note")
    text = click.unstyle(table(Result((Row("p", "applied"),), checks=(check,))))
    (line,) = [line for line in text.splitlines() if line.lstrip().startswith("failed  M5")]
    assert "3 codes are wrong" in line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nothing": "this kernel does nothing on SM90"}, "this kernel does nothing on SM90"),
        ({"trouble": "there is no GPU"}, "there is no GPU"),
        ({"import_error": "OSError: x"}, "no import: OSError: x"),
        (
            {"import_error": "M: y", "missing": "y"},
            "y is not installed here; --python names the interpreter that has it",
        ),
        ({"groups": []}, "0 of 0 cases failed"),
    ],
)
def test_what_could_not_be_run_has_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: Any, words: str
) -> None:
    check = verdict(monkeypatch, tmp_path, **changes)
    assert (check.outcome, check.detail) == ("failed", words)


def test_a_probe_that_dies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check, _ = judged(monkeypatch, tmp_path, ProbeOutcome(error="it died of SIGSEGV", tail="at x"))
    assert (check.outcome, check.tail) == ("failed", "at x")
    assert check.detail == "the kernel probe failed: it died of SIGSEGV"


def damages(value: Any) -> list[Any]:
    """Give copies of a JSON value with one part taken out or made another."""
    if isinstance(value, dict):
        found = [{k: v for k, v in value.items() if k != key} for key in value]
        return found + [{**value, key: d} for key in value for d in damages(value[key])]
    if isinstance(value, list):
        return [[*value[:i], d, *value[i + 1 :]] for i, v in enumerate(value) for d in damages(v)]
    return [3.5] if isinstance(value, str) else ["x"]


def test_a_damaged_answer_never_passes_without_its_cases(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = {"schema", "import_error", "missing", "trouble", "nothing", "gpu", "architecture"}
    for answer in damages({k: v for k, v in ANSWER.items() if k != "schema"}):
        check, _ = judged(monkeypatch, tmp_path, answer)
        assert check.outcome == "failed", answer
        assert "cannot be understood" in check.detail or set(answer) >= known


def test_it_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert judged(monkeypatch, tmp_path, ANSWER, gpu=False) == []
    assert judged(monkeypatch, tmp_path, ANSWER, names=("import",)) == []


def test_bench_is_written_or_says_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured = {"schema": 1, "throughput": []}
    check = verdict(monkeypatch, tmp_path, bench=measured)
    assert json.loads(bench_text(Result((), checks=(check,)))) == measured
    with pytest.raises(PatchkitError, match="nothing was measured"):
        bench_text(Result(()))


def test_an_earlier_bench_is_left_alone_when_nothing_is_measured(demo: Bench) -> None:
    assert demo.run("apply", "p").code == 0
    Path("b.json").write_text("earlier")
    outcome = demo.run("verify", "--gpu", "--bench", "b.json")
    assert outcome.code == 1
    assert "nothing was measured" in outcome.out
    assert Path("b.json").read_text() == "earlier"


def test_a_cache_that_cannot_be_made(demo: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    demo.patch("p", WITH_KERNEL)
    assert demo.run("apply", "p").code == 0
    Path("file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("file").resolve()))
    (check,) = demo.run("verify", "--gpu", "--json").json["checks"]
    assert check["detail"].startswith(f"cannot make {Path('file').resolve()}/patchkit/jit/")
    assert "XDG_CACHE_HOME" in check["detail"]


def test_a_ledger_from_before_the_check(demo: Bench) -> None:
    assert demo.run("apply", "p").code == 0
    file = demo.site / ".patchkit/ledger.json"
    file.write_text(json.dumps(without_kernel(json.loads(file.read_text()))))
    assert demo.run("status", "--json").states["p"] == "applied"


def without_kernel(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {k: without_kernel(v) for k, v in value.items() if k != "kernel"}


def test_modules_are_cached_by_what_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    distribution = Distribution("pkg", Version("1.0"), tmp_path, tmp_path / "pkg-1.0.dist-info")
    subject = Subject("p", distribution, (KERNEL,), None, {"a.cu": b""}, {}, kernel="fp4_quantize")
    folders = []
    for content in ("1", "2", "1"):
        (tmp_path / "a.cu").write_text(content)
        folders.append(checks._jit_cache(distribution, [subject]))
    assert folders[0] == folders[2] != folders[1]
    assert all(folder.parent == tmp_path / "cache/patchkit/jit" for folder in folders)
    (tmp_path / "a.cu").unlink()
    assert checks._jit_cache(distribution, [subject]) not in folders


# On this machine


@pytest.fixture
def applied(demo: Bench) -> Bench:
    demo.patch("p", WITH_KERNEL)
    assert demo.run("apply", "p").code == 0
    return demo


def no_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return not torch.cuda.is_available()


@pytest.mark.skipif(not no_gpu(), reason="needs torch and no GPU")
def test_without_a_gpu_it_fails_and_says_so(applied: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(applied.folder / "cache"))
    before = applied.state()
    outcome = applied.run("verify", "--gpu", "--json")
    (check,) = outcome.json["checks"]
    assert (outcome.code, check["name"], check["outcome"]) == (1, "kernel", "failed")
    assert check["detail"].startswith("there is no GPU that torch can use; run this on")
    assert applied.state() == before
    assert applied.run("verify").code == 0


def test_a_run_that_ran_nothing_on_the_gpu_has_failed(demo: Bench) -> None:
    assert demo.run("apply", "p").code == 0
    outcome = demo.run("verify", "--gpu")
    assert outcome.code == 1
    assert "nothing was run on the GPU: no patch that is as recorded has" in outcome.out


def test_usage(applied: Bench) -> None:
    alone = (["--check", "kernel"], ["--bench", "b.json"])
    against = (["--gpu", "--skip", "kernel"], ["--gpu", "--check", "bytes"])
    timeouts = (["--timeout", "nan"], ["--timeout", "-1"])
    for options in timeouts:
        assert applied.run("verify", *options).code == 2
    for options in (*alone, *against):
        outcome = applied.run("verify", *options)
        assert outcome.code == 2
        assert "--gpu" in outcome.err
    for other in ("b.json", "../cwd/b.json"):
        outcome = applied.run("verify", "--gpu", "--bench", "b.json", "--html", other)
        assert (outcome.code, "the same file" in outcome.err) == (2, True)
    assert "it is a folder" in applied.refuse("verify", "--gpu", "--bench", "").err


def test_the_table_and_the_check_go_together(demo: Bench) -> None:
    demo.patch("p", WITH_KERNEL.replace('checks = ["kernel"]', ""))
    assert "kernel: the table goes with checks = ['kernel']" in demo.refuse("list").err
    demo.patch("p", WITH_KERNEL.replace('"fp4_quantize"', '"other"'))
    assert "kernel.scenario: 'other' is not one of fp4_quantize" in demo.refuse("list").err
