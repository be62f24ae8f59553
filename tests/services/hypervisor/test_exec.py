"""Commands in guests, over the wire: simulated guests run a few."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import WSMsgType

from atoll.api.client import Client
from atoll.api.codec import decoder, encode
from atoll.api.hands import STDIN, VM_EXEC, WINDOW, Control, Told, frame
from atoll.api.observing import AUDIT, AuditQuery
from atoll.api.reaching import current
from atoll.api.route import Done
from atoll.api.running import Running, run
from atoll.api.running_async import run_async
from atoll.errors import AtollError, Conflict, Denied, Malformed, NotFound, TooLarge, TooMany
from atoll.hypervisor.hands.places import Places
from atoll.model.command import Command, Size

PATIENCE_S = 10


def sh(script: str, **more) -> Command:
    return Command(("/bin/sh", "-c", script), **more)


@pytest.fixture
async def web(ann):
    return await ann.create("web")


@pytest.fixture
async def sync_client(node, ann):
    with Client([("127.0.0.1", node.port)], lambda: current(ann._tls)) as client:
        yield client


async def told(socket) -> Told:
    """The next that is told beside bytes."""
    while (message := await socket.receive(PATIENCE_S)).type is WSMsgType.BINARY:
        pass
    assert message.type is WSMsgType.TEXT, message
    return decoder(Told).decode(message.data)


async def begin(socket, command: Command) -> None:
    await socket.send_str(encode(command).decode())


async def test_streams_are_apart_and_the_status_is_the_commands_own(ann, web):
    done = await run_async(ann, "web", sh("echo out; echo oops >&2; exit 3"))

    assert (done.status, done.stdout, done.stderr, done.timed_out) == (3, b"out\n", b"oops\n", False)
    assert (await run_async(ann, "web", Command(("/bin/none",)))).status == 127
    assert (await run_async(ann, "web", sh("kill -9 $$"))).status == 137


async def test_input_many_times_the_window_comes_back_whole_to_both_clients(ann, web, sync_client):
    content = bytes(range(256)) * (WINDOW * 5 // 256 + 1)

    done = await run_async(ann, "web", Command(("/bin/busybox", "cat")), content)
    again = await asyncio.to_thread(run, sync_client, "web", Command(("/bin/busybox", "cat")), content)

    assert done.stdout == again.stdout == content


async def test_the_light_client_runs_commands_too_and_says_why_one_was_refused(node, web, sync_client):
    done = await asyncio.to_thread(run, sync_client, "web", sh("echo out; echo oops >&2; exit 4"))
    assert (done.status, done.stdout, done.stderr) == (4, b"out\n", b"oops\n")

    with pytest.raises(NotFound, match="none"):
        await asyncio.to_thread(run, sync_client, "none", sh("exit 0"))
    with pytest.raises(TooLarge, match="more than 1000 bytes"):
        await asyncio.to_thread(run, sync_client, "web", sh("yes"), most_bytes=1000)


async def test_a_terminal_has_one_stream_and_the_size_that_it_is_given(ann, web):
    done = await run_async(ann, "web", sh("stty size; echo oops >&2", terminal=Size(33, 99)))

    assert (done.stdout, done.stderr) == (b"33 99\r\noops\r\n", b"")


async def test_a_command_out_of_time_is_ended_and_its_status_is_124(ann, web, node, until):
    done = await run_async(ann, "web", sh("echo begun; sleep 9", timeout_s=0.1))

    assert (done.status, done.stdout, done.timed_out) == (124, b"begun\n", True)
    await until(lambda: not node.driver.commands_of(node.machine(web)))


async def test_a_caller_that_goes_ends_its_command_also_one_that_reads_nothing(ann, web, node, until):
    async with ann.connect(VM_EXEC, {"vm": "web"}) as socket:
        await begin(socket, sh("sleep 9", input=True))
        for _ in range(WINDOW // 1024):
            await socket.send_bytes(frame(STDIN, b"x" * 1024))
        await until(lambda: node.driver.commands_of(node.machine(web)))

    await until(lambda: not node.driver.commands_of(node.machine(web)))


async def test_output_that_nobody_reads_makes_the_guest_wait(node, web, sync_client, until):
    def read_later() -> int:
        with Running(sync_client, "web", sh("yes")) as running:
            running.step()
            return 0

    await asyncio.to_thread(read_later)
    await until(lambda: not node.driver.commands_of(node.machine(web)))


async def test_a_vm_that_stops_ends_its_commands_and_says_so(ann, web, node, until):
    async def stop() -> None:
        await asyncio.sleep(0.1)
        await node.driver.guest_powers_off(node.machine(web))

    stopping = asyncio.create_task(stop())
    with pytest.raises(Conflict, match="machine web: it has stopped"):
        await run_async(ann, "web", sh("sleep 9"))
    await stopping
    await until(lambda: node.service.vms.show("web").state != "running")
    with pytest.raises(Conflict, match="VM web is stopped"):
        await run_async(ann, "web", sh("exit 0"))


async def test_an_image_without_an_agent_is_refused_before_anything_is_sent(ann):
    await ann.create("plain", image="twin")

    with pytest.raises(Conflict, match="vm exec: image twin has no guest agent"):
        async with ann.connect(VM_EXEC, {"vm": "plain"}):
            pass


async def test_a_certificate_that_is_revoked_ends_its_commands(node, pki, until):
    async with node.user("rosa") as rosa:
        web = await rosa.create("web")
        running = asyncio.create_task(run_async(rosa, "web", sh("sleep 9")))
        await until(lambda: node.driver.commands_of(node.machine(web)))

        pki.authority.revoke_subject("rosa")
        node.revocations.look_again()

        with pytest.raises(AtollError):
            await asyncio.wait_for(running, PATIENCE_S)
        await until(lambda: not node.driver.commands_of(node.machine(web)))


async def test_only_owners_and_operators_run_commands(ann, bob, oper, web):
    with pytest.raises(Denied, match="bob may not call vm.exec on VM web"):
        await run_async(bob, "web", sh("exit 0"))
    assert (await run_async(oper, "web", sh("exit 0"))).status == 0


@pytest.mark.parametrize(
    "first",
    [
        "{}",
        "[]",
        '{"argv":[]}',
        '{"argv":["a\\u0000"]}',
        '{"argv":["a"],"cwd":"tmp"}',
        '{"argv":["a"],"env":{"=":"x"}}',
        '{"argv":["a"],"timeout_s":0}',
        '{"argv":["a"],"terminal":{"rows":0}}',
        '{"argv":["a"],"more":1}',
        '{"argv":["\\ud800"]}',
    ],
)
async def test_what_is_no_command_is_refused_and_nothing_runs(ann, web, node, first):
    async with ann.connect(VM_EXEC, {"vm": "web"}) as socket:
        await socket.send_str(first)
        ended = (await told(socket)).ended

    assert ended is not None
    assert ended.error is not None
    assert ended.error.code in ("malformed", "invalid")
    assert not node.driver.commands_of(node.machine(web))


async def test_a_secret_in_the_environment_is_in_no_error(ann, web):
    async with ann.connect(VM_EXEC, {"vm": "web"}) as socket:
        await socket.send_str('{"argv":["a"],"env":{"TOKEN":["hunter2"]}}')
        ended = (await told(socket)).ended
    assert ended is not None
    assert ended.error is not None
    assert "hunter2" not in ended.error.brief + str(ended.error.details)


async def test_more_input_than_the_window_is_refused_and_ends_the_command(ann, web, node, until):
    async with ann.connect(VM_EXEC, {"vm": "web"}) as socket:
        await begin(socket, sh("sleep 9", input=True))
        for _ in range(2 * WINDOW // 32768):
            await socket.send_bytes(frame(STDIN, b"x" * 32768))
        answer = await told(socket)
        while answer.ended is None:
            answer = await told(socket)

    assert answer.ended.error is not None
    assert "not taken yet" in answer.ended.error.brief
    await until(lambda: not node.driver.commands_of(node.machine(web)))


async def test_signals_reach_the_command(ann, web):
    async with ann.connect(VM_EXEC, {"vm": "web"}) as socket:
        await begin(socket, sh("sleep 9"))
        await socket.send_str(encode(Control(signal=2)).decode())
        ended = (await told(socket)).ended

    assert ended is not None
    assert ended.status == 130


async def test_nobody_has_more_commands_than_there_are_places(ann, web, node, until):
    node.service.hands.places = Places("vm exec", "commands that run", 2, 8)
    running = [asyncio.create_task(run_async(ann, "web", sh("sleep 9"))) for _ in range(2)]
    await until(lambda: node.driver.commands_of(node.machine(web)) == 2)

    with pytest.raises(TooMany, match="VM web has 2 commands that run"):
        await run_async(ann, "web", sh("exit 0"))

    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await until(lambda: not node.driver.commands_of(node.machine(web)))
    assert (await run_async(ann, "web", sh("exit 0"))).status == 0


async def audited(oper) -> list:
    lines = oper.stream(AUDIT, query=AuditQuery(method="vm.exec"))
    return [line async for line in lines if not isinstance(line, Done)]


async def test_each_command_is_audited_with_its_words_and_without_its_environment(ann, bob, oper, web):
    await run_async(ann, "web", Command(("/bin/busybox", "echo", "two words"), env={"TOKEN": "hunter2"}))
    await run_async(ann, "web", Command(("/bin/busybox", "echo", "x" * 9000)))
    with pytest.raises(AtollError):
        await run_async(bob, "web", sh("exit 0"))

    first, long, denied, *_ = await audited(oper)

    assert (first.user, first.name, first.result) == ("ann", "web", "ok")
    assert first.detail == "/bin/busybox echo 'two words'"
    assert len(long.detail) < 1100
    assert long.detail.endswith("characters)")
    assert (denied.user, denied.result, denied.detail) == ("bob", "denied", "")
    assert "hunter2" not in str(await audited(oper))


async def test_a_frame_of_no_stream_is_malformed(ann, web):
    async with ann.connect(VM_EXEC, {"vm": "web"}) as socket:
        await begin(socket, sh("sleep 9", input=True))
        await socket.send_bytes(b"\x07hello")
        ended = (await told(socket)).ended
    assert ended is not None
    assert ended.error is not None
    assert ended.error.code == Malformed.code
