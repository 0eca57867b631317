"""The kernel probe without a GPU: an emulated kernel on the CPU, right and sabotaged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from patchkit.probes import fp4_cases, fp4_reference, kernel_probe
from patchkit.probes.kernel_probe import POISONS, Probe, Trouble

torch = pytest.importorskip("torch")

PARAMETERS = frozenset(
    [
        "input",
        "global_scale",
        "sf_vec_size",
        "sf_use_ue8m0",
        "is_sf_swizzled_layout",
        "is_sf_8x4_layout",
        "is_global_scale_inversed",
        "enable_pdl",
    ]
)
RELEASE = (0, 6, 11)


@pytest.fixture(autouse=True)
def _beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_probe, "fp4_cases", fp4_cases, raising=False)
    monkeypatch.setattr(kernel_probe, "fp4_reference", fp4_reference, raising=False)
    torch.set_num_threads(1)  # small tensors: threads only wait for each other


def emulated(
    input: Any,
    global_scale: Any = None,
    sf_vec_size: int = 16,
    sf_use_ue8m0: bool = False,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
    is_global_scale_inversed: bool = False,
    *,
    change: Callable[[dict[str, Any]], None] = lambda _: None,
) -> tuple[Any, Any]:
    """Give what a right kernel gives, in memory it took from torch; ``change`` spoils it."""
    column_major = input.stride(-2) == 1
    rows = fp4_reference.flat_input(input, column_major)
    codes, scales = fp4_reference.quantize(
        rows,
        global_scale,
        kind="mxfp4" if sf_use_ue8m0 else "nvfp4",
        inverse=is_global_scale_inversed,
    )
    layout = "8x4" if is_sf_8x4_layout else "128x4"
    layout = layout if is_sf_swizzled_layout else "linear"
    made = {"codes": codes, "scales": scales, "layout": layout, "rows": rows, "fill": 0}
    change(made)
    packed = fp4_reference.pack(made["codes"])
    flat = fp4_reference.swizzle(made["scales"], made["layout"], made["fill"])
    *batch, k = (input.mT if column_major else input).shape
    x_q = torch.empty((*batch, k // 2), dtype=torch.uint8)
    sf = torch.empty(flat.shape, dtype=torch.uint8)
    if "keep" not in made:
        x_q.copy_(packed.reshape(x_q.shape))
        sf.copy_(flat)
    if "beyond" in made:
        sf.as_strided((1,), (1,), sf.storage_offset() + len(flat)).fill_(0)
    columns = fp4_reference.round_up(k // sf_vec_size, 1 if layout == "linear" else 4)
    sf = sf.reshape(-1, columns)
    return (x_q.mT, sf.mT) if column_major else (x_q, sf)


def probe_of(function: Any, original: Any = emulated) -> Probe:
    return Probe(torch, function, original, RELEASE, PARAMETERS, device="cpu")


def small_cases() -> list[fp4_cases.Case]:
    """Every group, with its cases that are quick on a CPU."""
    return [c for c in fp4_cases.plan(PARAMETERS, RELEASE) if c.elements <= 10_000]


def problems(probe: Probe) -> list[str]:
    kernel_probe.run_values(probe, small_cases())
    cases = [case for group in probe.groups.values() for case in group["cases"]]
    assert len(cases) > 100
    return [f"{case['name']}: {case['problem']}" for case in cases if case["problem"]]


def spoiled(change: Callable[[dict[str, Any]], None]) -> Any:
    return lambda *args, **options: emulated(*args, **options, change=change)


def test_a_right_kernel_passes():
    assert problems(probe_of(emulated)) == []


def test_groups_name_what_their_cases_share():
    probe = probe_of(emulated)
    kernel_probe.run_values(probe, small_cases())
    assert "values: 8x4 mxfp4 float16 column-major" in probe.groups
    assert len(probe.groups) == 36
    for group in probe.groups.values():
        names = [case["name"] for case in group["cases"]]
        assert len(names) == len(set(names))


def swap_nibbles(made: dict[str, Any]) -> None:
    made["codes"] = made["codes"].unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def swap_layouts(made: dict[str, Any]) -> None:
    # The tiles of 8 rows, where tiles of 128 are due.
    if made["layout"] == "128x4":
        padding = -len(made["scales"]) % 128
        made["scales"] = torch.nn.functional.pad(made["scales"], (0, 0, 0, padding))
        made["layout"] = "8x4"


def fill_padding(made: dict[str, Any]) -> None:
    made["fill"] = 1


def off_by_one_scale(made: dict[str, Any]) -> None:
    made["scales"] = (made["scales"] + 1).clamp(max=0x7E)


def one_code_wrong(made: dict[str, Any]) -> None:
    made["codes"][-1, -1] ^= 1


SABOTAGE = {
    "swapped nibbles": (swap_nibbles, "codes and"),
    "8x4 offsets for 128x4": (swap_layouts, "scales are wrong"),
    "padding not zeroed": (fill_padding, "padding bytes of the scales are not zero"),
    "scales off by one": (off_by_one_scale, "scales are wrong"),
    "the last code": (one_code_wrong, "codes and"),
    "a byte beyond": (lambda made: made.update(beyond=1), "beside an output"),
    "nothing written": (lambda made: made.update(keep=1), "were never written"),
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_sabotage_is_caught(name: str):
    change, words = SABOTAGE[name]
    wrong = spoiled(change)
    found = problems(probe_of(wrong, wrong))  # the library itself is wrong
    assert any(words in problem for problem in found), found[:3]


def test_a_patch_that_changes_bytes_is_caught():
    def change(made: dict[str, Any]) -> None:
        made["codes"][0, 0] ^= 8  # the sign of a zero: no matter for the reference's rounding

    found = problems(probe_of(spoiled(change)))
    assert any("bytes of codes differ from the original's, first at 0: " in p for p in found)


def test_a_call_that_must_raise():
    def raising(words: str) -> Any:
        def function(*_args: Any, **_options: Any) -> Any:
            raise RuntimeError(words)

        return function

    case = fp4_cases.Case(
        "128x4", "nvfp4", "bfloat16", False, (), 32, 48, "normal", "given", 0, True
    )
    check = kernel_probe.check_values
    assert check(probe_of(raising("a"), raising("a")), case) == ""
    assert check(probe_of(raising("a"), raising("b")), case) == (
        "fails with RuntimeError: a, the original with RuntimeError: b"
    )
    assert check(probe_of(emulated), case) == "it did not fail"


def test_nothing_written():
    def nothing(made: dict[str, Any]) -> None:
        made["keep"] = 1

    assert kernel_probe.nothing_written(probe_of(None, spoiled(nothing)))
    assert not kernel_probe.nothing_written(probe_of(None, emulated))


def test_poisons_share_no_byte():
    assert POISONS[0] ^ POISONS[1] == 0xFF


def test_memory_that_torch_does_not_give_is_poisoned_too():
    """Outputs taken past the dispatcher have no guards, but still show what is not written."""
    probe = probe_of(emulated)
    kernel_probe.spoil(probe, (64,), 0xA5)
    with kernel_probe.guarded(probe, 0xA5) as slabs:
        torch.empty(8, dtype=torch.float16)
        torch.zeros(8, dtype=torch.uint8)
    assert next(size for _, size in slabs) == 16
    assert bool((slabs[0][0] == 0xA5).all())


def test_running_out_of_memory_leaves_out_larger_cases():
    def hungry(input: Any, *args: Any, **options: Any) -> Any:
        if input.numel() > 4_000:
            raise torch.OutOfMemoryError("no more")
        return emulated(input, *args, **options)

    probe = probe_of(hungry)
    kernel_probe.run_values(probe, sorted(small_cases(), key=lambda case: -case.elements))
    assert probe.notes
    assert probe.notes[0].startswith("out of GPU memory at ")
    ran = [case for group in probe.groups.values() for case in group["cases"]]
    assert ran
    assert not any(case["problem"] for case in ran)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no more"), RuntimeError("CUDA error: out of memory\nSee")]
)
def test_where_memory_ran_out_a_case_is_tried_once_more(error: Exception):
    def failing(times: int) -> Any:
        left = iter([error] * times)

        def check(_probe: Any) -> str:
            if found := next(left, None):
                raise found
            return ""

        return check

    probe = probe_of(emulated)
    assert probe.attempt("group", "first", failing(1)) == ""
    with pytest.raises(kernel_probe.Trouble, match="no memory left for second; free some"):
        probe.attempt("group", "second", failing(2))
    assert [case["name"] for case in probe.groups["group"]["cases"]] == ["first"]


def test_a_full_gpu_is_not_taken_for_a_failed_build():
    def function(x: Any, scale: Any) -> Any:
        raise RuntimeError("CUDA error: out of memory")

    with pytest.raises(kernel_probe.Trouble, match="the GPU has no memory left; free some"):
        kernel_probe.start(probe_of(function))


def test_a_kernel_that_is_mostly_wrong_is_not_compiled():
    probe = probe_of(spoiled(swap_nibbles), spoiled(swap_nibbles))
    problems(probe)
    assert kernel_probe.mostly_wrong(probe)
    probe = probe_of(emulated)
    problems(probe)
    assert not kernel_probe.mostly_wrong(probe)


# First calls and the machine


def test_the_first_call_comes_from_many_threads():
    seen = set()

    def function(x: Any, scale: Any) -> Any:
        import threading

        seen.add(threading.get_ident())
        return emulated(x, scale)

    probe = probe_of(function)
    kernel_probe.start(probe)
    assert len(seen) == 8
    assert probe.groups["first call"]["cases"] == [{"name": "8 threads at once", "problem": ""}]


def test_a_build_that_fails_shows_the_compilers_words(nvcc: Callable[[str], Path]):
    nvcc("13.0")

    def function(*_: Any) -> Any:
        raise RuntimeError(
            "Ninja build failed:\n[1/2] nvcc a.cu\na.cu(7): error: no x here\n1 more"
        )

    with pytest.raises(Trouble, match=r"built with nvcc 13\.0: a\.cu\(7\): error: no x here$"):
        kernel_probe.start(probe_of(function))


def test_a_first_call_that_works_alone_only():
    calls = []

    def function(x: Any, scale: Any) -> Any:
        calls.append(1)
        if len(calls) <= 3:
            raise RuntimeError("two builds at once")
        return emulated(x, scale)

    probe = probe_of(function)
    kernel_probe.start(probe)
    (case,) = probe.groups["first call"]["cases"]
    assert case["problem"] == "RuntimeError: two builds at once"


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put a program on PATH that answers like nvcc of some version; nothing else is there."""
    for name in ("FLASHINFER_NVCC", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)

    def make(version: str) -> Path:
        program = tmp_path / "bin/nvcc"
        program.parent.mkdir(exist_ok=True)
        text = f"Cuda compilation tools, release {version}, V{version}.88"
        program.write_text(f"#!{sys.executable}\nprint({text!r})\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))
        return program

    return make


def test_version_of_nvcc(nvcc: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch):
    program = nvcc("12.9")
    assert kernel_probe.nvcc() == str(program)
    assert kernel_probe.nvcc_version() == (12, 9)
    monkeypatch.setenv("CUDA_HOME", str(program.parents[1] / "none"))
    assert kernel_probe.nvcc_version() == (12, 9)


class Gpu(Probe):
    """A probe of a GPU that is not there."""

    capability = (9, 0)

    @property
    def architecture(self) -> str:
        return "SM{}{}".format(*self.capability)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], Gpu]:
    def make(major: int, minor: int) -> Gpu:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (major, minor))
        found = Gpu(torch, emulated, emulated, RELEASE, PARAMETERS)
        found.capability = (major, minor)
        return found

    return make


