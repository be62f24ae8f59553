"""Stores of a node outside of its directory: nothing of the node is left in them. Removes files."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from atoll.errors import HostFailure
from atoll.model.checks import is_ip
from atoll.system import files
from atoll.system.owners import HOLDER, Owner, holder_of

_OWN = (".attic", HOLDER)


def remove_volumes(told: Mapping[str, Any], owner: Owner | None, vms: Collection[str]) -> None:
    """What the agent with this configuration kept in its stores. Another agent's store is left alone.

    One that does not say whose it is may hold more than ours: only volumes of these VMs go.
    """
    for place in map(Path, told.get("stores", {}).values()):
        try:
            holder = holder_of(place)
        except HostFailure:
            continue  # nobody knows whose it is
        if holder is None:
            names = list(vms)
        elif owner is not None and holder.mark == owner.mark:
            # What says whose it is goes last: as long as it is there, what is left can be found.
            names = [path.name for path in place.iterdir() if is_ip(path.name)] + list(_OWN)
        else:
            continue
        for name in names:
            files.remove_tree(place / name)
        with contextlib.suppress(OSError):  # somebody else's files are in it
            place.rmdir()
