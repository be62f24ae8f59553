"""What the node and its VMs use: one look, for the API and for Prometheus.

Effects: reads cgroups, /proc, netlink and the sizes of volumes. `measured` puts it together, purely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from atoll.model.node import Node
from atoll.model.quota import HolderKind, QuotaUse, Resource
from atoll.model.utilisation import Usage, Utilisation, VmUsage
from atoll.model.vm import VM
from atoll.plan.firewall import link_for
from atoll.system import cgroups, clock, host, usage
from atoll.system.usage import Transfer

# Ports of VMs, of our services, and bridges: what passes them passes an uplink too, or never leaves.
_INNER = ("lo", "at-", "as-", "br-")


class Meter:
    """Reads what is used. `group`: the cgroup of a VM; `disk_mib`: what its volumes take."""

    def __init__(
        self,
        vms: Callable[[], Iterable[VM]],
        group: Callable[[VM], str],
        disk_mib: Callable[[VM], int],
    ) -> None:
        self._vms = vms
        self._group = group
        self._disk_mib = disk_mib

    def read(self) -> Utilisation:
        links = usage.links()
        vms = tuple(self._of(vm, links) for vm in self._vms())
        outer = [moved for name, moved in links.items() if not name.startswith(_INNER)]
        wire = Transfer(sum(moved.received for moved in outer), sum(moved.sent for moved in outer))
        return Utilisation(
            at=clock.now(),
            cores=host.cores(),
            memory_mib=host.memory_mib()[0],
            node=Usage(
                cpu_s=usage.cpu_s(),
                memory_mib=usage.memory_used_mib(),
                disk_mib=sum(vm.usage.disk_mib for vm in vms),
                disk_read_bytes=sum(vm.usage.disk_read_bytes for vm in vms),
                disk_written_bytes=sum(vm.usage.disk_written_bytes for vm in vms),
                received_bytes=wire.received,
                sent_bytes=wire.sent,
                processes=sum(vm.usage.processes for vm in vms),
            ),
            vms=vms,
        )

    def _of(self, vm: VM, links: Mapping[str, Transfer]) -> VmUsage:
        group = self._group(vm)
        used, disk = cgroups.usage(group), usage.disk_io(cgroups.members(group))
        # What the host's end of a VM's link receives is what the VM sent.
        port = Transfer()
        for index in range(len(vm.all_nics)):
            port = port.plus(links.get(link_for(vm.ip, index), Transfer()))
        return VmUsage(
            ip=vm.ip,
            name=vm.name,
            state=vm.state,
            usage=Usage(
                cpu_s=round(used.cpu_s, 6),
                memory_mib=used.memory_mib,
                disk_mib=self._disk_mib(vm),
                disk_read_bytes=disk.received,
                disk_written_bytes=disk.sent,
                received_bytes=port.sent,
                sent_bytes=port.received,
                processes=used.pids,
            ),
        )


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def metrics(node: Node, used: Utilisation, more: Iterable[Metric] = ()) -> bytes:
    """The page for Prometheus. Pure."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families([*_node_families(node, used), *_vm_families(used), *more]))
    return generate_latest(registry)


def _node_families(node: Node, used: Utilisation) -> Iterator[Metric]:
    info = GaugeMetricFamily("atoll_node_info", "The node and its version.", labels=("node", "version"))
    info.add_metric((node.name, node.version), 1)
    yield info
    yield GaugeMetricFamily("atoll_node_drained", "1 where no VM is made or started.", value=node.drained)
    for what, total, free in (
        ("cpus", node.total.milli_cpus / 1000, node.free.milli_cpus / 1000),
        ("memory_bytes", node.total.memory_mib << 20, node.free.memory_mib << 20),
        ("disk_bytes", node.total.disk_mib << 20, node.free.disk_mib << 20),
    ):
        yield GaugeMetricFamily(f"atoll_node_capacity_{what}", "What VMs may be promised.", value=total)
        yield GaugeMetricFamily(f"atoll_node_free_{what}", "What is left to promise.", value=free)
    addresses = GaugeMetricFamily("atoll_node_free_addresses", "Free addresses.", labels=("subnet",))
    for pool in node.pools:
        addresses.add_metric((pool.subnet.id,), len(pool.free))
    yield addresses
    states = GaugeMetricFamily("atoll_node_vms", "VMs by their state.", labels=("state",))
    for state, count in node.vms.items():
        states.add_metric((state,), count)
    yield states
    yield CounterMetricFamily("atoll_node_cpu_seconds", "CPU time of the host.", value=used.node.cpu_s)
    yield GaugeMetricFamily(
        "atoll_node_memory_used_bytes", "Memory in use on the host.", value=used.node.memory_mib << 20
    )
    yield CounterMetricFamily(
        "atoll_node_received_bytes", "Bytes in over uplinks.", value=used.node.received_bytes
    )
    yield CounterMetricFamily("atoll_node_sent_bytes", "Bytes out over uplinks.", value=used.node.sent_bytes)


def _vm_families(used: Utilisation) -> Iterator[Metric]:
    for name, text, amount in _AMOUNTS:
        gauge = GaugeMetricFamily(f"atoll_vm_{name}", text, labels=_LABELS)
        for vm in used.vms:
            gauge.add_metric((vm.ip, vm.name), amount(vm.usage))
        yield gauge
    for name, text, amount in _COUNTS:
        counter = CounterMetricFamily(f"atoll_vm_{name}", text, labels=_LABELS)
        for vm in used.vms:
            counter.add_metric((vm.ip, vm.name), amount(vm.usage))
        yield counter


def quota_families(uses: Iterable[QuotaUse]) -> Iterator[Metric]:
    """What users and groups have, and may have where that is limited. Pure."""
    told = tuple(uses)
    for what, resource, scale in _QUOTAS:
        used = GaugeMetricFamily(f"atoll_quota_used_{what}", "Held by a user or group.", labels=_HOLDER)
        most = GaugeMetricFamily(f"atoll_quota_limit_{what}", "What they may have at most.", labels=_HOLDER)
        for use in told:
            holder = (str(use.kind), use.name)
            if use.kind is not HolderKind.DEFAULT:
                used.add_metric(holder, use.used.of(resource) * scale)
            if (limit := use.limits.of(resource)) is not None:
                most.add_metric(holder, limit * scale)
        yield used
        yield most


_HOLDER = ("kind", "name")
_QUOTAS: tuple[tuple[str, Resource, float], ...] = (
    ("vms", Resource.VMS, 1),
    ("cpus", Resource.CPUS, 0.001),
    ("memory_bytes", Resource.MEMORY, 1 << 20),
    ("disk_bytes", Resource.DISK, 1 << 20),
    ("addresses", Resource.ADDRESSES, 1),
)
_LABELS = ("ip", "name")
_AMOUNTS: tuple[tuple[str, str, Callable[[Usage], float]], ...] = (
    ("memory_bytes", "Memory in use.", lambda one: one.memory_mib << 20),
    ("disk_bytes", "What its volumes take.", lambda one: one.disk_mib << 20),
)
_COUNTS: tuple[tuple[str, str, Callable[[Usage], float]], ...] = (
    ("cpu_seconds", "CPU time.", lambda one: one.cpu_s),
    ("disk_read_bytes", "Read from disk.", lambda one: one.disk_read_bytes),
    ("disk_written_bytes", "Written to disk.", lambda one: one.disk_written_bytes),
    ("received_bytes", "Bytes that it received.", lambda one: one.received_bytes),
    ("sent_bytes", "Bytes that it sent.", lambda one: one.sent_bytes),
)
