"""What survives what, on real guests of every kind: suspends, stops, reboots; docs/what-survives.md is the page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.host.conftest import wait_until

import private_engine as engine
from atoll.system import cgroups
from doc_pages import DOCS

if TYPE_CHECKING:
    from tests.host.conftest import Cli

KINDS = ("qemu", "lxc", "docker")
VMS = [f"a-{kind}" for kind in KINDS]


@pytest.fixture(scope="module")
def engine_socket() -> Iterator[Path]:
    with engine.private_engine() as socket:
        yield socket


@pytest.fixture(scope="module")
def keeping(
    engine_socket: Path, images: Path, making_cloud: Callable[[Path], AbstractContextManager[Cli]]
) -> Iterator[Cli]:
    """A cloud with a VM of each kind, the virtual machine with a volume of each type."""
    with making_cloud(images) as made:
        cli = replace(made, environment={"DOCKER_HOST": f"unix://{engine_socket}"})
        cli("up")
        volumes = (
            "--volume",
            "size=4MiB,fs=ext4,name=data",
            "--volume",
            "size=4MiB,type=memory,name=scratch",
        )
        cli.create("a-qemu", *volumes)
        for kind in KINDS[1:]:
            cli.create(f"a-{kind}", "--driver", kind)
        yield cli


@pytest.fixture(params=KINDS)
def vm(request: pytest.FixtureRequest) -> str:
    return f"a-{request.param}"


def inside(cli: Cli, vm: str, line: str) -> str:
    return cli("vm", "exec", vm, "--", "sh", "-c", line).stdout.strip()


# --- the table of the page


def table() -> dict[str, dict[str, str]]:
    """What the page says: what happens -> of what -> what becomes of it."""
    lines = [line for line in (DOCS / "what-survives.md").read_text().splitlines() if line.startswith("|")]
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}


SEED = """
sleep 98765 >/dev/null 2>&1 &
echo mark > /root/mark
for name in data scratch; do
    disk=/dev/disk/by-id/virtio-$name
    [ ! -b $disk ] || echo mark | dd of=$disk bs=512 seek=2000 conv=sync,fsync 2>/dev/null
done
"""
LOOK = """
echo memory $(pidof sleep >/dev/null && echo mark)
echo root $(cat /root/mark 2>/dev/null)
for name in data scratch; do
    disk=/dev/disk/by-id/virtio-$name
    [ ! -b $disk ] || echo $name $(dd if=$disk bs=512 skip=2000 count=1 2>/dev/null | head -c 4)
