"""Nodes in namespaces: real agents and their real network, with simulated machines and guests that are namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from atoll.api import hypervisor as api
from atoll.api.client import Client
from atoll.api.observing import METRICS
from atoll.identity import tls
from atoll.identity.authority import Authority
from atoll.images.store import ImageStore
from atoll.model.image import DirectBoot
from atoll.model.network import METADATA_IP, Address, Subnet, mac_for
from atoll.model.vm import VM, VmSpec
from atoll.plan.firewall import link_for
from atoll.system import cgroups, namespaces, steps
from atoll.system.links import Links

SERVING_S = 30.0
PORT = 6976
DOCUMENT = "/latest/dynamic/instance-identity/document"


class Site:
    """All that the nodes of a test share: a CA, an image, names of their own. What is made here goes with it."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.stack = stack
        self._prefix = f"xn{os.getpid()}{secrets.token_hex(2)}"
        authority = self._authority = Authority.create(directory / "ca", "test")
        self.ca, self.crl = authority.cert_path, authority.crl_path
        self.server = self._keep("server", authority.issue_server(["127.0.0.1"]))
        operator = self._keep("oper", authority.issue_user("oper", (), ()))
        self.context = tls.client_context(self.ca, *operator)
        blank = directory / "blank"
        blank.write_bytes(b"x")
        ImageStore(directory / "images").add(
            "blank",
            kinds=("sim",),
            boot=DirectBoot("kernel", "initrd"),
            files={"kernel": blank, "initrd": blank},
            min_memory_mib=16,
            ready="started",
        )

    def namespace(self, name: str) -> str:
        full = f"{self._prefix}{name}"
        self.stack.callback(namespaces.delete, full)
        namespaces.ensure(full)
        return full

    def context_of(self, user: str) -> ssl.SSLContext:
        """What a user of this name calls with, who is no operator."""
        return tls.client_context(self.ca, *self._keep(user, self._authority.issue_user(user)))

    def _keep(self, name: str, issued: Any) -> tuple[Path, Path]:
        cert, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        cert.write_bytes(issued.cert_pem)
        key.touch(0o600)
        key.write_bytes(issued.key_pem)
        return cert, key


class Node:
    """One agent in a namespace of its own."""

    def __init__(self, site: Site, name: str, ip: str, outside: str | None = None, **settings: Any) -> None:
        """`settings` are of its configuration, beside or instead of what they are otherwise. `outside`: the namespace
        that its agents are started in, where that is not the host's."""
        self.site = site
        self.name = name
        self._outside = outside
        self.identity = f"{name} {ip}"
        """What tells it from all others."""
        self.namespace = site.namespace(name)
        self.cgroup = f"atoll/{self.namespace}"
        self._config = site.directory / f"{name}.json"
        self.log = site.directory / f"{name}.log"
        told = {
            "name": name,
            "ip": ip,
            "state": str(site.directory / name),
            "images": str(site.directory / "images"),
            "pki": {
                "ca": str(site.ca),
                "crls": [str(site.crl)],
                "certificate": str(site.server[0]),
                "key": str(site.server[1]),
            },
            "cgroup": self.cgroup,
            "namespace": self.namespace,
            "service_prefix": self.namespace,
            "listen": ["127.0.0.1"],
            "drivers": ["sim"],
            "probe_image": "blank",
            "operator_users": ["oper"],
            "memory_reserve_mib": 0,
            "disk_reserve_mib": 0,
            "templates": 0,
            **settings,
        }
        self._config.write_text(json.dumps(told))
        self._process: subprocess.Popen[bytes] | None = None
        site.stack.callback(self._remove)

    def start(self, faults: str = "") -> None:
        """`faults`: see atoll.system.steps."""
        with self.log.open("ab") as log:
            entered = [] if self._outside is None else ["nsenter", f"--net=/run/netns/{self._outside}"]
            command = [*entered, sys.executable, "-m", "atoll.hypervisor", str(self._config)]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, steps.VARIABLE: faults},
            )
        until = time.monotonic() + SERVING_S
        while True:
            with (
                contextlib.suppress(OSError),
                namespaces.socket_in(self.namespace, socket.AF_INET, socket.SOCK_STREAM) as knock,
            ):
                knock.connect(("127.0.0.1", PORT))
                return
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def call(
        self,
        route: Any,
        params: dict[str, str] | None = None,
        body: Any = None,
        query: Any = None,
        context: ssl.SSLContext | None = None,
    ) -> Any:
        """As an operator, or as whoever the context is."""

        def inside() -> Any:
            with Client([("127.0.0.1", PORT)], context or self.site.context, timeout_s=20) as client:
                return client.call(route, params or {}, body=body, query=query)

        return namespaces.inside(self.namespace, inside)

    def metrics_page(self) -> bytes:
        def inside() -> bytes:
            with Client([("127.0.0.1", PORT)], self.site.context, timeout_s=20) as client:
                return b"".join(client.download(METRICS))

        return namespaces.inside(self.namespace, inside)

    def metrics(self) -> dict[tuple[str, ...], float]:
        """By the name of each sample and the values of its labels."""
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(self.metrics_page().decode())
            for sample in family.samples
        }

    def give(self, subnet: Subnet, *ips: str) -> None:
        self.call(api.NODE_ADD_SUBNET, body=subnet)
        self.give_more(subnet.id, *ips)

    def give_more(self, subnet: str, *ips: str) -> None:
        addresses = tuple(Address(ip, mac_for(ip)) for ip in ips)
        self.call(api.NODE_ADD_ADDRESS, body=api.AddAddress(subnet, addresses))

    def create(
        self,
        name: str,
        subnet: str,
        *others: str,
        imdsv2_required: bool | None = None,
        owner_users: tuple[str, ...] = (),
    ) -> VM:
        spec = VmSpec(
            name,
            "blank",
            driver="sim",
            memory_mib=16,
            subnet=subnet,
            extra_subnets=others,
            imdsv2_required=imdsv2_required,
            owner_users=owner_users,
        )
        request = api.CreateVm(spec, wait=api.Wait("started", 20))
        return self._stream(api.VM_CREATE, {}, request)

    def start_vm(self, vm: VM) -> VM:
        return self._stream(api.VM_START, {"vm": vm.ip}, api.Wait("started", 20))

    def reboot(self, vm: VM, wait_for: str, timeout_s: float = 20) -> VM:
        return self._stream(api.VM_REBOOT, {"vm": vm.ip}, api.Wait(wait_for, timeout_s))

    def _stream(self, route: Any, params: dict[str, str], body: Any) -> VM:
        def inside() -> VM:
            with Client([("127.0.0.1", PORT)], self.site.context, timeout_s=20) as client:
                *_, last = client.stream(route, params, body=body)
                result: VM = last.result
                return result

        return namespaces.inside(self.namespace, inside)

    def guest(self, vm: VM, bridge: str, index: int = 0) -> Guest:
        """The guest's end of a VM's port, as a driver would plug it."""
        mac, link = vm.all_nics[index].mac, link_for(vm.ip, index)
        guest = Guest(self.site.namespace(f"{self.name}-{vm.name}{index}"), mac)
        with Links(self.namespace) as links:
            links.ensure_veth(link, "eth0", guest.namespace, peer_mac=mac, master=bridge)
        return guest

    def neighbours(self) -> set[str]:
        return set(run(self.namespace, "ip", "-4", "neighbour", "show", "nud", "permanent").split("\n"))

    def _remove(self) -> None:
        self.kill()
        # What outlives agents, as the publisher does.
        cgroups.kill_all(self.cgroup)
        cgroups.remove(self.cgroup)
        for name in namespaces.names():
            if name.startswith(f"{self.namespace}-"):
                namespaces.delete(name)


