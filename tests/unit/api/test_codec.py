from __future__ import annotations

import base64
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import MultiDict

from atoll.api import hypervisor
from atoll.api.codec import (
    decode_body,
    decode_line,
    decode_query,
    encode,
    error_of,
    problem_of,
    request_of,
)
from atoll.api.hypervisor import (
    EVENTS,
    VM_CREATE,
    VM_STOP,
    AddAddress,
    CreateVm,
    Progress,
    Since,
    StopVm,
    Wait,
)
from atoll.api.route import NOTHING, Done
from atoll.errors import AtollError, Conflict, Invalid, Malformed, NotFound
from atoll.model import checks
from atoll.model.event import Event, EventKind
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.vm import VmSpec

NAMES = st.from_regex(checks.NAME_PATTERN, fullmatch=True)
IPS = st.ip_addresses(v=4).map(str)
TAGS = st.dictionaries(st.from_regex(checks.TAG_KEY_PATTERN, fullmatch=True), st.just("Zoë"), max_size=3)
SPECS = st.builds(
    VmSpec,
    name=NAMES,
    image=NAMES,
    driver=NAMES,
    memory_mib=st.integers(16, 1 << 24),
    milli_cpus=st.integers(1, 1_024_000),
    subnet=st.none() | NAMES,
    tags=TAGS,
)
WAITS = st.builds(Wait, wait_for=st.none() | st.just("port:80"), timeout_s=st.floats(0.001, 3600))
CREATES = st.builds(CreateVm, spec=SPECS, user_data=st.binary(max_size=99), wait=WAITS, request_id=st.none())


@given(
    CREATES
    | WAITS
    | st.builds(StopVm, st.floats(0, 600))
    | st.builds(AddAddress, NAMES, st.just((Address("10.0.0.5", mac_for("10.0.0.5")),)))
)
def test_a_body_reads_back_as_what_was_sent(body: object):
    assert decode_body(type(body), encode(body)) == body


@given(st.builds(Since, st.text(max_size=64), st.integers(0, 2**53), st.booleans()))
def test_a_query_reads_back_as_what_was_sent(query: Since):
    from urllib.parse import parse_qsl

    _, target, _, _ = request_of(EVENTS, {}, None, query)
    sent = dict(parse_qsl(target.partition("?")[2], keep_blank_values=True))
    assert decode_query(Since, sent) == query


@given(
    st.sampled_from([kind for route in hypervisor.ROUTES if (kind := route.body) is not NOTHING]), st.binary()
)
def test_any_bytes_are_a_body_or_malformed(kind: type, data: bytes):
    try:
        decode_body(kind, data)
    except (Malformed, Invalid) as refusal:
        assert 400 <= refusal.http_status < 500


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["spec", "wait", "name"]), inner)
    ),
    max_leaves=8,
)


@given(JSON)
def test_any_json_is_a_body_or_is_refused(value: object):
    for kind in (CreateVm, Subnet, AddAddress, Wait):
        try:
            decode_body(kind, msgspec.json.encode(value))
        except (Malformed, Invalid) as refusal:
            assert refusal.brief.isprintable()


SPEC = b'"spec":{"name":"web","image":"appliance"'


@pytest.mark.parametrize(
    ("body", "brief"),
    [
        (b"", "spec: is missing"),
        (b"{" + SPEC + b"}", "request body: not JSON"),
        (b"\xff\xfe", "request body: not JSON"),
        (b'"text"', "request body 'text': expected `object`, got `str`"),
        (b"{" + SPEC + b',"memory_mib":"1GiB"}}', "spec.memory_mib '1GiB': expected `int`, got `str`"),
        (b"{" + SPEC + b',"memory_mib":1}}', "spec.memory_mib 1: expected `int` >= 16"),
        (b"{" + SPEC + b',"memory":1}}', "spec.memory 1: there is no such field"),
        (b"{" + SPEC + b',"owner_users":["ann",7]}}', "spec.owner_users.1 7: expected `str`, got `int`"),
        (b"{" + SPEC + b'},"wait":{"wait_for":"lunch"}}', "wait.wait_for 'lunch': expected `str` matching"),
        (b"{" + SPEC + b'},"user_data":"***"}', "user_data '***': invalid base64"),
        (b'{"spec":5,"x":' + b"[" * 100_000, "spec: expected `object`, got `int`"),
        (b'{"spec":{"name":"web"}}', "spec.image: is missing"),
    ],
)
def test_a_bad_body_is_refused_with_the_field_and_its_value(body: bytes, brief: str):
    with pytest.raises(Malformed) as refusal:
        decode_body(CreateVm, body)
    assert refusal.value.brief.startswith(brief)


def test_nesting_without_end_is_refused():
    with pytest.raises(Malformed):
        decode_body(CreateVm, b'{"spec":{"name":' + b"[" * 1_000_000)


def test_a_trailing_newline_does_not_pass_as_a_name():
    with pytest.raises(Invalid, match="name"):
        decode_body(CreateVm, b'{"spec":{"name":"web\\n","image":"appliance"}}')
    with pytest.raises(Invalid, match="request_id"):
        decode_body(CreateVm, b'{"spec":{"name":"web","image":"appliance"},"request_id":"x\\n"}')


