"""TFTP packets of a client that is up to no good. Pure."""

from __future__ import annotations

from atoll.guestnet.tftp import codec
from atoll.guestnet.tftp.codec import Ack, Data, Error, Mode, Options, Packet, Request
from forges.forge import Forge

NAMES = ["file", "/file", "../file", "a/../../etc/passwd", "\\..\\x", "netboot", "", "file\x01", "x" * 300]
OPTIONS = ["blksize", "tsize", "timeout", "windowsize", "multicast", "BLKSIZE"]
VALUES = ["0", "1", "512", "65464", "65536", "-1", "1e9", "", "99999999999", "ä"]


class TftpForge(Forge):
    def packet(self) -> bytes:
        pick = self.random
        kind = pick.randrange(8)
        if kind == 0:
            return pick.randbytes(pick.randrange(600))
        data = codec.build(self._packet())
        if kind > 4:
            return self.damaged(data, most=4)
        return self.cut(data) if kind == 4 else data

    def _packet(self) -> Packet:
        pick = self.random
        number = pick.choice((0, 1, 2, 65535, pick.randrange(65536)))
        match pick.randrange(6):
            case 0:
                return Ack(number)
            case 1:
                return Data(number, pick.randbytes(pick.randrange(40)))
            case 2:
                return Error(number, "why")
            case 3:
                return Options({pick.choice(OPTIONS): pick.choice(VALUES)})
            case _:
                options = {pick.choice(OPTIONS): pick.choice(VALUES) for _ in range(pick.randrange(5))}
                return Request(pick.choice(NAMES), pick.choice(list(Mode)), options, pick.random() < 0.1)
