"""Handlers for those who have no certificate yet: the CA to trust, and invitations."""

from __future__ import annotations

import math

from atoll.api import joining as routes
from atoll.api.joining import CaCertificate, Joined, Redeem
from atoll.api.route import Bound, Call, bind
from atoll.errors import TooMany
from atoll.identity.enrolment import Enrolment
from atoll.serving.door.door import network_source
from atoll.serving.user_limits import Pace
from atoll.system import clock

TRIES_PER_S = 0.5
TRIES_AT_ONCE = 20
"""From one address. A secret cannot be guessed; this keeps the work small that strangers make."""


class JoiningHandlers:
    def __init__(self, enrolment: Enrolment, tries_per_s: float = TRIES_PER_S) -> None:
        self._enrolment = enrolment
        self._pace = Pace(tries_per_s, TRIES_AT_ONCE)

    def bound(self) -> tuple[Bound, ...]:
        return (bind(routes.CA_SHOW, self.show), bind(routes.INVITATION_REDEEM, self.redeem))

    async def show(self, call: Call[None, None]) -> CaCertificate:
        return CaCertificate(self._enrolment.ca_pem())

    async def redeem(self, call: Call[Redeem, None]) -> Joined:
        self._check_pace(call.source)
        made = await self._enrolment.redeem(call.body.id, call.body.secret, call.body.request)
        call.notes.append(
            f"{made.subject} was given certificate {made.serial}, from {call.source or 'nowhere'}"
        )
        return Joined(made.certificate, made.ca)

    def _check_pace(self, source: str) -> None:
        wait_s = self._pace.wait_s(network_source(source) if source else "", clock.monotonic())
        if wait_s:
            raise TooMany(
                "too many tokens were tried from this address",
                retry_after_s=math.ceil(wait_s),
                hint="wait a moment, then try again",
            )
