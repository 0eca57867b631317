"""Probe: what torch.compile makes of ``flashinfer.fp4_quantize`` on GPU hosts, simulated or real.

Runs in the target interpreter without patchkit; needs no GPU, no nvcc and no CUDA build of torch.
It makes the host look like one with a GPU, compiles with ``fullgraph=True`` on fake CUDA tensors
and a backend that stops after capture, and says where capture stopped, else whether every case
gave one graph with one operator and the shapes, dtypes and strides that the installed release
really returns. What is expected is written here from measurements of the releases, not from any
fake.

Argument: a JSON object with ``prepend`` (folders to put first on ``sys.path``), ``scenario``,
``architectures`` (compute capabilities, as "10.0"), ``cuda`` (the version that torch is to be
built for), ``capture_only`` (one plain call an architecture, no more) and ``use_gpu`` (take the
real device instead). Prints ``{"schema", "python", "torch", "flashinfer", "file",
"import_error", "missing", "runs"}``; a run has ``architecture``, ``cuda``, ``simulated``,
``capture`` (``error``, ``graphs``, ``operators``), ``cases`` and ``problems``.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.metadata
import inspect
import json
import os
import re
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

PACKAGE = "flashinfer"
SCENARIOS = ("fp4_quantize",)


# --- a host with a GPU, simulated or real ---------------------------------------------------


@dataclass(frozen=True)
class Properties:
    """What ``torch.cuda.get_device_properties`` tells, as far as libraries ask."""

    name: str
    major: int
    minor: int
    multi_processor_count: int = 132
    total_memory: int = 80 << 30
    warp_size: int = 32
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 48 << 10
    shared_memory_per_block_optin: int = 227 << 10
    shared_memory_per_multiprocessor: int = 228 << 10
    L2_cache_size: int = 50 << 20
    is_integrated: int = 0


@dataclass
class Host:
    """The GPU that torch and FlashInfer are to see. Made before either is imported.

    ``torch.cuda.is_available()`` stays False in a simulated one, so that nothing initialises a
    driver.
    """

    real: bool
    torch: Any = None
    capability: tuple[int, int] = (0, 0)

    def settle(self) -> None:
        """Keep real devices out of a simulation, and settings that switch torch.compile off."""
        if not self.real:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        for name in list(os.environ):
            if name.startswith(("TORCHDYNAMO_", "TORCH_COMPILE_", "TORCH_LOGS")):
                del os.environ[name]

    def simulate(self, architecture: str, cuda: str) -> None:
        """Become a host with one GPU of this compute capability, forgetting any earlier one."""
        major, minor = (int(part) for part in architecture.split("."))
        self.capability = (major, minor)
        suffix = "a" if major >= 9 else ""
        os.environ["FLASHINFER_CUDA_ARCH_LIST"] = f"{major}.{minor}{suffix}"
        self.torch.version.cuda = cuda
        answers = self.torch.cuda
        answers.device_count = lambda: 1
        answers.current_device = lambda: 0
        answers.get_device_capability = lambda _device=None: self.capability
        properties = Properties(f"simulated SM{major}{minor}", major, minor)
        answers.get_device_name = lambda _device=None: properties.name
        answers.get_device_properties = lambda _device=None: properties

    @property
    def device(self) -> str:
        """The kind of device for tensors that are really there."""
        return "cuda" if self.real else "cpu"


def of_package(function: Any) -> bool:
    """Say whether the library defines a function."""
    return str(getattr(function, "__module__", "")).partition(".")[0] == PACKAGE


def forget_answers() -> None:
    """Empty what functions of the library cached, answers about the GPU among it."""
    for found in gc.get_objects():
        if type(found) is functools._lru_cache_wrapper and of_package(found):
            found.cache_clear()
    core = sys.modules.get(f"{PACKAGE}.jit.core")
    context = getattr(core, "current_compilation_context", None)
    if context is not None:
        vars(context).update(vars(type(context)()))


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
    """Return the next multiple of a step."""
    return -(-value // step) * step


def rows_first(shape: tuple[int, ...]) -> Output:
    """Return a contiguous output."""
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
    """Return rows and columns of the scales of ``m`` rows, ``c`` to a row, or an error's text."""
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
    """Return the same for the CuTe-DSL kernels, which flatten batches and ignore strides."""
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
    """Give every layout, vector size and option that some release has."""
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
    """Give the cases of the CuTe-DSL kernels."""
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
    """The function under test on one host, and what was found out about it."""

    host: Host
    function: Callable[..., Any]
    release: tuple[int, ...]
    parameters: dict[str, inspect.Parameter]
    graphs: list[Any] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def torch(self) -> Any:
        """The target's torch."""
        return self.host.torch

    def offers(self, options: Mapping[str, Any]) -> bool:
        """Say whether the release has these parameters."""
        return all(name in self.parameters for name in options)

    def tensors(self) -> Any:
        """Return the mode to make tensors in: fake ones, but for a real GPU."""
        return nullcontext() if self.host.real else self.fake_mode()

    def fake_mode(self) -> Any:
        """Return a fresh mode for tensors without data, which may be on devices that are not."""
        fakes = importlib.import_module("torch._subclasses")
        shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")
        return fakes.FakeTensorMode(shape_env=shapes.ShapeEnv())

    def input(
        self, shape: tuple[int, ...], dtype: str, column_major: bool, device: str = "cuda"
    ) -> Any:
        """Make a tensor of this shape, in a transposed layout for column-major."""
        sizes = (*shape[:-2], shape[-1], shape[-2]) if column_major else shape
        tensor = self.torch.empty(sizes, dtype=getattr(self.torch, dtype), device=device)
        return tensor.transpose(-2, -1) if column_major else tensor

    def scale(self, device: str = "cuda") -> Any:
        """Make a global scale."""
        return self.torch.empty(1, device=device)

    def compiled(self, *, dynamic: bool = False) -> Callable[..., Any]:
        """Return the function compiled for capture only; its graphs go to :attr:`graphs`."""
        self.torch.compiler.reset()
        self.graphs.clear()

        def capture(graph: Any, _inputs: Any) -> Any:
            self.graphs.append(graph)
            return graph.forward

        def call(*values: Any, **options: Any) -> Any:
            return self.function(*values, **options)

        compiled: Callable[..., Any] = self.torch.compile(
            call, fullgraph=True, backend=capture, dynamic=dynamic
        )
        return compiled

    def operators(self) -> list[str]:
        """Return what the captured graphs do, node by node."""
        return [
            str(node.target)
            for graph in self.graphs
            for node in graph.graph.nodes
            if node.op not in ("placeholder", "output")
            and getattr(node.target, "__name__", "") != "getitem"
        ]

    def check(self, what: str, holds: bool, detail: object = "") -> None:
        """Note a problem unless something holds."""
        if not holds:
            self.problems.append(f"{what}: {detail}" if detail != "" else what)

    def attempt(self, step: Callable[..., None], *arguments: Any) -> None:
        """Run one step; an error that it did not expect is a problem, not the end."""
        try:
            step(self, *arguments)
        except Exception as error:
            self.problems.append(f"{step.__name__}{arguments}: {type(error).__name__}: {error}")

    def options_of(self, case: Case) -> dict[str, Any]:
        """Return a case's keyword arguments as the function takes them."""
        options = dict(case.options)
        if options.get("nvfp4_4over6") == "NVFP44Over6Config":
            module = importlib.import_module(f"{PACKAGE}.quantization.nvfp4_quantization_utils")
            options["nvfp4_4over6"] = module.NVFP44Over6Config(e4m3_max=256)
        return options


