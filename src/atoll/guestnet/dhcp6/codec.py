"""DHCPv6 messages as bytes and as values (RFC 8415). Pure. What cannot be read is a BadPacket."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from socket import AF_INET6, inet_ntop, inet_pton

from msgspec import Struct

from atoll.guestnet.frames.errors import BadPacket

FOREVER = 0xFFFFFFFF
_OPTION = struct.Struct("!HH")
_IA = struct.Struct("!III")
_ADDRESS = struct.Struct("!16sII")
_MAX_OPTIONS = 128


class Kind(IntEnum):
    SOLICIT = 1
    ADVERTISE = 2
    REQUEST = 3
    CONFIRM = 4
    RENEW = 5
    REBIND = 6
    REPLY = 7
    RELEASE = 8
    DECLINE = 9
    INFORMATION_REQUEST = 11


class Code(IntEnum):
    """The options that we read or write, by their numbers."""

    CLIENT_ID = 1
    SERVER_ID = 2
    IA_NA = 3
    IA_TA = 4
    ADDRESS = 5
    STATUS = 13
    RAPID_COMMIT = 14
    DNS = 23
    DOMAINS = 24
    IA_PD = 25


class Status(IntEnum):
    SUCCESS = 0
    NO_ADDRESSES = 2
    NOT_ON_LINK = 4
    NO_PREFIX = 6


Option = tuple[int, bytes]


class Ia(Struct, frozen=True):
    """An association: the addresses of one interface under a number of the client's."""

    number: int
    addresses: tuple[str, ...] = ()


class Message(Struct, frozen=True):
    """One message. Options keep their order."""

    kind: int
    transaction: bytes
    options: tuple[Option, ...] = ()

    def find(self, code: int) -> bytes | None:
        return next((value for number, value in self.options if number == code), None)

    @property
    def client_id(self) -> bytes | None:
        return self.find(Code.CLIENT_ID)

    @property
    def server_id(self) -> bytes | None:
        return self.find(Code.SERVER_ID)

    def associations(self) -> tuple[Ia, ...]:
        return tuple(_parse_ia(value) for code, value in self.options if code == Code.IA_NA)

    def prefixes_asked(self) -> tuple[int, ...]:
        """The numbers of the associations for prefixes, of which we have none to give."""
        asked = (value for code, value in self.options if code == Code.IA_PD)
        return tuple(int.from_bytes(value[:4], "big") for value in asked)


def parse(data: bytes) -> Message:
    """The message in a UDP payload, or BadPacket. Relayed ones are not for us."""
    if len(data) < 4:
        raise BadPacket(f"{len(data)} bytes are too few for a DHCPv6 message")
    kind = data[0]
    if not Kind.SOLICIT <= kind <= Kind.INFORMATION_REQUEST:
        raise BadPacket(f"a message of kind {kind}")
    message = Message(kind, data[1:4], tuple(_options(data[4:])))
    for code in (Code.CLIENT_ID, Code.SERVER_ID):
        value = message.find(code)
        if value is not None and not 3 <= len(value) <= 130:
            raise BadPacket(f"an identifier of {len(value)} bytes")
    message.associations()
    if any(len(value) < _IA.size for code, value in message.options if code == Code.IA_PD):
        raise BadPacket("an association that is cut off")
    return message


def _options(data: bytes) -> Iterator[Option]:
    position = 0
    for _ in range(_MAX_OPTIONS):
        if position == len(data):
            return
        if position + _OPTION.size > len(data):
            raise BadPacket("an option that is cut off")
        code, length = _OPTION.unpack_from(data, position)
        start = position + _OPTION.size
        position = start + length
        if position > len(data):
            raise BadPacket(f"option {code} goes beyond the message")
        yield code, data[start:position]
    raise BadPacket(f"more than {_MAX_OPTIONS} options")


def _parse_ia(value: bytes) -> Ia:
    if len(value) < _IA.size:
        raise BadPacket("an association that is cut off")
    addresses = []
    for code, inner in _options(value[_IA.size :]):
        if code == Code.ADDRESS:
            if len(inner) < _ADDRESS.size:
                raise BadPacket("an address that is cut off")
            addresses.append(inet_ntop(AF_INET6, inner[:16]))
    return Ia(_IA.unpack_from(value)[0], tuple(addresses))


def build(message: Message) -> bytes:
    return bytes((message.kind,)) + message.transaction + b"".join(map(_encode, message.options))


def association(number: int, renew_s: int, rebind_s: int, *options: Option) -> Option:
    return Code.IA_NA, _IA.pack(number, renew_s, rebind_s) + b"".join(map(_encode, options))


def no_prefix(number: int) -> Option:
    return Code.IA_PD, _IA.pack(number, 0, 0) + _encode(status(Status.NO_PREFIX, "no prefixes here"))


def address(ip: str, preferred_s: int, valid_s: int) -> Option:
    return Code.ADDRESS, _ADDRESS.pack(inet_pton(AF_INET6, ip), preferred_s, valid_s)


def status(code: Status, words: str) -> Option:
    return Code.STATUS, code.to_bytes(2, "big") + words.encode()


def name_servers(*ips: str) -> Option:
    return Code.DNS, b"".join(inet_pton(AF_INET6, ip) for ip in ips)


def domains(name: str) -> Option:
    """The domain to search, as DNS writes names."""
    labels = b"".join(bytes((len(label),)) + label.encode() for label in name.split("."))
    return Code.DOMAINS, labels + b"\0"


def _encode(option: Option) -> bytes:
    code, value = option
    return _OPTION.pack(code, len(value)) + value
