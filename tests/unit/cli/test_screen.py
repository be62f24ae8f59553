from __future__ import annotations

import pytest

from atoll.cli.screen import History, Modes


def shown(*pieces: bytes) -> bytes:
    history = History()
    return b"".join([*(history.shown(piece) for piece in pieces), history.rest()])


@pytest.mark.parametrize(
    "question",
    [
        b"\x1b[6n",
        b"\x1b[?6n",
        b"\x1b[c",
        b"\x1b[>0c",
        b"\x1bZ",
        b"\x05",
        b"\x1b[18t",
        b"\x1b[?2004$p",
        b"\x1b]11;?\x07",
        b"\x1b]10;?\x1b\\",
        b"\x1bP$qm\x1b\\",
    ],
)
def test_what_a_terminal_would_answer_is_left_out_however_it_is_cut(question: bytes):
    text = b"before" + question + b"after"
    for cut in range(len(text)):
        assert shown(text[:cut], text[cut:]) == b"beforeafter"


@pytest.mark.parametrize(
    "text",
    [
        b"\x1b[1;31mred\x1b[0m",
        b"\x1b[2J\x1b[H",
        b"\x1b[10;20H",
        b"\x1b[?25l",
        b"\x1b]0;title\x07",
        "wörter".encode(),
        bytes(range(6, 27)),
    ],
)
def test_everything_else_is_shown_as_it_was_however_it_is_cut(text: bytes):
    for cut in range(len(text)):
        assert shown(text[:cut], text[cut:]) == text


def test_what_history_began_the_present_ends():
    history = History()
    assert history.shown(b"login: \x1b[3") == b"login: "
    assert history.rest() == b"\x1b[3"


def undone(*pieces: bytes) -> bytes:
    modes = Modes()
    for piece in pieces:
        modes.note(piece)
    return modes.undone()


def test_colours_and_character_sets_are_always_put_right():
    assert undone(b"hello") == b"\x1b[0m\x0f\x1b(B\x1b>"


@pytest.mark.parametrize("mode", [1, 1000, 1006, 1049, 2004])
def test_a_mode_that_was_left_on_is_turned_off_however_it_is_cut(mode: int):
    text = b"x\x1b[?%dhx" % mode
    for cut in range(len(text)):
        assert b"\x1b[?%dl" % mode in undone(text[:cut], text[cut:])


def test_a_mode_that_was_turned_off_again_is_left_alone():
    assert b"1049" not in undone(b"\x1b[?1049h", b"editor", b"\x1b[?1049l")


def test_several_modes_in_one_go_are_all_noticed():
    assert undone(b"\x1b[?1;1049;2004h").startswith(b"\x1b[?1l\x1b[?1049l\x1b[?2004l")


@pytest.mark.parametrize("mode", [7, 25])
def test_what_is_on_ordinarily_is_turned_on_again(mode: int):
    assert b"\x1b[?%dh" % mode in undone(b"\x1b[?%dl" % mode)
    assert b"\x1b[?" not in undone(b"\x1b[?%dl" % mode, b"\x1b[?%dh" % mode)


def test_a_mode_that_is_none_of_ours_is_left_alone():
    assert b"[?5" not in undone(b"\x1b[?5h")
