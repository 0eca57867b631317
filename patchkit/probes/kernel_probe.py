"""Probe: what ``flashinfer.fp4_quantize`` computes on the GPU of this machine, and whether rightly.

Runs in the target interpreter without patchkit, beside ``fp4_cases`` (which calls to make) and
``fp4_reference`` (what must come out). Every output gets memory that is poisoned and stands between
guard zones, so what a kernel never writes, or writes beside, shows. The public function and the
function under it must give the same bytes; where a patch made an operator of it, compiled calls,
CUDA graphs and ``torch.library.opcheck`` are tried too.

Argument: a JSON object with ``prepend`` (folders to put first on ``sys.path``), ``scenario`` and
``bench`` (measure too). Prints ``{"schema", "python", "torch", "cuda", "nvcc", "driver",
"flashinfer", "file", "gpu", "architecture", "operator", "import_error", "missing", "trouble",
"nothing", "notes", "groups", "bench"}``; a group has ``name``, ``seconds`` and ``cases``, a case
``name`` and ``problem`` (empty: it passed). ``trouble`` says why the check could not be made,
``nothing`` that the kernel writes nothing at all.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from patchkit.probes import fp4_cases, fp4_reference

PACKAGE = "flashinfer"
SCENARIOS = ("fp4_quantize",)
#: Two fillings that no byte can equal both of.
POISONS = (0xA5, 0x5A)
#: Bytes before and after every output that must stay as they are.
GUARD = 4096
#: Times a captured graph is replayed.
REPLAYS = 400
#: Beginnings of environment variables that switch compilation off or change the arithmetic.
SETTINGS = ("TORCHDYNAMO_", "TORCH_COMPILE_", "TORCH_LOGS", "FLASHINFER_NVFP4_4OVER6")
#: The least nvcc that knows an architecture, from NVIDIA's CUDA release notes.
LEAST_NVCC = {
    (9, 0): (11, 8),
    (10, 0): (12, 8),
    (10, 3): (12, 9),
    (12, 0): (12, 8),
    (12, 1): (12, 9),
}

Tensors = tuple[Any, Any]


class Trouble(Exception):
    """The check cannot be made here; the text says why."""


class NoMemory(Trouble):
    """The GPU has no memory left for a case."""


@dataclass
class Probe:
    """The function under test, what it wraps, and what was found out about them.

    ``original`` is the function as the library wrote it: the public one where nothing wraps it.
    """

    torch: Any
    function: Callable[..., Tensors]
    original: Callable[..., Tensors]
    release: tuple[int, ...]
    parameters: frozenset[str]
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    device: str = "cuda:0"

    @property
    def architecture(self) -> str:
        """The GPU's architecture, as "SM90"."""
        major, minor = self.torch.cuda.get_device_capability(self.device)
        return f"SM{major}{minor}"

    def wait(self) -> None:
        """Wait for the device, so that its errors show here."""
        if self.device != "cpu":
            self.torch.cuda.synchronize(self.device)

    def attempt(self, group: str, name: str, check: Callable[..., str], *given: Any) -> str:
        """Run one case and note its problem, if any; an error is one. Raises NoMemory."""
        entry = self.groups.setdefault(group, {"name": group, "seconds": 0.0, "cases": []})
        started = time.perf_counter()
        problem = self.tried(name, check, *given)
        seconds = time.perf_counter() - started
        print(f"{group}: {name}, {seconds:.2f} s", file=sys.stderr)  # where it was, if it hangs
        entry["seconds"] += seconds
        entry["cases"].append({"name": name, "problem": problem})
        return problem

    def tried(self, name: str, check: Callable[..., str], *given: Any) -> str:
        """Return a case's problem. Where memory ran out, cached memory is given back first."""
        for _ in range(2):
            try:
                return check(self, *given)
            except Exception as error:
                if not self.out_of_memory(error):
                    return first_lines(error)
            gc.collect()  # the error's frames held tensors
            self.torch.cuda.empty_cache()
        raise NoMemory(no_memory(f" for {name}"))

    def out_of_memory(self, error: BaseException) -> bool:
        """Say whether an error is that: torch's own, or the driver's, as in a capture."""
        return isinstance(error, self.torch.OutOfMemoryError) or (
            isinstance(error, RuntimeError) and "CUDA error: out of memory" in str(error)
        )


