"""The TFTP and HTTP servers for booting, on real links: who gets which file, and who gets none."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from atoll.errors import HostFailure
from atoll.guestnet.netboot.http import BootServer
from atoll.guestnet.netboot.library import Content, Library, Missing
from atoll.guestnet.tftp import codec
from atoll.guestnet.tftp.codec import Ack, Data, Error, Fault, Mode, Options, Packet, Request
from atoll.guestnet.tftp.server import TRANSFERS_PER_CLIENT, Open, TftpServer
from atoll.images.store import ImageStore
from atoll.model.network import METADATA_IP
from atoll.system import processes
from known_callers import KnownCallers

if TYPE_CHECKING:
    from tests.host.hypervisor.conftest import Island, Station

LARGE = hashlib.shake_128(b"a kernel").digest(3_000_001)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "netboot").mkdir()
    (tmp_path / "netboot" / "large").write_bytes(LARGE)
    (tmp_path / "netboot" / "text").write_bytes(b"one\ntwo\n")
    return tmp_path


@pytest.fixture
def open_(folder: Path, good: Station) -> Open:
    """Knows the good guest and no other."""
    library, callers = Library(folder, ImageStore(folder / "images")), KnownCallers(good.lease)
    return lambda ip, name: library.open(callers.client(ip), name)


@pytest.fixture
async def server(island: Island, good: Station, open_: Open) -> AsyncIterator[TftpServer]:
    good.configure()
    server = TftpServer(island.service, open_, mtu=1400)
    await server.start()
    yield server
    await server.close()


class Port:
    """A UDP port of a guest."""

    def __init__(self, station: Station) -> None:
        self.socket = station.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)

    def __enter__(self) -> Port:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, request: Packet, server: tuple[str, int] = (METADATA_IP, 69)) -> None:
        self.socket.sendto(codec.build(request), server)

    async def hear(self, timeout_s: float = 5) -> tuple[Packet, tuple[str, int]]:
        async with asyncio.timeout(timeout_s):
            data, peer = await asyncio.get_running_loop().sock_recvfrom(self.socket, 2048)
        return codec.parse(data), peer


async def busybox(station: Station, *words: str) -> processes.Completed:
    return await processes.run(["busybox", *words], check=False, namespace=station.namespace)


async def settled(server: TftpServer) -> None:
    """Its count of transfers is that of the last packet sent to it."""
    for _ in range(100):
        if server.counters.done + server.counters.unfinished == server.counters.started:
            return
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("options", [[], ["-b", "1300"], ["-b", "65464"]])
async def test_a_stock_client_gets_a_file(
    server: TftpServer, good: Station, tmp_path: Path, options: list[str]
) -> None:
    target = tmp_path / "got"
    done = await busybox(good, "tftp", *options, "-g", "-r", "large", "-l", str(target), METADATA_IP)
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == LARGE
    await settled(server)
    assert (server.counters.done, server.counters.unfinished) == (1, 0)


async def test_windows_save_round_trips_and_a_gap_is_mended(server: TftpServer, good: Station) -> None:
    with Port(good) as port:
        port.ask(Request("large", Mode.OCTET, {"blksize": "1300", "windowsize": "8", "tsize": "0"}))
        agreed, peer = await port.hear()
        assert agreed == Options({"blksize": "1300", "windowsize": "8", "tsize": str(len(LARGE))})
        assert peer[0] == METADATA_IP
        port.ask(Ack(0), peer)
        blocks = [(await port.hear())[0] for _ in range(8)]
        assert [block.block for block in blocks if isinstance(block, Data)] == list(range(1, 9))
        port.ask(Ack(5), peer)
        again, _ = await port.hear()
        assert again == Data(6, LARGE[5 * 1300 : 6 * 1300])


async def test_what_is_not_acknowledged_is_sent_again(server: TftpServer, good: Station) -> None:
    with Port(good) as port:
        port.ask(Request("text", Mode.OCTET))
        first = await port.hear()
        assert first[0] == Data(1, b"one\ntwo\n")
        assert await port.hear() == first
        port.ask(Ack(1), first[1])
    await settled(server)
    assert server.counters.done == 1


async def test_text_is_sent_with_the_line_ends_of_netascii(server: TftpServer, good: Station) -> None:
    with Port(good) as port:
        port.ask(Request("text", Mode.NETASCII))
        assert (await port.hear())[0] == Data(1, b"one\r\ntwo\r\n")


async def test_a_machine_gets_the_file_of_its_own(server: TftpServer, good: Station, folder: Path) -> None:
    (folder / good.mac).mkdir()
    (folder / good.mac / "text").write_bytes(b"mine")
    with Port(good) as port:
        port.ask(Request("/text", Mode.OCTET))
        assert (await port.hear())[0] == Data(1, b"mine")


async def test_who_has_no_lease_gets_an_error_and_no_file(
    server: TftpServer, bad: Station, good: Station
) -> None:
    bad.configure()
    with Port(bad) as port:
        port.ask(Request("text", Mode.OCTET))
        assert (await port.hear())[0] == Error(Fault.DENIED, Missing.STRANGER)
    assert (server.counters.strangers, server.counters.started) == (1, 0)


@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        (Request("nothing", Mode.OCTET), Fault.NOT_FOUND),
        (Request("../secret", Mode.OCTET), Fault.DENIED),
        (Request("text", Mode.OCTET, write=True), Fault.DENIED),
    ],
)
async def test_what_cannot_be_had_is_refused(
    server: TftpServer, good: Station, request_: Request, fault: Fault
) -> None:
    with Port(good) as port:
        port.ask(request_)
        reply, peer = await port.hear()
        assert isinstance(reply, Error)
        assert (reply.fault, peer) == (fault, (METADATA_IP, 69))


async def test_nobody_has_more_transfers_than_its_share(server: TftpServer, good: Station) -> None:
    ports = [Port(good) for _ in range(TRANSFERS_PER_CLIENT + 3)]
    try:
        for port in ports:
            port.ask(Request("large", Mode.OCTET))
            port.ask(Request("large", Mode.OCTET))
        for port in ports[:TRANSFERS_PER_CLIENT]:
            assert isinstance((await port.hear())[0], Data)
        counters = server.counters
        assert counters.started == TRANSFERS_PER_CLIENT
        assert counters.repeated == TRANSFERS_PER_CLIENT
        assert counters.excess == 6
        for port in ports[:TRANSFERS_PER_CLIENT]:
            port.socket.close()
        # Nobody is at those ports any more: the next packet says so, and their places are free.
        await settled(server)
        ports[-1].ask(Request("text", Mode.OCTET))
        assert (await ports[-1].hear())[0] == Data(1, b"one\ntwo\n")
    finally:
        for port in ports:
            port.socket.close()


async def test_a_file_that_shrinks_ends_in_an_error(server: TftpServer, good: Station, folder: Path) -> None:
    with Port(good) as port:
        port.ask(Request("large", Mode.OCTET))
        _, peer = await port.hear()
        (folder / "netboot" / "large").write_bytes(b"x" * 100)
        port.ask(Ack(1), peer)
        assert isinstance((await port.hear())[0], Error)
    await settled(server)
    assert server.counters.unfinished == 1


async def test_a_second_server_is_refused_with_a_reason(server: TftpServer, island: Island) -> None:
    with pytest.raises(HostFailure, match="starting TFTP in namespace"):
        await TftpServer(island.service, lambda ip, name: Content(b"")).start()


async def test_the_same_files_come_over_http(
    island: Island, open_: Open, good: Station, bad: Station
) -> None:
    good.configure()
    bad.configure()
    server = BootServer(island.service, open_)
    await server.start()
    try:
        got = await busybox(good, "wget", "-q", "-O", "-", f"http://{METADATA_IP}:6969/large")
        assert got.stdout == LARGE
        for station, path, status in (
            (good, "nothing", b"404"),
            (good, "a/../../b", b"400"),
            (bad, "large", b"403"),
        ):
            refused = await busybox(station, "wget", "-O", "-", f"http://{METADATA_IP}:6969/{path}")
            assert refused.returncode != 0
            assert status in refused.stderr, refused.stderr
    finally:
        await server.close()


async def test_a_guest_that_hangs_up_in_the_middle_is_no_failure_of_ours(
    island: Island, open_: Open, good: Station, caplog: pytest.LogCaptureFixture
) -> None:
    good.configure()
    server = BootServer(island.service, open_)
    await server.start()
    try:
        for _ in range(20):
            async with good.connect(6969) as (_, writer):
                writer.write(b"GET /large HTTP/1.1\r\nHost: m\r\n\r\n" * 3)
                await writer.drain()
                writer.transport.abort()
        got = await busybox(good, "wget", "-q", "-O", "-", f"http://{METADATA_IP}:6969/text")
        assert got.stdout == b"one\ntwo\n"
    finally:
        await server.close()
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []
