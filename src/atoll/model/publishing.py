"""Ports of a VM at addresses of its node. Pure values."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from msgspec import Meta, Struct

from atoll.errors import Invalid
from atoll.model.checks import check_range

MAX_PUBLISHED = 32
"""Ports that one VM can have published."""
ALL_IP4, ALL_IP6 = "0.0.0.0", "::"
_LAST = 65535

TcpPort = Annotated[int, Meta(ge=1, le=_LAST, description="a TCP port")]
NodeAddress = Annotated[
    str, Meta(max_length=39, description="an address of the node; 0.0.0.0 and :: are all of one kind")
]


class Publication(Struct, frozen=True, forbid_unknown_fields=True):
    """A port of the node whose connections go to a port of a guest."""

    port: TcpPort
    guest_port: TcpPort
    address: NodeAddress = ""
    """Where on the node; empty: the first of those that its configuration allows."""
    proxy_protocol: bool = False
    """The guest is told who connects in a first line of its own (the PROXY protocol, version 1)."""

    def __post_init__(self) -> None:
        check_range("port", self.port, 1, _LAST)
        check_range("guest_port", self.guest_port, 1, _LAST)
        if self.address:
            check_node_address("address", self.address)

    @property
    def key(self) -> str:
        """Tells it from all others of its node."""
        return shown_at(self.address, self.port)

    def clashes(self, other: Publication) -> bool:
        """Whether the node cannot have both."""
        return self.port == other.port and overlap(self.address, other.address)


class PublishedPort(Struct, frozen=True):
    """A published port, and what was carried since the node began to carry it."""

    publication: Publication
    open: int = 0
    """Connections at this moment."""
    connections: int = 0
    """Of all times."""
    refused: int = 0
    """Turned away: the VM was down, or had as many as it can have."""
    failed: int = 0
    """The guest did not answer, or nothing listened there."""
    received_bytes: int = 0
    """From clients."""
    sent_bytes: int = 0
    """To clients."""
    problem: str = ""
    """Why nobody can connect there just now; empty: they can."""


def check_node_address(field: str, value: str) -> str:
    try:
        shortest = str(ipaddress.ip_address(value))
    except ValueError:
        raise Invalid(field, value, "is not an IP address", hint="for example 127.0.0.1, or ::1") from None
    if value != shortest:
        raise Invalid(field, value, "is not in its shortest form", hint=f"write {shortest}")
    return value


def overlap(one: str, other: str) -> bool:
    """Whether who listens at one address is in the way of who listens at the other."""
    if (":" in one) != (":" in other):
        return False
    return one == other or ALL_IP4 in (one, other) or ALL_IP6 in (one, other)


def shown_at(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
