"""The OpenStack tree, the same in every version that we list. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from atoll.guestnet.metadata.guest import BYTES, JSON, Guest, Interface, Leaf, Leaves
from atoll.guestnet.metadata.ssh import vendor_data
from atoll.model.ssh import comment_of

VERSIONS = ("2012-08-10", "2015-10-15", "2016-06-30", "2016-10-06", "2017-02-22", "2018-08-27", "latest")


def leaves(guest: Guest) -> Leaves:
    found = {
        "meta_data.json": _json(_meta_data(guest)),
        "network_data.json": _json(_network_data(guest)),
        "vendor_data.json": _json(_vendor_data(guest)),
        "vendor_data2.json": _json({}),
    }
    if guest.user_data is not None:
        found["user_data"] = Leaf(lambda now: guest.read_user_data(), BYTES)
    return found


def _meta_data(guest: Guest) -> dict[str, Any]:
    vm = guest.vm
    names = [f"{comment_of(key) or 'key'}-{index}" for index, key in enumerate(vm.ssh_keys)]
    return {
        "uuid": vm.instance_id,
        "name": vm.name,
        "hostname": guest.host_name,
        "availability_zone": guest.place.zone,
        "launch_index": 0,
        "project_id": "atoll",
        "meta": vm.tags,
        "public_keys": dict(zip(names, vm.ssh_keys, strict=True)),
        "keys": [
            {"name": name, "type": "ssh", "data": key} for name, key in zip(names, vm.ssh_keys, strict=True)
        ],
        "devices": [],
    }


def _vendor_data(guest: Guest) -> dict[str, Any]:
    script = vendor_data(guest)
    return {"cloud-init": script.decode()} if script else {}


def _network_data(guest: Guest) -> dict[str, Any]:
    """Addresses come by DHCP, which is there on every subnet."""
    networks = [network for interface in guest.interfaces for network in _networks(interface)]
    return {
        "links": [_link(interface) for interface in guest.interfaces],
        "networks": [{"id": f"network{index}", **network} for index, network in enumerate(networks)],
        "services": [
            {"type": "dns", "address": server}
            for server in (guest.subnet.name_servers if guest.subnet else ())
        ],
    }


def _link(interface: Interface) -> dict[str, Any]:
    name = _name(interface)
    link = {"id": name, "type": "phy", "ethernet_mac_address": interface.nic.mac, "vif_id": name}
    return link | {"mtu": interface.subnet.mtu} if interface.subnet else link


def _networks(interface: Interface) -> list[dict[str, Any]]:
    kinds = ["ipv4_dhcp", "ipv6_dhcpv6-stateful"] if interface.nic.ip6 else ["ipv4_dhcp"]
    return [{"link": _name(interface), "type": kind, "network_id": interface.nic.subnet} for kind in kinds]


def _name(interface: Interface) -> str:
    return f"net{interface.number}"


def _json(value: dict[str, Any]) -> Leaf:
    return Leaf(msgspec.json.encode(value), JSON)