def test_large_or_nested_values_are_not_repeated_in_the_error():
    secret = base64.b64encode(b"password=hunter2" * 100_000)
    for body in (
        b'{"user_data":"' + secret + b'"}',
        b"{" + SPEC + b'},"user_data":"' + secret + b'"}',
        b'{"spec":["aHVudGVyMg"]}',
    ):
        with pytest.raises(Malformed) as refusal:
            decode_body(CreateVm, body)
        assert len(refusal.value.brief) < 200
        assert "cGFzc3" not in refusal.value.brief
        assert "aHVudGVyMg" not in str(refusal.value.details)


def test_a_route_without_a_body_takes_none():
    assert decode_body(NOTHING, b"") is None
    assert decode_body(NOTHING, b" \n") is None
    with pytest.raises(Malformed, match="takes none"):
        decode_body(NOTHING, b"{}")


def test_a_route_without_parameters_takes_none():
    assert decode_query(NOTHING, {}) is None
    with pytest.raises(Malformed, match="query 'a'"):
        decode_query(NOTHING, {"b": "1", "a": "2"})


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"sequence": "x"}, "sequence 'x'"),
        ({"sequence": "-1"}, "sequence '-1'"),
        ({"follow": "perhaps"}, "follow 'perhaps'"),
        ({"since": "1"}, "since '1': there is no such field"),
        (MultiDict([("sequence", "1"), ("sequence", "2")]), "'sequence': given more than once"),
    ],
)
def test_a_bad_query_is_refused_by_name(query: dict[str, str], says: str):
    with pytest.raises(Malformed) as refusal:
        decode_query(Since, query)
    assert says in refusal.value.brief


def test_a_query_of_many_parameters_takes_no_longer_for_each_of_them():
    compared = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    many = 2000
    with pytest.raises(Malformed):
        decode_query(Since, {Name(f"p{number}"): "1" for number in range(many)})
    assert compared < 10 * many


def test_a_request_without_a_body_says_no_content_type():
    assert request_of(VM_STOP, {"vm": "web"}, None, None) == ("POST", "/v1/vms/web/stop", b"", {})


@pytest.mark.parametrize("error", [Conflict("a: b", hint="c", details={"x": [1]}), Invalid("f", 1, "no")])
def test_an_error_crosses_the_wire_whole(error: AtollError):
    arrived = error_of(encode(problem_of(error)), error.http_status)
    assert type(arrived) is type(error)
    assert (arrived.brief, arrived.hint, arrived.details) == (error.brief, error.hint, error.details)


@pytest.mark.parametrize("body", [b"", b"<h1>Bad gateway</h1>", b'{"message":"x"}', b"\xff"])
def test_an_answer_that_is_not_ours_is_an_error_with_its_status(body: bytes):
    assert "status 502" in error_of(body, 502).brief


def line(**fields: object) -> bytes:
    return encode(fields) + b"\n"


def test_lines_of_a_stream_are_items_then_one_result():
    progress = Progress("dhcp", 0.5, "10.0.0.5")
    assert decode_line(VM_CREATE, line(item=progress)) == progress
    event = Event(EventKind.CHANGED, "e", 7, datetime(2024, 1, 1, tzinfo=UTC))
    assert decode_line(EVENTS, line(item=event)) == event
    assert decode_line(EVENTS, line(result=None)) == Done(None)


def test_an_error_in_a_stream_is_raised_as_what_it_was():
    with pytest.raises(NotFound, match="gone"):
        decode_line(VM_CREATE, line(error=problem_of(NotFound("gone"))))


@pytest.mark.parametrize(
    "body",
    [
        {"role_credential": "s3cr3t"},
        {"role_credential": ["s3cr3t"]},
        {"role_credential": {"certificate": "s3cr3t", "key": 5}},
        {"role_credential": {"certificate": "", "key": "s3cr3t"}},
        {"role_credential": {"certificate": "s3cr3t"}},
        {"role_credential": {"certificate": "s3cr3t", "key": "s3cr3t"}},
        {"role_credential": {"certificate": "s3cr3t", "key": "s3cr3t", "password": "s3cr3t"}},
        {"role_credential": {"certificate": "s3cr3t" * 9999, "key": "s3cr3t"}},
    ],
)
def test_a_secret_is_refused_by_the_name_of_its_field_and_never_quoted(body):
    data = encode({"spec": {"name": "web", "image": "i", "role": "web"}, **body})
    with pytest.raises((Malformed, Invalid)) as refusal:
        decode_body(CreateVm, data)
    assert "role_credential" in refusal.value.brief
    assert b"s3cr3t" not in encode(problem_of(refusal.value))


def test_a_field_beside_a_secret_one_is_still_quoted():
    with pytest.raises(Malformed, match="request_id 5: expected"):
        decode_body(CreateVm, encode({"spec": {"name": "web", "image": "i"}, "request_id": 5}))