def first_capture(probe: Probe) -> dict[str, Any]:
    """Compile one plain call and say what came of it."""
    with probe.tensors():
        x, scale = probe.input((130, 256), "bfloat16", False), probe.scale()
        try:
            probe.compiled()(x, scale)
            if not probe.graphs:
                raise RuntimeError("torch.compile captured no graph")
        except Exception as error:
            return {"error": describe(error), "graphs": 0, "operators": []}
    return {"error": None, "graphs": len(probe.graphs), "operators": probe.operators()}


def describe(error: BaseException) -> dict[str, Any]:
    """Return kind, text, the last place on the way to an error, and the way itself."""
    text = str(error)
    frames = re.findall(r'File "([^"]+)", line \d+, in (\S+)\n\s*(.*)', text)
    if not frames:
        summary = traceback.extract_tb(error.__traceback__)
        frames = [(f.filename, f.name, f.line or "") for f in summary]
        frames = [f for f in frames if not shortened(f[0]).startswith("torch/")]
    frames = [f for f in frames if not shortened(f[0]).startswith("torch/_dynamo/polyfills/")]
    place, function, line = frames[-1] if frames else ("", "", "")
    return {
        "kind": type(error).__name__,
        "text": text,
        "first_line": text.strip().split("\n")[0],
        "file": shortened(place),
        "function": function,
        "line": line,
        "through": [f"{f[1]} ({shortened(f[0])})" for f in frames if f[0] != __file__],
    }


