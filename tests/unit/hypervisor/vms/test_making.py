from __future__ import annotations

import asyncio

import pytest
from tests.shared.samples import a_vm

from atoll.errors import Conflict, HostFailure
from atoll.hypervisor.vms.making import Making


@pytest.mark.parametrize(
    ("error", "stage", "why"),
    [
        (GeneratorExit(), "address", "its creator ann hung up when it had come as far as address"),
        (asyncio.CancelledError(), "", "its creator ann hung up before it was begun"),
        (HostFailure("no tap"), "volume", "its create failed when it had come as far as volume: no tap"),
        (ValueError("secret"), "volume", "its create failed when it had come as far as volume: ValueError"),
    ],
)
def test_an_undone_create_says_why(error, stage, why):
    making = Making(a_vm(), "ann")
    making.stage = stage
    with pytest.raises(type(error)), making.explained():
        raise error
    assert making.why_undone == why


def test_what_goes_well_has_nothing_to_explain():
    making = Making(a_vm(), "ann")
    with making.explained():
        pass
    assert making.why_undone == ""


async def test_whoever_works_on_it_when_it_is_given_up_is_stopped():
    making = Making(a_vm(), "ann")

    async def work() -> None:
        with making.explained():
            making.resume()
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    making.give_up("oper")
    making.give_up("ann")
    with pytest.raises(asyncio.CancelledError):
        await working
    assert making.why_undone == "its create was given up by oper before it was begun"


async def test_what_is_given_up_while_its_creator_is_told_goes_no_further():
    making = Making(a_vm(), "ann")
    making.resume()
    making.pause("address")
    making.give_up("ann")
    with pytest.raises(
        Conflict, match="VM web: its create was given up by ann when it had come as far as address"
    ):
        making.resume()
