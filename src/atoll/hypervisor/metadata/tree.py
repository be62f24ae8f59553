"""What a VM can read about itself, as a tree of paths. Pure: server.py knows the caller and speaks HTTP.

The paths are SmallStack's. A directory lists its children, one per line, directories with a slash behind.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Struct

from atoll.model.vm import VM
from atoll.model.volume import Volume

TEXT, JSON, BYTES = "text/plain", "application/json", "application/octet-stream"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Guest(Struct, frozen=True):
    """A caller: its VM, and its user data or how to read it. None: it has none."""

    vm: VM
    user_data: bytes | Callable[[], bytes] | None = None


class Found(Struct, frozen=True):
    """What a path holds."""

    status: int
    content_type: str
    body: bytes


class Document(Struct, frozen=True):
    """The identity document: what a VM may know of itself. Named one by one, so that a new field of VM
    does not become public by itself."""

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
    owner_users: tuple[str, ...]
    owner_groups: tuple[str, ...]
    tags: dict[str, str]
    created_at: datetime
    volumes: tuple[Volume, ...]
    user_data_sha256: str


class Leaf(Struct, frozen=True):
    """One path: what it holds for a guest, and whether it is there for that guest at all."""

    content_type: str
    read: Callable[[Guest, datetime], bytes]
    there: Callable[[Guest], bool] = lambda guest: True


NOT_FOUND = Found(status=404, content_type=TEXT, body=b"not found\n")


def respond(path: str, guest: Guest | None, now: datetime) -> Found:
    """What is at a path for this guest. A caller that is no guest finds nothing anywhere."""
    if guest is None:
        return NOT_FOUND
    leaf = LEAVES.get(path)
    if leaf is not None:
        return Found(200, leaf.content_type, leaf.read(guest, now)) if leaf.there(guest) else NOT_FOUND
    children = _children(path if path.endswith("/") else path + "/", guest)
    return Found(200, TEXT, "".join(f"{child}\n" for child in children).encode()) if children else NOT_FOUND


def _children(directory: str, guest: Guest) -> list[str]:
    below = [
        path.removeprefix(directory)
        for path, leaf in LEAVES.items()
        if path.startswith(directory) and leaf.there(guest)
    ]
    return sorted({rest[: rest.find("/") + 1] or rest for rest in below})


def _true(guest: Guest, now: datetime) -> bytes:
    return b"true\n"


def _epoch_time(guest: Guest, now: datetime) -> bytes:
    seconds, microseconds = divmod((now - _EPOCH) // timedelta(microseconds=1), 1_000_000)
    return f"{seconds}.{microseconds * 1000:09d}\n".encode()


def _document(guest: Guest, now: datetime) -> bytes:
    document = msgspec.convert(guest.vm, Document, from_attributes=True)
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _user_data(guest: Guest, now: datetime) -> bytes:
    if guest.user_data is None:
        return b""
    return guest.user_data if isinstance(guest.user_data, bytes) else guest.user_data()


LEAVES: dict[str, Leaf] = {
    "/datasource/SmallStack": Leaf(TEXT, _true),
    "/latest/is-externally-patchable": Leaf(TEXT, _true),
    "/latest/dynamic/epoch-time": Leaf(TEXT, _epoch_time),
    "/latest/dynamic/instance-identity/document": Leaf(JSON, _document),
    "/latest/user-data": Leaf(BYTES, _user_data, there=lambda guest: guest.user_data is not None),
}
