"""What this node keeps on disk: one directory per VM, and the addresses it was given.

    <state>/node.json                   subnets and addresses given to the node; node.json.copy is the same
    <state>/vms/<ip>/vm.json            the record: what the VM is, and what was last asked of it
    <state>/vms/<ip>/nic-<ip>-<subnet>  an interface beside the first, for when the record is lost
    <state>/vms/<ip>/ids-<first>-<n>    the users that it runs as, likewise
    <state>/vms/<ip>/recorded           there has been a record: one that is missing was lost
    <state>/vms/<ip>/user-data-<hash>   the user data, and what it was before; beside it the console's log
    <state>/vms/<ip>/<kind>/            what the driver of this kind keeps: sockets, logs, disks
    <state>/vms/<ip>/role-credential    the credential that it was created with: see credential_store.py
    <state>/spares/                     room for records on a full disk: see system/spares.py
    <state>/secrets.key                 what that is encrypted with
    <state>/trash/                      directories on their way out; emptied at start-up

Effects: durable files, written beside the loop, so that nobody waits for a disk but those who asked. A record is there
before anything of its VM is, and goes after all of it has. Which user data counts is what the record
says: one write of it changes both. A record that cannot be read, or was lost, makes a damaged VM.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from atoll import RECORD_FORMAT
from atoll.errors import AtollError, HostFailure
from atoll.hypervisor.vms.credential_store import CredentialStore
from atoll.model.checks import check_ip, is_ip
from atoll.model.network import mac_for
from atoll.model.vm import MAX_USER_DATA, UNKNOWN_DRIVER, VM, MachineType, VmNic, VmState
from atoll.plan.addresses import Given, nic_of
from atoll.plan.ids import Ids
from atoll.plan.recovery import Want
from atoll.serving.formats import Format, Unknown, needing
from atoll.serving.vault import Vault
from atoll.system import aside, files, steps
from atoll.system.failures import failing
from atoll.system.writer import Writer

log = logging.getLogger(__name__)

MAX_RECORD = 1 << 20
MAX_GIVEN = 64 << 20
_USER_DATA = "user-data-"
_NIC = "nic-"
_IDS = "ids-"
_RECORDED = "recorded"
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
    ids: Ids | None = None
    """The users and groups of the host that are its own. None: an agent wrote it that did not give any."""

    requested_by: str = ""
    """The user who asked for it: request ids are theirs. Empty: an agent wrote it that did not note that."""

    def is_of_request(self, user: str, request_id: str) -> bool:
        """Whether it was made by a request of this user with this id."""
        if self.vm.request_id != request_id:
            return False
        return self.requested_by == user if self.requested_by else user in self.vm.owner_users

    @property
    def vms(self) -> tuple[VM, ...]:
        """What it is, and what it is on its way to be."""
        return (self.vm,) if self.moving is None else (self.vm, self.moving)


SUSPENSIONS_FORMAT = 2
"""The first whose agents know of VMs that are suspended; others leave such a VM alone."""
RECORD = Format(Record, number=RECORD_FORMAT, needs=1)
GIVEN = Format(Given, number=RECORD_FORMAT, needs=1)


class Records:
    """Reads and writes the state directory. One process at a time: `app` holds its lock."""

    def __init__(self, state: Path, writer: Writer) -> None:
        self._state = state
        self._writer = writer
        self._vms = state / "vms"
        self._trash = state / "trash"
        self.credentials = CredentialStore(Vault(state / "secrets.key"), self.directory)
        self._user_data: dict[str, str] = {}
        self.carried: dict[str, str] = {}
        """VMs whose move was cut short: what is kept of them elsewhere may be at that other address."""
        self._unreadable: dict[str, frozenset[str]] = {}
        self.marked_ids: dict[str, tuple[Ids, ...]] = {}
        """What those run as whose records could not be read, as far as that is known; by directory."""
        self._unknown: dict[str, Unknown] = {}
        """Fields of records that only a newer agent knows, by instance id; they stay as they are."""
        self._unknown_given: Unknown = {}
        self._recorded: set[str] = set()
        """Addresses whose directories say that there has been a record."""

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
        """Remove what an earlier agent did not get to remove. One that cannot be removed does not keep the others;
        it is the failure in the end."""
        failure: AtollError | None = None
        for left in list(self._trash.iterdir()):
            try:
                await aside.remove_tree(left)
                steps.step("trash.removed")
            except AtollError as error:
                failure = error
        if failure is not None:
            raise failure

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
        # The copy first: whichever of them is read later, it is not older than what was acknowledged.
        for path in reversed(self._given_paths()):
            await self._writer.write(path, GIVEN.encode(given, self._unknown_given))

    def _given_paths(self) -> tuple[Path, Path]:
        return self._state / "node.json", self._state / "node.json.copy"

    async def write(self, record: Record) -> None:
        if not all(path.exists() for path in self._beside(record)):
            await aside.run(self._make_beside, record)
        await self._writer.write(self._path(record), self._encode(record))
        if record.vm.ip not in self._recorded:
            await aside.run(self._note_recorded, record.vm.ip)
        if self._user_data.get(record.vm.ip) != record.vm.user_data_sha256:
            await aside.run(self._settle_user_data, record.vm)

    def _beside(self, record: Record) -> list[Path]:
        """What tells of a VM when its record is lost, and the directory that all of it is in."""
        directory = self.directory(record.vm.ip)
        marks = [directory / f"{_NIC}{nic.ip}-{nic.subnet}" for nic in record.vm.nics]
        if record.ids is not None:
            marks.append(directory / f"{_IDS}{record.ids.first}-{record.ids.count}")
        return [directory, *marks]

    def _make_beside(self, record: Record) -> None:
        directory, *marks = self._beside(record)
        files.make_dirs(directory, 0o711)
        for mark in marks:
            _mark(mark)

    def _note_recorded(self, ip: str) -> None:
        """On disk for good with the next write of the record: until then the record itself is there to tell."""
        _mark(self.directory(ip) / _RECORDED)
        self._recorded.add(ip)

    def _path(self, record: Record) -> Path:
        return self.directory(record.vm.ip) / "vm.json"

    def _encode(self, record: Record) -> bytes:
        unknown = self._unknown.get(record.vm.instance_id, {})
        if record.vm.suspended is not None or record.want is Want.SUSPENDED:
            unknown = needing(unknown, SUSPENSIONS_FORMAT)
        return RECORD.encode(record, unknown)

    async def is_on_disk(self, record: Record) -> bool:
        """Whether this is what another agent would read."""
        return await aside.run(self._is_on_disk, record)

    def _is_on_disk(self, record: Record) -> bool:
        try:
            written = files.read_limited(self._path(record), MAX_RECORD)
        except _UNREADABLE:
            return False
        return written == self._encode(record)

    def load(self) -> dict[str, Record]:
        """All records that can be read. A directory that never had one is left of a killed create: it goes."""
        records: dict[str, Record] = {}
        self._unreadable, self.marked_ids, self._recorded = {}, {}, set()
        for directory in sorted(self._vms.iterdir()):
            if not is_ip(directory.name) or not directory.is_dir():
                log.error("%s is no VM's, and is left alone", directory)
                continue
            path = directory / "vm.json"
            if path.exists():
                self._note_recorded(directory.name)
            elif not _has_been_recorded(directory):
                self._bury(directory.name)
                continue
            for place in (directory, *(path for path in directory.iterdir() if path.is_dir())):
                files.remove_leftovers(place)
            try:
                record, unknown = _read(path)
                if unknown:
                    self._unknown[record.vm.instance_id] = unknown
                record = self._settle(directory, record)
                records[record.vm.ip] = record
                self._settle_user_data(record.vm)
            except _UNREADABLE as error:
                log.error("record %s cannot be read and is left alone: %s", path, error)
                nics = (ip for ip, _ in _nics_in(directory))
                self._unreadable[directory.name] = frozenset((directory.name, *nics))
                self.marked_ids[directory.name] = _ids_in(directory)
                damaged = self._damaged(directory, error)
                if damaged is not None:
                    records[directory.name] = damaged
        return records

    def is_recorded(self, ip: str) -> bool:
        """Whether a VM has its record at this address, readable or not."""
        return (self.directory(ip) / "vm.json").exists()

    async def discard(self, ip: str) -> None:
        """Remove the directory of a VM: out of sight in one step, then for good."""
        grave = await aside.run(self._bury, ip)
        if grave is None:
            return
        try:
            steps.step("discard.renamed")
            await aside.remove_tree(grave)
            steps.step("discard.removed")
        except AtollError as error:
            # It is out of sight: no VM any more, whatever becomes of its files. The next agent tries again.
            log.error("%s", error)

    def _bury(self, ip: str) -> Path | None:
        """Put the directory of a VM where nobody looks for one. None when there is none."""
        directory = self.directory(ip)
        self._unreadable.pop(ip, None)
        self._recorded.discard(ip)
        if not directory.exists():
            return None
        grave = self._trash / f"{ip}.{uuid.uuid4().hex}"
        with failing(f"removing {directory}"):
            directory.rename(grave)
            files.sync_dir(self._vms)
        return grave

    def _damaged(self, directory: Path, error: Exception) -> Record | None:
        """What stands for a VM of which nothing can be read; None when its directory is not that of any."""
        try:
            ip = check_ip("ip", directory.name)
            given = self.given()
            told = directory / "vm.json"
            written_at = datetime.fromtimestamp((told if told.exists() else directory).stat().st_mtime, UTC)
        except _UNREADABLE:
            return None
        lost = isinstance(error, FileNotFoundError)
        why = f"its record {directory / 'vm.json'} {'is gone' if lost else f'cannot be read: {error}'}"
        return damaged(ip, _nics_in(directory), given, written_at, why)

    async def move(self, record: Record) -> None:
        """The directory of a VM goes to the address that the record says it moves to. The write of it follows."""
        assert record.moving is not None
        await self.discard(record.moving.ip)
        await aside.run(self._rename, record.vm.ip, record.moving.ip)
        self._recorded.discard(record.vm.ip)

    def _rename(self, source: str, target: str) -> None:
        old, new = self.directory(source), self.directory(target)
        with failing(f"moving {old} to {new}"):
            old.rename(new)
            try:
                files.sync_dir(self._vms)
            except OSError:
                new.rename(old)
                raise

    def _settle(self, directory: Path, record: Record) -> Record:
        """A move that was under way is over where the directory is."""
        if record.moving is None:
            return record
        arrived = directory.name == record.moving.ip
        settled = moved(record) if arrived else structs.replace(record, moving=None)
        self.carried[settled.vm.ip] = record.vm.ip if arrived else record.moving.ip
        self._make_beside(settled)
        files.write_durably(self._path(settled), self._encode(settled))
        return settled

    async def write_user_data(self, ip: str, data: bytes) -> None:
        """Keep it. It counts once the record names its hash."""
        await aside.run(files.make_dirs, self.directory(ip), 0o711)
        await self._writer.write(self._user_data_path(ip, hashlib.sha256(data).hexdigest()), data)

    def user_data(self, ip: str) -> bytes:
        """What counts now."""
        path = self._user_data_path(ip, self._user_data.get(ip, ""))
        return files.read_limited(path, MAX_USER_DATA) if path.exists() else b""

    def user_data_of(self, vm: VM) -> bytes:
        """What this VM says that it is; nothing when that is not there."""
        path = self._user_data_path(vm.ip, vm.user_data_sha256)
        return files.read_limited(path, MAX_USER_DATA) if vm.user_data_sha256 and path.exists() else b""

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


def damaged(
    ip: str, others: Collection[tuple[str, str]], given: Given, written_at: datetime, why: str
) -> Record:
    """The record of a VM of which no more is known than its addresses, the others each with its subnet. Pure."""
    known = {
        (one.ip, subnet.id): nic_of(subnet, one)
        for subnet in given.subnets
        for one in given.addresses.get(subnet.id, ())
    }
    keys = {subnet.id for subnet in given.subnets if not subnet.private}
    own = (nic for (own_ip, subnet), nic in known.items() if own_ip == ip and subnet in keys)
    first = next(own, VmNic(ip, mac_for(ip), "unknown"))
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


def _nics_in(directory: Path) -> list[tuple[str, str]]:
    """The addresses of a VM beside its first, each with its subnet, as its directory tells them."""
    marks = sorted(path.name.removeprefix(_NIC) for path in directory.glob(f"{_NIC}*"))
    return [(ip, subnet) for ip, _, subnet in (mark.partition("-") for mark in marks)]


def _has_been_recorded(directory: Path) -> bool:
    """A create writes the record before anything else that is a VM's own, and a member of the hot pool has none."""
    return (directory / _RECORDED).exists() or any(directory.glob(f"{_USER_DATA}*"))


def _mark(path: Path) -> None:
    """An empty file, on disk for good with the next write of the record, which syncs the directory."""
    if not path.exists():
        with failing(f"writing {path}"):
            path.touch(0o600)


def _ids_in(directory: Path) -> tuple[Ids, ...]:
    """What a VM runs as, as its directory tells it."""
    told = (path.name.removeprefix(_IDS).split("-") for path in sorted(directory.glob(f"{_IDS}*")))
    return tuple(Ids(*map(int, words)) for words in told if len(words) == 2 and all(map(str.isdigit, words)))


def _read(path: Path) -> tuple[Record, Unknown]:
    record, unknown = RECORD.decode(files.read_limited(path, MAX_RECORD))
    if path.parent.name not in (record.vm.ip, record.moving.ip if record.moving else ""):
        raise HostFailure(f"it is that of {record.vm.ip}")
    return record, unknown
