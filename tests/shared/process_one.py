"""Process 1 of a machine that a test makes of namespaces.

It collects what its processes leave. When we close its input, or die, it runs the commands that it was given as JSON,
and ends, and everything in the machine with it.
"""

INIT = """
import json, os, select, signal, subprocess, sys

ended, noted = os.pipe()
os.set_blocking(noted, False)
signal.set_wakeup_fd(noted)
signal.signal(signal.SIGCHLD, lambda *_: None)
print("ready", flush=True)
while 0 not in select.select([0, ended], [], [])[0]:
    os.read(ended, 4096)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
for command in json.loads(sys.argv[1]):
    subprocess.run(command, capture_output=True)
"""
