"""A guest on a link of which only the servers of its bridge have an end: whether it answers at a port."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
from collections.abc import Iterator

import pytest

from atoll.hypervisor.network import answering
from atoll.hypervisor.network.answering import answers, converses
from atoll.model.network import METADATA_IP
from atoll.system import namespaces
from atoll.system.links import Links
from node_labs import Guest

IP, MAC, SUBNET = "10.70.0.5", "52:54:0a:46:00:05", "10.70.0.0/24"


class Wire:
    """The namespace of the servers, and a guest on the other end."""

    def __init__(self, services: str, guest: Guest) -> None:
        self.services, self.guest = services, guest
        with Links(services) as links:
            links.ensure_veth("eth0", "eth0", guest.namespace, peer_mac=MAC)
            links.add_address("eth0", f"{METADATA_IP}/32")
            links.ensure_route(SUBNET, link="eth0")
        guest.configure(IP)


@pytest.fixture
def wire() -> Iterator[Wire]:
    names = [f"xa{os.getpid()}{secrets.token_hex(2)}{end}" for end in ("services", "guest")]
    try:
        for name in names:
            namespaces.ensure(name)
        yield Wire(names[0], Guest(names[1], MAC))
    finally:
        for name in names:
            namespaces.delete(name)


async def test_a_guest_answers_at_a_port_that_is_open_and_at_no_other(wire: Wire) -> None:
    with wire.guest.listen(80):
        assert await answers(IP, 80, wire.services)
        assert not await answers(IP, 81, wire.services)


async def test_one_that_takes_connections_and_says_nothing_does_not_converse(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "CONVERSE_S", 0.1)
    with wire.guest.listen(80):
        assert not await converses(IP, 80, wire.services)


async def test_one_that_says_something_converses(wire: Wire) -> None:
    with wire.guest.listen(80) as server:

        def serve() -> None:
            connection, (caller, _) = server.accept()
            with connection:
                connection.sendall(caller.encode() if connection.recv(100) else b"")

        serving = threading.Thread(target=serve)
        serving.start()
        assert await converses(IP, 80, wire.services)
        serving.join()


async def test_a_bridge_without_servers_is_no_way_to_a_guest() -> None:
    assert not await answers(IP, 80, "no-such-namespace")


async def test_who_is_cancelled_while_a_socket_is_made_leaves_none(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[socket.socket] = []
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slowly(*arguments: int | str) -> socket.socket:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(5)
        made.append(socket_in(*arguments))
        return made[-1]

    socket_in = namespaces.socket_in
    monkeypatch.setattr(namespaces, "socket_in", slowly)
    asking = asyncio.create_task(answers(IP, 80, wire.services))
    await begun.wait()
    asking.cancel()
    go_on.set()
    await asyncio.wait({asking})
    assert asking.cancelled()
    assert [one.fileno() for one in made] == [-1]
