"""The server as any HTTP client meets it: statuses, headers, bodies that are not what they should be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from atoll.api import server
from atoll.errors import Unauthenticated

pytestmark = pytest.mark.usefixtures("quick_heartbeat")


async def problem(response: aiohttp.ClientResponse) -> dict:
    assert response.content_type == "application/problem+json"
    found = await response.json(content_type=None)
    assert set(found) == {"code", "brief", "hint", "details"}
    return found


async def post(wire, data: object, **more) -> tuple[int, dict]:
    more.setdefault("headers", {"Content-Type": "application/json"})
    async with wire.raw() as session, session.post("/echo", data=data, **more) as response:
        return response.status, await problem(response)


@pytest.mark.parametrize(
    ("body", "brief"),
    [
        (b"", "text: is missing"),
        (b'{"text":"a', "request body: not JSON"),
        (b"text=a", "request body: not JSON"),
        (b"\x00\xff", "request body: not JSON"),
        (b"[]", "request body: expected `object`, got `array`"),
        (b'{"text":7}', "text 7: expected `str`, got `int`"),
        (b'{"text":"a","times":10}', "times 10: expected `int` <= 9"),
        (b'{"text":"a","colour":"red"}', "colour 'red': there is no such field"),
        (b'{"text":' + b"[" * 50_000, "text: expected `str`, got `array`"),
    ],
)
async def test_a_body_that_is_not_what_it_should_be_is_refused(wire, service, body: bytes, brief: str):
    status, found = await post(wire, body)
    assert (status, found["code"]) == (400, "malformed")
    assert found["brief"].startswith(brief)
    assert found["hint"]
    assert service.heard == []


async def test_a_large_body_is_refused_whether_its_size_is_said_or_not(wire, service):
    large = b'{"text":"' + b"x" * 200_000 + b'"}'

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 10_000):
            yield large[start : start + 10_000]

    for data in (large, pieces()):
        status, found = await post(wire, data)
        assert (status, found["code"]) == (413, "too_large")
        assert "must be at most 100000 bytes" in found["brief"]
    assert service.heard == []


async def test_a_client_that_does_not_finish_its_body_harms_nobody(wire, service):
    reader, writer = await wire.bare()
    writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    async with wire.raw() as session, session.get("/ping") as response:
        assert response.status == 200
    assert service.heard == []
    assert await reader.read() == b""


async def test_what_is_not_http_is_answered_and_dropped(wire):
    reader, writer = await wire.bare()
    writer.write(b"\x16\x03\x01 hello\r\n\r\n")
    assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.0 400")
    writer.close()


async def test_another_verb_is_told_which_ones_there_are(wire):
    async with wire.raw() as session, session.put("/echo", data=b"{}") as response:
        assert response.status == 405
        assert response.headers["Allow"] == "POST"
        assert "this path takes POST" in (await problem(response))["hint"]


@pytest.mark.parametrize("path", ["/", "/echo/", "/ech", "/notes/", "/notes/a/b", "/%00", "/a%0Ab"])
async def test_an_unknown_path_is_not_found(wire, path: str):
    async with wire.raw() as session, session.get(path) as response:
        assert response.status == 404
        assert (await problem(response))["code"] == "not_found"


async def test_a_body_or_a_query_where_none_is_taken_is_refused(wire):
    async with wire.raw() as session:
        async with session.delete("/notes/a", data=b"{}") as response:
            assert response.status == 400
        async with session.get("/who?verbose=1") as response:
            assert response.status == 400
            assert "query 'verbose'" in (await problem(response))["brief"]


async def test_a_call_without_a_result_has_no_body(wire):
    async with wire.raw() as session, session.delete("/notes/a") as response:
        assert (response.status, await response.read()) == (204, b"")


@pytest.mark.parametrize(
    "failure", [RuntimeError("secret"), ConnectionResetError("secret"), TimeoutError("secret")]
)
async def test_an_unforeseen_failure_is_a_problem_without_details(wire, service, caplog, failure: Exception):
    service.failure = failure
    async with wire.raw() as session, session.get("/break") as response:
        assert response.status == 500
        text = json.dumps(await problem(response))
    assert "node.break: unforeseen failure" in text
    assert "secret" not in text
    assert "node.break failed" in caplog.text


async def test_a_stream_is_lines_with_blank_ones_while_nothing_happens(wire):
    async with wire.raw() as session, session.get("/count?to=2&pause_s=0.1") as response:
        assert response.status == 200
        assert response.content_type == "application/jsonl"
        lines = (await response.read()).split(b"\n")
    assert [json.loads(line) for line in lines if line] == [
        {"item": {"number": 1, "padding": ""}},
        {"item": {"number": 2, "padding": ""}},
        {"result": 2},
    ]
    assert lines.count(b"") >= 4


async def of_json(wire, path: str, accept: str = "application/json") -> tuple[int, str, object]:
    headers = {"Accept": accept}
    async with wire.raw() as session, session.get(path, headers=headers) as response:
        return response.status, response.content_type, await response.json(content_type=None)


@pytest.mark.parametrize("accept", ["application/json", "Application/JSON;q=0.9, text/plain, */*"])
async def test_who_takes_json_and_knows_no_lines_gets_the_result_alone(wire, accept: str):
    assert await of_json(wire, "/count?to=2&pause_s=0.03", accept) == (200, "application/json", 2)


@pytest.mark.parametrize("accept", ["application/json, application/jsonl", "application/jsonl", "*/*"])
async def test_who_takes_lines_or_anything_gets_lines(wire, accept: str):
    async with wire.raw() as session, session.get("/count?to=1", headers={"Accept": accept}) as response:
        assert response.content_type == "application/jsonl"


async def test_where_the_result_alone_is_asked_for_a_late_error_is_a_status_too(wire):
    status, kind, found = await of_json(wire, "/count?to=3&fail_at=2")
    assert (status, kind, found["code"]) == (409, "application/problem+json", "conflict")


async def test_who_asked_for_the_result_and_goes_away_ends_what_feeds_it(wire, service):
    async with wire.raw() as session:
        with pytest.raises(asyncio.TimeoutError):
            await session.get(
                "/count?to=1&pause_s=9",
                headers={"Accept": "application/json"},
                timeout=aiohttp.ClientTimeout(total=0.1),
            )
    async with asyncio.timeout(5):
        await service.ended.wait()


async def test_a_refusal_before_the_first_line_is_a_status(wire):
    async with wire.raw() as session, session.get("/count?to=2&fail_at=1") as response:
        assert response.status == 409
        assert (await problem(response))["brief"] == "counting: no"


async def test_an_error_in_mid_stream_is_the_last_line(wire):
    async with wire.raw() as session, session.get("/count?to=2&fail_at=2") as response:
        assert response.status == 200
        last = json.loads((await response.read()).splitlines()[-1])
    assert last["error"]["code"] == "conflict"


async def test_a_stream_that_is_silent_from_the_start_has_its_status_all_the_same(wire):
    async with wire.raw() as session, asyncio.timeout(2), session.get("/count?to=1&pause_s=30") as response:
        assert response.status == 200
        assert await response.content.readline() == b"\n"


@pytest.mark.parametrize("pause_s", ["0.001", "30"], ids=["between lines", "while it waits"])
async def test_a_client_that_goes_away_ends_what_feeds_its_stream(wire, service, pause_s: str):
    async with wire.raw() as session:
        async with session.get(f"/count?to=1000000&pause_s={pause_s}") as response:
            await response.content.readline()
            response.close()
        await asyncio.wait_for(service.ended.wait(), 5)


async def test_a_client_that_goes_away_ends_its_download(wire, service):
    async with wire.raw() as session:
        async with session.get("/bytes/500000000") as response:
            await response.content.read(10)
            response.close()
        await asyncio.wait_for(service.ended.wait(), 5)


async def test_a_client_that_goes_away_ends_its_socket(wire, service):
    async with wire.raw() as session:
        socket = await session.ws_connect("/chat/lobby")
        await socket.send_bytes(b"x")
        await socket.receive()
        await socket.close()
    await asyncio.wait_for(service.ended.wait(), 5)


async def test_clients_that_go_away_leave_no_complaint_in_the_log(wire, service, caplog):
    for path in ("/count?to=1000&pause_s=0.001", "/bytes/500000000"):
        service.ended.clear()
        async with wire.raw() as session, session.get(path) as response:
            await response.content.read(10)
            response.close()
        await asyncio.wait_for(service.ended.wait(), 5)
    await asyncio.sleep(0.05)
    assert [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")] == []


UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "


@pytest.mark.parametrize("path", ["/bytes/5000", "/chat/lobby"])
async def test_who_goes_away_before_the_answer_begins_leaves_no_complaint_in_the_log(
    wire, service, caplog, path: str
):
    service.may_begin.clear()
    _, writer = await wire.bare()
    writer.write(f"GET {path} HTTP/1.1\r\nHost: m\r\n{UPGRADE}{'A' * 22}==\r\n\r\n".encode())
    async with asyncio.timeout(5):
        while not wire.gate.opened:
            await asyncio.sleep(0.01)
        writer.transport.abort()
        await asyncio.sleep(0.1)
        service.may_begin.set()
        while not wire.gate.opened[0].cancelled():
            await asyncio.sleep(0.01)
    assert caplog.records == []


async def test_who_goes_away_just_as_a_socket_is_answered_leaves_no_complaint_in_the_log(
    wire, caplog, monkeypatch
):
    can_prepare = web.WebSocketResponse.can_prepare

    def gone_by_now(socket, request):
        request.transport.abort()
        return can_prepare(socket, request)

    monkeypatch.setattr(web.WebSocketResponse, "can_prepare", gone_by_now)
    reader, writer = await wire.bare()
    writer.write(f"GET /chat/lobby HTTP/1.1\r\nHost: m\r\n{UPGRADE}{'A' * 22}==\r\n\r\n".encode())
    async with asyncio.timeout(5):
        assert await ended(reader) == b""
    writer.close()
    assert caplog.records == []


async def ended(reader: asyncio.StreamReader) -> bytes:
    """All that came, and no more will."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.parametrize("key", ["", "x", "A" * 22, "A" * 24, "é", "\x80"])
