"""What all forges have in common. Pure."""

from __future__ import annotations

import random

ODD_BYTES = (0, 1, 2, 0x7F, 0x80, 0xC0, 0xFE, 0xFF)


class Forge:
    """Seeded. `random` is for those who decide what else becomes of an input."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed)

    def noise(self, most: int) -> bytes:
        return self.random.randbytes(self.random.randrange(1, most + 1))

    def one_in(self, count: int) -> bool:
        return self.random.randrange(count) == 0

    def damaged(self, data: bytes, start: int = 0, most: int = 6) -> bytes:
        """With some bytes of it changed, from a place on."""
        changed = bytearray(data)
        for _ in range(self.random.randrange(1, most + 1) if len(data) > start else 0):
            value = self.random.choice((*ODD_BYTES, self.random.randrange(256)))
            changed[self.random.randrange(start, len(changed))] = value
        return bytes(changed)

    def cut(self, data: bytes) -> bytes:
        return data[: self.random.randrange(len(data))] if data else data

    def worn(self, data: bytes, start: int = 0) -> bytes:
        """As it is, in half of all cases; else damaged, cut short, longer than it was, or nothing of it."""
        match self.random.randrange(12):
            case 0 | 1 | 2:
                return self.damaged(data, start)
            case 3:
                return self.cut(data)
            case 4:
                return data + self.noise(400)
            case 5:
                return self.noise(600)
        return data
