"""What this node keeps on disk: one directory per VM, and the addresses it was given.

    <state>/node.json                   subnets and addresses given to the node; node.json.copy is the same
    <state>/vms/<ip>/vm.json            the record: what the VM is, and what was last asked of it
    <state>/vms/<ip>/nic-<ip>           an address of an interface beside the first, for when the record is lost
    <state>/vms/<ip>/user-data-<hash>   the user data, and what it was before; beside it sockets and logs
    <state>/vms/<ip>/role-credential    the credential that it was created with: see credential_store.py
    <state>/secrets.key                 what that is encrypted with
    <state>/trash/                      directories on their way out; emptied at start-up

Effects: durable files, written by a thread, so that nobody waits for a disk but those who asked. A record is there
before anything of its VM is, and goes after all of it has. Which user data counts is what the record
says: one write of it changes both. A record that cannot be read makes a damaged VM.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from atoll.errors import AtollError, HostFailure
from atoll.hypervisor.vms.credential_store import CredentialStore
from atoll.model.checks import check_ip
from atoll.model.network import mac_for
from atoll.model.vm import MAX_USER_DATA, UNKNOWN_DRIVER, VM, MachineType, VmNic, VmState
from atoll.plan.addresses import Given, nic_of
from atoll.plan.recovery import Want
from atoll.serving.formats import Format, Unknown
from atoll.serving.vault import Vault
from atoll.system import files, steps

log = logging.getLogger(__name__)

MAX_RECORD = 1 << 20
MAX_GIVEN = 64 << 20
_USER_DATA = "user-data-"
_NIC = "nic-"
_UNREADABLE = (msgspec.MsgspecError, AtollError, OSError, UnicodeDecodeError)


class Record(Struct, frozen=True):
    """A VM, what was last asked of it, and whether its creator was told of it."""

    vm: VM
    want: Want
    committed: bool
    boot_id: str
    """The boot of the host in which it was last started."""
    restart_at: datetime | None = None
    """When it is to be started again by itself."""
    restarted_at: tuple[datetime, ...] = ()
    """When it was, lately."""
    acknowledge_by: datetime | None = None
    """It is undone at this moment unless its creator says that it was told."""
    moving: VM | None = None
    """What it is on its way to be, at another address. Both addresses are its own meanwhile."""

    @property
    def vms(self) -> tuple[VM, ...]:
        """What it is, and what it is on its way to be."""
        return (self.vm,) if self.moving is None else (self.vm, self.moving)


RECORD = Format(Record, number=2, needs=1)
GIVEN = Format(Given, number=1, needs=1)


class Records:
    """Reads and writes the state directory. One process at a time: `app` holds its lock."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._vms = state / "vms"
        self._trash = state / "trash"
        self.credentials = CredentialStore(Vault(state / "secrets.key"), self.directory)
        self._user_data: dict[str, str] = {}
        self.carried: dict[str, str] = {}
        """VMs whose move was cut short: what is kept of them elsewhere may be at that other address."""
        self._unreadable: dict[str, frozenset[str]] = {}
        self._unknown: dict[str, Unknown] = {}
        """Fields of records that only a newer agent knows, by instance id; they stay as they are."""
        self._unknown_given: Unknown = {}

    @property
    def unreadable(self) -> frozenset[str]:
        """Addresses whose records could not be read: nobody knows what uses them, so nobody else may."""
        return frozenset[str]().union(*self._unreadable.values())

    def prepare(self) -> None:
        for directory in (self._state, self._vms, self._trash):
            # 0711: drivers' unprivileged processes pass through to files that are theirs.
            files.make_dirs(directory, 0o711)
        files.remove_leftovers(self._state)

    async def empty_trash(self) -> None:
        """Remove what an earlier agent did not get to remove. What cannot be removed is left, and logged."""
        for left in list(self._trash.iterdir()):
            try:
                await asyncio.to_thread(files.remove_tree, left)
            except AtollError as error:
                log.error("%s", error)

    def directory(self, ip: str) -> Path:
        return self._vms / ip

    def given(self) -> Given:
        """What the node was given. One of two copies is enough: the first is never behind what was acknowledged."""
        failure = ""
        for path in self._given_paths():
            try:
                given, self._unknown_given = GIVEN.decode(files.read_limited(path, MAX_GIVEN))
                return given
            except FileNotFoundError:
                continue
            except _UNREADABLE as error:
                log.error("%s cannot be read: %s", path, error)
                failure = failure or f"reading {path}: {error}"
        if failure:
            raise HostFailure(
                f"{failure}; its copy cannot be read either",
                hint="restore one of them from a backup; VMs run on meanwhile",
            )
        return Given()

    async def write_given(self, given: Given) -> None:
        await asyncio.to_thread(self._write_given, given)

    def _write_given(self, given: Given) -> None:
        # The copy first: whichever of them is read later, it is not older than what was acknowledged.
        for path in reversed(self._given_paths()):
            files.write_durably(path, GIVEN.encode(given, self._unknown_given))

    def _given_paths(self) -> tuple[Path, Path]:
        return self._state / "node.json", self._state / "node.json.copy"

    async def write(self, record: Record) -> None:
        await asyncio.to_thread(self._write, record)

    def _write(self, record: Record) -> None:
        directory = self.directory(record.vm.ip)
        files.make_dirs(directory, 0o711)
        for nic in record.vm.nics:
            mark = directory / f"{_NIC}{nic.ip}"
            if not mark.exists():
                files.write_durably(mark, b"")
        unknown = self._unknown.get(record.vm.instance_id, {})
        files.write_durably(directory / "vm.json", RECORD.encode(record, unknown))
        if self._user_data.get(record.vm.ip) != record.vm.user_data_sha256:
            self._settle_user_data(record.vm)

    def load(self) -> dict[str, Record]:
        """All records that can be read. A directory without one is left of a killed create: it goes."""
        records: dict[str, Record] = {}
        self._unreadable = {}
        for directory in sorted(self._vms.iterdir()):
            path = directory / "vm.json"
            if not path.exists():
                self._discard(directory.name)
                continue
            files.remove_leftovers(directory)
            try:
                record, unknown = _read(path)
                if unknown:
                    self._unknown[record.vm.instance_id] = unknown
                record = self._settle(directory, record)
                records[record.vm.ip] = record
                self._settle_user_data(record.vm)
            except _UNREADABLE as error:
                log.error("record %s cannot be read and is left alone: %s", path, error)
                self._unreadable[directory.name] = frozenset((directory.name, *_nics_in(directory)))
                damaged = self._damaged(directory, error)
                if damaged is not None:
                    records[directory.name] = damaged
        return records

    async def discard(self, ip: str) -> None:
        """Remove the directory of a VM: out of sight in one step, then for good."""
        await asyncio.to_thread(self._discard, ip)

    def _discard(self, ip: str) -> None:
        directory = self.directory(ip)
        self._unreadable.pop(ip, None)
        if directory.exists():
            grave = self._trash / f"{ip}.{uuid.uuid4().hex}"
            directory.rename(grave)
            files.sync_dir(self._vms)
            steps.step("discard.renamed")
            files.remove_tree(grave)
            steps.step("discard.removed")

    def _damaged(self, directory: Path, error: Exception) -> Record | None:
        """What stands for a VM of which nothing can be read; None when its directory is not that of any."""
        try:
            ip = check_ip("ip", directory.name)
            given = self.given()
            written_at = datetime.fromtimestamp((directory / "vm.json").stat().st_mtime, UTC)
        except _UNREADABLE:
            return None
        why = f"its record {directory / 'vm.json'} cannot be read: {error}"
        return damaged(ip, _nics_in(directory), given, written_at, why)

    async def move(self, record: Record) -> None:
        """The directory of a VM goes to the address that the record says it moves to. The write of it follows."""
        await asyncio.to_thread(self._move, record)

    def _move(self, record: Record) -> None:
        assert record.moving is not None
        self._discard(record.moving.ip)
        self.directory(record.vm.ip).rename(self.directory(record.moving.ip))
        files.sync_dir(self._vms)

    def _settle(self, directory: Path, record: Record) -> Record:
        """A move that was under way is over where the directory is."""
        if record.moving is None:
            return record
        arrived = directory.name == record.moving.ip
        settled = moved(record) if arrived else structs.replace(record, moving=None)
        self.carried[settled.vm.ip] = record.vm.ip if arrived else record.moving.ip
        self._write(settled)
        return settled

    async def write_user_data(self, ip: str, data: bytes) -> None:
        """Keep it. It counts once the record names its hash."""
        await asyncio.to_thread(self._write_user_data, ip, data)

    def _write_user_data(self, ip: str, data: bytes) -> None:
        files.make_dirs(self.directory(ip), 0o711)
        files.write_durably(self._user_data_path(ip, hashlib.sha256(data).hexdigest()), data)

    def user_data(self, ip: str) -> bytes:
        """What counts now."""
        path = self._user_data_path(ip, self._user_data.get(ip, ""))
        return files.read_limited(path, MAX_USER_DATA) if path.exists() else b""

    def _user_data_path(self, ip: str, sha256: str) -> Path:
        return self.directory(ip) / f"{_USER_DATA}{sha256}"

    def _settle_user_data(self, vm: VM) -> None:
        """What the record names is all that is kept."""
        self._user_data[vm.ip] = vm.user_data_sha256
        named = {f"{_USER_DATA}{sha256}" for sha256 in (vm.user_data_sha256, vm.previous_user_data_sha256)}
        for path in self.directory(vm.ip).glob(f"{_USER_DATA}*"):
            if path.name not in named:
                files.remove_tree(path)


