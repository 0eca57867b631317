"""Compile ``flashinfer.fp4_quantize`` for a simulated GPU and compare the graph with the truth.

A stand-alone program for the target interpreter; needs no GPU, no nvcc and no CUDA build of torch::

    python trace_program.py --capability 10.0 --cuda 13.0

It makes the host look like one with such a GPU, compiles with ``fullgraph=True`` on fake CUDA
tensors and a backend that stops after capture, and prints one JSON document between two marker
lines: the first error when capture fails (``capture.error``), else whether every case gave one
graph with one operator and the shapes, dtypes and strides that the installed release really
returns. What is expected is written here from measurements of the releases, not from any fake.

The caller sets ``TORCHINDUCTOR_CACHE_DIR`` to a fresh folder. Exit code 0 when all is as expected,
1 when not, 2 when the program itself could not run.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import inspect
import json
import os
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

BEGIN = "-----BEGIN PATCHKIT RESULT-----"
END = "-----END PATCHKIT RESULT-----"


# --- a host with a GPU, simulated -----------------------------------------------------------


def simulate_gpu(capability: tuple[int, int], cuda: str) -> Any:
    """Make torch answer as on a host with one such GPU; returns torch. Before FlashInfer's import.

    ``torch.cuda.is_available()`` stays False, so that nothing initialises a driver.
    """
    major, minor = capability
    suffix = "a" if major >= 9 else ""
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = f"{major}.{minor}{suffix}"
    import torch

    torch.version.cuda = cuda
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda device=None: capability
    torch.cuda.get_device_name = lambda device=None: f"simulated SM{major}{minor}"
    return torch


# --- what is true, release by release -------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One call: the input's shape, its layout and dtype, and the keyword arguments."""

    name: str
    shape: tuple[int, ...]
    column_major: bool = False
    dtype: str = "bfloat16"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """What one returned tensor looks like."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str = "torch.uint8"
    device: str = "cuda"


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def rows_first(shape: tuple[int, ...]) -> Output:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return Output(shape, tuple(reversed(stride)))


def columns_first(shape: tuple[int, ...]) -> Output:
    """Return a transposed view, in its last two dimensions, of rows-first memory."""
    base = rows_first((*shape[:-2], shape[-1], shape[-2]))
    stride = (*base.stride[:-2], base.stride[-1], base.stride[-2])
    return Output(shape, stride)


def expected(case: Case, release: tuple[int, ...]) -> tuple[Output, Output] | str:
    """Return x_q and sf as the release returns them, or the text of the error it raises."""
    options = case.options
    vec = options.get("sf_vec_size", 16)
    if options.get("backend") == "cute-dsl":
        return expected_cute(case, release, vec)
    *batch, a, b = case.shape
    m, k = (b, a) if case.column_major else (a, b)
    rows = m
    for size in batch:
        rows *= size
    scales = expected_scales(rows, k // vec, options, padded=release >= (0, 6, 8))
    if isinstance(scales, str):
        return scales
    if case.column_major:
        return columns_first((*batch, k // 2, m)), columns_first((scales[1], scales[0]))
    return rows_first((*batch, m, k // 2)), rows_first(scales)


def expected_scales(
    m: int, c: int, options: dict[str, Any], *, padded: bool
) -> tuple[int, int] | str:
    if not options.get("is_sf_swizzled_layout", True):
        return m, c
    rows = round_up(m, 8 if options.get("is_sf_8x4_layout") else 128)
    columns = round_up(c, 4)
    if padded:
        return rows, columns
    if rows * columns % c:
        return f"shape '[-1, {c}]' is invalid for input of size {rows * columns}"
    return rows * columns // c, c


def expected_cute(case: Case, release: tuple[int, ...], vec: int) -> tuple[Output, Output] | str:
    """The CuTe-DSL kernels flatten batches and ignore strides."""
    *batch, k = case.shape
    m = 1
    for size in batch:
        m *= size
    options = case.options
    eight = options.get("is_sf_8x4_layout") and options.get("is_sf_swizzled_layout", True)
    if vec == 32:
        if eight and release < (0, 6, 12):
            return "CuTe-DSL MXFP4 kernel does not support 8x4 layout."
        scales = expected_scales(m, k // vec, options, padded=release >= (0, 6, 16))
    else:
        # Large inputs went through TMA, which pads 8x4 to 16 rows: by default up to 0.6.15.
        large = m >= 1024 and k % 512 == 0 and m.bit_length() + k.bit_length() - 2 >= 25
        if eight and large and release < (0, 6, 16):
            m_padded = round_up(m, 16)
            return rows_first((m, k // 2)), rows_first((m_padded, round_up(k // vec, 4)))
        scales = expected_scales(m, k // vec, options, padded=True)
    return scales if isinstance(scales, str) else (rows_first((m, k // 2)), rows_first(scales))


def all_cases() -> Iterator[Case]:
    linear = {"is_sf_swizzled_layout": False}
    eight = {"is_sf_8x4_layout": True}
    mx = {"sf_vec_size": 32, "sf_use_ue8m0": True}
    yield Case("plain", (130, 256))
    yield Case("one row", (1, 64))
    yield Case("no row", (0, 64))
    yield Case("scale columns that need padding", (300, 96))
    yield Case("scales that the old view does not divide", (32, 48))
    yield Case("float16", (130, 256), dtype="float16")
    yield Case("float8", (130, 256), dtype="float8_e4m3fn")
    yield Case("batch", (2, 65, 128))
    yield Case("two batch dimensions", (2, 3, 5, 64))
    yield Case("linear", (130, 256), options=linear)
    yield Case("linear, 3 scales a row", (5, 48), options=linear)
    yield Case("8x4", (9, 128), options=eight)
    yield Case("8x4, 6 scales a row", (3, 96), options=eight)
    yield Case("column-major", (256, 130), column_major=True)
    yield Case("column-major, 6 scales a row", (96, 300), column_major=True)
    yield Case("column-major batch", (3, 128, 50), column_major=True)
    yield Case("column-major linear", (256, 130), column_major=True, options=linear)
    yield Case("column-major 8x4", (128, 9), column_major=True, options=eight)
    yield Case("mxfp4", (130, 256), options=mx)
    yield Case("mxfp4, 5 scales a row", (130, 160), options=mx)
    yield Case("mxfp4 linear", (7, 160), options={**mx, **linear})
    yield Case("mxfp4 column-major", (256, 130), column_major=True, options=mx)
    yield Case("pdl", (130, 256), options={"enable_pdl": True})
    yield Case("inversed scale", (130, 256), options={"is_global_scale_inversed": True})
    yield Case("no 4over6", (130, 256), options={"nvfp4_4over6": None})
    yield Case("4over6", (130, 256), options={"nvfp4_4over6": "NVFP44Over6Config"})
    for options in ({}, eight, linear):
        yield Case(
            f"batch-invariant {options}", (2, 65, 96), options={"batch_invariant": True, **options}
        )
    yield Case(
        "batch-invariant column-major",
        (256, 130),
        column_major=True,
        options={"batch_invariant": True},
    )
    yield from cute_cases({"backend": "cute-dsl"}, eight, linear, mx)


def cute_cases(cute: Any, eight: Any, linear: Any, mx: Any) -> Iterator[Case]:
    yield Case("cute", (2, 65, 128), options=cute)
    yield Case("cute, columns first", (128, 256), column_major=True, options=cute)
    yield Case("cute linear", (130, 96), options={**cute, **linear})
    yield Case("cute 8x4", (9, 96), options={**cute, **eight})
    yield Case("cute 8x4, large", (4104, 8192), options={**cute, **eight})
    yield Case("cute mxfp4", (300, 96), options={**cute, **mx})
    yield Case("cute mxfp4, 5 scales a row", (130, 160), options={**cute, **mx})
    yield Case("cute mxfp4 8x4", (9, 128), options={**cute, **mx, **eight})
    yield Case("cute mxfp4 linear", (9, 160), options={**cute, **mx, **linear})


#: Calls that must fail with the same words in a compiled and in an eager call.
WRONG_CALLS: tuple[tuple[tuple[int, int], dict[str, Any]], ...] = (
    ((4, 40), {}),
    ((4, 64), {"sf_vec_size": 8}),
    ((4, 64), {"backend": "nope"}),
    ((4, 64), {"no_such_parameter": 1}),
    ((4, 64), {"nvfp4_4over6": 1}),
    ((4, 64), {"batch_invariant": True, "backend": "cuda"}),
)


# --- capture --------------------------------------------------------------------------------


@dataclass
class Probe:
    """The function under test in a simulated host, and what was found out about it."""

    torch: Any
    function: Callable[..., Any]
    release: tuple[int, ...]
    parameters: dict[str, inspect.Parameter]
    graphs: list[Any] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def offers(self, options: dict[str, Any]) -> bool:
        return all(name in self.parameters for name in options)

    def fake_mode(self) -> Any:
        from torch._subclasses import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        return FakeTensorMode(shape_env=ShapeEnv())

    def input(self, shape: tuple[int, ...], dtype: str, column_major: bool, device: str) -> Any:
        sizes = (*shape[:-2], shape[-1], shape[-2]) if column_major else shape
        tensor = self.torch.empty(sizes, dtype=getattr(self.torch, dtype), device=device)
        return tensor.transpose(-2, -1) if column_major else tensor

    def compiled(self, *, dynamic: bool) -> Callable[..., Any]:
        """Return the function compiled for capture only; its graphs go to :attr:`graphs`."""
        self.torch.compiler.reset()
        self.graphs.clear()

        def capture(graph: Any, _inputs: Any) -> Any:
            self.graphs.append(graph)
            return graph.forward

        def call(x: Any, scale: Any, **options: Any) -> Any:
            return self.function(x, scale, **options)

        compiled: Callable[..., Any] = self.torch.compile(
            call, fullgraph=True, backend=capture, dynamic=dynamic
        )
        return compiled

    def operators(self) -> list[str]:
        return [
            str(node.target)
            for graph in self.graphs
            for node in graph.graph.nodes
            if node.op not in ("placeholder", "output")
            and getattr(node.target, "__name__", "") != "getitem"
        ]

    def check(self, what: str, holds: bool, detail: object = "") -> None:
        if not holds:
            self.problems.append(f"{what}: {detail}" if detail != "" else what)

    def attempt(self, step: Callable[..., None], *arguments: Any) -> None:
        """Run one step; an error that it did not expect is a problem, not the end."""
        try:
            step(self, *arguments)
        except Exception as error:
            detail = f"{type(error).__name__}: {error}"
            self.problems.append(f"{step.__name__}{arguments}: {detail}")

    def options_of(self, case: Case) -> dict[str, Any]:
        options = dict(case.options)
        if options.get("nvfp4_4over6") == "NVFP44Over6Config":
            module = importlib.import_module("flashinfer.quantization.nvfp4_quantization_utils")
            options["nvfp4_4over6"] = module.NVFP44Over6Config(e4m3_max=256)
        return options


def first_capture(probe: Probe) -> dict[str, Any]:
    """Compile one plain call and say what came of it."""
    with probe.fake_mode():
        x = probe.input((130, 256), "bfloat16", False, "cuda")
        scale = probe.torch.empty(1, device="cuda")
        try:
            probe.compiled(dynamic=False)(x, scale)
        except Exception as error:
            return {"error": describe(error), "graphs": 0, "operators": []}
    return {"error": None, "graphs": len(probe.graphs), "operators": probe.operators()}


def describe(error: BaseException) -> dict[str, Any]:
    """Return kind, text and the last place in the user's code that a Dynamo error names."""
    text = str(error)
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)', text)
    at = frames[-1] if frames else ("", "", "", "")
    return {
        "kind": type(error).__name__,
        "text": text,
        "first_line": text.strip().split("\n")[0],
        "file": at[0],
        "function": at[2],
        "line": at[3],
        "through": [f"{name} ({file})" for file, _, name, _ in frames],
    }


