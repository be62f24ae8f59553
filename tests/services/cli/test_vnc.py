"""`atoll vm vnc` as a process: a tunnel between VNC viewers on this machine and the screen of a VM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 20
VIEWER = """
import socket, sys
screen = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
open(sys.argv[3], "wb").write(screen.recv(12))
"""


class Tunnel:
    """A tunnel that is open."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdout is not None
        self.printed = process.stdout.readline().decode().strip()
        self.address = (self.printed.rpartition(":")[0], int(self.printed.rpartition(":")[2]))

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, DEADLINE_S)


@pytest.fixture
def tunnel(cloud: Any) -> Iterator[Tunnel]:
    cloud.node.make("web", console="vnc")
    with cloud.start(
        "vm", "vnc", "web", "--listen", "127.0.0.1:0", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield Tunnel(process)
        finally:
            process.kill()


def said(screen: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := screen.recv(size - len(data))):
        data += more
    return data


def test_each_viewer_has_a_connection_of_its_own(tunnel: Tunnel) -> None:
    with tunnel.connect() as first, tunnel.connect() as second:
        for viewer, word in ((first, b"one"), (second, b"two")):
            assert said(viewer, 12) == b"RFB 003.008\n"
            viewer.sendall(word)
        assert (said(first, 5), said(second, 5)) == (b"<one>", b"<two>")
    with tunnel.connect() as third:
        assert said(third, 12) == b"RFB 003.008\n"


def test_it_listens_on_loopback_until_it_is_interrupted(tunnel: Tunnel) -> None:
    assert tunnel.address[0] == "127.0.0.1"
    tunnel.process.send_signal(signal.SIGINT)
    assert tunnel.process.wait(DEADLINE_S) == 130
    with pytest.raises(ConnectionRefusedError):
        tunnel.connect()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_viewer_of_another_user_is_refused(tunnel: Tunnel) -> None:
    os.seteuid(65534)
    try:
        viewer = tunnel.connect()
    finally:
        os.seteuid(0)
    with viewer:
        assert said(viewer, 12) == b""
    tunnel.process.terminate()
    assert b"refused a viewer of user 65534" in tunnel.process.communicate(timeout=DEADLINE_S)[1]


def test_a_viewer_is_started_and_ends_the_tunnel(cloud: Any, tmp_path: Path) -> None:
    cloud.node.make("web", console="vnc")
    script = tmp_path / "viewer.py"
    script.write_text(VIEWER)
    process = cloud.start(
        "vm", "vnc", "web", "--viewer", f"{sys.executable} {script} {{host}} {{port}} {tmp_path / 'seen'}",
        stdout=subprocess.PIPE,
    )  # fmt: skip
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out[:12]) == (0, b"127.0.0.1:59")
    assert (tmp_path / "seen").read_bytes() == b"RFB 003.008\n"


def test_a_viewer_that_fails_is_told(cloud: Any) -> None:
    cloud.node.make("web", console="vnc")
    process = cloud.start("vm", "vnc", "web", "--viewer", "ls --no-such-option", stderr=subprocess.PIPE)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert b"viewer ls: ended with status 2" in err


def test_the_screen_of_a_vm_that_has_none_is_refused_before_anybody_waits(cloud: Any) -> None:
    cloud.node.make("web")
    process = cloud.start("vm", "vnc", "web", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (4, b"")
    assert b"the VM has no screen" in err


def test_a_port_that_is_taken_is_refused(cloud: Any, tunnel: Tunnel) -> None:
    process = cloud.start("vm", "vnc", "web", "--listen", tunnel.printed, stderr=subprocess.PIPE)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 4
    assert b"address already in use" in err
