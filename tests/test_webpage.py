from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import re
import shutil
import subprocess
import threading
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from patchkit.environment import Target
from patchkit.plaintext import one_line, plain
from patchkit.results import (
    BROKEN,
    FAILED,
    NO_LONGER_NEEDED,
    PASSED,
    PROVEN,
    SKIPPED,
    UNPROVEN,
    Case,
    Check,
    FileDiff,
    Group,
    Result,
    Row,
)
from patchkit.webpage import page
from tests.conftest import HOSTILE
from tests.test_plots import made_up

TARGET = Target((Path("/srv/venv/lib/python3.11/site-packages"),), "environment /srv/venv", "/py")
ROW = Row("p", "applied", "", "demo-pkg", "1.0", 1, 1, files=("demo_pkg/a.py",))
TRACE = Check("p", "trace", PASSED, "one graph, one operator", 12.34)
CHAIN = tuple(
    f"step_{n} (/srv/venv/lib/python3.11/site-packages/demo_pkg/{n}.py)" for n in range(30)
)
DIFF = FileDiff("p", "applied", "demo_pkg/a.py", b"a\nb < c\n-- d\n", b"a\nb > c\n\tnew & long\n")
GROUPS = (
    Group("first call", 1.25, (Case("eight threads"),)),
    Group("values", 2.5, (Case("M 1"), Case("M 2", "a byte\ndiffers"), Case("M 3"))),
    Group("devices", 0.0, ()),
)
KERNEL = Check("p", "kernel", FAILED, "1 of 4 cases failed", 3.75, groups=GROUPS, bench=made_up())
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Reader(HTMLParser):
    """Reads a page, checks that its tags are balanced, and keeps tags, ids and texts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    @property
    def text(self) -> str:
        return "".join(text for tag, text in self.texts if tag != "style")

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for found, attributes in self.tags if found == tag]

    def within(self, tag: str) -> list[str]:
        return [text for found, text in self.texts if found == tag]


def read(result: Result, *diffs: FileDiff, target: Target = TARGET) -> Reader:
    return Reader(page(result, target, diffs, "2026-11-29 18:20"))


def full() -> tuple[Result, list[FileDiff]]:
    """A result in which everything occurs."""
    drifted = replace(ROW, id="q", state="drifted", detail="other bytes", ok=False, hint="patchkit")
    checks = (
        replace(TRACE, name="import", outcome=SKIPPED, detail="torch is not installed here"),
        replace(TRACE, proof=PROVEN),
        replace(TRACE, patch="q", outcome=FAILED, detail="stops", chain=CHAIN, proof=BROKEN),
        Check("r", "import", FAILED, "it died of SIGSEGV", 2.0, tail="last words " * 40),
        Check("r", "trace", PASSED, "x", 2.0, proof=NO_LONGER_NEEDED),
        KERNEL,
        replace(KERNEL, patch="r", bench={"schema": 1, "error": "nothing was measured"}),
    )
    result = Result((ROW, drifted, replace(ROW, id="r")), ("mind",), ("left over",), checks=checks)
    change = FileDiff("q", "drifted", "demo_pkg/b.py", b"x = 1\n", b"x = 1  # " + b"long " * 60)
    return result, [DIFF, change, FileDiff("r", "applied", "demo_pkg/new.py", None, b"new\n")]


# What is on it


def test_everything_is_on_the_page():
    result, diffs = full()
    found = read(result, *diffs)
    for check in result.checks:
        assert check.name in found.text
        assert check.outcome in found.text
        assert check.detail in found.text
        assert f"{check.seconds:.1f} s" in found.text
        assert check.proof in found.text
        assert check.tail in found.text
    for row in result.rows:
        assert row.id in found.within("h2") or f"{row.id} " in found.within("h2")
        assert row.state in found.text
        assert row.detail in found.text
    for text in (
        *result.problems,
        *result.warnings,
        "environment /srv/venv",
        "/py",
        "demo-pkg 1.0",
    ):
        assert text in found.text
    assert "2026-11-29 18:20" in found.text


def test_calls_are_an_ordered_list_without_the_folder_of_the_target():
    found = read(Result((ROW,), checks=(replace(TRACE, outcome=FAILED, chain=CHAIN),)))
    assert len(found.all("li")) == 30 + 1  # and what is wrong
    places = [text for text in found.within("span") if text.startswith("demo_pkg/")]
    assert places == [f"demo_pkg/{n}.py" for n in range(30)]
    assert found.within("strong") == ["stops here"]
    order = [text for text in found.within("code") if text.startswith("step_")]
    assert order == [f"step_{n}" for n in range(30)]


def test_every_line_of_a_diff_keeps_its_sign():
    found = read(Result((ROW,)), DIFF)
    assert found.within("ins") == ["+b > c\n", "+\tnew & long\n"]
    assert found.within("del") == ["-b < c\n", "--- d\n"]
    assert {"--- a/demo_pkg/a.py\n", "+++ b/demo_pkg/a.py\n", " a\n"} <= set(found.within("span"))
    assert "+2 \N{MINUS SIGN}2" in found.text


def test_a_file_without_a_last_newline_and_one_without_a_change():
    diff = FileDiff("p", "applied", "a.py", b"x", b"y\r\n")
    found = read(Result((ROW,)), diff, replace(diff, path="b.py", after=b"x"))
    assert "\\ No newline at end of file\n" in found.within("span")
    assert found.within("ins") == ["+y\\x0d\n"]
    assert "No line differs." in found.text


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (Result((ROW,), checks=(TRACE,)), "Verified"),
        (Result((ROW,)), "Verified"),
        (Result((ROW,), checks=(replace(TRACE, outcome=SKIPPED),)), "Verified, 1 check skipped"),
        (Result((ROW,), checks=(replace(TRACE, outcome=SKIPPED),), strict=True), "Not verified"),
        (Result((ROW,), checks=(replace(TRACE, outcome=FAILED),)), "Not verified"),
        (Result((replace(ROW, ok=False),)), "Not verified"),
        (Result((), problems=("no patch is recorded",)), "Not verified"),
    ],
)
def test_the_verdict_is_the_first_heading(result: Result, verdict: str):
    found = read(result)
    assert [text.strip() for text in found.within("h1") if text.strip()] == [verdict]
    assert found.within("title")[0].startswith(verdict)
    assert ("What is wrong" in found.text) == (not result.ok)


def test_proof_words_on_the_page_are_explained():
    assert "Words" not in read(Result((ROW,), checks=(TRACE,))).text
    for proof in (PROVEN, NO_LONGER_NEEDED, UNPROVEN, BROKEN):
        words = read(Result((ROW,), checks=(replace(TRACE, proof=proof),))).within("dt")
        assert words[-1] == proof
        assert len(words) == 6 + 1


# Cases and figures


def test_cases_that_failed_come_first_with_what_was_wrong():
    found = read(Result((ROW,), checks=(KERNEL,)))
    assert found.within("strong") == ["values: M 2"]
    assert "a byte\ndiffers" in found.text
    assert found.text.index("differs") < found.text.index("first call")
    shown = re.findall("M [123]", found.text.partition("devices")[0])
    assert shown == ["M 2", "M 2", "M 1", "M 3"]


def test_every_group_says_how_many_cases_and_how_long():
    found = read(Result((ROW,), checks=(KERNEL,)))
    times = [text for tag, text in found.texts if tag == "span" and "case" in text and "·" in text]
    assert times == ["1 case · 1.2 s", "3 cases, 1 failed · 2.5 s", "0 cases · 0.0 s"]
    marks = [a["aria-label"] for a in found.all("span") if "aria-label" in a]
    assert marks == ["passed", "passed", "failed", "failed", "passed", "passed", "empty"]
    assert len([a for a in found.all("details") if "open" in a]) == 1


def test_a_check_without_cases_and_figures_has_no_lists_and_charts():
    found = read(Result((ROW,), checks=(TRACE,)))
    assert not {"svg", "figure", "h4", "table"} & {tag for tag, _ in found.tags}
    assert not [a for a in found.all("ul") if a.get("class") in ("groups", "failures")]


def test_what_was_measured_is_drawn_and_listed():
    found = read(Result((ROW,), checks=(KERNEL,)))
    assert len(found.all("svg")) == 2
    assert len(found.all("figcaption")) == 2
    assert "20.0 µs (18.0 to 24.0)" in found.within("td")
    assert "ratio 1.000" in found.within("td")
    assert "Made-up GPU" in found.text
    throughput = {key: made_up()[key] for key in ("schema", "throughput")}
    found = read(Result((ROW,), checks=(replace(KERNEL, bench=throughput),)))
    assert (len(found.all("svg")), len(found.all("table"))) == (1, 0)


@pytest.mark.parametrize("bench", [{"schema": 1, "error": "x"}, {"schema": 9, "throughput": 3}])
def test_nothing_measured_is_said(bench: dict[str, object]):
    found = read(Result((ROW,), checks=(replace(KERNEL, bench=bench),)))
    assert found.within("h4") == ["Nothing was measured"]
    assert found.all("svg") == []


# Structure


def test_ids_are_unique_and_links_lead_to_them():
    result, diffs = full()
    found = read(result, *diffs)
    ids = [a["id"] for _, a in found.tags if "id" in a]
    assert len(ids) == len(set(ids))
    links = [a["href"] for a in found.all("a")]
    assert links
    assert {link.removeprefix("#") for link in links} <= set(ids)
    for key in ("aria-labelledby", "aria-describedby"):
        labels = {a[key] for _, a in found.tags if key in a}
        assert labels
        assert labels <= set(ids)


def test_headings_go_down_one_level_at_a_time():
    result, diffs = full()
    levels = [int(tag[1]) for tag, _ in read(result, *diffs).tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_what_scrolls_can_be_reached_by_keyboard():
    result, diffs = full()
    boxes = [a for _, a in read(result, *diffs).tags if "scroll" in a.get("class", "").split()]
    assert len(boxes) == 1 + 3 + 1 + 1  # tables, diffs, output, costs
    assert all(a["tabindex"] == "0" and a["role"] == "region" for a in boxes)


def test_states_are_told_by_words_and_marks_not_by_colour_alone():
    badges = re.findall(
        r'<span class="badge (?:good|bad|mild)">(.*?)</span> (.*?)</span>', page_of()
    )
    assert badges
    assert all(mark.endswith(("✓", "✕", "○")) and word for mark, word in badges)


def page_of() -> str:
    result, diffs = full()
    return page(result, TARGET, diffs, "now")


# It stands alone


def test_nothing_is_loaded():
    found = Reader(page_of())
    assert not {"script", "img", "iframe", "object", "embed", "form"} & {t for t, _ in found.tags}
    assert [a["href"] for a in found.all("link")] == ["data:,"]
    assert not [a for _, a in found.tags if {"src", "srcset", "style", "data", "action"} & set(a)]
    assert not [key for _, a in found.tags for key in a if key.startswith("on")]
    assert not re.search(r"https?:|url\(|@import", page_of())


def test_the_policy_allows_this_style_and_nothing_else():
    found = Reader(page_of())
    (policy,) = [a["content"] for a in found.all("meta") if "http-equiv" in a]
    digest = hashlib.sha256("".join(found.within("style")).encode()).digest()
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert f"'sha256-{base64.b64encode(digest).decode()}'" in policy
    assert "unsafe" not in policy


# Hostile texts


def foreign(patch: str, text: str) -> Check:
    """A check all of whose texts are somebody else's."""
    groups = (Group(text, 1.0, (Case(text, text), Case(text))),)
    bench = made_up()
    bench["machine"] = {**dict.fromkeys(bench["machine"], text), "copy_gb_s": 1}
    chain = (f"{text} ({text})",)
    return Check(patch, text, FAILED, text, 1.0, text, chain, text, groups, bench)


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_is_shown_and_nothing_else(text: str):
    named = [Row(text, text, text, text, text, 1, ok=False, hint=text), ROW]
    check, tame = foreign(text, text), foreign("x", "x")
    data = text.encode("utf-8", "surrogatepass")
    diffs = [FileDiff(text, text, text, data, b"before\n" + data)]
    target = Target((Path("/p"),), text, text)
    found = read(Result(tuple(named), (text,), (text,), checks=(check,)), *diffs, target=target)
    calm = read(
        Result((replace(named[0], id="x"), ROW), ("w",), ("p",), checks=(tame,)),
        replace(diffs[0], patch="x"),
        target=target,
    )
    assert Counter(tag for tag, _ in found.tags) == Counter(tag for tag, _ in calm.tags)
    assert plain(text) in found.text
    assert one_line(text) in found.text
    assert not set(found.text) & set("\x00\x07\x0d\x1b\x7f\x85\u202e\u2028\ufeff")
    page(Result(tuple(named)), target, diffs, text).encode("utf-8")


