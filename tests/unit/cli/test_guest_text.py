from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.cli.guest_text import GuestText, is_safe_colour
from atoll.cli.output import shown_json

SGR = re.compile(r"\x1b\[([0-9;]*)m")
NASTY = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.sampled_from(
            [
                *(b"\x1b", b"\x1b[", b"\x1b]52;c;AAAA\x07", b"\x1b]0;title\x1b\\", b"\x9b2J", b"\xc2\x9b2J"),
                *(b"\x1b[2J", b"\x1b[8m", b"\x1b[31m", b"\x1b[38;5;9m", b"\x1b(0", b"\x0e", b"\r", b"\r\n"),
                *(b"\x1b[6n", b"\x1b[?1049h", b"\x1bP+q\x1b\\", "\u202e".encode(), b"\x1bc", b"\x07", b"8m"),
            ]
        ),
    ),
    max_size=12,
)


def shown(*chunks: bytes, colour: bool = True) -> str:
    text = GuestText(colour=colour)
    return "".join(map(text.feed, chunks)) + text.close()


@given(NASTY, st.booleans())
def test_a_terminal_gets_nothing_but_text_and_colours(chunks, colour):
    out = shown(*chunks, colour=colour)
    assert all(is_safe_colour(found[1]) for found in SGR.finditer(out))
    rest = SGR.sub("", out) if colour else out
    assert all(char in "\n\t" or char.isprintable() for char in rest)


@given(NASTY)
def test_however_it_is_cut_it_is_the_same(chunks):
    whole = b"".join(chunks)
    assert shown(*chunks) == shown(whole) == shown(*(whole[at : at + 1] for at in range(len(whole))))


@given(NASTY)
def test_afterwards_the_terminal_has_its_own_colour(chunks):
    codes = [found[1] for found in SGR.finditer(shown(*chunks))]
    assert not codes or codes[-1] in ("", "0")


@given(st.text(st.characters(min_codepoint=32, max_codepoint=0x24F).filter(str.isprintable)))
def test_plain_text_stays_as_it_is(text):
    assert shown(text.encode()) == text


@pytest.mark.parametrize(
    ("wrote", "seen"),
    [
        (b"booting\r\nlogin: ", "booting\nlogin: "),
        (b"a\r\r\nb", "a\nb"),
        (b"10%\r20%\r", "10%\n20%\n"),
        (b"\x1b[1;32mok\x1b[0m\n", "\x1b[1;32mok\x1b[0m\n"),
        (b"\x1b[31mred", "\x1b[31mred\x1b[0m"),
        (b"\x1b[2J\x1b[H\x1b[?25lhi", "hi"),
        (b"\x1b[8mhidden\x1b[0m", "hidden\x1b[0m"),
        (b"\x1b]0;pwned\x07", "^[]0;pwned^G"),
        (b"\x1b]52;c;cm0gLXJm\x1b\\", "^[]52;c;cm0gLXJm^[\\"),
        (b"\x1b(0lqk\x1b(B", "lqk"),
        (b"\xc2\x9b2J \x9b2J", "\\u009b2J \\x9b2J"),
        ("\u202eevil".encode(), "\\u202eevil"),
        (b"\x08\x7f\x00", "^H^?^@"),
        (b"\x1b[" + b"1;" * 100 + b"m", "^[[" + "1;" * 100 + "m"),
        (b"end\x1b", "end^["),
        (b"\x1b[38;2;1;2;3mx\x1b[m", "\x1b[38;2;1;2;3mx\x1b[m"),
    ],
)
def test_what_a_person_sees(wrote, seen):
    assert shown(wrote) == seen


def test_without_colour_there_is_none():
    assert shown(b"\x1b[31mred\x1b[0m", colour=False) == "red"


@pytest.mark.parametrize(
    "parameters", ["5", "6", "8", "1;8", "38", "38;5", "38;5;256", "38;9;1", "?1", "4:3", "28"]
)
def test_what_hides_or_blinks_is_no_colour(parameters):
    assert not is_safe_colour(parameters)


@given(st.dictionaries(st.text(), st.text()))
def test_json_for_a_terminal_means_the_same_and_commands_nothing(value):
    text = shown_json(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    assert json.loads(text) == value
    assert all(char == "\n" or char.isprintable() for char in text)
