"""`python -m atoll.hypervisor CONFIG`: the agent's process. Enters its namespace, takes its lock, serves.

`--check CONFIG` prints what is wrong with a configuration, as a list in JSON, and starts nothing. SIGUSR1 has an agent
that runs write to its log where each of its threads is: what somebody needs to know of one that hangs.
"""

from __future__ import annotations

import faulthandler
import logging
import resource
import signal
import sys
from pathlib import Path

import msgspec
import uvloop

from atoll.errors import AtollError
from atoll.hypervisor import config as configuration
from atoll.hypervisor.app import serve
from atoll.hypervisor.network import physical
from atoll.system import allocator, core_dumps, files, logs, namespaces


def main() -> int:
    """Run until told to stop; the exit status is for whoever started it."""
    if sys.argv[1:2] == ["--check"]:
        return check(Path(sys.argv[2]))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    allocator.keep_pieces()
    logs.start()
    faulthandler.register(signal.SIGUSR1)
    try:
        core_dumps.forbid()
        config = configuration.load(Path(sys.argv[1]))
        outside = None
        if config.namespace is not None:
            outside = namespaces.hold()
            namespaces.enter(config.namespace)
        files.make_dirs(config.state, 0o711)
        with files.exclusive(config.state / "agent.lock"):
            physical.ensure_bridges(config.bridges)
            uvloop.run(serve(config, outside))
    except AtollError as error:
        logging.getLogger("atoll").error("%s%s", error.brief, f" ({error.hint})" if error.hint else "")
        return error.exit_status
    return 0


def check(path: Path) -> int:
    """What is wrong with a configuration, for the command that asks."""
    try:
        found = configuration.problems(configuration.read(path))
    except AtollError as error:
        found = [configuration.Problem("", error.brief, error.hint)]
    sys.stdout.write(msgspec.json.encode(found).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
