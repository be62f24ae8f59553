"""`atoll doctor`: looks at this machine and says how to mend each finding. Effects: throw-away trials."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from atoll.cli.arguments import Commands, add_verb
from atoll.cli.context import cloud_dir
from atoll.cli.output import Column, View, add_list_options, render_list, style_of, write
from atoll.errors import AtollError

OK, WARN, FAIL = "ok", "warning", "failure"
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
MIN_SPACE_MIB = 1024
MIN_MEMORY_MIB = 1024


class Finding(Struct, frozen=True):
    check: str
    result: str
    found: str
    remedy: str = ""


def register(commands: Commands) -> None:
    parser = add_verb(
        commands,
        "doctor",
        run,
        summary="Check this machine and say how to mend what is missing. Exit status 1: something fails.",
        example="atoll doctor -o json",
    )
    add_list_options(parser)


def run(options: argparse.Namespace) -> int:
    style = style_of(options, _VIEW)
    findings = examine(cloud_dir(options).absolute())
    write(render_list(_VIEW, findings, style))
    if style.is_text:
        for finding in findings:
            if finding.remedy:
                sys.stdout.write(f"\n{finding.check}: {finding.remedy}\n")
    return 1 if any(finding.result == FAIL for finding in findings) else 0


def examine(directory: Path) -> list[Finding]:
    """All checks, in the order in which one would mend them."""
    checks: tuple[Callable[[], Finding], ...] = (
        _root,
        lambda: _tools("tools", RUN_TOOLS, FAIL),
        lambda: _tools("disk tools", DISK_TOOLS, WARN),
        lambda: _tools("image tools", BUILD_TOOLS, WARN),
        lambda: _accelerator(directory),
        _tun,
        _links,
        _firewall,
        _cgroups,
        lambda: _space(directory),
        _memory,
        _docker,
        _bridged,
        _vlans,
        _service,
        _kinds,
    )
    return [_guarded(check) for check in checks]


def _guarded(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except (AtollError, OSError) as error:
        name = getattr(check, "__name__", "check").strip("_")
        return Finding(name, FAIL, str(error), getattr(error, "hint", "") or "run it as root")


def _root() -> Finding:
    if os.geteuid() == 0:
        return Finding("root", OK, "running as root")
    return Finding(
        "root", FAIL, f"running as user {os.geteuid()}", "use sudo: namespaces and links need root"
    )


def _tools(name: str, wanted: dict[str, str], severity: str) -> Finding:
    from atoll.system import host

    missing = {tool: package for tool, package in wanted.items() if host.find_tool(tool) is None}
    if not missing:
        return Finding(name, OK, ", ".join(wanted))
    return Finding(
        name,
        severity,
        f"missing: {', '.join(missing)}",
        f"apt-get install {' '.join(dict.fromkeys(missing.values()))}",
    )


def _accelerator(directory: Path) -> Finding:
    from atoll.cli.cloud.layout import Paths
    from atoll.drivers.machine.qemu.probe import cached_verdict, kvm_obstacle

    slow = "guests run under emulation, about ten times slower; enable virtualisation in the firmware, or nest it"
    obstacle = kvm_obstacle()
    if obstacle is not None:
        return Finding("accelerator", WARN, f"tcg: {obstacle}", slow)
    verdict = cached_verdict(Paths(directory).node / "accelerator.json")
    if verdict is None:
        return Finding("accelerator", OK, "/dev/kvm opens; atoll up tries whether guests run under it")
    if verdict.accelerator == "kvm":
        return Finding("accelerator", OK, "kvm: a guest ran under it")
    return Finding("accelerator", WARN, f"tcg: {verdict.reason}", slow)


def _tun() -> Finding:
    if Path("/dev/net/tun").exists():
        return Finding("tap devices", OK, "/dev/net/tun")
    return Finding("tap devices", FAIL, "no /dev/net/tun", "modprobe tun")


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


def _space(directory: Path) -> Finding:
    from atoll.system import files

    place = next(parent for parent in (directory, *directory.parents) if parent.exists())
    free_mib = files.free_mib(place)
    if free_mib >= MIN_SPACE_MIB:
        return Finding("space", OK, f"{free_mib} MiB free for {directory}")
    return Finding("space", WARN, f"{free_mib} MiB free for {directory}", "free some space, or set ATOLL_DIR")


def _memory() -> Finding:
    from atoll.system import host

    _, available_mib = host.memory_mib()
    if available_mib >= MIN_MEMORY_MIB:
        return Finding("memory", OK, f"{available_mib} MiB available")
    return Finding(
        "memory", WARN, f"{available_mib} MiB available", "end something large; a VM takes 128 MiB and more"
    )


def _docker() -> Finding:
    """Docker sets FORWARD to drop, which silently eats what guests send out through the host."""
    from atoll.system import host, nft

    if host.find_tool("nft") is None or not nft.drops_forwarded():
        return Finding("forwarding", OK, "nothing on this host drops forwarded packets")
    return Finding(
        "forwarding",
        WARN,
        "the FORWARD chain drops by default (Docker does that): atoll up --nat would not let guests out",
        'iptables -I DOCKER-USER -i "atl-+" -j ACCEPT; iptables -I DOCKER-USER -o "atl-+" -j ACCEPT',
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
        "the FORWARD chain, which drops by default, also sees what passes a bridge: VMs of an installed node"
        " would not reach each other",
        "sysctl net.bridge.bridge-nf-call-iptables=0; or a rule that accepts it: iptables -I FORWARD"
        " -m physdev --physdev-is-bridged -j ACCEPT",
    )


def _vlans() -> Finding:
    """Subnets with a VLAN are an offer, too."""
    from atoll.system.uplinks import Uplinks

    with _scratch_namespace() as name, Uplinks(name) as links:
        links.ensure_veth("try-a", "try-b", None)
        try:
            links.ensure_vlan_bridge("try-a", 2, "br-try")
        except AtollError as error:
            return Finding("vlans", WARN, f"subnets can have no vlan: {error.brief}", error.hint)
    return Finding("vlans", OK, "802.1Q: subnets can have a vlan")


def _service() -> Finding:
    from atoll.cli.install.supervision import SYSTEMD

    if SYSTEMD.is_dir():
        return Finding("service", OK, "systemd: an installed node starts at boot")
    return Finding(
        "service", OK, "no systemd: atoll node install keeps its agent running, but not over a boot"
    )


def _kinds() -> Finding:
    """Containers are an offer: nothing is wrong with a host that runs none."""
    from atoll.cli.cloud import kinds

    offered, _ = kinds.offered()
    lacking = {"lxc": "lxc (apt-get install lxc)", "docker": "docker (no container engine answers)"}
    missing = [text for kind, text in lacking.items() if kind not in offered]
    return Finding("kinds", OK, ", ".join(offered) + (f"; without {', '.join(missing)}" if missing else ""))


_VIEW: View[Finding] = View(
    name=lambda finding: finding.check,
    fits=False,
    columns=(
        Column("check", lambda finding: finding.check),
        Column("result", lambda finding: finding.result, paint=lambda finding: _COLOURS[finding.result]),
        Column("found", lambda finding: finding.found),
    ),
)
