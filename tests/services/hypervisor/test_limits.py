"""Certificates with a limit: what is not in it is denied, on every route and by every way in."""

from __future__ import annotations

import re
import ssl
from typing import Any

import aiohttp
import aiohttp.web
import pytest

from atoll.api import hypervisor as api
from atoll.api.access import Access
from atoll.api.hypervisor import Attach, Since
from atoll.api.observing import AuditQuery
from atoll.api.route import Route
from atoll.errors import Denied

GUARDED = [route for route in api.ROUTES if route.access is not Access.PUBLIC]


def url(node: Any, route: Route[Any, Any]) -> str:
    known = {"vm": "web", "ip": "10.9.0.5", "volume": "data", "subnet": "lan"}
    path = re.sub(r"{(\w+)}", lambda found: known.get(found[1], "x"), route.path)
    return f"https://127.0.0.1:{node.port}{path}"


@pytest.fixture
def reader(pki: Any) -> ssl.SSLContext:
    """An operator's certificate that grants all, of the user who owns the VM, and is for reading alone."""
    context: ssl.SSLContext = pki.user("oper", methods=("*",), limit=("vm.list", "vm.show"))
    return context


@pytest.mark.parametrize("route", GUARDED, ids=lambda route: route.name)
async def test_what_is_not_in_the_limit_is_denied_on_every_route(node, oper, reader, route):
    await oper.create("web")
    before = await oper.list()
    async with (
        aiohttp.ClientSession() as session,
        session.request(route.verb, url(node, route), ssl=reader) as response,
    ):
        if route.name in ("vm.list", "vm.show"):
            assert response.status == 200
            return
        said = await response.json()
    assert (response.status, said["code"]) == (403, "denied")
    assert said["brief"] == (
        f"oper may not call {route.name}: the certificate is limited to vm.list, vm.show"
    )
    assert f"--limit 'vm.list vm.show {route.name}'" in said["hint"]
    assert await oper.list() == before


async def test_a_limit_does_not_widen_what_its_holder_may(node, ann, pki):
    await ann.create("web")
    async with node.user("bob", limit=("vm.*",)) as bob:
        with pytest.raises(Denied, match="it belongs to ann"):
            await bob.destroy("web")
        assert (await bob.create("his")).owner_users == ("bob",)
        await bob.destroy("his")
        with pytest.raises(Denied, match=r"node\.show"):
            await bob.node()


async def test_streams_and_consoles_open_within_the_limit_only(node, ann):
    await ann.create("web")
    async with node.user("ann", limit=("vm.console", "event.*")) as script:
        async with script.connect(api.VM_CONSOLE, {"vm": "web"}, query=Attach()) as console:
            assert not console.closed
        assert [event async for event in script.stream(api.EVENTS, query=Since(follow=False))]
        with pytest.raises(Denied, match=r"vm\.vnc"):
            async with script.connect(api.VM_VNC, {"vm": "web"}):
                pass
        with pytest.raises(Denied, match=r"vm\.log"):
            async with script.download_part(api.VM_LOG, {"vm": "web"}):
                pass


async def test_a_denial_by_limit_is_in_the_audit_log(node, reader):
    async with aiohttp.ClientSession() as session:
        await session.post(f"https://127.0.0.1:{node.port}/v1/node/drain", ssl=reader)
    (entry,) = await node.audit.read(AuditQuery(user="oper", method="node.drain"))
    assert entry.result == "denied"


async def test_an_agent_that_does_not_know_limits_refuses_such_certificates(node, pki, reader):
    """Which is what the extension is critical for: an older agent has a context without our flag."""
    context = pki.server()
    context.verify_flags &= ~ssl.VerifyFlags(0x10)

    async def nothing(request: aiohttp.web.Request) -> aiohttp.web.Response:
        return aiohttp.web.Response()

    server = aiohttp.web.Server(nothing)
    runner = aiohttp.web.ServerRunner(server)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        where = f"https://127.0.0.1:{runner.addresses[0][1]}/"
        async with aiohttp.ClientSession() as session:
            async with session.get(where, ssl=pki.user("oper")) as response:
                assert response.status == 200
            with pytest.raises(aiohttp.ClientError):
                await session.get(where, ssl=reader)
    finally:
        await runner.cleanup()
