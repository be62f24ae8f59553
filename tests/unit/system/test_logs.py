"""Lines of a log: whatever callers put into them, each is one line, and not a long one."""

from __future__ import annotations

import logging
import re

from hypothesis import given
from hypothesis import strategies as st

from atoll.system.logs import FORMAT, MAX_MESSAGE, PlainFormatter, one_line


def formatted(message: str, *words: object, error: BaseException | None = None) -> str:
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.LogRecord("atoll.x", logging.WARNING, __file__, 1, message, words, exc_info)
    return PlainFormatter(FORMAT).format(record)


def test_control_characters_are_shown_and_do_nothing() -> None:
    assert one_line("a\x1b[31m\r\nb\0 ü") == "a\\x1b[31m\\r\\nb\\x00 ü"


def test_a_caller_cannot_write_a_line_of_its_own() -> None:
    said = formatted("%s is not known", "x\n2026-01-01 00:00:00,000 INFO atoll: all is well")
    assert "\n" not in said


def test_a_long_one_is_cut_and_says_so() -> None:
    said = formatted("%s", "x" * 650_000)
    assert len(said) < MAX_MESSAGE + 200
    assert said.endswith("… (650000 characters)")


def test_no_line_of_a_traceback_looks_like_a_record() -> None:
    try:
        raise ValueError("x\n2026-01-01 00:00:00,000 INFO atoll: all is well\x1b[31m" + "y" * 100_000)
    except ValueError as error:
        said = formatted("it failed", error=error)
    first, *rest = said.split("\n")
    assert first.endswith("WARNING atoll.x: it failed")
    assert all(line.startswith("  ") for line in rest)
    assert len(said) < 12_000
    assert "\x1b" not in said


@given(st.text())
def test_nothing_but_what_can_be_printed_is_left(text: str) -> None:
    assert one_line(text).isprintable()
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", one_line(text))
