"""A blocking rtnetlink socket: one request, one answer. Sends to the kernel; pyroute2 does the encoding.

pyroute2's own sockets run an event loop of theirs, which does not go inside a running one, and fork a
process to reach another namespace. This one is a plain socket, made in the namespace by a thread.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from pyroute2.netlink import NLMSG_DONE, NLMSG_ERROR, nlmsg
from pyroute2.netlink.rtnl.marshal import MarshalRtnl

from atoll.system import namespaces

NLM_F_REQUEST = 0x001
NLM_F_ACK = 0x004
NLM_F_REPLACE = 0x100
NLM_F_DUMP = 0x300
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400

_NLM_F_DUMP_INTR = 0x010
_SOL_NETLINK = 270
_NETLINK_EXT_ACK = 11
_NETLINK_GET_STRICT_CHK = 12
_BUFFER_BYTES = 256 * 1024
_TIMEOUT_S = 5.0
_SIOCGIFINDEX = 0x8933
_INTERFACE = struct.Struct("=16si20x")
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")

Fields = Mapping[str, int]
Attributes = Sequence[tuple[str, Any]]


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute of a message that is encoded by hand. Pure."""
    padding = bytes(-len(value) % 4)
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + padding


class Netlink:
    """Speaks rtnetlink in one namespace (None: where we are). Not for use by two threads at once."""

    def __init__(self, namespace: str | None = None) -> None:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
        if namespace is None:
            self._socket = socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE)
        else:
            self._socket = namespaces.socket_in(namespace, socket.AF_NETLINK, kind, socket.NETLINK_ROUTE)
        self._socket.settimeout(_TIMEOUT_S)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)  # the kernel says why, in words
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_GET_STRICT_CHK, 1)  # filters of dumps are honoured
        self._socket.bind((0, 0))
        self._marshal = MarshalRtnl()
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def request(
        self, kind: int, message: type[nlmsg], fields: Fields, attributes: Attributes, flags: int = 0
    ) -> list[nlmsg]:
        """What the kernel answers. OSError, with the kernel's own words if it had any, when it refuses."""
        self._send(kind, message(), fields, attributes, flags | NLM_F_ACK)
        answers, _ = self._receive()
        return answers

    def index(self, link: str) -> int:
        """That of a link, without all else that the kernel would tell of it. OSError when there is none."""
        request = _INTERFACE.pack(os.fsencode(link), 0)
        found: int = _INTERFACE.unpack(fcntl.ioctl(self._socket, _SIOCGIFINDEX, request))[1]
        return found

    def tell(self, kind: int, body: bytes, flags: int = 0) -> None:
        """As `request`, of a message that is encoded already, for what is said often. OSError when it is refused."""
        self._sequence += 1
        length = _HEADER.size + len(body)
        header = _HEADER.pack(length, kind, flags | NLM_F_REQUEST | NLM_F_ACK, self._sequence, 0)
        self._socket.send(header + body)
        while True:
            answer = self._socket.recv(_BUFFER_BYTES)
            _, said, _, sequence, _ = _HEADER.unpack_from(answer)
            if said == NLMSG_ERROR and sequence == self._sequence:
                error = -int.from_bytes(answer[_HEADER.size : _HEADER.size + 4], "little", signed=True)
                if error:
                    raise OSError(error, os.strerror(error))
                return

    def dump(self, kind: int, message: type[nlmsg], fields: Fields) -> list[nlmsg]:
        """All that the kernel has of a kind. Asked again when it changed half-way."""
        for _ in range(10):
            self._send(kind, message(), fields, (), NLM_F_DUMP)
            answers, interrupted = self._receive()
            if not interrupted:
                return answers
        raise OSError(errno.EAGAIN, "the kernel's tables change too quickly to be read")

    def _send(self, kind: int, message: nlmsg, fields: Fields, attributes: Attributes, flags: int) -> None:
        self._sequence += 1
        for name, value in fields.items():
            message[name] = value
        message["attrs"] = list(attributes)
        message["header"]["type"] = kind
        message["header"]["flags"] = flags | NLM_F_REQUEST
        message["header"]["sequence_number"] = self._sequence
        message.encode()
        self._socket.send(message.data)

    def _receive(self) -> tuple[list[nlmsg], bool]:
        answers: list[nlmsg] = []
        interrupted = False
        while True:
            for answer in self._marshal.parse(self._socket.recv(_BUFFER_BYTES)):
                header = answer["header"]
                if header["sequence_number"] != self._sequence:
                    continue  # late words about a request that was given up
                if header["error"] is not None:
                    raise OSError(header["error"].code, answer.get_attr("NLMSGERR_ATTR_MSG") or "")
                interrupted |= bool(header["flags"] & _NLM_F_DUMP_INTR)
                if header["type"] in (NLMSG_DONE, NLMSG_ERROR):
                    return answers, interrupted
                answers.append(answer)
