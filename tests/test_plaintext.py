from __future__ import annotations

import pytest

from patchkit.plaintext import one_line, plain, visible
from tests.conftest import HOSTILE


def test_visible_keeps_what_can_be_read():
    text = "tab\tline\nümlaut 漢字 😀 café"
    assert visible(text) == plain(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x00\r\x7f\x85", r"\x00\x0d\x7f\x85"),
        ("\u202e\u2028\ufeff\uffff", r"\u202e\u2028\ufeff\uffff"),
        ("\ud800", r"\ud800"),
        ("\x1b[31mred", r"\x1b[31mred"),
    ],
)
def test_visible_escapes_the_rest(text: str, shown: str):
    assert visible(text) == shown


def test_plain_drops_the_colours_of_terminals():
    assert plain("\x1b[1;31mred\x1b[0m \x1b]0;title\x07on \x1b]8;;url\x1b\\link \x1b") == (
        r"red on link \x1b"
    )


def test_one_line():
    assert one_line(" a\n  b\n") == "a b"


@pytest.mark.parametrize("text", HOSTILE)
def test_what_comes_out_is_fit_for_utf_8_and_stays_so(text: str):
    for make in (visible, plain, one_line):
        shown = make(text)
        shown.encode("utf-8")
        assert make(shown) == shown
