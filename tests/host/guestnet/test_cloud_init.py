"""Debian's own cloud-init in a guest's network: it finds each tree, reads it, and configures the guest."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import Struct, structs

from atoll.guestnet.metadata.guest import Guest
from atoll.guestnet.metadata.nocloud import serial_number
from atoll.guestnet.metadata.server import MetadataServer
from atoll.guestnet.metadata.ssh import SETUP
from atoll.guestnet.metadata.tree import respond
from atoll.model.network import Subnet
from atoll.model.vm import VM, VmNic
from atoll.system.links import Links
from known_callers import KnownCallers

if TYPE_CHECKING:
    from tests.host.hypervisor.conftest import Island, Station

INSTANCE = "c371c012-3cdd-47b4-a175-4ad39c57c64a"
EC2_INSTANCE = f"ec2{INSTANCE[3:]}"
USER_DATA = b"#cloud-config\nfinal_message: configured by its user data\n"
KEYS = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFHWXeBIjLU+QtCAleTNm7W3J35urBGaLDQoZ5h+SCeS ann@home",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAabXeBIjLU+QtCAleTNm7W3J35urBGaLDQoZ5h+SCeS",
)

# A machine for one boot: this host's files with all changes in memory, its own name, processes and devices,
# and firmware that says what we are given. Of cloud-init's modules, those run that the test looks at.
GUEST = r"""
set -e
mount --make-rprivate /
top=$1
shift
mount -t tmpfs guest "$top"
mkdir "$top/upper" "$top/work" "$top/root"
mount -t overlay guest -o "lowerdir=/,upperdir=$top/upper,workdir=$top/work" "$top/root"
cd "$top/root"
mkdir -p var/lib/cloud sysfs
for place in sys run tmp dev var/lib/cloud; do mount -t tmpfs guest $place; done
mount -t proc guest proc
mount -t sysfs guest sysfs
mkdir -p sys/class/dmi/id
ln -s /sysfs/class/net sys/class/net
cat > run/network-config
for fact in "$@"; do printf '%s\n' "${fact#*=}" > "sys/class/dmi/id/${fact%%=*}"; done
mknod -m 666 dev/null c 1 3
mknod -m 666 dev/urandom c 1 9
printf '#!/bin/sh\necho none\nexit 1\n' > usr/bin/systemd-detect-virt
chmod 755 usr/bin/systemd-detect-virt
rm -f etc/cloud/cloud-init.disabled var/log/cloud-init*
printf '%s\n' 'cloud_init_modules: [set_hostname, users-groups, ssh]' 'ssh_genkeytypes: [ed25519]' \
    'system_info: {network: {renderers: [networkd]}}' > etc/cloud/cloud.cfg.d/99_guest.cfg
PATH=/usr/sbin:/usr/bin:/sbin:/bin
chroot . sh -c '/usr/lib/cloud-init/ds-identify --force; cloud-init init' >/dev/null 2>run/output
chroot . cloud-init devel net-convert --network-data /run/network-config --kind yaml --distro debian \
    --directory /tmp/converted --output-kind networkd >/dev/null 2>>run/output
chroot . python3 -c '
import json, pathlib, socket

def read(*paths):
    return "".join(path.read_text() for pattern in paths for path in pathlib.Path("/").glob(pattern))

