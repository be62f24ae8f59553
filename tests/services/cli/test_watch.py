"""`atoll vm list --watch` at a terminal."""

from __future__ import annotations

import os
import re
import termios
from typing import Any

import pytest
from tests.shared.terminals import opened, until


@pytest.mark.parametrize("columns", [80, 60])
def test_the_list_follows_what_happens_and_the_terminal_is_restored(cloud: Any, columns: int) -> None:
    cloud.node.make("web")
    master, slave = opened(columns)
    before = termios.tcgetattr(slave)
    process = cloud.start("vm", "list", "--watch", stdin=slave, stdout=slave, stderr=slave)
    try:
        seen = until(master, b"q: quit")
        assert b"\x1b[?1049h" in seen
        cloud.node.make("later")
        until(master, b"later")
        os.write(master, b"q")
        last = until(master, b"later", until(master, b"\x1b[?1049l").split(b"\x1b[?1049l")[1])
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert termios.tcgetattr(slave) == before
    rows = re.sub(r"\x1b\[[0-9;]*m", "", last.decode()).splitlines()
    assert all(len(row) <= columns for row in rows)
    os.close(slave)
    os.close(master)


def test_without_a_terminal_there_is_nothing_to_watch(atoll: Any) -> None:
    outcome = atoll("vm", "list", "--watch")
    assert (outcome.status, outcome.out) == (2, "")
    assert "atoll event stream --follow" in outcome.err
