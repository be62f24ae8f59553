from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from atoll.drivers.machine.base import Machine, Nic, SharedFolder
from atoll.drivers.machine.qemu.argv import (
    Files,
    TemplateFiles,
    overhead_mib,
    qemu_argv,
    system_uuid,
    translated_mib,
)
from atoll.drivers.machine.qemu.folders import check
from atoll.errors import Conflict
from atoll.model.hardware import BootFrom, Watchdog, WatchdogAction
from atoll.model.vm import MachineType
from samples import a_machine

FILES = Files(kernel=10, initrd=11, taps=(12,), monitor=13, log=15, hands=14)
MACHINE = a_machine(
    instance_id="4a1f4d0c-6d0e-4f3c-9a55-1f1f5d7e2b10",
    kernel=Path("/images/kernel"),
    initrd=Path("/images/initrd"),
    cmdline="console=ttyS0 quiet",
    nic=Nic(link="vm5", bridge="br0", mac="02:00:0a:01:00:05", mtu=1400),
    cgroup="atoll/10.1.0.5",
)

Q35 = """\
qemu-system-x86_64
-no-user-config
-nodefaults
-display none
-msg timestamp=on
-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny
-action reboot=reset,shutdown=pause,panic=pause
-machine q35,usb=off,vmport=off,smm=off,hpet=off,sata=off,smbus=off,i8042=off,graphics=off,\
dump-guest-core=off,mem-merge=off
-accel tcg,tb-size=32
-cpu max
-smp cpus=1
-m size=128M
-kernel /proc/self/fd/10
-initrd /proc/self/fd/11
-append console=ttyS0 quiet
-name guest=web
-smbios type=1,manufacturer=Atoll,product=Atoll,\
serial=4a1f4d0c-6d0e-4f3c-9a55-1f1f5d7e2b10,uuid=4a1f4d0c-6d0e-4f3c-9a55-1f1f5d7e2b10
-chardev socket,id=monitor,fd=13,server=on,wait=off
-mon chardev=monitor,mode=control
-add-fd fd=15,set=1,opaque=console.log
-chardev file,id=console,path=/dev/fdset/1,append=on
-serial chardev:console
-netdev tap,id=net0,fd=12,vhost=off
-device virtio-net-pci,romfile=,netdev=net0,mac=02:00:0a:01:00:05,host_mtu=1400,guest_announce=off
-object rng-builtin,id=rng0
-device virtio-rng-pci,rng=rng0
-device pvpanic
-device pcie-root-port,id=port0,chassis=1,slot=1,addr=0x10.0,multifunction=on
-device pcie-root-port,id=port1,chassis=2,slot=2,addr=0x10.1
-chardev socket,id=hands,fd=14,server=on,wait=off
-device virtio-serial-pci,id=hands-bus,max_ports=2
-device virtserialport,id=hands,bus=hands-bus.0,chardev=hands,name=atoll.hands"""

MICROVM = """\
qemu-system-x86_64
-no-user-config
-nodefaults
-display none
-msg timestamp=on
-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny
-action reboot=reset,shutdown=pause,panic=pause
-machine microvm,acpi=on,rtc=on,dump-guest-core=off,mem-merge=off
-accel tcg,tb-size=32
-cpu max
-smp cpus=1
-m size=128M
-kernel /proc/self/fd/10
-initrd /proc/self/fd/11
-append console=ttyS0 quiet tsc_early_khz=2596132
-name guest=web
-chardev socket,id=monitor,fd=13,server=on,wait=off
-mon chardev=monitor,mode=control
-add-fd fd=15,set=1,opaque=console.log
-chardev file,id=console,path=/dev/fdset/1,append=on
-serial chardev:console
-netdev tap,id=net0,fd=12,vhost=off
-device virtio-net-device,netdev=net0,mac=02:00:0a:01:00:05,host_mtu=1400,guest_announce=off
-object rng-builtin,id=rng0
-device virtio-rng-device,rng=rng0
-device pvpanic
-chardev socket,id=hands,fd=14,server=on,wait=off
-device virtio-serial-device,id=hands-bus,max_ports=2
-device virtserialport,id=hands,bus=hands-bus.0,chardev=hands,name=atoll.hands"""


