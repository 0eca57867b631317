"""The figures here are made up; they are nobody's measurement."""

from __future__ import annotations

import json
import re
import runpy
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchkit import plots
from tests.conftest import HOSTILE

DOCS = Path(__file__).resolve().parents[1] / "docs"
SIZES = [
    *((1 << m, 4096) for m in range(17)),
    (4096, 1024),
    (4096, 7168),
    (4096, 16384),
    (16384, 8192),
]
ROWS = [1 << m for m in range(9)]
CHARTS = [plots.throughput, plots.decode]
SVG = "{http://www.w3.org/2000/svg}"
Draw = Callable[..., str]


def made_up() -> dict[str, Any]:
    """A bench document with every part, in the shape of the probe's."""

    def times(middle: float) -> dict[str, float]:
        return {"median": middle, "p10": middle * 0.9, "p90": middle * 1.2}

    def rate(m: int, k: int) -> dict[str, Any]:
        size = m * k * 41 // 16
        us = 2 + size / 2e6
        gb_s = round(size / us / 1000, 1)
        return {"m": m, "k": k, "bytes": size, "us": times(us), "gb_s": gb_s}

    def block(m: int) -> dict[str, Any]:
        us = {"eager": times(100 + m), "graph": times(50 + m)}
        return {"m": m, "us": us, "ratio": round((100 + m) / (50 + m), 2)}

    return {
        "schema": 1,
        "machine": {
            "gpu": "Made-up GPU",
            "flashinfer": "0.0.1",
            "torch": "9.9.9",
            "cuda": "99.9",
            "clocks": "1 MHz, 2 MHz, 3",
            "copy_gb_s": 2345.6,
        },
        "throughput": [rate(m, k) for m, k in SIZES],
        "throughput_mxfp4": [rate(64, 8192)],
        "eager": {
            "m": 1,
            "k": 256,
            "us": {"original": times(20), "patched": times(23)},
            "difference_us": times(3),
        },
        "replay": {
            "m": 128,
            "k": 4096,
            "us": {"original": times(3), "patched": times(3)},
            "ratio": 1.0004,
        },
        "decode_block": [block(m) for m in ROWS],
    }


def read(svg: str) -> ET.Element:
    """Read a stand-alone chart, and hold it to what every chart must be."""
    root = ET.fromstring(svg)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for element in root.iter():
        assert not {"style", "href", "src"} & {key.lower() for key in element.attrib}
        assert not [key for key in element.attrib if key.startswith("on")]
        if element.tag != f"{SVG}rect" and "x" in element.attrib:
            assert 0 <= float(element.attrib["x"]) <= width
            assert 0 <= float(element.attrib["y"]) <= height
        for number in re.findall(r"[\d.]+", element.attrib.get("d", "")):
            assert float(number) <= width
    allowed = {"svg", "title", "desc", "style", "rect", "path", "circle", "text"}
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= allowed
    drawn = "".join(v for element in root.iter() for v in element.attrib.values())
    assert not re.search(r"nan|inf\b|e[+-]\d", drawn)
    assert not re.search(r"url\(|@import", svg)
    return root


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def count(root: ET.Element, kind: str) -> int:
    return sum(kind in element.attrib.get("class", "").split() for element in root.iter())


# Charts


def test_every_rate_is_a_mark_and_the_copy_a_named_line():
    root = read(plots.throughput(made_up(), alone=True))
    assert count(root, "dot") == sum(k == plots.MAIN_K for _, k in SIZES) == 17
    assert count(root, "square") == 4
    assert count(root, "limit") == 1
    shown = texts(root)
    assert {"copy: 2,346", "GB/s", "bytes moved", "K = 1024", "K = 16384"} <= set(shown)
    ticks = [text for text in shown if re.fullmatch(r"[\d.]+ [kMG]?B", text)]
    assert ticks == ["10 kB", "100 kB", "1 MB", "10 MB", "100 MB", "1 GB"]
    assert {"0", "500", "1,000", "1,500", "2,000", "2,500"} <= set(shown)


