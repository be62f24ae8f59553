"""DHCP messages as bytes and as values (RFC 2131, 2132, 3396). Pure.

Reading is strict where a mistake could change the meaning (lengths, counts) and lenient where clients
are known to be sloppy (padding, a missing end mark). What cannot be read is a BadPacket, nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from socket import inet_aton, inet_ntoa

from msgspec import Struct

from atoll.guestnet.frames.errors import BadPacket

BOOT_REQUEST, BOOT_REPLY = 1, 2
ETHERNET = 1
BROADCAST_FLAG = 0x8000
NO_ADDRESS = "0.0.0.0"

SMALLEST_LIMIT = 548
"""What every client takes: 576 bytes of datagram without the headers of IP and UDP."""

_FIXED = struct.Struct("!BBBBIHH4s4s4s4s16s64s128s4s")
_COOKIE = b"\x63\x82\x53\x63"
_SNAME_BYTES, _FILE_BYTES = 64, 128
_OLDEST_MESSAGE = 300
_MAX_CHUNK = 255


class Kind(IntEnum):
    """Option 53."""

    DISCOVER = 1
    OFFER = 2
    REQUEST = 3
    DECLINE = 4
    ACK = 5
    NAK = 6
    RELEASE = 7
    INFORM = 8


class Code(IntEnum):
    """The options that we read or write, by their numbers."""

    PAD = 0
    SUBNET_MASK = 1
    ROUTER = 3
    DNS = 6
    HOST_NAME = 12
    DOMAIN = 15
    MTU = 26
    BROADCAST = 28
    REQUESTED_IP = 50
    LEASE_TIME = 51
    OVERLOAD = 52
    MESSAGE_TYPE = 53
    SERVER_ID = 54
    PARAMETERS = 55
    MESSAGE = 56
    MAX_SIZE = 57
    RENEWAL_TIME = 58
    REBINDING_TIME = 59
    VENDOR_CLASS = 60
    CLIENT_ID = 61
    TFTP_SERVER = 66
    BOOT_FILE = 67
    USER_CLASS = 77
    ARCHITECTURE = 93
    CLASSLESS_ROUTES = 121
    IPXE = 175
    END = 255


_KINDS = {int(kind): kind for kind in Kind}
_LENGTHS = {
    Code.SUBNET_MASK: 4,
    Code.REQUESTED_IP: 4,
    Code.LEASE_TIME: 4,
    Code.MESSAGE_TYPE: 1,
    Code.SERVER_ID: 4,
    Code.MAX_SIZE: 2,
}


class Message(Struct, frozen=True, kw_only=True):
    """One message. Options keep the order in which they came or shall go; split ones are joined."""

    op: int
    xid: int
    chaddr: bytes
    """All 16 bytes of the field; the first `hlen` of them count."""
    htype: int = ETHERNET
    hlen: int = 6
    hops: int = 0
    secs: int = 0
    flags: int = 0
    ciaddr: str = NO_ADDRESS
    yiaddr: str = NO_ADDRESS
    siaddr: str = NO_ADDRESS
    giaddr: str = NO_ADDRESS
    sname: bytes = b""
    file: bytes = b""
    options: Mapping[int, bytes] = {}

    @property
    def mac(self) -> str:
        return self.chaddr[:6].hex(":")

    @property
    def kind(self) -> Kind | None:
        """What is wanted; None for plain BOOTP and for kinds that we have no use for."""
        value = self.options.get(Code.MESSAGE_TYPE)
        return _KINDS.get(value[0]) if value else None

    @property
    def requested_ip(self) -> str | None:
        return self._address(Code.REQUESTED_IP)

    @property
    def server_id(self) -> str | None:
        return self._address(Code.SERVER_ID)

    @property
    def parameters(self) -> bytes:
        """The option numbers that the client asks for, in its order. Empty: it did not say."""
        return self.options.get(Code.PARAMETERS, b"")

    @property
    def client_id(self) -> bytes | None:
        return self.options.get(Code.CLIENT_ID)

    @property
    def vendor_class(self) -> bytes:
        """What kind of client it says to be, such as PXEClient:Arch:00007."""
        return self.options.get(Code.VENDOR_CLASS, b"")

    @property
    def architecture(self) -> int | None:
        """The first of the architectures that its firmware can run (RFC 4578)."""
        value = self.options.get(Code.ARCHITECTURE, b"")
        return int.from_bytes(value[:2], "big") if len(value) >= 2 else None

    @property
    def is_ipxe(self) -> bool:
        return Code.IPXE in self.options or b"iPXE" in self.options.get(Code.USER_CLASS, b"")

    @property
    def max_size(self) -> int | None:
        """The largest datagram that the client takes, headers of IP and UDP included."""
        value = self.options.get(Code.MAX_SIZE)
        return None if value is None else int.from_bytes(value, "big")

    @property
    def wants_broadcast(self) -> bool:
        return bool(self.flags & BROADCAST_FLAG)

    def _address(self, code: int) -> str | None:
        value = self.options.get(code)
        return None if value is None else inet_ntoa(value)


def parse(data: bytes) -> Message:
    """The message in a UDP payload, or BadPacket."""
    if len(data) < _FIXED.size:
        raise BadPacket(f"{len(data)} bytes are too few for a DHCP message")
    (op, htype, hlen, hops, xid, secs, flags, ci, yi, si, gi, chaddr, sname, file, cookie) = (
        _FIXED.unpack_from(data)
    )
    if cookie != _COOKIE:
        raise BadPacket("no DHCP cookie")
    options: dict[int, bytes] = {}
    _read_options(data, _FIXED.size, options)
    overload = options.pop(Code.OVERLOAD, None)
    if overload is not None:
        if overload not in (b"\x01", b"\x02", b"\x03"):
            raise BadPacket("option overload is not 1, 2 or 3")
        if overload[0] & 1:
            _read_options(file, 0, options)
            file = b""
        if overload[0] & 2:
            _read_options(sname, 0, options)
            sname = b""
        if Code.OVERLOAD in options:
            raise BadPacket("option overload inside an overloaded field")
    for code, length in _LENGTHS.items():
        value = options.get(code)
        if value is not None and len(value) != length:
            raise BadPacket(f"option {int(code)} has {len(value)} bytes, not {length}")
    return Message(
        op=op,
        htype=htype,
        hlen=hlen,
        hops=hops,
        xid=xid,
        secs=secs,
        flags=flags,
        ciaddr=inet_ntoa(ci),
        yiaddr=inet_ntoa(yi),
        siaddr=inet_ntoa(si),
        giaddr=inet_ntoa(gi),
        chaddr=chaddr,
        sname=sname.rstrip(b"\0"),
        file=file.rstrip(b"\0"),
        options=options,
    )


def _read_options(data: bytes, position: int, options: dict[int, bytes]) -> None:
    """Add the options of one field. One that comes again goes on where it left off (RFC 3396)."""
    end = len(data)
    while position < end:
        code = data[position]
        position += 1
        if code == Code.PAD:
            continue
        if code == Code.END:
            return
        if position >= end:
            raise BadPacket(f"option {code} has no length")
        start = position + 1
        position = start + data[position]
        if position > end:
            raise BadPacket(f"option {code} goes beyond its field")
        value = data[start:position]
        options[code] = options[code] + value if code in options else value


def build(message: Message, limit: int = SMALLEST_LIMIT) -> bytes:
    """The bytes of a message, at most `limit` of them.

    Options are placed in their order: first after the fixed part, then in the file and server name fields
    where those are free. One that finds no room anywhere is left out, so mandatory ones go first.
    """
    main, file, sname = _place(message, limit - _FIXED.size)
    data = (
        _FIXED.pack(
            message.op,
            message.htype,
            message.hlen,
            message.hops,
            message.xid,
            message.secs,
            message.flags,
            inet_aton(message.ciaddr),
            inet_aton(message.yiaddr),
            inet_aton(message.siaddr),
            inet_aton(message.giaddr),
            message.chaddr,
            sname,
            file,
            _COOKIE,
        )
        + main
    )
    # Some clients drop what is shorter than a BOOTP message was.
    return data.ljust(_OLDEST_MESSAGE, b"\0")


def _place(message: Message, room: int) -> tuple[bytes, bytes, bytes]:
    """What goes after the fixed part, into `file` and into `sname`."""
    pieces = [_encode(code, value) for code, value in message.options.items()]
    main = b"".join(pieces)
    if len(main) < room:
        return main + b"\xff", message.file, message.sname
    overload_bytes = 3
    fields = [
        (bytearray(), room - 1 - overload_bytes),
        (bytearray(), 0 if message.file else _FILE_BYTES - 1),
        (bytearray(), 0 if message.sname else _SNAME_BYTES - 1),
    ]
    for piece in pieces:
        _place_first_fit(piece, fields)
    (first, _), (file, _), (sname, _) = fields
    overload = bool(file) | bool(sname) << 1
    if overload:
        first += bytes((Code.OVERLOAD, 1, overload))
    return (
        bytes(first) + b"\xff",
        bytes(file) + b"\xff" if file else message.file,
        bytes(sname) + b"\xff" if sname else message.sname,
    )


def _place_first_fit(piece: bytes, fields: Sequence[tuple[bytearray, int]]) -> None:
    for field, room in fields:
        if len(field) + len(piece) <= room:
            field += piece
            return


def _encode(code: int, value: bytes) -> bytes:
    if len(value) <= _MAX_CHUNK:
        return bytes((code, len(value))) + value
    chunks = (value[at : at + _MAX_CHUNK] for at in range(0, len(value), _MAX_CHUNK))
    return b"".join(bytes((code, len(chunk))) + chunk for chunk in chunks)