# Contrast (WCAG AA: 4.5 to 1), for what style draws on what


def palette(dark: bool) -> dict[str, str]:
    style = "".join(Reader(page_of()).within("style"))
    light, _, rest = style.partition("@media (prefers-color-scheme: dark)")
    block = rest.partition("* {")[0] if dark else light
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("dark", [False, True])
def test_contrast(dark: bool):
    colours = palette(dark)
    pairs = [(ink, paper) for ink in ("text", "muted", "link") for paper in ("bg", "card", "box")]
    pairs += [(kind, f"{kind}-bg") for kind in ("good", "bad", "mild")]
    pairs += [
        ("hunk", "box"),
        ("good", "bg"),
        ("bad", "bg"),
        ("good", "card"),
        ("bad", "card"),
        ("mild", "card"),
        ("text", "good-bg"),
        ("text", "bad-bg"),
    ]
    for ink, paper in pairs:
        low, high = sorted(luminance(colours[c]) for c in (ink, paper))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, paper, dark)


# A real browser


BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


class Quiet(http.server.SimpleHTTPRequestHandler):
    asked: list[str]

    def log_message(self, format: str, *args: object) -> None:
        self.asked.append(self.path)


def browse(folder: Path, name: str) -> tuple[str, str, list[str]]:
    """Open a file over HTTP: the DOM, what the browser logged, and what it asked for."""
    handler = type("Handler", (Quiet,), {"asked": []})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run"
    flags += " --disable-background-networking --disable-component-update --disable-sync"
    flags += " --enable-logging=stderr --v=0 --window-size=800,900 --dump-dom"
    try:
        done = subprocess.run(
            [
                BROWSER,
                *flags.split(),
                f"--user-data-dir={folder / 'profile'}",
                f"http://127.0.0.1:{server.server_port}/{name}",
            ],
            capture_output=True,
            timeout=120,
        )
    finally:
        server.shutdown()
        server.server_close()
    return done.stdout.decode(), done.stderr.decode("utf-8", "replace"), handler.asked


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="no Chromium on PATH")
def test_chromium_asks_for_nothing_logs_nothing_and_does_not_scroll_sideways(tmp_path: Path):
    text = page_of()
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    dom, log, asked = browse(tmp_path, "page.html")
    assert "Not verified" in dom
    assert asked == ["/page.html"]
    assert not re.search(r"CONSOLE|Content Security Policy", log)

    # The same page in a frame as wide as a phone, without its policy, so that it can be measured.
    measured = re.sub(r"<meta http-equiv[^>]*>", "", text).replace("<details", "<details open")
    (tmp_path / "measured.html").write_text(measured, encoding="utf-8")
    (tmp_path / "phone.html").write_text(
        "<!DOCTYPE html><iframe src=measured.html style='width:390px' onload='"
        "const e = this.contentDocument.documentElement;"
        "document.title = `${e.clientWidth} ${e.scrollWidth}`'></iframe>"
    )
    dom, _, _ = browse(tmp_path, "phone.html")
    width, needed = re.findall(r"<title>(\d+) (\d+)</title>", dom)[0]
    assert int(needed) <= int(width) <= 390