def shortened(path: str) -> str:
    """Return a path relative to the folder of ``sys.path`` that it lies in."""
    if path == __file__:
        return os.path.basename(path)
    homes = [home for home in sys.path if home and path.startswith(home.rstrip("/") + "/")]
    return os.path.relpath(path, max(homes, key=len)) if homes else path


def run_case(probe: Probe, case: Case) -> None:
    """Compile one call: one graph with one operator that gives what the release gives."""
    want = expected(case, probe.release)
    with probe.tensors():
        x, scale = probe.input(case.shape, case.dtype, case.column_major), probe.scale()
        try:
            got = probe.compiled()(x, scale, **probe.options_of(case))
        except Exception as error:
            holds = isinstance(want, str) and want in str(error)
            probe.check(case.name, holds, f"want {want}, got {error}")
            return
    check_outputs(probe, case.name, got, want)
    probe.check(f"{case.name}: one graph", len(probe.graphs) == 1, len(probe.graphs))
    probe.check(f"{case.name}: one node", len(probe.operators()) == 1, probe.operators())
    storages = {t.untyped_storage()._cdata for t in (x, scale, *got)}
    probe.check(f"{case.name}: outputs alias", len(storages) == 4)


def check_outputs(probe: Probe, what: str, got: Sequence[Any], want: object) -> None:
    """Compare the tensors returned, and what the graph's fakes promised, with what is true."""
    found = tuple(map(output_of, got))
    probe.check(what, found == want, f"want {want}, got {found}")
    if probe.host.real and probe.graphs:
        nodes = [n for n in probe.graphs[-1].graph.nodes if n.op == "output"]
        fakes = tuple(output_of(n.meta["example_value"]) for n in nodes[0].args[0])
        probe.check(f"{what}: fake", fakes == want, f"want {want}, got {fakes}")


def output_of(tensor: Any) -> Output:
    """Return what a tensor looks like."""
    shape, stride = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
    return Output(shape, stride, str(tensor.dtype), tensor.device.type)


def run_dynamic(probe: Probe, column_major: bool) -> None:
    """Check that one graph serves any number of rows."""
    compiled = probe.compiled(dynamic=True)
    with probe.tensors():
        for m in (130, 7, 300, 128):
            shape = (256, m) if column_major else (m, 256)
            got = compiled(probe.input(shape, "bfloat16", column_major), probe.scale())
            want = expected(Case("", shape, column_major), probe.release)
            found = tuple(map(output_of, got))
            probe.check(f"dynamic M={m}", found == want, f"want {want}, got {found}")
    probe.check("dynamic: one graph", len(probe.graphs) == 1, len(probe.graphs))


def run_functionalized(probe: Probe) -> None:
    """Check that the operator comes through functionalization as one node, with its tags."""
    tracer = importlib.import_module("torch.fx.experimental.proxy_tensor")
    with probe.fake_mode():
        x, scale = probe.input((130, 256), "bfloat16", False), probe.scale()
        probe.compiled()(x, scale)
        functional = tracer.make_fx(probe.torch.func.functionalize(probe.graphs[0]))(x, scale)
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
        probe.check("own namespace", operator.namespace != PACKAGE, operator.namespace)


#: Options, one unlike its default in each, for a look at how they are passed on.
PASSED_ON: tuple[dict[str, Any], ...] = (
    {},
    {"sf_vec_size": 32, "sf_use_ue8m0": True},
    {"is_sf_swizzled_layout": False},
    {"is_sf_8x4_layout": True},
    {"is_global_scale_inversed": True},
    {"enable_pdl": True},
    {"enable_pdl": False},
    {"nvfp4_4over6": None},
    {"nvfp4_4over6": "NVFP44Over6Config"},
    {"batch_invariant": True},
)


def run_forwarding(probe: Probe, options: dict[str, Any], column_major: bool) -> None:
    """Check that the operator passes on to the function what an eager call gives it."""
    device = probe.host.device
    x, scale = probe.input((128, 256), "bfloat16", column_major, device), probe.scale(device)
    given = probe.options_of(Case("", (), options=options))
    with recorded(probe.function) as calls:
        probe.function(x, scale, **given)
        probe.compiled()(x, scale, **given)
    probe.check(f"passed on for {options}: calls", len(calls) == 2, len(calls))
    eager, compiled = (calls * 2)[:2]
    for name in eager:
        same = eager[name] == compiled[name]
        detail = f"want {eager[name]}, got {compiled[name]}"
        probe.check(f"passed on for {options}: {name}", same, detail)


