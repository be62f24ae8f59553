"""Quotas and over-commit on a node: refused before anything is touched, never passed together, kept across agents."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from atoll.api import given, quotas
from atoll.api import hypervisor as api
from atoll.api.changes import VM_BECOME_PRIMARY_OWNER, VM_CHANGE, ChangeVm
from atoll.api.given import ChangeNode
from atoll.api.observing import METRICS, AuditQuery
from atoll.api.quotas import OfHolder, QuotaQuery, SetQuota
from atoll.api.volumes import VOLUME_ADD, VOLUME_CHANGE, AddVolume, ChangeVolume
from atoll.errors import Denied, Invalid, NoCapacity, OverQuota
from atoll.hypervisor.http.quotas import own_holders
from atoll.model.identity import Identity
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.quota import HolderKind
from atoll.model.volume import VolumeSpec
from atoll.system import steps


async def limit(
    oper: Any, user: str = "ann", kind: HolderKind = HolderKind.USER, **limits: int | None
) -> Any:
    return await oper.call(quotas.QUOTA_SET, body=SetQuota(kind, user, **limits))


async def own(who: Any, **query: str) -> Any:
    (use, *_) = await who.call(quotas.QUOTA_SHOW, query=QuotaQuery(**query))
    return use


async def last(lines: Any) -> Any:
    return [line async for line in lines][-1].result


async def test_a_create_over_the_quota_leaves_nothing(node, ann, oper):
    await limit(oper, vms=1)
    await ann.create("web")
    before = node.traces(), node.free()
    with pytest.raises(OverQuota, match="quota of user ann: vms 1 of 1 used and 1 more asked for") as refusal:
        await ann.create("db")
    assert (node.traces(), node.free()) == before
    assert refusal.value.exit_status == 6
    assert "operators (oper) can raise it: atoll quota set --user ann --vms 2" in refusal.value.hint
    await limit(oper, vms=2)
    await ann.create("db")


async def test_creates_at_once_never_pass_a_quota_together(node, ann, oper):
    await limit(oper, vms=2, memory_mib=200)
    made = await asyncio.gather(*(ann.create(f"vm{number}") for number in range(4)), return_exceptions=True)
    assert [type(each) for each in made].count(OverQuota) == 2, made
    assert (await own(ann)).used.vms == 2


async def test_a_create_that_fails_gives_back_what_it_held(node, ann, oper):
    await limit(oper, vms=1)
    steps.arm("launch.started:1:ERROR")
    with pytest.raises(Exception, match="fault"):
        await ann.create("web")
    assert (await own(ann)).used.vms == 0
    await ann.create("web")


async def test_changes_are_measured_too(node, ann, oper):
    await limit(oper, memory_mib=128, milli_cpus=500, disk_mib=20)
    await ann.create("web", milli_cpus=250)
    for change in (ChangeVm(memory_mib=129), ChangeVm(milli_cpus=501)):
        with pytest.raises(OverQuota):
            await ann.call(VM_CHANGE, {"vm": "web"}, body=change)
    await ann.call(VM_CHANGE, {"vm": "web"}, body=ChangeVm(memory_mib=128, milli_cpus=500))
    await last(ann.stream(VOLUME_ADD, {"vm": "web"}, body=AddVolume(VolumeSpec(16, "data"), attach=False)))
    with pytest.raises(OverQuota, match="adding a volume .* disk 16 MiB of 20 MiB used and 8 MiB more"):
        await last(ann.stream(VOLUME_ADD, {"vm": "web"}, body=AddVolume(VolumeSpec(8, "more"))))
    params = {"vm": "web", "volume": "data"}
    with pytest.raises(OverQuota, match="growing volume data"):
        await last(ann.stream(VOLUME_CHANGE, params, body=ChangeVolume(size_mib=21)))
    await last(ann.stream(VOLUME_CHANGE, params, body=ChangeVolume(size_mib=20)))
    assert (await own(ann)).free.disk_mib == 0


async def test_interfaces_count_as_addresses(node, ann, oper):
    await oper.call(api.NODE_ADD_SUBNET, body=Subnet("blue", "10.8.0.0/24", "10.8.0.1"))
    address = Address("10.8.0.5", mac_for("10.8.0.5"))
    await oper.call(api.NODE_ADD_ADDRESS, body=api.AddAddress("blue", (address,)))
    await limit(oper, addresses=1)
    with pytest.raises(OverQuota, match="addresses 0 of 1 used and 2 more asked for"):
        await ann.create("web", subnet="lan", extra_subnets=("blue",))
    await ann.create("web", subnet="lan")


async def test_a_stopped_vm_counts_and_can_always_be_started_again(node, ann, oper):
    await limit(oper, vms=1, memory_mib=64)
    await ann.create("web")
    await ann.halt("web")
    with pytest.raises(OverQuota):
        await ann.create("db")
    await limit(oper, vms=0, memory_mib=0)
    assert (await ann.begin("web")).state == "running"


async def test_the_default_holds_for_everybody_operators_too(node, ann, bob, oper):
    await limit(oper, "", HolderKind.DEFAULT, vms=1, memory_mib=100)
    await oper.create("own")
    with pytest.raises(OverQuota, match="default quota of user oper"):
        await oper.create("more")
    await ann.create("hers")
    with pytest.raises(OverQuota):
        await ann.create("more")
    raised = await limit(oper, vms=2)
    assert (raised.limits.vms, raised.limits.memory_mib) == (2, 100)  # it began as the default
    with pytest.raises(OverQuota, match="memory"):
        await ann.create("more")
    await oper.call(quotas.QUOTA_DELETE, query=OfHolder(HolderKind.USER, "ann"))
    assert (await own(ann)).limits.vms == 1


async def test_a_group_has_what_its_vms_have_whoever_made_them(node, ann, bob, oper):
    await limit(oper, "web", HolderKind.GROUP, vms=1)
    await ann.create("one", owner_groups=("web", "db"))
    with pytest.raises(OverQuota, match="quota of group web"):
        await bob.create("two", owner_groups=("web",))
    vm = await bob.create("two")
    with pytest.raises(OverQuota, match="changing VM two .* quota of group web"):
        await bob.call(VM_CHANGE, {"vm": vm.ip}, body=ChangeVm(owner_groups=("web",)))


async def test_nobody_becomes_an_owner_beyond_their_quota(node, ann, bob, oper):
    await limit(oper, "bob", vms=0)
    with pytest.raises(OverQuota, match="quota of user bob"):
        await ann.create("web", owner_users=("ann", "bob"))
    await ann.create("web", owner_groups=("web",))
    async with node.user("bob", groups=("web",)) as member:
        with pytest.raises(OverQuota, match="becoming the primary owner"):
            await member.call(VM_BECOME_PRIMARY_OWNER, {"vm": "web"})


async def test_quotas_outlive_the_agent(node, ann, oper):
    await limit(oper, vms=1)
    await limit(oper, "", HolderKind.DEFAULT, vms=3)
    await ann.create("web")
    await node.restart()
    use = await own(ann)
    assert (use.limits.vms, use.used.vms, use.free.vms) == (1, 1, 0)
    with pytest.raises(OverQuota):
        await ann.create("db")
    assert [(each.kind, each.name) for each in await oper.call(quotas.QUOTA_LIST)] == [
        ("default", ""),
        ("user", "ann"),
    ]


async def test_everybody_sees_their_own_and_operators_set_them(node, ann, oper):
    for call in (
        ann.call(quotas.QUOTA_LIST),
        limit(ann, vms=9),
        ann.call(quotas.QUOTA_DELETE, query=OfHolder(HolderKind.USER, "ann")),
        own(ann, user="bob"),
        own(ann, group="web"),
    ):
        with pytest.raises(Denied):
            await call
    assert (await own(ann)).limits.vms is None
    assert (await own(oper, user="ann")).name == "ann"
    await limit(oper, "web", HolderKind.GROUP, vms=2)
    async with node.user("ann", groups=("web", "idle")) as member:
        uses = await member.call(quotas.QUOTA_SHOW, query=QuotaQuery())
        assert [(use.kind, use.name) for use in uses] == [("user", "ann"), ("group", "web")]
        assert (await own(member, group="web")).name == "web"
    await limit(oper, vms=9)
    noted = (await node.audit.read(AuditQuery(method="quota.set")))[-1]
    assert (noted.user, noted.target, noted.result) == ("oper", "user ann", "ok")


def test_groups_of_other_issuers_may_be_called_anything():
    holders = own_holders(Identity("ann", frozenset({"CN=Web Team,O=Example", "web"})))
    assert [holder.name for holder in holders] == ["ann", "CN=Web Team,O=Example", "web"]


async def test_metrics_tell_of_use_and_limits_to_operators(node, ann, oper):
    await limit(oper, vms=5, memory_mib=640)
    await ann.create("web")

    async def page(user: Any) -> str:
        return b"".join([chunk async for chunk in user.download(METRICS)]).decode()

    seen = await page(oper)
    assert 'atoll_quota_used_vms{kind="user",name="ann"} 1.0' in seen
    assert 'atoll_quota_limit_vms{kind="user",name="ann"} 5.0' in seen
    assert 'atoll_quota_limit_memory_bytes{kind="user",name="ann"} 6.7108864e+08' in seen
    assert "atoll_quota_" not in await page(ann)
    async with node.user("prometheus", methods=("metrics.show",), limit=("metrics.show",)) as scraper:
        assert "atoll_quota_used_vms" in await page(scraper)


# --- over-commit


async def test_cpus_are_promised_as_often_as_the_node_is_told(node, ann, oper):
    await ann.create("web", milli_cpus=2000)
    with pytest.raises(NoCapacity, match="cpus 2 of 0 free") as refusal:
        await ann.create("db", milli_cpus=2000)
    assert not isinstance(refusal.value, OverQuota)
    assert "may be promised 1 times" in refusal.value.hint
    assert "atoll node change --cpu-overcommit 2" in refusal.value.hint
    changed = await oper.call(given.NODE_CHANGE, body=ChangeNode(cpu_overcommit=2.0))
    assert (changed.total.milli_cpus, changed.overcommit.cpus, changed.overcommit.memory) == (4000, 2.0, 1.0)
    await ann.create("db", milli_cpus=2000)
    await node.restart()
    assert (await ann.node()).overcommit.cpus == 2.0
    # Less than is promised already: what is there stays, and nothing more is made.
    changed = await oper.call(given.NODE_CHANGE, body=ChangeNode(cpu_overcommit=None))
    assert changed.overcommit.cpus == 1.0
    assert {vm.state for vm in await ann.list()} == {"running"}
    with pytest.raises(NoCapacity):
        await ann.create("more")


async def test_memory_is_promised_as_often_too(node, ann, oper):
    await oper.call(given.NODE_CHANGE, body=ChangeNode(memory_overcommit=1.5))
    assert (await ann.node()).total.memory_mib == 1536
    await ann.create("web", memory_mib=1500)


async def test_over_commit_is_for_operators_and_within_reason(node, ann, oper):
    with pytest.raises(Denied, match=r"ann may not call node\.change"):
        await ann.call(given.NODE_CHANGE, body=ChangeNode(cpu_overcommit=2.0))
    for ratio in (0.5, 65.0):
        with pytest.raises(Invalid):
            ChangeNode(cpu_overcommit=ratio)
