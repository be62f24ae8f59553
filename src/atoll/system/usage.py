"""What is used on this host: CPU, memory, disk input and output, and bytes over links. Reads /proc and netlink.

Pure functions read what the kernel prints.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct
from pyroute2.netlink import rtnl
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from atoll.system import host
from atoll.system.failures import failing
from atoll.system.netlink import Netlink


class Transfer(Struct, frozen=True):
    """Bytes in and out, as the one sees it whose they are."""

    received: int = 0
    sent: int = 0

    def plus(self, other: Transfer) -> Transfer:
        return Transfer(self.received + other.received, self.sent + other.sent)


def cpu_s() -> float:
    """Seconds that all CPUs of the host have worked since it started."""
    return busy_s(Path("/proc/stat").read_text(), os.sysconf("SC_CLK_TCK"))


def busy_s(stat: str, ticks_per_s: int) -> float:
    """Of a text such as /proc/stat: all but idle and waiting. Pure."""
    user, nice, system, _idle, _wait, irq, softirq, steal = (int(word) for word in stat.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / ticks_per_s


def memory_used_mib() -> int:
    total, available = host.memory_mib()
    return total - available


def disk_io(pids: Iterable[int]) -> Transfer:
    """Bytes that these processes had read from and written to disks. One that has ended counts no more."""
    total = Transfer()
    for pid in pids:
        try:
            total = total.plus(io_of(Path(f"/proc/{pid}/io").read_text()))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return total


def io_of(text: str) -> Transfer:
    """Of a text such as /proc/1/io. Pure."""
    counts = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    return Transfer(int(counts.get("read_bytes", 0)), int(counts.get("write_bytes", 0)))


def links() -> Mapping[str, Transfer]:
    """Bytes over each link of the namespace that we are in, as the host sees them."""
    with failing("reading the counters of links"), Netlink() as netlink:
        found = netlink.dump(rtnl.RTM_GETLINK, ifinfmsg, {"family": socket.AF_UNSPEC})
    counters: dict[str, Transfer] = {}
    for link in found:
        statistics = link.get_attr("IFLA_STATS64")
        if statistics is not None:
            name = link.get_attr("IFLA_IFNAME")
            counters[name] = Transfer(statistics["rx_bytes"], statistics["tx_bytes"])
    return counters
