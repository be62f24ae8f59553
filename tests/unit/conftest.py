"""Unit tests use no process, no network and no waiting. Whoever tries is told so."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

LONGEST_SLEEP_S = 0.05

PROCESSES = [
    name
    for name in dir(os)
    if name.startswith(("fork", "exec", "spawn", "posix_spawn", "system", "popen"))
    and callable(getattr(os, name))
]


def _forbidden(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        pytest.fail(f"a unit test must not {what}", pytrace=True)

    return refuse


@pytest.fixture(autouse=True)
def _no_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROCESSES:
        monkeypatch.setattr(os, name, _forbidden(f"start a process (os.{name})"))
    monkeypatch.setattr(subprocess.Popen, "__init__", _forbidden("start a process (subprocess)"))
    # A pair of connected sockets, which the event loop wakes itself with, needs none of these.
    for name in ("connect", "connect_ex", "bind", "listen", "sendto"):
        monkeypatch.setattr(socket.socket, name, _forbidden(f"use the network (socket.{name})"))
    monkeypatch.setattr(time, "sleep", _forbidden("sleep"))
    sleep = asyncio.sleep

    async def short_sleep(delay: float, result: Any = None) -> Any:
        if delay > LONGEST_SLEEP_S:
            pytest.fail(f"a unit test must not sleep for {delay} s")
        return await sleep(delay, result)

    monkeypatch.setattr(asyncio, "sleep", short_sleep)
