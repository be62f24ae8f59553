"""Real network namespaces, side by side with `ip netns`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from atoll.errors import HostFailure, Invalid, NotFound
from atoll.system import namespaces

NAME = f"xsys{os.getpid()}n"


def ip(*args: str) -> str:
    return subprocess.run(["ip", *args], check=True, capture_output=True, text=True).stdout


def here() -> str:
    return os.readlink("/proc/thread-self/ns/net")


@pytest.fixture
def gone() -> Iterator[str]:
    """A name that is free, and free again at the end."""
    namespaces.delete(NAME)
    yield NAME
    namespaces.delete(NAME)


@pytest.fixture
def namespace(gone: str) -> str:
    namespaces.ensure(gone)
    return gone


def test_a_new_namespace_is_one_that_ip_knows_with_its_loopback_up(namespace: str) -> None:
    assert namespaces.exists(namespace)
    assert namespace in namespaces.names()
    assert namespace in ip("netns", "list").split()
    assert "127.0.0.1/8" in ip("-n", namespace, "-br", "address")


def test_making_it_again_keeps_it(namespace: str) -> None:
    before = namespaces.inside(namespace, here)
    namespaces.ensure(namespace)
    assert namespaces.inside(namespace, here) == before


def test_what_ip_made_we_delete_and_the_other_way_round(gone: str) -> None:
    ip("netns", "add", gone)
    assert namespaces.exists(gone)
    namespaces.delete(gone)
    assert gone not in ip("netns", "list").split()
    namespaces.ensure(gone)
    ip("netns", "delete", gone)
    assert not namespaces.exists(gone)
    assert gone not in namespaces.names()


def test_deleting_twice_is_fine(namespace: str) -> None:
    namespaces.delete(namespace)
    namespaces.delete(namespace)
    assert not (namespaces.DIRECTORY / namespace).exists()


def test_a_half_made_one_is_seen_repaired_and_deleted(gone: str) -> None:
    (namespaces.DIRECTORY / gone).touch()
    assert not namespaces.exists(gone)
    assert gone in namespaces.names()
    namespaces.ensure(gone)
    assert namespaces.exists(gone)
    namespaces.delete(gone)
    (namespaces.DIRECTORY / gone).touch()
    namespaces.delete(gone)
    assert gone not in namespaces.names()


def test_work_inside_leaves_the_caller_where_it_was_and_no_thread(namespace: str) -> None:
    before, threads = here(), threading.active_count()
    assert namespaces.inside(namespace, here) != before
    assert here() == before
    assert threading.active_count() == threads


def test_an_error_inside_comes_through(namespace: str) -> None:
    with pytest.raises(ZeroDivisionError):
        namespaces.inside(namespace, lambda: 1 // 0)


def test_a_socket_belongs_to_the_namespace_it_was_made_in(namespace: str) -> None:
    ip("-n", namespace, "address", "add", "10.77.0.1/32", "dev", "lo")
    with namespaces.socket_in(namespace, socket.AF_INET, socket.SOCK_DGRAM) as there:
        there.bind(("10.77.0.1", 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outside, pytest.raises(OSError, match="assign"):
        outside.bind(("10.77.0.1", 0))


def test_a_process_moves_as_a_whole_while_it_has_one_thread(namespace: str) -> None:
    script = (
        "import os, sys; from atoll.system import namespaces;"
        "namespaces.enter(sys.argv[1]); print(os.readlink('/proc/self/ns/net'))"
    )
    moved = subprocess.run(
        [sys.executable, "-c", script, namespace], check=True, capture_output=True, text=True
    )
    assert moved.stdout.strip() == namespaces.inside(namespace, here)


def test_one_that_is_held_can_be_entered_after_the_process_moved(namespace: str) -> None:
    script = (
        "import os; from atoll.system import namespaces;"
        "held = namespaces.hold(); namespaces.enter({!r});"
        "print(namespaces.inside(held, lambda: os.readlink('/proc/thread-self/ns/net')))"
    )
    moved = subprocess.run(
        [sys.executable, "-c", script.format(namespace)], check=True, capture_output=True, text=True
    )
    assert moved.stdout.strip() == here() != namespaces.inside(namespace, here)


def test_a_process_with_several_threads_does_not_move(namespace: str) -> None:
    before, stop = here(), threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        with pytest.raises(HostFailure, match="several threads"):
            namespaces.enter(namespace)
    finally:
        stop.set()
        other.join()
    assert here() == before


def test_one_that_does_not_exist_is_not_found() -> None:
    with pytest.raises(NotFound, match="xsysnone"):
        namespaces.inside("xsysnone", here)


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", "a\0b", "x" * 256])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(Invalid):
        namespaces.ensure(name)
