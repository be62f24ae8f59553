"""What a hook was told, what it should be told, and what comes next. Pure.

    events ──► wanted ──┐
                        ├── differ ──► notice ──► delivered ──► told
    told ───────────────┘                  └──► failed: behind all others, and made anew

A VM that changes while its hook is away is told of once, as it is then; one that came and went meanwhile, not at
all. So the backlog is never longer than there are VMs now and were when the hook was last heard of.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from atoll.model.event import Event, EventKind
from atoll.model.vm import VM, VmNic, VmState

_UNFINISHED = frozenset((VmState.STARTING, VmState.DESTROYING))


class VmView(Struct, frozen=True, omit_defaults=True):
    """A VM as hooks see it: what names, addresses and inventories are made of, and nothing that comes and goes."""

    instance_id: str
    """Its own for as long as it is there, whatever its name and address."""
    name: str
    ip: str
    mac: str
    subnet: str
    ip6: str = ""
    nics: tuple[VmNic, ...] = ()
    """Its interfaces beside the first."""
    tags: dict[str, str] = {}
    owner_users: tuple[str, ...] = ()
    owner_groups: tuple[str, ...] = ()


class NoticeKind(StrEnum):
    CREATED = "created"
    CHANGED = "changed"
    DESTROYED = "destroyed"


class Mark(Struct, frozen=True):
    """The event that something is told of."""

    epoch: str
    sequence: int
    at: datetime


class Notice(Struct, frozen=True, omit_defaults=True):
    """What a hook is told. It may come twice: epoch and sequence are the same then, or later."""

    event: NoticeKind
    node: str
    epoch: str
    sequence: int
    at: datetime
    vm: VmView
    """As it is; as it last was, where it is gone."""
    before: VmView | None = None
    """As it was when the hook was last told, where it has changed."""


def view_of(vm: VM) -> VmView:
    return VmView(
        instance_id=vm.instance_id,
        name=vm.name,
        ip=vm.ip,
        mac=vm.mac,
        subnet=vm.subnet,
        ip6=vm.ip6,
        nics=vm.nics,
        tags=vm.tags,
        owner_users=vm.owner_users,
        owner_groups=vm.owner_groups,
    )


def is_there(vm: VM) -> bool:
    """Whether it has ever run. Before, its create may still fail, and nobody has been told of it."""
    return bool(vm.started_by) or vm.state not in _UNFINISHED


class Backlog:
    """Begins with what the hook was told by agents before this one."""

    def __init__(self, node: str, told: Mapping[str, VmView]) -> None:
        self._node = node
        self._told = dict(told)
        self._wanted = dict(told)
        self._marks: dict[str, Mark] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def take(self, event: Event) -> None:
        mark = Mark(event.epoch, event.sequence, event.at)
        if event.kind is EventKind.STATE:
            self._take_state(event.vms, mark)
        elif event.vm is not None:
            self._take_vm(event.vm, mark, gone=event.kind is EventKind.DESTROYED)

    def next(self) -> Notice | None:
        """What to tell first; None: it knows everything."""
        for key, mark in list(self._marks.items()):
            notice = self._notice(key, mark)
            if notice is not None:
                return notice
            del self._marks[key]
        return None

    def delivered(self, notice: Notice) -> None:
        key = notice.vm.instance_id
        if notice.event is NoticeKind.DESTROYED:
            self._told.pop(key, None)
        else:
            self._told[key] = notice.vm

    def failed(self, notice: Notice) -> None:
        """The others come first: what one VM's notice runs into need not stop theirs."""
        key = notice.vm.instance_id
        self._marks[key] = self._marks.pop(key)

    def _take_state(self, vms: tuple[VM, ...], mark: Mark) -> None:
        # A VM whose record cannot be read is still what it was, as far as anybody knows.
        unknown = {vm.ip for vm in vms if vm.state is VmState.DAMAGED}
        kept = {key: view for key, view in self._told.items() if view.ip in unknown}
        self._wanted = {**kept, **{vm.instance_id: view_of(vm) for vm in vms if _counts(vm)}}
        for key in {**self._told, **self._wanted}:
            if self._told.get(key) != self._wanted.get(key):
                self._marks[key] = mark

    def _take_vm(self, vm: VM, mark: Mark, *, gone: bool) -> None:
        keys = [vm.instance_id]
        if gone and vm.instance_id not in self._wanted:
            # One that was damaged is known by its address alone: what it was goes with it.
            keys = [key for key, view in self._wanted.items() if view.ip == vm.ip]
        for key in keys:
            if gone or not _counts(vm):
                self._wanted.pop(key, None)
            else:
                self._wanted[key] = view_of(vm)
            if self._told.get(key) != self._wanted.get(key):
                self._marks[key] = mark

    def _notice(self, key: str, mark: Mark) -> Notice | None:
        told, wanted = self._told.get(key), self._wanted.get(key)
        if told == wanted:
            return None
        if wanted is None:
            assert told is not None
            kind, vm, before = NoticeKind.DESTROYED, told, None
        else:
            kind = NoticeKind.CREATED if told is None else NoticeKind.CHANGED
            vm, before = wanted, told
        return Notice(kind, self._node, mark.epoch, mark.sequence, mark.at, vm, before)


def _counts(vm: VM) -> bool:
    return vm.state is not VmState.DAMAGED and is_there(vm)