print(json.dumps({
    "host_name": socket.gethostname(),
    "standard": json.loads(read("run/cloud-init/instance-data.json"))["v1"],
    "user_data": read("var/lib/cloud/instance/user-data.txt"),
    "keys": read("home/*/.ssh/authorized_keys"),
    "vendor": read("var/lib/cloud/instance/scripts/vendor/*"),
    "network": read("etc/systemd/network/*cloud-init*"),
    "converted": read("tmp/converted/etc/systemd/network/*"),
    "output": read("run/output"),
}))'
"""


class Booted(Struct, frozen=True):
    """What became of a guest, and what it read on the way."""

    seen: dict[str, Any]
    reads: list[str]

    @property
    def keys(self) -> list[str]:
        return self.seen["keys"].splitlines()


class Machine:
    """A guest with its metadata server."""

    def __init__(self, station: Station, directory: Path, vm: VM) -> None:
        self._station = station
        self._directory = directory
        self.guest = Guest(vm, USER_DATA, station.lease.subnet)
        self.reads: list[tuple[str, str]] = []

    @property
    def serial(self) -> str:
        """What QEMU is told to show."""
        return serial_number(self.guest.vm, self._station.lease.subnet)

    async def boot(self, **firmware: str) -> Booted:
        facts = [f"{name}={value}" for name, value in firmware.items()]
        process = await asyncio.create_subprocess_exec(
            *(
                "ip",
                "netns",
                "exec",
                self._station.namespace,
                "env",
                "-i",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            ),
            *("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"),
            *("sh", "-c", GUEST, "guest", str(self._directory), *facts),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            network = respond("/nocloud/network-config", self.guest, self.guest.vm.created_at)
            out, err = await asyncio.wait_for(process.communicate(network.body), 60)
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, err.decode()
        return Booted(json.loads(out), [path for _, path in self.reads])


@contextlib.asynccontextmanager
async def machine(
    island: Island, station: Station, directory: Path, **changes: Any
) -> AsyncIterator[Machine]:
    given = {"ssh_keys": KEYS, "tags": {"tier": "front"}, "instance_id": INSTANCE, **changes}
    made = Machine(station, directory, structs.replace(station.vm, **given))
    callers = KnownCallers(guests=lambda ip: made.guest if ip == station.ip else None)
    callers.reads = made.reads
    server = MetadataServer(island.service, callers)
    await server.start()
    try:
        yield made
    finally:
        await server.close()


def check(booted: Booted, cloud: str, instance_id: str = INSTANCE) -> None:
    """Everything that a user gave is in place."""
    seen = booted.seen
    assert seen["standard"]["cloud_id"] == cloud, seen["output"]
    assert seen["standard"]["instance_id"] == instance_id
    assert (seen["host_name"], seen["standard"]["local_hostname"]) == ("good", "good")
    assert seen["user_data"].encode() == USER_DATA
    assert sorted(booted.keys) == sorted(KEYS)
    assert "MACAddress=52:54:0a:4d:00:05" in seen["network"]
    assert "DHCP=ipv4" in seen["network"]
    assert "Traceback" not in seen["output"]


@pytest.fixture
def wired(good: Station) -> Station:
    good.configure()
    return good


async def test_it_finds_the_seed_by_the_serial_number_that_our_machines_have(
    island: Island, wired: Station, tmp_path: Path
) -> None:
    async with machine(island, wired, tmp_path) as guest:
        booted = await guest.boot(product_serial=guest.serial, product_uuid=INSTANCE, product_name="Atoll")

    check(booted, "nocloud")
    assert booted.reads == ["/nocloud/meta-data", "/nocloud/user-data", "/nocloud/vendor-data"]
    # This version reads the network of a seed from disks only; later ones read it here too, and alike.
    assert booted.seen["converted"] == booted.seen["network"]


async def test_it_reads_the_openstack_tree_where_the_firmware_says_openstack(
    island: Island, wired: Station, tmp_path: Path
) -> None:
    async with machine(island, wired, tmp_path) as guest:
        booted = await guest.boot(product_name="OpenStack Nova", product_uuid=INSTANCE)

    check(booted, "openstack")
    assert "MTUBytes=1400" in booted.seen["network"]
    assert "DNS=10.77.0.1" in booted.seen["network"]
    assert "/openstack/2018-08-27/network_data.json" in booted.reads


@pytest.mark.parametrize("firmware", ["seed", "OpenStack Nova"])
async def test_it_takes_what_sets_the_ssh_server_up_beside_the_data_of_the_user(
    island: Island, wired: Station, tmp_path: Path, firmware: str
) -> None:
    async with machine(island, wired, tmp_path) as guest:
        guest.guest = structs.replace(guest.guest, ssh_ca="ssh-ed25519 AAAA atoll\n")
        facts = {"product_serial": guest.serial} if firmware == "seed" else {"product_name": firmware}
        booted = await guest.boot(product_uuid=INSTANCE, **facts)

    check(booted, "nocloud" if firmware == "seed" else "openstack")
    assert booted.seen["vendor"].encode() == SETUP


async def test_it_finds_a_card_for_each_interface_of_a_vm(
    island: Island, wired: Station, tmp_path: Path
) -> None:
    nic = VmNic("10.78.0.5", "52:54:0a:4e:00:05", "red", "fd78::5054:aff:fe4e:5")
    red = Subnet("red", "10.78.0.0/24", "10.78.0.1", cidr6="fd78::/64", gateway6="fd78::1", mtu=1300)
    with Links(wired.namespace) as links:
        links.ensure_veth("eth1", "other5", island.bridge, mac=nic.mac, mtu=red.mtu)
    async with machine(island, wired, tmp_path, nics=(nic,)) as guest:
        guest.guest = structs.replace(guest.guest, extra_subnets=(red,))
        booted = await guest.boot(product_name="OpenStack Nova", product_uuid=INSTANCE)

    check(booted, "openstack")
    first, second = f"MACAddress={wired.mac}\nName=eth0", f"MACAddress={nic.mac}\nName=eth1"
    seed, network = booted.seen["converted"], booted.seen["network"]
    assert f"[Match]\n{first}\n\n[Network]\nDHCP=ipv4\n" in seed
    assert f"[Match]\n{second}\n\n[Network]\nDHCP=yes\n" in seed
    # This version asks for IPv4 alone where OpenStack says both.
    for card, mtu in ((first, 1400), (second, 1300)):
        assert f"[Link]\nMTUBytes={mtu}\n\n[Match]\n{card}\n\n[Network]\nDHCP=ipv4\n" in network


async def test_it_reads_the_ec2_tree_without_tokens_on_a_cloud_that_is_like_ec2(
    island: Island, wired: Station, tmp_path: Path
) -> None:
    async with machine(island, wired, tmp_path) as guest:
        booted = await guest.boot(chassis_asset_tag="a.zstack.io", product_uuid=INSTANCE)

    check(booted, "zstack")
    assert booted.seen["standard"]["availability_zone"] == "atoll-1a"
    assert "/2021-03-23/meta-data/tags/instance/tier" in booted.reads


async def test_where_tokens_are_required_our_firmware_makes_it_ask_for_one(
    island: Island, wired: Station, tmp_path: Path
) -> None:
    async with machine(island, wired, tmp_path, instance_id=EC2_INSTANCE, imdsv2_required=True) as guest:
        booted = await guest.boot(product_serial=guest.serial, product_uuid=EC2_INSTANCE)

    check(booted, "aws", EC2_INSTANCE)
    assert booted.seen["standard"]["region"] == "atoll-1"
