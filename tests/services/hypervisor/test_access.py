"""Who may do what: owners, operators, permitted methods, and everybody else."""

from __future__ import annotations

import pytest

from atoll.api import hypervisor as api
from atoll.api.changes import VM_ACKNOWLEDGE, VM_BECOME_PRIMARY_OWNER, VM_CHANGE, ChangeVm
from atoll.api.hypervisor import AddAddress
from atoll.api.observing import AuditQuery
from atoll.api.volumes import VOLUME_DELETE, VOLUME_REORDER, VolumeOrder
from atoll.errors import Denied, NotFound, Unauthenticated
from atoll.identity.roles import RoleCallers
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.vm import VmState


async def read(user, route) -> bytes:
    return b"".join([chunk async for chunk in user.download(route, {"vm": "web"})])


async def join(user) -> None:
    async with user.connect(api.VM_CONSOLE, {"vm": "web"}):
        pass


CHANGES = {
    "vm.start": lambda user: user.begin("web"),
    "vm.stop": lambda user: user.halt("web"),
    "vm.reboot": lambda user: user.reboot("web"),
    "vm.destroy": lambda user: user.destroy("web"),
    "vm.log": lambda user: read(user, api.VM_LOG),
    "vm.user-data": lambda user: read(user, api.VM_USER_DATA),
    "vm.console": join,
    "vm.change": lambda user: user.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(tags={"a": "1"})),
    "vm.become-primary-owner": lambda user: user.call(VM_BECOME_PRIMARY_OWNER, {"vm": "web"}),
    "vm.acknowledge": lambda user: user.call(VM_ACKNOWLEDGE, {"vm": "web"}),
    "volume.delete": lambda user: user.call(VOLUME_DELETE, {"vm": "web", "volume": "data"}),
    "volume.reorder": lambda user: user.call(VOLUME_REORDER, {"vm": "web"}, body=VolumeOrder(())),
}


async def test_the_vm_of_somebody_else_is_shown(ann, bob):
    vm = await ann.create("web")
    assert await bob.show("web") == vm
    assert await bob.list() == (vm,)


@pytest.mark.parametrize("method", CHANGES)
async def test_the_vm_of_somebody_else_is_never_changed_or_read(ann, bob, method: str):
    vm = await ann.create("web", user_data=b"secret")
    with pytest.raises(Denied, match=f"bob may not call {method} on VM web: it belongs to ann") as refusal:
        await CHANGES[method](bob)
    assert refusal.value.exit_status == 5
    assert await ann.show("web") == vm


@pytest.mark.parametrize("method", CHANGES)
async def test_an_operator_may_do_it(ann, oper, method: str):
    await ann.create("web")
    await CHANGES[method](oper)


@pytest.mark.parametrize("method", CHANGES)
async def test_a_certificate_that_permits_the_method_may_do_it(ann, node, method: str):
    await ann.create("web")
    async with node.user("carol", methods=(method,)) as carol:
        await CHANGES[method](carol)


async def test_a_member_of_an_owner_group_may_do_it(ann, node):
    await ann.create("web", owner_groups=("dev",))
    async with node.user("dave", groups=("dev",)) as dave:
        assert (await dave.halt("web")).state is VmState.STOPPED
    async with node.user("erin", groups=("test",)) as erin:
        with pytest.raises(Denied):
            await erin.begin("web")


async def test_an_operator_makes_vms_for_others(oper, bob):
    await oper.create("web", owner_users=("bob",))
    await bob.destroy("web")


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (api.NODE_ADD_SUBNET, Subnet("dmz", "10.8.0.0/24", "10.8.0.1")),
        (api.NODE_ADD_ADDRESS, AddAddress("lan", (Address("10.9.0.99", mac_for("10.9.0.99")),))),
    ],
    ids=["subnet", "address"],
)
async def test_the_node_itself_is_for_operators(ann, oper, node, route, body):
    before = await ann.node()
    with pytest.raises(
        Denied, match=f"ann may not call {route.name}: that is for operators of this node, oper"
    ):
        await ann.call(route, body=body)
    assert await ann.node() == before
    assert await oper.call(route, body=body) != before


async def test_a_subnet_that_names_its_users_is_for_them(ann, bob, oper):
    private = Subnet("private", "10.8.0.0/24", "10.8.0.1", allowed_users=("bob",))
    await oper.call(api.NODE_ADD_SUBNET, body=private)
    await oper.call(
        api.NODE_ADD_ADDRESS, body=AddAddress("private", (Address("10.8.0.5", mac_for("10.8.0.5")),))
    )
    with pytest.raises(Denied, match="ann may not use subnet private"):
        await ann.create("web", subnet="private")
    assert (await bob.create("web", subnet="private")).ip == "10.8.0.5"


async def test_a_vm_in_a_role_creates_vms_only_where_the_configuration_says_so(node):
    async with node.user("ci@role") as vm:
        with pytest.raises(Denied, match="ci@role may not create a VM here") as refusal:
            await vm.create("web")
        assert "role_callers.may_create" in refusal.value.hint
        assert await vm.list() == ()
    denied = await node.audit.read(AuditQuery(user="ci@role"))
    assert [(entry.method, entry.result) for entry in denied] == [("vm.create", "denied")]
    await node.stop()
    node.role_callers = RoleCallers(may_create=("ci",))
    await node.start()
    async with node.user("ci@role") as vm:
        assert (await vm.create("web")).owner_users == ("ci@role",)


async def test_without_a_certificate_only_health_is_told(node, pki, user_of):
    async with user_of(pki.nobody()) as nobody:
        assert (await nobody.call(api.HEALTH)).status == "serving"
        for call in (nobody.list, nobody.node, nobody.create, lambda: nobody.call(api.OPENAPI)):
            with pytest.raises(Unauthenticated, match="needs a client certificate"):
                await call()


async def test_destroying_what_is_not_there_tells_nothing_about_owners(bob):
    await bob.destroy("web")
    with pytest.raises(NotFound):
        await bob.halt("web")