def run_case(probe: Probe, case: Case) -> None:
    want = expected(case, probe.release)
    with probe.fake_mode():
        x = probe.input(case.shape, case.dtype, case.column_major, "cuda")
        scale = probe.torch.empty(1, device="cuda")
        try:
            got = probe.compiled(dynamic=False)(x, scale, **probe.options_of(case))
        except Exception as error:
            holds = isinstance(want, str) and want in str(error)
            probe.check(case.name, holds, f"want {want}, got {error}")
            return
    found = tuple(output_of(tensor) for tensor in got)
    probe.check(case.name, found == want, f"want {want}, got {found}")
    probe.check(f"{case.name}: one graph", len(probe.graphs) == 1, len(probe.graphs))
    probe.check(f"{case.name}: one node", len(probe.operators()) == 1, probe.operators())
    storages = {t.untyped_storage()._cdata for t in (x, scale, *got)}
    probe.check(f"{case.name}: outputs alias", len(storages) == 4)


def output_of(tensor: Any) -> Output:
    shape, stride = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
    return Output(shape, stride, str(tensor.dtype), tensor.device.type)


def run_dynamic(probe: Probe, column_major: bool) -> None:
    """One graph must serve any number of rows."""
    compiled = probe.compiled(dynamic=True)
    with probe.fake_mode():
        for m in (130, 7, 300, 128):
            shape = (256, m) if column_major else (m, 256)
            x = probe.input(shape, "bfloat16", column_major, "cuda")
            got = compiled(x, probe.torch.empty(1, device="cuda"))
            want = expected(Case("", shape, column_major), probe.release)
            found = tuple(output_of(tensor) for tensor in got)
            probe.check(f"dynamic M={m}", found == want, f"want {want}, got {found}")
    probe.check("dynamic: one graph", len(probe.graphs) == 1, len(probe.graphs))


