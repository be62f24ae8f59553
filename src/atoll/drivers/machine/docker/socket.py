"""Where a container engine listens, and whether it answers. Light: for those who start nothing.

Effects: one request to the engine.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

USUAL = (Path("/run/docker.sock"), Path("/var/run/docker.sock"), Path("/run/podman/podman.sock"))
_SCHEME = "unix://"
_TIMEOUT_S = 5.0


def find_engine() -> Path | None:
    """The socket of an engine that answers: where DOCKER_HOST says, else the usual of Docker or Podman."""
    named = os.environ.get("DOCKER_HOST", "")
    candidates = [Path(named.removeprefix(_SCHEME))] if named.startswith(_SCHEME) else []
    if not named:
        candidates = list(USUAL)
    return next((path for path in candidates if answers(path)), None)


def answers(path: Path) -> bool:
    """Whether an engine answers at this socket."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as engine:
        engine.settimeout(_TIMEOUT_S)
        engine.connect(os.fspath(path))
        engine.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
        return engine.recv(64).startswith((b"HTTP/1.0 200", b"HTTP/1.1 200"))
    return False
