"""Which objects may be removed. Pure.

    stored ──► needed by an image, an upload or a hold ──► stays, and is acquitted if it was condemned
          └──► young ──► stays: whoever brought it may be about to need it
          └──► else ──► condemned ──► after the grace, if still nobody needs it ──► removed

A condemned object is there, but counts as missing for those who ask what to upload: they bring it again, and so nobody
relies on what is about to go. The grace is for those who asked just before.

Who is told that objects are there says first what it will need: an upload in progress needs all objects of its image,
also those that it does not have to bring.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

LEAST_AGE_S = 24 * 3600.0
GRACE_S = 3600.0


class Kept(Struct, frozen=True):
    """An object in a store."""

    id: str
    size: int
    changed_at: float
    """Seconds since the epoch, by the clock of the store."""


class Round(Struct, frozen=True):
    """What one round of a collection comes to."""

    condemned: dict[str, float]
    """All that are condemned from now on, with the time at which they were."""
    remove: tuple[str, ...]
    """To be removed now; condemned until they are gone."""
    bytes_to_remove: int


def needed_by(
    images: Iterable[Collection[str]], uploads: Iterable[Collection[str]], holds: Iterable[Collection[str]]
) -> frozenset[str]:
    """All that somebody needs: images that there are, images that are being uploaded, what nodes hold."""
    return frozenset().union(*images, *uploads, *holds)


def collect(
    stored: Iterable[Kept],
    needed: Collection[str],
    condemned: Mapping[str, float],
    now: float,
    *,
    least_age_s: float = LEAST_AGE_S,
    grace_s: float = GRACE_S,
) -> Round:
    """One round. An object goes in the second round at the earliest, and never before its grace is over."""
    still: dict[str, float] = {}
    remove: list[str] = []
    total = 0
    for one in stored:
        if one.id in needed or now - one.changed_at < least_age_s:
            continue
        since = condemned.get(one.id)
        # A clock that was put back does not make a grace longer than it is.
        still[one.id] = now if since is None else min(since, now)
        if since is not None and now - since >= grace_s:
            remove.append(one.id)
            total += one.size
    return Round(still, tuple(remove), total)


def can_be_counted_on(stored: Collection[str], condemned: Collection[str], asked: Iterable[str]) -> set[str]:
    """Of those asked for: the ones that need not be brought."""
    return {one for one in asked if one in stored and one not in condemned}
