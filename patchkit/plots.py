"""What ``verify --gpu --bench`` measured as inline SVG and tables: no library, no script.

A bench document may come from a file, so every part of it may be missing and every number strange:
what is not understood is left out, and a chart with nothing on it is ''.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any, NamedTuple

from patchkit.plaintext import one_line

SCHEMA = 1
#: The K whose rows are drawn as one line.
MAIN_K = 4096

_WIDTH, _HEIGHT = 480, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 454, 30, 232
_CHARACTER, _LINE = 8.0, 16.0  # room for the letters of a narrow screen, the largest there are
_MOST = 1e15
_MOST_ROWS = 200
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")

# What was measured


class Rate(NamedTuple):
    """The kernel on one M and K: bytes moved, GB/s, microseconds."""

    m: float
    k: float
    size: float
    rate: float
    us: float | None


class Speedup(NamedTuple):
    """The decode block on M rows: eager over CUDA graph, and microseconds of both."""

    m: float
    ratio: float
    eager: float | None
    graph: float | None


def rates(bench: object, key: str = "throughput") -> list[Rate]:
    """Return what is known of the throughput under a key, by size."""
    found = []
    for row in _rows(bench, key):
        m, k, size = (_number(row.get(key), 1) for key in ("m", "k", "bytes"))
        rate = _number(row.get("gb_s"), 0)
        if m and k and size and rate is not None:
            found.append(Rate(m, k, size, rate, _number(_at(row, "us", "median"))))
    return sorted(found, key=lambda r: (r.size, r.k, r.m))


def speedups(bench: object) -> list[Speedup]:
    """Return what is known of the decode block, by M."""
    found = {}
    for row in _rows(bench, "decode_block"):
        m, ratio = _number(row.get("m"), 1), _number(row.get("ratio"), 0)
        if m and ratio is not None:
            us = (_number(_at(row, "us", name, "median")) for name in ("eager", "graph"))
            found[m] = Speedup(m, ratio, *us)
    return [found[m] for m in sorted(found)]


def copy_rate(bench: object) -> float | None:
    """Return the GB/s of a copy on the machine, if known."""
    return _number(_part(bench, "machine", "copy_gb_s"), 0) or None


def machine(bench: object) -> dict[str, str]:
    """Return what was measured on, by name; what is not known is left out."""
    names = {"gpu": "GPU", "flashinfer": "FlashInfer", "torch": "torch", "cuda": "CUDA"}
    names |= {"clocks": "clocks, driver"}
    texts = {shown: _part(bench, "machine", key) for key, shown in names.items()}
    facts = {name: one_line(text) for name, text in texts.items() if isinstance(text, str)}
    copied = copy_rate(bench)
    facts["copy of 2 GiB"] = f"{figure(copied)} GB/s" if copied else ""
    return {name: text for name, text in facts.items() if text}


def costs(bench: object) -> list[tuple[str, str, str, str]]:
    """Return a row for each cost of the patch: what, original, patched, and how they differ."""
    found = []
    us = {name: _spread(_part(bench, "eager", "us", name)) for name in ("original", "patched")}
    more = _spread(_part(bench, "eager", "difference_us"))
    if more or any(us.values()):
        found.append(("eager call, time of the host", *us.values(), more or _NONE))
    us = {name: _spread(_part(bench, "replay", "us", name)) for name in us}
    ratio = _number(_part(bench, "replay", "ratio"), 0)
    if ratio is not None or any(us.values()):
        shown = _NONE if ratio is None else f"ratio {ratio:.3f}"
        found.append(("call in a replayed CUDA graph", *us.values(), shown))
    return [(what, first or _NONE, second or _NONE, last) for what, first, second, last in found]


def figure(value: float) -> str:
    """Write a number for people: three digits, more before the point when there are more."""
    if abs(value) >= 1e7:
        return f"{value:.2e}"
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{places}f}"


_NONE = "not measured"
_TIMES = "\N{MULTIPLICATION SIGN}"


def _spread(value: object) -> str:
    """Write a median with its 10th and 90th percentile; '' when it is not known."""
    middle, low, high = (_number(_at(value, key)) for key in ("median", "p10", "p90"))
    if middle is None:
        return ""
    known = low is not None and high is not None
    between = f" ({figure(low or 0)} to {figure(high or 0)})" if known else ""
    return f"{figure(middle)} µs{between}"


def _part(bench: object, *keys: str) -> Any:
    """Return a part of a bench document, or None; one of another schema has none."""
    return _at(bench, *keys) if _at(bench, "schema") == SCHEMA else None


def _at(value: object, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _rows(bench: object, key: str) -> list[Mapping[str, Any]]:
    found = _part(bench, key)
    rows = found[:_MOST_ROWS] if isinstance(found, list) else []
    return [row for row in rows if isinstance(row, Mapping)]


def _number(value: object, least: float = -_MOST) -> float | None:
    """Return a number that can be drawn, or None; NaN is within no bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if least <= value <= _MOST else None


