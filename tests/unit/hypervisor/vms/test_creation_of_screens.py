"""What a create with a screen comes to."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from atoll.api.hypervisor import CreateVm
from atoll.errors import Conflict
from atoll.hypervisor.vms.creation import Room, plan_vm
from atoll.identity.access import Operators
from atoll.model.identity import Identity
from atoll.model.image import DirectBoot, Image
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.node import Capacity
from atoll.model.vm import VM, ConsoleKind, VmSpec
from atoll.plan.addresses import Given

IMAGE = Image("appliance", ("qemu", "lxc"), DirectBoot("k", "i"), "d1")
SUBNET = Subnet(id="blue", cidr="10.1.0.0/24", gateway="10.1.0.1")
ROOM = Room(
    node="n1",
    operators=Operators(),
    total=Capacity(2000, 4096, 4096),
    vms=(),
    given=Given().add_subnet(SUBNET).add_addresses("blue", [Address("10.1.0.5", mac_for("10.1.0.5"))]),
    held=(),
    freed={},
    screen_kinds=frozenset({"qemu"}),
)


def plan(driver: str, console: ConsoleKind) -> VM:
    request = CreateVm(VmSpec(name="web", image="appliance", driver=driver, console=console))
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return plan_vm(request, Identity("ann"), IMAGE, ROOM, now=now, instance_id="i-1")


@pytest.mark.parametrize("console", list(ConsoleKind))
def test_what_was_asked_for_can_be_read_back(console: ConsoleKind):
    assert plan("qemu", console).console is console


def test_a_kind_that_has_no_screen_is_refused_one_and_told_who_has():
    with pytest.raises(Conflict, match="machines of kind lxc have no screen") as refusal:
        plan("lxc", ConsoleKind.VNC)
    assert "qemu" in refusal.value.hint


def test_a_kind_that_has_no_screen_has_the_other_consoles():
    assert plan("lxc", ConsoleKind.SERIAL).console is ConsoleKind.SERIAL
