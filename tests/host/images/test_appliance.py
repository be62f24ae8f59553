"""The appliance built from Debian's packages and booted under plain QEMU, with no other part of Atoll around.

The test is its own DHCP and metadata server, in a network namespace of its own.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from atoll.errors import HostFailure
from atoll.images import appliance, packages
from atoll.images.store import ImageStore
from atoll.model.image import Image
from atoll.system import namespaces

CACHE = Path(os.environ.get("ATOLL_TEST_CACHE", "/var/cache/atoll"))
NAMESPACES = (f"ximg{os.getpid()}-{number}" for number in itertools.count())
MAC, IP, GATEWAY = "52:54:0a:4d:00:10", "10.77.0.16", "10.77.0.1"
SECOND_MAC, SECOND_IP = "52:54:0a:4d:00:11", "10.77.0.17"
DISCOVER, OFFER, REQUEST, ACK, NAK = 1, 2, 3, 5, 6
PATIENCE_S = 30
MACHINES = {"q35": ("q35", "virtio-net-pci,romfile="), "microvm": ("microvm,acpi=on", "virtio-net-device")}


@dataclass
class Seen:
    """One message of the guest: its type, whether it came from an address of its own, when."""

    kind: int
    own_address: str
    server: bytes | None
    at: float


@dataclass
class Dhcp:
    """As much of a DHCP server as the guest needs; says what it heard."""

    lease_s: int = 3600
    refuse: bool = False
    heard: list[Seen] = field(default_factory=list)

    def answer(self, query: bytes) -> bytes:
        options = options_of(query[240:])
        kind = options[53][0]
        self.heard.append(Seen(kind, socket.inet_ntoa(query[12:16]), options.get(54), time.monotonic()))
        reply = OFFER if kind == DISCOVER else ACK
        if self.refuse and reply == ACK:
            reply, self.refuse = NAK, False
        second = query[28:34] == bytes.fromhex(SECOND_MAC.replace(":", ""))
        address = socket.inet_aton(SECOND_IP if second else IP)
        nothing = bytes(4)
        addresses = (nothing, address, nothing, nothing)
        head = struct.pack(">BBBB4sHH4s4s4s4s16s", 2, 1, 6, 0, query[4:8], 0, 0, *addresses, query[28:44])
        return head.ljust(236, b"\0") + b"\x63\x82\x53\x63" + self._options(reply, second)

    def _options(self, reply: int, second: bool) -> bytes:
        gateway = socket.inet_aton(GATEWAY)
        options = {
            53: bytes([reply]),
            54: gateway,
            51: struct.pack(">I", self.lease_s),
            1: socket.inet_aton("255.255.255.0"),
        }
        options |= {12: b"not-the-name"} if second else self._of_the_first(gateway)
        return b"".join(bytes([code, len(value)]) + value for code, value in options.items()) + b"\xff"

    def _of_the_first(self, gateway: bytes) -> dict[int, bytes]:
        return {
            6: gateway,
            12: b"web",
            15: b"atoll.test",
            26: struct.pack(">H", 1400),
            3: socket.inet_aton("10.77.0.99"),
            121: b"\0" + gateway,
        }


def options_of(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data) and data[at] != 255:
        if data[at] == 0:
            at += 1
            continue
        found[data[at]] = data[at + 2 : at + 2 + data[at + 1]]
        at += 2 + data[at + 1]
    return found


@dataclass
class Metadata:
    """What the metadata server says, after so many failures."""

    user_data: bytes | None = None
    failures: int = 0
    token: str | None = None
    lost_tokens: int = 0
    heard: list[tuple[str, str, str | None]] = field(default_factory=list)

    def answer(self, path: str, token: str | None) -> tuple[int, bytes]:
        self.heard.append(("GET", path, token))
        if self.failures:
            self.failures -= 1
            return 503, b""
        if token != self.token:
            return 401, b""
        if path == "/latest/dynamic/instance-identity/document":
            return 200, b'{"region": {"instance_id": "no"}, "instance_id": "i-42"}'
        if path == "/latest/user-data" and self.user_data is not None:
            return 200, self.user_data
        return 404, b""

    def give_token(self, path: str, life_s: str | None) -> tuple[int, bytes]:
        self.heard.append(("PUT", path, life_s))
        if path != "/latest/api/token" or not life_s or self.token is None:
            return 404, b""
        if self.lost_tokens:
            self.lost_tokens -= 1
            return 200, b"one-of-a-service-that-has-ended"
        return 200, self.token.encode()

    def handler(self) -> type[BaseHTTPRequestHandler]:
        metadata = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(*metadata.answer(self.path, self.headers["X-aws-ec2-metadata-token"]))

            def do_PUT(self) -> None:
                life_s = self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
                self._send(*metadata.give_token(self.path, life_s))

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


@contextmanager
def network() -> Iterator[str]:
    """A namespace with two taps in a bridge that has the gateway's address, and the metadata address."""
    name = next(NAMESPACES)
    namespaces.ensure(name)
    try:
        for words in (
            "link add br0 address 02:77:00:00:00:01 type bridge",
            f"address add {GATEWAY}/24 dev br0",
            "link set br0 up",
            "address add 169.254.169.254/32 dev lo",
            "tuntap add tap0 mode tap vnet_hdr",
            "link set tap0 master br0 up",
            "tuntap add tap1 mode tap vnet_hdr",
            "link set tap1 master br0 up",
        ):
            subprocess.run(["ip", "-n", name, *words.split()], check=True, capture_output=True)
        yield name
    finally:
        namespaces.delete(name)


