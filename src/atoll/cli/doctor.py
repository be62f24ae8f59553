"""`atoll doctor`: looks at this machine and says how to mend each finding. Effects: throw-away trials."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from atoll.cli import doctor_place
from atoll.cli.arguments import Commands, add_verb
from atoll.cli.context import cloud_dir
from atoll.cli.finding import FAIL, OK, WARN, Finding
from atoll.cli.output import Column, View, add_list_options, render_list, style_of, write
from atoll.cli.terminal import wrapped
from atoll.errors import AtollError

_COLOURS = {OK: "32", WARN: "33", FAIL: "31"}

RUN_TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "nft": "nftables", "setpriv": "util-linux"}
DISK_TOOLS = {"qemu-img": "qemu-utils", "mke2fs": "e2fsprogs", "resize2fs": "e2fsprogs"}
BUILD_TOOLS = {
    "musl-gcc": "musl-tools",
    "busybox": "busybox-static",
    "lz4": "lz4",
    "dpkg-deb": "dpkg",
    "apt-get": "apt",
}
MIN_MEMORY_MIB = 1024


def register(commands: Commands) -> None:
    parser = add_verb(
        commands,
        "doctor",
        run,
        summary="Check this machine and say how to mend what is missing. Exit status 1: atoll up would fail.",
        example="atoll doctor -o json",
    )
    add_list_options(parser)


def run(options: argparse.Namespace) -> int:
    style = style_of(options, VIEW)
    findings = examine(cloud_dir(options).absolute())
    write(render_list(VIEW, findings, style))
    if style.is_text:
        sys.stdout.write("".join(advice(finding, style.width) for finding in findings))
    return 1 if any(finding.result == FAIL for finding in findings) else 0


def advice(finding: Finding, width: int | None = None) -> str:
    """What is wrong, why that matters, and what to type. Pure."""
    if finding.result == OK:
        return ""
    lines = [f"\n{finding.check}: {finding.found}"]
    lines += [f"  why:  {finding.why}"] if finding.why else []
    lines += [f"  mend: {finding.remedy}"]
    if width is not None:
        # The labels stay where they are: only what follows them goes on below.
        lines = [f"{line[:8]}{wrapped(line[8:], width - 8, 8)}" for line in lines]
    return "\n".join(lines) + "\n"


def examine(directory: Path) -> list[Finding]:
    """All checks, in the order in which one would mend them."""
    disks = "volumes cannot be made, grown or given a file system"
    checks: dict[str, Callable[[], Finding]] = {
        "root": _root,
        "tools": lambda: _tools("tools", RUN_TOOLS, FAIL, "no VM runs without them"),
        "disk tools": lambda: _tools("disk tools", DISK_TOOLS, WARN, disks),
        "image tools": lambda: _image_tools(directory),
        "accelerator": lambda: _accelerator(directory),
        "tap devices": _tun,
        "links": _links,
        "firewall": _firewall,
        "cgroups": _cgroups,
        "space": lambda: doctor_place.space(directory),
        "memory": _memory,
        "time": lambda: doctor_place.time(directory),
        "dns": doctor_place.dns,
        "container engine": doctor_place.engine,
        "shared folders": doctor_place.folders,
        "forwarding": _docker,
        "bridged packets": _bridged,
        "vlans": _vlans,
        "service": _service,
        "kinds": _kinds,
    }
    return [_guarded(name, check) for name, check in checks.items()]


def _guarded(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except (AtollError, OSError) as error:
        remedy = getattr(error, "hint", "") or "sudo atoll doctor"
        return Finding(name, FAIL, str(error), remedy, "atoll up does the same, and would fail")


def _root() -> Finding:
    if os.geteuid() == 0:
        return Finding("root", OK, "running as root")
    why = "namespaces, links and cgroups are for root alone"
    return Finding("root", FAIL, f"running as user {os.geteuid()}", "sudo atoll doctor", why)


def _image_tools(directory: Path) -> Finding:
    """They are needed where there is no image yet, or an old one."""
    from atoll.cli.cloud import space, steps
    from atoll.cli.cloud.layout import Paths

    paths = Paths(directory)
    is_built = space.is_built(paths, steps.cache_of(paths))
    why = "the image of the VMs is made with them" + (", when there is a newer kernel" if is_built else "")
    return _tools("image tools", BUILD_TOOLS, WARN if is_built else FAIL, why)


def _tools(name: str, wanted: dict[str, str], severity: str, why: str) -> Finding:
    from atoll.system import host

    missing = {tool: package for tool, package in wanted.items() if host.find_tool(tool) is None}
    if not missing:
        return Finding(name, OK, ", ".join(wanted))
    return Finding(
        name,
        severity,
        f"missing: {', '.join(missing)}",
        f"apt-get install {' '.join(dict.fromkeys(missing.values()))}",
        why,
    )


def _accelerator(directory: Path) -> Finding:
    from atoll.cli.cloud.layout import Paths
    from atoll.drivers.machine.qemu.probe import cached_verdict, kvm_obstacle

    slow = "guests run under emulation, about ten times slower"
    firmware = (
        "enable virtualisation in the firmware of this machine, or nested virtualisation in that of its host"
    )
    obstacle = kvm_obstacle()
    if obstacle is not None:
        remedy = "chmod 666 /dev/kvm" if Path("/dev/kvm").exists() else f"modprobe kvm; or {firmware}"
        return Finding("accelerator", WARN, f"tcg: {obstacle}", remedy, slow)
    verdict = cached_verdict(Paths(directory).node / "accelerator.json")
    if verdict is None:
        return Finding("accelerator", OK, "/dev/kvm opens; atoll up tries whether guests run under it")
    if verdict.accelerator == "kvm":
        return Finding("accelerator", OK, "kvm: a guest ran under it")
    return Finding("accelerator", WARN, f"tcg: {verdict.reason}", firmware, slow)


def _tun() -> Finding:
    if Path("/dev/net/tun").exists():
        return Finding("tap devices", OK, "/dev/net/tun")
    return Finding("tap devices", FAIL, "no /dev/net/tun", "modprobe tun", "it is how a VM gets a network")


@contextmanager
def _scratch_namespace() -> Iterator[str]:
    from atoll.system import namespaces

    name = f"atoll-doctor-{os.getpid()}"
    namespaces.ensure(name)
    try:
        yield name
    finally:
        namespaces.delete(name)


def _links() -> Finding:
    from atoll.system.links import Links

    with _scratch_namespace() as name, Links(name) as links:
        links.ensure_bridge("br-try", "02:a8:00:00:00:01", 1500)
        links.ensure_veth("try-a", "try-b", None, master="br-try")
    return Finding("links", OK, "namespaces, bridges and veth pairs can be made")


def _firewall() -> Finding:
    from atoll.plan import firewall
    from atoll.system import nft

    port = firewall.Port("at-try", "02:00:00:00:00:01", "192.0.2.1", "02:00:00:00:00:02")
    with _scratch_namespace() as name:
        nft.run_blocking(firewall.RULES + "\n" + firewall.change((), firewall.elements(port)), name)
    return Finding("firewall", OK, "nftables takes our bridge rules")


def _cgroups() -> Finding:
    from atoll.system import cgroups

    group = f"atoll-doctor-{os.getpid()}"
    try:
        cgroups.ensure(group, cgroups.Limits(cpu_milli_quota=500, cpu_weight=100, memory_mib=64, pids=16))
    finally:
        cgroups.remove(group)
    return Finding("cgroups", OK, "CPU, memory and processes can be limited")


def _memory() -> Finding:
    from atoll.system import host

    _, available_mib = host.memory_mib()
    if available_mib >= MIN_MEMORY_MIB:
        return Finding("memory", OK, f"{available_mib} MiB available")
    return Finding(
        "memory",
        WARN,
        f"{available_mib} MiB available",
        "end something large: ps aux --sort=-rss | head",
        "a VM takes 128 MiB and more",
    )


def _docker() -> Finding:
    """Docker sets FORWARD to drop, which silently eats what guests send out through the host."""
    from atoll.system import host, nft

    if host.find_tool("nft") is None or not nft.drops_forwarded():
        return Finding("forwarding", OK, "nothing on this host drops forwarded packets")
    return Finding(
        "forwarding",
        WARN,
        "the FORWARD chain drops by default (Docker does that)",
        'iptables -I DOCKER-USER -i "atl-+" -j ACCEPT; iptables -I DOCKER-USER -o "atl-+" -j ACCEPT',
        "with atoll up --nat, guests would not get out",
    )


def _bridged() -> Finding:
    """A bridge in the host's own namespace, as an installed node has: the same trap, for VMs among each other."""
    from atoll.system import host, nft
    from atoll.system.links import read_sysctl

    switch = "net/bridge/bridge-nf-call-iptables"
    if not Path("/proc/sys", switch).exists() or read_sysctl(switch) == "0":
        return Finding("bridged packets", OK, "what passes a bridge is not filtered by iptables")
    if host.find_tool("nft") is None or not nft.drops_forwarded():
        return Finding("bridged packets", OK, "iptables sees what passes a bridge, and drops nothing")
    return Finding(
        "bridged packets",
        WARN,
        "the FORWARD chain, which drops by default, also sees what passes a bridge",
        "sysctl net.bridge.bridge-nf-call-iptables=0; or a rule that accepts it: iptables -I FORWARD"
        " -m physdev --physdev-is-bridged -j ACCEPT",
        "VMs of an installed node would not reach each other",
    )