def no_memory(where: str = "") -> str:
    """Say that the GPU is full."""
    return f"the GPU has no memory left{where}; free some, then run this again"


def first_lines(error: BaseException, most: int = 600) -> str:
    """Return the kind of an error and the beginning of its text."""
    return f"{type(error).__name__}: {error}".strip()[:most]


# --- memory that shows what is written -------------------------------------------------------


@contextmanager
def guarded(probe: Probe, poison: int) -> Iterator[list[tuple[Any, int]]]:
    """Let new tensors on the device lie in poisoned memory between guard zones; gives the slabs.

    A slab is the whole memory as bytes, with the size of the tensor in it. Memory that the library
    takes past torch's dispatcher is not seen; poison left in the allocator must do there.
    """
    torch, kind = probe.torch, probe.device.partition(":")[0]
    modes = importlib.import_module("torch.utils._python_dispatch")
    empty = {torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default}
    slabs: list[tuple[Any, int]] = []

    class Guarded(modes.TorchDispatchMode):  # type: ignore[name-defined, misc]
        def __torch_dispatch__(
            self, operator: Any, _types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = operator(*args, **(kwargs or {}))
            if operator not in empty or made.device.type != kind or not made.numel():
                return made
            size = made.numel() * made.element_size()
            slab = torch.full((size + 2 * GUARD,), poison, dtype=torch.uint8, device=made.device)
            slabs.append((slab, size))
            inner = slab[GUARD : GUARD + size].view(made.dtype)
            return inner.as_strided(made.size(), made.stride())

    with Guarded():
        yield slabs


def overrun(torch: Any, slabs: Sequence[tuple[Any, int]], poison: int) -> str:
    """Say which guard zone was written to, or ''."""
    for slab, size in slabs:
        zones = torch.cat((slab[:GUARD], slab[GUARD + size :]))
        count = int((zones != poison).sum())
        if count:
            return f"{count} bytes beside an output of {size} bytes were written"
    return ""


def spoil(probe: Probe, sizes: Sequence[int], poison: int) -> None:
    """Leave poison in the blocks that torch's allocator will give for these sizes."""
    blocks = [
        probe.torch.full((n,), poison, dtype=probe.torch.uint8, device=probe.device) for n in sizes
    ]
    del blocks


# --- values ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A planned call with its input and global scale."""

    case: fp4_cases.Case
    x: Any
    scale: Any


@dataclass(frozen=True)
class Bytes:
    """What one call gave, as the kernel wrote it: codes two to a byte, (rows, K/2); flat scales."""

    codes: Any
    scales: Any
    overrun: str = ""


def called(probe: Probe, function: Callable[..., Tensors], call: Call, poison: int) -> Bytes:
    """Call the function in guarded memory."""
    spoil(probe, (call.x.numel() // 2, call.x.numel() // call.case.vec), poison)
    with guarded(probe, poison) as slabs:
        codes, scales = function(call.x, call.scale, **fp4_cases.call_options(call.case))
    probe.wait()
    found = in_memory(codes, scales, call.case.column_major)
    return replace(found, overrun=overrun(probe.torch, slabs, poison))


def in_memory(codes: Any, scales: Any, column_major: bool) -> Bytes:
    """Undo the views that the function returns."""
    scales = scales.transpose(-2, -1) if column_major else scales
    return Bytes(fp4_reference.flat_input(codes, column_major), scales.reshape(-1))


def check_values(probe: Probe, case: fp4_cases.Case) -> str:
    """Compare one call with the reference, and with the function as the library wrote it."""
    call = Call(case, *fp4_cases.make_input(case, probe.torch, probe.device))
    if case.raises:
        return check_raises(probe, call)
    ours = called(probe, probe.function, call, POISONS[0])
    theirs = called(probe, probe.original, call, POISONS[1])
    problems = [unwritten(ours, theirs), ours.overrun, different(ours, theirs)]
    if not problems[0]:
        problems += against_reference(probe, call, ours)
    return "; ".join(filter(None, problems))


def check_raises(probe: Probe, call: Call) -> str:
    """Check that a call that the release cannot serve fails the same with and without the patch."""
    options = fp4_cases.call_options(call.case)
    ours, theirs = (
        error_of(function, call.x, call.scale, **options)
        for function in (probe.function, probe.original)
    )
    if not ours:
        return "it did not fail"
    return "" if ours == theirs else f"fails with {ours}, the original with {theirs}"


def error_of(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Call a function; return what it raised, or ''."""
    try:
        function(*args, **options)
    except Exception as error:
        return first_lines(error)
    return ""


def untouched(ours: Bytes, theirs: Bytes, part: str) -> tuple[int, int]:
    """Return how many bytes kept both poisons, of how many."""
    first, second = getattr(ours, part), getattr(theirs, part)
    kept = (first == POISONS[0]) & (second == POISONS[1])
    return int(kept.sum()), kept.numel()


def unwritten(ours: Bytes, theirs: Bytes) -> str:
    """Say what neither call wrote."""
    found = []
    for part in ("codes", "scales"):
        count, total = untouched(ours, theirs, part)
        if count:
            found.append(f"{count} of {total} bytes of {part} were never written")
    return ", ".join(found)


def different(ours: Bytes, theirs: Bytes) -> str:
    """Say where the patched function gives other bytes than the original one."""
    for part in ("codes", "scales"):
        first, second = getattr(ours, part).reshape(-1), getattr(theirs, part).reshape(-1)
        if first.shape != second.shape:
            return f"{first.numel()} bytes of {part}, the original gives {second.numel()}"
        unequal = (first != second) & ~((first == POISONS[0]) & (second == POISONS[1]))
        if bool(unequal.any()):
            at = int(unequal.nonzero()[0])
            return (
                f"{int(unequal.sum())} bytes of {part} differ from the original's, "
                f"first at {at}: {int(first[at]):#04x}, {int(second[at]):#04x}"
            )
    return ""


def against_reference(probe: Probe, call: Call, got: Bytes) -> list[str]:
    """Compare codes, scales and padding with what the formats say."""
    case, x = call.case, fp4_reference.flat_input(call.x, call.case.column_major)
    rows, columns = x.shape[0], x.shape[1] // case.vec
    scales, padding = fp4_reference.unswizzle(got.scales, rows, columns, case.layout)
    verdict = fp4_reference.judge(
        x,
        call.scale,
        fp4_reference.unpack(got.codes),
        scales,
        vec=case.vec,
        kind=case.kind,
        zero_rule=fp4_reference.zero_rule(probe.release),
        inverse=case.scale == "inverse",
    )
    nonzero = int((padding != 0).sum())
    return [
        "" if verdict.right else str(verdict),
        f"{nonzero} padding bytes of the scales are not zero" if nonzero else "",
    ]


def group_of(case: fp4_cases.Case) -> str:
    """Return what the case has in common with others."""
    order = " column-major" if case.column_major else ""
    return f"values: {case.layout} {case.kind} {case.dtype}{order}"


def short_name(case: fp4_cases.Case) -> str:
    """Return what the case has to itself."""
    words = ["x".join(map(str, (*case.batch, f"M{case.m}"))), f"K{case.k}", case.values]
    words += [f"{case.scale} scale"] * (case.scale != "given") + ["(raises)"] * case.raises
    return " ".join(words)


def run_values(probe: Probe, cases: Sequence[fp4_cases.Case]) -> None:
    """Run the planned calls; where memory runs out, smaller ones, and say so."""
    limit = None
    for case in cases:
        if limit is not None and case.elements > limit:
            continue
        try:
            probe.attempt(group_of(case), short_name(case), check_values, case)
        except NoMemory:
            limit = case.elements // 2
            probe.notes.append(
                f"out of GPU memory at {case.name}; left out what has more than {limit} elements"
            )


# --- the first call --------------------------------------------------------------------------


def plain_input(probe: Probe, m: int = 130, k: int = 256, seed: int = 0) -> tuple[Any, Any]:
    """Make a plain input and a global scale for it."""
    torch = probe.torch
    generator = torch.Generator(device="cpu").manual_seed(seed)
    x = torch.randn(m, k, generator=generator).to(torch.bfloat16).to(probe.device)
    return x, torch.tensor([448.0 * 6.0 / 4.0], device=probe.device)


def first_calls(probe: Probe, count: int = 8) -> list[BaseException]:
    """Call from several threads at once, the module not being loaded yet; returns their errors."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(count)

    def call() -> None:
        barrier.wait()
        try:
            x, scale = plain_input(probe)
            probe.function(x, scale)
            probe.wait()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def start(probe: Probe) -> None:
    """Make the first call, from several threads; raises Trouble when there is no kernel to try."""
    entry = {"name": "first call", "seconds": 0.0, "cases": []}
    started = time.perf_counter()
    errors = first_calls(probe)
    entry["seconds"] = time.perf_counter() - started
    if errors and not second_try(probe):
        raise Trouble(build_problem(probe, errors[0]))
    problem = first_lines(errors[0]) if errors else ""
    entry["cases"] = [{"name": "8 threads at once", "problem": problem}]
    probe.groups["first call"] = entry


def second_try(probe: Probe) -> bool:
    """Say whether a single call works where many at once did not."""
    try:
        x, scale = plain_input(probe)
        probe.function(x, scale)
        probe.wait()
    except Exception:
        return False
    return True


def build_problem(probe: Probe, error: BaseException) -> str:
    """Say why there is no kernel: the compiler's message where it was a build."""
    if probe.out_of_memory(error):
        return no_memory()
    text = str(error)
    found = [line.strip() for line in text.splitlines() if re.search(r"\b(error|fatal)\b", line)]
    toolkit = nvcc_version()
    if found and toolkit:
        lines = " | ".join(dict.fromkeys(found))[:1200]
        return f"the kernel could not be built with nvcc {dotted(toolkit)}: {lines}"
    return f"the first call failed: {first_lines(error, 1200)}"


def nothing_written(probe: Probe) -> bool:
    """Say whether the kernel leaves every byte of its outputs as it was."""
    x, scale = plain_input(probe)
    results = []
    for poison in POISONS:
        spoil(probe, (x.numel() // 2, 256 * 16), poison)
        with guarded(probe, poison):
            codes, scales = probe.original(x, scale)
        probe.wait()
        results.append(in_memory(codes, scales, False))
    parts = [untouched(results[0], results[1], part) for part in ("codes", "scales")]
    return all(count == total for count, total in parts)


# --- compiled calls --------------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    """Options of a call, without its shape and values."""

    layout: str
    kind: str
    column_major: bool

    @property
    def name(self) -> str:
        """Short name for a case."""
        return f"{self.layout} {self.kind}{' column-major' if self.column_major else ''}"

    def case(self, m: int, k: int = 256, seed: int = 0) -> fp4_cases.Case:
        """Return a call in this style."""
        return fp4_cases.Case(
            layout=self.layout,
            kind=self.kind,
            dtype="bfloat16",
            m=m,
            k=k,
            column_major=self.column_major,
            batch=(),
            values="normal",
            scale="given",
            seed=seed,
        )


def styles_of(cases: Sequence[fp4_cases.Case]) -> list[Style]:
    """Return the styles among planned calls, in their order."""
    plain = [c for c in cases if c.dtype == "bfloat16" and not c.raises and not c.batch]
    return list(dict.fromkeys(Style(c.layout, c.kind, c.column_major) for c in plain))


def block(function: Callable[..., Tensors], options: Mapping[str, Any]) -> Any:
    """Return a function with work before and after the quantization, for a compiler to fuse.

    All of it is exact. Not a negation: Triton makes +0 of the -0 that eager gives.
    """

    def run(x: Any, scale: Any) -> tuple[Any, ...]:
        codes, scales = function(x * 0.5, scale, **options)
        return codes, scales, codes ^ 0x11, scales ^ 1

    return run


def same_tensors(got: Sequence[Any], want: Sequence[Any]) -> str:
    """Say how tensors differ: in shape, stride, dtype or bytes."""
    for position, (first, second) in enumerate(zip(got, want, strict=True)):
        looks = [(tuple(t.shape), tuple(t.stride()), str(t.dtype)) for t in (first, second)]
        if looks[0] != looks[1]:
            return f"output {position} is {looks[0]}, eager gives {looks[1]}"
        if not bool((first == second).all()):
            return f"output {position} has other bytes than eager gives"
    return ""


def fakes_of(graph: Any) -> list[tuple[tuple[Any, ...], tuple[Any, ...], str]]:
    """Return what the fakes promised for the outputs of a captured graph."""
    outputs = next(node for node in graph.graph.nodes if node.op == "output").args[0]
    fakes = [node.meta["example_value"] for node in outputs]
    return [(tuple(t.shape), tuple(t.stride()), str(t.dtype)) for t in fakes]


def check_compiled(probe: Probe, style: Style, backend: str, rows: Sequence[int]) -> str:
    """Compile once, for any M where there are several, and compare with eager byte for byte."""
    torch = probe.torch
    torch.compiler.reset()
    options = fp4_cases.call_options(style.case(1))
    testing = importlib.import_module("torch._dynamo.testing")
    counter = testing.CompileCounterWithBackend(backend)
    eager = block(probe.function, options)
    compiled = torch.compile(eager, fullgraph=True, dynamic=len(rows) > 1, backend=counter)
    for m in rows:
        x, scale = fp4_cases.make_input(style.case(m), torch, probe.device)
        got, want = compiled(x, scale), eager(x, scale)
        if problem := same_tensors(got, want):
            return f"M{m}: {problem}"
        if len(rows) == 1 and (problem := promised(counter.graphs[-1], want)):
            return problem
    return "" if counter.frame_count == 1 else f"{counter.frame_count} graphs for M in {rows}"


def promised(graph: Any, want: Sequence[Any]) -> str:
    """Say where a fake promised another shape, stride or dtype than the outputs have."""
    for fake, real in zip(fakes_of(graph), want, strict=True):
        found = (tuple(real.shape), tuple(real.stride()), str(real.dtype))
        if fake != found:
            return f"the fake promises {fake}, the kernel gives {found}"
    return ""


def run_compiled(probe: Probe, styles: Sequence[Style]) -> None:
    """Compile with both backends: every style for one M, some for any M."""
    some = [s for s in styles if s.kind == "nvfp4" and (s.layout == "128x4" or not s.column_major)]
    tries: list[tuple[Style, tuple[int, ...], str]] = []
    tries += [(style, (130,), "static") for style in styles]
    tries += [(style, (5, 31, 130, 300, 1025), "dynamic M") for style in some]
    for backend in ("eager", "inductor"):
        for style, rows, kind in tries:
            name = f"{style.name}, {kind}"
            probe.attempt(f"compiled: {backend}", name, check_compiled, style, backend, rows)


# --- CUDA graphs -----------------------------------------------------------------------------


def check_replays(probe: Probe, style: Style, options: Mapping[str, Any]) -> str:
    """Capture one call on a side stream and replay it with other inputs each time."""
    torch = probe.torch
    inputs = [fp4_cases.make_input(style.case(33, seed=n), torch, probe.device) for n in range(8)]
    given = {**fp4_cases.call_options(style.case(33)), **options}
    want = [probe.original(x, scale, **given) for x, scale in inputs]
    x, scale = (tensor.clone() for tensor in inputs[0])
    graph, got = captured(torch, lambda: probe.function(x, scale, **given))
    wrong = torch.zeros((), dtype=torch.int64, device=probe.device)
    for turn in range(REPLAYS):
        number = turn % len(inputs)
        x.copy_(inputs[number][0])
        scale.copy_(inputs[number][1])
        graph.replay()
        for ours, theirs in zip(got, want[number], strict=True):
            wrong += (ours != theirs).sum()
    count = int(wrong)
    return f"{count} bytes differ from eager's in {REPLAYS} replays" if count else ""


def captured(torch: Any, call: Callable[[], Any], pool: Any = None) -> tuple[Any, Any]:
    """Capture a call on a side stream, after one to warm up there."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        result = call()
    torch.cuda.current_stream().wait_stream(stream)
    return graph, result


def check_piecewise(probe: Probe, style: Style, segments: int = 4) -> str:
    """Replay captured segments that share a pool, with work that is not captured between them."""
    torch = probe.torch
    given = fp4_cases.call_options(style.case(33))
    fixed = [fp4_cases.make_input(style.case(33), torch, probe.device) for _ in range(segments)]
    pool = torch.cuda.graph_pool_handle()

    def segment(number: int) -> Any:
        x, scale = fixed[number]
        return block(probe.function, given)(x, scale)

    def between(x: Any) -> Any:
        return torch.softmax(x.float(), -1).mul(64).to(x.dtype)

    taken = [captured(torch, lambda n=n: segment(n), pool) for n in range(segments)]  # type: ignore[misc]
    wrong = torch.zeros((), dtype=torch.int64, device=probe.device)
    for turn in range(REPLAYS // 8):
        x, _ = fp4_cases.make_input(style.case(33, seed=turn), torch, probe.device)
        for number, (graph, got) in enumerate(taken):
            fixed[number][0].copy_(x)
            graph.replay()
            want = block(probe.original, given)(x, fixed[number][1])
            for ours, theirs in zip(got, want, strict=True):
                wrong += (ours != theirs).sum()
            x = between(x)
    return f"{int(wrong)} bytes differ from eager's" if int(wrong) else ""


def check_reduce_overhead(probe: Probe, style: Style) -> str:
    """Let torch.compile make the CUDA graphs."""
    torch = probe.torch
    torch.compiler.reset()
    eager = block(probe.function, fp4_cases.call_options(style.case(33)))
    compiled = torch.compile(eager, fullgraph=True, mode="reduce-overhead")
    for turn in range(6):
        x, scale = fp4_cases.make_input(style.case(33, seed=turn), torch, probe.device)
        torch.compiler.cudagraph_mark_step_begin()
        if problem := same_tensors(compiled(x, scale), eager(x, scale)):
            return f"call {turn}: {problem}"
    return ""


def run_graphs(probe: Probe, styles: Sequence[Style]) -> None:
    """Capture and replay: each style, with and without programmatic dependent launch."""
    launches = (True, False) if "enable_pdl" in probe.parameters else (None,)
    for style in styles:
        for pdl in launches:
            options = {} if pdl is None else {"enable_pdl": pdl}
            name = f"{style.name}, {REPLAYS} replays" + ("" if pdl is None else f", PDL {pdl}")
            probe.attempt("CUDA graphs", name, check_replays, style, options)
    probe.attempt("CUDA graphs", f"{styles[0].name}, piecewise", check_piecewise, styles[0])


# --- the operator ----------------------------------------------------------------------------


def captured_call(probe: Probe, style: Style) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """Return the operator that a compiled call becomes and its arguments; None without one."""
    torch = probe.torch
    torch.compiler.reset()
    given = fp4_cases.make_input(style.case(33), torch, probe.device)
    options = fp4_cases.call_options(style.case(33))
    graphs: list[Any] = []

    def keep(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def call(x: Any, scale: Any) -> Tensors:
        return probe.function(x, scale, **options)

    torch.compile(call, fullgraph=True, backend=keep)(*given)
    nodes = list(graphs[0].graph.nodes)
    places = dict(zip((n for n in nodes if n.op == "placeholder"), given, strict=False))
    for node in nodes:
        if isinstance(node.target, torch._ops.OpOverload) and PACKAGE in node.target.namespace:
            found = torch.fx.map_arg((node.args, node.kwargs), places.__getitem__)
            return node.target, tuple(found[0]), dict(found[1])
    return None


def check_operator(probe: Probe, style: Style) -> str:
    """Let torch check schema, fake, autograd registration and AOT dispatch of the operator."""
    found = captured_call(probe, style)
    if found is None:
        return "no operator in the graph"
    operator, args, kwargs = found
    results = probe.torch.library.opcheck(operator, args, kwargs, raise_exception=False)
    bad = [f"{name}: {outcome}" for name, outcome in results.items() if outcome != "SUCCESS"]
    return "; ".join(bad)[:600]


def check_other_device(probe: Probe, style: Style) -> str:
    """Compare the second GPU's bytes with the first's."""
    torch = probe.torch
    case = style.case(130)
    options = fp4_cases.call_options(case)
    x, scale = fp4_cases.make_input(case, torch, probe.device)
    want = probe.function(x, scale, **options)
    with torch.cuda.device(1):
        for function in (probe.function, probe.original):
            got = function(x.to("cuda:1"), scale.to("cuda:1"), **options)
            torch.cuda.synchronize()
            if problem := same_tensors([t.to(probe.device) for t in got], want):
                return problem
    return ""


# --- the machine -----------------------------------------------------------------------------


def nvcc() -> str | None:
    """Return the compiler that FlashInfer would take."""
    named = os.environ.get("FLASHINFER_NVCC")
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    found = [named, *(os.path.join(home, "bin", "nvcc") for home in homes[:2] if home)]
    found += [shutil.which("nvcc"), os.path.join("/usr/local/cuda", "bin", "nvcc")]
    return next((path for path in found if path and os.access(path, os.X_OK)), None)


def nvcc_version() -> tuple[int, int] | None:
    """Return major and minor version of nvcc; None where it is not there or does not say."""
    program = nvcc()
    if program is None:
        return None
    try:
        asked = subprocess.run([program, "--version"], capture_output=True, errors="replace")
    except OSError:
        return None
    found = re.search(r"release (\d+)\.(\d+)", asked.stdout)
    return (int(found[1]), int(found[2])) if found else None


def dotted(version: Sequence[int]) -> str:
    """Return a version as text."""
    return ".".join(map(str, version))


def compiled_ahead() -> list[str]:
    """Return the distributions installed here that hold compiled modules."""
    names = ("flashinfer-jit-cache", "flashinfer-cubin")
    found = []
    for name in names:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def check_surroundings(probe: Probe) -> None:
    """Raise Trouble where no kernel can come to be; note a toolkit that does not fit."""
    toolkit = nvcc_version()
    ahead = compiled_ahead()
    if ahead:
        probe.notes.append(f"compiled modules are installed: {', '.join(ahead)}")
    if toolkit is None:
        if not any("jit-cache" in name for name in ahead):
            raise Trouble(
                "there is no nvcc to build the kernel with and no flashinfer-jit-cache; "
                "put nvcc on PATH or set CUDA_HOME"
            )
        return
    capability = probe.torch.cuda.get_device_capability(probe.device)
    least = LEAST_NVCC.get(capability, (0, 0))
    if toolkit < least:
        raise Trouble(
            f"nvcc {dotted(toolkit)} does not know {probe.architecture}; "
            f"it needs {dotted(least)} or later"
        )
    ours = str(probe.torch.version.cuda).split(".")[0]
    if ours != str(toolkit[0]):
        probe.notes.append(f"toolkit mismatch: nvcc {dotted(toolkit)}, torch for {ours}")


def driver() -> str:
    """Return the version of the driver, or ''."""
    try:
        with open("/proc/driver/nvidia/version") as file:
            found = re.search(r"Module.*?(\d+\.[\d.]+)", file.read())
    except OSError:
        return ""
    return found[1] if found else ""


# --- the document ----------------------------------------------------------------------------


def main(argument: dict[str, Any]) -> dict[str, Any]:
    """Run the check and return the answer."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:1] = argument["prepend"]
    sys.path.append(here)
    warnings.simplefilter("ignore")
    document = new_document()
    try:
        probe = load(argument, document)
    except Trouble as problem:
        document["trouble"] = str(problem)
        return document
    except BaseException as problem:
        if isinstance(problem, ModuleNotFoundError):
            document["missing"] = problem.name or ""
        document["import_error"] = first_lines(problem)
        return document
    try:
        run(probe, argument, document)
    except Trouble as problem:
        document["trouble"] = str(problem)
    except Exception as problem:
        if not probe.out_of_memory(problem):
            raise
        document["trouble"] = no_memory()
    document["notes"] = probe.notes
    document["groups"] = list(probe.groups.values())
    return document


def new_document() -> dict[str, Any]:
    """Return an answer with nothing in it yet."""
    texts = "python torch cuda nvcc driver flashinfer file gpu architecture operator import_error"
    document: dict[str, Any] = dict.fromkeys([*texts.split(), "missing", "trouble", "nothing"], "")
    document |= {"schema": 1, "python": sys.version.split()[0], "driver": driver()}
    return {**document, "notes": [], "groups": [], "bench": None}


def load(argument: Mapping[str, Any], document: dict[str, Any]) -> Probe:
    """Import torch, the library and what stands beside this file."""
    if argument["scenario"] not in SCENARIOS:
        raise LookupError(f"there is no scenario {argument['scenario']!r}")
    for name in list(os.environ):
        if name.startswith(SETTINGS) or name.endswith("_DISABLE_FP4_QUANT_FAST_MATH"):
            del os.environ[name]
    # What is compiled here is small: starting worker processes takes longer.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    torch = importlib.import_module("torch")
    document["torch"], document["cuda"] = str(torch.__version__), str(torch.version.cuda)
    if not torch.cuda.is_available():
        raise Trouble(
            "there is no GPU that torch can use; run this on the GPU host, or leave --gpu out"
        )
    for name in ("fp4_cases", "fp4_reference"):
        globals()[name] = importlib.import_module(name)
    function = importlib.import_module(PACKAGE).fp4_quantize
    document["flashinfer"] = importlib.metadata.version("flashinfer-python")
    document["file"] = inspect.getsourcefile(inspect.unwrap(function)) or ""
    document["gpu"] = torch.cuda.get_device_name(0)
    document["nvcc"] = dotted(nvcc_version() or ())
    parameters = frozenset(inspect.signature(function).parameters)
    return Probe(
        torch, function, original_of(function), release_of(document["flashinfer"]), parameters
    )


def original_of(function: Callable[..., Tensors]) -> Callable[..., Tensors]:
    """Return what patchkit's wrapper calls, or the function itself where there is none."""
    return function.__wrapped__ if wraps_operator(function) else function  # type: ignore[attr-defined]


def wraps_operator(function: Callable[..., Any]) -> bool:
    """Say whether a patch made an operator of the function: patchkit marks its wrappers."""
    return "call_operator" in function.__code__.co_freevars


def release_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a release; raises ValueError."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if not found:
        raise ValueError(f"cannot read FlashInfer version {version!r}")
    return tuple(int(part) for part in found.groups())


def run(probe: Probe, argument: Mapping[str, Any], document: dict[str, Any]) -> None:
    """Run every group; stops where the kernel does nothing."""
    document["architecture"] = probe.architecture
    check_surroundings(probe)
    start(probe)
    if nothing_written(probe):
        document["nothing"] = (
            f"this kernel does nothing on {probe.architecture} in FlashInfer "
            f"{document['flashinfer']}; flashinfer-fp4-software-e2m1 makes it compute below SM100"
        )
        return
    cases = fp4_cases.plan(probe.parameters, probe.release)
    run_values(probe, cases)
    left_out = fp4_cases.omitted(probe.parameters, probe.release)
    probe.notes += [f"left out: {reason}" for reason in left_out]
    if mostly_wrong(probe):
        probe.notes.append("the kernel is wrong: not compiled, nor captured")
        return
    styles = styles_of(cases)
    run_graphs(probe, styles)
    if wraps_operator(probe.function):
        run_operator(probe, styles, document)
    else:
        probe.notes.append("no patch made an operator of it: not compiled")
    if probe.torch.cuda.device_count() > 1:
        probe.attempt("devices", f"{styles[0].name}, cuda:1", check_other_device, styles[0])
    if argument["bench"]:
        probe.attempt("measurements", "all", measure, document)


def measure(probe: Probe, document: dict[str, Any]) -> str:
    """Measure what ``--bench`` asks for."""
    document["bench"] = importlib.import_module("fp4_bench").measure(probe)
    return ""


def mostly_wrong(probe: Probe) -> bool:
    """Say whether more than a tenth of the cases so far failed."""
    cases = [case for group in probe.groups.values() for case in group["cases"]]
    return 10 * sum(bool(case["problem"]) for case in cases) > len(cases)


def run_operator(probe: Probe, styles: Sequence[Style], document: dict[str, Any]) -> None:
    """Compile, and check the operator."""
    run_compiled(probe, styles)
    probe.attempt(
        "CUDA graphs", f"{styles[0].name}, reduce-overhead", check_reduce_overhead, styles[0]
    )
    for style in styles:
        probe.attempt("opcheck", style.name, check_operator, style)
    found = captured_call(probe, styles[0])
    document["operator"] = str(found[0]) if found else ""


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answer = json.dumps(main(json.loads(sys.argv[1])))
    out.write(f"\n<patchkit>{answer}</patchkit>\n")
    out.flush()
    os._exit(0)  # what the library left running, threads and exit handlers, is not waited for
