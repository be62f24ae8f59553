"""One thing is broken under a node: what it shows, what still works, and that nothing stays of it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from atoll.api import changes
from atoll.api import hypervisor as api
from atoll.api.changes import ChangeVm
from atoll.api.hypervisor import StopVm, Wait
from atoll.errors import Conflict, HostFailure
from atoll.model.vm import VmState
from atoll.plan.firewall import link_for
from atoll.system import cgroups
from atoll.system.links import Links

if TYPE_CHECKING:
    from tests.host.faults.lab import Lab

T = TypeVar("T")

FULL_MIB = 4


@contextmanager
def full(directory: Path) -> Iterator[None]:
    """No byte can be written below it, as long as we are inside: its file system is full."""
    filler = directory / "filler"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    os.write(descriptor, b"x" * size)
            except OSError:
                continue
        yield
    finally:
        os.close(descriptor)
        filler.unlink()


def until(look: Callable[[], T], right: Callable[[T], object], timeout_s: float = 60) -> T:
    """What is seen as soon as it is so."""
    deadline = time.monotonic() + timeout_s
    while not right(found := look()):
        assert time.monotonic() < deadline, f"it stays as it is: {found}"
        time.sleep(0.05)
    return found


@pytest.fixture
def small_disk(qemu_node: Lab) -> Iterator[Path]:
    """The node's state is on a file system of its own that is easily full."""
    kept = subprocess.run(["tar", "-C", qemu_node.state, "-c", "."], capture_output=True, check=True).stdout
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={FULL_MIB}m,mode=711", "none", qemu_node.state], check=True
    )
    try:
        subprocess.run(["tar", "-C", qemu_node.state, "-x"], input=kept, check=True)
        yield qemu_node.state
    finally:
        qemu_node.empty()
        subprocess.run(["umount", qemu_node.state], check=True)


def test_on_a_full_disk_a_create_is_refused_and_leaves_nothing_and_the_node_starts(
    qemu_node: Lab, small_disk: Path
) -> None:
    agent = qemu_node.recovered("cold")
    with qemu_node.client() as client:
        with full(small_disk), pytest.raises(HostFailure, match="No space left on device") as refusal:
            qemu_node.create(client, "web")
        assert refusal.value.hint == "make room on that file system"
        assert qemu_node.check() == {}
        vm = qemu_node.create(client, "web")
        running = qemu_node.cloud.qemu(vm.ip)
        with full(small_disk):
            agent.kill()
            qemu_node.recovered("cold")
            client.close()
            (found,) = client.call(api.VM_LIST)
            assert (found.name, found.state) == ("web", VmState.RUNNING)
            with pytest.raises(HostFailure, match="No space left on device"):
                qemu_node.create(client, "other")
        assert qemu_node.cloud.qemu(vm.ip) == running
    assert set(qemu_node.check()) == {vm.name}


def test_on_a_full_disk_vms_are_stopped_and_destroyed_and_stay_so(qemu_node: Lab, small_disk: Path) -> None:
    agent = qemu_node.recovered("cold")
    with qemu_node.client() as client:
        kept, gone = (qemu_node.create(client, name) for name in ("kept", "gone"))
        with full(small_disk):
            client.call(api.VM_STOP, {"vm": "kept"}, body=StopVm(0))
            client.call(api.VM_DESTROY, {"vm": "gone"})
            agent.kill()
            qemu_node.recovered("cold")
            client.close()
            (found,) = client.call(api.VM_LIST)
            assert (found.ip, found.state) == (kept.ip, VmState.STOPPED)
        assert qemu_node.check().keys() == {"kept"}
        assert not (small_disk / "vms" / gone.ip).exists()
        list(client.stream(api.VM_START, {"vm": "kept"}, body=Wait("started", 60)))


def test_an_agent_tells_where_it_is_and_runs_on(sim_node: Lab) -> None:
    agent = sim_node.recovered()
    assert "uvloop/__init__.py" in sim_node.last_words(agent)
    with sim_node.client() as client:
        assert client.call(api.VM_LIST) == ()


def test_a_node_without_a_process_to_spare_refuses_a_vm_and_leaves_nothing(qemu_node: Lab) -> None:
    qemu_node.recovered("cold")
    group = f"atoll/{qemu_node.cloud.facts['id']}"
    with qemu_node.client() as client:
        qemu_node.create(client, "first")
        (limit,) = {
            path.parent / "pids.max"
            for path in cgroups.join_paths(group)
            if (path.parent / "pids.max").exists()
        }
        before, now = limit.read_text(), limit.with_name("pids.current").read_text()
        limit.write_text(now)
        try:
            with pytest.raises(HostFailure):
                qemu_node.create(client, "second")
            assert set(qemu_node.check()) == {"first"}
        finally:
            limit.write_text(before)
        qemu_node.create(client, "second")


