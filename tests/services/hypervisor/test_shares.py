"""Shares on a node: allowed by operators, for those they are for, and never taken from under a VM."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from atoll.api import hypervisor as api
from atoll.api.changes import VM_CHANGE, ChangeVm
from atoll.api.hypervisor import StopVm, Wait
from atoll.api.observing import AuditQuery
from atoll.api.shares import SHARE_ALLOW, SHARE_DENY, SHARE_LIST, ShareName
from atoll.errors import Conflict, Denied, Invalid, NotFound
from atoll.model.share import Share, ShareMount
from atoll.model.vm import VmState

DATA = ShareMount("data", "/data")


@pytest.fixture
def folder(node: Any) -> Path:
    made: Path = node.directory / "data"
    made.mkdir()
    os.chown(made, 12345, 12345)
    return made


async def allow(oper: Any, path: Path, name: str = "data", **more: Any) -> Any:
    return await oper.call(SHARE_ALLOW, body=Share(name, str(path), **more))


async def change(who: Any, vm: str = "web", **wishes: Any) -> Any:
    return await who.call(VM_CHANGE, {"vm": vm}, body=ChangeVm(**wishes))


async def start(who: Any, vm: str = "web") -> None:
    async for _ in who.stream(api.VM_START, {"vm": vm}, body=Wait("started", 20)):
        pass


async def test_a_share_is_for_those_it_is_for_at_create_and_at_change(node, ann, bob, oper, folder):
    await allow(oper, folder, users=("ann",))
    vm = await ann.create("web", shares=(DATA,))
    assert vm.shares == (DATA,)
    before = node.traces(), node.free()
    with pytest.raises(Denied, match="bob may not use share data: it is for ann"):
        await bob.create("his", shares=(DATA,))
    assert (node.traces(), node.free()) == before
    await bob.create("his")
    with pytest.raises(Denied, match="bob may not use share data"):
        await change(bob, "his", add_shares=(DATA,))
    await allow(oper, folder, everyone=True)
    await change(bob, "his", add_shares=(DATA,))
    with pytest.raises(NotFound, match="'nothing': not allowed on this node"):
        await ann.create("db", shares=(ShareMount("nothing", "/data"),))


async def test_a_user_sees_what_is_for_them_and_not_where_it_is(node, ann, bob, oper, folder):
    await allow(oper, folder, users=("ann",))
    (seen,) = await ann.call(SHARE_LIST)
    assert (seen.name, seen.path, seen.users) == ("data", "", ())
    assert await bob.call(SHARE_LIST) == ()
    await ann.create("web", shares=(DATA,))
    (seen,) = await oper.call(SHARE_LIST)
    assert (seen.path, seen.users, seen.vms, seen.problem) == (str(folder), ("ann",), ("web",), "")


async def test_only_operators_allow_and_deny_and_both_are_audited(node, ann, oper, folder):
    for call in (
        ann.call(SHARE_ALLOW, body=Share("data", str(folder))),
        ann.call(SHARE_DENY, query=ShareName("data")),
    ):
        with pytest.raises(Denied):
            await call
    await allow(oper, folder)
    await oper.call(SHARE_DENY, query=ShareName("data"))
    await oper.call(SHARE_DENY, query=ShareName("data"))
    noted = [
        (one.method, one.target)
        for one in await node.audit.read(AuditQuery())
        if one.method.startswith("share.") and one.user == "oper"
    ]
    assert noted == [("share.allow", "share data"), *[("share.deny", "share data")] * 2]


async def test_a_share_in_use_is_not_denied_and_its_users_are_named(node, ann, oper, folder):
    await allow(oper, folder, everyone=True)
    await ann.create("web", shares=(DATA,))
    with pytest.raises(Conflict, match="share data: is in use by VM web"):
        await oper.call(SHARE_DENY, query=ShareName("data"))
    with pytest.raises(Conflict, match="read-write, for VM web"):
        await allow(oper, folder, everyone=True, read_only=True)
    # It runs on with it until it is started anew.
    changed = await change(ann, remove_shares=("data",))
    assert (changed.shares, changed.pending) == ((), ("shares",))
    with pytest.raises(Conflict, match="VM web"):
        await oper.call(SHARE_DENY, query=ShareName("data"))
    await ann.call(api.VM_STOP, {"vm": "web"}, body=StopVm(0))
    await oper.call(SHARE_DENY, query=ShareName("data"))


async def test_a_vm_whose_folder_is_gone_is_not_started_and_says_why(node, ann, oper, folder):
    await allow(oper, folder, everyone=True)
    await ann.create("web", shares=(DATA,))
    await ann.call(api.VM_STOP, {"vm": "web"}, body=StopVm(0))
    folder.rmdir()
    with pytest.raises(Conflict, match=f"starting VM web: share data: folder {folder} is gone"):
        await start(ann)
    vm = await ann.call(api.VM_SHOW, {"vm": "web"})
    assert vm.state is VmState.FAILED_TO_START
    assert "is gone" in vm.reason
    (seen,) = await oper.call(SHARE_LIST)
    assert "is gone" in seen.problem
    folder.mkdir()
    with pytest.raises(Conflict, match="belongs to root"):
        await start(ann)
    os.chown(folder, 12345, 12345)
    await start(ann)


async def test_what_is_the_hosts_own_is_not_shared(node, oper, folder):
    for path in ("/etc", "/", "/etc/ssh", str(node.directory / "state"), str(node.directory / "state/vms")):
        with pytest.raises((Invalid, Denied)):
            await oper.call(SHARE_ALLOW, body=Share("data", path) if path != "/" else Share("data", "//"))
    with pytest.raises(Denied, match="leaves to its operators"):
        await allow(oper, Path("/opt/elsewhere"))
    link = node.directory / "link"
    link.symlink_to(folder)
    with pytest.raises(Conflict, match="symbolic link"):
        await allow(oper, link)
    with pytest.raises(Conflict, match="symbolic link"):
        await allow(oper, link / "sub")
    roots = node.directory / "roots"
    roots.mkdir()
    with pytest.raises(Conflict, match="belongs to root"):
        await allow(oper, roots)
    assert (await allow(oper, roots, read_only=True)).read_only


async def test_a_read_only_share_is_asked_for_as_such(node, ann, oper, folder):
    await allow(oper, folder, everyone=True, read_only=True)
    with pytest.raises(Conflict, match="share data is read-only"):
        await ann.create("web", shares=(DATA,))
    vm = await ann.create("web", shares=(ShareMount("data", "/data", read_only=True),))
    request = await ann.call(api.VM_SHOW, {"vm": "web"})
    assert request.shares == vm.shares


async def test_shares_are_kept_across_agents(node, ann, oper, folder):
    await allow(oper, folder, everyone=True)
    await ann.create("web", shares=(DATA,))
    await node.restart()
    (seen,) = await oper.call(SHARE_LIST)
    assert (seen.name, seen.vms) == ("data", ("web",))
