"""What a hook is told, and in which order, whatever happens while it is away."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.model.event import Event, EventKind
from atoll.model.vm import VM, VmState
from atoll.serving.hooks.backlog import Backlog, Notice, NoticeKind, VmView, view_of
from samples import a_vm

AT = datetime(2024, 1, 1, tzinfo=UTC)


def vm(number: int = 1, **changes: Any) -> VM:
    changes = {"name": f"vm{number}", "instance_id": f"i-{number}", "started_by": "cold", **changes}
    return a_vm(changes.pop("ip", f"10.1.0.{number}"), **changes)


def event(kind: EventKind, one: VM | None = None, *, sequence: int = 1, vms: tuple[VM, ...] = ()) -> Event:
    return Event(kind, "epoch", sequence, AT, vm=one, vms=vms)


def state(*vms: VM) -> Event:
    return event(EventKind.STATE, vms=vms)


def backlog(*told: VM) -> Backlog:
    return Backlog("n1", {one.instance_id: view_of(one) for one in told})


def drain(backlog: Backlog) -> list[Notice]:
    """Everything that there is to tell, to a hook that takes it."""
    notices = []
    while (notice := backlog.next()) is not None:
        notices.append(notice)
        backlog.delivered(notice)
    return notices


def kinds(notices: list[Notice]) -> list[tuple[str, str]]:
    return [(str(notice.event), notice.vm.name) for notice in notices]


def test_a_hook_that_knows_nothing_is_told_everything() -> None:
    found = backlog()
    found.take(state(vm(1), vm(2)))
    assert kinds(drain(found)) == [("created", "vm1"), ("created", "vm2")]


def test_what_happened_while_there_was_no_agent_is_told_and_nothing_else() -> None:
    found = backlog(vm(1), vm(2), vm(3))
    found.take(state(vm(1), vm(2, name="new"), vm(4)))
    assert kinds(drain(found)) == [("changed", "new"), ("destroyed", "vm3"), ("created", "vm4")]


def test_a_create_is_told_when_it_is_there_and_a_failed_one_never() -> None:
    found = backlog()
    found.take(state())
    found.take(event(EventKind.CREATED, vm(1, state=VmState.STARTING, started_by="")))
    found.take(event(EventKind.CREATED, vm(2, state=VmState.STARTING, started_by="")))
    assert found.next() is None
    found.take(event(EventKind.CHANGED, vm(1), sequence=7))
    found.take(event(EventKind.CHANGED, vm(2, state=VmState.DESTROYING, started_by="")))
    found.take(event(EventKind.DESTROYED, vm(2, state=VmState.DESTROYING, started_by="")))
    (notice,) = drain(found)
    assert (notice.event, notice.vm.name, notice.sequence, notice.node) == ("created", "vm1", 7, "n1")


def test_what_is_not_in_the_view_is_not_news() -> None:
    found = backlog(vm(1))
    found.take(state(vm(1)))
    for changes in ({"state": VmState.STOPPED}, {"ready": {"dhcp": 1.0}}, {"state": VmState.STARTING}):
        found.take(event(EventKind.CHANGED, vm(1, **changes)))
    assert drain(found) == []


def test_a_new_address_is_a_change_that_says_what_was_before() -> None:
    found = backlog(vm(1))
    found.take(state(vm(1)))
    found.take(event(EventKind.DESTROYED, vm(1)))
    found.take(event(EventKind.CREATED, vm(1, ip="10.1.0.99")))
    (notice,) = drain(found)
    assert notice.event is NoticeKind.CHANGED
    assert notice.before is not None
    assert (notice.before.ip, notice.vm.ip) == ("10.1.0.1", "10.1.0.99")


def test_the_newest_state_is_told_once_to_one_that_was_away() -> None:
    found = backlog()
    found.take(state(vm(1)))
    for number in range(50):
        found.take(event(EventKind.CHANGED, vm(1, tags={"n": str(number)})))
        notice = found.next()
        assert notice is not None
        found.failed(notice)
    for _ in range(50):
        found.take(event(EventKind.CREATED, vm(2)))
        found.take(event(EventKind.DESTROYED, vm(2)))
    (notice,) = drain(found)
    assert (notice.event, notice.vm.tags) == ("created", {"n": "49"})


def test_one_that_changes_while_it_is_told_is_told_again() -> None:
    found = backlog()
    found.take(state(vm(1)))
    notice = found.next()
    assert notice is not None
    found.take(event(EventKind.DESTROYED, vm(1)))
    found.delivered(notice)
    assert kinds(drain(found)) == [("destroyed", "vm1")]


def test_a_notice_that_fails_lets_the_others_go_first() -> None:
    found = backlog()
    found.take(state(vm(1), vm(2), vm(3)))
    first = found.next()
    assert first is not None
    found.failed(first)
    assert kinds(drain(found)) == [("created", "vm2"), ("created", "vm3"), ("created", "vm1")]


def test_a_damaged_vm_is_what_it_was_until_it_is_destroyed() -> None:
    found = backlog(vm(1))
    broken = vm(1, name="damaged-10-1-0-1", instance_id="other", state=VmState.DAMAGED, started_by="")
    found.take(state(broken))
    assert found.next() is None
    found.take(event(EventKind.CHANGED, vm(1, instance_id="other", state=VmState.DESTROYING, started_by="")))
    found.take(
        event(EventKind.DESTROYED, vm(1, instance_id="other", state=VmState.DESTROYING, started_by=""))
    )
    assert kinds(drain(found)) == [("destroyed", "vm1")]


CHOICES = st.tuples(
    st.sampled_from(["create", "change", "destroy", "deliver", "fail", "restart"]), st.integers(1, 4)
)


@given(st.lists(CHOICES, max_size=60))
@pytest.mark.parametrize("durable", [True, False])
def test_whatever_happens_the_hook_ends_up_knowing_what_there_is(
    durable: bool, happenings: list[tuple[str, int]]
) -> None:
    there: dict[int, VM] = {}
    knows: dict[str, VmView] = {}
    on_disk: dict[str, VmView] = {}
    found = Backlog("n1", on_disk)
    found.take(state())

    def deliver() -> None:
        notice = found.next()
        if notice is None:
            return
        assert notice.before in (None, knows.get(notice.vm.instance_id))
        for known in (knows, on_disk) if durable else (knows,):
            if notice.event is NoticeKind.DESTROYED:
                known.pop(notice.vm.instance_id, None)
            else:
                known[notice.vm.instance_id] = notice.vm
        found.delivered(notice)
        assert len(found) <= 8

    for number, (what, which) in enumerate(happenings):
        if what == "create" and which not in there:
            there[which] = vm(which)
            found.take(event(EventKind.CREATED, there[which]))
        elif what == "change" and which in there:
            there[which] = vm(which, tags={"n": str(number)})
            found.take(event(EventKind.CHANGED, there[which]))
        elif what == "destroy" and which in there:
            found.take(event(EventKind.DESTROYED, there.pop(which)))
        elif what == "deliver":
            deliver()
        elif what == "fail" and (notice := found.next()) is not None:
            found.failed(notice)
        elif what == "restart" and durable:
            found = Backlog("n1", on_disk)
            found.take(state(*there.values()))
    while found.next() is not None:
        deliver()
    assert knows == {one.instance_id: view_of(one) for one in there.values()}