@contextmanager
def dhcp_server(namespace: str, dhcp: Dhcp) -> Iterator[None]:
    with namespaces.inside(namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"br0")
        listener.bind(("", 67))
        listener.settimeout(0.1)
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                with suppress(TimeoutError):
                    query, sender = listener.recvfrom(2048)
                    to = sender[0] if sender[0] != "0.0.0.0" else "255.255.255.255"
                    listener.sendto(dhcp.answer(query), (to, 68))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@contextmanager
def metadata_server(namespace: str, metadata: Metadata) -> Iterator[None]:
    address = ("169.254.169.254", 80)
    with namespaces.inside(namespace, lambda: ThreadingHTTPServer(address, metadata.handler())) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    return ImageStore(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def built(store: ImageStore) -> Image:
    return appliance.build(store, CACHE, lambda _: None)


@dataclass
class Guest:
    process: subprocess.Popen[bytes]
    namespace: str
    directory: Path
    dhcp: Dhcp
    metadata: Metadata

    def ask(self, path: str = "/", timeout_s: float = 2, ip: str = IP) -> dict[str, Any]:
        def fetch() -> dict[str, Any]:
            with urllib.request.urlopen(f"http://{ip}{path}", timeout=timeout_s) as reply:
                return json.load(reply)

        return namespaces.inside(self.namespace, fetch)

    def ready(self) -> dict[str, Any]:
        return until(lambda: self.ask(timeout_s=0.2), f"the guest answers; it said:\n{self.log()}")

    def connect(self) -> socket.socket:
        return namespaces.inside(self.namespace, lambda: socket.create_connection((IP, 80), timeout=5))

    def log(self) -> str:
        return (self.directory / "console.log").read_text(errors="replace")

    def qmp(self, command: str, **arguments: str) -> bool:
        """Whether QEMU did it."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.connect(str(self.directory / "qmp"))
            stream = monitor.makefile("rw")
            stream.readline()
            for name, given in (("qmp_capabilities", {}), (command, arguments)):
                stream.write(json.dumps({"execute": name, "arguments": given}) + "\n")
                stream.flush()
                answer = next(line for line in map(json.loads, stream) if "event" not in line)
            stream.close()
            return "return" in answer


def until(attempt: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        with suppress(OSError, AssertionError):
            if result := attempt():
                return result
        time.sleep(0.02)
    raise AssertionError(f"not within {patience_s} s: {what}")


@contextmanager
def booting(
    store: ImageStore,
    image: Image,
    directory: Path,
    *,
    machine: str = "q35",
    memory_mib: int = 128,
    dhcp: Dhcp | None = None,
    metadata: Metadata | None = None,
    devices: tuple[str, ...] = (),
) -> Iterator[Guest]:
    dhcp, metadata = dhcp or Dhcp(), metadata or Metadata()
    machine_type, card = MACHINES[machine]
    # Without the hint a microvm may hang while it calibrates its clock.
    hint = f" tsc_early_khz={tsc_khz()}" if machine == "microvm" else ""
    kernel, initrd = (store.path(image, file) for file in (image.boot.kernel, image.boot.initrd))
    line = f"socket,id=line,path={directory}/line,server=on,wait=off,logfile={directory}/console.log"
    argv = [
        *("qemu-system-x86_64", "-M", machine_type, "-accel", "tcg", "-cpu", "max", "-m", str(memory_mib)),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-kernel", str(kernel), "-initrd", str(initrd), "-append", image.boot.cmdline + hint),
        *("-chardev", line, "-serial", "chardev:line", "-qmp", f"unix:{directory}/qmp,server=on,wait=off"),
        *("-netdev", "tap,id=net,ifname=tap0,script=no,downscript=no"),
        *("-device", f"{card},netdev=net,mac={MAC}"),
        *devices,
    ]
    (directory / "console.log").touch()
    with (
        network() as namespace,
        dhcp_server(namespace, dhcp),
        metadata_server(namespace, metadata),
        subprocess.Popen(["ip", "netns", "exec", namespace, *argv]) as process,
    ):
        try:
            yield Guest(process, namespace, directory, dhcp, metadata)
        finally:
            process.kill()


def tsc_khz() -> int:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("cpu MHz"):
            return int(float(line.partition(":")[2]) * 1000)
    raise AssertionError("no cpu MHz in /proc/cpuinfo")


@pytest.fixture(scope="module", params=list(MACHINES))
def booted(
    request: pytest.FixtureRequest,
    store: ImageStore,
    built: Image,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Guest]:
    metadata = Metadata(b"#!/bin/sh\necho the name is $(hostname)\nls / | grep -q etc && exit 7\n")
    directory = tmp_path_factory.mktemp("guest")
    with booting(store, built, directory, machine=request.param, metadata=metadata) as guest:
        guest.ready()
        yield guest


def test_the_guest_says_who_it_is(booted: Guest) -> None:
    said = booted.ask()
    assert (said["hostname"], said["ip"], said["mac"]) == ("web", IP, MAC)
    assert said["instance_id"] == "i-42"
    assert said["user_data_sha256"] == hashlib.sha256(booted.metadata.user_data or b"").hexdigest()
    assert len(said["boot_id"]) == 36
    assert booted.ask()["uptime_s"] > said["uptime_s"]


def test_user_data_that_is_a_script_runs_and_its_status_shows(booted: Guest) -> None:
    until(lambda: booted.ask()["user_data_status"] == 7, "the script's exit status")
    assert "the name is web" in booted.log()


def test_the_boot_log_tells_each_step_once(booted: Guest) -> None:
    steps = (
        "kernel is up",
        "dhcp: discover",
        f"dhcp: bound to {IP} as web",
        "metadata: instance i-42",
        "ready: port 80",
    )
    positions = [booted.log().find(f"atoll: {step}") for step in steps]
    assert -1 not in positions
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\nHost: web\r\nX-Long: " + b"x" * 1900 + b"\r\n\r\n", 200),
        (b"GET /other HTTP/1.1\r\nHost: web\r\n\r\n", 404),
        (b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        (b"\0\xff garbage\n\n", 400),
        (b"A" * 10000, 400),
    ],
)
def test_every_request_gets_its_status(booted: Guest, request_bytes: bytes, status: int) -> None:
    with booted.connect() as connection:
        connection.sendall(request_bytes)
        assert connection.recv(4096).startswith(b"HTTP/1.1 %d " % status)


def test_idle_clients_do_not_keep_others_out(booted: Guest) -> None:
    idle = [booted.connect() for _ in range(40)]
    try:
        assert booted.ask(timeout_s=1)["hostname"] == "web"
    finally:
        for connection in idle:
            connection.close()


def test_the_guest_took_routes_mtu_and_resolver_from_its_lease(booted: Guest) -> None:
    with shell(booted) as console:
        assert "default via 10.77.0.1 " in console.run("ip route")
        assert "mtu 1400 " in console.run("ip link show eth0")
        assert "search atoll.test" in console.run("cat /etc/resolv.conf")


def test_enter_on_the_console_starts_a_shell_with_job_control_and_another_after_it(booted: Guest) -> None:
    with shell(booted) as console:
        assert "/dev/ttyS0" in console.run("tty")
        assert "Running" in console.run("sleep 100 & jobs")
        first = process_number(console.run("echo pid=$$"))
        time.sleep(1)  # one that ends at once is taken for broken
        console.type_in("exit", until="built-in shell")
        assert process_number(console.run("echo pid=$$")) != first


def process_number(said: str) -> str:
    found = re.search(r"pid=(\d+)", said)
    assert found, said
    return found.group(1)


@dataclass
class Shell:
    line: socket.socket

    def type_in(self, text: str, until: str) -> str:
        self.line.sendall(text.encode() + b"\r")
        said = ""
        while until not in said:
            said += self.line.recv(4096).decode(errors="replace")
        return said

    def run(self, command: str) -> str:
        # The terminal echoes what is typed; only the shell makes a sum of it.
        return self.type_in(f"{command}\recho END$((40 + 2))", until="END42")


@contextmanager
def shell(guest: Guest) -> Iterator[Shell]:
    """The shell on the guest's console."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(guest.directory / "line"))
        line.settimeout(10)
        at_console = Shell(line)
        at_console.type_in("", until="# ")
        yield at_console


@pytest.mark.parametrize("machine", list(MACHINES))
def test_the_power_button_powers_it_off(
    store: ImageStore, built: Image, tmp_path: Path, machine: str
) -> None:
    stubborn = Metadata(b"#!/bin/sh\ntrap '' TERM HUP\nsleep 1000\n")
    memory_mib = built.min_memory_mib
    with booting(store, built, tmp_path, machine=machine, memory_mib=memory_mib, metadata=stubborn) as guest:
        guest.ready()
        time.sleep(0.5)  # the button's driver is loaded once the guest is ready
        guest.qmp("system_powerdown")
        assert guest.process.wait(PATIENCE_S) == 0
        assert "atoll: powering off" in guest.log()


def test_user_data_of_a_mebibyte_is_hashed_and_late_metadata_waited_for(
    store: ImageStore, built: Image, tmp_path: Path
) -> None:
    user_data = os.urandom(1024 * 1024)
    with booting(store, built, tmp_path, metadata=Metadata(user_data, failures=3)) as guest:
        said = guest.ready()
        assert said["user_data_sha256"] == hashlib.sha256(user_data).hexdigest()
        assert said["instance_id"] == "i-42"
        assert said["user_data_status"] is None
        assert guest.metadata.failures == 0


def test_a_guest_without_user_data_has_the_hash_of_nothing_and_keeps_its_lease(
    store: ImageStore, built: Image, tmp_path: Path
) -> None:
    with booting(store, built, tmp_path, dhcp=Dhcp(lease_s=14)) as guest:
        assert guest.ready()["user_data_sha256"] == hashlib.sha256().hexdigest()
        asked = [seen for seen in guest.dhcp.heard if seen.kind == REQUEST]
        assert asked[0].server == socket.inet_aton(GATEWAY)
        renewal = until(lambda: [seen for seen in guest.dhcp.heard if seen.own_address == IP], "a renewal")[0]
        assert renewal.kind == REQUEST
        assert renewal.server is None
        assert 4 < renewal.at - asked[-1].at < 12
        assert guest.ask()["ip"] == IP
        guest.dhcp.refuse = True
        until(lambda: guest.log().count("dhcp: bound") == 2, "a new lease after a refusal")
        assert "is lost: the server refused it" in guest.log()
        assert guest.ready()["ip"] == IP


SECOND_NIC = {
    "driver": "virtio-net-pci",
    "id": "nic",
    "netdev": "second",
    "bus": "socket1",
    "mac": SECOND_MAC,
}


def test_a_second_interface_has_its_own_lease_and_answers_by_itself_and_may_come_and_go(
    store: ImageStore, built: Image, tmp_path: Path
) -> None:
    # Both in one network, where the kernel alone would answer for both addresses by the first.
    devices = (
        *("-device", "pcie-root-port,id=socket1,chassis=1"),
        *("-netdev", "tap,id=second,ifname=tap1,script=no,downscript=no"),
        *("-device", "virtio-net-pci,romfile=,id=nic,netdev=second,bus=socket1,mac=" + SECOND_MAC),
    )
    first = {"name": "eth0", "mac": MAC, "ip": IP}
    second = {"name": "eth1", "mac": SECOND_MAC, "ip": SECOND_IP}
    with booting(store, built, tmp_path, devices=devices) as guest:
        assert guest.ready()["interfaces"][0] == first
        until(lambda: guest.ask()["interfaces"] == [first, second], "the second interface has its lease")
        with sniffing(guest.namespace, "tap0") as by_the_first:
            assert guest.ask(ip=SECOND_IP)["hostname"] == "web"
            assert SECOND_IP not in senders(by_the_first)
        with shell(guest) as console:
            routes = console.run("ip route")
            assert routes.count("default") == 1
            assert "default via 10.77.0.1 dev eth0" in routes
            assert "dev eth1" in console.run(f"ip route get {GATEWAY} from {SECOND_IP}")
            assert "web" in console.run("hostname; cat /etc/hosts")
        guest.qmp("device_del", id="nic")
        until(lambda: guest.ask()["interfaces"] == [first], "the second interface is gone")
        until(lambda: guest.qmp("device_add", **SECOND_NIC), "its place is free")
        until(lambda: guest.ask()["interfaces"] == [first, second], f"another one has come; {guest.log()}")
        assert guest.ask(ip=SECOND_IP)["ip"] == IP


@contextmanager
def sniffing(namespace: str, interface: str) -> Iterator[socket.socket]:
    """What comes in by an interface, from now on."""
    every = socket.htons(3)
    kind = (socket.AF_PACKET, socket.SOCK_DGRAM, every)
    with namespaces.inside(namespace, lambda: socket.socket(*kind)) as sniffer:
        namespaces.inside(namespace, lambda: sniffer.bind((interface, 3)))
        sniffer.setblocking(False)
        yield sniffer


def senders(sniffer: socket.socket) -> set[str]:
    found = set()
    with suppress(BlockingIOError):
        while packet := sniffer.recvfrom(65536):
            data, (_, protocol, kind, *_) = packet
            if kind == socket.PACKET_OUTGOING:
                continue
            if protocol == 0x0800:
                found.add(socket.inet_ntoa(data[12:16]))
            elif protocol == 0x0806:
                found.add(socket.inet_ntoa(data[14:18]))
    return found


def test_a_guest_gets_a_token_where_one_is_wanted_and_another_where_that_is_lost(
    store: ImageStore, built: Image, tmp_path: Path
) -> None:
    metadata = Metadata(b"for holders only", token="AQAAA-_42==", lost_tokens=1)
    with booting(store, built, tmp_path, metadata=metadata) as guest:
        said = guest.ready()
        assert said["user_data_sha256"] == hashlib.sha256(b"for holders only").hexdigest()
        assert said["instance_id"] == "i-42"
    assert metadata.heard[0][0] == "PUT", "most services want one: asking without it first costs a round trip"
    lives_s = [life_s for verb, _, life_s in metadata.heard if verb == "PUT"]
    assert len(lives_s) >= 2
    assert set(lives_s) == {"21600"}
    with_token = {path for _, path, token in metadata.heard if token == metadata.token}
    assert with_token == {"/latest/dynamic/instance-identity/document", "/latest/user-data"}


def test_a_second_build_changes_nothing_and_asks_nobody(
    store: ImageStore, built: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    progress: list[str] = []
    began = time.monotonic()
    assert appliance.build(store, CACHE, progress.append) == built
    assert time.monotonic() - began < 0.5
    assert progress == []


@pytest.fixture
def filled_cache(built: Image, tmp_path: Path) -> Path:
    """A cache that holds the kernel and its hash, and that no other test uses."""
    cache = tmp_path / "cache"
    cache.mkdir()
    for package in CACHE.glob("*.deb*"):
        (cache / package.name).symlink_to(package)
    return cache


def test_a_build_without_apt_uses_the_cache_and_gives_the_same_bytes(
    built: Image, filled_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path_without("apt-cache", tmp_path))
    kept = {path.name for path in filled_cache.iterdir()}
    left_by_one_that_was_killed = filled_cache / ".workshop"
    left_by_one_that_was_killed.mkdir(0o700)
    (left_by_one_that_was_killed / "package").mkdir()
    progress: list[str] = []
    again = appliance.build(ImageStore(tmp_path / "images"), filled_cache, progress.append)
    assert again.digest == built.digest
    assert "from the cache: getting a kernel: apt-cache is missing" in progress[0]
    assert {path.name for path in filled_cache.iterdir()} == kept


@pytest.mark.parametrize(("tool", "package"), [("musl-gcc", "musl-tools"), ("lz4", "lz4")])
def test_a_missing_tool_is_named_with_its_package(
    filled_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, package: str
) -> None:
    monkeypatch.setenv("PATH", path_without(tool, tmp_path))
    store = ImageStore(tmp_path / "images")
    with pytest.raises(HostFailure, match=f"{tool} is missing") as missing:
        appliance.build(store, filled_cache, lambda _: None)
    assert missing.value.hint == f"install it: apt-get install {package}"
    assert store.list() == ()


def path_without(tool: str, directory: Path) -> str:
    """A PATH with every program of this host but one."""
    bin_directory = directory / "bin"
    bin_directory.mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name != tool:
            (bin_directory / program.name).symlink_to(program)
    return str(bin_directory)


@pytest.fixture
def apt_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A repository of two tiny packages in a directory, and apt told to know nothing else."""
    name = "linux-image-6.1.0-9-cloud-amd64"
    pool = tmp_path / "pool"
    pool.mkdir()
    for package, depends in ((name, ""), (packages.META_PACKAGE, f"Depends: {name}\n")):
        control = tmp_path / package / "DEBIAN" / "control"
        control.parent.mkdir(parents=True)
        control.write_text(
            f"Package: {package}\nVersion: 6.1.27-1\nArchitecture: amd64\n{depends}"
            "Maintainer: Nobody <nobody@example.org>\nDescription: nothing\n"
        )
        subprocess.run(
            ["dpkg-deb", "-b", str(tmp_path / package), str(pool)], check=True, capture_output=True
        )
    scan = ""
    for file in sorted(pool.iterdir()):
        field_text = subprocess.run(
            ["dpkg-deb", "-f", str(file)], check=True, capture_output=True, text=True
        ).stdout
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        scan += f"{field_text}Filename: ./{file.name}\nSize: {file.stat().st_size}\nSHA256: {digest}\n\n"
    (pool / "Packages").write_text(scan)
    (tmp_path / "sources.list").write_text(f"deb [trusted=yes] file:{pool} ./\n")
    for directory in ("lists/partial", "cache/archives/partial"):
        (tmp_path / "apt" / directory).mkdir(parents=True)
    (tmp_path / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{tmp_path}/sources.list";\nDir::Etc::sourceparts "-";\n'
        f'Dir::State::lists "{tmp_path}/apt/lists";\nDir::Cache "{tmp_path}/apt/cache";\n'
        'APT::Sandbox::User "root";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    subprocess.run(["apt-get", "-q", "update"], check=True, capture_output=True)
    return f"{name}_6.1.27-1_amd64.deb"


def test_the_kernel_comes_from_apt_once(apt_repository: str, tmp_path: Path) -> None:
    cache = tmp_path / "not" / "yet" / "there"
    progress: list[str] = []
    fetched = packages.fetch_kernel(cache, progress.append)
    assert fetched.path == cache / apt_repository
    assert packages.fetch_kernel(cache, progress.append) == fetched
    assert progress == ["downloading linux-image-6.1.0-9-cloud-amd64"]
    assert sorted(path.name for path in cache.iterdir()) == [apt_repository, f"{apt_repository}.sha256"]


def test_a_failed_download_says_why_and_leaves_nothing(apt_repository: str, tmp_path: Path) -> None:
    cache = tmp_path / "downloads"
    (tmp_path / "pool" / apt_repository).unlink()
    with pytest.raises(HostFailure, match=r"downloading linux-image-6\.1\.0-9-cloud-amd64") as failed:
        appliance.build(ImageStore(tmp_path / "images"), cache, lambda _: None)
    assert str(cache) in failed.value.hint
    assert list(cache.iterdir()) == []


def test_a_package_without_a_kernel_is_refused_and_nothing_is_added(
    apt_repository: str, tmp_path: Path
) -> None:
    cache = tmp_path / "downloads"
    store = ImageStore(tmp_path / "images")
    with pytest.raises(HostFailure, match="there is no kernel in it"):
        appliance.build(store, cache, lambda _: None)
    assert store.list() == ()
    assert sorted(path.name for path in cache.iterdir()) == [apt_repository, f"{apt_repository}.sha256"]
