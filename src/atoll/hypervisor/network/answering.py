"""TCP ports of guests, from the node or from the namespace of a bridge's servers: whether one answers; connections.

Effects: TCP connections to guests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

from atoll.errors import AtollError, Conflict
from atoll.model.network import METADATA_IP
from atoll.system import aside, namespaces

ATTEMPT_S = 0.25
CONVERSE_S = 1.0
CONNECT_S = 10.0

_IP_BIND_ADDRESS_NO_PORT = 24


async def answers(ip: str, port: int, namespace: str | None = None) -> bool:
    """Whether something takes connections there. `namespace` is that of the servers of the guest's bridge."""
    with contextlib.ExitStack() as stack:
        try:
            wire = await _socket(stack, namespace)
            async with asyncio.timeout(ATTEMPT_S):
                await asyncio.get_running_loop().sock_connect(wire, (ip, port))
        except (AtollError, OSError, TimeoutError):
            return False
        return True


async def connected(ip: str, port: int, namespace: str | None = None) -> socket.socket:
    """A connection to what listens there; Conflict when nothing does."""
    with contextlib.ExitStack() as stack:
        wire = await _socket(stack, namespace)
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().sock_connect(wire, (ip, port))
        except (OSError, TimeoutError) as error:
            number = error.errno if isinstance(error, OSError) else None
            why = os.strerror(number).lower() if number else f"no answer within {CONNECT_S:g} s"
            raise Conflict(
                f"port {port} of {ip}: {why}", hint="is there a program that listens, also at that address?"
            ) from None
        stack.pop_all()
        return wire


async def converses(ip: str, port: int, namespace: str | None = None) -> bool:
    """Whether something answers there, asked as a browser would."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        try:
            wire = await _socket(stack, namespace)
            async with asyncio.timeout(CONVERSE_S):
                await loop.sock_connect(wire, (ip, port))
                await loop.sock_sendall(wire, b"GET / HTTP/1.0\r\n\r\n")
                return bool(await loop.sock_recv(wire, 1))
        except (AtollError, OSError, TimeoutError):
            return False


async def _socket(stack: contextlib.ExitStack, namespace: str | None) -> socket.socket:
    """One that is closed with the stack, also when the caller is cancelled while it is made."""
    if namespace is None:
        wire = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    else:
        wire = await aside.run(_socket_of_servers, stack, namespace)
    wire.setblocking(False)
    return wire


def _socket_of_servers(stack: contextlib.ExitStack, namespace: str) -> socket.socket:
    wire = stack.enter_context(namespaces.socket_in(namespace, socket.AF_INET, socket.SOCK_STREAM))
    # From the one address that a guest answers to its own node and to nobody else: see ADR 50. The port is chosen
    # when it connects: before that, it would be taken from all others.
    wire.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
    wire.bind((METADATA_IP, 0))
    return wire
