from __future__ import annotations

import pytest

from atoll.api.hypervisor import Writer
from atoll.errors import Denied
from atoll.hypervisor.consoles.keyboard import Keyboard, Seat, check_taker
from atoll.model.identity import Identity
from samples import a_vm

WEB = a_vm(
    mac="02:00:00:00:00:05",
    image="tiny",
    image_digest="d",
    memory_mib=64,
    owner_groups=("web-team",),
    instance_id="i-1",
)


def told(seat: Seat) -> list[tuple[bool, str]]:
    """What is to be told there since the last time."""
    notes = [(note.writer, note.by) for note in seat.notes]
    seat.notes.clear()
    return notes


def seated(keyboard: Keyboard, user: str, *, watches: bool = False, take: bool = False) -> Seat:
    seat = Seat(user, watches=watches)
    keyboard.sit(seat, take=take)
    return seat


def test_the_first_to_come_types():
    keyboard = Keyboard()
    ann = seated(keyboard, "ann")
    assert told(ann) == [(True, "ann")]
    assert keyboard.press(ann)


def test_who_types_without_it_is_told_once_who_has_it():
    keyboard = Keyboard()
    ann, bob = seated(keyboard, "ann"), seated(keyboard, "bob")
    assert [keyboard.press(bob), keyboard.press(bob)] == [False, False]
    assert told(bob) == [(False, "ann")]
    assert keyboard.press(ann)


def test_when_the_writer_leaves_the_next_to_type_gets_it_and_that_key_counts():
    keyboard = Keyboard()
    ann, bob, eve = (seated(keyboard, user) for user in ("ann", "bob", "eve"))
    keyboard.press(bob)
    keyboard.leave(ann)
    told(bob)
    assert keyboard.press(eve)
    assert told(eve) == [(True, "eve")]
    assert not keyboard.press(bob)
    assert told(bob) == [(False, "eve")]


def test_when_the_writer_leaves_the_next_to_come_gets_it():
    keyboard = Keyboard()
    ann = seated(keyboard, "ann")
    keyboard.leave(ann)
    assert keyboard.press(seated(keyboard, "bob"))


def test_a_watcher_never_types_even_when_nobody_does():
    keyboard = Keyboard()
    watcher = seated(keyboard, "ann", watches=True)
    assert [keyboard.press(watcher), keyboard.press(watcher)] == [False, False]
    assert told(watcher) == [(False, "")]
    assert keyboard.press(seated(keyboard, "bob"))


def test_who_takes_it_has_it_and_both_are_told():
    keyboard = Keyboard()
    ann = seated(keyboard, "ann")
    told(ann)
    bob = seated(keyboard, "bob", take=True)
    assert (told(ann), told(bob)) == ([(False, "bob")], [(True, "bob")])
    assert keyboard.press(bob)
    assert not keyboard.press(ann)


def test_one_from_whom_it_was_taken_leaves_it_where_it_is():
    keyboard = Keyboard()
    ann = seated(keyboard, "ann")
    bob = seated(keyboard, "bob", take=True)
    keyboard.leave(ann)
    assert keyboard.note(seated(keyboard, "eve")) == Writer(False, "bob")
    assert keyboard.press(bob)


def test_two_seats_of_one_user_are_two():
    keyboard = Keyboard()
    first, second = seated(keyboard, "ann"), seated(keyboard, "ann")
    assert [keyboard.press(first), keyboard.press(second)] == [True, False]


@pytest.mark.parametrize("who", [Identity("ann"), Identity("bob", frozenset({"web-team"}))])
def test_owners_may_take_it(who: Identity):
    check_taker(who, WEB)


@pytest.mark.parametrize("who", [Identity("bob"), Identity("oper", methods=frozenset({"*"}))])
def test_nobody_else_may_take_it(who: Identity):
    with pytest.raises(Denied, match=f"{who.user} may not take the keyboard of VM web"):
        check_taker(who, WEB)
