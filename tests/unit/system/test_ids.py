from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from atoll.errors import HostFailure, NoCapacity
from atoll.plan import ids as plan
from atoll.plan.ids import Block, Space, slots
from atoll.system import ids
from atoll.system.ids import Register, running_ids
from atoll.system.owners import find_owner, is_gone, owner_of


@pytest.fixture(autouse=True)
def _nobody_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs on this host has no part in it."""
    monkeypatch.setattr(ids, "running_ids", frozenset)


def register(tmp_path: Path, name: str = "one") -> Register:
    """As the agent with this state directory sees it."""
    (tmp_path / name).mkdir(exist_ok=True)
    return Register(tmp_path / "ids", owner_of(tmp_path / name))


def test_two_agents_never_have_the_same_block(tmp_path: Path) -> None:
    one, other = register(tmp_path), register(tmp_path, "other")
    claimed = [agent.claim(Space.USERS) for _ in range(3) for agent in (one, other)]
    assert len(set(claimed)) == 6
    assert one.blocks() == set(claimed[::2])
    assert other.blocks() == set(claimed[1::2])


def test_blocks_are_found_again_by_the_next_agent_of_the_same_directory(tmp_path: Path) -> None:
    block = register(tmp_path).claim(Space.RANGES)
    assert register(tmp_path).blocks() == {block}


def test_a_block_that_was_given_back_is_the_next_one_claimed(tmp_path: Path) -> None:
    one, other = register(tmp_path), register(tmp_path, "other")
    block = one.claim(Space.USERS)
    other.give_back(block)
    assert one.blocks() == {block}
    one.give_back(block)
    one.give_back(block)
    assert other.claim(Space.USERS) == block


@pytest.mark.parametrize("how", ["gone", "made anew", "renamed"])
def test_the_block_of_an_agent_that_is_gone_can_be_taken_over(tmp_path: Path, how: str) -> None:
    block = register(tmp_path).claim(Space.USERS)
    owner = find_owner(tmp_path / "one")
    assert owner is not None
    assert not is_gone(owner)
    if how == "renamed":
        (tmp_path / "one").rename(tmp_path / "two")
    else:
        shutil.rmtree(tmp_path / "one")
    if how == "made anew":
        assert register(tmp_path).blocks() == set()
    assert is_gone(owner)
    assert register(tmp_path, "other").claim(Space.USERS) == block


def test_a_block_whose_ids_something_runs_as_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = register(tmp_path).claim(Space.RANGES)
    shutil.rmtree(tmp_path / "one")
    inside = slots(block)[3].first + 1000
    monkeypatch.setattr(ids, "running_ids", lambda: frozenset({0, inside}))
    assert register(tmp_path, "other").claim(Space.RANGES) != block
    # Not even one that nobody has on record.
    shutil.rmtree(tmp_path / "ids")
    assert register(tmp_path, "other").claim(Space.RANGES) != block


def test_a_claim_that_was_cut_short_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "ids").mkdir(0o700)
    (tmp_path / "ids" / "users-0").touch()
    (tmp_path / "ids" / "notes.txt").touch()
    assert register(tmp_path).claim(Space.USERS) == Block(Space.USERS, 0)


def test_a_block_of_old_is_claimed_again_unless_another_has_it(tmp_path: Path) -> None:
    one, other = register(tmp_path), register(tmp_path, "other")
    block = Block(Space.USERS, 17)
    assert one.claim_these(block)
    assert one.claim_these(block)
    assert not other.claim_these(block)
    assert (one.blocks(), other.blocks()) == ({block}, set())


def test_when_all_blocks_are_taken_that_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = plan._Layout(0x6000_0000, 0x6000_0000 + 2 * plan.SLOTS, 1)
    monkeypatch.setitem(plan.LAYOUT, Space.USERS, narrow)
    one = register(tmp_path)
    for _ in range(2):
        one.claim(Space.USERS)
    with pytest.raises(NoCapacity) as full:
        one.claim(Space.USERS)
    assert "atoll down --destroy" in full.value.hint


def test_the_register_goes_with_its_last_block(tmp_path: Path) -> None:
    one, other = register(tmp_path), register(tmp_path, "other")
    one.claim(Space.USERS)
    one.claim(Space.RANGES)
    kept = other.claim(Space.USERS)
    one.give_back_all()
    assert one.blocks() == set()
    assert other.blocks() == {kept}
    other.give_back_all()
    other.give_back_all()
    assert not (tmp_path / "ids").exists()
    assert one.claim(Space.USERS) == Block(Space.USERS, 0)


def test_only_we_get_near_the_register(tmp_path: Path) -> None:
    one = register(tmp_path)
    one.claim(Space.USERS)
    assert (tmp_path / "ids").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "ids" / "users-0").stat().st_mode & 0o777 == 0o600
    (tmp_path / "ids").chmod(0o777)
    with pytest.raises(HostFailure, match="others can open it"):
        one.claim(Space.USERS)


def test_the_ids_that_something_runs_as_are_seen() -> None:
    assert os.getuid() in running_ids()
