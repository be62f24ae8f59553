"""Requests that a page of another site has the browser of an operator send: no route acts, and no socket opens."""

from __future__ import annotations

import aiohttp
import pytest

from atoll.api.hypervisor import ROUTES
from atoll.api.route import Socket

FOREIGN = {
    "a script elsewhere": {"Origin": "https://elsewhere.example"},
    "a page without an address": {"Origin": "null"},
    "an image or a link elsewhere": {"Sec-Fetch-Site": "cross-site"},
    "a neighbouring site": {"Sec-Fetch-Site": "same-site"},
}
FORMS = {
    "an empty form": {"Content-Type": "application/x-www-form-urlencoded"},
    "a form with files": {"Content-Type": "multipart/form-data; boundary=x"},
    "a form of text": {"Content-Type": "text/plain"},
}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}
PLACES = {"vm": "web", "volume": "data", "ip": "10.9.0.9", "subnet": "lan"}


def headers_of(route, headers: dict[str, str]) -> dict[str, str]:
    return headers | (UPGRADE if isinstance(route, Socket) else {})


@pytest.fixture
async def session(node):
    connector = aiohttp.TCPConnector(ssl=node.pki.user("oper"))
    async with aiohttp.ClientSession(f"https://127.0.0.1:{node.port}", connector=connector) as session:
        yield session


def state_of(node) -> tuple[object, ...]:
    return node.service.node(), node.service.vms.list()


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
async def test_no_route_acts_for_another_site(node, ann, session, headers: dict[str, str]) -> None:
    await ann.create("web")
    before = state_of(node)
    for route in ROUTES:
        async with session.request(
            route.verb, route.url(PLACES), headers=headers_of(route, headers)
        ) as response:
            found = await response.json(content_type=None)
            assert (response.status, found["code"]) == (403, "denied"), route.name
    assert state_of(node) == before


@pytest.mark.parametrize("headers", FORMS.values(), ids=FORMS)
async def test_no_route_that_changes_something_takes_a_form(
    node, ann, session, headers: dict[str, str]
) -> None:
    await ann.create("web")
    before = state_of(node)
    for route in (route for route in ROUTES if route.verb != "GET"):
        for body in (b"", b"a=b"):
            async with session.request(route.verb, route.url(PLACES), data=body, headers=headers) as response:
                found = await response.json(content_type=None)
                assert (response.status, found["code"]) == (400, "malformed"), route.name
    assert state_of(node) == before


async def test_what_changes_something_is_no_get(node) -> None:
    """A link or an image of another site can send one, and older browsers do not say so."""
    reads = {route.name.partition(".")[2] for route in ROUTES if route.verb == "GET"}
    sockets = {"console", "vnc", "exec", "forward"}
    others = {"show", "list", "log", "user-data", "metrics", "utilisation", "query", "history", "published"}
    assert reads <= sockets | others


@pytest.mark.parametrize("path", ["/v1/vms/web/console", "/v1/vms/web/exec"])
@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
async def test_no_socket_opens_for_another_site(ann, session, headers: dict[str, str], path: str) -> None:
    await ann.create("web")
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        await session.ws_connect(path, headers=headers)
    assert refusal.value.status == 403
    async with session.ws_connect(path) as socket:
        assert not socket.closed
