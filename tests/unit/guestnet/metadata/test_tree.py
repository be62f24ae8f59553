"""What a guest finds at each metadata path."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from atoll.guestnet.metadata.guest import NOT_FOUND, Guest
from atoll.guestnet.metadata.tree import paths, respond, wants_credentials
from atoll.identity.roles import (
    Algorithm,
    Certificates,
    CloudCredential,
    KeyPair,
    PublicKeys,
    RoleCredentials,
)
from atoll.model.network import Subnet
from atoll.model.vm import MachineType
from atoll.model.volume import Volume, VolumeFormat
from samples import a_vm

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
DATA = b"#!/bin/sh\n\x00\xff"
VM_5 = a_vm(
    driver="qemu",
    image_digest="sha256:ab",
    machine_type=MachineType.Q35,
    subnet="blue",
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
SUBNET = Subnet(
    id="blue", cidr="10.1.0.0/24", gateway="10.1.0.1", domain="atoll.test", dns=("10.1.0.2",), mtu=1400
)
KEYS = ("ssh-ed25519 AAAA ann at home", "ssh-rsa BBBB")
ROLE = RoleCredentials(
    "web",
    {algorithm: KeyPair(PublicKeys("", ""), b"pem", b"ssh") for algorithm in Algorithm},
    {algorithm: Certificates(f"x509 of {algorithm}", f"ssh of {algorithm}") for algorithm in Algorithm},
    NOW,
    NOW + timedelta(hours=1),
    cloud=CloudCredential("ASIA", "secret", "token", NOW, NOW + timedelta(hours=1)),
)
FULL = Guest(
    structs.replace(VM_5, ssh_keys=KEYS, role="web"), DATA, SUBNET, ROLE, ssh_ca="ssh-ed25519 AAAA atoll\n"
)
"""A guest that has everything."""


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
        "nics": [],
        "owner_users": ["ann"],
        "owner_groups": ["web"],
        "tags": {"role": "front"},
        "created_at": "2026-01-02T03:04:05.678901Z",
        "volumes": [{"format": "memory", "size_mib": 0}],
        "user_data_sha256": "cd",
        "role": None,
        "accountId": "000000000000",
        "architecture": "x86_64",
        "availabilityZone": "atoll-1a",
        "imageId": "appliance",
        "instanceId": "i-1234",
        "instanceType": "atoll.250m-128mib",
        "pendingTime": "2026-01-02T03:04:05Z",
        "privateIp": "10.1.0.5",
        "region": "atoll-1",
        "version": "2017-09-30",
    }


def test_user_data_is_the_very_bytes() -> None:
    assert body("/latest/user-data") == DATA
    assert body("/latest/user-data", Guest(vm=VM_5, user_data=lambda: DATA)) == DATA
    assert body("/latest/user-data", Guest(vm=VM_5, user_data=b"")) == b""
    assert respond("/latest/user-data", GUEST, NOW).content_type == "application/octet-stream"


def test_without_user_data_the_path_is_neither_there_nor_listed() -> None:
    without = Guest(vm=VM_5)
    assert respond("/latest/user-data", without, NOW) == NOT_FOUND
    assert body("/latest/", without) == b"dynamic/\nis-externally-patchable\nmeta-data/"
    assert body("/nocloud/user-data", without) == b""


@pytest.mark.parametrize(
    ("directory", "children"),
    [
        ("/datasource/", b"SmallStack"),
        ("/latest/", b"dynamic/\nis-externally-patchable\nmeta-data/\nuser-data"),
        ("/latest", b"dynamic/\nis-externally-patchable\nmeta-data/\nuser-data"),
        ("/2009-04-04/", b"dynamic/\nmeta-data/\nuser-data"),
        ("/latest/dynamic/", b"epoch-time\ninstance-identity/"),
        ("/2009-04-04/dynamic/", b"instance-identity/"),
        ("/latest/dynamic/instance-identity", b"document"),
        ("/nocloud/", b"meta-data\nnetwork-config\nuser-data\nvendor-data"),
        ("/latest/meta-data/network/interfaces/macs/", b"52:54:0a:01:00:05/"),
        (
            "/openstack/latest",
            b"meta_data.json\nnetwork_data.json\nuser_data\nvendor_data.json\nvendor_data2.json",
        ),
    ],
)
def test_a_directory_lists_its_children(directory: str, children: bytes) -> None:
    assert body(directory) == children


def test_the_roots_list_versions_without_a_slash() -> None:
    assert body("/").decode().split("\n")[2:] == [
        "2009-04-04", "2016-09-02", "2018-09-24", "2021-03-23", "latest",
        "datasource/", "nocloud/", "openstack/",
    ]  # fmt: skip
    assert body("/openstack") == body("/openstack/")
    assert body("/openstack").decode().split("\n")[-2:] == ["2018-08-27", "latest"]


@pytest.mark.parametrize("guest", [GUEST, FULL, Guest(vm=VM_5)])
def test_every_leaf_is_reached_by_following_the_listings(guest: Guest) -> None:
    found, todo = set(), ["/"]
    while todo:
        directory = todo.pop()
        for line in body(directory, guest).decode().split("\n"):
            child, is_key, _ = line.partition("=")
            is_version = directory in ("/", "/openstack/") and not child.endswith("/")
            is_directory = child.endswith("/") or is_version or is_key
            path = f"{directory}{child.rstrip('/')}"
            (todo.append if is_directory else found.add)(f"{path}/" if is_directory else path)
    assert found == paths(guest)
    for path in found:
        assert respond(path, guest, NOW).status == 200


def test_owners_log_in_where_the_node_has_a_ca_for_it() -> None:
    assert body("/atoll/ssh/", FULL) == b"host-certificate\nprincipals\nsetup\nuser-ca"
    assert body("/atoll/ssh/user-ca", FULL) == b"ssh-ed25519 AAAA atoll\n"
    assert body("/atoll/ssh/principals", FULL) == b"i-1234\n"
    script = body("/atoll/ssh/setup", FULL)
    assert script.startswith(b"#!/bin/sh\n")
    assert body("/nocloud/vendor-data", FULL) == script
    assert json.loads(body("/openstack/latest/vendor_data.json", FULL)) == {"cloud-init": script.decode()}
    assert respond("/atoll/ssh/setup", GUEST, NOW) == NOT_FOUND
    assert body("/nocloud/vendor-data", GUEST) == b""


def test_a_role_shows_its_credentials_under_smallstacks_names() -> None:
    listed = body("/latest/dynamic/instance-identity/", FULL).decode().split("\n")
    assert set(listed) == {
        "document", "X.509-certificate", "X.509-key",
        "RSA-X.509-certificate", "RSA-X.509-key", "RSA-SSH-certificate", "RSA-SSH-key",
        "Ed25519-X.509-certificate", "Ed25519-X.509-key", "Ed25519-SSH-certificate", "Ed25519-SSH-key",
    }  # fmt: skip
    assert body("/latest/dynamic/instance-identity/X.509-certificate", FULL) == b"x509 of RSA"
    assert body("/latest/dynamic/instance-identity/Ed25519-SSH-certificate", FULL) == b"ssh of Ed25519"
    # cloud-init reads and keeps all that it finds below a dated version.
    assert body("/2021-03-23/dynamic/instance-identity/", FULL) == b"document"


def test_keys_of_a_role_are_not_shown_by_printing_what_holds_them() -> None:
    assert "pem" not in repr(ROLE)
    assert "secret" not in repr(ROLE.cloud)
    assert "pem" not in repr(FULL)


@pytest.mark.parametrize(
    ("path", "wants"),
    [
        ("/latest/dynamic/instance-identity/", True),
        ("/latest/dynamic/instance-identity/X.509-key", True),
        ("/latest/dynamic/instance-identity/document", False),
        ("/2021-03-23/meta-data/iam/security-credentials/", True),
        ("/latest/meta-data/", False),
        ("/latest/user-data", False),
    ],
)
def test_only_requests_for_credentials_wait_for_them(path: str, wants: bool) -> None:
    assert wants_credentials(path) is wants


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


@given(st.sampled_from([*sorted(paths(FULL)), "/", "/latest/"]) | st.text())
def test_a_caller_that_is_no_guest_finds_nothing(path: str) -> None:
    assert respond(path, None, NOW) == NOT_FOUND


@given(st.text())
def test_any_path_has_an_answer(path: str) -> None:
    assert respond(path, GUEST, NOW).status in (200, 404)
