"""The metrics are named and helped as Prometheus asks, by the word of its own tool."""

from __future__ import annotations

import asyncio

from atoll.api.observing import METRICS, UTILISATION
from atoll.api.quotas import QUOTA_SET, SetQuota
from atoll.guestnet.dns import forward, server
from atoll.hypervisor.network import dns_metrics
from atoll.hypervisor.utilisation import metrics
from atoll.model.quota import HolderKind
from promtool import complaints


async def test_nothing_is_found_on_the_page_of_a_node(ann, oper):
    await ann.create("web")
    await oper.call(QUOTA_SET, body=SetQuota(HolderKind.USER, "ann", vms=5, memory_mib=640))
    page = b"".join([chunk async for chunk in oper.download(METRICS)])
    assert b"atoll_quota_limit_memory_bytes{" in page
    assert await asyncio.to_thread(complaints, page) == ""


async def test_nor_where_other_dns_servers_are_asked(ann):
    dns = dns_metrics.families({"br-lan": server.Counters()}, forward.Counters())
    page = metrics(await ann.node(), await ann.call(UTILISATION), dns)
    assert b"atoll_dns_asked_total{" in page
    assert await asyncio.to_thread(complaints, page) == ""


async def test_a_gauge_that_is_named_as_a_counter_is_found():
    page = b"# TYPE atoll_x_total gauge\natoll_x_total 1\n"
    said = await asyncio.to_thread(complaints, page)
    assert "no help text" in said
    assert 'should not have "_total" suffix' in said
