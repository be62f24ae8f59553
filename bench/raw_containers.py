"""The limits of creating containers: the same guest, started by hand with the stock tools.

    namespace ── br0: gateway, 169.254.169.254, DHCP ═══ lxc-start -d (unprivileged, its root unpacked already)
                                                     ═══ docker run -d (the image imported already)

No agent, record, overlay of our own, firewall or limits. Effects: a network namespace, a container engine in it,
a control group, and containers, all removed at the end.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from own_cloud import ask, undisturbed
from raw_qemu import OnlyGuest, answering

from atoll.drivers.machine.lxc.config import seccomp_profile
from atoll.drivers.machine.lxc.roots import unpack_argv
from atoll.guestnet.dhcp.answer import Lease
from atoll.guestnet.dhcp.server import DhcpServer
from atoll.guestnet.metadata.server import MetadataServer
from atoll.model.network import METADATA_IP, Subnet, mac_for
from atoll.model.vm import VM
from atoll.system import cgroups, namespaces

BRIDGE = "br0"
SUBNET = Subnet(id="raw", cidr="10.98.0.0/24", gateway="10.98.0.1", domain="atoll.internal")
LXC_IP = "10.98.0.2"
DOCKER_RANGE = "10.98.0.128/25"
IDS = 0x7000_0000
IMAGE = "atoll-bench/raw"
NAME = "raw"
PAUSE_S = 0.002
PATIENCE_S = 60.0
ENGINE_PATIENCE_S = 30.0

# A mount namespace in which /sys is that of the network namespace, as LXC wants it, and /run is ours alone.
HOLD = """
set -e
mount --make-rslave /
mkdir -p "$0/groups"
mount --rbind /sys/fs/cgroup "$0/groups"
mount -t sysfs none /sys
mount --move "$0/groups" /sys/fs/cgroup
mount -t tmpfs none /run
echo ready
read -r _
"""


class RawContainers:
    """Starts containers one after the other, and times them."""

    def __init__(self, namespace: str, vm: VM, directory: Path, holder: int, engine: Path) -> None:
        self._namespace = namespace
        self._vm = vm
        self._directory = directory
        self._holder = holder
        self._engine = engine
        self._metadata_read = threading.Event()

    def lxc(self) -> float:
        """Seconds from starting lxc-start to the guest's answer."""
        began = self.begin()
        with self.lxc_runs():
            return self.answer(LXC_IP, began)

    def docker(self) -> float:
        """Seconds from starting docker to the guest's answer."""
        began = self.begin()
        with self.docker_runs():
            settings = json.loads(engine_says(self._engine, f"/containers/{NAME}/json"))["NetworkSettings"]
            return self.answer(settings["IPAddress"], began)

    @contextmanager
    def lxc_runs(self) -> Iterator[None]:
        """A container by lxc-start, which may still be at it."""
        config = str(self._directory / "config")
        start = subprocess.Popen([*self.lxc_command("start"), "-f", config, "-d"])
        try:
            yield
        finally:
            start.wait()
            subprocess.run([*self.lxc_command("stop"), "-k"], check=True)

    @contextmanager
    def docker_runs(self) -> Iterator[None]:
        """A container by docker run."""
        words = ("run", "--detach", "--tty", "--name", NAME, IMAGE)
        subprocess.run([*self.docker_command, *words], check=True, stdout=subprocess.DEVNULL)
        try:
            yield
        finally:
            remove = [*self.docker_command, "rm", "--force", NAME]
            subprocess.run(remove, check=True, stdout=subprocess.DEVNULL)

    def lxc_command(self, verb: str) -> list[str]:
        """A tool of LXC, for the container."""
        enter = ["nsenter", f"--target={self._holder}", "--mount", "--net", "--", "env", "PATH=/none"]
        return [*enter, f"/usr/bin/lxc-{verb}", "-n", NAME, "-P", str(self._directory)]

    @property
    def docker_command(self) -> list[str]:
        return ["docker", f"--host=unix://{self._engine}"]

    def begin(self) -> float:
        """Now; from here on the guest is expected."""
        self._metadata_read.clear()
        return time.monotonic()

    def answer(self, ip: str, began: float) -> float:
        """Seconds since it began until the guest's answer."""
        # Its port opens after it has read its metadata; trying earlier would lose packets, and time.
        if not self._metadata_read.wait(PATIENCE_S):
            raise RuntimeError("the raw guest does not ask for its metadata")
        while not namespaces.inside(self._namespace, lambda: _answers(ip)):
            time.sleep(PAUSE_S)
        namespaces.inside(self._namespace, lambda: ask(ip))
        return time.monotonic() - began

    def only_guest(self) -> OnlyGuest:
        """What its questions are answered with, whatever the address that an engine gave it."""
        return OnlyGuest(Lease(LXC_IP, mac_for(LXC_IP), self._vm.name, SUBNET), self._vm, self._asked)

    def _asked(self, stage: str) -> None:
        if stage == "metadata":
            self._metadata_read.set()


