"""The trees of other clouds: what their tools read, in the form in which they read it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from atoll.guestnet.metadata.guest import NOT_FOUND, Guest, Place
from atoll.guestnet.metadata.nocloud import SEED, serial_number
from atoll.guestnet.metadata.tree import respond
from atoll.identity.roles import (
    Algorithm,
    Certificates,
    CloudCredential,
    KeyPair,
    PublicKeys,
    RoleCredentials,
)
from atoll.model.network import Subnet
from atoll.model.vm import MachineType, VmNic
from samples import a_vm

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
SUBNET = Subnet(
    id="blue", cidr="10.1.0.0/24", gateway="10.1.0.1", domain="atoll.test", dns=("10.1.0.2",), mtu=1400
)
KEYS = ("ssh-ed25519 AAAA ann at=home", "ssh-rsa BBBB")
WEB = a_vm(
    driver="qemu",
    image_digest="ab",
    machine_type=MachineType.Q35,
    subnet="blue",
    tags={"tier": "front", "a/b": "c"},
    created_at=NOW,
    instance_id="c371c012-3cdd-47b4-a175-4ad39c57c64a",
    ssh_keys=KEYS,
)
GUEST = Guest(WEB, b"#cloud-config\n", SUBNET, place=Place("eu-1"))


def body(path: str, guest: Guest = GUEST) -> str:
    found = respond(path, guest, NOW)
    assert found.status == 200, path
    return found.body.decode()


def read(path: str, guest: Guest = GUEST) -> Any:
    return json.loads(body(path, guest))


# --- EC2


@pytest.mark.parametrize("version", ["2009-04-04", "2021-03-23", "latest"])
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("ami-id", "appliance"),
        ("instance-id", WEB.instance_id),
        ("instance-type", "atoll.250m-128mib"),
        ("hostname", "web.atoll.test"),
        ("local-hostname", "web.atoll.test"),
        ("local-ipv4", "10.1.0.5"),
        ("mac", "52:54:0a:01:00:05"),
        ("placement/availability-zone", "eu-1a"),
        ("placement/availability-zone/", "eu-1a"),
        ("placement/region", "eu-1"),
        ("public-keys/1/openssh-key", "ssh-rsa BBBB"),
        ("security-groups", "default"),
        ("services/partition", "aws"),
        ("tags/instance/tier", "front"),
        ("network/interfaces/macs/52:54:0a:01:00:05/local-ipv4s", "10.1.0.5"),
        ("network/interfaces/macs/52:54:0a:01:00:05/subnet-ipv4-cidr-block", "10.1.0.0/24"),
    ],
)
def test_ec2_values_have_no_end_of_line(version: str, path: str, value: str) -> None:
    assert body(f"/{version}/meta-data/{path}") == value


def test_ec2_keys_are_listed_by_number_and_a_name_that_is_theirs_alone() -> None:
    for path in ("/latest/meta-data/public-keys", "/latest/meta-data/public-keys/"):
        assert body(path) == "0=ann-at-home-0\n1=key-1"
    assert body("/latest/meta-data/public-keys/0") == "openssh-key"
    assert "public-keys/" in body("/latest/meta-data/").split("\n")
    without = structs.replace(GUEST, vm=structs.replace(WEB, ssh_keys=()))
    assert respond("/latest/meta-data/public-keys/", without, NOW) == NOT_FOUND


def test_a_tag_whose_name_would_be_a_directory_is_left_out() -> None:
    assert body("/latest/meta-data/tags/instance/") == "tier"


def test_a_role_has_cloud_credentials_where_a_broker_gave_some() -> None:
    role = structs.replace(WEB, role="web")
    cloud = CloudCredential("ASIA", "secret", "token", NOW, NOW + timedelta(hours=1))
    keys = {Algorithm.RSA: KeyPair(PublicKeys("", ""), b"", b"")}
    certificates = {Algorithm.RSA: Certificates("", "")}
    credentials = RoleCredentials("web", keys, certificates, NOW, NOW + timedelta(hours=1), cloud=cloud)
    guest = structs.replace(GUEST, vm=role, credentials=credentials)

    assert body("/latest/meta-data/iam/security-credentials/", guest) == "web"
    assert read("/latest/meta-data/iam/security-credentials/web", guest) == {
        "Code": "Success",
        "Type": "AWS-HMAC",
        "AccessKeyId": "ASIA",
        "SecretAccessKey": "secret",
        "Token": "token",
        "LastUpdated": "2026-01-02T03:04:05Z",
        "Expiration": "2026-01-02T04:04:05Z",
    }
    assert respond("/latest/meta-data/iam/", GUEST, NOW) == NOT_FOUND


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({}, "not issued yet"),
        ({"role_cloud": "none: no broker"}, "none: no broker"),
        ({"role_cloud": "none", "role_problem": "it answered 403"}, "it answered 403"),
    ],
)
def test_a_role_without_cloud_credentials_says_why(known: dict[str, str], why: str) -> None:
    guest = structs.replace(GUEST, vm=structs.replace(WEB, role="web", **known))
    assert body("/latest/meta-data/iam/security-credentials/", guest) == "web"
    for path in ("info", "security-credentials/web"):
        assert read(f"/latest/meta-data/iam/{path}", guest) == {"Code": "Failed", "Message": why}


def test_a_dated_document_is_ec2s_alone() -> None:
    document = read("/2021-03-23/dynamic/instance-identity/document")

    assert document["instanceId"] == read("/latest/dynamic/instance-identity/document")["instance_id"]
    assert "owner_users" not in document


# --- OpenStack


@pytest.mark.parametrize("version", ["2012-08-10", "2018-08-27", "latest"])
def test_openstack_is_told_who_it_is_and_whose_keys_it_takes(version: str) -> None:
    said = read(f"/openstack/{version}/meta_data.json")

    assert (said["uuid"], said["name"], said["hostname"]) == (WEB.instance_id, "web", "web.atoll.test")
    assert (said["availability_zone"], said["meta"]) == ("eu-1a", WEB.tags)
    assert tuple(said["public_keys"].values()) == tuple(key["data"] for key in said["keys"]) == KEYS
    assert body(f"/openstack/{version}/user_data") == "#cloud-config\n"
    assert read(f"/openstack/{version}/vendor_data.json") == {}


def test_openstacks_network_is_by_dhcp_on_the_card_of_the_vm() -> None:
    assert read("/openstack/latest/network_data.json") == {
        "links": [
            {"id": "net0", "type": "phy", "ethernet_mac_address": WEB.mac, "vif_id": "net0", "mtu": 1400}
        ],
        "networks": [{"id": "network0", "link": "net0", "type": "ipv4_dhcp", "network_id": "blue"}],
        "services": [{"type": "dns", "address": "10.1.0.2"}],
    }


# --- IPv6


def test_a_vm_with_an_ipv6_address_is_told_of_it_in_each_tree() -> None:
    six = structs.replace(SUBNET, cidr6="fd00:1::/64", gateway6="fd00:1::1")
    guest = structs.replace(GUEST, vm=structs.replace(WEB, ip6="fd00:1::5"), subnet=six)

    assert body("/latest/meta-data/ipv6", guest) == "fd00:1::5"
    assert body(f"/latest/meta-data/network/interfaces/macs/{WEB.mac}/ipv6s", guest) == "fd00:1::5"
    kinds = [network["type"] for network in read("/openstack/latest/network_data.json", guest)["networks"]]
    assert kinds == ["ipv4_dhcp", "ipv6_dhcpv6-stateful"]
    assert read("/nocloud/network-config", guest)["ethernets"]["eth0"]["dhcp6"] is True


# --- several interfaces


NIC = VmNic("10.2.0.5", "52:54:0a:02:00:05", "storage", "fd00:2::5")
STORAGE = Subnet("storage", "10.2.0.0/24", "10.2.0.1", cidr6="fd00:2::/64", gateway6="fd00:2::1", mtu=9000)
SEVERAL = structs.replace(GUEST, vm=structs.replace(WEB, nics=(NIC,)), extra_subnets=(STORAGE,))


def test_ec2_numbers_the_interfaces_and_tells_each_its_own() -> None:
    macs = "/latest/meta-data/network/interfaces/macs/"
    assert body(macs, SEVERAL).split() == [f"{WEB.mac}/", f"{NIC.mac}/"]
    told = {
        path: body(f"{macs}{NIC.mac}/{path}", SEVERAL) for path in body(f"{macs}{NIC.mac}/", SEVERAL).split()
    }
    assert (
        told.items()
        >= {
            "device-number": "1",
            "local-ipv4s": NIC.ip,
            "ipv6s": NIC.ip6,
            "mac": NIC.mac,
            "subnet-id": "storage",
            "subnet-ipv4-cidr-block": "10.2.0.0/24",
            "subnet-ipv6-cidr-blocks": "fd00:2::/64",
        }.items()
    )
    assert body(f"{macs}{WEB.mac}/device-number", SEVERAL) == "0"
    assert body("/latest/meta-data/local-ipv4", SEVERAL) == WEB.ip
    assert body("/latest/meta-data/mac", SEVERAL) == WEB.mac


def test_openstack_and_the_seed_have_a_card_for_each_interface() -> None:
    said = read("/openstack/latest/network_data.json", SEVERAL)
    assert [(link["id"], link["ethernet_mac_address"], link["mtu"]) for link in said["links"]] == [
        ("net0", WEB.mac, 1400),
        ("net1", NIC.mac, 9000),
    ]
    assert [tuple(network.values()) for network in said["networks"]] == [
        ("network0", "net0", "ipv4_dhcp", "blue"),
        ("network1", "net1", "ipv4_dhcp", "storage"),
        ("network2", "net1", "ipv6_dhcpv6-stateful", "storage"),
    ]
    cards = read("/nocloud/network-config", SEVERAL)["ethernets"]
    assert cards["eth0"] == {"match": {"macaddress": WEB.mac}, "set-name": "eth0", "dhcp4": True}
    assert cards["eth1"] == {
        "match": {"macaddress": NIC.mac},
        "set-name": "eth1",
        "dhcp4": True,
        "dhcp6": True,
    }


def test_the_document_names_the_other_interfaces() -> None:
    document = read("/latest/dynamic/instance-identity/document", SEVERAL)
    assert document["nics"] == [{"ip": NIC.ip, "mac": NIC.mac, "subnet": "storage"}]


# --- NoCloud


def test_the_seed_has_all_four_files_even_where_they_are_empty() -> None:
    assert read("/nocloud/meta-data") == {
        "instance-id": WEB.instance_id,
        "local-hostname": "web.atoll.test",
        "public-keys": list(KEYS),
    }
    assert read("/nocloud/network-config") == {
        "version": 2,
        "ethernets": {"eth0": {"match": {"macaddress": WEB.mac}, "set-name": "eth0", "dhcp4": True}},
    }
    assert body("/nocloud/vendor-data") == ""
    assert body("/nocloud/user-data", Guest(WEB)) == ""


def test_a_machine_shows_the_seed_unless_it_would_not_be_served() -> None:
    assert serial_number(WEB, SUBNET) == SEED == "ds=nocloud-net;s=http://169.254.169.254/nocloud/"
    assert serial_number(WEB, structs.replace(SUBNET, metadata=False)) == WEB.instance_id
    assert serial_number(structs.replace(WEB, imdsv2_required=True), SUBNET) == WEB.instance_id
