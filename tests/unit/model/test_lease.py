from __future__ import annotations

import pytest

from atoll.errors import Invalid
from atoll.model.lease import Boot, Reservation


@pytest.mark.parametrize(
    ("field", "value"),
    [("ip", "10.1"), ("mac", "52:54:0a:01:00:0G"), ("hostname", "a b"), ("subnet", "../x")],
)
def test_a_reservation_refuses_what_makes_no_sense(field: str, value: str) -> None:
    good = {"ip": "10.1.0.9", "mac": "52:54:00:00:00:01", "hostname": "rack1", "subnet": "blue"}
    Reservation(**good)
    with pytest.raises(Invalid, match=field):
        Reservation(**{**good, field: value})


@pytest.mark.parametrize(
    "settings",
    [{"file": "a b"}, {"script": "x\n"}, {"file": "x" * 256}, {"server": "host"}, {"image": "../i"}],
)
def test_boot_settings_refuse_what_could_not_be_sent(settings: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        Boot(**settings)
