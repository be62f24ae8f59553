from __future__ import annotations

from pathlib import Path

import pytest

from atoll.drivers.machine.registry import NAMES, Setting, load
from atoll.errors import Invalid

SETTING = Setting(on_exit=lambda ip, reason: None, probe_kernel=Path("/none"), cache=Path("/none"))


async def test_a_driver_is_found_by_its_name() -> None:
    assert (await load("sim", SETTING)).name == "sim"


async def test_an_unknown_driver_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(Invalid) as refusal:
        await load("xen", SETTING)

    assert refusal.value.details["value"] == "'xen'"
    assert all(name in refusal.value.hint for name in NAMES)
