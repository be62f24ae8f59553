"""When credentials are due, what of them is still shown, and whose right they are asked for with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs

from atoll.errors import Denied, HostFailure
from atoll.hypervisor.credentials import (
    NO_BROKER,
    REFUSED,
    SERVED,
    Credentials,
    cloud_told,
    is_due,
    is_whole,
    past_half,
    without_the_ended,
)
from atoll.identity.roles import Algorithm, CloudCredential, PublicKeys, RoleCredentials
from atoll.identity.signer import Answer
from atoll.model.long_lived import LongLivedCredential
from atoll.model.vm import VM
from samples import a_vm

START = datetime(2026, 1, 1, tzinfo=UTC)
CLOUD = CloudCredential("ASIA", "s", "t", START, START + timedelta(hours=1))
HELD = RoleCredentials("web", {}, {}, START, START + timedelta(hours=4), cloud=CLOUD)


@pytest.mark.parametrize(
    ("minutes", "due", "due_with_a_broker"),
    [(0, False, False), (29, False, False), (30, False, True), (119, False, True), (120, True, True)],
)
def test_each_is_due_at_half_of_its_life(minutes: int, due: bool, due_with_a_broker: bool) -> None:
    now = START + timedelta(minutes=minutes)

    assert is_due(HELD, False, now) is due
    assert is_due(HELD, True, now) is due_with_a_broker


def test_what_is_missing_is_due_at_once() -> None:
    assert is_due(None, False, START)
    assert is_due(structs.replace(HELD, cloud=None), True, START)
    assert not is_due(structs.replace(HELD, cloud=None), False, START)


def test_nothing_is_shown_after_its_end() -> None:
    assert without_the_ended(HELD, START + timedelta(minutes=59)) == HELD
    assert without_the_ended(HELD, START + timedelta(hours=1)) == structs.replace(HELD, cloud=None)
    assert without_the_ended(HELD, START + timedelta(hours=4)) is None


def test_whether_there_are_some_of_a_public_cloud_is_told() -> None:
    without = structs.replace(HELD, cloud=None)
    assert cloud_told(HELD, brokered=True) == SERVED
    assert cloud_told(without, brokered=True) == cloud_told(None, brokered=True) == REFUSED
    assert cloud_told(without, brokered=False) == cloud_told(None, brokered=False) == NO_BROKER


def test_a_renewal_has_half_a_life_to_succeed_in() -> None:
    moment = START + timedelta(hours=2)
    assert past_half(HELD, moment)
    assert not past_half(HELD, moment - timedelta(seconds=1))


CREDENTIAL = LongLivedCredential(
    "-----BEGIN CERTIFICATE-----\nUFVCTElD\n-----END CERTIFICATE-----\n",
    "-----BEGIN PRIVATE KEY-----\nU0VDUkVU\n-----END PRIVATE KEY-----\n",
)
WEB = a_vm(role="web", started_by="cold", role_credential_expires_at=START + timedelta(days=1))


class NodesIssuer:
    """Takes note of what it was shown, and refuses everybody."""

    def __init__(self) -> None:
        self.shown: list[LongLivedCredential | None] = []

    async def issue(self, role: str, holder: str, keys: Mapping[Algorithm, PublicKeys]) -> Answer:
        self.shown.append(None)
        raise Denied("it answered 403")


class Issuer(NodesIssuer):
    """Can be shown a VM's own credential as well."""

    def showing(self, credential: LongLivedCredential) -> Shown:
        return Shown(self, credential)


class Shown:
    def __init__(self, issuer: NodesIssuer, credential: LongLivedCredential) -> None:
        self._issuer = issuer
        self._credential = credential

    async def issue(self, role: str, holder: str, keys: Mapping[Algorithm, PublicKeys]) -> Answer:
        self._issuer.shown.append(self._credential)
        raise Denied("it answered 403")


class Own:
    def __init__(self, held: dict[str, LongLivedCredential]) -> None:
        self._held = held

    async def read(self, vm: VM) -> LongLivedCredential:
        if vm.instance_id not in self._held:
            raise HostFailure("opening it: no such file")
        return self._held[vm.instance_id]


async def attempt(issuer: NodesIssuer, vm: VM, now: datetime = START) -> list[str]:
    """What is told of one attempt."""
    told: list[str] = []

    async def tell(vm: VM, problem: str, cloud: str) -> None:
        assert cloud == NO_BROKER
        told.append(problem)

    own = Own({WEB.instance_id: CREDENTIAL})
    credentials = Credentials(issuer, None, lambda: [vm], lambda: now, own=own, tell=tell)
    await asyncio.gather(*credentials.look())
    credentials.close()
    return told


async def test_a_vm_with_a_credential_of_its_own_is_asked_for_with_that_one() -> None:
    issuer = Issuer()
    assert await attempt(issuer, WEB) == ["it answered 403"]
    assert issuer.shown == [CREDENTIAL]


async def test_a_vm_without_one_is_asked_for_by_the_nodes_right() -> None:
    issuer = Issuer()
    await attempt(issuer, structs.replace(WEB, role_credential_expires_at=None))
    assert issuer.shown == [None]


async def test_the_nodes_right_is_never_used_instead_of_a_credential_that_is_of_no_use() -> None:
    issuer, plain = Issuer(), NodesIssuer()
    ended = START + timedelta(days=1)
    (told,) = await attempt(issuer, WEB, now=ended)
    assert told == "the credential that the VM was created with ended at 2026-01-02 00:00:00Z"
    assert await attempt(issuer, structs.replace(WEB, instance_id="lost")) == ["opening it: no such file"]
    (told,) = await attempt(plain, WEB)
    assert "takes no credential of a VM" in told
    assert issuer.shown == plain.shown == []


async def test_what_is_told_already_is_not_told_again() -> None:
    told = structs.replace(WEB, role_problem="it answered 403", role_cloud=NO_BROKER)
    assert await attempt(Issuer(), told) == []


async def test_a_vm_that_is_being_made_is_left_until_its_credential_is_on_disk() -> None:
    making = structs.replace(WEB, started_by="")
    assert (is_whole(making), is_whole(WEB)) == (False, True)
    assert is_whole(structs.replace(making, role_credential_expires_at=None))
    issuer = Issuer()
    await attempt(issuer, making)
    assert issuer.shown == []
