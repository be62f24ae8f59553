"""`atoll vm top` at a terminal."""

from __future__ import annotations

import os
import termios
from typing import Any

from tests.shared.terminals import opened, until


def test_it_follows_takes_keys_and_restores_the_terminal(cloud: Any) -> None:
    cloud.node.make("web")
    master, slave = opened(80)
    before = termios.tcgetattr(slave)
    process = cloud.start("vm", "top", "--for", "0.2s", stdin=slave, stdout=slave, stderr=slave)
    try:
        until(master, b"by cpus, most first")
        os.write(master, b"m")
        until(master, b"by memory, most first")
        os.write(master, b"/zz\n")
        until(master, b"only *zz*")
        os.write(master, b"q")
        until(master, b"\x1b[?1049l")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert termios.tcgetattr(slave) == before
    os.close(slave)
    os.close(master)
