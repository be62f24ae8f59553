"""One request to a service that issues credentials. Effects: HTTPS.

Neither what is sent nor what comes back is ever in an error: both may be secret.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import aiohttp

from atoll.errors import Denied, Malformed, TimedOut, Unreachable

MAX_ANSWER = 1 << 16
TIMEOUT_S = 15.0


async def fetch(
    what: str,
    context: ssl.SSLContext,
    verb: str,
    url: str,
    *,
    query: Mapping[str, str] | None = None,
    form: aiohttp.FormData | None = None,
) -> bytes:
    """The body of a 200; anything else is an error that begins with `what` was being done."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(ssl=context)
    answer = bytearray()
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.request(verb, url, params=query, data=form, allow_redirects=False) as reply,
        ):
            if reply.status != 200:
                raise Denied(f"{what}: it answered {reply.status}", hint="see the log of that service")
            async for piece in reply.content.iter_any():
                answer += piece
                if len(answer) > MAX_ANSWER:
                    raise Malformed(f"{what}: the answer is larger than {MAX_ANSWER} bytes")
    except aiohttp.ClientError as error:
        raise Unreachable(f"{what}: {error}", hint="check its address, its CA and our certificate") from None
    except TimeoutError:
        raise TimedOut(f"{what}: no answer after {TIMEOUT_S:g} s") from None
    return bytes(answer)