def test_more_bytes_are_further_right_and_more_per_second_further_up():
    root = read(plots.throughput(made_up(), alone=True))
    dots = [e for e in root.iter() if e.attrib.get("class") == "dot"]
    places = [(float(dot.attrib["cx"]), -float(dot.attrib["cy"])) for dot in dots]
    assert places == sorted(places)
    gaps = {round(b[0] - a[0]) for a, b in pairwise(places)}
    assert max(gaps) - min(gaps) <= 1  # doubled bytes are as far apart everywhere


def test_every_speedup_is_a_bar_with_its_value():
    root = read(plots.decode(made_up(), alone=True))
    assert count(root, "bar") == len(ROWS)
    values = [e.text for e in root.iter() if "value" in e.attrib.get("class", "")]
    assert values == [plots.figure(row["ratio"]) for row in made_up()["decode_block"]]
    assert [str(m) for m in ROWS] == [text for text in texts(root) if text.isdigit()]
    hints = [e.text for e in root.iter(f"{SVG}title")]
    assert "M = 1: 1.98\N{MULTIPLICATION SIGN}, 101 µs eager, 51.0 µs as a graph" in hints


def test_labels_do_not_cover_one_another():
    for draw in CHARTS:
        boxes = []
        for element in read(draw(made_up(), alone=True)).iter(f"{SVG}text"):
            kind, x = element.attrib["class"].split(), float(element.attrib["x"])
            width = len(element.text or "") * 8.0
            left = x - width * (1 if "end" in kind else 0.5 if "mid" in kind else 0)
            boxes.append((left, left + width, float(element.attrib["y"]), element.text))
        for n, one in enumerate(boxes):
            for two in boxes[:n]:
                apart = one[0] >= two[1] or two[0] >= one[1] or abs(one[2] - two[2]) >= 14
                assert apart, (one, two)


@pytest.mark.parametrize("draw", CHARTS)
def test_a_chart_says_what_it_shows_to_who_cannot_see_it(draw: Draw):
    root = read(draw(made_up(), "here", alone=True))
    title, told = root[0], root[1]
    assert root.attrib["role"] == "img"
    assert (root.attrib["aria-labelledby"], root.attrib["aria-describedby"]) == (
        title.attrib["id"],
        told.attrib["id"],
    )
    assert title.attrib["id"].startswith("here-")
    assert "Made-up GPU, FlashInfer 0.0.1" in (title.text or "")
    assert told.text


@pytest.mark.parametrize("draw", CHARTS)
def test_alone_it_has_colours_of_its_own_for_light_and_dark_inline_it_has_none(draw: Draw):
    alone, inline = draw(made_up(), alone=True), draw(made_up())
    style = "".join(e.text or "" for e in read(alone).iter(f"{SVG}style"))
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
    used = set(re.findall(r"var\((--\w+)\)", style))
    assert used == set(re.findall(r"(--\w+): #", light.partition("}")[0]))
    assert used == set(re.findall(r"(--\w+): #", dark.partition("}")[0]))
    assert "<style" not in inline
    assert not re.search(r"#[0-9a-f]{6}|https?:", inline)


def test_classes_are_in_the_style():
    known = set(re.findall(r"\.(\w+)", plots.STYLE)) | {""}
    for draw in CHARTS:
        used = {e.attrib.get("class", "") for e in read(draw(made_up(), alone=True)).iter()}
        assert {name for names in used for name in names.split()} <= known


# Costs, machine


def test_costs_have_the_spread_and_the_ratio():
    eager, replay = plots.costs(made_up())
    assert eager[1:] == (
        "20.0 µs (18.0 to 24.0)",
        "23.0 µs (20.7 to 27.6)",
        "3.00 µs (2.70 to 3.60)",
    )
    assert replay[3] == "ratio 1.000"
    assert plots.machine(made_up())["copy of 2 GiB"] == "2,346 GB/s"