@contextmanager
def recorded(function: Callable[..., Any]) -> Iterator[list[dict[str, Any]]]:
    """Let the function under all wrappers only note its arguments, by name."""
    inner = inspect.unwrap(function)
    assert isinstance(inner, types.FunctionType)
    calls: list[dict[str, Any]] = []

    def note(arguments: dict[str, Any]) -> tuple[Any, Any]:
        calls.append({name: comparable(value) for name, value in arguments.items()})
        first = next(iter(arguments.values()))
        return first.new_empty(0), first.new_empty(0)

    code = inner.__code__
    inner.__globals__["_patchkit_note"] = note
    inner.__code__ = noting(inner)
    try:
        yield calls
    finally:
        inner.__code__ = code
        del inner.__globals__["_patchkit_note"]


def noting(function: types.FunctionType) -> types.CodeType:
    """Return code with the parameters of a function that notes them and does no more."""
    code = function.__code__
    positional, total = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    names = [*code.co_varnames[:positional], "*", *code.co_varnames[positional:total]]
    if names[-1] == "*":
        names.pop()
    scope: dict[str, Any] = {}
    exec(f"def noted({', '.join(names)}): return _patchkit_note(locals())", scope)
    made: types.CodeType = scope["noted"].__code__
    return made


def comparable(value: Any) -> Any:
    """Return an argument as something to compare: for a tensor, its memory and layout."""
    if hasattr(value, "data_ptr"):
        return value.data_ptr(), tuple(value.shape), tuple(value.stride()), str(value.dtype)
    return type(value).__name__, value


def run_wrong(probe: Probe, shape: tuple[int, int], options: dict[str, Any]) -> None:
    """Check that a wrong call names the same error in a compiled call as in an eager one."""
    what = f"wrong call {shape} {options}"
    device = probe.host.device
    x = probe.input(shape, "bfloat16", False, device)
    try:
        probe.function(x, probe.scale(device), **options)
    except Exception as error:
        kind, words = type(error).__name__, str(error)
    else:
        probe.check(what, False, "the eager call did not fail")
        return
    with probe.tensors():
        x, scale = probe.input(shape, "bfloat16", False), probe.scale()
        try:
            probe.compiled()(x, scale, **options)
        except Exception as error:
            text = str(error)
            probe.check(what, names_error(text, kind, words), f"want {kind}: {words}, got {text}")
        else:
            probe.check(what, False, "the compiled call did not fail")


def names_error(text: str, kind: str, words: str) -> bool:
    """Say whether Dynamo's text is about an error of this kind with these words.

    Dynamo has words of its own for arguments that do not bind and, in older releases, for errors
    that are raised in what it traces; there the kind, or the name of the function, must do.
    """
    if "Observed exception" in text and kind in text:
        return True
    if "unexpected keyword" in words:
        return "fp4_quantize" in text and ("to bind arg" in text or "unexpected keyword" in text)
    return kind in text and (words in text or repr(words) in text)


def run_fake_call(probe: Probe) -> None:
    """Check that outside torch.compile too, a fake tensor does not reach the kernel."""
    case = Case("fake tensor without torch.compile", (256, 130), column_major=True)
    with probe.fake_mode():
        x = probe.input(case.shape, case.dtype, True)
        got = tuple(map(output_of, probe.function(x, probe.scale())))
    probe.check(case.name, got == expected(case, probe.release), got)


def run_reload(probe: Probe) -> None:
    """Load the defining module again: new and old references must both go on working."""
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


def run_cases(probe: Probe) -> int:
    """Run what may depend on the GPU; return the number of cases."""
    cases = [case for case in all_cases() if probe.offers(case.options)]
    if probe.release < (0, 2, 9):
        cases = [case for case in cases if plain_only(case)]
    if probe.host.real:
        cases = [case for case in cases if case.options.get("backend") != "cute-dsl"]
    with cute_dsl_present():
        for case in cases:
            probe.attempt(run_case, case)
    for column_major in (False, True):
        if probe.release >= (0, 2, 9) or not column_major:
            probe.attempt(run_dynamic, column_major)
    return len(cases)


