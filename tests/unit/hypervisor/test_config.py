from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import AtollError, Malformed
from atoll.hypervisor.config import Config, load, outside_addresses, problems

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
    with pytest.raises(AtollError, match="dns: 'dns.test': must be an IPv4 address"):
        loaded(tmp_path, dns={"servers": ["dns.test"]})


def test_hooks_are_checked_when_the_agent_starts(tmp_path: Path) -> None:
    (hook,) = loaded(tmp_path, hooks=[{"url": "https://inventory.test/", "ca": "/ca"}]).hooks
    assert hook.ca == Path("/ca")
    with pytest.raises(AtollError, match="hook"):
        loaded(tmp_path, hooks=[{"url": "http://inventory.test/"}])


def test_a_file_may_be_toml(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(
        'name = "n1"\nip = "10.1.0.1"\nstate = "/state"\nimages = "/images"\ncgroup = "atoll/x"\n'
        '[pki]\nca = "/ca"\ncrls = ["/crl"]\ncertificate = "/c"\nkey = "/k"\n'
        '[overcommit]\ncpus = 2\n[bridges]\nlan = "eth1"\n'
    )
    config = load(path)
    assert (config.overcommit.cpus, config.bridges) == (2.0, {"lan": "eth1"})
    path.write_text("name = \n")
    with pytest.raises(Malformed, match=r"node\.toml: invalid value \(at line 1"):
        load(path)


@pytest.mark.parametrize(
    ("setting", "key", "why", "hint"),
    [
        ({"hot_pol": 1}, "hot_pol", "there is no such setting", "did you mean hot_pool?"),
        ({"hot_pool": -1}, "hot_pool", "-1: must be a whole number from 0 to 1000", "give at least 0"),
        ({"hot_pool": "many"}, "hot_pool", "expected int, got str", ""),
        ({"overcommit": {"cpus": "x"}}, "overcommit.cpus", "expected float, got str", ""),
        ({"overcommit": {"cpus": 99}}, "overcommit", "99.0: must be from 1 to 64", ""),
        ({"overcommit": {"cups": 2}}, "overcommit", "there is no such setting: cups", ""),
        ({"stores": {"fast": "disk"}}, "stores", "must be an absolute path, not 'disk'", ""),
        ({"bridges": {"a": "eth1", "b": "eth1"}}, "bridges", "each link can be one bridge", ""),
        ({"listen": []}, "listen", "(): must name one address at least", '["0.0.0.0"] is all of them'),
        ({"ip": "10.1.0"}, "ip", "'10.1.0': must be an IPv4 address", ""),
    ],
)
def test_what_is_wrong_is_told_with_its_key_and_what_to_do(
    setting: dict[str, Any], key: str, why: str, hint: str
) -> None:
    (found,) = problems(BASE | setting)
    assert (found.key, found.hint or hint) == (key, hint or found.hint)
    assert found.why.startswith(why) or why in found.why


def test_all_problems_are_told_at_once() -> None:
    told = problems({"name": "N", "port": 0, "colour": "red", **{key: BASE[key] for key in ("state", "pki")}})
    assert [one.key for one in told] == ["name", "port", "colour", "ip", "images", "cgroup"]


@given(
    st.dictionaries(
        st.sampled_from([*BASE, "port", "listen", "stores", "roles", "x"]),
        st.none()
        | st.integers()
        | st.text(max_size=5)
        | st.lists(st.integers(), max_size=2)
        | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    )
)
def test_whatever_a_file_says_is_told_as_problems_or_is_right(settings: dict[str, Any]) -> None:
    assert problems(settings)


def test_a_node_in_a_namespace_can_be_served_at_addresses_of_the_host_around_it(tmp_path: Path) -> None:
    given = ["192.0.2.7", "192.0.2.7:443", "[2001:db8::7]:443"]
    config = loaded(tmp_path, namespace="atoll-ab12cd", listen_outside=given)
    assert outside_addresses(config.listen_outside, config.port) == (
        ("192.0.2.7", 6976),
        ("192.0.2.7", 443),
        ("2001:db8::7", 443),
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"listen_outside": ["192.0.2.7"]},
        {"namespace": "a", "listen_outside": ["example.org"]},
        {"namespace": "a", "listen_outside": ["192.0.2.7:0"]},
        {"namespace": "a", "listen_outside": [""]},
    ],
)
def test_addresses_of_the_host_that_make_no_sense_are_refused(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(AtollError, match="listen_outside"):
        loaded(tmp_path, **settings)