MORE_NICS = (
    Nic(link="vm6", bridge="br1", mac="02:00:0a:02:00:05", mtu=9000),
    Nic(link="vm7", bridge="br2", mac="02:00:0a:03:00:05", mtu=1500),
)
NIC_LINES = """\
-netdev tap,id=net0,fd=12,vhost=off
-device KIND,netdev=net0,mac=02:00:0a:01:00:05,host_mtu=1400,guest_announce=off
-netdev tap,id=net1,fd=20,vhost=off
-device KIND,netdev=net1,mac=02:00:0a:02:00:05,host_mtu=9000,guest_announce=off
-netdev tap,id=net2,fd=21,vhost=off
-device KIND,netdev=net2,mac=02:00:0a:03:00:05,host_mtu=1500,guest_announce=off
-object rng-builtin,id=rng0"""


@pytest.mark.parametrize(
    ("board", "kind"),
    [(MachineType.Q35, "virtio-net-pci,romfile="), (MachineType.MICROVM, "virtio-net-device")],
)
def test_interfaces_follow_each_other_so_that_the_guest_finds_them_in_order(
    board: MachineType, kind: str
) -> None:
    machine = msgspec.structs.replace(MACHINE, machine_type=board, extra_nics=MORE_NICS)
    files = msgspec.structs.replace(FILES, taps=(12, 20, 21))
    assert NIC_LINES.replace("KIND", kind) in lines(qemu_argv(machine, files, "tcg", binary="qemu"))
    assert files.numbers() == (10, 11, 12, 20, 21, 13, 15, 14)


def lines(argv: tuple[str, ...]) -> str:
    """One option to a line, with its value."""
    return " ".join(argv).replace(" -", "\n-")


def argv_of(machine: Machine, accelerator: str = "tcg", tsc_khz: int | None = 2596132) -> tuple[str, ...]:
    return qemu_argv(machine, FILES, accelerator, binary="qemu-system-x86_64", tsc_khz=tsc_khz)  # type: ignore[arg-type]


def following(argv: tuple[str, ...], option: str) -> str:
    return argv[argv.index(option) + 1]


@pytest.mark.parametrize(
    ("kind", "golden"),
    [(MachineType.AUTO, Q35), (MachineType.Q35, Q35), (MachineType.MICROVM, MICROVM)],
)
def test_the_whole_command_line_of_each_machine_type(kind: MachineType, golden: str) -> None:
    assert lines(argv_of(msgspec.structs.replace(MACHINE, machine_type=kind))) == golden


def test_kvm_gives_the_guest_the_cpu_of_the_host_and_translates_nothing() -> None:
    argv = argv_of(MACHINE, "kvm")

    assert following(argv, "-accel") == "kvm"
    assert following(argv, "-cpu") == "host"


@pytest.mark.parametrize(("accelerator", "tsc_khz"), [("kvm", 2596132), ("tcg", None)])
def test_a_microvm_gets_the_hint_only_if_it_is_emulated_and_the_frequency_is_known(
    accelerator: str, tsc_khz: int | None
) -> None:
    argv = argv_of(msgspec.structs.replace(MACHINE, machine_type=MachineType.MICROVM), accelerator, tsc_khz)

    assert following(argv, "-append") == MACHINE.cmdline


def test_no_file_or_directory_of_the_host_is_named() -> None:
    argv = " ".join(argv_of(MACHINE))

    for path in (MACHINE.kernel, MACHINE.initrd, MACHINE.directory):
        assert str(path) not in argv


