"""Whether the service does what its OpenAPI document says: schemathesis, with all its default checks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from schemathesis.engine import events, from_schema

from atoll.api import hypervisor as api
from atoll.api.observing import HISTORY
from atoll.api.route import Socket

SEED = 6976
EXAMPLES = 12
# 422 is for what a schema cannot say: a gateway outside of its network, an address that is not in the subnet.
# 507 is for what does not fit on the node, such as a volume of a petabyte; 429 for one who tries token after token.
ACCEPTED = ["2xx", "401", "403", "404", "409", "422", "429", "5xx"]


def settings(node: Any, pki: Any) -> dict[str, Any]:
    cert, key = pki.user_files("oper")
    return {
        "base-url": f"https://127.0.0.1:{node.port}",
        "tls-verify": str(pki.authority.cert_path),
        "request-cert": str(cert),
        "request-cert-key": str(key),
        "request-timeout": 60,
        "seed": SEED,
        "continue-on-failure": True,
        "generation": {"max-examples": EXAMPLES, "database": "none"},
        "checks": {
            "positive_data_acceptance": {"expected-statuses": ACCEPTED},
            "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "507"]},
        },
    }


@pytest.fixture(autouse=True)
def _brief() -> Iterator[None]:
    """Streams without end and long waits are good requests too; they are asked for in their short form."""

    def be_brief(context: Any, case: Any, kwargs: Any) -> None:
        endless = case.operation.path in (api.EVENTS.path, api.LEASE_LIST.path, HISTORY.path)
        if endless and str(case.query.get("follow", True)).lower() in ("true", "1"):
            case.query["follow"] = "false"
        wait = case.body.get("wait", case.body) if isinstance(case.body, dict) else None
        long = wait.get("timeout_s") if isinstance(wait, dict) else None
        if isinstance(long, int | float) and 0.1 < long <= api.MAX_WAIT_S:
            wait["timeout_s"] = 0.1

    schemathesis.hook("before_call")(be_brief)
    yield
    schemathesis.hooks.unregister(be_brief)


def findings(schema: Any) -> tuple[list[str], set[str]]:
    """What was found, and the operations that were tried."""
    found: list[str] = []
    tried: set[str] = set()
    for event in from_schema(schema).execute():
        match event:
            case events.ScenarioFinished():
                tried |= {case.value.operation.label for case in event.recorder.cases.values()}
                found += [
                    f"{check.failure_info.failure}\n{check.failure_info.code_sample}"
                    for case, checks in event.recorder.checks.items()
                    for check in checks
                    if check.failure_info is not None
                    and not _needs_upgrade(event.recorder.cases[case].value, check)
                ]
            case events.NonFatalError():
                found.append(f"{event.label}: {event.value!r}")
            case events.FatalError():
                raise event.exception
    return found, tried


def _needs_upgrade(case: Any, check: Any) -> bool:
    """A socket refuses a request without Upgrade, which a schema cannot ask for."""
    is_socket = case.operation.path in {route.path for route in api.ROUTES if isinstance(route, Socket)}
    return is_socket and check.name == "positive_data_acceptance"


async def test_nothing_is_found(node, pki, ann):
    await ann.create("web")
    config = schemathesis.Config.from_dict(settings(node, pki))
    schema = schemathesis.openapi.from_dict(await ann.call(api.OPENAPI), config=config)
    found, tried = await asyncio.to_thread(findings, schema)
    assert found == []
    assert tried == {f"{route.verb} {route.path}" for route in api.ROUTES}
