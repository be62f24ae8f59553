"""Ports of the host that lead to guests: carried by a process that outlives agents, and by what the records say.

The guests are namespaces behind real ports of a real agent; clients are on this machine's loopback, which is outside of
the node's namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll.api import hypervisor as api
from atoll.api.publishing import VM_PUBLISH, VM_PUBLISHED, VM_UNPUBLISH, Publish, Unpublish
from atoll.errors import Conflict, Denied, Unreachable
from atoll.model.network import Subnet
from atoll.model.publishing import Publication, PublishedPort
from atoll.model.vm import VM
from atoll.system import processes
from node_labs import Guest, Node, Site, a_site

HERE = "127.0.0.1"
PATIENCE_S = 15.0
MUCH = os.urandom(1 << 20) * 8


def until(true: Callable[[], Any], why: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := true()):
        assert time.monotonic() < deadline, why
        time.sleep(0.01)
    return found


def free_port() -> int:
    with socket.create_server((HERE, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


class Server:
    """In a guest: sends back what it is sent, and its own name at the end of that."""

    def __init__(self, guest: Guest, port: int, name: bytes) -> None:
        self._listening = guest.listen(port)
        self._name = name
        self.peers: list[str] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                wire, peer = self._listening.accept()
                self.peers.append(peer[0])
                threading.Thread(target=self._answer, args=(wire,), daemon=True).start()

    def _answer(self, wire: socket.socket) -> None:
        with wire, contextlib.suppress(OSError):
            while data := wire.recv(1 << 16):
                wire.sendall(data)
            wire.sendall(self._name)

    def close(self) -> None:
        self._listening.close()


def talk(port: int, said: bytes, host: str = HERE) -> bytes:
    """All that comes back; each side ends by itself."""
    with socket.create_connection((host, port), timeout=PATIENCE_S) as wire:
        sender = threading.Thread(target=lambda: (wire.sendall(said), wire.shutdown(socket.SHUT_WR)))
        sender.start()
        heard = b"".join(iter(lambda: wire.recv(1 << 16), b""))
        sender.join()
        return heard


def is_refused(port: int) -> bool:
    """Whether nobody listens there at all."""
    try:
        socket.create_connection((HERE, port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    return False


def is_cut(wire: socket.socket) -> bool:
    """Whether the other end has gone."""
    wire.settimeout(PATIENCE_S)
    try:
        return wire.recv(1) == b""
    except ConnectionResetError:
        return True


def is_turned_away(port: int) -> bool:
    """Whether somebody listens there, and ends what comes."""
    try:
        with socket.create_connection((HERE, port), timeout=PATIENCE_S) as wire:
            return is_cut(wire)
    except ConnectionResetError:
        return True


class Lab:
    """A node with two VMs that serve."""

    def __init__(self, site: Site) -> None:
        self.node = Node(site, "n1", "10.61.0.1", ids=str(site.directory / "ids"))
        self.node.start()
        self.node.give(Subnet("lan", "10.61.0.0/24", "10.61.0.1"), *(f"10.61.0.{n}" for n in range(5, 9)))
        self.red, self.blue = (self.node.create(name, "lan") for name in ("red", "blue"))
        self.servers = {vm.name: Server(self.guest(vm), 80, vm.name.encode()) for vm in (self.red, self.blue)}

    def guest(self, vm: VM) -> Guest:
        guest = self.node.guest(vm, "br-lan")
        guest.configure(vm.ip)
        return guest

    def publish(self, vm: VM, port: int, context: Any = None, **more: Any) -> VM:
        one = Publication(port, 80, **{"address": HERE, **more})
        found: VM = self.node.call(VM_PUBLISH, {"vm": vm.name}, body=Publish((one,)), context=context)
        return found

    def unpublish(self, vm: VM, port: int) -> None:
        self.node.call(VM_UNPUBLISH, {"vm": vm.name}, query=Unpublish(port))

    def ports(self, vm: VM) -> tuple[PublishedPort, ...]:
        found: tuple[PublishedPort, ...] = self.node.call(VM_PUBLISHED, {"vm": vm.name})
        return found

    @property
    def publisher(self) -> processes.Pid:
        record = json.loads((self.node.site.directory / "n1" / "publisher.json").read_text())
        return processes.Pid(**record)

    def end_publisher(self) -> None:
        before = self.publisher
        processes.send_signal(before, signal.SIGKILL)
        until(lambda: not processes.alive(before), "it lives on")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with a_site(tmp_path_factory.mktemp("publish")) as made:
        yield made


@pytest.fixture(scope="module")
def lab(site: Site) -> Lab:
    return Lab(site)


@pytest.fixture
def port(lab: Lab) -> Iterator[int]:
    """A free one of this machine's; taken back from red afterwards, if it was published."""
    number = free_port()
    yield number
    lab.unpublish(lab.red, number)


