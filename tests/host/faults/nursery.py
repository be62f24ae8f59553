"""Agents of a cloud by the hundred: forked from a process that has everything loaded, each a process of its own.

Run as a program it reads `config TAB log TAB fault` lines and answers each with the process number of an agent. Its
agents die with it, and it ends when its input does: nothing stays, however the tests end.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys


def main() -> None:
    import atoll.drivers.machine.qemu.driver
    import atoll.drivers.machine.sim  # noqa: F401 - loaded once, for all
    from atoll.hypervisor import __main__ as agent
    from atoll.system import steps

    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        config, log, fault = line.rstrip("\n").split("\t")
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            null = os.open(os.devnull, os.O_RDONLY)
            for number, source in ((0, null), (1, output), (2, output)):
                os.dup2(source, number)
            sys.argv[1:] = [config]
            steps.arm(fault)
            os._exit(agent.main())
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
