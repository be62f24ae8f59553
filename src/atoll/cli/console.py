"""A serial console between this terminal and a VM. Effects: terminal modes, signals, a WebSocket.

On a terminal every key goes to the guest, but Ctrl-] leaves. From a pipe or file, input is sent up to its
end, and the guest's output printed until it has been silent for a while: so scripts can use it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import ssl
import stat
import sys
from collections.abc import AsyncIterator, Sequence
from signal import SIGHUP, SIGTERM

import aiohttp

from atoll.api import hypervisor as api
from atoll.api.codec import decoder
from atoll.cli.raw_terminal import raw_terminal, write_all
from atoll.cli.screen import History, Modes
from atoll.cli.sockets import WebSocket, connected, messages
from atoll.cli.terminal import printable
from atoll.errors import Conflict

ESCAPE = b"\x1d"
INTERRUPT = b"\x03"
CHUNK = 4096
LAST_KEYS_S = 1.0


def talk(
    addresses: Sequence[tuple[str, int]],
    tls: ssl.SSLContext,
    ref: str,
    how: api.Attach,
    *,
    linger_s: float,
    quiet: bool,
) -> int:
    """Connect standard input and output with the console; the exit status."""
    return asyncio.run(_talk(addresses, tls, ref, how, linger_s, quiet))


async def _talk(
    addresses: Sequence[tuple[str, int]],
    tls: ssl.SSLContext,
    ref: str,
    how: api.Attach,
    linger_s: float,
    quiet: bool,
) -> int:
    async with connected(addresses, tls, api.VM_CONSOLE, {"vm": ref}, how) as socket:
        session = Session(socket, ref, how, interactive=sys.stdin.isatty(), quiet=quiet)
        session.announce()
        try:
            with raw_terminal(sys.stdin.fileno()) if session.interactive else contextlib.nullcontext():
                return await _relay(session, sys.stdin.fileno(), linger_s)
        finally:
            session.farewell()


class Session:
    """One console on this terminal, pipe or file."""

    def __init__(
        self, socket: WebSocket, ref: str, how: api.Attach, *, interactive: bool, quiet: bool
    ) -> None:
        self.socket = socket
        self.watches = how.watch
        self.interactive = interactive
        self.heard = asyncio.Event()
        """Set when the guest writes, and at the end, so that nobody waits for more."""
        self.seated = asyncio.Event()
        """Set once we know who may type."""
        self._ref = ref
        self._quiet = quiet
        self._on_screen = sys.stdout.isatty()
        self._history = History()
        self._modes = Modes()

    def announce(self) -> None:
        doing = "watching the console" if self.watches else "console"
        how = "Ctrl-] leaves it" if self.interactive else "reading commands from standard input"
        if not self.interactive and self.watches:
            how = "until it ends"
        self._say(f"{doing} of {self._ref}: {how}\n")

    def farewell(self) -> None:
        if self.interactive:
            if self._on_screen:
                with contextlib.suppress(BrokenPipeError):
                    write_all(1, self._modes.undone())
            self._say(f"\nleft the console of {self._ref}\n")

    async def show(self) -> None:
        """Print what the guest writes, until the console ends."""
        async for message in messages(self.socket, "console"):
            if message.type is aiohttp.WSMsgType.BINARY:
                self.heard.set()
                self._show(message.data)
            elif message.type is aiohttp.WSMsgType.TEXT:
                self._told(decoder(api.Writer).decode(message.data))

    def _show(self, data: bytes) -> None:
        if self._on_screen:
            if not self.seated.is_set():
                data = self._history.shown(data)
            self._modes.note(data)
        write_all(1, data)

    def _told(self, writer: api.Writer) -> None:
        who = printable(writer.by) or "nobody"
        if not (writer.writer or self.watches or self.interactive):
            raise Conflict(
                f"console of {self._ref}: {who} has the keyboard",
                hint="take it with --take, or only look on with --watch",
            )
        first = not self.seated.is_set()
        self.seated.set()
        if first:
            write_all(1, self._history.rest())
        if writer.writer and not first:
            self._say("\r\n[you have the keyboard]\r\n")
        elif not writer.writer and not self.watches:
            self._say(f"\r\n[{who} has the keyboard, you look on; --take takes it]\r\n")

    def _say(self, text: str) -> None:
        if not self._quiet:
            with contextlib.suppress(OSError):
                sys.stderr.write(text)
                sys.stderr.flush()


async def _relay(session: Session, input_fd: int, linger_s: float) -> int:
    """Both directions until one of them ends."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    ended_by: list[int] = []

    def end(number: int) -> None:
        ended_by.append(number)
        if task is not None:
            task.cancel()

    sending = asyncio.ensure_future(_send(session, input_fd))
    printing = asyncio.ensure_future(session.show())
    printing.add_done_callback(lambda _: session.heard.set())
    for number in (SIGTERM, SIGHUP):
        loop.add_signal_handler(number, end, number)
    try:
        await asyncio.wait({sending, printing}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done() and not session.interactive:
            sending.result()
            await _until_silent(printing, session.heard, linger_s)
        for done in (each for each in (printing, sending) if each.done()):
            done.result()
    except asyncio.CancelledError:
        if not ended_by:
            raise
        return 128 + ended_by[0]
    finally:
        for number in (SIGTERM, SIGHUP):
            loop.remove_signal_handler(number)
        for pending in (sending, printing):
            pending.cancel()
        await asyncio.gather(sending, printing, return_exceptions=True)
    return 0


async def _until_silent(printing: asyncio.Future[None], heard: asyncio.Event, linger_s: float) -> None:
    """Until the guest has written nothing for so long, or its console has ended."""
    while not printing.done():
        heard.clear()
        try:
            async with asyncio.timeout(linger_s):
                await heard.wait()
        except TimeoutError:
            return


async def _send(session: Session, fd: int) -> None:
    """What is typed, until somebody leaves; what a script says, until its end."""
    if session.interactive:
        await send_keys(session, fd)
    elif session.watches:
        await asyncio.Event().wait()
    else:
        await session.seated.wait()
        async for data in _input(fd):
            await session.socket.send_bytes(data)


async def send_keys(session: Session, fd: int) -> None:
    # A guest that takes nothing must not keep anybody from leaving: keys wait apart from who reads them.
    typed: asyncio.Queue[bytes] = asyncio.Queue()
    typing = asyncio.ensure_future(_send_all(session.socket, typed))
    try:
        async for data in _input(fd):
            keys, escape, _ = data.partition(ESCAPE)
            if keys and not session.watches:
                typed.put_nowait(keys)
            if escape or (session.watches and INTERRUPT in keys):
                break
        typed.put_nowait(b"")
        await asyncio.wait({typing}, timeout=LAST_KEYS_S)
    finally:
        typing.cancel()
        await asyncio.gather(typing, return_exceptions=True)


async def _send_all(socket: WebSocket, typed: asyncio.Queue[bytes]) -> None:
    while keys := await typed.get():
        await socket.send_bytes(keys)


async def _input(fd: int) -> AsyncIterator[bytes]:
    """What comes in, until its end."""
    if stat.S_ISREG(os.fstat(fd).st_mode):
        # A file is always ready, and no event loop can wait for it.
        while data := os.read(fd, CHUNK):
            yield data
        return
    while True:
        await _readable(fd)
        try:
            data = os.read(fd, CHUNK)
        except OSError as error:
            if error.errno != errno.EIO:  # the terminal itself has gone
                raise
            return
        if not data:
            return
        yield data


async def _readable(fd: int) -> None:
    """Returns once there is something to read, and then only once: a read in vain would stop the loop."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def wake() -> None:
        loop.remove_reader(fd)
        ready.set_result(None)

    loop.add_reader(fd, wake)
    try:
        await ready
    finally:
        loop.remove_reader(fd)