def run_functionalized(probe: Probe) -> None:
    """The operator must come through functionalization as one node, with its tags."""
    from torch.fx.experimental.proxy_tensor import make_fx

    compiled = probe.compiled(dynamic=False)
    with probe.fake_mode():
        x = probe.input((130, 256), "bfloat16", False, "cuda")
        scale = probe.torch.empty(1, device="cuda")
        compiled(x, scale)
        functional = make_fx(probe.torch.func.functionalize(probe.graphs[0]))(x, scale)
    targets = [n.target for n in functional.graph.nodes if n.op == "call_function"]
    ours = [t for t in targets if "fp4_quantize" in str(t)]
    probe.check("functionalized: one node", len(ours) == 1, targets)
    tags = probe.torch.Tag
    wanted = {
        getattr(tags, "needs_exact_strides", tags.needs_fixed_stride_order),
        tags.pt2_compliant_tag,
    }
    for operator in ours:
        probe.check("tags", wanted <= set(operator.tags), operator.tags)
        probe.check("own namespace", operator.namespace != "flashinfer", operator.namespace)


def run_wrong(probe: Probe, shape: tuple[int, int], options: dict[str, Any]) -> None:
    """A wrong call must name the same error in a compiled call as in an eager one."""
    what = f"wrong call {shape} {options}"
    x = probe.input(shape, "bfloat16", False, "cpu")
    try:
        probe.function(x, probe.torch.empty(1), **options)
    except Exception as error:
        kind, words = type(error).__name__, str(error)
    else:
        probe.check(what, False, "the eager call did not fail")
        return
    with probe.fake_mode():
        x = probe.input(shape, "bfloat16", False, "cuda")
        scale = probe.torch.empty(1, device="cuda")
        try:
            probe.compiled(dynamic=False)(x, scale, **options)
        except Exception as error:
            text = str(error)
            probe.check(what, names_error(text, kind, words), f"want {kind}: {words}, got {text}")
        else:
            probe.check(what, False, "the compiled call did not fail")


