"""How subnets and their pools of addresses look in tables and field lists. Pure."""

from __future__ import annotations

from atoll.cli.addresses import show_ranges
from atoll.cli.output import Column, View, joined
from atoll.model.node import Pool

POOL_COLUMNS: tuple[Column[Pool], ...] = (
    Column("subnet", lambda pool: pool.subnet.id),
    Column("cidr", lambda pool: pool.subnet.cidr),
    Column("gateway", lambda pool: pool.subnet.gateway),
    Column("cidr6", lambda pool: pool.subnet.cidr6 or "-", wide=True),
    Column("free", lambda pool: str(len(pool.free))),
    Column("used", lambda pool: str(pool.used)),
    Column("dns", lambda pool: joined(pool.subnet.name_servers)),
    Column("bridge", lambda pool: pool.subnet.bridge or "-", wide=True),
    Column("private", lambda pool: "yes" if pool.subnet.private else "no", wide=True),
    Column("vlan", lambda pool: str(pool.subnet.vlan or "-"), wide=True),
    Column("mtu", lambda pool: str(pool.subnet.mtu), wide=True),
    Column("domain", lambda pool: pool.subnet.domain or "-", wide=True),
    Column(
        "allowed",
        lambda pool: (
            ", ".join(
                [*pool.subnet.allowed_users, *(f"group {group}" for group in pool.subnet.allowed_groups)]
            )
            or "everybody"
        ),
        wide=True,
    ),
)

POOL_VIEW: View[Pool] = View(
    name=lambda pool: pool.subnet.id,
    columns=(
        *POOL_COLUMNS,
        Column("reaches", lambda pool: joined(pool.subnet.reaches), detail=True),
        Column("gateway6", lambda pool: pool.subnet.gateway6 or "-", detail=True),
        Column("service-ip", lambda pool: pool.subnet.service_ip or "-", detail=True),
        Column("metadata", lambda pool: "yes" if pool.subnet.metadata else "no", detail=True),
        Column("resolver", lambda pool: "yes" if pool.subnet.resolver else "no", detail=True),
        Column("free-addresses", lambda pool: show_ranges(one.ip for one in pool.free), detail=True),
    ),
)
