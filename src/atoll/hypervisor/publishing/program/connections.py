"""One connection: a client, a guest, and what goes on between them. Effects: TCP.

The kernel moves the bytes from socket to socket (splice), through a pipe that a connection has only while there are
some in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import time

from atoll.hypervisor.publishing.program.crowd import Member

CONNECT_S = 5.0

_LARGE_PIPE, _LARGE_PIPES = 256 << 10, 64
_SPARE_PIPES = 64
_TURN = 1 << 20
"""Bytes that one direction of a connection carries before others have their turn."""
_RESET = struct.pack("ii", 1, 0)
_MOVE = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Port:
    """A port of the node, and where what comes there goes; nowhere while the guest is down."""

    def __init__(self, key: str, vm: str, proxy: bool, listener: socket.socket) -> None:
        self.key, self.vm, self.proxy, self.listener = key, vm, proxy, listener
        self.ip, self.guest_port = "", 0
        self.open = self.connections = self.refused = self.failed = self.bytes_in = self.bytes_out = 0

    def told(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "vm": self.vm,
            "proxy": self.proxy,
            "ip": self.ip,
            "guest_port": self.guest_port,
            "open": self.open,
            "connections": self.connections,
            "refused": self.refused,
            "failed": self.failed,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
        }


class Pipes:
    """Pipes that nobody uses are kept for the next; the first of them are large."""

    def __init__(self) -> None:
        self._spare: list[tuple[int, int]] = []
        self._large = 0

    def take(self) -> tuple[int, int]:
        if self._spare:
            return self._spare.pop()
        pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._large < _LARGE_PIPES:
            try:
                fcntl.fcntl(pipe[0], fcntl.F_SETPIPE_SZ, _LARGE_PIPE)
                self._large += 1
            except OSError:  # the kernel lets this user have no more of them
                self._large = _LARGE_PIPES
        return pipe

    def give(self, pipe: tuple[int, int], *, is_empty: bool) -> None:
        if is_empty and len(self._spare) < _SPARE_PIPES:
            self._spare.append(pipe)
        else:
            for end in pipe:
                os.close(end)


class Flow:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, sink: socket.socket, pipes: Pipes) -> None:
        self._source, self._sink, self._pipes = source, sink, pipes
        self._pipe: tuple[int, int] | None = None
        self._held = 0
        self._ended = False
        self.readable = self.writable = False
        self.is_over = False
        self.moved = 0
        """Bytes, since somebody took note of them."""

    def pump(self) -> bool:
        """Carry what can be carried now; whether there may be more at once."""
        turn = 0
        while turn < _TURN and not self.is_over:
            if not self._held and not self._fill():
                break
            if self._held:
                if not self.writable or self._pipe is None:
                    break
                try:
                    moved = os.splice(self._pipe[0], self._sink.fileno(), self._held, flags=_MOVE)
                except BlockingIOError:
                    self.writable = False
                    break
                self._held -= moved
                turn += moved
        self.moved += turn
        if not self._held:
            self.let_go()
        return turn >= _TURN

    def _fill(self) -> bool:
        """Whether there is something to carry on, or the end of it was."""
        if self._ended:
            self._sink.shutdown(socket.SHUT_WR)
            self.is_over = True
            return False
        if not self.readable:
            return False
        if self._pipe is None:
            self._pipe = self._pipes.take()
        try:
            self._held = os.splice(self._source.fileno(), self._pipe[1], _LARGE_PIPE, flags=_MOVE)
        except BlockingIOError:
            self.readable = False
            return False
        self._ended = not self._held
        return True

    def let_go(self) -> None:
        if self._pipe is not None:
            self._pipes.give(self._pipe, is_empty=not self._held)
            self._pipe = None


class Connection(Member):
    """A client and a guest."""

    def __init__(self, port: Port, client: socket.socket, guest: socket.socket, pipes: Pipes) -> None:
        super().__init__(port.vm, source_of(client.getpeername()[0]))
        self.port, self.client, self.guest = port, client, guest
        self.to_guest, self.from_guest = Flow(client, guest, pipes), Flow(guest, client, pipes)
        self.connected = False
        self.give_up_at = time.monotonic() + CONNECT_S
        self._first = _proxy_header(client) if port.proxy else b""

    def connect(self) -> None:
        """OSError where the guest says no."""
        if error := self.guest.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))
        self.guest.getpeername()
        self.connected = True
        if self._first:
            self.guest.send(self._first)

    def carry(self) -> bool:
        more = self.to_guest.pump()
        more |= self.from_guest.pump()
        self.note()
        return more

    def note(self) -> None:
        self.port.bytes_in += self.to_guest.moved
        self.port.bytes_out += self.from_guest.moved
        self.to_guest.moved = self.from_guest.moved = 0

    @property
    def is_over(self) -> bool:
        return self.to_guest.is_over and self.from_guest.is_over

    def close(self, *, reset: bool) -> None:
        for flow in (self.to_guest, self.from_guest):
            flow.let_go()
        for wire in (self.client, self.guest):
            if reset:
                reset_at_end(wire)
            wire.close()


def source_of(address: str) -> str:
    """Where a client is: its address, or the network of it where one machine has as many as it likes."""
    if ":" not in address:
        return address
    return socket.inet_pton(socket.AF_INET6, address.partition("%")[0])[:8].hex()


def _proxy_header(client: socket.socket) -> bytes:
    """Who the client is, in the first line that the guest reads (the PROXY protocol, version 1)."""
    (there, there_port), (here, here_port) = client.getpeername()[:2], client.getsockname()[:2]
    family = "TCP6" if ":" in there else "TCP4"
    return f"PROXY {family} {there} {here} {there_port} {here_port}\r\n".encode()


def reset_at_end(wire: socket.socket) -> None:
    """Whoever is at the other end is told that this was no proper end."""
    with contextlib.suppress(OSError):
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