def test_a_comma_in_a_name_cannot_start_another_option() -> None:
    argv = argv_of(msgspec.structs.replace(MACHINE, name="web,debug-threads=on", instance_id="i-1,uuid=x"))

    assert following(argv, "-name") == "guest=web,,debug-threads=on"
    assert "serial=i-1,,uuid=x,uuid=" in following(argv, "-smbios")


def test_every_inherited_file_is_used_once_and_no_other() -> None:
    used = re.findall(r"\bfd[=/]([0-9]+)", " ".join(argv_of(MACHINE)))

    assert sorted(map(int, used)) == sorted(FILES.numbers())


@pytest.mark.parametrize(("memory_mib", "mib"), [(16, 32), (128, 32), (512, 128), (65536, 128)])
def test_room_for_translated_code_grows_with_the_guest_within_bounds(memory_mib: int, mib: int) -> None:
    assert translated_mib(memory_mib) == mib


def test_the_memory_beside_the_guest_holds_the_largest_room_for_translated_code() -> None:
    assert overhead_mib("tcg") - overhead_mib("kvm") == translated_mib(1 << 20)


def test_an_instance_id_that_is_no_uuid_still_gives_the_same_uuid_each_time() -> None:
    assert system_uuid("i-0a1b") == system_uuid("i-0a1b") != system_uuid("i-0a1c")
    assert system_uuid(MACHINE.instance_id) == UUID(MACHINE.instance_id)


def test_the_firmware_shows_the_serial_number_that_it_is_told() -> None:
    serial = "ds=nocloud-net;s=http://169.254.169.254/nocloud/"
    shown = following(argv_of(msgspec.structs.replace(MACHINE, serial=serial)), "-smbios")

    assert shown.split(",")[3:] == [f"serial={serial}", f"uuid={MACHINE.instance_id}"]


def test_a_machine_without_firmware_tables_shows_it_on_the_command_line() -> None:
    microvm = msgspec.structs.replace(MACHINE, machine_type=MachineType.MICROVM)
    seed = "ds=nocloud-net;s=http://169.254.169.254/nocloud/"

    assert following(argv_of(msgspec.structs.replace(microvm, serial=seed)), "-append").split()[-1] == seed
    assert "i-1" not in following(argv_of(msgspec.structs.replace(microvm, serial="i-1")), "-append")


MAKING = msgspec.structs.replace(FILES, template=TemplateFiles(ram=16, channel=17))
FORKING = msgspec.structs.replace(FILES, template=TemplateFiles(ram=16, channel=17, state=18))


def argv_with(files: Files) -> tuple[str, ...]:
    return qemu_argv(MACHINE, files, "tcg", binary="qemu-system-x86_64")


def test_a_fork_is_the_machine_of_its_template_but_for_the_memory_of_its_own_and_its_way_in() -> None:
    made, forked = lines(argv_with(MAKING)).splitlines(), lines(argv_with(FORKING)).splitlines()

    assert [line for line in made if line not in forked] == [
        "-action reboot=shutdown,shutdown=poweroff,panic=shutdown",
        "-object memory-backend-file,id=ram,size=128M,mem-path=/proc/self/fd/16,share=on",
    ]
    assert [line for line in forked if line not in made] == [
        "-action reboot=reset,shutdown=pause,panic=pause",
        "-object memory-backend-file,id=ram,size=128M,mem-path=/proc/self/fd/16,share=off",
        "-global migration.announce-rounds=0",
        "-incoming defer",
    ]


def test_a_template_is_the_machine_that_boots_but_for_its_memory_and_the_channel() -> None:
    made, cold = lines(argv_with(MAKING)).splitlines(), lines(argv_with(FILES)).splitlines()

    assert [line.split()[0] for line in cold if line not in made] == ["-action", "-machine"]
    assert [line for line in made if line not in cold] == [
        "-action reboot=shutdown,shutdown=poweroff,panic=shutdown",
        next(line for line in cold if line.startswith("-machine")) + ",memory-backend=ram",
        "-object memory-backend-file,id=ram,size=128M,mem-path=/proc/self/fd/16,share=on",
        "-chardev socket,id=channel,fd=17,server=on,wait=off",
        "-device isa-serial,chardev=channel,index=1",
        "-global migration.x-events=on",
    ]


