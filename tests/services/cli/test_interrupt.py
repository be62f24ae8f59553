"""Ctrl-C during a create, at a terminal."""

from __future__ import annotations

import os
import pty
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Person:
    """Somebody at a terminal who runs one command."""

    def __init__(self, cloud: Any, *words: str) -> None:
        self._screen, slave = pty.openpty()
        self.seen = b""
        self.process = cloud.start(*words, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)

    def interrupts(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def sees(self, text: str) -> None:
        """Look on until it is there."""
        while text.encode() not in self.seen:
            try:
                chunk = os.read(self._screen, 4096)
            except OSError:  # all others have closed the terminal
                chunk = b""
            assert chunk, f"{text!r} never came: {self.seen.decode()!r}"
            self.seen += chunk

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        os.close(self._screen)


@contextmanager
def person(cloud: Any, *words: str) -> Iterator[Person]:
    someone = Person(cloud, *words)
    try:
        yield someone
    finally:
        someone.close()
        cloud.node.lets_go = True


@pytest.mark.parametrize("stage", ["address", "started"])
def test_the_first_ctrl_c_undoes_the_create_and_says_so(cloud: Any, stage: str) -> None:
    cloud.node.hold_after = stage
    with person(cloud, "vm", "create", "--name", "web", "--image", "appliance") as someone:
        someone.sees(f"{stage} 0.")
        someone.interrupts()
        someone.sees("interrupted: undone VM web: nothing is left")
        assert someone.process.wait(30) == 130
        assert cloud.node.abandoned == ["10.213.0.5"]
        assert someone.seen.rindex(b"\x1b[?25h") > someone.seen.rindex(b"\x1b[?25l"), "the cursor is back"


def test_before_it_has_an_address_it_is_given_up_by_its_name(cloud: Any) -> None:
    cloud.node.hold_before = True
    with person(cloud, "vm", "create", "--name", "web", "--image", "appliance") as someone:
        someone.sees("address …")
        someone.interrupts()
        someone.sees("nothing is left")
        assert someone.process.wait(30) == 130
    assert cloud.node.abandoned == ["web"]


def test_the_second_ctrl_c_leaves_it_to_the_agent_and_says_so(cloud: Any) -> None:
    cloud.node.hold_after, cloud.node.holds_abandon = "started", True
    with person(cloud, "vm", "create", "--name", "web", "--image", "appliance") as someone:
        someone.sees("started 0.")
        someone.interrupts()
        someone.sees("Ctrl-C again leaves that to the agent")
        someone.interrupts()
        someone.sees("left VM web to the agent, which undoes it by itself")
        someone.sees("atoll vm list")
        assert someone.process.wait(30) == 130


def test_an_agent_that_is_gone_undoes_it_by_itself(cloud: Any) -> None:
    cloud.node.hold_after, cloud.node.fails_abandon = "started", True
    with person(cloud, "vm", "create", "--name", "web", "--image", "appliance") as someone:
        someone.sees("started 0.")
        someone.interrupts()
        someone.sees("the agent undoes it by itself")
        assert someone.process.wait(30) == 130


def test_of_several_those_that_are_under_way_are_undone(cloud: Any) -> None:
    cloud.node.hold_after = "started"
    with person(cloud, "vm", "create", "--name", "web", "--count", "3") as someone:
        while len(cloud.node.held_now) < 3:
            time.sleep(0.05)
        someone.interrupts()
        someone.sees("interrupted: undone VM web-1, web-2, web-3: nothing is left")
        assert someone.process.wait(30) == 130
    assert len(cloud.node.abandoned) == 3
