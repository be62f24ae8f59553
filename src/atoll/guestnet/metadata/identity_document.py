"""The identity document: what a VM may know of itself, in SmallStack's words and in EC2's. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from atoll.guestnet.metadata.guest import JSON, Guest, Leaf
from atoll.model.vm import VM

ARCHITECTURE = "x86_64"


class DocumentVolume(Struct, frozen=True):
    format: str
    size_mib: int


class DocumentNic(Struct, frozen=True):
    ip: str
    mac: str
    subnet: str


class Document(Struct, frozen=True):
    """Named one by one, so that a new field of VM does not become public by itself."""

    instance_id: str
    ip: str
    mac: str
    name: str
    driver: str
    image: str
    image_digest: str
    memory_mib: int
    milli_cpus: int
    vcpus: int
    machine_type: str
    subnet: str
    nics: tuple[DocumentNic, ...]
    owner_users: tuple[str, ...]
    owner_groups: tuple[str, ...]
    tags: dict[str, str]
    created_at: datetime
    volumes: tuple[DocumentVolume, ...]
    user_data_sha256: str
    role: str | None


def smallstack_document(guest: Guest) -> Leaf:
    """Both, because both are read at the same path."""
    own = msgspec.to_builtins(msgspec.convert(guest.vm, Document, from_attributes=True))
    return _leaf(own | _ec2(guest))


def ec2_document(guest: Guest) -> Leaf:
    return _leaf(_ec2(guest))


def instance_type(vm: VM) -> str:
    """Sizes are free here, so a type is a size."""
    return f"atoll.{vm.milli_cpus}m-{vm.memory_mib}mib"


def _ec2(guest: Guest) -> dict[str, Any]:
    vm = guest.vm
    return {
        "accountId": "000000000000",
        "architecture": ARCHITECTURE,
        "availabilityZone": guest.place.zone,
        "imageId": vm.image,
        "instanceId": vm.instance_id,
        "instanceType": instance_type(vm),
        "pendingTime": f"{vm.created_at:%Y-%m-%dT%H:%M:%SZ}",
        "privateIp": vm.ip,
        "region": guest.place.region,
        "version": "2017-09-30",
    }


def _leaf(document: dict[str, Any]) -> Leaf:
    return Leaf(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n", JSON)
