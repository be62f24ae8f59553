from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import pytest

from atoll.cli.cloud.layout import Cloud, subnet_for
from atoll.cli.install.record import Installed
from atoll.cli.remote_invite import addresses_of
from atoll.errors import Conflict, Invalid, Unreachable

CLOUD = Cloud("ab12cd", 0, subnet_for("10.213.0.0/24"))


def told(*addresses: str) -> argparse.Namespace:
    return argparse.Namespace(address=list(addresses))


def keep(directory: Path, **changes: tuple[str, ...]) -> None:
    cloud = msgspec.structs.replace(CLOUD, **changes)
    (directory / "cloud.json").write_bytes(msgspec.json.encode(cloud))


def test_others_reach_a_cloud_by_its_names_and_where_it_listens(tmp_path):
    keep(tmp_path, listen=("192.0.2.7:443", "[2001:db8::7]:6976"), known_as=("cloud.example.org",))
    assert addresses_of(told(), tmp_path) == (
        ("cloud.example.org", 443),
        ("192.0.2.7", 443),
        ("2001:db8::7", 6976),
    )
    assert addresses_of(told("gate.example.org:1", "192.0.2.9"), tmp_path) == (
        ("gate.example.org", 1),
        ("192.0.2.9", 6976),
    )


def test_others_reach_an_installed_node_at_its_own_address(tmp_path):
    (tmp_path / "node.toml").write_text('ip = "192.0.2.8"\nport = 7000\n')
    record = Installed("ab12cd", config=str(tmp_path / "node.toml"))
    (tmp_path / "install.json").write_bytes(msgspec.json.encode(record))
    assert addresses_of(told(), tmp_path) == (("192.0.2.8", 7000),)


def test_nobody_is_invited_to_what_they_cannot_reach(tmp_path):
    with pytest.raises(Unreachable, match="no cloud"):
        addresses_of(told(), tmp_path)
    keep(tmp_path)
    with pytest.raises(Conflict, match="from this machine only") as refusal:
        addresses_of(told(), tmp_path)
    assert "atoll up --listen" in refusal.value.hint
    with pytest.raises(Invalid, match="at most 16"):
        addresses_of(told(*(f"192.0.2.{last}" for last in range(17))), tmp_path)
