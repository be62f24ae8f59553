"""A Hypervisor: one node and its VMs. What is there, who may do what to it, and the parts that do it.

Effects: through its parts. One thing at a time is done to a VM; the node's own state changes between awaits.
"""

from __future__ import annotations

from msgspec import Struct

from atoll.errors import AtollError
from atoll.hypervisor.consoles.screens import Screens
from atoll.hypervisor.hands.forwards import Forwards
from atoll.hypervisor.hands.hands import Hands
from atoll.hypervisor.launch.holds import Used, images_of
from atoll.hypervisor.launch.hotpool import HotPool, Pooling, PoolPlace
from atoll.hypervisor.news import NodeNews
from atoll.hypervisor.overview import Overview
from atoll.hypervisor.publishing.base import Place
from atoll.hypervisor.publishing.publishing import Publishing
from atoll.hypervisor.signals import Signals
from atoll.hypervisor.ssh import SshCertificates
from atoll.hypervisor.vms.acknowledgements import Acknowledgements
from atoll.hypervisor.vms.awaited_exits import AwaitedExits
from atoll.hypervisor.vms.changes import Changes
from atoll.hypervisor.vms.creator import Creator
from atoll.hypervisor.vms.duties import Duties
from atoll.hypervisor.vms.exits import Exits
from atoll.hypervisor.vms.life import Life
from atoll.hypervisor.vms.lost_links import LostLinks
from atoll.hypervisor.vms.permits import Permit
from atoll.hypervisor.vms.policies import Policies
from atoll.hypervisor.vms.readiness import Board
from atoll.hypervisor.vms.stages import Stages
from atoll.hypervisor.vms.stalls import Stalls
from atoll.hypervisor.vms.suspensions import Suspensions
from atoll.hypervisor.vms.workbench import Workbench
from atoll.hypervisor.volumes.stores import Stores
from atoll.hypervisor.volumes.volumes import Volumes
from atoll.identity.access import Operators, check_owner
from atoll.model.event import EventKind
from atoll.model.identity import Identity
from atoll.model.image import Image
from atoll.model.node import Node
from atoll.model.vm import VM
from atoll.serving.audit import AuditLog, Auditor
from atoll.serving.events import Events
from atoll.system import clock


class Options(Struct, frozen=True):
    """What a Hypervisor is given beside its workbench; some of it can be left out."""

    stores: Stores
    publishing: Place
    ssh: SshCertificates
    pooling: Pooling = Pooling()
    audit: AuditLog | None = None


