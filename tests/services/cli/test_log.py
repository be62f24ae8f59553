"""`atoll vm log -f` as a process."""

from __future__ import annotations

import os
import pty
import subprocess
from typing import Any

import pytest


def test_following_tells_how_many_bytes_are_gone_and_repeats_none(cloud: Any) -> None:
    vm = cloud.node.make("web")
    cloud.node.logs["web"] = b"one\n"
    process = cloud.start("vm", "log", "-f", "web", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"one\n"
        # The guest wrote a lot, and the front of it was given back.
        cloud.node.log_gone["web"] = 5004
        cloud.node.logs["web"] = b"last\n"
        assert process.stdout.readline() == b"last\n"
        cloud.node.log_gone["web"] += 5
        cloud.node.logs["web"] = b"and more\n"
        assert process.stdout.readline() == b"and more\n"
        del cloud.node.vms[vm.ip]
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (0, b"")
    assert err.decode() == "… 5,000 bytes are gone …\nweb: gone\n"


def test_following_prints_what_is_new_once_and_ends_with_the_vm(cloud: Any) -> None:
    vm = cloud.node.make("web")
    cloud.node.logs["web"] = b"booting\n"
    process = cloud.start("vm", "log", "-f", "web", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"booting\n"
        cloud.node.logs["web"] += b"login:\n"
        assert process.stdout.readline() == b"login:\n"
        cloud.node.logs["web"] = b"again\n"
        assert process.stdout.readline() == b"again\n"
        del cloud.node.vms[vm.ip]
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (0, b"", b"web: gone\n")


HOSTILE = b"\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[6n\r\n"


@pytest.mark.parametrize(
    ("option", "seen"), [([], b"^[]0;title^G\x1b[31mred\r\n\x1b[0m"), (["--raw"], HOSTILE)]
)
def test_a_terminal_is_not_commanded_by_a_guest(cloud: Any, option: list[str], seen: bytes) -> None:
    cloud.node.make("web")
    cloud.node.logs["web"] = HOSTILE.replace(b"\r\n", b"\n") if option else HOSTILE
    master, slave = pty.openpty()
    process = cloud.start("vm", "log", "web", *option, stdout=slave)
    os.close(slave)
    found = b""
    while len(found) < len(seen):
        found += os.read(master, 1024)
    os.close(master)
    assert process.wait(30) == 0
    assert found == seen
