"""What a guest finds at each metadata path."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.hypervisor.metadata.tree import LEAVES, NOT_FOUND, Guest, respond
from atoll.model.vm import VM, MachineType, VmState
from atoll.model.volume import Volume, VolumeFormat

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
DATA = b"#!/bin/sh\n\x00\xff"
VM_5 = VM(
    ip="10.1.0.5",
    mac="52:54:0a:01:00:05",
    name="web",
    state=VmState.RUNNING,
    driver="qemu",
    image="appliance",
    image_digest="sha256:ab",
    memory_mib=128,
    milli_cpus=250,
    vcpus=1,
    machine_type=MachineType.Q35,
    subnet="blue",
    owner_users=("ann",),
    owner_groups=("web",),
    tags={"role": "front"},
    created_at=NOW,
    instance_id="i-1234",
    ready={"started": 0.2},
    volumes=(Volume(format=VolumeFormat.MEMORY, size_mib=0),),
    user_data_sha256="cd",
    request_id="not-for-the-guest",
    reason="nor this",
)
GUEST = Guest(vm=VM_5, user_data=DATA)


def body(path: str, guest: Guest | None = GUEST) -> bytes:
    found = respond(path, guest, NOW)
    assert found.status == 200, path
    return found.body


@pytest.mark.parametrize("path", ["/datasource/SmallStack", "/latest/is-externally-patchable"])
def test_the_marks_of_smallstack_are_true(path: str) -> None:
    assert body(path) == b"true\n"


def test_the_time_has_nine_digits_after_the_point() -> None:
    assert body("/latest/dynamic/epoch-time") == b"1767323045.678901000\n"
    early = datetime(1970, 1, 1, 0, 0, 7, 42, tzinfo=UTC)
    assert respond("/latest/dynamic/epoch-time", GUEST, early).body == b"7.000042000\n"


def test_the_document_tells_what_the_vm_is_and_nothing_that_is_not_its_business() -> None:
    found = respond("/latest/dynamic/instance-identity/document", GUEST, NOW)
    assert found.content_type == "application/json"
    document = json.loads(found.body)
    assert document == {
        "instance_id": "i-1234",
        "ip": "10.1.0.5",
        "mac": "52:54:0a:01:00:05",
        "name": "web",
        "driver": "qemu",
        "image": "appliance",
        "image_digest": "sha256:ab",
        "memory_mib": 128,
        "milli_cpus": 250,
        "vcpus": 1,
        "machine_type": "q35",
        "subnet": "blue",
        "owner_users": ["ann"],
        "owner_groups": ["web"],
        "tags": {"role": "front"},
        "created_at": "2026-01-02T03:04:05.678901Z",
        "volumes": [{"format": "memory", "size_mib": 0}],
        "user_data_sha256": "cd",
    }


def test_user_data_is_the_very_bytes() -> None:
    assert body("/latest/user-data") == DATA
    assert body("/latest/user-data", Guest(vm=VM_5, user_data=lambda: DATA)) == DATA
    assert body("/latest/user-data", Guest(vm=VM_5, user_data=b"")) == b""
    assert respond("/latest/user-data", GUEST, NOW).content_type == "application/octet-stream"


def test_without_user_data_the_path_is_neither_there_nor_listed() -> None:
    without = Guest(vm=VM_5)
    assert respond("/latest/user-data", without, NOW) == NOT_FOUND
    assert body("/latest/", without) == b"dynamic/\nis-externally-patchable\n"


@pytest.mark.parametrize(
    ("directory", "children"),
    [
        ("/", b"datasource/\nlatest/\n"),
        ("/datasource/", b"SmallStack\n"),
        ("/latest/", b"dynamic/\nis-externally-patchable\nuser-data\n"),
        ("/latest", b"dynamic/\nis-externally-patchable\nuser-data\n"),
        ("/latest/dynamic/", b"epoch-time\ninstance-identity/\n"),
        ("/latest/dynamic/instance-identity", b"document\n"),
    ],
)
def test_a_directory_lists_its_children(directory: str, children: bytes) -> None:
    assert body(directory) == children


def test_every_leaf_is_reached_by_following_the_listings() -> None:
    found, todo = set(), ["/"]
    while todo:
        directory = todo.pop()
        for child in body(directory).decode().split():
            (todo.append if child.endswith("/") else found.add)(directory + child)
    assert found == set(LEAVES)


@pytest.mark.parametrize(
    "path",
    [
        "/lat",
        "/latest/user-data/",
        "/latest//",
        "/latest/../",
        "//",
        "/latest/dynamic/instance-identity/X.509-key",
        "latest/user-data",
        "/LATEST/",
        "/latest/user-data\n",
        "*",
    ],
)
def test_an_unknown_path_is_not_found(path: str) -> None:
    assert respond(path, GUEST, NOW) == NOT_FOUND


@given(st.sampled_from([*LEAVES, "/", "/latest/"]) | st.text())
def test_a_caller_that_is_no_guest_finds_nothing(path: str) -> None:
    assert respond(path, None, NOW) == NOT_FOUND


@given(st.text())
def test_any_path_has_an_answer(path: str) -> None:
    assert respond(path, GUEST, NOW).status in (200, 404)