def names_error(text: str, kind: str, words: str) -> bool:
    """Say whether Dynamo's text is about an error of this kind with these words.

    Dynamo has words of its own for arguments that do not bind and, up to torch 2.8, for errors
    that are raised in what it traces; there the kind, or the name of the function, must do.
    """
    if "unexpected keyword" in words:
        return "fp4_quantize" in text and ("to bind arg" in text or "unexpected keyword" in text)
    if "Observed exception" in text and kind in text:
        return True
    return kind in text and (words in text or repr(words) in text)


def run_fake_call(probe: Probe) -> None:
    """Outside torch.compile too, a fake tensor must not reach the kernel."""
    case = Case("fake tensor without torch.compile", (256, 130), column_major=True)
    with probe.fake_mode():
        x = probe.input(case.shape, case.dtype, True, "cuda")
        got = tuple(map(output_of, probe.function(x, probe.torch.empty(1, device="cuda"))))
    probe.check(case.name, got == expected(case, probe.release), got)


def run_reload(probe: Probe) -> None:
    """The defining module loaded again: new and old references must both go on working."""
    name = inspect.unwrap(probe.function).__module__
    old = probe.function
    before = probe.operators() if first_capture(probe)["error"] is None else []
    probe.function = importlib.reload(sys.modules[name]).fp4_quantize
    reloaded = first_capture(probe)
    del sys.modules[name]
    probe.function = importlib.import_module(name).fp4_quantize
    again = first_capture(probe)
    probe.function = old
    kept = first_capture(probe)
    for what, capture in (("reload", reloaded), ("new import", again), ("old reference", kept)):
        same = capture["operators"] == before
        probe.check(f"{what}: same operator", bool(before) and same, capture)


