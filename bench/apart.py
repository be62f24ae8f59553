"""A peer's daemon in namespaces of its own: what it mounts and starts is gone when it ends.

    bench ── pipe ── sh, process 1 of its own PID, mount and network namespaces ── daemon ── guests

Effects: those processes and mounts. They end with the block, or with the bench, whatever ended it.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from own_cloud import undisturbed

from atoll.system import namespaces

PATIENCE_S = 30.0

# Not the daemon is process 1 but sh, which collects orphans: a daemon that does not waits for its own for ever.
HOLD = """
set -e
exec 3<&0
%s
"$@" </dev/null 3<&- &
daemon=$!
{ read -r _ <&3 || true; kill "$daemon"; } &
wait "$daemon"
"""


@contextmanager
def apart(
    namespace: str,
    directory: Path,
    script: str,
    daemon: Sequence[str],
    is_up: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """The daemon, up. The script makes its view of the host; its $0 is the directory."""
    with (directory / "daemon.log").open("wb") as log:
        command = [
            "unshare", "--mount", "--propagation", "slave", "--pid", "--fork", "--kill-child", "--mount-proc",
            "--", "sh", "-c", HOLD % script, str(directory), *daemon,
        ]  # fmt: skip
        process = namespaces.inside(
            namespace,
            lambda: subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            ),
        )
    assert process.stdin is not None
    try:
        until = time.monotonic() + PATIENCE_S
        while not is_up():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{daemon[0]} does not start: {last_words(directory)}")
            time.sleep(0.05)
        yield
    finally:
        with undisturbed():
            process.stdin.close()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()  # and with it, by --kill-child, all the others
                process.wait()


def last_words(directory: Path) -> str:
    return " ".join((directory / "daemon.log").read_text(errors="replace")[-500:].split())