@contextmanager
def raw_place() -> Iterator[tuple[str, Path, Path]]:
    """A namespace with a bridge, a directory, and the socket of an engine whose containers are in that bridge."""
    name = f"atoll-bench-{os.getpid()}"
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="atoll-bench-raw-", dir="/var/tmp"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        stack.enter_context(_namespace(name))
        yield name, directory, stack.enter_context(_engine(name, directory))


@contextmanager
def raw_containers(place: tuple[str, Path, Path], vm: VM, rootfs: Path) -> Iterator[RawContainers]:
    """Everything that both stock tools need, and somebody who answers DHCP and metadata."""
    name, directory, engine = place
    with ExitStack() as stack:
        holder = stack.enter_context(_holder(name, directory))
        _prepare_lxc(directory, rootfs, name)
        stack.callback(cgroups.remove, name)
        subprocess.run(
            ["docker", f"--host=unix://{engine}", "import", "--change", 'CMD ["/sbin/init"]', rootfs, IMAGE],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        raw = RawContainers(name, vm, directory, holder, engine)
        guest = raw.only_guest()
        stack.enter_context(answering(DhcpServer(name, BRIDGE, guest), MetadataServer(name, guest)))
        yield raw


def _prepare_lxc(directory: Path, rootfs: Path, group: str) -> None:
    root = directory / "root"
    directory.chmod(0o755)
    root.mkdir()
    subprocess.run(unpack_argv(rootfs, root), check=True)
    for path in (root, *root.rglob("*")):
        os.lchown(path, IDS, IDS)
    (directory / "seccomp").write_text(seccomp_profile())
    settings = {
        "lxc.uts.name": NAME,
        "lxc.rootfs.path": f"dir:{root}",
        "lxc.init.cmd": "/sbin/init",
        "lxc.apparmor.profile": "unconfined",
        "lxc.seccomp.profile": str(directory / "seccomp"),
        "lxc.mount.auto": "proc:mixed sys:ro",
        "lxc.cgroup.dir.monitor": f"{group}/monitor",
        "lxc.cgroup.dir.container": f"{group}/container",
        "lxc.cgroup.dir.monitor.pivot": f"{group}/pivot",
        "lxc.net.0.type": "veth",
        "lxc.net.0.link": BRIDGE,
        "lxc.net.0.name": "eth0",
        "lxc.net.0.hwaddr": mac_for(LXC_IP),
        "lxc.net.0.flags": "up",
    }
    lines = [f"{key} = {value}" for key, value in settings.items()]
    lines += [f"lxc.idmap = {kind} 0 {IDS} 65536" for kind in "ug"]
    (directory / "config").write_text("\n".join(lines) + "\n")


@contextmanager
def _holder(namespace: str, directory: Path) -> Iterator[int]:
    command = ["unshare", "--mount", "sh", "-c", HOLD, str(directory)]
    with namespaces.inside(
        namespace, lambda: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError("the place for raw LXC containers could not be made")
        try:
            yield process.pid
        finally:
            process.stdin.close()


@contextmanager
def _engine(namespace: str, directory: Path) -> Iterator[Path]:
    listening = directory / "docker.sock"
    command = [
        "unshare", "--mount", "--propagation", "slave", "--", "dockerd", f"--data-root={directory / 'data'}",
        f"--exec-root={directory / 'exec'}", f"--host=unix://{listening}", f"--pidfile={directory / 'pid'}",
        f"--bridge={BRIDGE}", f"--fixed-cidr={DOCKER_RANGE}", "--iptables=false", "--ip6tables=false",
        "--ip-forward=false", "--ip-masq=false",
    ]  # fmt: skip
    with (directory / "engine.log").open("wb") as log:
        process = namespaces.inside(
            namespace,
            lambda: subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            ),
        )
    try:
        until = time.monotonic() + ENGINE_PATIENCE_S
        while not _is_up(listening):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"dockerd does not start: {(directory / 'engine.log').read_text()[-500:]}")
            time.sleep(0.05)
        yield listening
    finally:
        with undisturbed():
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _is_up(listening: Path) -> bool:
    try:
        return engine_says(listening, "/_ping") == b"OK"
    except (OSError, http.client.HTTPException):
        return False


def engine_says(listening: Path, path: str) -> bytes:
    connection = http.client.HTTPConnection("engine", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(os.fspath(listening))
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


@contextmanager
def _namespace(name: str) -> Iterator[None]:
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "link", "add", BRIDGE, "type", "bridge", "forward_delay", "0")
        _ip("-n", name, "address", "add", f"{SUBNET.gateway}/24", "dev", BRIDGE)
        _ip("-n", name, "address", "add", f"{METADATA_IP}/32", "dev", BRIDGE)
        _ip("-n", name, "link", "set", BRIDGE, "address", "02:00:00:00:00:01", "up")
        _ip("-n", name, "neighbour", "add", LXC_IP, "lladdr", mac_for(LXC_IP), "dev", BRIDGE)
        yield
    finally:
        with undisturbed():
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


def _answers(ip: str) -> bool:
    try:
        socket.create_connection((ip, 80), timeout=1).close()
    except OSError:
        return False
    return True


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
