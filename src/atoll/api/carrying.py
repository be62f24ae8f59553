"""One connection to a port of a guest, as standard input and output of this process. Effects: a WebSocket; 0 and 1."""

from __future__ import annotations

import os
import select

from atoll.api.client import Client
from atoll.api.codec import decoder, encode
from atoll.api.forwards import VM_FORWARD, End, Target
from atoll.errors import from_wire

CHUNK = 32 << 10
MOST_UNSENT = 256 << 10
"""Bytes that wait for the service; until they are fewer, nothing more is read."""


def carry(client: Client, vm: str, port: int) -> None:
    """Everything both ways, until the guest has said that no more comes from it."""
    with client.connect(VM_FORWARD, {"vm": vm}, query=Target(port)) as socket:
        open_in = True
        while True:
            wanted = {0: select.POLLIN} if open_in and socket.unsent < MOST_UNSENT else {}
            messages, ready = socket.step(wanted)
            for message in messages:
                if isinstance(message, bytes):
                    _write(message)
                    continue
                said: End = decoder(End).decode(message)
                if said.error is not None:
                    problem = said.error
                    raise from_wire(problem.code, problem.brief, problem.hint, problem.details)
                return
            if 0 in ready:
                data = os.read(0, CHUNK)
                if data:
                    socket.put_bytes(data)
                else:
                    open_in = False
                    socket.put(encode(End()).decode())


def _write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]
