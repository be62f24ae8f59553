"""The publisher: a process that carries connections from ports of the node to guests. Started by process.py.

    client ══ port of the node, opened by the agent ── publisher ══ guest
    agent ─── control: what to carry where, what was carried ──┘

It outlives the agent that started it. It has no rights, sees no files, and never looks at what it carries: the kernel
moves the bytes from socket to socket.

Control is one line of JSON for each question and each answer; a port comes as an open file beside its line. Whoever
can connect there is root.

Nothing is imported once it has begun: there are no files then. Effects: TCP.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import select
import socket
import sys
import time

from atoll.hypervisor.publishing.program.connections import Connection, Pipes, Port, reset_at_end, source_of
from atoll.hypervisor.publishing.program.crowd import Crowd

MOST = 16_384
"""All of them; fewer where there are not descriptors enough."""
PAUSE_S = 0.1
"""How long no connection is taken where there is no descriptor left for one."""

_ACCEPTS = 32
_DESCRIPTORS_OF_ONE = 6
"""Two sockets, and two pipes of two ends."""
_DESCRIPTORS_KEPT = 64
_MOST_CONTROL, _MOST_LINE = 8, 1 << 16
_EDGE = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Publisher:
    """The loop, and everything in it by its descriptor."""

    def __init__(self, control: socket.socket) -> None:
        self._epoll = select.epoll()
        self._act: dict[int, Callable[[int], None]] = {}
        self._pipes = Pipes()
        self._ports: dict[str, Port] = {}
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._crowd = Crowd(max(1, min(MOST, (descriptors // 2 - _DESCRIPTORS_KEPT) // _DESCRIPTORS_OF_ONE)))
        self._connecting: dict[Connection, None] = {}
        """In the order in which they are given up."""
        self._again: dict[Connection, None] = {}
        """Those that have more to carry at once."""
        self._resume_at = 0.0
        self._controls = 0
        control.setblocking(False)
        self._watch(control, select.EPOLLIN, lambda _: self._take_control(control))

    def run(self) -> None:
        while True:
            for descriptor, events in self._epoll.poll(self._patience_s(), 256):
                act = self._act.get(descriptor)
                if act is not None:
                    act(events)
            for one in list(self._again):
                del self._again[one]
                self._carry(one)
            self._look_at_the_clock()

    def _patience_s(self) -> float:
        if self._again:
            return 0.0
        if self._resume_at:
            return PAUSE_S
        return 0.5 if self._connecting else -1.0

    def _look_at_the_clock(self) -> None:
        if not self._connecting and not self._resume_at:
            return
        now = time.monotonic()
        while self._connecting and (first := next(iter(self._connecting))).give_up_at <= now:
            first.port.failed += 1
            self._end(first, reset=True)
        if self._resume_at and self._resume_at <= now:
            self._resume_at = 0.0
            for port in self._ports.values():
                self._listen(port)

    def _watch(self, file: socket.socket, events: int, act: Callable[[int], None]) -> None:
        self._act[file.fileno()] = act
        self._epoll.register(file.fileno(), events)

    def _forget(self, file: socket.socket) -> None:
        if self._act.pop(file.fileno(), None) is not None:
            self._epoll.unregister(file.fileno())

    # --- connections

    def _listen(self, port: Port) -> None:
        self._watch(port.listener, select.EPOLLIN, lambda _: self._accept(port))

    def _accept(self, port: Port) -> None:
        for _ in range(_ACCEPTS):
            try:
                client, _ = port.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._pause()
                    return
                continue  # whoever came has gone
            try:
                self._begin(port, client)
            except OSError:
                port.failed += 1
                reset_at_end(client)
                client.close()

    def _pause(self) -> None:
        """Nobody is served sooner by trying at once again."""
        self._resume_at = time.monotonic() + PAUSE_S
        for port in self._ports.values():
            self._forget(port.listener)

    def _begin(self, port: Port, client: socket.socket) -> None:
        admitted, instead_of = self._crowd.admit(port.vm, source_of(client.getpeername()[0]))
        if not admitted or not port.ip:
            port.refused += 1
            reset_at_end(client)
            client.close()
            return
        if instead_of is not None:
            assert isinstance(instead_of, Connection)
            instead_of.port.refused += 1
            self._end(instead_of, reset=True)
        guest = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            client.setblocking(False)
            for wire in (client, guest):
                for option in _KEEP_ALIVE:
                    wire.setsockopt(*option)
            one = Connection(port, client, guest, self._pipes)
            refused = guest.connect_ex((port.ip, port.guest_port))
            if refused not in (0, errno.EINPROGRESS):
                raise OSError(refused, os.strerror(refused))
        except BaseException:
            guest.close()
            raise
        port.connections += 1
        port.open += 1
        self._crowd.add(one)
        self._connecting[one] = None
        self._watch(client, _EDGE, lambda events: self._on_client(one, events))
        self._watch(guest, _EDGE, lambda events: self._on_guest(one, events))

    def _on_client(self, one: Connection, events: int) -> None:
        one.to_guest.readable |= bool(events & ~select.EPOLLOUT)
        one.from_guest.writable |= bool(events & ~select.EPOLLIN)
        if one.connected:
            self._carry(one, events)

    def _on_guest(self, one: Connection, events: int) -> None:
        one.from_guest.readable |= bool(events & ~select.EPOLLOUT)
        one.to_guest.writable |= bool(events & ~select.EPOLLIN)
        if not one.connected:
            try:
                one.connect()
            except OSError as error:
                if error.errno != errno.ENOTCONN:
                    one.port.failed += 1
                    self._end(one, reset=True)
                return
            del self._connecting[one]
        self._carry(one, events)

    def _carry(self, one: Connection, events: int = 0) -> None:
        try:
            if events & select.EPOLLERR:
                raise ConnectionResetError
            more = one.carry()
        except OSError:
            self._end(one, reset=True)
            return
        if one.is_over:
            self._end(one, reset=False)
            return
        self._crowd.touch(one)
        if more:
            self._again[one] = None

    def _end(self, one: Connection, *, reset: bool) -> None:
        one.note()
        self._connecting.pop(one, None)
        self._again.pop(one, None)
        self._forget(one.client)
        self._forget(one.guest)
        one.close(reset=reset)
        self._crowd.remove(one)
        one.port.open -= 1

    # --- control

    def _take_control(self, listener: socket.socket) -> None:
        try:
            agent, _ = listener.accept()
        except OSError:
            return
        if self._controls >= _MOST_CONTROL:
            agent.close()
            return
        agent.setblocking(False)
        self._controls += 1
        line, files = bytearray(), []

        def hear(_: int) -> None:
            try:
                data, found, _flags, _address = socket.recv_fds(agent, _MOST_LINE, 4)
            except BlockingIOError:
                return
            except OSError:
                data, found = b"", []
            files.extend(found)
            line.extend(data)
            if data and len(line) <= _MOST_LINE and not line.endswith(b"\n"):
                return
            try:
                if line.endswith(b"\n"):
                    self._answer(agent, bytes(line), files)
            finally:
                self._controls -= 1
                self._forget(agent)
                agent.close()
                for file in files:
                    os.close(file)

        self._watch(agent, select.EPOLLIN, hear)

    def _answer(self, agent: socket.socket, line: bytes, files: list[int]) -> None:
        try:
            answer = self._obey(json.loads(line), files)
        except (OSError, ValueError, KeyError, IndexError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        # The agent waits for it. One that does not is not waited for.
        agent.settimeout(1.0)
        with contextlib.suppress(OSError):
            agent.sendall(json.dumps(answer).encode() + b"\n")

    def _obey(self, asked: dict[str, Any], files: list[int]) -> dict[str, Any]:
        match asked["do"]:
            case "list":
                return {"ports": [port.told() for port in self._ports.values()]}
            case "carry":
                key = asked["key"]
                if key in self._ports:
                    raise ValueError(f"{key} is carried already")
                listener = socket.socket(fileno=files[0])
                files.pop(0)
                listener.setblocking(False)
                port = self._ports[key] = Port(key, asked["vm"], asked["proxy"], listener)
                port.ip, port.guest_port = asked["ip"], asked["guest_port"]
                if not self._resume_at:
                    self._listen(port)
            case "point":
                port = self._ports[asked["key"]]
                port.ip, port.guest_port = asked["ip"], asked["guest_port"]
                self._end_all(port)
            case "drop":
                gone = self._ports.pop(asked["key"], None)
                if gone is not None:
                    self._forget(gone.listener)
                    gone.listener.close()
                    self._end_all(gone)
        return {}

    def _end_all(self, port: Port) -> None:
        for one in self._crowd.of(port.vm):
            if isinstance(one, Connection) and one.port is port:
                self._end(one, reset=True)


def main() -> None:
    """The number of the control socket is its only argument."""
    Publisher(socket.socket(fileno=int(sys.argv[1]))).run()
