"""The fixture that keeps unit tests from reaching the world does keep them."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable

import pytest


def _with_socket(use: Callable[[socket.socket], object]) -> Callable[[], None]:
    def attempt() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
            use(one)

    return attempt


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: subprocess.run(["true"]),
        lambda: os.system("true"),
        lambda: os.fork(),
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
        _with_socket(lambda one: one.connect(("127.0.0.1", 9))),
        _with_socket(lambda one: one.bind(("127.0.0.1", 0))),
        lambda: time.sleep(0),
    ],
    ids=["subprocess", "system", "fork", "spawn", "connect", "bind", "sleep"],
)
def test_an_effect_fails_the_test(attempt: Callable[[], object]):
    with pytest.raises(pytest.fail.Exception, match="a unit test must not"):
        attempt()


async def test_a_process_or_a_long_sleep_in_the_loop_fails_the_test():
    with pytest.raises(pytest.fail.Exception, match="start a process"):
        await asyncio.create_subprocess_exec("true")
    with pytest.raises(pytest.fail.Exception, match="sleep for 1 s"):
        await asyncio.sleep(1)


async def test_the_event_loop_itself_works():
    await asyncio.sleep(0)
    assert await asyncio.to_thread(lambda: 7) == 7