def test_a_vm_whose_tap_vanished_is_told_and_answers_again_after_a_reboot(qemu_node: Lab) -> None:
    agent = qemu_node.recovered("cold")
    with qemu_node.client() as client, Links(qemu_node.cloud.namespace) as links:
        web = qemu_node.create(client, "web", wait_for="port:80", milli_cpus=500)
        other = qemu_node.create(client, "other")
        running = qemu_node.cloud.qemu(web.ip)
        links.delete(link_for(web.ip))
        told = until(lambda: client.call(api.VM_SHOW, {"vm": "web"}), lambda vm: vm.reason)
        assert told.state is VmState.RUNNING
        assert f"{link_for(web.ip)} was removed" in told.reason
        assert "atoll vm reboot web" in told.reason
        # It runs on, and the next agent tells the same.
        agent.kill()
        links.delete(link_for(other.ip))
        qemu_node.recovered("cold")
        client.close()
        assert qemu_node.cloud.qemu(web.ip) == running
        assert client.call(api.VM_SHOW, {"vm": "web"}) == told
        assert "atoll vm reboot other" in client.call(api.VM_SHOW, {"vm": "other"}).reason
        *_, done = client.stream(api.VM_REBOOT, {"vm": "web"}, body=Wait("port:80", 60))
        assert (done.result.state, done.result.reason) == (VmState.RUNNING, "")
        client.call(api.VM_DESTROY, {"vm": "other"})
    assert set(qemu_node.check()) == {"web"}


def test_a_qemu_that_hangs_is_found_stopped_and_destroyed(qemu_node: Lab) -> None:
    agent = qemu_node.recovered("cold")
    with qemu_node.client() as client:
        ips = [qemu_node.create(client, name).ip for name in ("one", "two")]
        for ip in ips:
            os.kill(qemu_node.cloud.qemu(ip), signal.SIGSTOP)
        assert client.call(api.VM_STOP, {"vm": "one"}, body=StopVm(1)).reason == "ended by force after 1 s"
        agent.kill()
        qemu_node.recovered("cold")
        client.close()
        assert client.call(api.VM_SHOW, {"vm": "two"}).state is VmState.RUNNING
        client.call(api.VM_DESTROY, {"vm": "two"})
    assert set(qemu_node.check()) == {"one"}


def test_a_vm_whose_monitor_is_gone_runs_on_and_can_be_ended(qemu_node: Lab) -> None:
    agent = qemu_node.recovered("cold")
    with qemu_node.client() as client:
        ips = [qemu_node.create(client, name).ip for name in ("one", "two")]
        running = [qemu_node.cloud.qemu(ip) for ip in ips]
        for ip in ips:
            (qemu_node.state / "vms" / ip / "qemu/monitor.sock").unlink()
        agent.kill()
        qemu_node.recovered("cold")
        client.close()
        assert [vm.state for vm in client.call(api.VM_LIST)] == [VmState.RUNNING] * 2
        assert [qemu_node.cloud.qemu(ip) for ip in ips] == running
        assert client.call(api.VM_STOP, {"vm": "one"}, body=StopVm(1)).state is VmState.STOPPED
        client.call(api.VM_DESTROY, {"vm": "two"})
    assert set(qemu_node.check()) == {"one"}


