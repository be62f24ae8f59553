"""What a VM with a kernel and devices of its own can ask for: kernel options, a watchdog, to boot from the network."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest
from tests.host.conftest import wait_until

if TYPE_CHECKING:
    from tests.host.conftest import Cli

# Debian's cloud kernel has no driver for this device (8086:25ab), so the shell does what one would: lets it answer to
# memory accesses, sets both of its timers to a second (each write has to be unlocked), and starts it.
STIR_ONCE = "; ".join(
    (
        "cd $(dirname $(grep -l 0x25ab /sys/bus/pci/devices/*/device))",
        "printf '\\002' | dd of=config bs=1 seek=4 conv=notrunc 2>/dev/null",
        "at=$(cut -d' ' -f1 resource | head -n 1)",
        "unlock() { devmem $((at + 12)) 16 0x80; devmem $((at + 12)) 16 0x86; }",
        "unlock; devmem $((at)) 32 0x400",
        "unlock; devmem $((at + 4)) 32 0x400",
        "printf '\\002' | dd of=config bs=1 seek=104 conv=notrunc 2>/dev/null",
    )
)


def test_kernel_options_reach_the_kernel_and_new_ones_wait_for_the_next_start(cloud: Cli) -> None:
    vm = cloud.create("opted", "--kernel-options", "quiet atoll.test=1")
    try:
        assert (vm["kernel_options"], vm["started_by"]) == ("quiet atoll.test=1", "cold")
        with cloud.shell("opted") as shell:
            assert " quiet atoll.test=1\n" in shell.run("cat /proc/cmdline")
        assert '"kernel_options": "quiet atoll.test=1"' in cloud("vm", "show", "opted", "--as-request").stdout
        changed = cloud.json("vm", "change", "opted", "--kernel-options", "atoll.test=2")
        assert (changed["kernel_options"], changed["pending"]) == ("atoll.test=2", ["kernel_options"])
        cloud("vm", "reboot", "opted", "--wait-for", "port:80")
        with cloud.shell("opted") as shell:
            assert " atoll.test=2\n" in shell.run("cat /proc/cmdline")
        assert cloud.show("opted")["pending"] == []
    finally:
        cloud.destroy("opted")


def test_a_guest_that_its_watchdog_powers_off_has_crashed_and_is_started_again(cloud: Cli) -> None:
    options = ("--watchdog", "i6300esb", "--watchdog-action", "poweroff", "--restart", "on-crash")
    before = cloud.ask(cloud.create("dogged", *options)["ip"])
    try:
        with cloud.shell("dogged") as shell:
            shell.begin(STIR_ONCE)
            wait_until(lambda: cloud.show("dogged")["restarts"] == 1, lambda: str(cloud.show("dogged")))
        vm = cloud.until("dogged", "running")
        assert (vm["watchdog"], vm["watchdog_action"]) == ("i6300esb", "poweroff")
        wait_until(lambda: cloud.answers(before["ip"]), lambda: "it does not answer any more")
        assert cloud.ask(before["ip"])["random"] != before["random"]
    finally:
        cloud.destroy("dogged")


def test_a_guest_that_its_watchdog_resets_boots_again_in_the_same_machine(cloud: Cli) -> None:
    ip = cloud.create("reset-dog", "--watchdog", "i6300esb")["ip"]
    try:
        process = cloud.qemu(ip)
        with cloud.shell("reset-dog") as shell:
            shell.begin(STIR_ONCE)
            shell.expect("port 80 is open")
        assert (cloud.qemu(ip), cloud.show("reset-dog")["restarts"]) == (process, 0)
    finally:
        cloud.destroy("reset-dog")


@pytest.mark.parametrize(
    ("options", "brief"),
    [
        (("--watchdog", "i6300esb", "--machine-type", "microvm"), "microvm has no place for one"),
        (("--kernel-options", "a\nb"), "must be at most 512 printable characters on one line"),
        (("--kernel-options", "x" * 513), "must be at most 512 printable characters on one line"),
    ],
)
def test_what_no_machine_can_have_is_refused_before_anything_is_done(
    cloud: Cli, options: tuple[str, ...], brief: str
) -> None:
    refusal = cloud.refused("vm", "create", "--name", "none", "--image", "appliance", *options)
    assert brief in refusal.brief


def boot_sector(text: str) -> bytes:
    """One that writes this to the first serial line and does nothing else."""
    code = bytes.fromhex(
        "31c0 8ed8 be217c"  # from the text on, in the segment 0
        "ac 84c0 7412"  # the next letter; after the last one, halt
        "88c3 bafd03 ec a820 74fb"  # wait until the line takes it
        "88d8 baf803 ee ebe9"  # write it
        "f4 ebfd"
    )
    assert len(code) == 0x21
    return (code + text.encode() + b"\0").ljust(510, b"\0") + b"\x55\xaa"


@pytest.mark.timeout(400)
def test_a_vm_boots_from_the_network_first_and_from_its_disk_ever_after(cloud: Cli) -> None:
    wanted = ("--memory", "256MiB", "--netboot", "first", "--volume", "size=1MiB", "--timeout", "180s")
    cloud("vm", "create", "--name", "pxe", "--image", "appliance", *wanted, timeout=200)
    try:
        log = cloud("vm", "log", "pxe").stdout
        assert "iPXE" in log
        assert "boot.ipxe... ok" in log
        assert (cloud.show("pxe")["netboot"], cloud.show("pxe")["started_by"]) == ("first", "cold")
        # As an installer does: it writes the disk, and reboots.
        sector = base64.b64encode(boot_sector("booted from the disk")).decode()
        with cloud.shell("pxe") as shell:
            shell.run(f"echo {sector} | base64 -d | dd of=/dev/vda conv=fsync")
            shell.begin("reboot -f")
            shell.expect("booted from the disk")
        cloud("vm", "stop", "pxe", "--force")
        cloud("vm", "start", "pxe", "--wait-for", "started")
        wait_until(
            lambda: cloud("vm", "log", "pxe").stdout.count("booted from the disk") == 2,
            lambda: cloud("vm", "log", "pxe").stdout[-2000:],
        )
        assert cloud("vm", "log", "pxe").stdout.count("boot.ipxe... ok") == 1
    finally:
        cloud.destroy("pxe")