def test_what_is_sent_to_a_published_port_comes_back_from_the_guest_and_is_counted(
    lab: Lab, port: int
) -> None:
    vm = lab.publish(lab.red, port)
    assert [one.key for one in vm.published] == [f"{HERE}:{port}"]

    assert talk(port, MUCH) == MUCH + b"red"

    assert lab.servers["red"].peers[-1] == "10.61.0.1"
    (counted,) = until(lambda: [one for one in lab.ports(lab.red) if not one.open], "a connection is left")
    assert (counted.connections, counted.failed, counted.refused) == (1, 0, 0)
    assert (counted.received_bytes, counted.sent_bytes) == (len(MUCH), len(MUCH) + 3)
    measured, labels = lab.node.metrics(), (lab.red.ip, "red", str(port))
    assert measured["atoll_published_bytes_total", HERE, "sent", *labels] == len(MUCH) + 3
    assert measured["atoll_published_connections_total", HERE, *labels, "taken"] == 1


def test_a_port_that_somebody_has_is_refused_and_nothing_changes(lab: Lab, port: int) -> None:
    lab.publish(lab.red, port)
    lab.publish(lab.red, port)
    with pytest.raises(Conflict, match="is VM red's"):
        lab.publish(lab.blue, port)
    with pytest.raises(Conflict, match="is VM red's"):
        lab.publish(lab.blue, port, address="0.0.0.0")
    with socket.create_server((HERE, 0)) as other:
        taken = other.getsockname()[1]
        with pytest.raises(
            Conflict, match=f"port {taken} at {HERE}: another program on this node listens there"
        ):
            lab.publish(lab.blue, taken)
    assert lab.ports(lab.blue) == ()
    assert talk(port, b"hello ") == b"hello red"


def test_owners_alone_publish(lab: Lab, site: Site, port: int) -> None:
    stranger = site.context_of("eve")
    with pytest.raises(Denied, match=r"eve may not call vm\.publish on VM red"):
        lab.publish(lab.red, port, stranger)
    lab.publish(lab.red, port)
    for route, query in ((VM_UNPUBLISH, Unpublish(port)), (VM_PUBLISHED, None)):
        with pytest.raises(Denied):
            lab.node.call(route, {"vm": "red"}, query=query, context=stranger)
    assert talk(port, b"") == b"red"


def test_connections_go_on_while_an_agent_dies_and_the_next_one_finds_them(lab: Lab, port: int) -> None:
    lab.publish(lab.red, port)
    publisher = lab.publisher
    with socket.create_connection((HERE, port), timeout=PATIENCE_S) as wire:
        wire.sendall(b"before ")
        assert wire.recv(100) == b"before "
        lab.node.kill()
        wire.sendall(b"during ")
        assert wire.recv(100) == b"during "
        assert talk(port, b"new ") == b"new red"
        lab.node.start()
        (counted,) = lab.ports(lab.red)
        assert (counted.connections, counted.open, counted.problem) == (2, 1, "")
        wire.sendall(b"after ")
        assert wire.recv(100) == b"after "
    assert lab.publisher == publisher


def test_a_publisher_that_dies_is_started_again_also_by_the_next_agent(lab: Lab, port: int) -> None:
    lab.publish(lab.red, port)
    lab.end_publisher()
    until(lambda: not is_refused(port), "nobody opened it again")
    assert talk(port, b"again ") == b"again red"

    lab.node.kill()
    lab.end_publisher()
    assert is_refused(port)
    lab.node.start()
    assert talk(port, b"once more ") == b"once more red"


def test_while_a_vm_is_down_its_port_is_kept_and_nobody_gets_through(lab: Lab, port: int) -> None:
    lab.publish(lab.red, port)
    with socket.create_connection((HERE, port), timeout=PATIENCE_S) as wire:
        wire.sendall(b"x")
        assert wire.recv(1) == b"x"
        lab.node.call(api.VM_STOP, {"vm": "red"}, body=api.StopVm(0))
        assert is_cut(wire)
    assert is_turned_away(port)
    lab.node.start_vm(lab.red)
    assert until(lambda: _said(port) == b"red", "it is not served again")