HARM = {
    "truncated": lambda text: text[: len(text) // 2],
    "random": lambda text: bytes((byte * 73 + number * 151) % 256 for number, byte in enumerate(text)),
    "another shape": lambda _: b'{"vm": ["web"], "want": 5}',
    "empty": lambda _: b"",
}


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_record_is_shown_with_what_to_do_and_harms_nobody_else(sim_node: Lab, harm: str) -> None:
    agent = sim_node.recovered()
    with sim_node.client() as client:
        web, other = (sim_node.create(client, name) for name in ("web", "other"))
        agent.kill()
        record = sim_node.state / "vms" / web.ip / "vm.json"
        record.write_bytes(HARM[harm](record.read_bytes()))
        harmed = record.read_bytes()
        sim_node.recovered()
        client.close()
        found = {vm.ip: vm for vm in client.call(api.VM_LIST)}
        assert found == {web.ip: found[web.ip], other.ip: other}
        assert (found[web.ip].state, found[web.ip].mac) == (VmState.DAMAGED, web.mac)
        assert f"atoll vm destroy {web.ip}" in found[web.ip].reason
        with pytest.raises(Conflict, match="it is damaged"):
            list(client.stream(api.VM_START, {"vm": web.ip}, body=Wait("started", 30)))
        with pytest.raises(Conflict, match="cannot be read"):
            client.call(changes.VM_CHANGE, {"vm": web.ip}, body=ChangeVm(tags={"a": "b"}))
        assert record.read_bytes() == harmed
        client.call(api.VM_DESTROY, {"vm": web.ip})
    assert "starting VMs after a reboot of the host failed" not in sim_node.last_words()
    assert set(sim_node.check()) == {"other"}


def test_a_real_guest_whose_record_is_damaged_runs_on_until_it_is_destroyed(qemu_node: Lab) -> None:
    agent = qemu_node.recovered("cold")
    with qemu_node.client() as client:
        vm = qemu_node.create(client, "web")
        running = qemu_node.cloud.qemu(vm.ip)
        agent.kill()
        (qemu_node.state / "vms" / vm.ip / "vm.json").write_bytes(b"")
        qemu_node.recovered("cold")
        client.close()
        assert client.call(api.VM_SHOW, {"vm": vm.ip}).state is VmState.DAMAGED
        assert qemu_node.cloud.qemu(vm.ip) == running
        assert qemu_node.ports() == {link_for(vm.ip)}
        client.call(api.VM_DESTROY, {"vm": vm.ip})
    assert qemu_node.check() == {}


def test_a_damaged_record_that_is_restored_is_the_vm_that_it_was(sim_node: Lab) -> None:
    agent = sim_node.recovered()
    with sim_node.client() as client:
        vm = sim_node.create(client, "web")
        record = sim_node.state / "vms" / vm.ip / "vm.json"
        kept = record.read_bytes()
        for content in (b"{", kept):
            agent.kill()
            record.write_bytes(content)
            agent = sim_node.recovered()
    assert sim_node.check() == {"web": vm}


def test_a_node_whose_list_of_addresses_is_damaged_goes_on_with_the_copy(sim_node: Lab) -> None:
    agent = sim_node.recovered()
    with sim_node.client() as client:
        vm = sim_node.create(client, "web")
    agent.kill()
    (sim_node.state / "node.json").write_bytes(b"{")
    sim_node.recovered()
    assert sim_node.check() == {"web": vm}


def test_an_agent_is_restarted_without_touching_what_runs(qemu_node: Lab) -> None:
    agent = qemu_node.recovered("both")
    with qemu_node.client() as client:
        for number in range(36):
            qemu_node.add_address(client, "lan", number)
        real = [qemu_node.create(client, f"real-{number}") for number in range(3)]
        for number in range(30):
            qemu_node.create(client, f"sim-{number}", driver="sim")
        before = client.call(api.VM_LIST)
        running = {vm.ip: qemu_node.cloud.qemu(vm.ip) for vm in real}
        written = {path: path.stat().st_mtime_ns for path in qemu_node.state.glob("vms/*/*.json")}
        agent.kill()
        qemu_node.recovered("both")
        client.close()
        assert client.call(api.VM_LIST) == before
    assert {vm.ip: qemu_node.cloud.qemu(vm.ip) for vm in real} == running
    assert {path: path.stat().st_mtime_ns for path in qemu_node.state.glob("vms/*/*.json")} == written


def test_what_the_agent_keeps_is_for_root_alone_and_its_command_line_tells_nothing(qemu_node: Lab) -> None:
    agent = qemu_node.recovered("cold")
    with qemu_node.client() as client:
        vm = qemu_node.create(client, "web")
    secret = [qemu_node.state / "node.json", *qemu_node.cloud.directory.glob("**/*.key")]
    secret += (qemu_node.state / "vms" / vm.ip).iterdir()
    assert len(secret) > 6
    for path in secret:
        status = path.stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode) & 0o077) == (0, 0), path
    process = Path(f"/proc/{agent.pid}")
    for text in ((process / "cmdline").read_bytes(), (process / "environ").read_bytes()):
        assert b"PRIVATE KEY" not in text
        assert b"#!secret" not in text
    inherited = [os.readlink(process / "fd" / str(number)) for number in range(3)]
    assert inherited[0] == "/dev/null"
