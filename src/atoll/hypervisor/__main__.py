"""`python -m atoll.hypervisor CONFIG`: the agent's process. Enters its namespace, takes its lock, serves."""

from __future__ import annotations

import logging
import resource
import sys
from pathlib import Path

import uvloop

from atoll.errors import AtollError
from atoll.hypervisor.app import serve
from atoll.hypervisor.config import load
from atoll.system import core_dumps, files, namespaces


def main() -> int:
    """Run until told to stop; the exit status is for whoever started it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        core_dumps.forbid()
        config = load(Path(sys.argv[1]))
        if config.namespace is not None:
            namespaces.enter(config.namespace)
        files.make_dirs(config.state, 0o711)
        with files.exclusive(config.state / "agent.lock"):
            uvloop.run(serve(config))
    except AtollError as error:
        logging.getLogger("atoll").error("%s%s", error.brief, f" ({error.hint})" if error.hint else "")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
