"""How long a node is without its agent when that is killed: 100 simulated and 10 real VMs, beside a node without any.

Effects: two clouds of the bench's own; agents that are killed and started again.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from measuring import Figure, Findings, alternate, at_most, say
from own_cloud import OwnCloud, own_cloud, undisturbed

from atoll.api import hypervisor as api
from atoll.api.hypervisor import PORT, CreateVm, Wait
from atoll.images.store import ImageStore
from atoll.model.image import DirectBoot
from atoll.model.vm import VmSpec

TITLE = "Restart of the agent"
ROUNDS = 7
SIMULATED = 100
REAL = 10
BOUND_S = 5.0
FULL = f"kill -9 to serving, {SIMULATED} simulated and {REAL} real VMs"
EMPTY = "the same without VMs"


def measure() -> Findings:
    with own_cloud() as nothing, own_cloud() as full, own_agent(nothing) as empty, own_agent(full) as agent:
        say(f"{SIMULATED} simulated and {REAL} real VMs")
        fill(full)
        before, machines = listed(full), real_machines(full)
        contestants: dict[str, Callable[[], float]] = {EMPTY: empty.restart, FULL: agent.restart}
        taken = alternate(ROUNDS, contestants, say)
        untouched = listed(full) == before and real_machines(full) == machines
    target = at_most(f"at most {BOUND_S:g} s", taken[FULL].median, BOUND_S)
    return Findings(
        (Figure(FULL, "s", taken[FULL], taken[EMPTY], target),),
        notes=(
            f"Every VM as it was, every QEMU the same process: {'yes' if untouched else '**no**'}.",
            "From SIGKILL to the first answer over mTLS; what a Python process takes to load is in both.",
        ),
    )


class OwnAgent:
    """The agent of a cloud, with simulated machines beside real ones."""

    def __init__(self, cloud: OwnCloud, **settings: object) -> None:
        self._cloud = cloud
        told = json.loads(cloud.paths.agent.read_text())
        told |= {"drivers": ["qemu", "sim"], "templates": 0, **settings}
        self._config = cloud.paths.directory / "bench.json"
        self._config.write_text(json.dumps(told))
        self._process = self._start()

    def restart(self) -> float:
        """Seconds without an agent."""
        began = time.monotonic()
        self.kill()
        self._process = self._start()
        with self._cloud.client() as client:
            client.call(api.NODE_SHOW)
        return time.monotonic() - began

    @property
    def memory_mib(self) -> float:
        """What it has in memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:"))

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "atoll.hypervisor", str(self._config)]
        written = self._cloud.paths.directory / "bench.log"
        with written.open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        while process.poll() is None:
            try:
                socket.create_connection((self._cloud.cloud.node_ip, PORT), timeout=1).close()
                return process
            except OSError:
                time.sleep(0.005)
        say(f"the agent does not start:\n{written.read_text(errors='replace')}")
        raise subprocess.CalledProcessError(process.returncode, command)


@contextmanager
def own_agent(cloud: OwnCloud, **settings: object) -> Iterator[OwnAgent]:
    """In the place of the one that `atoll up` started; with settings of its own."""
    cloud.atoll("down")
    agent = OwnAgent(cloud, **settings)
    try:
        yield agent
    finally:
        with undisturbed():
            agent.kill()


def add_blank_image(cloud: OwnCloud) -> None:
    """What simulated machines boot."""
    blank = cloud.paths.directory / "blank"
    blank.write_bytes(b"x")
    ImageStore(cloud.paths.images).add(
        "blank",
        kinds=("sim",),
        boot=DirectBoot("kernel", "initrd"),
        files={"kernel": blank, "initrd": blank},
        min_memory_mib=16,
    )


def fill(cloud: OwnCloud) -> None:
    add_blank_image(cloud)
    with cloud.client() as client:
        for number in range(SIMULATED + REAL):
            kind = ("qemu", "appliance", 128, 100) if number < REAL else ("sim", "blank", 16, 10)
            driver, image, memory_mib, milli_cpus = kind
            spec = VmSpec(f"vm-{number}", image, driver=driver, memory_mib=memory_mib, milli_cpus=milli_cpus)
            for _ in client.stream(api.VM_CREATE, body=CreateVm(spec, wait=Wait("started", 60))):
                pass


def listed(cloud: OwnCloud) -> list[tuple[str, str, str]]:
    with cloud.client() as client:
        return sorted((vm.ip, vm.instance_id, str(vm.state)) for vm in client.call(api.VM_LIST))


def real_machines(cloud: OwnCloud) -> set[int]:
    """The processes of all QEMUs of a cloud that are still there."""
    records = (json.loads(path.read_text()) for path in cloud.paths.node.glob("vms/*/qemu/record.json"))
    return {record["pid"] for record in records if Path(f"/proc/{record['pid']}").exists()}
