"""What a hostile machine says where its agent listens: on its private line, monitor and console. Pure."""

from __future__ import annotations

import json
import struct
from typing import Any

from forges.forge import Forge

TERMINAL = (
    *(
        b"\x1b[2J",
        b"\x1b]0;title\x07",
        b"\x1b[?1049h",
        b"\x1bc",
        b"\x1b[6n",
        b"\x1bP+q544e\x1b\\",
        b"\x9b31m",
    ),
    *(b"\r", b"\x08" * 100, b"\x00", b"\x7f", b"\xe2\x80\xae", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80"),
)
EVENTS = (
    *("SHUTDOWN", "GUEST_PANICKED", "RESET", "RESUME", "STOP", "MIGRATION", "BLOCK_IO_ERROR", "RTC_CHANGE"),
    *("VSERPORT_CHANGE", "NIC_RX_FILTER_CHANGED", "WATCHDOG", "DEVICE_DELETED", "\x00", ""),
)
WORDS = (
    "event",
    "data",
    "return",
    "error",
    "id",
    "timestamp",
    "QMP",
    "status",
    "class",
    "desc",
    "reason",
    "action",
)
DEEP = 100_000


class LineForge(Forge):
    """The private line: the words that are due, and what is not quite one of them."""

    def said(self) -> bytes:
        pick = self.random
        word = pick.choice((b"ready", b"taken"))
        match pick.randrange(8):
            case 0 | 1:
                return word + pick.choice((b"\n", b"\r\n", b"\r\r\n"))
            case 2:
                return self.damaged(word + b"\n")
            case 3:
                return self.cut(word) + pick.choice((b"", b"\n"))
            case 4:
                return word * pick.randrange(2, 2000)
            case 5:
                return b"\n" * pick.randrange(1, 100) + word + b"\n"
            case 6:
                return pick.choice(TERMINAL) + word + b"\n"
        return self.noise(4000)


class HandsForge(Forge):
    """The port over which commands are run: frames of sessions that there are, and of those that there are not."""

    KINDS = (*(16, 17, 18, 19) * 20, *range(20), 255)

    def greeting(self, nonce: bytes) -> bytes:
        """Right, most of the time."""
        sound = struct.pack("!BBHI", 1, 0, 0, len(nonce)) + nonce
        return (
            self.noise(300) + sound if self.one_in(3) else sound if not self.one_in(10) else self.worn(sound)
        )

    def said(self) -> bytes:
        pick = self.random
        data = pick.choice((b"", pick.randbytes(4), self.noise(2000), pick.choice(TERMINAL)))
        size = pick.choice((len(data),) * 60 + (pick.getrandbits(32), 32768, 32769))
        head = struct.pack(
            "!BBHI", pick.choice(self.KINDS), self.one_in(30), pick.choice((1, 1, 1, 0, 2)), size
        )
        return self.worn(head + data) if self.one_in(20) else head + data


class MonitorForge(Forge):
    """The monitor: lines of JSON, some of which are those of a QEMU."""

    def line(self) -> bytes:
        """One that leaves the connection as it is, as far as it is up to whoever reads."""
        pick = self.random
        event = {
            "event": pick.choice(EVENTS),
            "timestamp": {"seconds": pick.getrandbits(64), "microseconds": -1},
        }
        if pick.random() < 0.8:
            event["data"] = self._data()
        return json.dumps(event).encode() + b"\r\n"

    def hostile(self) -> bytes:
        """One that ends it."""
        pick = self.random
        match pick.randrange(9):
            case 0:
                return b"[" * DEEP + b"\n"
            case 1:
                return b'{"event": ' * (DEEP // 10) + b"\n"
            case 2:
                return self.noise(4000) + b"\n"
            case 3:
                return b"\xff\xfe" + self.line()
            case 4:
                return self.damaged(self.line())
            case 5:
                return json.dumps(self.value(3)).encode() + b"\n"
            case 6:
                return b"\n" * pick.randrange(1, 50)
            case 7:
                return b'{"return": ' + b"9" * 5000 + b"}\n"
        return self.cut(self.line())

    def value(self, nested: int) -> Any:
        pick = self.random
        plain = (
            None,
            True,
            0,
            -1,
            2**63,
            1.5,
            "",
            "x" * 300,
            "\x00",
            "io-error",
            "shutdown",
            "guest-shutdown",
        )
        if not nested or pick.random() < 0.5:
            return pick.choice(plain)
        if pick.random() < 0.3:
            return [self.value(nested - 1) for _ in range(pick.randrange(4))]
        return {pick.choice(WORDS): self.value(nested - 1) for _ in range(pick.randrange(5))}

    def _data(self) -> Any:
        pick = self.random
        if pick.random() < 0.2:
            return self.value(2)
        choices: dict[str, Any] = {
            "reason": pick.choice(("guest-shutdown", "guest-panic", "host-qmp-quit", self.value(1))),
            "action": pick.choice(("stop", "report", self.value(1))),
            "status": pick.choice(("completed", "failed", "active", self.value(1))),
            "device": "x" * pick.randrange(2000),
        }
        return {name: choices[name] for name in pick.sample(sorted(choices), k=pick.randrange(1, 4))}


class ConsoleForge(Forge):
    """The serial line."""

    def piece(self) -> bytes:
        pick = self.random
        match pick.randrange(8):
            case 0:
                return self.noise(4000)
            case 1:
                return b"x" * pick.randrange(1, 40_000)
            case 2:
                return b"\n" * pick.randrange(1, 4000)
            case 3 | 4:
                return b"".join(pick.choices(TERMINAL, k=pick.randrange(1, 20)))
            case 5:
                return bytes(pick.randrange(1, 20_000))
        return b"[    1.%06d] a line of a kernel\r\n" % pick.randrange(1_000_000)
