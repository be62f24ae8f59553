"""Ways into the standard input of other processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from atoll.system import pids, pipes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root opens what others have open")


@contextmanager
def running(script: str) -> Iterator[subprocess.Popen[bytes]]:
    """A script that has said that it began."""
    process = subprocess.Popen(
        ["/bin/bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.read(6) == b"begun\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def inlet_of(process: subprocess.Popen[bytes]) -> int | None:
    found = pids.identify(process.pid)
    assert found is not None
    return pipes.inlet(found)


async def test_what_is_written_past_the_parent_comes_before_the_end_that_the_parent_makes() -> None:
    with running("echo begun; cat | wc -c") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        inlet = inlet_of(process)
        assert inlet is not None

        await pipes.write_all(inlet, bytes(3 * pipes.SIZE))
        os.close(inlet)
        process.stdin.close()

        assert await asyncio.to_thread(process.stdout.read) == f"{3 * pipes.SIZE}\n".encode()


@pytest.mark.parametrize("other", ["</dev/null", "< <(sleep 9)", "<&-"])
def test_another_standard_input_is_not_meant(other: str) -> None:
    with running(f"exec {other}; echo begun; sleep 9") as process:
        assert inlet_of(process) is None


async def test_one_that_reads_no_more_is_fine() -> None:
    with running("echo begun; sleep 9") as process:
        inlet = inlet_of(process)
        assert inlet is not None
        process.kill()
        process.wait()

        await asyncio.wait_for(pipes.write_all(inlet, bytes(2 * pipes.SIZE)), 5)
        os.close(inlet)
