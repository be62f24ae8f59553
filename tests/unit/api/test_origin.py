"""Which requests a page of another site may be behind."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from atoll.api.origin import check_origin
from atoll.errors import Denied, Malformed

HOST = {"Host": "10.0.0.1:6976"}


@pytest.mark.parametrize("verb", ["GET", "POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://10.0.0.1:6976"},
        {"Origin": "https://10.0.0.1"},
        {"Origin": "https://10.0.0.1:6976.elsewhere.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "something new"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://elsewhere.example"},
    ],
)
def test_what_comes_from_elsewhere_is_denied(verb: str, headers: dict[str, str]) -> None:
    with pytest.raises(Denied):
        check_origin(verb, CIMultiDict(HOST | headers))


@pytest.mark.parametrize("verb", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "kind",
    [
        "application/x-www-form-urlencoded",
        "Application/X-WWW-Form-URLencoded ; charset=utf-8",
        "multipart/form-data; boundary=x",
        "text/plain",
        "text/plain;charset=UTF-8",
    ],
)
def test_a_form_does_nothing_whether_it_has_a_body_or_not(verb: str, kind: str) -> None:
    with pytest.raises(Malformed):
        check_origin(verb, CIMultiDict(HOST | {"Content-Type": kind}))


@pytest.mark.parametrize("verb", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "application/json"},
        {"Origin": "https://10.0.0.1:6976"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://10.0.0.1:6976"},
    ],
)
def test_what_a_program_sends_is_taken(verb: str, headers: dict[str, str]) -> None:
    check_origin(verb, CIMultiDict(HOST | headers))


def test_without_a_host_no_origin_is_our_own() -> None:
    with pytest.raises(Denied):
        check_origin("GET", CIMultiDict({"Origin": "https://None"}))
