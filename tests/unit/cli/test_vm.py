from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from atoll.api.hypervisor import Progress as Stage
from atoll.api.route import Done
from atoll.cli.output import Style, render_list, render_one
from atoll.cli.progress import Progress, follow
from atoll.cli.vm_ref import check_ref
from atoll.cli.vm_view import vm_view
from atoll.errors import Invalid, Unreachable
from atoll.model.vm import VM, ConsoleKind, MachineType, Running, SuspendTo, Suspension, VmState
from atoll.model.volume import Kept, KeptUntil

NOW = datetime(2024, 5, 1, 12, 3, tzinfo=UTC)
WEB = msgspec.convert(
    {
        "ip": "10.213.0.5", "mac": "52:54:0a:d5:00:05", "name": "web", "state": "running", "driver": "qemu",
        "image": "appliance", "image_digest": "sha256:ab", "memory_mib": 128, "milli_cpus": 250, "vcpus": 1,
        "machine_type": "auto", "subnet": "default", "owner_users": ["admin"], "owner_groups": ["ops"],
        "tags": {"role": "web"}, "created_at": NOW - timedelta(minutes=3), "instance_id": "i-1",
        "ready": {"started": 0.121, "dhcp": 1.5}, "volumes": [{"format": "memory", "size_mib": 64}],
    },
    VM,
)  # fmt: skip


def test_the_table_of_vms():
    assert render_list(vm_view(NOW), [WEB], Style()).splitlines() == [
        "NAME  IP          STATE    OWNERS            IMAGE      CPUS  MEMORY   AGE",
        "web   10.213.0.5  running  admin, group ops  appliance  0.25  128 MiB  3m",
    ]


MANY = [
    msgspec.structs.replace(
        WEB,
        name=f"web-frontend-{number}",
        ip=f"192.168.{number}.200",
        state=state,
        owner_users=("alexandra",),
    )
    for number, state in enumerate(VmState)
]


@pytest.mark.parametrize(
    ("width", "header"),
    [
        (100, "NAME IP STATE OWNERS IMAGE CPUS MEMORY AGE"),
        (80, "NAME IP STATE OWNERS MEMORY AGE"),
        (60, "NAME IP STATE"),
        (20, "NAME"),
    ],
)
def test_a_narrow_terminal_has_the_columns_that_matter_most(width: int, header: str):
    lines = render_list(vm_view(NOW), MANY, Style(width=width)).splitlines()
    assert lines[0].split() == header.split()
    assert max(map(len, lines)) <= width


def test_ordinary_vms_fit_80_columns_whole():
    lines = render_list(vm_view(NOW), [WEB], Style(width=80)).splitlines()
    assert lines[0].split() == ["NAME", "IP", "STATE", "OWNERS", "IMAGE", "CPUS", "MEMORY", "AGE"]


@pytest.mark.parametrize("width", [120, 160, 200])
def test_wide_fits_a_wide_screen(width: int):
    lines = render_list(vm_view(NOW), MANY, Style(format="wide", width=width)).splitlines()
    assert max(map(len, lines)) <= width
    assert "KIND" in lines[0]


@pytest.mark.parametrize("state", VmState)
def test_a_vm_that_is_down_shows_no_readiness(state: VmState):
    vm = msgspec.structs.replace(WEB, state=state)
    fields = dict(line.split(None, 1) for line in render_one(vm_view(NOW), vm, Style()).splitlines())
    is_up = state in (VmState.RUNNING, VmState.STARTING)
    assert fields["ready"] == ("dhcp 1.50s" if is_up else "-")
    assert (fields["stages"] != "-") == is_up


def test_what_waits_for_the_next_start_is_shown_beside_what_runs():
    running = Running(128, 1, MachineType.AUTO, ConsoleKind.SERIAL, ())
    vm = msgspec.structs.replace(WEB, memory_mib=512, pending=("memory_mib", "volumes"), running=running)
    fields = dict(line.split(None, 1) for line in render_one(vm_view(NOW), vm, Style()).splitlines())
    assert fields["at-next-start"] == "memory 128 MiB → 512 MiB, volumes"


def test_a_vm_shows_all_its_fields():
    fields = dict(line.split(None, 1) for line in render_one(vm_view(NOW), WEB, Style()).splitlines())
    assert fields["owners"] == "admin, group ops"
    assert fields["tags"] == "role=web"
    assert fields["stages"] == "started 0.12s, dhcp 1.50s"
    assert fields["volumes"] == "root memory 64 MiB"
    assert (fields["restart"], fields["protected"], fields["expires"]) == ("never", "no", "-")
    assert fields["created"] == "2024-05-01 12:00:00Z"


@pytest.mark.parametrize("state", VmState)
def test_every_state_has_a_colour(state):
    vm = msgspec.structs.replace(WEB, state=state)
    assert f"m{state}\x1b[0m" in render_list(vm_view(NOW), [vm], Style(colour=True))


class File(io.StringIO):
    encoding = "utf-8"


def test_a_stream_is_followed_to_its_vm():
    stream = File()
    lines = iter([Stage("address", 0.01, WEB.ip), Done(WEB)])
    with Progress("web", stream) as progress:
        assert follow(lines, progress) == WEB
    assert stream.getvalue() == "web: address 0.01s\n"


def test_a_stream_without_a_result_is_a_broken_connection():
    with pytest.raises(Unreachable), Progress("web", File()) as progress:
        follow(iter([Stage("address", 0.01, WEB.ip)]), progress)


@pytest.mark.parametrize("ref", ["web", "10.0.0.1", "a-b"])
def test_a_vm_is_named_by_ip_or_name(ref):
    assert check_ref(ref) == ref


@pytest.mark.parametrize("ref", ["", "-x", "../x", "a/b", "a\n", "A", "a" * 64])
def test_other_names_are_refused(ref):
    with pytest.raises(Invalid, match="VM"):
        check_ref(ref)


def test_a_vm_that_is_suspended_says_where_its_memory_is_and_since_when():
    since = NOW - timedelta(minutes=2)
    vm = msgspec.structs.replace(
        WEB, state=VmState.SUSPENDED, suspended=Suspension(SuspendTo.DISK, since, 144)
    )
    shown = render_one(vm_view(NOW), vm, Style())
    assert "to disk since 2024-05-01 12:01:00Z (2m)" in shown
    assert "disk 144 MiB, address 10.213.0.5; reserved: memory 0 MiB, cpus 0" in shown


def test_what_is_kept_of_a_vm_is_one_line():
    kept = (Kept("root", KeptUntil.STOP), Kept("data", KeptUntil.DESTROY), Kept("tmp", KeptUntil.STOP))
    shown = render_one(vm_view(NOW), msgspec.structs.replace(WEB, kept=kept), Style())
    assert "root: memory, lost at stop; data: kept until destroy; tmp: memory, lost at stop" in shown
