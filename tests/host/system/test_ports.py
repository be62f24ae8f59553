"""Links that are given to a process in another namespace, and open files that are borrowed from one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from atoll.errors import Invalid, NotFound
from atoll.system import namespaces, pids
from atoll.system.links import Links

NAME = f"xports-{os.getpid()}"


@pytest.fixture
def bridge() -> Iterator[str]:
    namespaces.ensure(NAME)
    with Links(NAME) as links:
        links.ensure_bridge("xbr0", "02:00:00:00:00:01", 1400)
    yield "xbr0"
    namespaces.delete(NAME)


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a network namespace that has no name."""
    command = ["unshare", "--net", "sh", "-c", "echo; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_port_is_up_in_its_bridge_and_its_other_end_is_off_in_the_namespace_of_a_process(
    bridge: str, stranger: subprocess.Popen[bytes]
) -> None:
    inside = namespaces.of_process(stranger.pid)
    with Links(NAME) as outer, Links(inside) as inner:
        outer.make_port("xp0", bridge, 1400, "eth0", "02:00:00:00:00:05", inside)
        near, far, over = outer.find("xp0"), inner.find("eth0"), outer.find(bridge)
        assert near is not None
        assert far is not None
        assert over is not None
        assert (near.up, near.mtu, near.master_index) == (True, 1400, over.index)
        assert (far.up, far.mtu, far.mac) == (False, 1400, "02:00:00:00:00:05")


def test_a_port_without_a_bridge_is_refused_and_leaves_nothing(bridge: str) -> None:
    with Links(NAME) as links:
        before = links.names()
        with pytest.raises(NotFound, match="xnone"):
            links.make_port("xp0", "xnone", 1500, "xp1", "02:00:00:00:00:05")
        assert links.names() == before


def test_only_the_namespace_of_a_process_can_be_given_by_a_path() -> None:
    with pytest.raises(Invalid):
        namespaces.exists("/run/netns/x")
    with pytest.raises(Invalid):
        namespaces.exists("/proc/self/../1/ns/net")


def test_an_open_file_of_another_process_can_be_used_here(stranger: subprocess.Popen[bytes]) -> None:
    owner = pids.identify(stranger.pid)
    assert owner is not None
    assert stranger.stdout is not None
    borrowed = pids.copy_descriptor(owner, 1)
    try:
        os.write(borrowed, b"from afar\n")
    finally:
        os.close(borrowed)
    assert stranger.stdout.readline() == b"from afar\n"


def test_nothing_is_borrowed_from_a_process_that_has_gone(stranger: subprocess.Popen[bytes]) -> None:
    owner = pids.identify(stranger.pid)
    assert owner is not None
    stranger.kill()
    stranger.wait()
    with pytest.raises(ProcessLookupError):
        pids.copy_descriptor(owner, 1)