done
"""


def seen(cli: Cli, vm: str) -> dict[str, str]:
    """What is there of what was put there, in the words of the page."""
    words = [line.split() for line in inside(cli, vm, LOOK).splitlines()]
    there = {word[0]: len(word) > 1 and word[1] == "mark" for word in words}
    root = "root of a virtual machine" if vm == "a-qemu" else "root of a container"
    columns = {
        "memory": "what the guest has in memory",
        "root": root,
        "data": "volume, `persistent`",
        "scratch": "volume, `memory`",
    }
    return {columns[name]: "kept" if kept else "lost" for name, kept in there.items()}


def agent_ends(cli: Cli) -> None:
    cli.kill_agent()
    cli("up")


def suspended(cli: Cli) -> None:
    cli("vm", "suspend", *VMS)
    cli("vm", "resume", *VMS)


def guests_reboot(cli: Cli) -> None:
    """A container of an engine that reboots has ended, for that engine."""
    for vm in VMS:
        before = len(cli("vm", "log", vm).stdout)
        cli("vm", "exec", vm, "--", "kill", "-INT", "1", check=False)
        if vm == "a-docker":
            cli.until(vm, "stopped")
            cli("vm", "start", vm)
        wait_until(
            lambda vm=vm, before=before: "port 80 is open" in cli("vm", "log", vm).stdout[before:],
            lambda vm=vm: f"{vm} does not come up again",
        )


def rebooted(cli: Cli) -> None:
    cli("vm", "reboot", *VMS)


def killed(cli: Cli) -> None:
    for vm in VMS:
        cgroups.kill_all(cli.group(cli.show(vm)["ip"], vm.removeprefix("a-")))
    for vm in VMS:
        cli.until(vm, "crashed")
    cli("vm", "start", *VMS)


SHOWN = {
    "the agent ends, is upgraded": (agent_ends,),
    "`vm suspend`, `vm resume`": (suspended,),
    "the guest reboots itself": (guests_reboot,),
    "`vm reboot`; `vm stop`, `vm start`; a crash": (rebooted, killed),
}
"""Rows of the table, and what happens to VMs that have one of everything. Those of a host that is rebooted are shown
in tests/services/hypervisor/test_suspensions.py and test_survival.py; that of a suspend to disk below."""


def test_the_page_is_all_shown_somewhere() -> None:
    others = {"`vm suspend --to-disk`, `vm resume`", "`vm destroy`", "the host is rebooted"}
    others |= {"the host is rebooted, VM suspended to disk"}
    assert set(table()) == set(SHOWN) | others


@pytest.mark.parametrize(("row", "happens"), [(row, act) for row, acts in SHOWN.items() for act in acts])
def test_what_the_page_says_of_what_survives_is_so(
    keeping: Cli, row: str, happens: Callable[[Cli], None]
) -> None:
    for vm in VMS:
        inside(keeping, vm, SEED)
        assert set(seen(keeping, vm).values()) == {"kept"}
    happens(keeping)
    for vm in VMS:
        found = seen(keeping, vm)
        assert found == {what: table()[row][what] for what in found}, vm


def test_a_vm_that_is_suspended_uses_nothing_outlives_the_agent_and_goes_on(keeping: Cli, vm: str) -> None:
    ip, kind = keeping.show(vm)["ip"], vm.removeprefix("a-")
    inside(keeping, vm, "echo here > /tmp/mark; (while :; do :; done) >/dev/null 2>&1 & echo $! > /tmp/busy")
    keeping("vm", "suspend", vm)
    shown = keeping.show(vm)
    assert (shown["state"], shown["suspended"]["to"], shown["ip"]) == ("suspended", "memory", ip)
    before = cgroups.usage(keeping.group(ip, kind)).cpu_s
    assert not keeping.answers(ip)
    assert cgroups.usage(keeping.group(ip, kind)).cpu_s - before < 0.1
    refusal = keeping.refused("vm", "exec", vm, "--", "true")
    assert (refusal.status, refusal.hint) == (4, f"let it go on first: atoll vm resume {vm}")
    assert keeping.refused("vm", "reboot", vm).status == 4
    keeping.kill_agent()
    keeping("up")
    assert keeping.show(vm)["state"] == "suspended"
    keeping("vm", "resume", vm)
    assert inside(keeping, vm, "cat /tmp/mark; kill $(cat /tmp/busy)") == "here"
    assert keeping.answers(ip)


def test_a_vm_on_disk_frees_its_memory_and_goes_on_with_its_clock_right(keeping: Cli) -> None:
    ip = keeping.show(sleeper := "a-qemu")["ip"]
    refusal = keeping.refused("vm", "suspend", sleeper, "--to-disk")
    assert (refusal.status, "volume scratch is in memory" in refusal.brief) == (4, True)
    keeping("volume", "detach", sleeper, "scratch")
    inside(keeping, sleeper, "mkdir -p /mnt && mount /dev/disk/by-id/virtio-data /mnt && echo a > /mnt/a")
    keeping("volume", "add", sleeper, "--name", "late", "--size", "1MiB")
    boot = inside(keeping, sleeper, "cat /proc/sys/kernel/random/boot_id")
    free = keeping.json("node", "show")["free"]["memory_mib"]
    keeping("vm", "suspend", sleeper, "--to-disk")
    assert not cgroups.members(keeping.group(ip))
    assert (
        keeping.json("node", "show")["free"]["memory_mib"] == free + 128 + 4
    )  # its own, and its volume in memory
    state = keeping.record(ip).with_name("qemu.saved") / "state"
    assert 1 << 20 < state.stat().st_size < 192 << 20
    keeping.kill_agent()
    time.sleep(3)
    keeping("up")
    assert keeping.show(sleeper)["state"] == "suspended"
    keeping("vm", "resume", sleeper)
    said = inside(
        keeping, sleeper, "cat /proc/sys/kernel/random/boot_id /mnt/a; date +%s; ls /dev/disk/by-id"
    )
    assert said.split()[:2] == [boot, "a"]
    assert abs(int(said.split()[2]) - time.time()) < 2.5
    assert said.split()[3:] == ["virtio-data", "virtio-late"]
    assert keeping.answers(ip)
    assert not state.exists()


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_container_is_not_suspended_to_disk(keeping: Cli, kind: str) -> None:
    refusal = keeping.refused("vm", "suspend", f"a-{kind}", "--to-disk")
    assert (refusal.status, "cannot be kept in a file" in refusal.brief) == (4, True)
    assert keeping.show(f"a-{kind}")["state"] == "running"