async def test_a_socket_with_a_key_that_is_none_is_refused(wire, caplog, key: str):
    reader, writer = await wire.bare()
    writer.write(f"GET /chat/lobby HTTP/1.1\r\nHost: m\r\n{UPGRADE}{key}\r\n\r\n".encode("latin-1"))
    async with asyncio.timeout(5):
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
    writer.transport.abort()
    assert caplog.records == []


async def test_a_socket_route_without_an_upgrade_says_what_it_speaks(wire):
    async with wire.raw() as session, session.get("/chat/lobby") as response:
        assert response.status == 400
        assert "speaks WebSocket" in (await problem(response))["brief"]


async def test_a_slow_reader_does_not_hold_up_others(wire):
    async with wire.raw() as session, session.get("/bytes/50000000") as slow:
        await slow.content.read(10)
        async with asyncio.timeout(2), wire.raw() as other, other.get("/ping") as response:
            assert response.status == 200
        slow.close()


async def test_a_body_that_a_web_page_could_send_is_refused(wire, service):
    status, found = await post(wire, b'{"text":"a"}', headers={"Content-Type": "text/plain"})
    assert (status, found["code"]) == (400, "malformed")
    assert "Content-Type 'text/plain'" in found["brief"]


async def test_a_download_that_may_not_go_on_is_cut_off_also_when_nobody_reads_it(wire, service, monkeypatch):
    monkeypatch.setattr(server, "LAST_WORDS_S", 0.1)
    reader, writer = await wire.bare()
    writer.write(b"GET /bytes/100000000 HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readexactly(1000)
    wire.gate.opened[-1].set_result(Unauthenticated("the certificate of ann was revoked"))
    async with asyncio.timeout(5):
        await service.ended.wait()
        with pytest.raises(asyncio.IncompleteReadError):
            await reader.readexactly(100_000_000)
    writer.transport.abort()
