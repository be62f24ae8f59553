"""What a create with a role, or with tokens required, comes to."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from atoll.api.hypervisor import CreateVm
from atoll.errors import Conflict, Denied
from atoll.hypervisor.vms.creation import Room, new_instance_id, plan_vm
from atoll.identity.access import Operators
from atoll.identity.roles import RoleCallers
from atoll.model.identity import Identity
from atoll.model.image import DirectBoot, Image
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.node import Capacity
from atoll.model.vm import VM, VmSpec
from atoll.plan.addresses import Given

IMAGE = Image("appliance", ("qemu",), DirectBoot("k", "i"), "d1")
SUBNET = Subnet(id="blue", cidr="10.1.0.0/24", gateway="10.1.0.1")
GIVEN = Given().add_subnet(SUBNET).add_addresses("blue", [Address("10.1.0.5", mac_for("10.1.0.5"))])
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFHWXeBIjLU+QtCAleTNm7W3J35urBGaLDQoZ5h+SCeS ann@home"


def plan(identity: Identity, *, has_roles: bool = True, may_create: tuple[str, ...] = (), **spec: Any) -> VM:
    room = Room(
        node="n1",
        operators=Operators(users=("root",)),
        total=Capacity(2000, 4096, 4096),
        vms=(),
        given=GIVEN,
        held=(),
        freed={},
        has_roles=has_roles,
        role_callers=RoleCallers(may_create=may_create),
    )
    request = CreateVm(VmSpec(name="web", image="appliance", **spec))
    return plan_vm(request, identity, IMAGE, room, now=datetime(2026, 1, 1, tzinfo=UTC), instance_id="i-1")


def test_what_was_asked_for_can_be_read_back() -> None:
    vm = plan(Identity("ann", frozenset({"web"})), role="web", ssh_keys=(KEY,), imdsv2_required=True)

    assert (vm.role, vm.ssh_keys, vm.imdsv2_required) == ("web", (KEY,), True)
    plain = plan(Identity("ann"))
    assert (plain.role, plain.ssh_keys, plain.imdsv2_required) == (None, (), False)


def test_a_role_that_is_not_the_callers_to_give_is_refused() -> None:
    with pytest.raises(Denied):
        plan(Identity("ann", frozenset({"db"})), role="web")


def test_a_role_that_nobody_would_issue_credentials_for_is_refused() -> None:
    with pytest.raises(Conflict, match="nobody issues credentials"):
        plan(Identity("root"), has_roles=False, role="web")
    assert plan(Identity("root"), has_roles=False).role is None


def test_a_vm_in_a_role_makes_no_other_vm_unless_the_node_says_so() -> None:
    with pytest.raises(Denied, match="web@role may not create a VM here"):
        plan(Identity("web@role"))
    assert plan(Identity("web@role"), may_create=("web",)).owner_users == ("web@role",)


def test_an_instance_id_begins_as_ec2s_only_where_tokens_are_required() -> None:
    plain, ec2 = VmSpec(name="a", image="b"), VmSpec(name="a", image="b", imdsv2_required=True)

    assert new_instance_id(ec2).startswith("ec2")
    assert UUID(new_instance_id(ec2)) != UUID(new_instance_id(ec2))
    assert sum(new_instance_id(plain).startswith("ec2") for _ in range(50)) < 3