def plain_only(case: Case) -> bool:
    """Say whether 0.2.8 takes a case: row-major, 16 elements a scale."""
    return not case.column_major and case.options.get("sf_vec_size", 16) == 16


def run_once(probe: Probe) -> None:
    """Run what is the same for every GPU."""
    probe.attempt(run_functionalized)
    for options in PASSED_ON:
        known = probe.release >= (0, 2, 9) or options.get("sf_vec_size", 16) == 16
        if known and probe.offers(options):
            probe.attempt(run_forwarding, options, False)
    for shape, options in WRONG_CALLS:
        known = {name: value for name, value in options.items() if name != "no_such_parameter"}
        if probe.offers(known):
            probe.attempt(run_wrong, shape, options)
    if probe.release >= (0, 2, 9):
        probe.attempt(run_forwarding, {}, True)
        probe.attempt(run_fake_call)
    probe.attempt(run_reload)


@contextmanager
def cute_dsl_present() -> Iterator[None]:
    """Make FlashInfer believe that CuTe-DSL is installed; it is never run here."""
    name = f"{PACKAGE}.cute_dsl"
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


def main(argument: dict[str, Any]) -> dict[str, Any]:
    """Trace on every architecture and return the answer."""
    sys.path[:1] = argument["prepend"]
    warnings.simplefilter("ignore")
    document: dict[str, Any] = {
        "schema": 1,
        "python": sys.version.split()[0],
        "torch": "",
        "flashinfer": "",
        "file": "",
        "import_error": "",
        "missing": "",
        "runs": [],
    }
    try:
        probe = load(argument, document)
    except BaseException as problem:
        if isinstance(problem, ModuleNotFoundError):
            document["missing"] = problem.name or ""
        document["import_error"] = f"{type(problem).__name__}: {problem}"
        return document
    if probe is None:
        document["import_error"] = "no GPU in the target"
    elif probe.host.real:
        document["runs"] = [run(probe, argument, first=True)]
    else:
        for position, architecture in enumerate(argument["architectures"]):
            if position:
                probe.host.simulate(architecture, argument["cuda"])
                forget_answers()
            document["runs"].append(run(probe, argument, first=position == 0))
    return document


def load(argument: Mapping[str, Any], document: dict[str, Any]) -> Probe | None:
    """Import torch and the library for the first architecture; None where a GPU is missing."""
    if argument["scenario"] not in SCENARIOS:
        raise LookupError(f"there is no scenario {argument['scenario']!r}")
    host = Host(real=argument["use_gpu"])
    host.settle()
    host.torch = importlib.import_module("torch")
    document["torch"] = str(host.torch.__version__)
    if not host.real:
        # Dynamo looks torch's functions up once, by name: before others take their places.
        host.torch.compile(lambda x: host.torch.abs(x), backend="eager")(host.torch.ones(1))
        host.simulate(argument["architectures"][0], argument["cuda"])
    elif not host.torch.cuda.is_available():
        return None
    else:
        host.capability = host.torch.cuda.get_device_capability()
    function = importlib.import_module(PACKAGE).fp4_quantize
    document["flashinfer"] = importlib.metadata.version("flashinfer-python")
    document["file"] = inspect.getsourcefile(inspect.unwrap(function))
    parameters = dict(inspect.signature(function).parameters)
    return Probe(host, function, release_of(document["flashinfer"]), parameters)


def release_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a release; raises ValueError."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if not found:
        raise ValueError(f"cannot read FlashInfer version {version!r}")
    return tuple(int(part) for part in found.groups())


def run(probe: Probe, argument: Mapping[str, Any], *, first: bool) -> dict[str, Any]:
    """Trace on the host as it is now."""
    host = probe.host
    probe.problems = []
    capture = first_capture(probe)
    cases = 0
    if capture["error"] is None and not argument["capture_only"]:
        cases = run_cases(probe)
        if first:
            run_once(probe)
    return {
        "architecture": ".".join(map(str, host.capability)),
        "cuda": str(host.torch.version.cuda),
        "simulated": not host.real,
        "capture": capture,
        "cases": cases,
        "problems": probe.problems,
    }


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answer = json.dumps(main(json.loads(sys.argv[1])))
    out.write(f"\n<patchkit>{answer}</patchkit>\n")
    out.flush()
    os._exit(0)  # what the library left running, threads and exit handlers, is not waited for
