from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from atoll.api.changes import ChangeVm
from atoll.errors import AtollError, Conflict, Denied, Invalid, NoCapacity, NotFound, PoolEmpty
from atoll.hypervisor.vms.changes import differing, plan_change, with_primary
from atoll.hypervisor.vms.creation import Room
from atoll.identity.access import Operators
from atoll.model.hardware import Netboot, Watchdog, WatchdogAction
from atoll.model.identity import Identity
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.node import Capacity
from atoll.model.vm import VM, ConsoleKind, MachineType, RestartPolicy, Running, VmNic, VmState
from atoll.model.volume import Volume, VolumeFormat
from atoll.plan.addresses import Given
from samples import a_vm

NOW = datetime(2024, 1, 1, tzinfo=UTC)
ANN, BOB, OPERATOR = Identity("ann"), Identity("bob"), Identity("oper")
DMZ = Subnet("dmz", "10.2.0.0/24", "10.2.0.1")
PRIVATE = Subnet("private", "10.3.0.0/24", "10.3.0.1", allowed_users=("bob",))
LAN = Subnet("lan", "10.1.0.0/24", "10.1.0.1")


def address(ip: str) -> Address:
    return Address(ip, mac_for(ip))


GIVEN = (
    Given()
    .add_subnet(LAN)
    .add_subnet(DMZ)
    .add_subnet(PRIVATE)
    .add_addresses("lan", [address("10.1.0.5")])
    .add_addresses("dmz", [address("10.2.0.5")])
)


def vm(**changes: Any) -> VM:
    known = a_vm(
        image="tiny",
        owner_groups=("dev",),
        tags={"role": "web", "tier": "1"},
        created_at=NOW,
        volumes=(Volume(VolumeFormat.MEMORY, 0),),
    )
    return structs.replace(known, **changes)


DOWN = vm(state=VmState.STOPPED)


def changed(before: VM, identity: Identity = ANN, others: tuple[VM, ...] = (), **wishes: Any) -> VM:
    room = Room(
        node="n1",
        operators=Operators(users=("oper",)),
        total=Capacity(milli_cpus=4000, memory_mib=1024, disk_mib=0),
        vms=(before, *others),
        given=GIVEN,
        held={(one.subnet, one.ip) for one in (before, *others)},
        freed={},
        cores=2,
        memory_kinds=frozenset({"box"}),
        hardware_kinds=frozenset({"sim"}),
    )
    return plan_change(before, ChangeVm(**wishes), identity, room, NOW)


@pytest.mark.parametrize(
    ("wishes", "field", "value"),
    [
        ({"name": "web2"}, "name", "web2"),
        ({"tags": {"tier": "2", "role": None, "new": "x"}}, "tags", {"tier": "2", "new": "x"}),
        ({"owner_users": ("ann", "bob")}, "owner_users", ("ann", "bob")),
        ({"protected": True}, "protected", True),
        ({"restart": RestartPolicy.ALWAYS}, "restart", RestartPolicy.ALWAYS),
        ({"destroy_on_power_down": True}, "destroy_on_power_down", True),
        ({"expires_at": NOW + timedelta(hours=2)}, "expires_at", NOW + timedelta(hours=2)),
        ({"milli_cpus": 500}, "milli_cpus", 500),
    ],
)
def test_what_a_running_vm_can_take_is_changed_at_once_and_nothing_else_is(
    wishes: dict[str, Any], field: str, value: object
):
    assert differing(vm(), changed(vm(), **wishes)) == {field: value}


def test_nothing_asked_is_nothing_changed():
    assert changed(vm()) == vm()


@pytest.mark.parametrize(
    ("wishes", "field", "value"),
    [
        ({"memory_mib": 256}, "memory_mib", 256),
        ({"memory_mib": 64}, "memory_mib", 64),
        ({"milli_cpus": 2000}, "vcpus", 2),
        ({"machine_type": MachineType.MICROVM}, "machine_type", MachineType.MICROVM),
        ({"console": ConsoleKind.NONE}, "console", ConsoleKind.NONE),
    ],
)
def test_what_a_running_vm_cannot_take_waits_for_its_next_start(
    wishes: dict[str, Any], field: str, value: object
):
    new = changed(vm(), **wishes)
    assert getattr(new, field) == value
    assert new.pending == (field,)
    assert new.running == Running(128, 1, MachineType.AUTO, ConsoleKind.SERIAL, ("root",))
    down = changed(DOWN, **wishes)
    assert getattr(down, field) == value
    assert (down.pending, down.running) == ((), None)


def test_a_change_that_is_taken_back_waits_no_more():
    there = changed(vm(), memory_mib=256)
    back = changed(there, memory_mib=128)
    assert back == vm()


def test_changes_that_wait_add_up():
    both = changed(changed(vm(), memory_mib=256), machine_type=MachineType.Q35)
    assert both.pending == ("memory_mib", "machine_type")
    assert both.running is not None
    assert both.running.memory_mib == 128


def test_a_machine_has_no_more_virtual_cpus_than_the_host():
    assert changed(DOWN, milli_cpus=4000).vcpus == 2


def test_user_data_is_replaced_and_changed_back():
    old = vm(user_data_sha256="aa")
    new = changed(old, user_data=b"two")
    two = hashlib.sha256(b"two").hexdigest()
    assert (new.user_data_sha256, new.previous_user_data_sha256) == (two, "aa")
    back = changed(new, previous_user_data=True)
    assert (back.user_data_sha256, back.previous_user_data_sha256) == ("aa", two)
    assert changed(new, user_data=b"two") == new
    assert changed(new, user_data=b"").user_data_sha256 == ""


