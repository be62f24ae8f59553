from __future__ import annotations

import json
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from atoll.api import hypervisor, reference
from atoll.api.access import Access
from atoll.api.openapi import document
from atoll.api.route import Stream
from atoll.errors import AtollError

DOCUMENT = document("t", "1", hypervisor.ROUTES, hypervisor.PARAMETERS)


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        here = {value["$ref"]} if "$ref" in value else set()
        return here.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def operation(route: Any) -> dict[str, Any]:
    return DOCUMENT["paths"][route.path][route.verb.lower()]


def test_the_document_can_be_written_as_json_and_read_back():
    text = json.dumps(DOCUMENT)
    assert json.dumps(json.loads(text)) == text


def test_it_is_openapi_3_1_as_the_standard_has_it():
    sent = json.loads(json.dumps(DOCUMENT))
    assert [str(error) for error in OpenAPIV31SpecValidator(sent).iter_errors()] == []


def test_every_route_is_in_it_once():
    ids = [one["operationId"] for path in DOCUMENT["paths"].values() for one in path.values()]
    assert sorted(ids) == sorted(route.name for route in hypervisor.ROUTES)


def test_every_reference_leads_somewhere():
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert references(DOCUMENT) <= known


@pytest.mark.parametrize("route", hypervisor.ROUTES, ids=lambda route: route.name)
def test_an_operation_says_who_may_call_it_and_how_it_fails(route: Any):
    one = operation(route)
    assert one["x-access"] == route.access
    assert one["security"] == ([] if route.access is Access.PUBLIC else [{"certificate": []}])
    assert "application/problem+json" in one["responses"]["default"]["content"]


@pytest.mark.parametrize("route", hypervisor.ROUTES, ids=lambda route: route.name)
def test_every_parameter_of_a_path_has_a_pattern(route: Any):
    found = {one["name"]: one for one in operation(route).get("parameters", ()) if one["in"] == "path"}
    assert tuple(found) == route.params
    assert all(one["required"] and one["schema"]["pattern"] for one in found.values())


def test_a_query_is_parameters_with_their_defaults():
    found = {one["name"]: one["schema"] for one in operation(hypervisor.EVENTS)["parameters"]}
    assert set(found) == {"epoch", "sequence", "follow"}
    assert found["follow"] == {"type": "boolean", "default": True}


def test_a_body_is_required_just_when_one_of_its_fields_is():
    assert operation(hypervisor.VM_CREATE)["requestBody"]["required"]
    assert not operation(hypervisor.VM_STOP)["requestBody"]["required"]
    assert "requestBody" not in operation(hypervisor.VM_DESTROY)


def test_what_is_taken_from_outside_refuses_unknown_fields():
    schemas = DOCUMENT["components"]["schemas"]
    for name in ("CreateVm", "VmSpec", "Wait", "StopVm", "Subnet", "Address", "AddAddress"):
        assert schemas[name]["additionalProperties"] is False


def test_a_stream_is_described_by_its_lines_and_by_its_result_where_it_has_one():
    for route in hypervisor.ROUTES:
        if isinstance(route, Stream):
            content = operation(route)["responses"]["200"]["content"]
            assert "item" in content["application/jsonl"]["schema"]["properties"]
            assert ("application/json" in content) == (route.result is not type(None))


def test_the_reference_has_every_route_error_and_type():
    page = reference.page()
    for route in hypervisor.ROUTES:
        assert f"| `{route.verb} {route.path}` | {route.access} |" in page
    for code, status, leave, _ in reference.exits():
        assert f"| `{code}` | {status} | {leave} |" in page
    for name in DOCUMENT["components"]["schemas"]:
        assert f"\n## {name}\n" in page


def test_the_errors_of_the_reference_are_those_of_the_tree():
    rows = reference.exits()
    assert len({code for code, *_ in rows}) == len(rows)
    assert ("pool_empty", 507, 6, "No free address.") in rows
    assert all(meaning for *_, meaning in rows)


def test_a_refinement_under_the_same_code_adds_no_row():
    before = reference.exits()

    class Refined(AtollError):
        pass

    assert Refined.code == AtollError.code
    assert reference.exits() == before
