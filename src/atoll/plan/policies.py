"""What a VM's own rules ask for, and when: restart, expiry, the undoing of what nobody acknowledged. Pure.

A VM that goes down by itself:

policy     guest powered off          machine died
----------------------------------------------------
never      stays                      stays
on-crash   stays                      starts again
always     starts again               starts again

With `destroy_on_power_down` a guest that powers off is gone, unless it is protected. A restart waits, twice as
long each time; after a number of them within a while the VM stays down, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from atoll.model.vm import RestartPolicy


class Backoff(Struct, frozen=True):
    """How patient a node is with what goes down again and again."""

    first_s: float = 1.0
    longest_s: float = 60.0
    limit: int = 5
    """So many restarts within the window, and no more."""
    window_s: float = 600.0

    def delay_s(self, restarts: int) -> float:
        """How long the next restart waits after so many within the window."""
        return float(min(self.first_s * 2.0 ** min(restarts, 64), self.longest_s))


class Verdict(Struct, frozen=True):
    """What becomes of a VM that went down by itself. Neither: it stays as it is."""

    destroy: bool = False
    restart_at: datetime | None = None
    note: str = ""
    """What is added to the reason for its state."""


def after_exit(
    policy: RestartPolicy,
    *,
    powered_off: bool,
    destroy_on_power_down: bool,
    protected: bool,
    restarted_at: Sequence[datetime],
    now: datetime,
    backoff: Backoff,
) -> Verdict:
    """The verdict on one that has just gone down. `restarted_at`: its restarts so far, by themselves."""
    if powered_off and destroy_on_power_down:
        return Verdict(note="kept, since it is protected") if protected else Verdict(destroy=True)
    wanted = policy is RestartPolicy.ALWAYS or (policy is RestartPolicy.ON_CRASH and not powered_off)
    if not wanted:
        return Verdict()
    recent = within(restarted_at, now, backoff)
    if len(recent) >= backoff.limit:
        minutes = f"{backoff.window_s / 60:g} min"
        return Verdict(note=f"given up after {len(recent)} restarts in {minutes}")
    delay_s = backoff.delay_s(len(recent))
    note = f"restart {len(recent) + 1} of {backoff.limit} in {delay_s:g} s"
    return Verdict(restart_at=now + timedelta(seconds=delay_s), note=note)


def within(times: Sequence[datetime], now: datetime, backoff: Backoff) -> tuple[datetime, ...]:
    """Those that still count."""
    return tuple(time for time in times if now - time < timedelta(seconds=backoff.window_s))


class Duty(StrEnum):
    """What is to be done to a VM at some moment, unasked."""

    UNDO = "undo"
    EXPIRE = "expire"
    RESTART = "restart"


class Due(Struct, frozen=True):
    duty: Duty
    at: datetime


def next_due(
    *,
    acknowledge_by: datetime | None,
    expires_at: datetime | None,
    protected: bool,
    restart_at: datetime | None,
    drained: bool,
) -> Due | None:
    """What comes first for a VM. Of two at the same moment the one that removes it: a restart would be vain."""
    moments = [
        (acknowledge_by, Duty.UNDO),
        (None if protected else expires_at, Duty.EXPIRE),
        (None if drained else restart_at, Duty.RESTART),
    ]
    dues = [Due(duty, at) for at, duty in moments if at is not None]
    return min(dues, key=lambda due: due.at, default=None)
