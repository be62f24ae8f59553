"""What a create with a role, or with tokens required, comes to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from atoll.api.hypervisor import CreateVm
from atoll.errors import Conflict, Denied, Invalid
from atoll.hypervisor.vms.creation import Room, needs_tokens, new_instance_id, plan_vm
from atoll.identity.access import Operators
from atoll.identity.roles import RoleCallers
from atoll.model.identity import Identity
from atoll.model.image import DirectBoot, Image
from atoll.model.long_lived import LongLivedCredential
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.node import Capacity
from atoll.model.vm import VM, VmSpec
from atoll.plan.addresses import Given

IMAGE = Image("appliance", ("qemu",), DirectBoot("k", "i"), "d1")
SUBNET = Subnet(id="blue", cidr="10.1.0.0/24", gateway="10.1.0.1")
GIVEN = Given().add_subnet(SUBNET).add_addresses("blue", [Address("10.1.0.5", mac_for("10.1.0.5"))])
CREDENTIAL = LongLivedCredential(
    "-----BEGIN CERTIFICATE-----\nUFVCTElD\n-----END CERTIFICATE-----\n",
    "-----BEGIN PRIVATE KEY-----\nU0VDUkVU\n-----END PRIVATE KEY-----\n",
)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFHWXeBIjLU+QtCAleTNm7W3J35urBGaLDQoZ5h+SCeS ann@home"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(days=30)


def plan(
    identity: Identity,
    *,
    has_roles: bool = True,
    takes_credentials: bool = True,
    ends_at: datetime | None = None,
    may_create: tuple[str, ...] = (),
    **spec: Any,
) -> VM:
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
        takes_credentials=takes_credentials,
    )
    request = CreateVm(VmSpec(name="web", image="appliance", **spec))
    return plan_vm(request, identity, IMAGE, room, now=NOW, instance_id="i-1", credential_ends_at=ends_at)


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


def test_whoever_shows_a_credential_of_the_role_may_give_it_and_the_vm_says_until_when() -> None:
    vm = plan(Identity("ann"), role="web", ends_at=LATER)
    assert (vm.role, vm.role_credential_expires_at) == ("web", LATER)
    assert plan(Identity("root"), role="web").role_credential_expires_at is None


def test_a_credential_that_the_nodes_issuer_does_not_take_is_refused_whoever_brings_it() -> None:
    for identity in (Identity("ann"), Identity("root")):
        with pytest.raises(Conflict, match="takes no credential for a role") as refusal:
            plan(identity, role="web", ends_at=LATER, takes_credentials=False)
        assert (
            refusal.value.hint
            == "leave it out; it takes a certificate with group web, or an operator of the node"
        )
    with pytest.raises(Conflict, match="nobody issues credentials"):
        plan(Identity("ann"), role="web", ends_at=LATER, has_roles=False)


def test_a_credential_without_a_role_is_refused_unseen() -> None:
    with pytest.raises(Invalid, match="role_credential LongLivedCredential\\(…\\): is for a role"):
        CreateVm(VmSpec(name="web", image="appliance"), role_credential=CREDENTIAL)


def test_an_instance_id_begins_as_ec2s_only_where_tokens_are_required() -> None:
    plain, ec2 = VmSpec(name="a", image="b"), VmSpec(name="a", image="b", imdsv2_required=True)

    assert new_instance_id(ec2, IMAGE).startswith("ec2")
    assert UUID(new_instance_id(ec2, IMAGE)) != UUID(new_instance_id(ec2, IMAGE))
    assert sum(new_instance_id(plain, IMAGE).startswith("ec2") for _ in range(50)) < 3


@pytest.mark.parametrize(
    ("image_can", "asked", "required"),
    [
        *((False, None, False), (True, None, True), (False, True, True)),
        *((True, True, True), (True, False, False), (False, False, False)),
    ],
)
def test_tokens_are_required_where_the_image_can_unless_it_is_said_otherwise(
    image_can: bool, asked: bool | None, required: bool
) -> None:
    spec, image = VmSpec("a", "b", imdsv2_required=asked), structs.replace(IMAGE, imdsv2=image_can)

    assert needs_tokens(spec, image) is required
    assert new_instance_id(spec, image).startswith("ec2") >= required
