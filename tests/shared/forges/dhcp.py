"""DHCP messages of a guest that is up to no good, and the frames around them. Pure."""

from __future__ import annotations

import socket

from atoll.guestnet.dhcp import codec
from atoll.guestnet.dhcp.codec import Code, Message
from atoll.guestnet.frames import ipv4 as frames
from atoll.guestnet.frames.ipv4 import Datagram
from atoll.model.network import METADATA_IP
from forges.forge import Forge

ALL_MACS, ALL_IPS, NO_IP = "ff:ff:ff:ff:ff:ff", "255.255.255.255", "0.0.0.0"
OPTIONS_AT, FILE_AT, SNAME_AT = 240, 108, 44
_HEADERS_END = 42


class DhcpForge(Forge):
    """Those of one guest: frames pass as its own."""

    def __init__(self, mac: str, ip: str, seed: int) -> None:
        super().__init__(seed)
        self._chaddr = bytes.fromhex(mac.replace(":", "")).ljust(16, b"\0")
        self._mac, self._ip = mac, ip
        self._interesting = [
            socket.inet_aton(each) for each in (ip, METADATA_IP, NO_IP, ALL_IPS, "10.77.0.5")
        ]

    def payload(self) -> bytes:
        kind = self.random.randrange(12)
        if kind == 0:
            return self.random.randbytes(self.random.randrange(700))
        data = codec.build(self._message(), 1300)
        if kind > 9:
            data = self._with_odd_options(data)
        elif kind > 4:
            data = self.damaged(data, OPTIONS_AT if kind > 7 else 0, 8)
        if kind in (4, 7):
            data = self.cut(data)
        if kind == 3:
            data += self.noise(400)
        return data

    def frame(self) -> bytes:
        """From an address that a guest may have: none, or its own."""
        addresses = (NO_IP, ALL_IPS) if self.random.random() < 0.8 else (self._ip, METADATA_IP)
        whole = frames.build(Datagram(self._mac, ALL_MACS, *addresses, 68, 67, self.payload()))
        if self.one_in(16):
            whole = self._with_ip_options(whole)
        return whole.ljust(60, b"\0")

    def broken_frame(self) -> bytes:
        """Damaged in the headers of IP and UDP."""
        data = bytearray(self.frame())
        for _ in range(self.random.randrange(1, 4)):
            data[self.random.randrange(14, _HEADERS_END)] = self.random.randrange(256)
        return bytes(data[: self.random.randrange(_HEADERS_END, len(data) + 1)])

    def _message(self) -> Message:
        pick = self.random
        options = {
            Code.MESSAGE_TYPE: bytes((pick.randrange(10) if pick.random() < 0.2 else pick.randrange(1, 9),))
        }
        asked = [
            *(Code.REQUESTED_IP, Code.SERVER_ID, Code.PARAMETERS, Code.MAX_SIZE),
            *(Code.CLIENT_ID, Code.VENDOR_CLASS, Code.ARCHITECTURE, Code.USER_CLASS),
        ]
        for code in pick.sample(asked, k=3):
            match code:
                case Code.PARAMETERS | Code.CLIENT_ID:
                    options[code] = pick.randbytes(pick.randrange(300))
                case Code.MAX_SIZE:
                    options[code] = pick.randbytes(2)
                case Code.VENDOR_CLASS:
                    options[code] = pick.choice((b"PXEClient:Arch:00007", b"HTTPClient", b"", b"\xff" * 40))
                case Code.ARCHITECTURE:
                    options[code] = pick.randbytes(pick.randrange(5))
                case Code.USER_CLASS:
                    options[code] = pick.choice((b"iPXE", b"\x04iPXE", b"\0"))
                case _:
                    options[code] = pick.choice(self._interesting)
        for _ in range(pick.randrange(4)):
            options.setdefault(pick.randrange(1, 255), pick.randbytes(pick.randrange(40)))
        return Message(
            op=1,
            xid=pick.getrandbits(32),
            chaddr=self._chaddr,
            flags=pick.choice((0, 0x8000)),
            ciaddr=socket.inet_ntoa(pick.choice(self._interesting)),
            options=options,
        )

    def _with_odd_options(self, data: bytes) -> bytes:
        """Options in the fields of names, in pieces, again and again, of no length, and beyond the end."""
        pick = self.random
        changed, last = bytearray(data.rstrip(b"\0").removesuffix(b"\xff")), b""
        for _ in range(pick.randrange(1, 12)):
            code = pick.choice((0, 52, 52, 50, 53, 54, 55, 61, 255, pick.randrange(256)))
            value = pick.choice((b"", b"\x01", b"\x02", b"\x03", last, self.noise(8)))
            size = len(value) if pick.random() < 0.9 else pick.choice((0, 255, len(value) + 1))
            last = bytes((code, size)) + value
            changed += last
        for place, size in ((FILE_AT, 128), (SNAME_AT, 64)):
            if pick.random() < 0.5:
                changed[place : place + size] = (last * 200)[: pick.randrange(size)].ljust(size, b"\0")
        return bytes(changed[:1300])

    def _with_ip_options(self, frame: bytes) -> bytes:
        """With a longer header: what is behind it begins later."""
        words = self.random.randrange(1, 11)
        total = int.from_bytes(frame[16:18], "big") + 4 * words
        head = bytearray(frame[14:34] + bytes(4 * words))
        head[0] += words
        head[2:4] = total.to_bytes(2, "big")
        head[10:12] = bytes(2)
        head[10:12] = (0xFFFF - int.from_bytes(head, "big") % 0xFFFF).to_bytes(2, "big")
        return frame[:14] + bytes(head) + frame[34:]
