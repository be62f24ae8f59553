"""DNS questions of a guest that is up to no good. Pure, and by hand: a library would not write most of them."""

from __future__ import annotations

import struct

from forges.forge import Forge

TYPES = (1, 2, 5, 6, 12, 15, 16, 28, 33, 41, 43, 46, 64, 65, 99, 249, 250, 251, 252, 255, 256, 65535)
"""Of all kinds, those that are no types of records, and those that ask for whole zones."""
CLASSES = (1, 1, 1, 1, 1, 1, 3, 4, 254, 255, 0, 65535)
LABELS = (
    b"good",
    b"guest",
    b"atoll",
    b"internal",
    b"in-addr",
    b"arpa",
    b"ip6",
    b"10",
    b"*",
    b"_tcp",
    b"xn--a",
    b"\0",
    b"\xff",
)
_OPT, _TSIG, _SIG = 41, 250, 24
_LARGEST = 1500


class DnsForge(Forge):
    def __init__(self, names: tuple[str, ...], seed: int) -> None:
        """`names` are such as there are."""
        super().__init__(seed)
        self._names = names

    def message(self) -> bytes:
        pick = self.random
        head = self._header()
        questions = self._question() if pick.random() < 0.95 else b"".join(self._question() for _ in range(3))
        more = self._additional() if head[10:12] != b"\0\0" else b""
        return self.worn(head + questions + more, start=pick.choice((0, 12, 12, 12)))[:_LARGEST]

    def stream(self, count: int) -> bytes:
        """Several messages as TCP carries them; the last of them is not as long as it says."""
        pieces = [self._sized(self.message()) for _ in range(count)]
        last = self.message()
        size = self.random.choice((0, 1, len(last) + 1, 65535))
        return b"".join(pieces) + size.to_bytes(2, "big") + last

    def _sized(self, message: bytes) -> bytes:
        return len(message).to_bytes(2, "big") + message

    def _header(self) -> bytes:
        pick = self.random
        flags = (
            pick.choice((0x0100, 0x0100, 0x0120, 0x0000, 0x0110))
            if pick.random() < 0.9
            else pick.getrandbits(16)
        )
        counts = (1, 0, 0, pick.choice((0, 0, 1)))
        if self.one_in(16):
            counts = tuple(pick.choice((0, 1, 2, 65535)) for _ in range(4))
        return struct.pack("!HHHHHH", pick.getrandbits(16), flags, *counts)

    def _question(self) -> bytes:
        pick = self.random
        return self._name() + struct.pack("!HH", pick.choice(TYPES), pick.choice(CLASSES))

    def _name(self) -> bytes:
        pick = self.random
        match pick.randrange(10):
            case 0 | 1 | 2 | 3 | 4:
                labels = [label.encode() for label in pick.choice(self._names).split(".")]
            case 5 | 6:
                labels = pick.choices(LABELS, k=pick.randrange(6))
            case 7:
                labels = [self.noise(63) for _ in range(pick.randrange(6))]
            case 8:
                # A pointer to itself, to another one, forward, and beyond the end.
                return self._labels([b"a"]) + struct.pack(
                    "!H", 0xC000 | pick.choice((0, 12, 13, 14, 16, 0x3FFF))
                )
            case _:
                return pick.choice(
                    (b"\x40abc\0", b"\x80abc\0", b"\x3fabc\0", b"\x01a" * 130 + b"\0", b"\xc0", b"")
                )
        return self._labels(labels) + b"\0"

    def _labels(self, labels: list[bytes]) -> bytes:
        return b"".join(bytes((len(label),)) + label for label in labels)

    def _additional(self) -> bytes:
        """EDNS, mostly; else a signature that nobody asked for, or any record."""
        pick = self.random
        name, kind, of_class = b"\0", _OPT, pick.choice((512, 1232, 4096, 0, 65535))
        data = b"".join(self._edns_option() for _ in range(pick.randrange(5)))
        if self.one_in(8):
            kind, data = pick.choice((_TSIG, _SIG, *TYPES)), self._record_data()
            name, of_class = self._name(), pick.choice((1, 255, 254))
        size = len(data) if pick.random() < 0.9 else pick.choice((0, 1, 65535))
        lifetime = pick.choice((0, 0, 0x8000, 0x01000000, 0xFFFFFFFF))
        return name + struct.pack("!HHIH", kind, of_class, lifetime, size) + data

    def _edns_option(self) -> bytes:
        """Client subnets, cookies, keep-alive, padding, chains, errors, and what is none."""
        pick = self.random
        kind = pick.choice(
            (3, 5, 6, 7, 8, 8, 9, 10, 10, 11, 12, 13, 14, 15, 15, 16, 18, pick.randrange(65536))
        )
        value = pick.choice(
            (
                struct.pack("!HBB", pick.choice((0, 1, 2, 3)), pick.choice((0, 24, 33, 129, 255)), 0)
                + self.noise(16),
                self.noise(40),
                b"",
                b"\xff\xfe",
            )
        )
        size = len(value) if pick.random() < 0.95 else pick.choice((0, 65535, len(value) + 1))
        return struct.pack("!HH", kind, size) + value

    def _record_data(self) -> bytes:
        """As of a signature: the name of an algorithm, then a time, and sizes."""
        pick = self.random
        if pick.random() < 0.5:
            return self.noise(60)
        size = pick.choice((0, 16, 32, 65535))
        return (
            b"\x04hmac\0"
            + struct.pack("!HIHH", 0, pick.getrandbits(32), 300, size)
            + self.noise(32)
            + bytes(6)
        )