def _said(port: int) -> bytes:
    try:
        return talk(port, b"")
    except ConnectionError:
        return b""


def test_the_port_of_a_vm_goes_with_it_at_once_and_the_last_one_takes_the_publisher_along(lab: Lab) -> None:
    vm, port = lab.node.create("brief", "lan"), free_port()
    server = Server(lab.guest(vm), 80, b"brief")
    lab.publish(vm, port)
    publisher = lab.publisher
    with socket.create_connection((HERE, port), timeout=PATIENCE_S) as wire:
        wire.sendall(b"x")
        assert wire.recv(1) == b"x"
        lab.node.call(api.VM_DESTROY, {"vm": "brief"})
        assert is_refused(port)
        assert is_cut(wire)
    assert not processes.alive(publisher)
    assert not (lab.node.site.directory / "n1" / "publisher.sock").exists()
    server.close()


def test_a_guest_that_does_not_listen_is_told_at_once(lab: Lab, port: int) -> None:
    lab.node.call(VM_PUBLISH, {"vm": "red"}, body=Publish((Publication(port, 81, HERE),)))
    began = time.monotonic()
    assert is_turned_away(port)
    assert time.monotonic() - began < 1
    assert lab.ports(lab.red)[0].failed == 1


def test_a_guest_can_be_told_who_connects(lab: Lab, port: int) -> None:
    lab.publish(lab.red, port, proxy_protocol=True)
    assert talk(port, b"hello").startswith(b"PROXY TCP4 127.0.0.1 127.0.0.1 ")


def test_whoever_does_not_read_holds_up_nobody_else(lab: Lab, port: int) -> None:
    lab.publish(lab.red, port)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            slow = stack.enter_context(socket.create_connection((HERE, port), timeout=PATIENCE_S))
            slow.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    slow.send(MUCH)
        assert talk(port, MUCH) == MUCH + b"red"


def test_the_publisher_has_no_rights_no_files_and_the_nodes_network(lab: Lab, port: int) -> None:
    lab.publish(lab.red, port)
    pid = lab.publisher.pid
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert set(status["Uid"].split()) == set(status["Gid"].split())
    assert int(status["Uid"].split()[0]) >= 0x6000_0000
    assert {status[name] for name in ("CapPrm", "CapEff", "CapBnd")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    root = Path(f"/proc/{pid}/root")
    assert [path for path in root.rglob("*") if path.is_file() or path.is_socket()] == []
    inside = Path(f"/run/netns/{lab.node.namespace}").stat().st_ino
    assert Path(f"/proc/{pid}/ns/net").stat().st_ino == inside
    assert lab.publisher.pid in processes.processes_in(lab.node.cgroup + "/publisher")


@pytest.mark.parametrize("step", ["publish.opened", "publish.recorded", "publisher.started"])
def test_an_agent_that_is_killed_while_it_publishes_is_followed_by_one_that_does_what_the_record_says(
    lab: Lab, step: str
) -> None:
    port = free_port()
    lab.node.kill()
    lab.node.start(f"{step}:1")
    with pytest.raises(Unreachable):
        lab.publish(lab.red, port)
    lab.node.kill()
    lab.node.start()
    try:
        published = lab.node.call(api.VM_SHOW, {"vm": "red"}).published
        assert bool(published) == (step != "publish.opened")
        assert is_refused(port) == (not published)
        if published:
            assert talk(port, b"") == b"red"
            assert processes.processes_in(f"{lab.node.cgroup}/publisher") == (lab.publisher.pid,)
    finally:
        lab.unpublish(lab.red, port)


def test_an_agent_that_is_killed_while_it_takes_a_port_back_is_followed_by_one_that_does(lab: Lab) -> None:
    port = free_port()
    lab.node.kill()
    lab.node.start("publish.forgotten:1")
    lab.publish(lab.red, port)
    with pytest.raises(Unreachable):
        lab.unpublish(lab.red, port)
    assert not is_refused(port)
    lab.node.kill()
    lab.node.start()
    assert is_refused(port)
    assert lab.ports(lab.red) == ()
