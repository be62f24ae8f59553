from __future__ import annotations

import re

import pytest

from atoll.errors import Conflict
from atoll.model import lifecycle
from atoll.model.lifecycle import DOWN, Action, Happening, after, begin
from atoll.model.vm import VmState


def table(number: int) -> dict[tuple[str, str], str]:
    """A table of the text at the top of the module: (state, heading) -> cell."""
    text = (lifecycle.__doc__ or "").split("-----\n")[number]
    header = (lifecycle.__doc__ or "").split("-----\n")[number - 1].splitlines()[-2]
    names = header.split()[1:]
    rows = [re.split(r"\s+", line.strip()) for line in text.split("\n\n")[0].splitlines()]
    return {(row[0], name): cell for row in rows for name, cell in zip(names, row[1:], strict=True)}


ASKED, HAPPENED = table(1), table(2)


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("state", VmState)
def test_an_action_does_what_the_table_in_the_module_says(state: VmState, action: Action):
    cell = ASKED[state, action]
    if cell == "-":
        with pytest.raises(Conflict, match=f"cannot {action} VM web: it is {state}") as refusal:
            begin(action, "web", state)
        assert refusal.value.exit_status == 4
        assert refusal.value.hint
    else:
        assert begin(action, "web", state) == (None if cell == "·" else cell)


@pytest.mark.parametrize("happening", Happening)
@pytest.mark.parametrize("state", VmState)
def test_what_happens_leads_where_the_table_in_the_module_says(state: VmState, happening: Happening):
    cell = HAPPENED.get((state, happening), "-")
    if cell == "-":
        with pytest.raises(KeyError):
            after(state, happening)
    else:
        assert after(state, happening) == (None if cell == "gone" else cell)


def test_the_picture_shows_every_state():
    picture = (lifecycle.__doc__ or "").split("What may be asked for")[0]
    assert {str(state) for state in VmState} <= set(re.findall(r"[a-z-]+", picture))


def test_every_state_can_be_left_and_every_vm_can_go():
    for state in VmState:
        assert begin(Action.DESTROY, "web", state) is VmState.DESTROYING
    assert after(VmState.DESTROYING, Happening.ENDED) is None


def test_a_vm_that_is_down_can_be_started_and_altered():
    for state in DOWN:
        assert begin(Action.START, "web", state) is VmState.STARTING
        assert begin(Action.ALTER, "web", state) is state
