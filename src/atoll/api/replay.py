"""The request that would make a VM again. Pure."""

from __future__ import annotations

from atoll.api.hypervisor import CreateVm
from atoll.model.vm import VM, VmSpec
from atoll.model.volume import ROOT, Volume, VolumeSpec, VolumeType


def as_request(vm: VM, user_data: bytes) -> CreateVm:
    """What to ask for to get a VM like this one: with its name, without its address, its volumes empty."""
    fields = {name: getattr(vm, name) for name in VmSpec.__struct_fields__ if name != "volumes"}
    volumes = tuple(_as_spec(volume) for volume in vm.volumes if volume.name != ROOT)
    return CreateVm(spec=VmSpec(**fields, volumes=volumes), user_data=user_data)


def _as_spec(volume: Volume) -> VolumeSpec:
    # Left out where there is no choice, so that the request suits another node too.
    store = volume.store if volume.type is VolumeType.PERSISTENT else None
    return VolumeSpec(
        volume.size_mib, volume.name, volume.format, volume.fs, volume.type, store, volume.interface
    )
