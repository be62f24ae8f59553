"""Ports of the node that lead to VMs: what is kept of them, and what a relay is told, whatever happens to either."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from atoll.api.changes import VM_CHANGE, ChangeVm
from atoll.api.hypervisor import (
    NODE_ADD_ADDRESS,
    NODE_ADD_SUBNET,
    VM_DESTROY,
    VM_SHOW,
    VM_START,
    VM_STOP,
    AddAddress,
    StopVm,
    Wait,
)
from atoll.api.observing import AUDIT, AuditQuery
from atoll.api.publishing import VM_PUBLISH, VM_PUBLISHED, VM_UNPUBLISH, Publish, Unpublish
from atoll.errors import Conflict, Denied, HostFailure, Invalid
from atoll.hypervisor.publishing import publishing
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.publishing import Publication

PATIENCE_S = 5.0
WEB = {"vm": "web"}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(publishing, "PAUSE_S", 0.005)
    monkeypatch.setattr(publishing, "RETRY_S", 0.01)


@pytest.fixture
async def web(ann):
    return await ann.create("web")


async def publish(client, *ports: int, vm: str = "web"):
    wanted = tuple(Publication(port, 80) for port in ports)
    return await client.call(VM_PUBLISH, {"vm": vm}, body=Publish(wanted))


async def until_carried(node, **wanted: str) -> None:
    """Until the relay has these ports, each leading to this address."""
    until = asyncio.get_running_loop().time() + PATIENCE_S
    expected = {f"0.0.0.0:{port.removeprefix('p')}": ip for port, ip in wanted.items()}
    while {key: entry.ip for key, entry in node.relay.ports.items()} != expected:
        assert asyncio.get_running_loop().time() < until, node.relay.ports
        await asyncio.sleep(0.002)


async def test_a_published_port_is_carried_shown_and_audited(node, ann, oper, web):
    vm = await publish(ann, 8080, 8081)
    assert [one.key for one in vm.published] == ["0.0.0.0:8080", "0.0.0.0:8081"]
    assert await publish(ann, 8081) == vm
    assert (await ann.call(VM_SHOW, WEB)).published == vm.published
    assert [port.problem for port in await ann.call(VM_PUBLISHED, WEB)] == ["", ""]
    await until_carried(node, p8080=web.ip, p8081=web.ip)

    vm = await ann.call(VM_UNPUBLISH, WEB, query=Unpublish(8080))
    assert await ann.call(VM_UNPUBLISH, WEB, query=Unpublish(8080)) == vm
    await until_carried(node, p8081=web.ip)
    noted = [entry async for entry in oper.stream(AUDIT, query=AuditQuery(user="ann"))]
    methods = [entry.method for entry in noted if hasattr(entry, "method")]
    assert {"vm.publish", "vm.unpublish"} <= set(methods)


async def test_others_than_its_owners_neither_publish_nor_see_what_was_carried(bob, web):
    for call in (
        publish(bob, 8080),
        bob.call(VM_UNPUBLISH, WEB, query=Unpublish(8080)),
        bob.call(VM_PUBLISHED, WEB),
    ):
        with pytest.raises(Denied):
            await call


async def test_of_several_ports_all_are_published_or_none(node, ann, web):
    with pytest.raises(Denied, match="users may publish"):
        await publish(ann, 8080, 80)
    assert (await ann.call(VM_SHOW, WEB)).published == ()
    assert node.relay.ports == {}


async def test_operators_publish_any_port_but_the_apis_own(node, oper, web):
    await publish(oper, 80)
    with pytest.raises(Denied, match="the API's own port"):
        await publish(oper, 6976)


async def test_a_port_of_another_vm_is_refused(ann, bob, web):
    await publish(ann, 8080)
    await bob.create("db")
    with pytest.raises(Conflict, match=r"0\.0\.0\.0:8080 is VM web's"):
        await publish(bob, 8080, vm="db")


@pytest.mark.parametrize(
    ("number", "kind", "why"),
    [
        (errno.EADDRINUSE, Conflict, "another program on this node listens there"),
        (errno.EADDRNOTAVAIL, Invalid, "is not an address of this node"),
        (errno.EMFILE, HostFailure, "Too many open files"),
    ],
)
async def test_a_port_that_cannot_be_opened_is_told_with_the_reason_and_leaves_nothing(
    node, ann, web, number, kind, why
):
    def refuse(_):
        raise OSError(number, os.strerror(number))

    node.listen = refuse
    with pytest.raises(kind, match=why):
        await publish(ann, 8080)
    assert (await ann.call(VM_SHOW, WEB)).published == ()


async def test_ports_follow_their_vm_down_up_to_another_address_and_away(node, ann, oper, web):
    await oper.call(NODE_ADD_SUBNET, body=Subnet("lab", "10.8.0.0/24", "10.8.0.1"))
    await oper.call(NODE_ADD_ADDRESS, body=AddAddress("lab", (Address("10.8.0.5", mac_for("10.8.0.5")),)))
    await publish(ann, 8080)
    await ann.call(VM_STOP, WEB, body=StopVm(0))
    await until_carried(node, p8080="")
    moved = await ann.call(VM_CHANGE, WEB, body=ChangeVm(subnet="lab"))
    assert moved.ip != web.ip
    await until_carried(node, p8080="")
    _ = [line async for line in ann.stream(VM_START, WEB, body=Wait("started"))]
    await until_carried(node, p8080=moved.ip)
    await ann.call(VM_DESTROY, WEB)
    assert node.relay.ports == {}


async def test_the_next_agent_puts_right_what_differs_before_it_serves(node, ann, web):
    await publish(ann, 8080)
    await node.stop()
    entry = node.relay.ports.pop("0.0.0.0:8080")
    node.relay.ports["0.0.0.0:9999"] = entry
    await node.start()
    await until_carried(node, p8080=web.ip)


async def test_the_next_agent_ends_a_relay_that_has_nothing_to_carry(node, ann, web):
    ended = []
    end = node.relay.end

    async def note() -> None:
        ended.append(dict(node.relay.ports))
        await end()

    node.relay.end = note
    await node.restart()
    assert ended == [{}]


async def test_a_relay_that_ends_gets_everything_anew(node, ann, web):
    await publish(ann, 8080, 8081)
    node.relay.crash()
    await until_carried(node, p8080=web.ip, p8081=web.ip)


async def test_a_port_that_somebody_took_meanwhile_is_told_of_and_tried_again(node, ann, web):
    await publish(ann, 8080)
    free, taken = node.listen, OSError(errno.EADDRINUSE, "in use")

    def refuse(_):
        raise taken

    node.listen = refuse
    node.relay.crash()
    until = asyncio.get_running_loop().time() + PATIENCE_S
    while "another program" not in (await ann.call(VM_PUBLISHED, WEB))[0].problem:
        assert asyncio.get_running_loop().time() < until
    assert (await ann.call(VM_SHOW, WEB)).state == "running"
    node.listen = free
    await until_carried(node, p8080=web.ip)


async def test_a_relay_that_cannot_be_told_to_drop_a_port_is_ended(node, ann, web):
    await publish(ann, 8080, 8081)

    async def fail(_):
        raise HostFailure("it hangs")

    drop, node.relay.drop = node.relay.drop, fail
    await ann.call(VM_UNPUBLISH, WEB, query=Unpublish(8080))
    node.relay.drop = drop
    await until_carried(node, p8081=web.ip)
