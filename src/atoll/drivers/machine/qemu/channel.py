"""The private line to a guest that waits for its identity. Talks over its socket; `order` is pure.

    identity MAC NAME SEED CLOCK    be this machine, for good
    rehearse MAC NAME SEED CLOCK    be it until told to park
    park                            forget the rehearsal and wait again

The guest says `ready` when it waits, and `taken` when it is what it was told to be. It is not trusted: what
it says is read up to a limit, and anything else than the word that is due is a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Literal

from atoll.drivers.machine.base import Machine
from atoll.drivers.machine.qemu import record
from atoll.errors import HostFailure, TimedOut
from atoll.system import clock, files

SEED_BYTES = 32
_LONGEST_ANSWER = 64

Order = Literal["identity", "rehearse"]


class Channel:
    """One connection. QEMU drops what the guest has not read yet when it is closed: wait for the answer."""

    def __init__(self, machine: Machine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._machine = machine
        self._reader = reader
        self._writer = writer

    async def tell(self, line: bytes) -> None:
        self._writer.write(line)
        await self._writer.drain()

    async def expect(self, word: Literal["ready", "taken"], timeout_s: float) -> None:
        """Wait for this word of the guest."""
        try:
            async with asyncio.timeout(timeout_s):
                said = await self._reader.readuntil(b"\n")
        except TimeoutError:
            raise TimedOut(
                f"machine {self._machine.name}: its guest did not say {word} in {timeout_s:g} s",
                hint=f"see {record.console_log_path(self._machine)}",
            ) from None
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
            raise self._failed(word, type(error).__name__) from error
        if said.rstrip(b"\r\n") != word.encode():
            raise self._failed(word, repr(said[:_LONGEST_ANSWER]))

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _failed(self, word: str, instead: str) -> HostFailure:
        return HostFailure(f"machine {self._machine.name}: its guest did not say {word}: {instead}")


@contextlib.asynccontextmanager
async def opened(machine: Machine) -> AsyncIterator[Channel]:
    """A connection for the time of the block; HostFailure when there is no such line."""
    try:
        connection = await files.unix_socket(record.channel_path(machine))
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=_LONGEST_ANSWER)
    except OSError as error:
        raise HostFailure(
            f"machine {machine.name}: it takes no identity: {error.strerror}",
            hint="only a machine that was forked and not identified yet does",
        ) from error
    channel = Channel(machine, reader, writer)
    try:
        yield channel
    finally:
        await channel.close()


def order(kind: Order, mac: str, name: str, seed: bytes, clock_ns: int) -> bytes:
    """The line that makes a guest somebody. Pure."""
    return f"{kind} {mac} {name} {seed.hex()} {clock_ns}\n".encode()


def new_order(kind: Order, machine: Machine) -> bytes:
    """An order with entropy that nobody else gets, and the time as it is now."""
    return order(kind, machine.nic.mac, machine.name, secrets.token_bytes(SEED_BYTES), clock.now_ns())


PARK = b"park\n"