def test_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: Callable[[int, int], Gpu]
):
    for name in ("FLASHINFER_NVCC", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    if Path("/usr/local/cuda/bin/nvcc").exists():
        pytest.skip("there is an nvcc in /usr/local/cuda")
    with pytest.raises(Trouble, match=r"no nvcc to build the kernel with .* set CUDA_HOME"):
        kernel_probe.check_surroundings(gpu(9, 0))


def test_a_compiler_that_is_too_old(nvcc: Callable[[str], Path], gpu: Callable[[int, int], Gpu]):
    nvcc("12.4")
    with pytest.raises(Trouble, match=r"nvcc 12\.4 does not know SM100; it needs 12\.8 or later"):
        kernel_probe.check_surroundings(gpu(10, 0))
    kernel_probe.check_surroundings(gpu(9, 0))


def test_a_toolkit_that_does_not_fit_is_noted(
    nvcc: Callable[[str], Path],
    gpu: Callable[[int, int], Gpu],
    monkeypatch: pytest.MonkeyPatch,
):
    nvcc("12.9")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    probe = gpu(9, 0)
    kernel_probe.check_surroundings(probe)
    assert probe.notes == ["toolkit mismatch: nvcc 12.9, torch for 13"]


# Compiled calls, as far as they need no GPU


def test_styles_are_those_of_the_plan():
    styles = kernel_probe.styles_of(fp4_cases.plan(PARAMETERS, RELEASE))
    assert len(styles) == 12
    assert styles[0].name == "128x4 nvfp4"
    assert kernel_probe.Style("8x4", "mxfp4", True).name == "8x4 mxfp4 column-major"


def test_tensors_that_differ():
    one = torch.arange(6, dtype=torch.uint8).reshape(2, 3)
    assert kernel_probe.same_tensors((one,), (one.clone(),)) == ""
    assert "other bytes" in kernel_probe.same_tensors((one,), (one + 1,))
    assert "eager gives ((2, 3), (1, 2)" in kernel_probe.same_tensors(
        (one,), (one.mT.contiguous().mT,)
    )


def test_only_patchkits_wrapper_is_taken_off():
    def wrapped(function: Any) -> Any:
        call_operator = function

        def inner() -> Any:
            return call_operator

        inner.__wrapped__ = function  # type: ignore[attr-defined]
        return inner

    def original() -> None:
        """Wrapped twice."""

    other = wrapped(original)
    assert kernel_probe.original_of(other) is original
    assert kernel_probe.original_of(original) is original
