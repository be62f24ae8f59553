"""Who may type on a console that many look at: one at a time. Pure.

    nobody ──sits, or types──► one ──leaves──► nobody
                                │
                                └──another takes it──► that one; both are told

Somebody who types without having it is told once who has it, and again when that is another one.
"""

from __future__ import annotations

from collections import deque

from atoll.api.hypervisor import Writer
from atoll.errors import Denied
from atoll.model.identity import Identity
from atoll.model.vm import VM


class Seat:
    """One who looks. `notes` are what is to be told there."""

    def __init__(self, user: str, *, watches: bool = False) -> None:
        self.user = user
        self.watches = watches
        self.notes: deque[Writer] = deque()
        self.refused_by: Seat | Keyboard | None = None


def check_taker(identity: Identity, vm: VM) -> None:
    """Operators may look, and type when nobody does; what an owner has, only owners take."""
    if not identity.among(vm.owner_users, vm.owner_groups):
        raise Denied(
            f"{identity.user} may not take the keyboard of VM {vm.name}: that is for its owners",
            hint="join without taking it: it is yours when nobody has it",
            details={"user": identity.user, "vm": vm.name},
        )


class Keyboard:
    def __init__(self) -> None:
        self._holder: Seat | None = None

    def sit(self, seat: Seat, *, take: bool = False) -> None:
        """Come, and have it if nobody has, or if it is taken."""
        if not seat.watches and (take or self._holder is None):
            self._give(seat)

    def press(self, seat: Seat) -> bool:
        """Whether what was typed counts. Whoever types when nobody has it gets it."""
        if self._holder is None and not seat.watches:
            self._give(seat)
        if self._holder is seat:
            return True
        holder = self._holder or self
        if seat.refused_by is not holder:
            seat.refused_by = holder
            seat.notes.append(self.note(seat))
        return False

    def leave(self, seat: Seat) -> None:
        if self._holder is seat:
            self._holder = None

    def note(self, seat: Seat) -> Writer:
        """How things are, as seen from there."""
        return Writer(self._holder is seat, self._holder.user if self._holder else "")

    def _give(self, seat: Seat) -> None:
        before, self._holder = self._holder, seat
        for each in (before, seat):
            if each is not None:
                each.refused_by = None
                each.notes.append(self.note(each))
