"""Consoles and screens of real guests."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.host.conftest import Cli

ROWS = 3000
PATIENCE_S = 60
TALK = f"i=0; while [ $i -lt {ROWS} ]; do i=$((i+1)); echo row $i of {ROWS}; done"
LAST = f"row {ROWS} of {ROWS}\r\n".encode()


@pytest.fixture(scope="module")
def talker(cloud: Cli) -> Iterator[dict[str, Any]]:
    """A VM that two people own."""
    vm = cloud.create("talker", "--owner-user", "admin", "--owner-user", "eve", "--cpus", "1")
    yield vm
    cloud.destroy("talker")


@pytest.fixture(scope="module")
def screen(cloud: Cli) -> Iterator[dict[str, Any]]:
    """A VM with a screen."""
    vm = cloud.create("screen", "--console", "vnc")
    yield vm
    cloud.destroy("screen")


@contextmanager
def watching(cli: Cli, vm: str, output: Path) -> Iterator[Path]:
    """What one who only looks on has seen."""
    with (
        output.open("wb") as out,
        cli.start("vm", "console", "-q", "--watch", vm, stdout=out) as process,
    ):
        try:
            yield output
        finally:
            process.kill()


def until(path: Path, text: bytes) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while text not in path.read_bytes():
        assert time.monotonic() < deadline, f"no {text!r}: {path.read_bytes()[-200:]!r}"
        time.sleep(0.02)


def test_who_comes_while_a_guest_prints_sees_all_of_it_once(
    cloud: Cli, talker: dict[str, Any], tmp_path: Path
) -> None:
    seen = [tmp_path / f"seen-{number}" for number in range(4)]

    with watching(cloud, "talker", seen[0]), cloud.shell("talker") as shell:
        shell.begin(TALK)
        with watching(cloud, "talker", seen[1]):
            until(seen[0], b"row 500 of")
            with watching(cloud, "talker", seen[2]):
                until(seen[0], b"row 1000 of")
                with watching(cloud, "talker", seen[3]):
                    for path in seen:
                        until(path, LAST)
    texts = [path.read_bytes().partition(LAST)[0] for path in seen]
    assert b"atoll: dhcp: bound" in texts[0]
    assert texts[1:] == texts[:1] * 3
    rows = [int(number) for number in re.findall(rb"row (\d+) of", texts[0].rpartition(b"done")[2])]
    assert rows == list(range(1, ROWS))
    log = cloud.start("vm", "log", "talker", stdout=subprocess.PIPE).communicate(timeout=PATIENCE_S)[0]
    assert log.startswith(texts[0] + LAST)


def test_an_owner_takes_the_keyboard_from_another_and_gives_it_back(
    cloud: Cli, talker: dict[str, Any]
) -> None:
    eve = cloud.issue("eve")
    with cloud.shell("talker") as shell:
        refusal = eve.refused("vm", "console", "talker")
        assert (refusal.status, refusal.brief) == (4, "console of talker: admin has the keyboard")
        with cloud.start(
            "vm", "console", "-q", "talker", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as second:
            second.communicate(timeout=PATIENCE_S)
            assert second.returncode == 4
        assert "typed by admin" in shell.run("echo typed' 'by admin")
        taken = eve.start(
            "vm", "console", "-q", "--take", "talker", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        out, _ = taken.communicate(b"echo typed' 'by eve\n", timeout=PATIENCE_S)
        assert (taken.returncode, b"typed by eve" in out) == (0, True)
    with cloud.shell("talker") as shell:
        assert "typed again" in shell.run("echo typed' 'again")


def test_a_viewer_sees_the_screen_of_a_guest_through_a_tunnel(cloud: Cli, screen: dict[str, Any]) -> None:
    with cloud.start(
        "vm", "vnc", "-q", "screen", "--listen", "127.0.0.1:0", stdout=subprocess.PIPE
    ) as tunnel:
        try:
            assert tunnel.stdout is not None
            host, _, port = tunnel.stdout.readline().decode().strip().rpartition(":")
            with socket.create_connection((host, int(port)), PATIENCE_S) as viewer:
                width, height, name, pixels = _look(viewer)
        finally:
            tunnel.kill()
    assert (width >= 640, height >= 350, name) == (True, True, b"QEMU (screen)")
    # Text on black: something is there.
    assert 0 < sum(byte > 0 for byte in pixels) < len(pixels)


def test_a_machine_with_a_screen_listens_nowhere_for_it(cloud: Cli, screen: dict[str, Any]) -> None:
    pid = cloud.qemu(screen["ip"])
    sockets = {
        link.readlink().name.strip("socket:[]")
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if str(link.readlink()).startswith("socket:")
    }
    # Its own network is one that it did not get its sockets from.
    agent = json.loads((cloud.directory / "agent.pid").read_text())["pid"]
    for network in (f"/proc/{pid}/net", f"/proc/{agent}/net"):
        for table in ("tcp", "tcp6", "udp", "udp6"):
            inodes = {line.split()[9] for line in Path(network, table).read_text().splitlines()[1:]}
            assert not inodes & sockets
    unix = [line.split() for line in Path(f"/proc/{agent}/net/unix").read_text().splitlines()[1:]]
    listening = {Path(fields[7]).name for fields in unix if fields[6] in sockets and fields[3] == "00010000"}
    assert listening == {"monitor.sock", "hands.sock"}


def test_a_vm_without_a_screen_is_refused_one(cloud: Cli, talker: dict[str, Any]) -> None:
    refusal = cloud.refused("vm", "vnc", "talker")
    assert (refusal.status, refusal.brief) == (4, "VM talker: has no screen")
    assert "--console vnc" in refusal.hint


def _look(viewer: socket.socket) -> tuple[int, int, bytes, bytes]:
    """The size of a screen, its name, and what it shows."""
    stream = viewer.makefile("rb")
    assert stream.read(12) == b"RFB 003.008\n"
    viewer.sendall(b"RFB 003.008\n")
    assert 1 in stream.read(stream.read(1)[0])
    viewer.sendall(b"\x01")
    assert stream.read(4) == b"\0\0\0\0"
    viewer.sendall(b"\x01")
    width, height, bits, length = struct.unpack("!HHB15xI", stream.read(24))
    name = stream.read(length)
    viewer.sendall(struct.pack("!BBHHHH", 3, 0, 0, 0, width, height))
    assert stream.read(2)[0] == 0
    (rectangles,) = struct.unpack("!H", stream.read(2))
    pixels = b""
    for _ in range(rectangles):
        _, _, columns, rows, encoding = struct.unpack("!HHHHi", stream.read(12))
        assert encoding == 0
        pixels += stream.read(columns * rows * bits // 8)
    return width, height, name, pixels
