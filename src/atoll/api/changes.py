"""Changing a VM that is there. Pure declarations."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from atoll.api.access import Access
from atoll.api.route import NOTHING, Unary
from atoll.errors import Invalid
from atoll.model.checks import (
    MAX_TAGS,
    Name,
    TagKey,
    TagValue,
    check_name,
    check_principal,
    check_range,
    check_tags,
)
from atoll.model.hardware import KernelOptions, Netboot, Watchdog, WatchdogAction, check_kernel_options
from atoll.model.share import MAX_MOUNTS, Mounts, check_mounts
from atoll.model.ssh import SshKeys, check_ssh_keys
from atoll.model.vm import (
    MAX_MEMORY_MIB,
    MAX_MILLI_CPUS,
    MAX_OWNERS,
    VM,
    ConsoleKind,
    MachineType,
    MemoryMib,
    MilliCpus,
    Moment,
    Owners,
    RestartPolicy,
    UserData,
    check_user_data,
)

MAX_VM_BODY = 2 << 20
"""User data of 1 MiB in Base64, and all else that is said of a VM."""
TagChanges = Annotated[dict[TagKey, TagValue | None], Meta(max_length=MAX_TAGS)]


class ChangeVm(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is to be different. What is left out stays; all of it is changed, or nothing."""

    name: Name | UnsetType = UNSET
    """Its host name: the guest learns it with its next lease."""
    memory_mib: MemoryMib | UnsetType = UNSET
    milli_cpus: MilliCpus | UnsetType = UNSET
    machine_type: MachineType | UnsetType = UNSET
    console: ConsoleKind | UnsetType = UNSET
    kernel_options: KernelOptions | UnsetType = UNSET
    watchdog: Watchdog | UnsetType = UNSET
    watchdog_action: WatchdogAction | UnsetType = UNSET
    netboot: Netboot | UnsetType = UNSET
    tags: TagChanges | UnsetType = UNSET
    """Those to set; null removes one; those that are not named stay."""
    owner_users: Owners | UnsetType = UNSET
    owner_groups: Owners | UnsetType = UNSET
    ssh_keys: SshKeys | UnsetType = UNSET
    user_data: UserData | UnsetType = UNSET
    """What it was before is kept, once."""
    previous_user_data: bool = False
    """Change the user data back to what it was before."""
    restart: RestartPolicy | UnsetType = UNSET
    destroy_on_power_down: bool | UnsetType = UNSET
    protected: bool | UnsetType = UNSET
    expires_at: Moment | UnsetType | None = UNSET
    """Null: never."""
    subnet: Name | UnsetType = UNSET
    """Gives it a new address there. Only while it is down."""
    add_shares: Mounts | UnsetType = UNSET
    """Folders that it is to have as well, or in another place than before; those that are not named stay."""
    remove_shares: Annotated[tuple[Name, ...], Meta(max_length=MAX_MOUNTS)] | UnsetType = UNSET
    """Not there is fine."""

    def __post_init__(self) -> None:
        if self.name is not UNSET:
            check_name("name", self.name)
        if self.memory_mib is not UNSET:
            check_range("memory_mib", self.memory_mib, 16, MAX_MEMORY_MIB, "MiB")
        if self.milli_cpus is not UNSET:
            check_range("milli_cpus", self.milli_cpus, 1, MAX_MILLI_CPUS, "thousandths of a CPU")
        if self.tags is not UNSET:
            check_tags("tag", {key: value or "" for key, value in self.tags.items()})
        for owners in (self.owner_users, self.owner_groups):
            _check_owners(() if owners is UNSET else owners)
        if self.ssh_keys is not UNSET:
            check_ssh_keys("ssh_key", self.ssh_keys)
        if self.user_data is not UNSET:
            check_user_data(len(self.user_data))
            if self.previous_user_data:
                raise Invalid("previous_user_data", True, "contradicts user data that is given")
        if self.subnet is not UNSET:
            check_name("subnet", self.subnet)
        added = () if self.add_shares is UNSET else self.add_shares
        check_mounts(added)
        for name in () if self.remove_shares is UNSET else self.remove_shares:
            check_name("share", name)
            if any(mount.name == name for mount in added):
                raise Invalid("share", name, "is added and removed at once")
        if self.kernel_options is not UNSET:
            check_kernel_options(self.kernel_options)


def _check_owners(owners: tuple[str, ...]) -> None:
    if len(owners) > MAX_OWNERS:
        raise Invalid("owner", f"{len(owners)} owners", f"must be at most {MAX_OWNERS}")
    for who in owners:
        check_principal("owner", who)


VM_CHANGE = Unary(
    "vm.change",
    "PATCH",
    "/v1/vms/{vm}",
    summary="Change a VM; what cannot be changed while it runs waits for its next start",
    access=Access.OWNER,
    body=ChangeVm,
    query=NOTHING,
    result=VM,
    max_body=MAX_VM_BODY,
)
VM_BECOME_PRIMARY_OWNER = Unary(
    "vm.become-primary-owner",
    "POST",
    "/v1/vms/{vm}/become-primary-owner",
    summary="Make the caller the first of its owners",
    access=Access.OWNER,
    body=NOTHING,
    query=NOTHING,
    result=VM,
)
VM_ACKNOWLEDGE = Unary(
    "vm.acknowledge",
    "POST",
    "/v1/vms/{vm}/acknowledge",
    summary="Say that its creator was told of it: it stays",
    access=Access.OWNER,
    body=NOTHING,
    query=NOTHING,
    result=VM,
)
VM_ABANDON = Unary(
    "vm.abandon",
    "POST",
    "/v1/vms/{vm}/abandon",
    summary="Give up a create that was not acknowledged yet: it is undone when this returns; gone already is a success",
    access=Access.OWNER,
    body=NOTHING,
    query=NOTHING,
    result=NOTHING,
)

ROUTES = (VM_CHANGE, VM_BECOME_PRIMARY_OWNER, VM_ACKNOWLEDGE, VM_ABANDON)
