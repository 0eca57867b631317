"""Measurements that go with the kernel probe: what a patch costs, and what it gives back.

Times on the host come from ``time.perf_counter``, times on the GPU from CUDA events around replays
of captured graphs, so that launches do not count. Compared things are measured in turns within one
run, and every figure is a median, with the spread (10th and 90th percentile) beside it.
"""

from __future__ import annotations

import gc
import importlib.metadata
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: (M, K) whose throughput is measured, bfloat16, NVFP4, 128x4.
SIZES = (
    *((1 << m, 4096) for m in range(0, 17)),
    (4096, 1024),
    (4096, 2880),
    (4096, 7168),
    (4096, 16384),
    (16384, 8192),
    (32768, 2880),
)
#: The same for MXFP4. Up to 0.6.7.post3 K must be a multiple of 128.
MXFP4_SIZES = ((1, 4096), (64, 4096), (1024, 4096), (4096, 4096), (16384, 8192), (32768, 2816))
#: Rows of the decode block.
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
HIDDEN, INNER = 4096, 12288
#: Bytes that inputs of one measurement take together, so that no cache holds them.
FLUSHED = 256 << 20


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, 10th and 90th percentile."""
    tens = statistics.quantiles(values, n=10) if len(values) > 1 else [values[0]] * 9
    named = {"median": statistics.median(values), "p10": tens[0], "p90": tens[-1]}
    return {name: round(value, 4) for name, value in named.items()}


def measure(probe: Any) -> dict[str, Any]:
    """Measure everything; returns a JSON object (docs/gpu.md says what is in it)."""
    found = {"schema": 1, "machine": machine(probe)}
    found["throughput"] = [size_rate(probe, m, k) for m, k in SIZES]
    found["throughput_mxfp4"] = [size_rate(probe, m, k, 32) for m, k in MXFP4_SIZES]
    if probe.function is not probe.original:
        found["eager"] = eager(probe)
        found["replay"] = replay(probe)
        found["decode_block"] = [decode_block(probe, m) for m in ROWS]
    return found


def machine(probe: Any) -> dict[str, Any]:
    """Say what was measured on."""
    torch = probe.torch
    properties = torch.cuda.get_device_properties(probe.device)
    return {
        "gpu": properties.name,
        "architecture": probe.architecture,
        "multiprocessors": properties.multi_processor_count,
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "flashinfer": importlib.metadata.version("flashinfer-python"),
        "clocks": clocks(),
        "copy_gb_s": round(copy_rate(torch, probe.device), 1),
    }


def clocks() -> str:
    """Return clocks as nvidia-smi tells them, or ''."""
    asked = "--query-gpu=clocks.sm,clocks.mem,driver_version"
    try:
        done = subprocess.run(
            ["nvidia-smi", asked, "--format=csv,noheader"], capture_output=True, text=True
        )
    except OSError:
        return ""
    return done.stdout.partition("\n")[0]


def gpu_times(torch: Any, launch: Callable[[], Any], repeats: int, rounds: int = 9) -> list[float]:
    """Return microseconds of a launch on the GPU, once a round, each over some repeats."""
    launch()
    times = []
    for _ in range(rounds):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(repeats):
            launch()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) * 1000 / repeats)
    return times


def captured(torch: Any, calls: Sequence[Callable[[], Any]]) -> Any:
    """Capture calls in one graph, after a run to warm up; returns the graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return graph


