"""The EC2 tree, the same in every version that we list. Pure.

Values have no end of line, and directories end in a slash, as the tools that read them expect.
"""

from __future__ import annotations

import msgspec

from atoll.guestnet.metadata.guest import BYTES, JSON, Guest, Interface, Leaf, Leaves, text
from atoll.guestnet.metadata.identity_document import ec2_document, instance_type
from atoll.model.ssh import comment_of

VERSIONS = ("1.0", "2007-01-19", "2009-04-04", "2016-09-02", "2018-09-24", "2021-03-23")
"""cloud-init begins with 2009-04-04 and goes on to the newest that it knows."""

META_DATA = "meta-data/"
TIME = "%Y-%m-%dT%H:%M:%SZ"


def leaves(guest: Guest) -> Leaves:
    found = {f"{META_DATA}{path}": leaf for path, leaf in _meta_data(guest).items()}
    found["dynamic/instance-identity/document"] = ec2_document(guest)
    if guest.user_data is not None:
        found["user-data"] = Leaf(lambda now: guest.read_user_data(), BYTES)
    return found


def _meta_data(guest: Guest) -> Leaves:
    vm = guest.vm
    return {
        "ami-id": text(vm.image),
        "ami-launch-index": text("0"),
        "ami-manifest-path": text("(unknown)"),
        "hostname": text(guest.host_name),
        "instance-action": text("none"),
        "instance-id": text(vm.instance_id),
        "instance-type": text(instance_type(vm)),
        "local-hostname": text(guest.host_name),
        "local-ipv4": text(vm.ip),
        "mac": text(vm.mac),
        "placement/availability-zone": text(guest.place.zone),
        "placement/region": text(guest.place.region),
        "reservation-id": text(f"r-{vm.instance_id}"),
        "security-groups": text("default"),
        "services/domain": text("amazonaws.com"),
        "services/partition": text("aws"),
        **{
            path: leaf
            for interface in guest.interfaces
            for path, leaf in _interface(guest, interface).items()
        },
        **_public_keys(guest),
        **{f"tags/instance/{key}": text(value) for key, value in vm.tags.items() if "/" not in key},
        **({"ipv6": text(vm.ip6)} if vm.ip6 else {}),
        **_iam(guest),
    }


def _interface(guest: Guest, interface: Interface) -> Leaves:
    nic, subnet = interface.nic, interface.subnet
    known = {
        "device-number": str(interface.number),
        "interface-id": f"eni-{nic.mac.replace(':', '')}",
        "local-hostname": guest.host_name,
        "local-ipv4s": nic.ip,
        "mac": nic.mac,
        "security-groups": "default",
        "subnet-id": nic.subnet,
    }
    if nic.ip6:
        known["ipv6s"] = nic.ip6
    if subnet is not None:
        known["subnet-ipv4-cidr-block"] = subnet.cidr
        if subnet.cidr6 is not None:
            known["subnet-ipv6-cidr-blocks"] = subnet.cidr6
    return {f"network/interfaces/macs/{nic.mac}/{name}": text(value) for name, value in known.items()}


def _public_keys(guest: Guest) -> Leaves:
    keys = guest.vm.ssh_keys
    if not keys:
        return {}
    listing = "\n".join(f"{index}={_key_name(index, key)}" for index, key in enumerate(keys))
    return {
        "public-keys/": text(listing),
        **{f"public-keys/{index}/openssh-key": text(key) for index, key in enumerate(keys)},
    }


def _key_name(index: int, key: str) -> str:
    """Different for each, because tools keep keys by their names."""
    words = "".join(char if char.isalnum() or char in "@._-" else "-" for char in comment_of(key))
    return f"{words[:60] or 'key'}-{index}"


def _iam(guest: Guest) -> Leaves:
    """Credentials of the public cloud, if the VM's role is one there; or why there are none."""
    if guest.vm.role is None:
        return {}
    cloud = guest.credentials.cloud if guest.credentials else None
    if cloud is None:
        failed = {
            "Code": "Failed",
            "Message": guest.vm.role_problem or guest.vm.role_cloud or "not issued yet",
        }
        return _iam_leaves(guest.vm.role, failed, failed)
    times = {
        "LastUpdated": f"{cloud.issued_at:{TIME}}",
        "Expiration": f"{cloud.expires_at:{TIME}}",
    }
    credentials = {
        "Code": "Success",
        "Type": "AWS-HMAC",
        "AccessKeyId": cloud.access_key_id,
        "SecretAccessKey": cloud.secret_access_key,
        "Token": cloud.token,
        **times,
    }
    info = {"Code": "Success", "LastUpdated": times["LastUpdated"], "InstanceProfileId": guest.vm.role}
    return _iam_leaves(guest.vm.role, info, credentials)


def _iam_leaves(role: str, info: dict[str, str], credentials: dict[str, str]) -> Leaves:
    return {
        "iam/info": Leaf(msgspec.json.encode(info), JSON),
        f"iam/security-credentials/{role}": Leaf(msgspec.json.encode(credentials), JSON),
    }