@pytest.mark.parametrize("files", [MAKING, FORKING])
def test_the_files_of_a_template_are_inherited_too(files: Files) -> None:
    used = re.findall(r"\bfd[=/]([0-9]+)", " ".join(argv_with(files)))
    # The state is named when it is read.
    assert sorted({*map(int, used), 18}) == sorted({*files.numbers(), 18})


def test_a_watchdog_is_a_device_and_what_comes_of_it() -> None:
    machine = msgspec.structs.replace(
        MACHINE, watchdog=Watchdog.I6300ESB, watchdog_action=WatchdogAction.POWEROFF
    )
    plain = qemu_argv(MACHINE, FILES, "tcg", binary="qemu-system-x86_64")
    added = qemu_argv(machine, FILES, "tcg", binary="qemu-system-x86_64")[len(plain) :]
    assert added == ("-device", "i6300esb", "-action", "watchdog=poweroff")


@pytest.mark.parametrize(
    ("source", "order", "has_rom"),
    [
        (BootFrom.NETWORK, "order=nc", True),
        (BootFrom.NETWORK_ONCE, "order=c,once=n", True),
        (BootFrom.DISK, "order=c", False),
    ],
)
def test_what_does_not_boot_its_image_boots_by_its_firmware_and_by_the_rom_of_its_first_nic(
    source: BootFrom, order: str, has_rom: bool
) -> None:
    second = Nic(link="vm5b", bridge="br1", mac="02:00:0a:02:00:05", mtu=1500)
    machine = msgspec.structs.replace(MACHINE, boot_from=source, extra_nics=(second,))
    files = msgspec.structs.replace(FILES, taps=(12, 16))
    argv = qemu_argv(machine, files, "tcg", binary="qemu-system-x86_64")
    assert not {"-kernel", "-initrd", "-append"} & set(argv)
    assert argv[argv.index("-boot") + 1] == order
    assert ["romfile=" in word for word in argv if word.startswith("virtio-net-pci")] == [not has_rom, True]


def with_folders(*some: SharedFolder) -> Machine:
    return msgspec.structs.replace(MACHINE, folders=some)


DATA = SharedFolder("data", Path("/srv/data"), "/data", False, 1000, 1000, (1, 2))
DOCS = SharedFolder("docs", Path("/srv/docs"), "/srv/docs", True, 1000, 1000, (1, 3))
SERVING = msgspec.structs.replace(FILES, folders=(20, 21), shared_ram=22)


def test_folders_are_devices_over_memory_that_is_shared_and_the_guest_is_told_their_places() -> None:
    argv = qemu_argv(with_folders(DATA, DOCS), SERVING, "tcg", binary="qemu-system-x86_64")
    pairs = list(zip(argv, argv[1:], strict=False))
    assert ("-object", "memory-backend-file,id=ram,size=128M,mem-path=/proc/self/fd/22,share=on") in pairs
    assert argv[argv.index("-machine") + 1].endswith(",memory-backend=ram")
    for index, (number, tag) in enumerate(((20, "data"), (21, "docs"))):
        assert ("-chardev", f"socket,id=folder{index},fd={number}") in pairs
        assert ("-device", f"vhost-user-fs-pci,chardev=folder{index},tag={tag}") in pairs
    words = argv[argv.index("-append") + 1].split()
    assert words[2:4] == ["atoll.folder=data:/data", "atoll.folder=docs:/srv/docs:ro"]
    assert {20, 21, 22} < set(SERVING.numbers())


def test_places_that_the_kernel_would_cut_off_are_refused() -> None:
    long = msgspec.structs.replace(DATA, target="/" + "/".join(["x" * 60] * 4))
    check(with_folders(*([long] * 7)))
    with pytest.raises(Conflict, match="do not fit"):
        check(with_folders(*([long] * 8)))
