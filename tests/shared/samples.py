"""A VM and a machine like any other, for tests that care about a few of their fields."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import structs

from atoll.drivers.machine.base import Machine, Nic
from atoll.model.network import mac_for
from atoll.model.vm import VM, MachineType, VmState

IP = "10.1.0.5"


def a_vm(ip: str = IP, **changes: Any) -> VM:
    vm = VM(
        ip=ip,
        mac=mac_for(ip),
        name="web",
        state=VmState.RUNNING,
        driver="sim",
        image="appliance",
        image_digest="00",
        memory_mib=128,
        milli_cpus=250,
        vcpus=1,
        machine_type=MachineType.AUTO,
        subnet="lan",
        owner_users=("ann",),
        owner_groups=(),
        tags={},
        created_at=datetime(2024, 1, 1, tzinfo=UTC),
        instance_id="i",
        ready={},
    )
    return structs.replace(vm, **changes)


def a_machine(**changes: Any) -> Machine:
    machine = Machine(
        ip=IP,
        name="web",
        instance_id="i-1",
        machine_type=MachineType.AUTO,
        memory_mib=128,
        vcpus=1,
        kernel=Path("/none"),
        initrd=Path("/none"),
        cmdline="",
        nic=Nic(link="vm5", bridge="br0", mac="02:00:0a:01:00:05", mtu=1500),
        directory=Path("/state/vms/10.1.0.5"),
        cgroup="atoll/3fa2b1/10.1.0.5",
        uid=60005,
    )
    return structs.replace(machine, **changes)
