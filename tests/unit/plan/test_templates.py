from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll.model.hardware import Netboot, Watchdog
from atoll.model.image import DirectBoot, Image
from atoll.model.vm import VM, ConsoleKind, MachineType, VmNic, VmState
from atoll.model.volume import Volume, VolumeFormat
from atoll.plan.templates import (
    Kept,
    Patience,
    can_fork,
    doubted,
    has_room,
    key_of,
    spec_of,
    to_drop,
    to_load,
    to_unload,
)
from samples import a_vm

IMAGE = Image("appliance", ("qemu",), DirectBoot("kernel", "initrd"), digest="d1", forkable=True)
VM1 = a_vm(
    mac="02:00:0a:01:00:05",
    state=VmState.STARTING,
    driver="qemu",
    image_digest="d1",
    instance_id="i-1",
    volumes=(Volume(VolumeFormat.MEMORY, 0),),
)
BASIS = {"qemu": "7.2", "kernel": "6.18"}


def test_a_vm_of_an_image_that_can_wait_can_be_forked() -> None:
    assert can_fork(IMAGE, VM1)


@pytest.mark.parametrize(
    ("image", "vm"),
    [
        (replace(IMAGE, forkable=False), VM1),
        (replace(IMAGE, digest="d2"), VM1),
        (IMAGE, replace(VM1, volumes=(*VM1.volumes, Volume(VolumeFormat.RAW, 10, name="data")))),
        (IMAGE, replace(VM1, console=ConsoleKind.VNC)),
        (IMAGE, replace(VM1, kernel_options="quiet")),
        (IMAGE, replace(VM1, watchdog=Watchdog.I6300ESB)),
        (IMAGE, replace(VM1, netboot=Netboot.ALWAYS)),
        (IMAGE, replace(VM1, nics=(VmNic("10.2.0.5", "02:00:0a:02:00:05", "storage"),))),
    ],
)
def test_an_image_that_cannot_wait_or_was_replaced_and_more_devices_rule_a_fork_out(
    image: Image, vm: VM
) -> None:
    assert not can_fork(image, vm)


def test_vms_that_differ_only_in_who_they_are_share_a_template() -> None:
    other = replace(VM1, ip="10.1.0.6", name="db", instance_id="i-2", milli_cpus=40, tags={"a": "b"})

    assert key_of(spec_of(VM1, 1500), BASIS) == key_of(spec_of(other, 1500), BASIS)


def test_the_name_of_an_image_does_not_matter_its_content_does() -> None:
    key = key_of(spec_of(VM1, 1500), BASIS)

    assert key_of(spec_of(replace(VM1, image="copy"), 1500), BASIS) == key
    assert key_of(spec_of(replace(VM1, image_digest="d2"), 1500), BASIS) != key


@pytest.mark.parametrize(
    "vm",
    [
        replace(VM1, memory_mib=256),
        replace(VM1, vcpus=2),
        replace(VM1, machine_type=MachineType.MICROVM),
        replace(VM1, driver="sim"),
    ],
)
def test_another_size_or_kind_of_machine_is_another_template(vm: VM) -> None:
    assert key_of(spec_of(vm, 1500), BASIS) != key_of(spec_of(VM1, 1500), BASIS)


def test_another_host_or_mtu_is_another_template() -> None:
    keys = {
        key_of(spec_of(VM1, 1500), BASIS),
        key_of(spec_of(VM1, 1400), BASIS),
        key_of(spec_of(VM1, 1500), {**BASIS, "qemu": "8.2"}),
    }

    assert len(keys) == 3


def test_what_does_not_work_is_left_alone_for_twice_as_long_each_time_and_never_for_good() -> None:
    patience = Patience(first_s=10, longest_s=60)
    pauses, doubt = [], None
    for _ in range(5):
        doubt = doubted(doubt, 1000.0, patience)
        pauses.append(doubt.until - 1000.0)

    assert pauses == [10, 20, 40, 60, 60]
    assert Patience().pause_s(10_000) == Patience().longest_s


KEPT = [Kept("old", 1, 80, True), Kept("new", 3, 80, True), Kept("middle", 2, 80, False)]


def test_nothing_is_dropped_while_there_is_room() -> None:
    assert to_drop(KEPT, most=3, free_disk_mib=1000, reserve_mib=500) == ()


def test_beyond_the_most_the_least_recently_used_go() -> None:
    assert to_drop(KEPT, most=1, free_disk_mib=1000, reserve_mib=500) == ("old", "middle")


def test_a_full_disk_takes_as_many_as_it_needs() -> None:
    assert to_drop(KEPT, most=3, free_disk_mib=430, reserve_mib=500) == ("old",)
    assert to_drop(KEPT, most=3, free_disk_mib=350, reserve_mib=500) == ("old", "middle")
    assert to_drop(KEPT, most=3, free_disk_mib=0, reserve_mib=500) == ("old", "middle", "new")


def test_short_memory_takes_only_what_is_in_memory() -> None:
    assert to_unload(KEPT, available_mib=499, reserve_mib=500) == ("old",)
    assert to_unload(KEPT, available_mib=0, reserve_mib=500) == ("old", "new")
    assert to_unload(KEPT, available_mib=500, reserve_mib=500) == ()


def test_what_is_not_in_memory_comes_back_when_twice_the_reserve_stays_free() -> None:
    assert to_load(KEPT, available_mib=1080, reserve_mib=500) == ("middle",)
    assert to_load(KEPT, available_mib=1079, reserve_mib=500) == ()


def test_a_template_that_would_be_dropped_at_once_is_not_made() -> None:
    spec = spec_of(VM1, 1500)

    assert has_room(spec, available_mib=1128, free_disk_mib=1128, reserve_mib=500)
    assert not has_room(spec, available_mib=1127, free_disk_mib=5000, reserve_mib=500)
    assert not has_room(spec, available_mib=5000, free_disk_mib=1127, reserve_mib=500)
