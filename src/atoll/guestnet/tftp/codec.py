"""TFTP packets as bytes and as values (RFC 1350, 2347). Pure. What cannot be read is a BadPacket."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum, StrEnum

from msgspec import Struct

LARGEST_REQUEST = 1024
"""RFC 2347 says 512; some firmware asks for longer names. More is not worth reading."""

_CODE = struct.Struct("!H")
_CODE_AND_NUMBER = struct.Struct("!HH")
_MAX_OPTIONS = 16


class BadPacket(ValueError):
    """The bytes are not what they claim to be."""


class Code(IntEnum):
    """What begins every packet."""

    READ = 1
    WRITE = 2
    DATA = 3
    ACK = 4
    ERROR = 5
    OPTIONS = 6


class Fault(IntEnum):
    """Error codes."""

    OTHER = 0
    NOT_FOUND = 1
    DENIED = 2
    ILLEGAL = 4
    UNKNOWN_TRANSFER = 5
    BAD_OPTION = 8


class Mode(StrEnum):
    OCTET = "octet"
    NETASCII = "netascii"


class Request(Struct, frozen=True):
    """A wish to read a file, or to write one. Names of options are in lower case."""

    name: str
    mode: Mode
    options: Mapping[str, str] = {}
    write: bool = False


class Data(Struct, frozen=True):
    block: int
    payload: bytes


class Ack(Struct, frozen=True):
    block: int


class Options(Struct, frozen=True):
    """The options that a server agrees to."""

    options: Mapping[str, str]


class Error(Struct, frozen=True):
    fault: int
    message: str


Packet = Request | Data | Ack | Options | Error


def parse(data: bytes) -> Packet:
    """The packet in a UDP payload, or BadPacket."""
    if len(data) < _CODE.size:
        raise BadPacket(f"{len(data)} bytes are too few for a TFTP packet")
    (code,) = _CODE.unpack_from(data)
    if code in (Code.READ, Code.WRITE):
        return _request(data, write=code == Code.WRITE)
    if code == Code.OPTIONS:
        options = _options(_words(data[_CODE.size :]))
        if not options:
            raise BadPacket("agrees to nothing")
        return Options(options)
    if code not in (Code.DATA, Code.ACK, Code.ERROR):
        raise BadPacket(f"there is no packet with code {code}")
    if len(data) < _CODE_AND_NUMBER.size:
        raise BadPacket("too short for its number")
    number, rest = _CODE_AND_NUMBER.unpack_from(data)[1], data[_CODE_AND_NUMBER.size :]
    if code == Code.DATA:
        return Data(number, rest)
    if code == Code.ACK:
        return Ack(number)
    return Error(number, rest.partition(b"\0")[0].decode(errors="replace"))


def _request(data: bytes, *, write: bool) -> Request:
    if len(data) > LARGEST_REQUEST:
        raise BadPacket(f"a request of {len(data)} bytes")
    words = _words(data[_CODE.size :])
    if len(words) < 2:
        raise BadPacket("a request without a name and a mode")
    name, mode, *options = words
    if not name:
        raise BadPacket("a request without a name")
    if mode.lower() not in (Mode.OCTET, Mode.NETASCII):
        raise BadPacket("a mode that is not octet or netascii")
    return Request(name, Mode(mode.lower()), _options(options), write)


def _words(data: bytes) -> list[str]:
    """Strings, each of which ends with a zero byte."""
    if not data.endswith(b"\0"):
        raise BadPacket("a string without an end")
    try:
        return data[:-1].decode().split("\0")
    except UnicodeDecodeError:
        raise BadPacket("a string that is not UTF-8") from None


def _options(words: list[str]) -> dict[str, str]:
    # Some firmware pads its request with zero bytes.
    while words and not words[-1] and len(words) % 2:
        words = words[:-1]
    if len(words) % 2:
        raise BadPacket("an option without a value")
    if len(words) > 2 * _MAX_OPTIONS:
        raise BadPacket(f"{len(words) // 2} options")
    options: dict[str, str] = {}
    for name, value in zip(words[::2], words[1::2], strict=True):
        if name and name.lower() in options:
            raise BadPacket("an option that comes twice")
        if name:
            options[name.lower()] = value
    return options


def build(packet: Packet) -> bytes:
    """The bytes of a packet."""
    match packet:
        case Request(name, mode, options, write):
            return _CODE.pack(Code.WRITE if write else Code.READ) + _strings(name, mode, *_flat(options))
        case Data(block, payload):
            return _CODE_AND_NUMBER.pack(Code.DATA, block) + payload
        case Ack(block):
            return _CODE_AND_NUMBER.pack(Code.ACK, block)
        case Options(options):
            return _CODE.pack(Code.OPTIONS) + _strings(*_flat(options))
        case Error(fault, message):
            return _CODE_AND_NUMBER.pack(Code.ERROR, fault) + _strings(message)


def _flat(options: Mapping[str, str]) -> list[str]:
    return [word for pair in options.items() for word in pair]


def _strings(*words: str) -> bytes:
    return b"".join(word.encode() + b"\0" for word in words)


def netascii(data: bytes) -> bytes:
    """A text as netascii carries it: lines end with CR LF, and a bare CR is CR NUL."""
    return data.replace(b"\r", b"\r\0").replace(b"\n", b"\r\n")