# Charts


def throughput(bench: object, name: str = "throughput", *, alone: bool = False) -> str:
    """Draw bytes moved against GB/s, with the rate of a copy.

    ``name`` begins the ids in it. ``alone`` makes a file of it, with its own style.
    """
    found = rates(bench)
    if not found:
        return ""
    copied = copy_rate(bench)
    rows = _Scale.linear(max([r.rate for r in found] + [copied or 0]))
    columns = _Scale.decades(found[0].size, found[-1].size)
    parts = [*_frame(columns, rows), *_ceiling(copied, rows)]
    parts += [*_series(found, columns, rows), *_others(found, columns, rows)]
    title = f"Throughput of the kernel{_on(bench)}: bytes moved against GB/s"
    return _svg(name, title, _told_rates(found, copied), parts, alone)


def decode(bench: object, name: str = "decode", *, alone: bool = False) -> str:
    """Draw how much faster the decode block is as a CUDA graph, by M; options as above."""
    found = speedups(bench)
    if not found:
        return ""
    rows = _Scale(0, max([s.ratio for s in found] + [1.0]), _BOTTOM, _TOP)
    parts = list(_bars(found, rows))
    told = ", ".join(f"{figure(s.ratio)} at M = {s.m:.0f}" for s in found)
    title = f"Decode block{_on(bench)}: time of eager calls over time of a CUDA graph, by rows M"
    return _svg(name, title, f"{told}.", parts, alone)


