from __future__ import annotations

from atoll.cli.lease import LEASE_VIEW
from atoll.cli.output import Style, render_list
from atoll.model.lease import Holder, Lease, LeaseState


def test_leases_are_a_table():
    lease = Lease("10.1.0.9", "52:54:00:00:00:09", "rack1", "lan", Holder.MACHINE, LeaseState.UNUSED)
    header, row = render_list(LEASE_VIEW, [lease], Style()).splitlines()
    assert header.split() == ["IP", "MAC", "HOSTNAME", "SUBNET", "HOLDER", "STATE", "SINCE"]
    assert row.split() == ["10.1.0.9", "52:54:00:00:00:09", "rack1", "lan", "machine", "unused", "-"]
