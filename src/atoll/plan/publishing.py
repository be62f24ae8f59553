"""Which ports of the node may lead to a guest, and what a publisher is told so that they do. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct, structs

from atoll.errors import Conflict, Denied, Invalid
from atoll.model.checks import check_range
from atoll.model.publishing import (
    ALL_IP4,
    ALL_IP6,
    MAX_PUBLISHED,
    Publication,
    check_node_address,
    overlap,
)
from atoll.model.vm import VM, VmState

_UP = frozenset({VmState.RUNNING, VmState.STOPPING})
"""A guest that is asked to power down may still have something to say."""
_LEAVING = frozenset({VmState.DESTROYING, VmState.DAMAGED})


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """Which of the node's ports users may have lead to their VMs: `atoll vm publish`. Operators may have any."""

    addresses: tuple[str, ...] = (ALL_IP4, ALL_IP6)
    """On which addresses; 0.0.0.0 and :: are all of one kind. A port that names none is at the first. None: nothing is
    published on this node."""
    ports: tuple[str, ...] = ("1024-65535",)
    """Which ports, one by one or as first-last. That of the API is never among them."""

    def __post_init__(self) -> None:
        for address in self.addresses:
            check_node_address("publish.addresses", address)
        self.ranges()

    def ranges(self) -> tuple[range, ...]:
        return tuple(_range(text) for text in self.ports)


class Asking(Struct, frozen=True):
    """Who asks for a port, and where."""

    node: str
    rules: Rules
    api_port: int
    is_operator: bool
    sees_others: bool
    """Whether they may be told which VM has a port."""


class Entry(Struct, frozen=True):
    """What a publisher is to do with a port."""

    key: str
    vm: str
    """The instance id of its VM."""
    ip: str
    """Where its guest is; empty: it is down."""
    guest_port: int
    proxy: bool = False


class Differences(Struct, frozen=True):
    """What a publisher is to be told, in this order."""

    drop: tuple[str, ...] = ()
    point: tuple[Entry, ...] = ()
    carry: tuple[Entry, ...] = ()


def published_with(vm: VM, wanted: Sequence[Publication], others: Iterable[VM], asking: Asking) -> VM:
    """The VM with these ports as well; or Invalid, Denied, Conflict. What it has already is fine."""
    new = list(vm.published)
    others = [other for other in others if other.instance_id != vm.instance_id]
    for one in wanted:
        one = _placed(one, asking)
        if one in new:
            continue
        _check_permitted(one, asking)
        _check_free(one, vm, new, others, asking)
        new.append(one)
    if len(new) > MAX_PUBLISHED:
        raise Conflict(
            f"VM {vm.name}: {len(new)} published ports are more than the {MAX_PUBLISHED} that a VM can have",
            hint="take some back: atoll vm unpublish, or have one program in the guest share them out",
        )
    return structs.replace(vm, published=tuple(new))


def published_without(vm: VM, port: int, address: str | None) -> VM:
    """The VM without what is published there. Gone already is fine."""
    kept = (one for one in vm.published if one.port != port or address not in (None, one.address))
    return structs.replace(vm, published=tuple(kept))


def wanted_of(vms: Iterable[VM]) -> dict[str, tuple[VM, Publication, Entry]]:
    """All that is to be carried, by its key."""
    return {
        one.key: (vm, one, entry_of(vm, one))
        for vm in vms
        if vm.state not in _LEAVING
        for one in vm.published
    }


def entry_of(vm: VM, one: Publication) -> Entry:
    ip = vm.ip if vm.state in _UP else ""
    return Entry(one.key, vm.instance_id, ip, one.guest_port, one.proxy_protocol)


def differences(
    wanted: Mapping[str, Entry], carried: Mapping[str, Entry], unknown: Collection[str] = ()
) -> Differences:
    """What makes the one of the other. `unknown`: addresses of VMs of which nobody knows what they want; what leads to
    them stays."""
    moot = {key for key, entry in carried.items() if key not in wanted and entry.ip not in unknown}
    other = {
        key
        for key, entry in carried.items()
        if key in wanted and (entry.vm, entry.proxy) != (wanted[key].vm, wanted[key].proxy)
    }
    return Differences(
        drop=tuple(sorted(moot | other)),
        point=tuple(
            wanted[key]
            for key, entry in sorted(carried.items())
            if key in wanted and key not in other and entry != wanted[key]
        ),
        carry=tuple(entry for key, entry in sorted(wanted.items()) if key not in carried or key in other),
    )


def _placed(one: Publication, asking: Asking) -> Publication:
    """With its address, where none was named."""
    if not asking.rules.addresses:
        raise Denied(
            f"publishing port {one.port}: nothing is published on node {asking.node}",
            hint="an operator can change that: publish.addresses in its configuration",
        )
    return one if one.address else structs.replace(one, address=asking.rules.addresses[0])


def _check_permitted(one: Publication, asking: Asking) -> None:
    if one.port == asking.api_port:
        raise Denied(
            f"publishing port {one.port}: it is the API's own port on node {asking.node}",
            hint="choose another port of the node",
        )
    if asking.is_operator:
        return
    if not any(one.port in some for some in asking.rules.ranges()):
        raise Denied(
            f"publishing port {one.port}: users may publish {', '.join(asking.rules.ports) or 'no ports'}"
            f" on node {asking.node}",
            hint="choose another port of the node, or ask an operator of it",
        )
    if not any(_holds(address, one.address) for address in asking.rules.addresses):
        raise Denied(
            f"publishing at {one.address}: users may publish at {', '.join(asking.rules.addresses)}"
            f" on node {asking.node}",
            hint="choose another address of the node, or ask an operator of it",
        )


def _holds(address: str, other: str) -> bool:
    return address == other or (address in (ALL_IP4, ALL_IP6) and overlap(address, other))


def _check_free(
    one: Publication, vm: VM, own: Sequence[Publication], others: Iterable[VM], asking: Asking
) -> None:
    for mine in own:
        if one.clashes(mine):
            raise Conflict(
                f"publishing port {one.port} of VM {vm.name}: {mine.key} leads to its port"
                f" {mine.guest_port} already",
                hint=f"take that back first: atoll vm unpublish {vm.name} {one.port}",
            )
    for other in others:
        for theirs in other.published:
            if one.clashes(theirs):
                who = f"VM {other.name}" if asking.sees_others else "another VM"
                raise Conflict(
                    f"publishing port {one.port} on node {asking.node}: {theirs.key} is {who}'s",
                    hint="choose another port of the node",
                )


def _range(text: str) -> range:
    first, dash, last = text.partition("-")
    try:
        low, high = int(first), int(last if dash else first)
    except ValueError:
        raise Invalid("publish.ports", text, "is not a port, or first-last") from None
    for port in (low, high):
        check_range("publish.ports", port, 1, 65535)
    if low > high:
        raise Invalid("publish.ports", text, "must go upwards")
    return range(low, high + 1)
