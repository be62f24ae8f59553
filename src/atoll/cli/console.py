"""A serial console between this terminal and a VM. Effects: terminal modes, signals, a WebSocket.

On a terminal every key goes to the guest, but Ctrl-] leaves. From a pipe or file, input is sent up to its
end, and the guest's output printed until it has been silent for a while: so scripts can use it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import stat
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator, Sequence
from signal import SIGHUP, SIGTERM

import aiohttp

from atoll.api import hypervisor as api
from atoll.api.async_client import AsyncClient
from atoll.errors import AtollError, Unreachable

ESCAPE = b"\x1d"
CHUNK = 4096

Socket = aiohttp.ClientWebSocketResponse


def talk(
    addresses: Sequence[tuple[str, int]], tls: ssl.SSLContext, ref: str, *, linger_s: float, quiet: bool
) -> int:
    """Connect standard input and output with the console; the exit status."""
    return asyncio.run(_talk(addresses, tls, ref, linger_s, quiet))


async def _talk(
    addresses: Sequence[tuple[str, int]], tls: ssl.SSLContext, ref: str, linger_s: float, quiet: bool
) -> int:
    async with _connected(addresses, tls, ref) as socket:
        interactive = sys.stdin.isatty()
        if not quiet:
            leave = "Ctrl-] leaves it" if interactive else "reading commands from standard input"
            sys.stderr.write(f"console of {ref}: {leave}\n")
            sys.stderr.flush()
        with raw_terminal(sys.stdin.fileno()) if interactive else contextlib.nullcontext():
            status = await _relay(socket, sys.stdin.fileno(), interactive, linger_s)
    if interactive and not quiet:
        # The guest may have left a colour, a hidden cursor or half a line.
        sys.stderr.write(f"\x1b[0m\x1b[?25h\nleft the console of {ref}\n")
    return status


@contextlib.asynccontextmanager
async def _connected(
    addresses: Sequence[tuple[str, int]], tls: ssl.SSLContext, ref: str
) -> AsyncIterator[Socket]:
    async with contextlib.AsyncExitStack() as stack:
        yield await _first_that_answers(stack, addresses, tls, ref)


async def _first_that_answers(
    stack: contextlib.AsyncExitStack, addresses: Sequence[tuple[str, int]], tls: ssl.SSLContext, ref: str
) -> Socket:
    failures: list[str] = []
    for address in addresses:
        async with contextlib.AsyncExitStack() as attempt:
            client = await attempt.enter_async_context(AsyncClient([address], tls))
            try:
                socket = await attempt.enter_async_context(client.connect(api.VM_CONSOLE, {"vm": ref}))
            except Unreachable as error:
                failures.append(error.brief)
                continue
            except aiohttp.ClientError as error:
                failures.append(f"{address[0]}:{address[1]}: the connection broke: {error}")
                continue
            await stack.enter_async_context(attempt.pop_all())
            return socket
    raise Unreachable(" and ".join(failures), hint="is the service up? see: atoll status")


async def _relay(socket: Socket, input_fd: int, interactive: bool, linger_s: float) -> int:
    """Both directions until one of them ends."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    ended_by: list[int] = []

    def end(number: int) -> None:
        ended_by.append(number)
        if task is not None:
            task.cancel()

    heard = asyncio.Event()  # also set at the end, so that nobody waits for more
    sending = asyncio.ensure_future(_send(socket, input_fd, interactive))
    printing = asyncio.ensure_future(_print(socket, heard))
    printing.add_done_callback(lambda _: heard.set())
    for number in (SIGTERM, SIGHUP):
        loop.add_signal_handler(number, end, number)
    try:
        await asyncio.wait({sending, printing}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done() and not interactive:
            sending.result()
            await _until_silent(printing, heard, linger_s)
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


async def _send(socket: Socket, fd: int, interactive: bool) -> None:
    async for data in _input(fd):
        keys, escape, _ = data.partition(ESCAPE) if interactive else (data, b"", b"")
        if keys:
            await socket.send_bytes(keys)
        if escape:
            return


async def _print(socket: Socket, heard: asyncio.Event) -> None:
    async for message in socket:
        if message.type is aiohttp.WSMsgType.BINARY:
            heard.set()
            _write_all(1, message.data)
    # The server tells why it ended a console, if there is a reason.
    if socket.close_code == aiohttp.WSCloseCode.INTERNAL_ERROR:
        raise AtollError("the service ended the console: it failed", hint="see: atoll vm show, atoll vm log")
    if socket.close_code == aiohttp.WSCloseCode.ABNORMAL_CLOSURE:
        raise Unreachable("the console's connection broke", hint="is the service up? see: atoll status")


async def _input(fd: int) -> AsyncIterator[bytes]:
    """What comes in, until its end."""
    if stat.S_ISREG(os.fstat(fd).st_mode):
        # A file is always ready, and no event loop can wait for it.
        while data := os.read(fd, CHUNK):
            yield data
        return
    while True:
        await _readable(fd)
        data = os.read(fd, CHUNK)
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


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


@contextlib.contextmanager
def raw_terminal(fd: int) -> Iterator[None]:
    """Every key as it is pressed, nothing echoed; as it was before, however this ends."""
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