class Hypervisor:
    """The parts, put together. Each of them listens to those below it; none knows one above it."""

    def __init__(self, bench: Workbench, signals: Signals, options: Options) -> None:
        self._bench = bench
        self.vms = bench.vms
        self.holdings = bench.holdings
        self.folders = bench.machines.folders
        self._auditor = Auditor(options.audit, self.vms.find) if options.audit is not None else None
        stages = Stages(bench, Board(clock.monotonic))
        self.stages = stages
        self.pool = HotPool(options.pooling, bench.machines, _pool_place(bench))
        self.vms.reserved = self.pool.held
        self.holdings.vacate = self.pool.vacate
        self._overview = Overview(bench, self.pool)
        self.volumes = Volumes(bench, options.stores)
        self.changes = Changes(bench)
        self.screens = Screens(bench.machines)
        self.hands = Hands(bench.machines)
        self.forwards = Forwards(bench.machines)
        self.ssh = options.ssh
        self.publishing = Publishing(bench, options.publishing)
        self.acknowledgements = Acknowledgements(self.vms, bench.facts.acknowledge_within_s)
        self.creator = Creator(bench, stages, self.pool, self.acknowledgements)
        awaited = AwaitedExits()
        self.suspensions = Suspensions(bench, stages)
        self.life = Life(bench, stages, awaited, self.suspensions)
        self.policies = Policies(bench, self.life, self._note_own)
        self.exits = Exits(bench, self.policies, awaited)
        self.lost_links = LostLinks(bench, self._note_own)
        self.stalls = Stalls(bench, self._note_own)
        self._duties = Duties(self.vms.records, lambda: self.holdings.drained, self.policies.do, clock.now)
        self._news = NodeNews(self.node, lambda node: self.events.emit(EventKind.NODE, node=node))
        self.events = Events(clock.now, lambda: (self.node(), self.vms.list()))
        self._listen(signals)

    def _listen(self, signals: Signals) -> None:
        # Members of the hot pool are no VMs, and each of these minds its own.
        signals.exit.listen(self.pool.on_exit)
        signals.exit.listen(self.exits.on_exit)
        signals.stall.listen(self.stalls.changed)
        signals.reached.listen(self.pool.reached)
        signals.reached.listen(self.stages.reached)
        signals.link.listen(self.pool.on_link)
        signals.link.listen(self.lost_links.changed)
        signals.folder.listen(self.lost_links.folder_changed)
        signals.template.listen(self.pool.wake)
        self.pool.changed.listen(self._news.wake)
        self.vms.changed.listen(self._on_vm_change)
        self.holdings.changed.listen(self._on_node_change)

    # --- what is there

    def node(self) -> Node:
        return self._overview.node()

    def permit(self, identity: Identity, method: str, reference: str) -> Permit:
        """Leave to do this to the VM of this IP or name, if the caller may."""

        def check(vm: VM) -> None:
            check_owner(identity, method, vm, self.operators)

        permit = Permit(self.vms.show(reference), check)
        check(permit.vm)
        return permit

    def image_of(self, vm: VM) -> Image:
        """What a VM was made of."""
        return self._bench.machines.image(vm)

    def images_in_use(self) -> Used | None:
        """What the machines of this node are made of; None while there is a VM of which nobody knows that."""
        unknown = self._bench.records.unreadable
        return None if unknown else self.pool.images() | images_of(self.vms.list())

    @property
    def operators(self) -> Operators:
        """Those that its configuration names, and those that it was given as owners."""
        return self._bench.operators()

    def find_port(self, subnet: str, mark: str) -> tuple[VM, int] | None:
        """The VM that has this MAC or address in a subnet, and the place of that interface among its own."""
        return self.vms.find_port(subnet, mark) or self.pool.rehearsing(subnet, mark)

    # --- beginning and end

    async def sweep(self) -> None:
        """Take out of the network what is of no VM, such as the hot pool of an agent that was killed; and have ports
        lead to VMs as their records say."""
        await self._bench.network.sweep(self.vms.keys())
        await self.publishing.settle()

    def begin(self) -> None:
        """All VMs are found: from now on their own policies are kept."""
        self._bench.background.keep("keeping the policies of VMs", self._duties.keep)
        self._bench.background.keep("keeping ports published", self.publishing.tend)

    async def close(self) -> None:
        """Touch nothing any more. VMs run on; what is none yet goes."""
        self._news.close()
        await self.hands.close()
        await self._bench.background.close()
        await self.vms.settle()
        await self.pool.close()

    # --- told

    def _on_node_change(self) -> None:
        self.pool.wake()
        self._duties.wake()
        self._news.wake()

    def _on_vm_change(self, kind: EventKind, vm: VM) -> None:
        self.events.emit(kind, vm=vm)
        self._news.wake()
        self._duties.wake()
        if kind is EventKind.DESTROYED:
            for nic in vm.all_nics:
                self.holdings.leases.forget(nic.subnet, nic.mac)
            # One that has moved is still there, at its new address, with what it runs as.
            if all(other.instance_id != vm.instance_id for other in self.vms.list()):
                self._bench.machines.release_ids(vm)
        else:
            self.holdings.leases.wake()

    def _note_own(self, method: str, vm: VM, error: AtollError | None = None) -> None:
        if self._auditor is not None:
            self._bench.background.begin("auditing", self._auditor.own(method, vm, error))


def _pool_place(bench: Workbench) -> PoolPlace:
    """What the hot pool asks of its node."""
    return PoolPlace(
        free_capacity=bench.unused,
        free_addresses=bench.holdings.free,
        directory=bench.records.directory,
        discard=bench.records.discard,
        is_open=lambda: not bench.holdings.drained,
        is_recorded=bench.records.is_recorded,
        ready=lambda vm: bench.machines.image(vm).ready,
        is_current=bench.machines.supplies.is_current,
    )
