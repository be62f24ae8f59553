"""Both clients against the real server, over TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from atoll.api.async_client import AsyncClient
from atoll.api.client import Client
from atoll.api.route import Done, Unary
from atoll.errors import (
    AtollError,
    Conflict,
    Denied,
    Malformed,
    NotFound,
    TimedOut,
    TooLarge,
    Unauthenticated,
    Unreachable,
)


async def test_a_call_gives_its_result(caller, routes, types):
    assert await caller.call(routes.ECHO, body=types.note("Zoë\n", 3)) == types.note("Zoë\n", 3)
    assert await caller.call(routes.WHO) == "ann"


async def test_a_call_without_a_result_gives_none(caller, routes, service):
    assert await caller.call(routes.REMOVE, {"note": "a b/c?d#e"}) is None
    assert service.heard == ["a b/c?d#e"]


async def test_many_calls_go_over_one_connection(caller, routes, wire):
    for _ in range(3):
        await caller.call(routes.PING)
    assert len(wire._runner.server.connections) == 1


async def test_a_refused_call_leaves_the_connection_good(caller, routes, types, wire):
    with pytest.raises(Malformed, match="times 10"):
        await caller.call(routes.ECHO, body=types.note("x", 10))
    with pytest.raises(Denied):
        await caller.call(routes.REIGN)
    assert await caller.call(routes.PING) == "pong"
    assert len(wire._runner.server.connections) == 1


async def test_an_operator_is_let_in(caller_of, wire, pki, routes):
    async with caller_of([wire.address], pki.user("oper")) as caller:
        assert await caller.call(routes.REIGN) == "oper"


async def test_a_certificate_that_permits_the_method_is_let_in(caller_of, wire, pki, routes):
    async with caller_of([wire.address], pki.user("ann", methods=("node.*",))) as caller:
        assert await caller.call(routes.REIGN) == "ann"


async def test_a_stream_gives_its_items_then_its_result(caller, routes, types):
    lines = await caller.stream(routes.COUNT, query=types.count(3))
    assert lines == [types.tick(1), types.tick(2), types.tick(3), Done(3)]


async def test_many_lines_arrive_whole(caller, routes, types):
    lines = await caller.stream(routes.COUNT, query=types.count(200, how="x3001"))
    assert lines == [*(types.tick(number, "x" * 3001) for number in range(1, 201)), Done(200)]


async def test_one_line_may_be_longer_than_any_buffer(caller, routes, types):
    lines = await caller.stream(routes.COUNT, query=types.count(1, how="x1000000"))
    assert lines == [types.tick(1, "x" * 1_000_000), Done(1)]


async def test_a_refusal_before_the_first_line_is_raised_at_once(caller, routes, types):
    with pytest.raises(Conflict, match="counting: no"):
        await caller.stream(routes.COUNT, query=types.count(3, fail_at=1))


async def test_an_error_in_mid_stream_is_raised_as_what_it_was(caller, routes, types):
    with pytest.raises(Conflict, match="counting: no"):
        await caller.stream(routes.COUNT, query=types.count(3, fail_at=3))
    assert await caller.call(routes.PING) == "pong"


async def test_an_unforeseen_failure_in_mid_stream_tells_no_detail(caller, routes, types):
    with pytest.raises(AtollError) as failure:
        await caller.stream(routes.COUNT, query=types.count(3, fail_at=2, how="break"))
    assert failure.value.code == "internal"
    assert "secret" not in failure.value.brief


@pytest.mark.usefixtures("quick_heartbeat")
async def test_a_silent_stream_is_kept_alive(caller, routes, types):
    lines = await caller.stream(routes.COUNT, query=types.count(2, pause_s=0.2))
    assert lines == [types.tick(1), types.tick(2), Done(2)]


async def test_a_stream_that_breaks_off_is_an_error_not_an_end(caller, routes, types, wire, service):
    reading = asyncio.create_task(caller.stream(routes.COUNT, query=types.count(9, pause_s=0.05)))
    await asyncio.sleep(0.12)
    for connection in list(wire._runner.server.connections):
        connection.transport.abort()
    with pytest.raises(Unreachable):
        await asyncio.wait_for(reading, 5)


async def test_a_download_gives_all_bytes(caller, routes):
    assert await caller.download(routes.BYTES, {"size": "2500000"}) == b"x" * 2_500_000
    assert await caller.call(routes.PING) == "pong"


async def test_a_download_of_nothing_is_refused_with_its_error(caller, routes):
    with pytest.raises(NotFound, match="bytes 0"):
        await caller.download(routes.BYTES, {"size": "0"})


async def test_a_download_that_fails_half_way_does_not_look_whole(caller, routes):
    with pytest.raises(Unreachable):
        await caller.download(routes.BYTES, {"size": "13000"})
    assert await caller.call(routes.PING) == "pong"


async def test_another_address_is_asked_when_the_first_is_dead(caller_of, wire, pki, routes, dead_address):
    async with caller_of([dead_address, wire.address], pki.user("ann")) as caller:
        assert await caller.call(routes.PING) == "pong"
        assert await caller.call(routes.PING) == "pong"


async def test_the_address_that_answered_is_tried_first_from_then_on(
    caller_of, wire, pki, routes, dead_address
):
    async with caller_of([dead_address, wire.address], pki.user("ann")) as caller:
        assert caller.address == dead_address
        await caller.call(routes.PING)
        assert caller.address == wire.address
        await wire.stop()
        with pytest.raises(Unreachable):
            await caller.call(routes.PING)
        assert caller.address == wire.address


async def test_a_renewed_certificate_is_used_from_the_next_call_on(caller_of, wire, pki, routes):
    context = [pki.user("ann")]
    async with caller_of([wire.address], lambda: context[0]) as caller:
        assert [await caller.call(routes.WHO) for _ in range(2)] == ["ann", "ann"]
        assert len(wire._runner.server.connections) == 1
        context[0] = pki.user("bob")
        assert [await caller.call(routes.WHO) for _ in range(2)] == ["bob", "bob"]


async def test_a_stream_goes_on_while_the_certificate_is_renewed(caller_of, wire, pki, routes, types):
    context = [pki.user("ann")]
    async with AsyncClient([wire.address], lambda: context[0]) as client:
        lines = client.stream(routes.COUNT, query=types.count(5, pause_s=0.02))
        first = await anext(lines)
        context[0] = pki.user("bob")
        assert await client.call(routes.WHO) == "bob"
        assert [first, *[line async for line in lines]][-1] == Done(5)


async def test_when_all_are_dead_each_is_named(caller_of, pki, routes, dead_address):
    other = (dead_address[0], dead_address[1])
    async with caller_of([dead_address, other], pki.user("ann")) as caller:
        with pytest.raises(Unreachable) as failure:
            await caller.call(routes.PING)
    assert failure.value.brief.count(f"127.0.0.1:{dead_address[1]}") >= 2
    assert failure.value.exit_status == 7


async def test_a_connection_that_died_meanwhile_is_replaced(caller, routes, types, wire):
    assert await caller.call(routes.PING) == "pong"
    await wire.stop()
    await wire.start()
    assert await caller.call(routes.ECHO, body=types.note("again")) == types.note("again")


async def test_a_service_that_went_away_is_unreachable(caller, routes, wire):
    assert await caller.call(routes.PING) == "pong"
    await wire.stop()
    with pytest.raises(Unreachable):
        await caller.call(routes.PING)


async def test_without_a_certificate_only_the_public_route_answers(caller_of, wire, pki, routes):
    async with caller_of([wire.address], pki.nobody()) as caller:
        assert await caller.call(routes.PING) == "pong"
        with pytest.raises(Unauthenticated, match="needs a client certificate"):
            await caller.call(routes.WHO)


async def test_a_certificate_of_another_ca_is_refused(caller_of, wire, pki, foreign_pki, routes):
    context = pki.nobody()
    context.load_cert_chain(*foreign_pki.user_files("ann"))
    async with caller_of([wire.address], context) as caller:
        with pytest.raises((Unauthenticated, Unreachable)):
            await caller.call(routes.PING)


async def test_a_server_of_another_ca_is_not_spoken_to(caller_of, wire, foreign_pki, routes, service, types):
    async with caller_of([wire.address], foreign_pki.user("ann")) as caller:
        with pytest.raises(Unauthenticated, match="TLS refused"):
            await caller.call(routes.ECHO, body=types.note("x"))
    assert service.heard == []


async def test_a_body_that_is_too_large_is_refused_as_such(caller, routes, types):
    with pytest.raises(TooLarge, match="at most 100000 bytes"):
        await caller.call(routes.ECHO, body=types.note("x" * 20_000_000))
    assert await caller.call(routes.PING) == "pong"


async def test_no_answer_in_time_is_told(wire, pki, routes, types):
    client = Client([wire.address], pki.user("ann"), timeout_s=0.1)
    slow = types.count(1, pause_s=2)
    with pytest.raises(TimedOut, match="no answer in time"):
        await asyncio.to_thread(lambda: client.call(_as_call(routes.COUNT), query=slow))
    client.close()
    async with AsyncClient([wire.address], pki.user("ann"), timeout_s=0.1) as other:
        with pytest.raises(TimedOut, match="no answer in time"):
            await other.call(_as_call(routes.COUNT), query=slow)


def _as_call(route):
    """The same request, by a caller who expects one reply."""
    return Unary(
        route.name,
        route.verb,
        route.path,
        summary="",
        access=route.access,
        body=route.body,
        query=route.query,
        result=dict,
    )


async def test_a_sync_client_that_leaves_a_stream_can_go_on(wire, pki, routes, types, service):
    def leave_early() -> str:
        with Client([wire.address], pki.user("ann")) as client:
            for line in client.stream(routes.COUNT, query=types.count(1000, pause_s=0.01)):
                assert line == types.tick(1)
                break
            next(client.download(routes.BYTES, {"size": "5000000"}))
            return client.call(routes.PING)

    assert await asyncio.to_thread(leave_early) == "pong"


async def test_a_socket_carries_bytes_both_ways(wire, pki, routes, service):
    async with AsyncClient([wire.address], pki.user("ann")) as client:
        async with client.connect(routes.CHAT, {"room": "lobby"}) as chat:
            await chat.send_bytes(b"hello")
            assert (await chat.receive(5)).data == b"HELLO"
            await chat.send_str("")
            await chat.send_str("text")
            assert (await chat.receive(5)).data == b"TEXT"
        await asyncio.wait_for(service.ended.wait(), 5)


async def test_a_socket_that_is_refused_says_why(wire, pki, routes):
    async with AsyncClient([wire.address], pki.user("ann")) as client:
        with pytest.raises(Conflict, match="room closed") as refusal:
            async with client.connect(routes.CHAT, {"room": "closed"}):
                pass
    assert refusal.value.hint == "try another"


@asynccontextmanager
async def answering_once_each(pki, *statuses: int) -> AsyncIterator[tuple[str, int]]:
    """The address of a service that gives these answers, one a connection, and is gone with the last of them."""
    left = list(statuses)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        status = left.pop(0)
        if not left:
            service.close()
        writer.write(f"HTTP/1.1 {status} No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    service = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=pki.server())
    yield service.sockets[0].getsockname()


@pytest.mark.parametrize(("statuses", "error"), [((409,), Unreachable), ((409, 400), Conflict)])
async def test_a_socket_whose_refusal_cannot_be_explained_any_more_is_an_error_of_ours(
    pki, routes, statuses: tuple[int, ...], error: type[AtollError]
):
    async with (
        answering_once_each(pki, *statuses) as address,
        AsyncClient([address], pki.user("ann")) as client,
    ):
        with pytest.raises(error):
            async with client.connect(routes.CHAT, {"room": "lobby"}):
                pass


async def test_a_socket_goes_to_the_address_that_answers(wire, pki, routes, dead_address):
    async with (
        AsyncClient([dead_address, wire.address], pki.user("ann")) as client,
        client.connect(routes.CHAT, {"room": "lobby"}) as chat,
    ):
        await chat.send_bytes(b"x")
        assert (await chat.receive(5)).data == b"X"


async def test_a_socket_to_nowhere_is_unreachable(pki, routes, dead_address):
    async with AsyncClient([dead_address], pki.user("ann")) as client:
        with pytest.raises(Unreachable):
            async with client.connect(routes.CHAT, {"room": "lobby"}):
                pass


async def test_a_socket_whose_service_fails_is_closed_without_detail(wire, pki, routes):
    async with (
        AsyncClient([wire.address], pki.user("ann")) as client,
        client.connect(routes.CHAT, {"room": "lobby"}) as chat,
    ):
        await chat.send_bytes(b"break")
        message = await chat.receive(5)
    assert message.data == 1011
    assert "unforeseen" in message.extra
    assert "secret" not in message.extra
