"""The node as others see it. What takes a look at every VM is kept until something changes, since many may ask.

Effects: asks the file systems of the stores what is free, at most a few times a second.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from atoll import RECORD_FORMAT, __version__
from atoll.hypervisor.launch.hotpool import HotPool
from atoll.hypervisor.vms.workbench import Workbench
from atoll.model.event import EventKind
from atoll.model.node import Capacity, Node, Pool
from atoll.model.vm import VM
from atoll.model.volume import StoreInfo
from atoll.plan.addresses import Place
from atoll.plan.volumes import store_infos
from atoll.system import clock

FRESH_S = 0.25


class _Sums(Struct, frozen=True):
    """What follows from all VMs together."""

    pooled: frozenset[Place]
    """Addresses that the hot pool held when it was added up."""
    until_s: float
    unused: Capacity
    pools: tuple[Pool, ...]
    vms: dict[str, int]
    stores: tuple[StoreInfo, ...]


class Overview:
    def __init__(self, bench: Workbench, pool: HotPool) -> None:
        self._bench = bench
        self._pool = pool
        self._sums: _Sums | None = None
        bench.vms.changed.listen(self._on_vm_change)
        bench.holdings.changed.listen(self._on_node_change)

    def node(self) -> Node:
        facts, operators, sums = self._bench.facts, self._bench.operators(), self._current()
        return Node(
            ip=facts.ip,
            name=facts.name,
            version=__version__,
            record_format=RECORD_FORMAT,
            boot_id=facts.boot_id,
            total=self._bench.total(),
            free=sums.unused.minus(self._pool.demand()),
            drivers=facts.drivers,
            pools=sums.pools,
            vms=sums.vms,
            owner_users=operators.users,
            owner_groups=operators.groups,
            drained=self._bench.holdings.drained,
            stores=sums.stores,
            overcommit=self._bench.overcommit(),
            templates=self._pool.templates,
            pooled=self._pool.waiting,
            unclaimed=self._bench.stores.unclaimed,
        )

    def _current(self) -> _Sums:
        known, pooled, now_s = self._sums, self._pool.held(), clock.monotonic()
        if known is None or known.pooled != pooled or now_s > known.until_s:
            known = self._sums = self._add_up(pooled, now_s)
        return known

    def _add_up(self, pooled: frozenset[Place], now_s: float) -> _Sums:
        bench, vms = self._bench, self._bench.vms.list()
        states = Counter(str(vm.state) for vm in vms)
        volumes = (volume for vm in vms for volume in vm.volumes)
        return _Sums(
            pooled=pooled,
            until_s=now_s + FRESH_S,
            unused=bench.unused(),
            pools=bench.holdings.pools(),
            vms=dict(sorted(states.items())),
            stores=store_infos(bench.stores.spaces, volumes),
        )

    def _on_vm_change(self, kind: EventKind, vm: VM) -> None:
        self._sums = None

    def _on_node_change(self) -> None:
        self._sums = None
