from __future__ import annotations

from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.api import (
    changes,
    forwards,
    hands,
    hypervisor,
    joining,
    observing,
    publishing,
    quotas,
    shares,
    ssh,
    suspending,
    volumes,
)
from atoll.api import given as given_routes
from atoll.api.access import Access
from atoll.api.route import NOTHING, Route, Unary

ROUTES = hypervisor.ROUTES


def test_every_declared_route_is_in_the_list():
    modules = (
        hypervisor,
        changes,
        given_routes,
        volumes,
        hands,
        forwards,
        joining,
        observing,
        publishing,
        quotas,
        ssh,
        shares,
        suspending,
    )
    declared = {
        value.name for module in modules for value in vars(module).values() if isinstance(value, Route)
    }
    assert {route.name for route in ROUTES} == declared


def test_names_and_calls_are_unique():
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    assert len({(route.verb, route.path) for route in ROUTES}) == len(ROUTES)


def test_only_health_and_what_leads_to_a_certificate_are_public():
    public = [route.name for route in ROUTES if route.access is Access.PUBLIC]
    assert public == ["health.show", "ca.show", "invitation.redeem"]


READS = {"show", "list", "log", "user-data", "console", "vnc", "exec", "forward", "history", "published"}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_what_changes_something_is_not_a_get(route: Route):
    assert (route.verb == "GET") == (route.name.split(".")[1] in READS)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_what_is_done_to_a_vm_is_for_its_owners(route: Route):
    if route.path.startswith("/v1/vms/{vm}") and route.name != "vm.show":
        assert route.access is Access.OWNER


@given(st.text(min_size=1))
def test_a_parameter_stays_within_its_place_in_the_path(value: str):
    path = hypervisor.VM_STOP.url({"vm": value})
    assert path.count("/") == 4
    assert not set("?# ") & set(path)
    assert unquote(urlsplit(path).path) == f"/v1/vms/{value}/stop"


def test_parameters_are_known_by_their_names():
    route = Unary(
        "x.show",
        "GET",
        "/a/{b}/c/{d}",
        summary="",
        access=Access.PUBLIC,
        body=NOTHING,
        query=NOTHING,
        result=int,
    )
    assert route.params == ("b", "d")
    assert route.url({"b": "1", "d": "2"}) == "/a/1/c/2"
