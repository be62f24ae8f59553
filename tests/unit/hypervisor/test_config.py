from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atoll.errors import AtollError
from atoll.hypervisor.config import Config, load

BASE = {
    "name": "n1",
    "ip": "10.1.0.1",
    "state": "/state",
    "images": "/images",
    "pki": {"ca": "/ca", "crls": ["/crl"], "certificate": "/c", "key": "/k"},
    "cgroup": "atoll/x",
}
SERVICE = {
    "url": "https://issuer",
    "ca": "/ca",
    "certificate": "/roles/{role}.pem",
    "key": "/roles/{role}.key",
}


def loaded(directory: Path, **settings: Any) -> Config:
    (directory / "agent.json").write_text(json.dumps(BASE | settings))
    return load(directory / "agent.json")


def test_roles_are_issued_by_a_ca_in_a_directory_or_by_a_service_or_not_at_all(tmp_path: Path) -> None:
    by_ca = loaded(tmp_path, roles={"authority": "/pki", "broker": SERVICE}).roles
    callers = {"users": ["svc-*"]}
    by_service = loaded(tmp_path, roles={"issuer": SERVICE, "lifetime_s": 60}, role_callers=callers).roles

    assert loaded(tmp_path).roles is None
    assert by_ca is not None
    assert by_ca.authority == Path("/pki")
    assert by_service is not None
    assert by_service.issuer is not None
    assert by_service.issuer.certificate == Path("/roles/{role}.pem")


def test_a_service_that_names_roles_as_it_likes_needs_to_be_told_of_their_names(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match=r"role_callers\.users") as caught:
        loaded(tmp_path, roles={"issuer": SERVICE})
    assert "svc-*" in caught.value.hint


def test_no_role_may_create_vms_unless_it_is_named(tmp_path: Path) -> None:
    assert loaded(tmp_path).role_callers.may_create == ()
    assert loaded(tmp_path, role_callers={"may_create": ["ci"]}).role_callers.may_create == ("ci",)


def test_an_unknown_setting_of_the_pki_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="crl"):
        loaded(tmp_path, pki=BASE["pki"] | {"crl": "/crl"})


@pytest.mark.parametrize(
    "roles", [{}, {"authority": "/pki", "issuer": SERVICE}, {"authority": "/pki", "lifetime_s": 86401}]
)
def test_roles_that_make_no_sense_are_refused(tmp_path: Path, roles: dict[str, Any]) -> None:
    with pytest.raises(AtollError):
        loaded(tmp_path, roles=roles)


def test_dns_is_forwarded_only_where_it_says_so_and_to_addresses(tmp_path: Path) -> None:
    assert not loaded(tmp_path).dns.forward
    servers = ["192.0.2.1", "fd00::53"]
    assert loaded(tmp_path, dns={"forward": True, "servers": servers}).dns.servers == tuple(servers)
    with pytest.raises(AtollError, match="dns server"):
        loaded(tmp_path, dns={"servers": ["dns.test"]})


def test_hooks_are_checked_when_the_agent_starts(tmp_path: Path) -> None:
    (hook,) = loaded(tmp_path, hooks=[{"url": "https://inventory.test/", "ca": "/ca"}]).hooks
    assert hook.ca == Path("/ca")
    with pytest.raises(AtollError, match="hook"):
        loaded(tmp_path, hooks=[{"url": "http://inventory.test/"}])