def copy_rate(torch: Any, device: str) -> float:
    """Return GB/s (read and written) of a copy of 2 GiB."""
    source = torch.empty(2 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    microseconds = statistics.median(gpu_times(torch, lambda: target.copy_(source), 3))
    return float(2 * source.numel() / microseconds / 1000)


def input_of(probe: Any, m: int, k: int) -> tuple[Any, Any]:
    """Make a bfloat16 input and its global scale."""
    torch = probe.torch
    x = torch.randn(m, k, device=probe.device, dtype=torch.bfloat16)
    return x, torch.tensor([448.0], device=probe.device)


def size_rate(probe: Any, m: int, k: int, vec: int = 16) -> dict[str, Any]:
    """Count the bytes the kernel must move, each once, against its time in a replayed graph.

    ``vec`` is the number of values that share a scale: 16 for NVFP4, 32 for MXFP4. Calls take turns
    over inputs that together outgrow the caches.
    """
    moved = m * k * 2 + m * k // 2 + m * k // vec
    number = max(2, min(64, FLUSHED // (m * k * 2)))
    given = [input_of(probe, m, k) for _ in range(number)]
    graph = captured(probe.torch, [lambda g=g: probe.original(*g, vec, vec == 32) for g in given])  # type: ignore[misc]
    times = [t / number for t in gpu_times(probe.torch, graph.replay, 3)]
    rate = moved / statistics.median(times) / 1000
    return {"m": m, "k": k, "bytes": moved, "us": spread(times), "gb_s": round(rate, 1)}


def eager(probe: Any, rounds: int = 2000, calls: int = 10) -> dict[str, Any]:
    """Measure what an eager call costs on the host, original and patched in turns.

    The difference is that of neighbours in time; the median of many is steadier than the host.
    """
    x, scale = input_of(probe, 1, 256)
    compared: Mapping[str, Any] = {"original": probe.original, "patched": probe.function}
    found: dict[str, list[float]] = {name: [] for name in compared}
    gc.disable()
    for turn in range(rounds):
        order = list(compared)
        for name in order if turn % 2 else reversed(order):
            found[name].append(host_time(probe, compared[name], x, scale, calls))
    gc.enable()
    pairs = zip(found["patched"], found["original"], strict=True)
    more = [patched - original for patched, original in pairs]
    return {
        "m": 1,
        "k": 256,
        "us": {name: spread(values) for name, values in found.items()},
        "difference_us": spread(more),
    }


def host_time(probe: Any, function: Any, x: Any, scale: Any, calls: int) -> float:
    """Return microseconds of the host for a call."""
    probe.torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        function(x, scale)
    return (time.perf_counter() - started) / calls * 1e6


def replay(probe: Any, calls: int = 50, rounds: int = 30) -> dict[str, Any]:
    """Measure a replayed graph of calls, original and patched in turns."""
    given = input_of(probe, 128, 4096)
    compared = {"original": probe.original, "patched": probe.function}
    graphs = {
        name: captured(probe.torch, [lambda f=f: f(*given)] * calls)  # type: ignore[misc]
        for name, f in compared.items()
    }
    found: dict[str, list[float]] = {name: [] for name in compared}
    for _ in range(rounds):
        for name, graph in graphs.items():
            found[name] += [t / calls for t in gpu_times(probe.torch, graph.replay, 10, 1)]
    middle = {name: statistics.median(values) for name, values in found.items()}
    return {
        "m": 128,
        "k": 4096,
        "us": {name: spread(values) for name, values in found.items()},
        "ratio": round(middle["patched"] / middle["original"], 4),
    }


def decode_block(probe: Any, m: int) -> dict[str, Any]:
    """Measure a dense block of a decoder, eager against compiled whole and replayed as a graph.

    Two layers of quantize, matrix product and activation. No GPU below SM100 multiplies FP4; the
    product stands in for it with fp8 over the very same bytes, so its values mean nothing.
    """
    torch = probe.torch
    run = dense_block(probe)
    x, scale = input_of(probe, m, HIDDEN)
    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True)
    compiled(x, scale)
    graph = captured(torch, [lambda: compiled(x, scale)])
    timed = {"eager": lambda: run(x, scale), "graph": graph.replay}
    found = {name: wall_times(torch, call) for name, call in timed.items()}
    ratio = statistics.median(found["eager"]) / statistics.median(found["graph"])
    return {
        "m": m,
        "us": {name: spread(values) for name, values in found.items()},
        "ratio": round(ratio, 2),
    }


def dense_block(probe: Any) -> Callable[[Any, Any], Any]:
    """Return up and down projection of a decoder with their quantizations and activation."""
    torch, fp8 = probe.torch, probe.torch.float8_e4m3fn

    def weight(rows: int, columns: int) -> Any:
        return (torch.randn(rows, columns, device=probe.device) / 64).to(fp8).t()

    up, down = weight(INNER, HIDDEN // 2), weight(HIDDEN, INNER // 2)
    one = torch.ones((), device=probe.device)

    def run(x: Any, scale: Any) -> Any:
        codes, _ = probe.function(x, scale)
        inner = torch._scaled_mm(codes.view(fp8), up, one, one, out_dtype=torch.bfloat16)
        inner = torch.nn.functional.silu(inner.clamp(-8, 8))
        codes, _ = probe.function(inner, scale)
        return torch._scaled_mm(codes.view(fp8), down, one, one, out_dtype=torch.bfloat16)

    return run


def wall_times(
    torch: Any, call: Callable[[], Any], calls: int = 20, rounds: int = 30
) -> list[float]:
    """Return microseconds from the host's view of a call, once a round, queue and all."""
    for _ in range(5):
        call()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) / calls * 1e6)
    return times
