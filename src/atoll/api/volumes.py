"""The volumes of a VM. Pure declarations."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from atoll.api.access import Access
from atoll.api.route import NOTHING, Stream, Unary, Upload
from atoll.errors import Invalid
from atoll.model.checks import Name, check_name, check_pattern, check_range
from atoll.model.vm import VM
from atoll.model.volume import (
    MAX_VOLUME_MIB,
    MAX_VOLUMES,
    DiskInterface,
    VolumeFormat,
    VolumeMib,
    VolumeName,
    VolumeSpec,
)

SHA256_PATTERN = r"^[0-9a-f]{64}$"


class AddVolume(Struct, frozen=True, forbid_unknown_fields=True):
    """A volume to add, empty or with an empty file system."""

    volume: VolumeSpec
    attach: bool = True


class UploadVolume(Struct, frozen=True, forbid_unknown_fields=True):
    """What the bytes are that follow."""

    sha256: Annotated[str, Meta(pattern=SHA256_PATTERN, max_length=64)]
    format: VolumeFormat = VolumeFormat.RAW
    size_mib: VolumeMib | None = None
    """At least what the content needs; left out: just that."""
    store: Name | None = None
    interface: DiskInterface = DiskInterface.VIRTIO
    attach: bool = True

    def __post_init__(self) -> None:
        check_pattern("sha256", self.sha256, SHA256_PATTERN, "64 hexadecimal digits in lower case")
        if self.format is VolumeFormat.MEMORY:
            raise Invalid("format", str(self.format), "cannot be uploaded", hint="choose raw or qcow2")
        if self.store is not None:
            check_name("store", self.store)


class ChangeVolume(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is to be different about a volume. What is left out stays."""

    size_mib: VolumeMib | UnsetType = UNSET
    """Grows or shrinks it with the ext4 file system on it. While the guest has it, it can grow where its interface is
    virtio; what is mounted there grows too, where the guest has our agent."""
    store: Name | UnsetType = UNSET
    """Moves it there. Only while the guest does not have it."""
    attached: bool | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.size_mib is not UNSET:
            check_range("size_mib", self.size_mib, 1, MAX_VOLUME_MIB, "MiB")
        if self.store is not UNSET:
            check_name("store", self.store)


class VolumeOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """All volumes beside the root, in the order in which the guest is to find them."""

    names: Annotated[tuple[VolumeName, ...], Meta(max_length=MAX_VOLUMES)]


class VolumeStep(Struct, frozen=True):
    """Something that was done to a volume, so many seconds after the request."""

    step: str
    elapsed_s: float
    note: str = ""
    """What is left for the guest's owner to do."""


VOLUME_ADD = Stream(
    "volume.add",
    "POST",
    "/v1/vms/{vm}/volumes",
    summary="Add a volume, at once where the kind of machine can",
    access=Access.OWNER,
    body=AddVolume,
    query=NOTHING,
    item=VolumeStep,
    result=VM,
)
VOLUME_UPLOAD = Upload(
    "volume.upload",
    "PUT",
    "/v1/vms/{vm}/volumes/{volume}/content",
    summary="Add a volume with this content, raw or qcow2",
    access=Access.OWNER,
    body=NOTHING,
    query=UploadVolume,
    result=VM,
    max_body=MAX_VOLUME_MIB << 20,
)
VOLUME_CHANGE = Stream(
    "volume.change",
    "PATCH",
    "/v1/vms/{vm}/volumes/{volume}",
    summary="Grow, shrink, move, attach or detach a volume",
    access=Access.OWNER,
    body=ChangeVolume,
    query=NOTHING,
    item=VolumeStep,
    result=VM,
)
VOLUME_REORDER = Unary(
    "volume.reorder",
    "PUT",
    "/v1/vms/{vm}/volume-order",
    summary="Put the volumes into another order, from the next start on",
    access=Access.OWNER,
    body=VolumeOrder,
    query=NOTHING,
    result=VM,
)
VOLUME_DELETE = Unary(
    "volume.delete",
    "DELETE",
    "/v1/vms/{vm}/volumes/{volume}",
    summary="Delete a volume and what is on it; one that is gone already is a success",
    access=Access.OWNER,
    body=NOTHING,
    query=NOTHING,
    result=VM,
)

ROUTES = (VOLUME_ADD, VOLUME_UPLOAD, VOLUME_CHANGE, VOLUME_REORDER, VOLUME_DELETE)