@dataclass(frozen=True)
class _Scale:
    """Where values lie, from ``low`` at ``start`` to ``high`` at ``end``, and its ticks."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...] = ()
    map: Callable[[float], float] = float

    def __call__(self, value: float) -> float:
        share = (self.map(value) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    @classmethod
    def linear(cls, most: float) -> _Scale:
        """Go up from 0 to a round number, in at most five steps of 1, 2 or 5."""
        most = max(most, 1e-3)
        power = 10.0 ** math.floor(math.log10(most / 5))
        step = next(power * n for n in (1, 2, 5, 10, 20) if power * n * 5 >= most)
        number = math.ceil(most / step)
        ticks = tuple(step * n for n in range(number + 1))
        return cls(0, ticks[-1], _BOTTOM, _TOP, ticks)

    @classmethod
    def decades(cls, least: float, most: float) -> _Scale:
        """Go right by powers of ten, with a tick at each, or at some when there are many."""
        first = math.floor(math.log10(least))
        last = max(math.ceil(math.log10(most)), first + 1)
        ticks = tuple(10.0**n for n in range(first, last + 1, math.ceil((last - first) / 6)))
        return cls(first, last, _LEFT, _RIGHT, ticks, math.log10)


def _frame(columns: _Scale, rows: _Scale) -> Iterator[str]:
    for value in rows.ticks:
        kind = "grid" if value else "axis"
        yield _path(kind, (_LEFT, rows(value)), (_RIGHT, rows(value)))
        yield _text(_LEFT - 8, rows(value) + 4, f"{value:,g}", "end")
    for value in columns.ticks:
        yield _path("axis", (columns(value), _BOTTOM), (columns(value), _BOTTOM + 5))
        yield _text(columns(value), _BOTTOM + 21, _size(value), "mid")
    yield _text(_LEFT - 8, _TOP - 17, "GB/s", "end")
    yield _text(_RIGHT, _BOTTOM + 41, "bytes moved", "end")


def _ceiling(copied: float | None, rows: _Scale) -> Iterator[str]:
    if copied:
        y = rows(copied)
        yield _path("limit", (_LEFT, y), (_RIGHT, y))
        yield _text(_LEFT + 6, y - 6, f"copy: {figure(copied)}", "halo")


def _series(found: Sequence[Rate], columns: _Scale, rows: _Scale) -> Iterator[str]:
    """Draw the rates of the main K as a line with dots, named half way up."""
    main = [rate for rate in found if rate.k == MAIN_K]
    if not main:
        return
    places = [(columns(rate.size), rows(rate.rate)) for rate in main]
    yield _path("line", *places)
    for rate, (x, y) in zip(main, places, strict=True):
        yield f'<circle class="dot" cx="{x}" cy="{y}" r="3.5">{_hint(_told_rate(rate))}</circle>'
    middle = (places[0][1] + min(y for _, y in places)) / 2
    x, y = min(places, key=lambda place: abs(place[1] - middle))
    label = f"M {_TIMES} {MAIN_K}"
    left = x - _LEFT > len(label) * _CHARACTER + 12
    yield _text(x - 10 if left else x + 10, y + 4, label, "end series" if left else "series")


def _others(found: Sequence[Rate], columns: _Scale, rows: _Scale) -> Iterator[str]:
    """Draw the other rates as squares, each with its K below it, where there is room."""
    others = [rate for rate in found if rate.k != MAIN_K]
    taken: list[_Place] = []
    for rate in reversed(others):  # so that no line to a label crosses another label
        x, y = columns(rate.size), rows(rate.rate)
        label = f"K = {rate.k:.0f}"
        if len(others) <= 8 and (place := _room(x, y, len(label) * _CHARACTER, taken)):
            taken.append(place)
            if place.base > y + 2 * _LINE:
                yield _path("lead", (x, y), (x, place.base - 11))
            yield _text(place.left, place.base, label, "halo other")
        yield f'<path class="square" d="M{x - 4} {y - 4}h8v8h-8z">{_hint(_told_rate(rate))}</path>'


class _Place(NamedTuple):
    """Where a label is: its left end, its base line, its width."""

    left: float
    base: float
    width: float

    def covers(self, other: _Place) -> bool:
        apart = self.left > other.left + other.width + 6 or other.left > self.left + self.width + 6
        return not apart and abs(self.base - other.base) < _LINE


def _room(x: float, y: float, width: float, taken: Sequence[_Place]) -> _Place | None:
    """Find a place below a mark where a label covers none of those there are."""
    left = round(min(x - 4, _WIDTH - 4 - width), 1)
    for line in range(1, 9):
        place = _Place(left, round(y + 5 + line * _LINE, 1), width)
        if place.base < _BOTTOM - 4 and not any(map(place.covers, taken)):
            return place
    return None


def _bars(found: Sequence[Speedup], rows: _Scale) -> Iterator[str]:
    """Draw a bar for each M, its value above it where there is room."""
    places = _log2_places([s.m for s in found])
    gap = min((after - before for before, after in pairwise(places)), default=60.0)
    half = round(max(1.0, min(44.0, gap * 0.62) / 2), 1)
    tops = [rows(speedup.ratio) for speedup in found]
    for speedup, x, y in zip(found, places, tops, strict=True):
        bar = f"M{round(x - half, 1)} {_BOTTOM}V{y}H{round(x + half, 1)}V{_BOTTOM}z"
        yield f'<path class="bar" d="{bar}">{_hint(_told_speedup(speedup))}</path>'
    values = [(x, y - 6, figure(s.ratio)) for x, y, s in zip(places, tops, found, strict=True)]
    yield from _even(rows)
    yield from _spaced(values, "mid value")
    ticks = [(x, _BOTTOM + 21, f"{s.m:.0f}") for x, s in zip(places, found, strict=True)]
    yield from _spaced(ticks, "mid")
    yield _path("axis", (8, _BOTTOM), (_RIGHT, _BOTTOM))
    yield _text(8, _BOTTOM + 41, "time of eager calls over time of a graph")
    yield _text(_RIGHT, _BOTTOM + 41, "rows M", "end")


def _spaced(texts: Sequence[tuple[float, float, str]], kind: str) -> Iterator[str]:
    """Write texts from left to right, without those that have no room."""
    end = -math.inf
    for x, y, text in texts:
        half = len(text) * _CHARACTER / 2
        if x - half > end + 2:
            end = x + half
            yield _text(x, y, text, kind)


def _log2_places(values: Sequence[float]) -> list[float]:
    low, high = math.log2(values[0]), math.log2(values[-1])
    if high == low:
        return [_WIDTH / 2.0] * len(values)
    scale = _Scale(low, high, 58, _RIGHT - 22, map=math.log2)
    return [scale(value) for value in values]


def _even(rows: _Scale) -> Iterator[str]:
    yield _path("limit", (8, rows(1)), (_RIGHT, rows(1)))
    yield _text(8, rows(1) - 6, f"1{_TIMES}", "halo")


# Words


def _on(bench: object) -> str:
    facts = machine(bench)
    with_release = [f"FlashInfer {facts['FlashInfer']}"] if "FlashInfer" in facts else []
    found = ", ".join(([facts["GPU"]] if "GPU" in facts else []) + with_release)
    return f" ({found})" if found else ""


def _told_rates(found: Sequence[Rate], copied: float | None) -> str:
    told = f"From {_told_rate(found[0])} to {_told_rate(found[-1])}."
    best = max(found, key=lambda r: r.rate)
    return f"{told} Most: {_told_rate(best)}." + (
        f" A copy moves {figure(copied)} GB/s." if copied else ""
    )


def _told_rate(rate: Rate) -> str:
    time = "" if rate.us is None else f" in {figure(rate.us)} µs"
    return f"{rate.m:.0f} {_TIMES} {rate.k:.0f}: {_size(rate.size)}{time}, {figure(rate.rate)} GB/s"


def _told_speedup(speedup: Speedup) -> str:
    names = {"eager": speedup.eager, "as a graph": speedup.graph}
    times = [f"{figure(us)} µs {name}" for name, us in names.items() if us is not None]
    return ", ".join([f"M = {speedup.m:.0f}: {_factor(speedup.ratio)}", *times])


def _factor(ratio: float) -> str:
    return f"{figure(ratio)}{_TIMES}"


def _size(value: float) -> str:
    power = min(int(math.log10(value) + 1e-9) // 3, len(_UNITS) - 1)
    return f"{value / 1000**power:.3g} {_UNITS[power]}"


# SVG


def _path(kind: str, *places: tuple[float, float]) -> str:
    return f'<path class="{kind}" d="M{"L".join(f"{x} {y}" for x, y in places)}"/>'


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{round(x, 1)}" y="{round(y, 1)}">{escape(text)}</text>'


def _hint(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _svg(name: str, title: str, told: str, parts: Sequence[str], alone: bool) -> str:
    """Put the parts of a chart together, with a title and a description for who cannot see it."""
    names = f'role="img" aria-labelledby="{name}-title" aria-describedby="{name}-told"'
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    size = (
        f'xmlns="http://www.w3.org/2000/svg" width="{_WIDTH * 5 // 4}" height="{_HEIGHT * 5 // 4}"'
    )
    paper = f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}"/>'
    lines = [
        f'<svg class="plot" {f"{size} " * alone}{box} {names}>',
        f'<title id="{name}-title">{escape(title)}</title>',
        f'<desc id="{name}-told">{escape(told)}</desc>',
        *([f"<style>{_COLOURS}{STYLE}</style>", paper] if alone else []),
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n" * alone


#: How a chart looks, in the colours of the page it is on.
STYLE = """
.plot { color: var(--muted); font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
.plot text { fill: currentColor; font-variant-numeric: tabular-nums; }
.plot .end { text-anchor: end; }
.plot .mid { text-anchor: middle; }
.plot .value { fill: var(--text); font-weight: 600; }
.plot .series { fill: var(--link); font-weight: 600; }
.plot .other { fill: var(--mild); }
.plot .halo, .plot .value, .plot .series {
  paint-order: stroke; stroke: var(--card); stroke-width: 3px; stroke-linejoin: round;
}
.plot path { fill: none; stroke-width: 1; }
.plot .grid { stroke: var(--line); }
.plot .axis { stroke: currentColor; }
.plot .lead { stroke: var(--mild); stroke-opacity: 0.5; }
.plot .limit { stroke: currentColor; stroke-dasharray: 5 4; }
.plot .line { stroke: var(--link); stroke-width: 1.5; stroke-linejoin: round; }
.plot .dot { fill: var(--link); }
.plot .square { fill: var(--card); stroke: var(--mild); stroke-width: 1.75; }
.plot .bar { fill: var(--link); fill-opacity: 0.75; }
.plot .paper { fill: var(--card); }
@media (max-width: 30rem) { .plot { font-size: 15px; } }
"""

_COLOURS = """
svg { --text: #1c2024; --muted: #59616b; --line: #dfe1e4; --link: #1a55a8; --mild: #694c00;
  --card: #ffffff; }
@media (prefers-color-scheme: dark) {
  svg { --text: #e2e5e8; --muted: #a0a8b0; --line: #30353a; --link: #8ab8f5; --mild: #e5c76b;
    --card: #1a1d20; }
}
"""
