"""A guest that has taken over its QEMU: what it sees and reaches from there, which is nothing but its own VM."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import machine_labs as labs
import walls_intruder
from atoll.drivers.machine.qemu import record
from atoll.system import walls

SHARED_MEMORY_KEY = 0x41544F4C
NOBODY = "E3 No such process"
NOT_THERE = "E2 No such file or directory"
_IPC_CREAT = 0o1000
_IPC_RMID = 0


@pytest.fixture(scope="module")
def boot_files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return labs.make_boot_files(tmp_path_factory.mktemp("boot"))


@pytest.fixture
async def lab(tmp_path: Path, boot_files: Any) -> AsyncIterator[Any]:
    async with labs.opened(labs.QemuLab(tmp_path, boot_files)) as lab:
        yield lab


@pytest.fixture
def listening() -> Iterator[tuple[int, str]]:
    """What the host has for its own use: a port on its loopback, and an abstract socket."""
    name = f"atoll-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + name)
        abstract.listen()
        yield tcp.getsockname()[1], name


@pytest.fixture
def shared_memory() -> Iterator[int]:
    libc = ctypes.CDLL(None, use_errno=True)
    number = libc.shmget(SHARED_MEMORY_KEY, 4096, _IPC_CREAT | 0o666)
    assert number >= 0
    yield SHARED_MEMORY_KEY
    libc.shmctl(number, _IPC_RMID, None)


def intrude(pid: int, uid: int, questions: dict[str, Any]) -> dict[str, Any]:
    argv = [sys.executable, "-I", walls_intruder.__file__, str(pid), str(uid), json.dumps(questions)]
    found: dict[str, Any] = json.loads(
        subprocess.run(argv, check=True, capture_output=True, timeout=30).stdout
    )
    return found


async def test_from_the_place_of_a_qemu_there_is_no_host_no_other_vm_and_no_network(
    lab: Any, listening: tuple[int, str], shared_memory: int
) -> None:
    driver = lab.driver(labs.Exits())
    mine, other = lab.machine(5), lab.machine(6)
    # The worst case: nothing is kept from it by who may read what.
    for path in (lab.directory, *lab.directory.parents[:3], lab.directory / "vms"):
        path.chmod(0o755)
    for machine in (mine, other):
        await driver.start(machine)
    pids = [os.getpid(), lab.process(other).pid, lab.process(mine).pid]
    port, name = listening
    sockets = [record.monitor_path(machine) for machine in (mine, other)]
    for path in sockets:
        path.parent.chmod(0o755)
        path.parent.parent.chmod(0o755)
        path.chmod(0o666)

    seen = intrude(
        lab.process(mine).pid,
        mine.uid,
        {
            "pids": pids,
            "tcp": [("127.0.0.1", port), ("10.9.0.1", 80)],
            "abstract": name,
            "sockets": [str(path) for path in sockets],
            "shared memory": shared_memory,
        },
    )

    assert seen["files"] == ["/dev/null"]
    assert (seen["proc"], set(seen["command line"].values())) == (NOT_THERE, {NOT_THERE})
    assert seen["links"] == ["lo"]
    assert seen["tcp"] == ["E101 Network is unreachable"] * 2
    assert seen["abstract"] == "E111 Connection refused"
    assert seen["sockets"] == [NOT_THERE] * 2
    assert set(seen["signals"].values()) == {NOBODY} == set(seen["kill"].values())
    assert seen["memory"] == NOT_THERE
    assert seen["name"] == walls.HOST_NAME
    assert seen["process"] < 10
    assert all(said.startswith(("E30 ", "E13 ", "E2 ")) for said in seen["write"]), seen["write"]
    assert {seen["mount"], seen["namespaces"], seen["root's"]} == {"E1 Operation not permitted"}
    assert all(lab.process(machine) is not None for machine in (mine, other))


def own_namespaces(pid: int) -> set[str]:
    names = ("ipc", "mnt", "net", "pid", "uts")
    return {
        name
        for name in names
        if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
    }


async def test_every_qemu_has_namespaces_that_no_other_process_is_in(lab: Any) -> None:
    driver = lab.driver(labs.Exits())
    machines = [lab.machine(5), lab.machine(6)]
    for machine in machines:
        await driver.start(machine)
    numbers = [lab.process(machine).pid for machine in machines]

    for pid in numbers:
        assert own_namespaces(pid) == {"ipc", "mnt", "net", "pid", "uts"}
    for name in ("ipc", "mnt", "net", "pid", "uts"):
        assert len({os.readlink(f"/proc/{pid}/ns/{name}") for pid in numbers}) == 2