def _vlans() -> Finding:
    """Subnets with a VLAN are an offer, too."""
    from atoll.system.uplinks import Uplinks

    with _scratch_namespace() as name, Uplinks(name) as links:
        links.ensure_veth("try-a", "try-b", None)
        try:
            links.ensure_vlan_bridge("try-a", 2, "br-try")
        except AtollError as error:
            why = "subnets of an installed node can have no vlan"
            return Finding("vlans", WARN, error.brief, error.hint or "modprobe 8021q", why)
    return Finding("vlans", OK, "802.1Q: subnets can have a vlan")


def _service() -> Finding:
    from atoll.cli.cloud.service import SYSTEMD

    if SYSTEMD.is_dir():
        return Finding(
            "service", OK, "systemd: a service (atoll service install, atoll node install) starts at boot"
        )
    return Finding(
        "service",
        OK,
        "no systemd: an agent is kept running, but nobody starts it at boot; see docs/service.md",
    )


def _kinds() -> Finding:
    """Containers are an offer: nothing is wrong with a host that runs none."""
    from atoll.cli.cloud import kinds

    offered, _ = kinds.offered()
    lacking = {"lxc": "lxc (apt-get install lxc)", "docker": "docker (no container engine answers)"}
    missing = [text for kind, text in lacking.items() if kind not in offered]
    return Finding("kinds", OK, ", ".join(offered) + (f"; without {', '.join(missing)}" if missing else ""))


VIEW: View[Finding] = View(
    name=lambda finding: finding.check,
    wraps=True,
    columns=(
        Column("check", lambda finding: finding.check),
        Column("result", lambda finding: finding.result, paint=lambda finding: _COLOURS[finding.result]),
        Column("found", lambda finding: finding.found),
    ),
)
