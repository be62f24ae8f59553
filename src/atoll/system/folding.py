"""Things that are alike, told a few times and then counted. Pure: is told what time it is."""

from __future__ import annotations

OTHERS = "others"


class Folding:
    """Of each kind so many are told within a window; the rest is a number when the window is over."""

    def __init__(self, most: int, window_s: float, kinds: int) -> None:
        """No more than so many kinds are kept apart at a time: what comes on top of them is of one kind, OTHERS."""
        self._most = most
        self._window_s = window_s
        self._kinds = kinds
        self._seen: dict[str, tuple[float, int]] = {}
        """Of each kind, when its window began, and how many there were; the oldest first."""

    def tell(self, kind: str, now_s: float) -> str | None:
        """As what it is to be told, its own kind or OTHERS; None: not at all. Ask for `over` first."""
        if kind not in self._seen and len(self._seen) >= self._kinds:
            kind = OTHERS
        began, count = self._seen.get(kind, (now_s, 0))
        self._seen[kind] = (began, count + 1)
        return kind if count < self._most else None

    def over(self, now_s: float) -> list[tuple[str, int]]:
        """The kinds whose window is over, with how many of each were not told, if any. They are forgotten."""
        found = []
        for kind, (began, count) in list(self._seen.items()):
            if now_s - began < self._window_s:
                break
            del self._seen[kind]
            if count > self._most:
                found.append((kind, count - self._most))
        return found
