"""Which entries of the audit log get a line of their own, and which are counted in one. Pure: is told the time.

A call that changed nothing is noted at once when it is the first of its kind; its repeats in the next minute are one
line with their number. What changed something has a line of its own, as long as its user writes no more than a log
can take for months; above that, it is counted too. So nobody pushes out what others did.
"""

from __future__ import annotations

from msgspec import Struct, structs

from atoll.model.audit import AuditEntry
from atoll.serving.user_limits import Pace

EVERY_S = 60.0
LINES_PER_S = 0.5
LINES_AT_ONCE = 1000
"""What one user can write: some 8 MB a day."""

_Kind = tuple[str, str, str, str]


class Deed(Struct, frozen=True):
    """One entry, and what decides how it is noted."""

    entry: AuditEntry
    changed: bool
    """Something is different since."""
    payer: str
    """Whose lines these are: a user; or a VM, for what its rules do."""
    limited: bool = True


class _Fold(Struct):
    until_s: float
    limited: bool
    entry: AuditEntry | None = None
    """What was counted so far, as one."""


class Folding:
    def __init__(self) -> None:
        self._pace = Pace(LINES_PER_S, LINES_AT_ONCE)
        self._folds: dict[_Kind, _Fold] = {}

    def is_line(self, deed: Deed, now_s: float) -> bool:
        """Whether it gets a line of its own; else it is counted, and in one of those that are `due`."""
        entry = deed.entry
        kind = (deed.payer, entry.user, entry.method, entry.result)
        fold = self._folds.get(kind)
        if (deed.changed or fold is None) and self._affords(deed.payer, deed.limited, now_s):
            if not deed.changed:
                self._folds[kind] = _Fold(now_s + EVERY_S, deed.limited)
            return True
        if fold is None:
            fold = self._folds[kind] = _Fold(now_s + EVERY_S, deed.limited)
        fold.entry = entry if fold.entry is None else together(fold.entry, entry)
        return False

    def due(self, now_s: float) -> list[AuditEntry]:
        """Lines for what was counted, where its minute is over."""
        lines = []
        for kind, fold in list(self._folds.items()):
            if fold.until_s > now_s:
                continue
            if fold.entry is None:
                del self._folds[kind]
            elif self._affords(kind[0], fold.limited, now_s):
                lines.append(fold.entry)
                self._folds[kind] = _Fold(now_s + EVERY_S, fold.limited)
        return lines

    def all(self) -> list[AuditEntry]:
        """Lines for all that was counted, now: somebody wants to read them, or it is the end."""
        lines = [fold.entry for fold in self._folds.values() if fold.entry is not None]
        for fold in self._folds.values():
            fold.entry = None
        return lines

    def _affords(self, payer: str, limited: bool, now_s: float) -> bool:
        return not limited or not self._pace.wait_s(payer, now_s)


def together(first: AuditEntry, then: AuditEntry) -> AuditEntry:
    """Entries of one kind as one: the last of them, with their number and what they all have in common."""
    same = (first.target, first.name) == (then.target, then.name)
    return structs.replace(
        then,
        count=first.count + then.count,
        since=first.since or first.at,
        target=then.target if same else "",
        name=then.name if same else "",
    )
