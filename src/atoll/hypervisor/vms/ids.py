"""The users that VMs run as, settled when an agent starts: every VM has some, and its record says which.

Effects: through records and the node's ids.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from atoll.hypervisor.launch.ids import NodeIds, Wish
from atoll.hypervisor.launch.kinds import Kinds
from atoll.hypervisor.vms.records import Record, Records
from atoll.model.vm import VmState
from atoll.system import aside


async def settle(
    ids: NodeIds, kinds: Kinds, records: Records, vms: Mapping[str, Record]
) -> dict[str, Record]:
    """At start-up: every VM has ids, and its record says which. The records as they are then."""
    marked = {ip: found for ip, found in records.marked_ids.items() if ip in vms}
    unknown = [one for ip, found in records.marked_ids.items() for one in found[1 if ip in marked else 0 :]]
    holders = {}
    for ip, record in vms.items():
        known = marked[ip][0] if marked.get(ip) else record.ids
        holders[record.vm.instance_id] = Wish(kinds.id_space(record.vm.driver), known)
    await aside.run(ids.prepare, holders, unknown)
    settled = {}
    for ip, record in vms.items():
        has = ids.find(record.vm.instance_id)
        # A write would replace what may still be mended.
        if has != record.ids and record.vm.state is not VmState.DAMAGED:
            record = structs.replace(record, ids=has)
            await records.write(record)
        settled[ip] = record
    return settled