class Guest:
    """A machine with one interface, which knows nothing yet."""

    def __init__(self, namespace: str, mac: str) -> None:
        self.namespace = namespace
        self.mac = mac

    def lease(self, tries: int = 5) -> dict[str, str]:
        """What a stock client gets by DHCP, and takes; nothing if nobody answers."""
        script = Path(f"/run/{self.namespace}.dhcp")
        found = script.with_suffix(".bound")
        script.write_text(f'#!/bin/sh\n[ "$1" = bound ] && env > {found}\nexit 0\n')
        script.chmod(0o755)
        asking = ("busybox", "udhcpc", "-i", "eth0", "-f", "-n", "-q", "-t", str(tries), "-T", "1", "-s")
        try:
            run(self.namespace, *asking, str(script), "-O", "hostname", check=False)
            lines = found.read_text().splitlines() if found.exists() else []
        finally:
            script.unlink()
            found.unlink(missing_ok=True)
        told = dict(line.split("=", 1) for line in lines)
        if told:
            self.configure(told["ip"])
        return told

    def configure(self, ip: str) -> None:
        with Links(self.namespace) as links:
            links.add_address("eth0", f"{ip}/24")
            links.ensure_route(f"{METADATA_IP}/32", link="eth0")

    def listen(self, port: int) -> socket.socket:
        """A server that takes connections and does nothing with them."""
        listening = namespaces.socket_in(self.namespace, socket.AF_INET, socket.SOCK_STREAM)
        listening.bind(("0.0.0.0", port))
        listening.listen()
        return listening

    def metadata(self, path: str = DOCUMENT, timeout_s: float = 5) -> tuple[int, str]:
        with namespaces.socket_in(self.namespace, socket.AF_INET, socket.SOCK_STREAM) as client:
            client.settimeout(timeout_s)
            client.connect((METADATA_IP, 80))
            client.sendall(f"GET {path} HTTP/1.0\r\nHost: m\r\n\r\n".encode())
            reply = b"".join(iter(lambda: client.recv(65536), b"")).decode()
        head, _, body = reply.partition("\r\n\r\n")
        return int(head.split()[1]), body

    def pings(self, ip: str) -> bool:
        return " 1 packets received" in run(
            self.namespace, "busybox", "ping", "-c", "1", "-W", "2", ip, check=False
        )


def run(namespace: str, *command: str, check: bool = True) -> str:
    def inside() -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    return namespaces.inside(namespace, inside)


@contextlib.contextmanager
def a_site(directory: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(directory, stack)