def moved(record: Record) -> Record:
    """The record of a VM that has arrived at its new address. Pure."""
    assert record.moving is not None
    return structs.replace(record, vm=record.moving, moving=None)


def damaged(ip: str, others: Collection[str], given: Given, written_at: datetime, why: str) -> Record:
    """The record of a VM of which no more is known than its addresses. Pure."""
    wanted = {ip, *others}
    known = {
        one.ip: nic_of(subnet, one)
        for subnet in given.subnets
        for one in given.addresses.get(subnet.id, ())
        if one.ip in wanted
    }
    first = known.get(ip, VmNic(ip, mac_for(ip), "unknown"))
    vm = VM(
        ip=ip,
        mac=first.mac,
        name=f"damaged-{ip.replace('.', '-')}",
        state=VmState.DAMAGED,
        driver=UNKNOWN_DRIVER,
        image="",
        image_digest="",
        memory_mib=0,
        milli_cpus=0,
        vcpus=0,
        machine_type=MachineType.AUTO,
        subnet=first.subnet,
        ip6=first.ip6,
        nics=tuple(known[other] for other in others if other in known),
        owner_users=(),
        owner_groups=(),
        tags={},
        created_at=written_at,
        instance_id=str(uuid.uuid5(uuid.NAMESPACE_URL, f"atoll:damaged:{ip}")),
        ready={},
        reason=f"{why}; restore it and restart the agent, or: atoll vm destroy {ip}",
    )
    return Record(vm, Want.RUNNING, committed=True, boot_id="")


def _nics_in(directory: Path) -> list[str]:
    """The addresses of a VM beside its first, as its directory tells them."""
    return sorted(path.name.removeprefix(_NIC) for path in directory.glob(f"{_NIC}*"))


def _read(path: Path) -> tuple[Record, Unknown]:
    record, unknown = RECORD.decode(files.read_limited(path, MAX_RECORD))
    if path.parent.name not in (record.vm.ip, record.moving.ip if record.moving else ""):
        raise HostFailure(f"it is that of {record.vm.ip}")
    return record, unknown