def test_costs_that_are_known_in_part():
    bench = {"schema": 1, "eager": {"us": {"original": {"median": -1, "p10": "x"}}}}
    assert [row[1:] for row in plots.costs(bench)] == [("-1.00 µs", "not measured", "not measured")]
    assert plots.costs({"schema": 1, "eager": {}, "replay": {"us": 3}}) == []


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0.00"), (1.25, "1.25"), (12.34, "12.3"), (1234.5, "1,234"), (3e9, "3.00e+09")],
)
def test_figures(value: float, shown: str):
    assert plots.figure(value) == shown


# Strange documents


@pytest.mark.parametrize(
    "bench",
    [None, [], 3, {}, {"schema": 1, "error": "nothing was measured"}, made_up() | {"schema": 2}],
)
def test_what_is_no_bench_document_gives_nothing(bench: object):
    assert [draw(bench) for draw in CHARTS] == ["", ""]
    assert plots.costs(bench) == []
    assert plots.machine(bench) == {}


def test_without_an_operator_there_is_throughput_alone():
    bench = {key: made_up()[key] for key in ("schema", "machine", "throughput")}
    assert plots.throughput(bench)
    assert (plots.decode(bench), plots.costs(bench)) == ("", [])


STRANGE = [0, -1, 1e-300, 1e15, 1e300, 10**400, float("nan"), float("inf"), True, None, "7", [], {}]


@pytest.mark.parametrize("value", STRANGE, ids=repr)
def test_one_strange_number_harms_nothing_else(value: object):
    for key, where in {"throughput": "m k bytes us gb_s", "decode_block": "m us ratio"}.items():
        for name in where.split():
            bench = made_up()
            bench[key][3][name] = value
            for draw in CHARTS:
                read(draw(bench, alone=True))
            assert len(plots.rates(bench)) >= len(SIZES) - 1
            assert len(plots.speedups(bench)) >= len(ROWS) - 1
    bench = made_up()
    bench["machine"]["copy_gb_s"] = value
    read(plots.throughput(bench, alone=True))


@pytest.mark.parametrize("rate", [0, 1e-300, 1e15])
def test_one_mark_is_a_chart_too(rate: float):
    for k in (plots.MAIN_K, 64):
        row = {"m": 1, "k": k, "bytes": 10**6, "gb_s": rate}
        root = read(plots.throughput({"schema": 1, "throughput": [row]}, alone=True))
        assert count(root, "dot") + count(root, "square") == 1
    block = {"schema": 1, "decode_block": [{"m": 3, "ratio": rate}]}
    assert count(read(plots.decode(block, alone=True)), "bar") == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_shown_and_nothing_else(text: str):
    bench = made_up()
    bench["machine"] = dict.fromkeys(bench["machine"], text)
    for draw in CHARTS:
        root = read(draw(bench, alone=True))
        calm = read(draw(made_up(), alone=True))
        assert count(root, "dot") == count(calm, "dot")
        assert len(list(root.iter("script"))) == 0


NUMBERS = st.one_of(
    st.floats(), st.integers(), st.sampled_from(STRANGE), st.floats(1, 1e6), st.integers(1, 99)
)
US = st.dictionaries(st.sampled_from(["median", "p10", "p90"]), NUMBERS) | NUMBERS
ROW = st.fixed_dictionaries(
    {"m": NUMBERS, "ratio": NUMBERS, "bytes": NUMBERS, "gb_s": NUMBERS},
    optional={
        "k": st.sampled_from([4096, 64]) | NUMBERS,
        "us": US | st.dictionaries(st.sampled_from(["median", "eager", "graph"]), US),
    },
)
PAIR = st.dictionaries(st.sampled_from(["original", "patched"]), US)


