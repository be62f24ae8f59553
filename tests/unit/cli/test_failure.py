from __future__ import annotations

import signal
import ssl

import msgspec
import pytest

from atoll import errors
from atoll.cli.failure import as_atoll_error, error_text, report, terminated_as_exit
from atoll.errors import AtollError, NotFound


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.AtollError("x"), 1),
        (errors.HostFailure("x"), 1),
        (errors.Invalid("a", "b", "c"), 2),
        (errors.Malformed("x"), 2),
        (errors.TooLarge("x"), 2),
        (errors.NotFound("x"), 3),
        (errors.Conflict("x"), 4),
        (errors.Unauthenticated("x"), 5),
        (errors.Denied("x"), 5),
        (errors.NoCapacity("x"), 6),
        (errors.PoolEmpty("x"), 6),
        (errors.Unreachable("x"), 7),
        (errors.TimedOut("x"), 8),
        (ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]"), 5),
        (ConnectionResetError("reset"), 7),
        (msgspec.ValidationError("Expected `int`"), 1),
        (PermissionError(13, "Permission denied", "/x"), 1),
        (KeyError("boom"), 1),
        (KeyboardInterrupt(), 130),
        (SystemExit(0), 0),
        (SystemExit(2), 2),
        (SystemExit(None), 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_every_failure_has_its_exit_status(error, status, capsys):
    assert report(error) == status


def test_an_error_is_brief_and_hint():
    assert error_text(NotFound("no VM web", hint="see: atoll vm list"), colour=False) == (
        "atoll: no VM web\n  hint: see: atoll vm list\n"
    )
    assert error_text(NotFound("no VM web"), colour=False) == "atoll: no VM web\n"


def test_an_error_is_red_on_a_terminal():
    assert error_text(NotFound("no"), colour=True) == "\x1b[1;31matoll:\x1b[0m \x1b[1mno\x1b[0m\n"


def test_what_a_peer_says_cannot_forge_lines_or_move_the_cursor():
    text = error_text(AtollError("bad\n  hint: run rm\x1b[2J", hint="a\rb"), colour=False)
    assert text == "atoll: bad\\n  hint: run rm\\u001b[2J\n  hint: a\\rb\n"


def test_what_is_not_foreseen_is_a_bug_and_shows_its_trace_only_when_asked(capsys, monkeypatch):
    monkeypatch.delenv("ATOLL_DEBUG", raising=False)
    assert report(KeyError("boom")) == 1
    err = capsys.readouterr().err
    assert err.startswith("atoll: KeyError: 'boom'\n  hint: this is a bug;")
    assert "Traceback" not in err
    monkeypatch.setenv("ATOLL_DEBUG", "1")
    report(errors.Conflict("x", details={"state": "running"}))
    err = capsys.readouterr().err
    assert "details: {'state': 'running'}" in err
    assert "atoll.errors.Conflict: x" in err


def test_our_own_errors_pass_unchanged():
    error = errors.TimedOut("x")
    assert as_atoll_error(error) is error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_unwinds_with_its_status(number):
    ours = signal.signal(number, signal.SIG_DFL)  # whoever runs the tests may have it ignored
    try:
        with pytest.raises(SystemExit) as end, terminated_as_exit():
            signal.raise_signal(number)
        assert end.value.code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, ours)


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminated_as_exit():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
