"""What VMs and nodes use. Pure values: counters since the start, and amounts now."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct


class Usage(Struct, frozen=True):
    """Counters only grow while a machine runs; rates come of two looks at them."""

    cpu_s: float = 0.0
    memory_mib: int = 0
    disk_mib: int = 0
    """What its volumes really take."""
    disk_read_bytes: int = 0
    disk_written_bytes: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    processes: int = 0


class VmUsage(Struct, frozen=True):
    ip: str
    name: str
    state: str
    usage: Usage


class Utilisation(Struct, frozen=True):
    """One look at a node. Its own usage is all that runs there, VMs and the rest."""

    at: datetime
    cores: int
    memory_mib: int
    node: Usage
    vms: tuple[VmUsage, ...]
