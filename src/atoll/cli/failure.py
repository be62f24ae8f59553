"""How a command fails: two lines on standard error, and an exit status that scripts can tell apart.

Effects: writes to standard error; replaces a broken standard output.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from atoll.errors import AtollError, Unauthenticated, Unreachable

INTERRUPTED = 128 + signal.SIGINT
BROKEN_PIPE = 128 + signal.SIGPIPE


def report(error: BaseException) -> int:
    """Tell the user; the exit status."""
    match error:
        case SystemExit():
            return error.code if isinstance(error.code, int) else int(error.code is not None)
        case KeyboardInterrupt():
            tell(AtollError("interrupted"))
            return INTERRUPTED
        case BrokenPipeError():
            # Whoever read our output has gone: flushing the rest at exit must not complain either.
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
            return BROKEN_PIPE
    told = as_atoll_error(error)
    tell(told)
    if _debugging():
        import traceback

        if told.details:
            sys.stderr.write(f"  details: {told.details}\n")
        traceback.print_exception(error, file=sys.stderr)
    return told.exit_status


def tell(error: AtollError) -> None:
    """One failure on standard error; a command that goes on after it uses this too."""
    from atoll.cli.terminal import has_colour

    sys.stderr.write(error_text(error, colour=has_colour(sys.stderr, os.environ)))
    sys.stderr.flush()


def error_text(error: AtollError, *, colour: bool) -> str:
    """The two lines. What a peer wrote into them cannot move the cursor or forge a third."""
    from atoll.cli.terminal import painted, printable

    label = painted("atoll:", "1;31", colour)
    text = f"{label} {painted(printable(error.brief), '1', colour)}\n"
    if error.hint:
        text += f"  {painted('hint:', '36', colour)} {printable(error.hint)}\n"
    return text


def as_atoll_error(error: BaseException) -> AtollError:
    """Every failure as one of ours. What is not foreseen is our bug, and says so."""
    if isinstance(error, AtollError):
        return error
    for module, kind, translate in (
        ("ssl", "SSLError", _tls),
        ("msgspec", "MsgspecError", _strange),
    ):
        # Only a module that was imported can have raised it.
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(error, getattr(loaded, kind)):
            return translate(error)
    if isinstance(error, ConnectionError):
        return _broken(error)
    if isinstance(error, OSError) and error.filename is not None:
        return AtollError(f"{error.filename}: {(error.strerror or 'failed').lower()}")
    return AtollError(
        f"{type(error).__name__}: {error}",
        hint="this is a bug; ATOLL_DEBUG=1 shows where, please report it",
    )


def _tls(error: BaseException) -> AtollError:
    reason = (getattr(error, "reason", None) or str(error)).lower().replace("_", " ")
    return Unauthenticated(
        f"TLS refused: {reason}",
        hint="the certificate must be of this cloud's CA, not expired and not revoked; see: atoll ca show",
    )


def _broken(error: BaseException) -> AtollError:
    what = str(error) or type(error).__name__
    return Unreachable(f"the connection broke: {what}", hint="is the service up? see: atoll status")


def _strange(error: BaseException) -> AtollError:
    return AtollError(
        f"the service's answer is not understood: {error}",
        hint="is it of another version? atoll --version, atoll node show -o json",
    )


def _debugging() -> bool:
    return os.environ.get("ATOLL_DEBUG", "") not in ("", "0")


@contextmanager
def terminated_as_exit() -> Iterator[None]:
    """While inside, a request to end (SIGTERM, SIGHUP) unwinds the stack, so that terminals are restored."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    # One that is ignored stays so: nohup.
    ours = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
