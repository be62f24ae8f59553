"""Changing and taking away what a node was given: subnets, addresses, owners. Pure declarations."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from atoll.api.access import Access
from atoll.api.route import NOTHING, Unary
from atoll.errors import Invalid
from atoll.model.checks import Ip, Name, Principal, check_ip, check_name, check_principal
from atoll.model.network import MAX_DNS, Domain, Reaches
from atoll.model.node import MAX_OVERCOMMIT, Node
from atoll.model.vm import MAX_OWNERS, Owners

Ratio = Annotated[float, Meta(ge=1, le=MAX_OVERCOMMIT)]
Dns = Annotated[tuple[Ip, ...], Meta(max_length=MAX_DNS)]

MAX_ADDRESSES_BODY = 4 << 20
"""The 65,536 addresses of a /16."""


class RemoveAddress(Struct, frozen=True, forbid_unknown_fields=True):
    """Addresses that go from the pool of a subnet."""

    subnet: Name
    ips: Annotated[tuple[Ip, ...], Meta(min_length=1, max_length=65536)]

    def __post_init__(self) -> None:
        check_name("subnet", self.subnet)
        for ip in self.ips:
            check_ip("ips", ip)


class ChangeSubnet(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is to be different. What is left out stays; guests learn of it with their next lease."""

    gateway: Ip | UnsetType = UNSET
    """Only while nobody has an address there."""
    dns: Dns | UnsetType = UNSET
    domain: Domain | UnsetType = UNSET
    allowed_users: tuple[Principal, ...] | UnsetType = UNSET
    """With no user and no group: everybody."""
    allowed_groups: tuple[Principal, ...] | UnsetType = UNSET
    metadata: bool | UnsetType = UNSET
    autoconf6: bool | UnsetType = UNSET
    reaches: Reaches | UnsetType = UNSET
    """Connections that are open stay so until they end."""

    @property
    def changes(self) -> dict[str, Any]:
        """What is given, by its name; it is checked as a whole subnet."""
        return {name: value for name, value in structs.asdict(self).items() if value is not UNSET}


class SetOwners(Struct, frozen=True, forbid_unknown_fields=True):
    """Who operates the node, beside those whom its configuration names."""

    users: Owners = ()
    groups: Owners = ()

    def __post_init__(self) -> None:
        for owners in (self.users, self.groups):
            if len(owners) > MAX_OWNERS:
                raise Invalid("owner", f"{len(owners)} owners", f"must be at most {MAX_OWNERS}")
            for who in owners:
                check_principal("owner", who)


class ChangeNode(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is to be different of a node. What is left out stays; null: as its configuration says."""

    cpu_overcommit: Ratio | UnsetType | None = UNSET
    """How many times its CPUs may be promised to VMs."""
    memory_overcommit: Ratio | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        for name, ratio in self.changes.items():
            if ratio is not None and not 1 <= ratio <= MAX_OVERCOMMIT:
                raise Invalid(name, ratio, f"must be from 1 to {MAX_OVERCOMMIT}")

    @property
    def changes(self) -> dict[str, float | None]:
        return {name: value for name, value in structs.asdict(self).items() if value is not UNSET}


NODE_CHANGE = Unary(
    "node.change",
    "PATCH",
    "/v1/node",
    summary="Change how often the node's CPUs and memory may be promised. VMs that are there stay",
    access=Access.OPERATOR,
    body=ChangeNode,
    query=NOTHING,
    result=Node,
)
NODE_REMOVE_ADDRESS = Unary(
    "node.remove-address",
    "POST",
    "/v1/node/addresses/remove",
    summary="Take addresses that nobody has from the pool of a subnet; those that are gone already are a success",
    access=Access.OPERATOR,
    body=RemoveAddress,
    query=NOTHING,
    result=Node,
    max_body=MAX_ADDRESSES_BODY,
)
NODE_CHANGE_SUBNET = Unary(
    "node.change-subnet",
    "PATCH",
    "/v1/node/subnets/{subnet}",
    summary="Change what a subnet tells its guests, and who may use it",
    access=Access.OPERATOR,
    body=ChangeSubnet,
    query=NOTHING,
    result=Node,
)
NODE_REMOVE_SUBNET = Unary(
    "node.remove-subnet",
    "DELETE",
    "/v1/node/subnets/{subnet}",
    summary="Take away a subnet that nobody uses, with its addresses; one that is gone already is a success",
    access=Access.OPERATOR,
    body=NOTHING,
    query=NOTHING,
    result=NOTHING,
)
NODE_SET_OWNERS = Unary(
    "node.set-owners",
    "PUT",
    "/v1/node/owners",
    summary="Say who operates the node, beside those whom its configuration names",
    access=Access.OPERATOR,
    body=SetOwners,
    query=NOTHING,
    result=Node,
)

ROUTES = (NODE_CHANGE, NODE_REMOVE_ADDRESS, NODE_CHANGE_SUBNET, NODE_REMOVE_SUBNET, NODE_SET_OWNERS)
