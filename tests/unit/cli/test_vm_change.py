from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.shared.samples import a_vm

from atoll.api.changes import ChangeVm
from atoll.cli.main import parser_for
from atoll.cli.vm_change import change_request, changes_text
from atoll.cli.vm_policies import parse_volume
from atoll.errors import AtollError, Invalid, Malformed
from atoll.model.hardware import Netboot, Watchdog, WatchdogAction
from atoll.model.vm import ConsoleKind, MachineType, RestartPolicy, Running, VmState
from atoll.model.volume import DiskInterface, FileSystem, VolumeFormat, VolumeSpec, VolumeType

NOW = datetime(2024, 5, 1, 12, tzinfo=UTC)


def request(*argv: str) -> ChangeVm:
    return change_request(parser_for(["vm"]).parse_args(["vm", "change", "web", *argv]), NOW)


@pytest.mark.parametrize(
    ("argv", "change"),
    [
        (["--hostname", "web2"], ChangeVm(name="web2")),
        (["--name", "web2"], ChangeVm(name="web2")),
        (["--memory", "2GiB", "--cpus", "1.5"], ChangeVm(memory_mib=2048, milli_cpus=1500)),
        (["--machine-type", "q35"], ChangeVm(machine_type=MachineType.Q35)),
        (["--console", "vnc"], ChangeVm(console=ConsoleKind.VNC)),
        (["--tag", "a=b", "--tag", "c=", "--untag", "d"], ChangeVm(tags={"a": "b", "c": "", "d": None})),
        (["--owner-user", "ann", "--owner-user", "bob"], ChangeVm(owner_users=("ann", "bob"))),
        (["--owner-group", "ops"], ChangeVm(owner_groups=("ops",))),
        (["--subnet", "dmz"], ChangeVm(subnet="dmz")),
        (["--previous-user-data"], ChangeVm(previous_user_data=True)),
        (["--restart", "always"], ChangeVm(restart=RestartPolicy.ALWAYS)),
        (["--protect"], ChangeVm(protected=True)),
        (["--no-protect"], ChangeVm(protected=False)),
        (["--no-destroy-on-power-down"], ChangeVm(destroy_on_power_down=False)),
        (["--expires", "2h"], ChangeVm(expires_at=NOW + timedelta(hours=2))),
        (["--expires", "never"], ChangeVm(expires_at=None)),
    ],
)
def test_what_is_typed_is_what_is_asked_for_and_nothing_else(argv: list[str], change: ChangeVm):
    assert request(*argv) == change


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "nothing to change is given"),
        (["--memory", "lots"], "is not a size"),
        (["--hostname", "../x"], "name"),
        (["--tag", "a=1", "--untag", "a"], "is set and removed at once"),
        (["--expires", "tomorrow"], "is not a duration"),
        (["--user-data", "f", "--previous-user-data"], "not allowed with"),
        (["--restart", "sometimes"], "there is none of that name"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(argv: list[str], says: str):
    with pytest.raises((Invalid, Malformed), match=says):
        request(*argv)


def test_user_data_is_read_from_its_file(tmp_path):
    (tmp_path / "data").write_bytes(b"\x00\xff")
    assert request("--user-data", str(tmp_path / "data")).user_data == b"\x00\xff"


def test_hardware_is_changed_by_what_was_typed_and_nothing_else():
    assert request("--kernel-options", "") == ChangeVm(kernel_options="")
    typed = request("--watchdog", "i6300esb", "--watchdog-action", "poweroff")
    assert typed == ChangeVm(watchdog=Watchdog.I6300ESB, watchdog_action=WatchdogAction.POWEROFF)
    assert request("--netboot", "always") == ChangeVm(netboot=Netboot.ALWAYS)


def test_a_volume_is_written_as_its_settings():
    text = "size=2GiB,name=data,format=qcow2,fs=ext4,type=persistent,store=fast,interface=nvme"
    assert parse_volume(text) == VolumeSpec(
        2048, "data", VolumeFormat.QCOW2, FileSystem.EXT4, VolumeType.PERSISTENT, "fast", DiskInterface.NVME
    )
    assert parse_volume("size=1GiB") == VolumeSpec(1024)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1GiB", "is not KEY=VALUE"),
        ("name=data", "has no size"),
        ("size=1GiB,size=2GiB", "size is given twice"),
        ("size=1GiB,colour=red", "volume setting 'colour'"),
        ("size=1GiB,fs=ntfs", "fs 'ntfs'"),
        ("size=1GiB,interface=scsi", "interface 'scsi'"),
        ("size=1GiB,name=root", "is the root's own name"),
        ("size=1GiB,type=memory,format=qcow2", "is always raw"),
        ("size=0", "size_mib 0"),
    ],
)
def test_a_volume_that_makes_no_sense_is_refused(text: str, says: str):
    with pytest.raises(AtollError, match=says):
        parse_volume(text)


def changed(**fields) -> list[str]:
    return changes_text(a_vm(), a_vm(**fields))


def test_what_runs_and_what_waits_is_told_apart():
    running = Running(128, 1, MachineType.AUTO, ConsoleKind.SERIAL, ())
    waits = {
        "memory_mib": 256,
        "console": ConsoleKind.VNC,
        "pending": ("memory_mib", "console"),
        "running": running,
    }
    assert changed(**waits, tags={"tier": "front"}) == [
        "web: tags - → tier=front",
        "web: at its next start: memory 128 MiB → 256 MiB",
        "web: at its next start: console serial → vnc",
        "web: runs on as it was until then: atoll vm reboot web",
    ]


def test_what_took_hold_at_once_waits_for_nothing():
    assert changed(memory_mib=256, milli_cpus=500) == [
        "web: cpus 0.25 → 0.5",
        "web: memory 128 MiB → 256 MiB",
    ]


def test_a_name_that_waits_for_the_guest_says_so():
    assert changed(name="db") == [
        "db: name web → db",
        "db: its guest learns its name with its next lease, or when it starts again",
    ]
    down = {"state": VmState.STOPPED}
    assert changes_text(a_vm(**down), a_vm(**down, name="db")) == ["db: name web → db"]


def test_a_change_that_changes_nothing_says_so():
    assert changed() == ["web: is so already"]