@settings(max_examples=300, deadline=None)
@given(
    st.fixed_dictionaries(
        {"schema": st.just(1)},
        optional={
            "machine": st.fixed_dictionaries({"copy_gb_s": NUMBERS, "gpu": st.text()}) | NUMBERS,
            "throughput": st.lists(ROW, max_size=12) | NUMBERS,
            "decode_block": st.lists(ROW | NUMBERS, max_size=12) | NUMBERS,
            "eager": st.fixed_dictionaries({"us": PAIR | NUMBERS, "difference_us": US}),
            "replay": st.fixed_dictionaries({"us": PAIR | NUMBERS, "ratio": NUMBERS}),
        },
    )
)
def test_any_document_gives_charts_and_rows(bench: dict[str, Any]):
    for draw in CHARTS:
        if svg := draw(bench, alone=True):
            read(svg)
    assert not re.search(r"nan|inf", repr(plots.costs(bench)))


# Charts and tables in docs/


@pytest.fixture(scope="module")
def measured() -> Callable[[Path, str], dict[str, str]]:
    found: Callable[[Path, str], dict[str, str]] = runpy.run_path(str(DOCS / "generate.py"))[
        "measured"
    ]
    return found


PAGE = "# Page\n\n<!-- figures, x -->\nold\n<!-- end of figures -->\n\nMore.\n"


def test_without_files_the_page_has_no_figures(tmp_path: Path, measured: Any):
    empty = PAGE.replace("old\n", "")
    assert measured(tmp_path / "none", PAGE) == {"gpu.md": empty}
    assert measured(tmp_path, empty) == {"gpu.md": empty}


def test_files_give_charts_and_tables(tmp_path: Path, measured: Any):
    for release in ("0.6.3", "0.6.12"):
        bench = made_up()
        bench["machine"]["flashinfer"] = release
        (tmp_path / f"g-{release}.json").write_text(json.dumps(bench))
    (tmp_path / "g-0.6.13.json").write_text('{"schema": 1, "error": "nothing was measured"}')
    found = measured(tmp_path, PAGE)
    assert set(found) == {"gpu.md", "gpu-throughput.svg", "gpu-decode.svg"}
    for name in ("gpu-throughput.svg", "gpu-decode.svg"):
        assert "FlashInfer 0.6.12" in (read(found[name])[0].text or "")
        assert f"]({name})" in found["gpu.md"]
    lines = found["gpu.md"].splitlines()
    assert "| K | M | g-0.6.3 | g-0.6.12 |" in lines
    assert sum(line.startswith("| 4096 |") for line in lines) == 17
    assert any(line.startswith("| 8192 | 64 | ") for line in lines)
    assert sum("ratio 1.000" in line for line in lines) == 2
    assert "0.6.13" not in found["gpu.md"]
    assert lines[:2] + lines[-2:] == ["# Page", "", "", "More."]
    assert measured(tmp_path, found["gpu.md"]) == found


def test_rows_of_a_table_have_as_many_cells_as_its_head(tmp_path: Path, measured: Any):
    bench = made_up()
    bench["machine"]["gpu"] = "a | <b>"
    (tmp_path / "a.json").write_text(json.dumps(bench))
    del bench["decode_block"], bench["eager"], bench["throughput"][5:]
    (tmp_path / "b.json").write_text(json.dumps(bench))
    text = measured(tmp_path, PAGE)["gpu.md"]
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    assert "a \\| &lt;b>" in text
    assert "| M | a |" in text


def test_a_page_without_marks_is_refused(tmp_path: Path, measured: Any):
    with pytest.raises(ValueError, match="marks"):
        measured(tmp_path, "# Page\n")


def test_charts_in_docs_are_generated_ones():
    pages = runpy.run_path(str(DOCS / "generate.py"))["pages"]()
    assert {file.name for file in DOCS.glob("*.svg")} <= set(pages)