def run_all(probe: Probe) -> int:
    cases = [case for case in all_cases() if probe.offers(case.options)]
    if "is_sf_8x4_layout" not in probe.parameters and "enable_pdl" not in probe.parameters:
        # 0.2.8 takes row-major input with 16 elements a scale only.
        cases = [c for c in cases if probe.release >= (0, 2, 9) or plain_only(c)]
    with cute_dsl_present():
        for case in cases:
            probe.attempt(run_case, case)
    for column_major in (False, True):
        if probe.release >= (0, 2, 9) or not column_major:
            probe.attempt(run_dynamic, column_major)
    probe.attempt(run_functionalized)
    for shape, options in WRONG_CALLS:
        known = {name: value for name, value in options.items() if name != "no_such_parameter"}
        if probe.offers(known):
            probe.attempt(run_wrong, shape, options)
    if probe.release >= (0, 2, 9):
        probe.attempt(run_fake_call)
    probe.attempt(run_reload)
    return len(cases)


def plain_only(case: Case) -> bool:
    return not case.column_major and case.options.get("sf_vec_size", 16) == 16


@contextmanager
def cute_dsl_present() -> Iterator[None]:
    """Make FlashInfer believe that CuTe-DSL is installed; it is never run here."""
    name = "flashinfer.cute_dsl"
    stand_in = types.ModuleType(name)
    stand_in.is_cute_dsl_available = lambda: True  # type: ignore[attr-defined]
    saved = sys.modules.get(name)
    sys.modules[name] = stand_in
    try:
        yield
    finally:
        sys.modules.pop(name)
        if saved is not None:
            sys.modules[name] = saved


# --- the document ---------------------------------------------------------------------------


def release_of(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if not found:
        raise SystemExit(f"cannot read FlashInfer version {version!r}")
    return tuple(int(part) for part in found.groups())


def run(capability: tuple[int, int], cuda: str, capture_only: bool) -> dict[str, Any]:
    """Return the document; raises whatever importing torch or FlashInfer raises."""
    torch = simulate_gpu(capability, cuda)
    import flashinfer  # type: ignore[import-not-found]

    version = importlib.metadata.version("flashinfer-python")
    function = flashinfer.fp4_quantize
    parameters = dict(inspect.signature(function).parameters)
    probe = Probe(torch, function, release_of(version), parameters)
    document: dict[str, Any] = {
        "schema": 1,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "flashinfer": version,
        "file": inspect.getsourcefile(inspect.unwrap(function)),
        "capability": list(capability),
        "cuda": cuda,
        "capture": first_capture(probe),
        "cases": 0,
    }
    if document["capture"]["error"] is None and not capture_only:
        document["cases"] = run_all(probe)
    document["problems"] = probe.problems
    document["ok"] = document["capture"]["error"] is None and not probe.problems
    return document


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--capability", default="10.0", help="compute capability, as 10.0")
    parser.add_argument("--cuda", default="13.0", help="CUDA version that torch is built for")
    parser.add_argument("--capture-only", action="store_true", help="one plain call, no more")
    arguments = parser.parse_args()
    major, minor = (int(part) for part in arguments.capability.split("."))
    warnings.simplefilter("ignore")
    document = run((major, minor), arguments.cuda, arguments.capture_only)
    print(BEGIN)
    print(json.dumps(document, indent=1, default=asdict))
    print(END)
    return 0 if document["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
