from __future__ import annotations

from pathlib import Path

from msgspec import structs

from atoll.drivers.machine.base import Machine, Nic
from atoll.drivers.machine.qemu.argv import Files, display_args, qemu_argv
from samples import a_machine

SERIAL = a_machine(
    kernel=Path("/k"),
    initrd=Path("/i"),
    nic=Nic("at-5", "br0", "02:00:00:00:00:05", 1500),
    directory=Path("/vms/10.1.0.5"),
    cgroup="atoll/10.1.0.5",
    uid=61000,
)
SCREEN = structs.replace(SERIAL, screen=True)


def argv(machine: Machine) -> tuple[str, ...]:
    return qemu_argv(machine, Files(3, 4, (5,), 6, 7, 8), "tcg", binary="qemu")


def test_a_machine_with_a_screen_has_what_one_without_has_and_the_screen():
    extra = display_args(SCREEN)
    assert sorted(argv(SCREEN)) == sorted([*argv(SERIAL), *extra])
    assert {"VGA", "usb-tablet", "graphics=on,i8042=on"} <= set(extra)


def test_a_machine_without_a_screen_has_nothing_of_it():
    assert display_args(SERIAL) == []
    assert not {"-vnc", "VGA"} & set(argv(SERIAL))


def test_the_server_of_a_screen_listens_nowhere():
    words = argv(SCREEN)
    assert words[words.index("-vnc") + 1] == "none"
