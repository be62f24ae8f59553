"""Removing an installed node with everything of it. Effects: all of this machine's side of it.

Asks no agent for anything that it could not do itself, so it works however broken the node is.
"""

from __future__ import annotations

import contextlib
import ipaddress
from pathlib import Path
from typing import Any

from atoll.cli.cloud import kinds, settings, stores
from atoll.cli.cloud.layout import Paths
from atoll.cli.install import supervision
from atoll.cli.install.record import UNIT, Installed, paths_of
from atoll.errors import AtollError
from atoll.plan import firewall, reach
from atoll.plan.macs import ROUTER_PREFIX, node_identity, router_mac
from atoll.system import cgroups, files, ids, namespaces, nft, steps
from atoll.system.addressing import Link
from atoll.system.ids import Register
from atoll.system.links import read_sysctl, sysctl
from atoll.system.owners import Owner, find_owner
from atoll.system.uplinks import OWN_BRIDGE, Uplinks

CONTENT = (
    *("pki", "server", "client", "images", "cache", "node"),
    *("agent.pid", "agent.log", "agent.log.1", "keeper.pid", "keeper.lock"),
)
"""What there is in the directory of a node, but for its record and its lock, which go last."""


def vms_of(paths: Paths) -> list[str]:
    """The addresses of the VMs that have a record."""
    return sorted(path.parent.name for path in (paths.node / "vms").glob("*/vm.json"))


def remove(directory: Path, node: Installed) -> None:
    """Leave nothing. Gone is fine."""
    paths = paths_of(directory, node)
    told = _told(paths.agent)
    vms = [path.name for path in (paths.node / "vms").glob("*")]
    supervision.of_this_machine(paths).stop()
    steps.step("uninstall.stopped")
    kinds.remove_leftovers(told, node.cgroup)
    cgroups.kill_all(node.cgroup)
    cgroups.remove(node.cgroup)
    cgroups.remove_if_empty(str(Path(node.cgroup).parent))
    steps.step("uninstall.ended")
    _remove_network(node, told, vms)
    steps.step("uninstall.unplugged")
    stores.remove_volumes(told, find_owner(paths.node), vms)
    _remove_files(directory, node, Path(told.get("ids", ids.DEFAULT)))


def _told(path: Path) -> dict[str, Any]:
    """What the agent was told, as far as that can still be read."""
    try:
        return settings.read(path)
    except AtollError:
        return {}


def _remove_network(node: Installed, told: dict[str, Any], vms: list[str]) -> None:
    prefix = f"{node.service_prefix}-"
    served = [name.removeprefix(prefix) for name in namespaces.names() if name.startswith(prefix)]
    over_ports = told.get("bridges", {})
    with Uplinks() as links:
        was_router = False
        for bridge in served:
            was_router |= _remove_bridge(links, bridge, told, vms) and not set(over_ports) & {
                bridge, bridge.partition(".")[0]
            }  # fmt: skip
            namespaces.delete(f"{prefix}{bridge}")
        for bridge in over_ports:
            _remove_bridge(links, bridge, told, vms)
        for port, was_up in node.ports.items():
            if not was_up and links.exists(port):
                links.down(port)
    nft.run_blocking(firewall.NO_RULES + reach.NO_RULES)
    if was_router:
        for key, value in node.switches.items():
            if read_sysctl(key) != value:
                sysctl(key, value)


def _is_ours(bridge: Link, told: dict[str, Any]) -> bool:
    """Whether it is a bridge that the agent made: over a port, or for a subnet of the node's own. Pure."""
    if bridge.mac.startswith(OWN_BRIDGE):
        return True
    if "name" in told and "ip" in told:
        return bridge.mac == router_mac(node_identity(told["name"], told["ip"]), bridge.name)
    return bridge.name.startswith("br-") and bridge.mac.startswith(ROUTER_PREFIX)


def _remove_bridge(links: Uplinks, bridge: str, told: dict[str, Any], vms: list[str]) -> bool:
    """What we put into a bridge, and the bridge itself if it is one of ours. Whether it was."""
    found = links.find(bridge)
    if found is None:
        return False
    for port in links.attached(bridge):
        link = links.find(port)
        if port.startswith(firewall.SERVICE_PREFIX) or (link is not None and link.kind == "vlan"):
            links.delete(port)
    if _is_ours(found, told):
        links.delete(bridge)
        return True
    for ip in vms:
        with contextlib.suppress(ipaddress.AddressValueError):
            links.delete_neighbour(bridge, str(ipaddress.IPv4Address(ip)))
    return False


def _remove_files(directory: Path, node: Installed, register: Path) -> None:
    if UNIT.exists():
        UNIT.unlink()
        supervision.reload()
    if node.config_is_ours:
        Path(node.config).unlink(missing_ok=True)
    for made in reversed(node.made):
        with contextlib.suppress(OSError):  # what somebody else put there stays
            Path(made).rmdir()
    # Without a mark an uninstall before this one was cut short: its users are those of an agent that is gone.
    owner = find_owner(directory / "node") or Owner(str(directory / "node"), "")
    for name in CONTENT:
        files.remove_tree(directory / name)
    # Nothing runs as these users any more, and nothing is theirs.
    Register(register, owner).give_back_all()
    steps.step("uninstall.removed")
    paths = Paths(directory)
    # Last of all: as long as it is there, what is left can be found.
    paths.installed.unlink(missing_ok=True)
    paths.lock.unlink(missing_ok=True)
    # An agent that waited for the register when it went made it anew before it ended.
    for empty in (directory, register):
        with contextlib.suppress(OSError):
            empty.rmdir()
