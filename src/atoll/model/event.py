"""Events: what happened on a node, in order. Pure values."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from atoll.model.node import Node
from atoll.model.vm import VM


class EventKind(StrEnum):
    STATE = "state"
    """The full state, first in every stream that does not resume."""
    CREATED = "created"
    CHANGED = "changed"
    DESTROYED = "destroyed"
    NODE = "node"


class Event(Struct, frozen=True, omit_defaults=True):
    """One change. `sequence` counts up by one within an `epoch`; a stream resumes after any of them."""

    kind: EventKind
    epoch: str
    sequence: int
    at: datetime
    vm: VM | None = None
    vms: tuple[VM, ...] = ()
    node: Node | None = None
