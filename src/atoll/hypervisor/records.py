"""What this node keeps on disk: one directory per VM, and the addresses it was given.

    <state>/node.json               subnets and addresses given to the node
    <state>/vms/<ip>/vm.json        the record: what the VM is, and what was last asked of it
    <state>/vms/<ip>/user-data      beside it sockets and logs of its driver
    <state>/trash/                  directories on their way out; emptied at start-up

Effects: durable files. A record is there before anything of its VM is, and goes after all of it has.
"""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.errors import AtollError, HostFailure
from atoll.model.vm import MAX_USER_DATA, VM
from atoll.plan.addresses import Given
from atoll.plan.recovery import Want
from atoll.system import files

log = logging.getLogger(__name__)

MAX_RECORD = 1 << 20
MAX_GIVEN = 64 << 20
_UNREADABLE = (msgspec.MsgspecError, AtollError, OSError, UnicodeDecodeError)


class Record(Struct, frozen=True):
    """A VM, what was last asked of it, and whether its creator was told of it."""

    vm: VM
    want: Want
    committed: bool
    boot_id: str
    """The boot of the host in which it was last started."""


class Records:
    """Reads and writes the state directory. One process at a time: `app` holds its lock."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._vms = state / "vms"
        self._trash = state / "trash"
        self.unreadable: frozenset[str] = frozenset()
        """Addresses whose records could not be read: nobody knows what uses them, so nobody else may."""

    def prepare(self) -> None:
        for directory in (self._state, self._vms, self._trash):
            # 0711: drivers' unprivileged processes pass through to files that are theirs.
            files.make_dirs(directory, 0o711)
        files.remove_leftovers(self._state)
        for left in self._trash.iterdir():
            files.remove_tree(left)

    def directory(self, ip: str) -> Path:
        return self._vms / ip

    def given(self) -> Given:
        path = self._state / "node.json"
        if not path.exists():
            return Given()
        try:
            return msgspec.json.decode(files.read_limited(path, MAX_GIVEN), type=Given)
        except _UNREADABLE as error:
            raise HostFailure(
                f"reading {path}: {error}",
                hint="restore it, or remove it and add subnets and addresses again",
            ) from None

    def write_given(self, given: Given) -> None:
        files.write_durably(self._state / "node.json", msgspec.json.encode(given))

    def write(self, record: Record) -> None:
        directory = self.directory(record.vm.ip)
        files.make_dirs(directory, 0o711)
        files.write_durably(directory / "vm.json", msgspec.json.encode(record))

    def load(self) -> dict[str, Record]:
        """All records that can be read. A directory without one is left of a killed create: it goes."""
        records: dict[str, Record] = {}
        unreadable: set[str] = set()
        for directory in sorted(self._vms.iterdir()):
            path = directory / "vm.json"
            if not path.exists():
                self.discard(directory.name)
                continue
            files.remove_leftovers(directory)
            try:
                records[directory.name] = _read(path)
            except _UNREADABLE as error:
                log.error("record %s cannot be read and is left alone: %s", path, error)
                unreadable.add(directory.name)
        self.unreadable = frozenset(unreadable)
        return records

    def discard(self, ip: str) -> None:
        """Remove the directory of a VM: out of sight in one step, then for good."""
        directory = self.directory(ip)
        if directory.exists():
            grave = self._trash / f"{ip}.{uuid.uuid4().hex}"
            directory.rename(grave)
            files.sync_dir(self._vms)
            files.remove_tree(grave)

    def write_user_data(self, ip: str, data: bytes) -> None:
        files.make_dirs(self.directory(ip), 0o711)
        files.write_durably(self.directory(ip) / "user-data", data)

    def user_data(self, ip: str) -> bytes:
        path = self.directory(ip) / "user-data"
        return files.read_limited(path, MAX_USER_DATA) if path.exists() else b""


def _read(path: Path) -> Record:
    record = msgspec.json.decode(files.read_limited(path, MAX_RECORD), type=Record)
    if record.vm.ip != path.parent.name:
        raise HostFailure(f"it is that of {record.vm.ip}")
    return record
