"""The OpenStack tree, the same in every version that we list. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from atoll.hypervisor.metadata.guest import BYTES, JSON, Guest, Leaf, Leaves
from atoll.model.ssh import comment_of

VERSIONS = ("2012-08-10", "2015-10-15", "2016-06-30", "2016-10-06", "2017-02-22", "2018-08-27", "latest")

_LINK = "net0"


def leaves(guest: Guest) -> Leaves:
    found = {
        "meta_data.json": _json(_meta_data(guest)),
        "network_data.json": _json(_network_data(guest)),
        "vendor_data.json": _json({}),
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


def _network_data(guest: Guest) -> dict[str, Any]:
    """Addresses come by DHCP, which is there on every subnet."""
    link = {"id": _LINK, "type": "phy", "ethernet_mac_address": guest.vm.mac, "vif_id": _LINK}
    kinds = ["ipv4_dhcp", "ipv6_dhcpv6-stateful"] if guest.vm.ip6 else ["ipv4_dhcp"]
    networks = [
        {"id": f"network{index}", "link": _LINK, "type": kind, "network_id": guest.vm.subnet}
        for index, kind in enumerate(kinds)
    ]
    if guest.subnet is None:
        return {"links": [link], "networks": networks, "services": []}
    return {
        "links": [link | {"mtu": guest.subnet.mtu}],
        "networks": networks,
        "services": [{"type": "dns", "address": server} for server in guest.subnet.dns],
    }


def _json(value: dict[str, Any]) -> Leaf:
    return Leaf(msgspec.json.encode(value), JSON)