def test_a_new_first_subnet_leaves_the_other_interfaces():
    nic = VmNic("10.3.0.5", mac_for("10.3.0.5"), "private")
    new = changed(structs.replace(DOWN, nics=(nic,)), subnet="dmz")
    assert (new.ip, new.nics) == ("10.2.0.5", (nic,))
    with pytest.raises(Conflict, match="has an interface in subnet private already"):
        changed(structs.replace(DOWN, nics=(nic,)), BOB, subnet="private")


def test_a_new_subnet_is_a_new_address():
    new = changed(DOWN, subnet="dmz", tags={"tier": None})
    assert (new.ip, new.mac, new.subnet) == ("10.2.0.5", mac_for("10.2.0.5"), "dmz")
    assert (new.instance_id, new.tags) == ("i", {"role": "web"})
    assert changed(DOWN, subnet="lan") == DOWN


OTHER = vm(ip="10.1.0.6", name="db", instance_id="j", memory_mib=512)


@pytest.mark.parametrize(
    ("error", "says", "before", "wishes"),
    [
        (Conflict, "VM db: there is one of this name", vm(), {"name": "db"}),
        (Conflict, "cannot alter VM web: it is running", vm(), {"subnet": "dmz"}),
        (NotFound, "subnet 'wan'", DOWN, {"subnet": "wan"}),
        (Denied, "ann may not use subnet private", DOWN, {"subnet": "private"}),
        (
            NoCapacity,
            "changing VM web on n1: not enough left: memory 512 MiB of 384 MiB",
            vm(),
            {"memory_mib": 640},
        ),
        (NoCapacity, r"cpus 3.75 of 3.5 free", vm(), {"milli_cpus": 4000}),
        (Denied, "ann may not give VM web away", vm(), {"owner_users": ("bob",), "owner_groups": ()}),
        (Invalid, "must have one", vm(), {"owner_users": (), "owner_groups": ()}),
        (Conflict, "machines of kind sim have no screen", vm(), {"console": ConsoleKind.VNC}),
        (Invalid, "has passed", vm(), {"expires_at": NOW}),
        (Invalid, "restart 'always'", vm(destroy_on_power_down=True), {"restart": RestartPolicy.ALWAYS}),
        (Conflict, "its user data was never changed", vm(), {"previous_user_data": True}),
        (Invalid, "tag '65 tags'", vm(tags={f"t{n}": "" for n in range(64)}), {"tags": {"one-more": ""}}),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    error: type[AtollError], says: str, before: VM, wishes: dict[str, Any]
):
    with pytest.raises(error, match=says):
        changed(before, others=(OTHER,), **wishes)


def test_a_subnet_without_a_free_address_is_refused():
    taken = structs.replace(OTHER, ip="10.2.0.5", subnet="dmz")
    with pytest.raises(PoolEmpty):
        changed(DOWN, others=(taken,), subnet="dmz")


def test_a_member_of_an_owner_group_may_take_all_users_off():
    dave = Identity("dave", groups=frozenset({"dev"}))
    assert changed(vm(), dave, owner_users=()).owner_users == ()


def test_an_operator_may_give_a_vm_to_anybody():
    assert changed(vm(), OPERATOR, owner_users=("bob",), owner_groups=()).owner_users == ("bob",)


def test_a_node_that_is_too_full_still_lets_a_vm_shrink():
    full = structs.replace(OTHER, memory_mib=4096)
    assert changed(DOWN, others=(full,), memory_mib=64).memory_mib == 64


def test_memory_that_a_machine_still_has_is_not_given_to_another():
    shrunk = changed(vm(memory_mib=512), memory_mib=64)
    with pytest.raises(NoCapacity, match="memory 600 MiB of 512 MiB free"):
        changed(structs.replace(OTHER, memory_mib=0), others=(shrunk,), memory_mib=600)


def test_the_primary_owner_comes_first_and_is_there_once():
    assert with_primary(("ann", "bob"), "bob") == ("bob", "ann")
    assert with_primary(("ann",), "oper") == ("oper", "ann")
    with pytest.raises(Conflict, match="there are 64 owners already"):
        with_primary(tuple(f"u{n}" for n in range(64)), "one-more")


def test_where_memory_is_a_limit_it_does_not_wait_for_the_next_start() -> None:
    new = changed(vm(driver="box", memory_mib=128), memory_mib=512, milli_cpus=2000)
    assert (new.memory_mib, new.vcpus, new.pending, new.running) == (512, 2, (), None)


def test_where_memory_is_a_limit_only_the_rest_waits() -> None:
    waiting = changed(vm(driver="box", memory_mib=128), machine_type=MachineType.Q35)
    new = changed(waiting, memory_mib=512)
    assert (new.pending, new.running and new.running.memory_mib) == (("machine_type",), 512)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kernel_options", "quiet"),
        ("watchdog", Watchdog.I6300ESB),
        ("watchdog_action", WatchdogAction.POWEROFF),
        ("netboot", Netboot.ALWAYS),
    ],
)
def test_hardware_of_a_running_vm_waits_for_its_next_start(field: str, value: str) -> None:
    new = changed(vm(), **{field: value})
    assert (getattr(new, field), new.pending) == (value, (field,))
    back = changed(new, **{field: getattr(vm(), field)})
    assert (back.pending, back.running) == ((), None)
    assert changed(DOWN, **{field: value}).pending == ()


def test_a_kind_with_the_hosts_kernel_is_changed_to_have_no_watchdog() -> None:
    with pytest.raises(Conflict, match="have the kernel of their host"):
        changed(vm(driver="box"), watchdog=Watchdog.I6300ESB)


def test_a_vm_with_a_watchdog_does_not_become_a_microvm() -> None:
    with pytest.raises(Invalid, match="microvm has no place for one"):
        changed(vm(watchdog=Watchdog.I6300ESB), machine_type=MachineType.MICROVM)
