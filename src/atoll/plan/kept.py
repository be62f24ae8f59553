"""What is kept of a VM when it stops, and what is lost. Pure: from its volumes alone, whatever kind it is of.

what                                      at a stop, a `vm reboot`, a crash, a reboot of the host
-----------------------------------------------------------------------------------------------
root in memory (virtual machines)         lost: the image begins anew
root on disk (containers)                 kept
volume of type persistent                 kept
volume of type memory                     lost: it is empty again

A destroy takes all of it, and a suspend and a resume none. docs/what-survives.md says the same at more length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atoll.model.volume import Kept, KeptUntil, Volume


def kept_of(volumes: Sequence[Volume]) -> tuple[Kept, ...]:
    """How long each volume keeps what is on it, the root first."""
    return tuple(
        Kept(volume.name, KeptUntil.STOP if volume.in_memory else KeptUntil.DESTROY) for volume in volumes
    )


def lost_at_stop(kept: Iterable[Kept]) -> tuple[str, ...]:
    """The names of those that do not outlive a stop."""
    return tuple(one.name for one in kept if one.until is KeptUntil.STOP)


def in_words(kept: Sequence[Kept]) -> list[str]:
    """As `root: memory, lost at stop` and `data, logs: kept until destroy`."""
    words = {KeptUntil.STOP: "memory, lost at stop", KeptUntil.DESTROY: "kept until destroy"}
    lines = [f"{one.name}: {words[one.until]}" for one in kept[:1]]
    for until in KeptUntil:
        names = [one.name for one in kept[1:] if one.until is until]
        if names:
            lines.append(f"{', '.join(names)}: {words[until]}")
    return lines
