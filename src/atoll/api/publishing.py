"""Ports of a VM at addresses of its node. Pure declarations."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from atoll.api.access import Access
from atoll.api.route import NOTHING, Unary
from atoll.errors import Invalid
from atoll.model.checks import check_range
from atoll.model.publishing import (
    MAX_PUBLISHED,
    NodeAddress,
    Publication,
    PublishedPort,
    TcpPort,
    check_node_address,
)
from atoll.model.vm import VM


class Publish(Struct, frozen=True, forbid_unknown_fields=True):
    """Ports to publish: all of them, or none."""

    ports: Annotated[tuple[Publication, ...], Meta(min_length=1, max_length=MAX_PUBLISHED)]

    def __post_init__(self) -> None:
        if not 1 <= len(self.ports) <= MAX_PUBLISHED:
            raise Invalid("ports", f"{len(self.ports)} ports", f"must be 1 to {MAX_PUBLISHED}")


class Unpublish(Struct, frozen=True, forbid_unknown_fields=True):
    """Which port of the node is taken back."""

    port: TcpPort
    address: NodeAddress | None = None
    """Left out: at whatever address."""

    def __post_init__(self) -> None:
        check_range("port", self.port, 1, 65535)
        if self.address is not None:
            check_node_address("address", self.address)


VM_PUBLISH = Unary(
    "vm.publish",
    "POST",
    "/v1/vms/{vm}/published",
    summary="Have TCP ports of the node lead to ports of the guest, for as long as there is the VM",
    access=Access.OWNER,
    body=Publish,
    query=NOTHING,
    result=VM,
)
VM_UNPUBLISH = Unary(
    "vm.unpublish",
    "DELETE",
    "/v1/vms/{vm}/published",
    summary="Take a published port back, with its connections; one that is gone already is a success",
    access=Access.OWNER,
    body=NOTHING,
    query=Unpublish,
    result=VM,
)
VM_PUBLISHED = Unary(
    "vm.published",
    "GET",
    "/v1/vms/{vm}/published",
    summary="The published ports of a VM, and what was carried",
    access=Access.OWNER,
    body=NOTHING,
    query=NOTHING,
    result=tuple[PublishedPort, ...],
)

ROUTES = (VM_PUBLISH, VM_UNPUBLISH, VM_PUBLISHED)
