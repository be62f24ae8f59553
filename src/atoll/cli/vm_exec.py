"""`atoll vm exec` and `atoll vm shell`: commands in guests. Effects: a WebSocket, the terminal, standard streams.

Imports stand where they are needed: a script that runs a hundred of these waits for each.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from atoll.cli.arguments import Commands, add_verb, parse_duration_s
from atoll.cli.vm_ref import add_vm_argument, check_ref
from atoll.errors import Invalid, Malformed, TimedOut

if TYPE_CHECKING:
    from atoll.api.running import Running
    from atoll.model.command import Command, Size

CHUNK = 32 << 10

Show = Callable[[int, bytes], None]
"""Writes to one of our streams."""

# The shell of the user in /etc/passwd where that can be run, else the usual ones; as a login shell.
_SHELL = """
wanted=${1:-root} own=
while IFS=: read -r name _ number _ _ _ shell; do
    if [ "$name" = "$wanted" ] || [ "$number" = "$wanted" ]; then own=$shell; break; fi
done 2>/dev/null </etc/passwd
for SHELL in "$own" /bin/bash /bin/sh; do
    export SHELL
    [ -n "$SHELL" ] && [ -x "$SHELL" ] && exec "$SHELL" -l
done
echo "this guest has no shell that can be run" >&2
exit 127
"""


def register(vm: Commands) -> None:
    add = add_verb(
        vm,
        "exec",
        exec_,
        summary="Run a command in a guest; its exit status is that of atoll. Needs no network in the guest.",
        example="atoll vm exec web --user www --timeout 30s -- ls -l /srv",
    )
    add.takes_words = True
    add_vm_argument(add)
    add.add_argument("-t", "--tty", action="store_true", help="on a terminal in the guest")
    add.add_argument(
        "-i", "--stdin", action="store_true", help="standard input is the command's; else it has none"
    )
    add.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable; NAME alone: its value here",
    )
    add.add_argument("--user", default="", metavar="USER", help="a name or number in the guest; default root")
    add.add_argument("--cwd", default="", metavar="DIR", help="where it begins; default the user's home")
    add.add_argument(
        "--timeout", metavar="TIME", help="30s, 5m: then it is ended, and the exit status is 124"
    )
    add.usage = "atoll vm exec IP|NAME [options] -- COMMAND [ARGUMENT …]"
    add = add_verb(
        vm,
        "shell",
        shell,
        summary="A login shell in a guest, on this terminal. Needs no network in the guest.",
        example="atoll vm shell web",
    )
    add_vm_argument(add)
    add.add_argument("--user", default="", metavar="USER", help="a name or number in the guest; default root")


def exec_(options: argparse.Namespace) -> int:
    from atoll.model.command import Command

    ref = check_ref(options.vm)
    if not options.words:
        raise Malformed(
            "vm exec: no command was given", hint=f"write it behind --: atoll vm exec {ref} -- ls -l"
        )
    command = Command(
        argv=tuple(options.words),
        env={**_terminal_env(options.tty), **parse_env(options.env, os.environ)},
        user=options.user,
        cwd=options.cwd,
        input=options.stdin,
        terminal=_size() if options.tty else None,
        timeout_s=None if options.timeout is None else parse_duration_s("timeout", options.timeout),
    )
    return follow(options, ref, command)


def shell(options: argparse.Namespace) -> int:
    from atoll.model.command import Command

    ref = check_ref(options.vm)
    argv = ("/bin/sh", "-c", _SHELL, "shell", *([options.user] if options.user else []))
    command = Command(argv, env=_terminal_env(True), user=options.user, input=True, terminal=_size())
    return follow(options, ref, command)


def parse_env(pairs: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """NAME=VALUE; or NAME alone, of which the value never is on a command line."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals and name not in environment:
            raise Invalid("env", name, "has no value, and is not set here", hint="for example: --env LANG=C")
        found[name] = value if equals else environment[name]
    return found


def follow(options: argparse.Namespace, ref: str, command: Command) -> int:
    """Run it with our own standard streams; its exit status."""
    from atoll.api.running import Running
    from atoll.cli.context import connect
    from atoll.cli.raw_terminal import raw_terminal, write_all

    with contextlib.ExitStack() as stack:
        client = stack.enter_context(connect(options))
        running = stack.enter_context(Running(client, ref, command))
        on_terminal = command.terminal is not None and command.input and sys.stdin.isatty()
        if on_terminal:
            stack.enter_context(raw_terminal(sys.stdin.fileno()))
        show = stack.enter_context(_screen()) if command.terminal and sys.stdout.isatty() else write_all
        signals = stack.enter_context(_signals())
        status = _relay(running, signals, show, command)
    if running.timed_out:
        assert command.timeout_s is not None
        from atoll.cli.failure import tell

        tell(
            TimedOut(f"vm exec: {command.argv[0]} did not end within {command.timeout_s:g} s, and was ended")
        )
    return status


@contextlib.contextmanager
def _screen() -> Iterator[Show]:
    """Writes to the terminal; what the guest changed there is taken back in the end."""
    from atoll.cli.raw_terminal import write_all
    from atoll.cli.screen import Modes

    modes = Modes()

    def show(stream: int, data: bytes) -> None:
        modes.note(data)
        write_all(stream, data)

    try:
        yield show
    finally:
        with contextlib.suppress(OSError):
            write_all(1, modes.undone())


def _relay(running: Running, signals: int, show: Show, command: Command) -> int:
    interrupted, has_input = False, command.input
    while running.status is None:
        others = {signals: select.POLLIN}
        if has_input and running.room:
            others[0] = select.POLLIN
        wrote, ready = running.step(others)
        for stream, data in wrote:
            show(stream, data)
        if signals in ready:
            numbers = os.read(signals, 64)
            if signal.SIGWINCH in numbers and command.terminal is not None:
                running.resize(_size())
            if signal.SIGINT in numbers:
                # The second time whoever waits has had enough of waiting.
                if interrupted:
                    raise KeyboardInterrupt
                interrupted = True
                running.send_signal(signal.SIGINT)
        if 0 in ready and running.room:
            data = os.read(0, min(CHUNK, running.room))
            running.write(data)
            if not data:
                running.end_input()
                has_input = False
    return running.status


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """A descriptor from which the numbers of signals are read that mean something to the command."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    numbers = (signal.SIGWINCH, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    old = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(old)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def _size() -> Size:
    from atoll.model.command import Size

    for descriptor in (0, 1, 2):
        with contextlib.suppress(OSError):
            found = os.get_terminal_size(descriptor)
            return Size(min(max(found.lines, 1), 4096), min(max(found.columns, 1), 4096))
    return Size()


def _terminal_env(on_terminal: bool) -> dict[str, str]:
    return {"TERM": os.environ.get("TERM") or "xterm"} if on_terminal else {}
