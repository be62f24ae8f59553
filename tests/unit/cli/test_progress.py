from __future__ import annotations

import io
import re

import pytest

from atoll.cli.progress import ERASE_LINE, HIDE_CURSOR, SHOW_CURSOR, Progress, Signs, clipped, stages_ahead

PLAIN = {"TERM": "xterm", "NO_COLOR": "1"}


class Screen(io.StringIO):
    """A terminal that remembers everything."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class File(io.StringIO):
    encoding = "utf-8"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("wait_for", "ahead"),
    [
        ("started", ("address", "volume", "started")),
        ("metadata", ("address", "volume", "started", "dhcp", "metadata")),
        ("port:80", ("address", "volume", "started", "dhcp", "metadata", "port:80")),
        (None, ("address", "volume", "started", "dhcp", "metadata")),
    ],
)
def test_the_stages_ahead_end_with_what_is_waited_for(wait_for, ahead):
    assert stages_ahead(wait_for) == ahead


def test_the_line_shows_time_and_stages_and_what_is_next():
    clock = Clock()
    progress = Progress("web", Screen(), ahead=("address", "started", "dhcp"), clock=clock, environment=PLAIN)
    clock.now = 2.14
    assert progress.line(2, 80) == "web  ⠹ 2.1s  address …"
    progress.reached("address", 0.011, "10.0.0.5")
    progress.reached("started", 0.12, "10.0.0.5")
    assert progress.line(2, 80) == "web  ⠹ 2.1s  address 0.01 · started 0.12 · dhcp …"
    progress.reached("dhcp", 1.4, "10.0.0.5")
    assert progress.line(0, 80) == "web  ⠋ 2.1s  address 0.01 · started 0.12 · dhcp 1.40"


def test_a_line_never_wraps():
    assert clipped("web  address 0.01 · started", 10, Signs("utf-8")) == "web  addr…"
    assert clipped("web", 3, Signs("utf-8")) == "web"


def test_a_terminal_ends_with_a_tick_the_address_and_its_cursor():
    screen, clock = Screen(), Clock()
    with Progress("web", screen, ahead=("started",), clock=clock, environment=PLAIN) as progress:
        progress.reached("started", 0.12, "10.0.0.5")
        clock.now = 0.3
        progress.done()
    written = screen.getvalue()
    assert written.startswith(HIDE_CURSOR)
    assert written.endswith(f"{ERASE_LINE}{SHOW_CURSOR}web  ✓ 0.3s  10.0.0.5  started 0.12\n")


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failure_ends_with_a_cross_and_gives_the_cursor_back(failure):
    screen = Screen()
    with pytest.raises(failure), Progress("web", screen, clock=Clock(), environment=PLAIN):
        raise failure
    assert screen.getvalue().endswith(f"{ERASE_LINE}{SHOW_CURSOR}web  ✗ 0.0s\n")


def test_colour_is_for_terminals_that_want_it():
    screen = Screen()
    with Progress("web", screen, clock=Clock(), environment={"TERM": "xterm"}) as progress:
        progress.done()
    assert "\x1b[32m✓\x1b[0m" in screen.getvalue()


def test_a_file_gets_one_plain_line_per_stage():
    file = File()
    with Progress("web", file, environment=PLAIN) as progress:
        progress.reached("started", 0.12, "10.0.0.5")
        progress.reached("dhcp", 1.4, "10.0.0.5")
        progress.done()
    assert file.getvalue() == "web: started 0.12s\nweb: dhcp 1.40s\n"


@pytest.mark.parametrize("stream", [Screen, File])
def test_quiet_writes_nothing_at_all(stream):
    out = stream()
    with Progress("web", out, quiet=True, environment=PLAIN) as progress:
        progress.reached("started", 0.12, "10.0.0.5")
        progress.done()
    assert out.getvalue() == ""


def test_a_dumb_terminal_gets_plain_lines():
    screen = Screen()
    with Progress("web", screen, environment={"TERM": "dumb"}) as progress:
        progress.reached("started", 0.12, "10.0.0.5")
        progress.done()
    assert screen.getvalue() == "web: started 0.12s\n"


def test_a_terminal_without_unicode_gets_ascii():
    screen = Screen()
    screen.encoding = "iso-8859-1"
    with Progress("web", screen, ahead=("started",), clock=Clock(), environment=PLAIN) as progress:
        assert re.fullmatch(r"web  [|/\\-] 0\.0s  started \.\.\.", progress.line(0, 80))
        progress.done()
    assert screen.getvalue().isascii()
