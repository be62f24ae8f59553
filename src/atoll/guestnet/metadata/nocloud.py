"""The NoCloud seed, which cloud-init finds by the serial number of the machine. Pure.

JSON throughout, which is YAML as well. All four files are there even when empty: cloud-init asks for each,
and waits and retries for those that it does not get.
"""

from __future__ import annotations

from typing import Any

import msgspec

from atoll.guestnet.metadata.guest import BYTES, Guest, Leaf, Leaves
from atoll.guestnet.metadata.ssh import vendor_data
from atoll.model.network import METADATA_IP, Subnet
from atoll.model.vm import VM

SEED = f"ds=nocloud-net;s=http://{METADATA_IP}/nocloud/"
YAML = "text/yaml"


def serial_number(vm: VM, subnet: Subnet) -> str:
    """What a machine's firmware shows, so that cloud-init knows at once where to ask.

    A VM whose metadata needs tokens shows its id instead, and so does EC2: cloud-init asks for a token only
    where serial number and id are the same and begin as EC2's do.
    """
    return SEED if subnet.metadata and not vm.imdsv2_required else vm.instance_id


def leaves(guest: Guest) -> Leaves:
    return {
        "meta-data": _yaml(_meta_data(guest)),
        "user-data": Leaf(lambda now: guest.read_user_data(), BYTES),
        "vendor-data": Leaf(vendor_data(guest), YAML),
        "network-config": _yaml(_network_config(guest)),
    }


def _meta_data(guest: Guest) -> dict[str, Any]:
    return {
        "instance-id": guest.vm.instance_id,
        "local-hostname": guest.host_name,
        "public-keys": guest.vm.ssh_keys,
    }


def _network_config(guest: Guest) -> dict[str, Any]:
    cards = {}
    for interface in guest.interfaces:
        name = f"eth{interface.number}"
        cards[name] = {"match": {"macaddress": interface.nic.mac}, "set-name": name, "dhcp4": True}
        if interface.nic.ip6:
            cards[name]["dhcp6"] = True
    return {"version": 2, "ethernets": cards}


def _yaml(value: dict[str, Any]) -> Leaf:
    return Leaf(msgspec.json.encode(value) + b"\n", YAML)
