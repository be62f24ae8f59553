"""Pages of docs/ mean what they say: their commands are run, in order, on a cloud of their own."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.host.conftest import WITHOUT_NAME_SERVERS

from doc_pages import DOCS, Step, missing, steps_of
from ssh_images import add_ssh_image

if TYPE_CHECKING:
    from tests.host.conftest import Cli

PAGES = [
    "users.md",
    "shares.md",
    "remote.md",
    "network.md",
    "dns.md",
    "what-survives.md",
    "logs.md",
    "python.md",
    "troubleshooting.md",
    "ssh.md",
]

# Each command is a shell of its own; what one exports, the next one has.
RUN = '. "./$EXPORTED"; eval "$1"; status=$?; export -p > "./$EXPORTED"; exit $status'


def run(cloud: Cli, place: Path, step: Step, address: str) -> None:
    settings = {"ATOLL_DIR": str(cloud.directory), "ATOLL_IDS": str(cloud.ids), **cloud.environment}
    # Another machine has another home, and no cloud. What is sent to it is in the directory that they share here.
    settings = {"EXPORTED": "exported-there"} if step.elsewhere else {"EXPORTED": "exported", **settings}
    settings |= {"HOME": str(place / ("laptop" if step.elsewhere else "home")), "ADDRESS": address}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ATOLL_")}
    path = f"{cloud.program.parent}:{os.environ['PATH']}"
    prefix = WITHOUT_NAME_SERVERS if " doctor " in f"{step.command} " else ()
    done = subprocess.run(
        [*prefix, "bash", "-c", RUN, "bash", step.command],
        cwd=place,
        env={**inherited, **settings, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    said = f"$ {step.command}\n{done.stdout}"
    assert (done.returncode != 0) == step.refused, f"exit status {done.returncode}: {said}"
    assert "Traceback" not in done.stdout, said
    assert not missing(step, done.stdout), f"the page shows {missing(step, done.stdout)!r}: {said}"


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_does_what_the_page_says(fresh_cloud: Cli, tmp_path: Path, page: str) -> None:
    steps = steps_of((DOCS / page).read_text())
    assert steps
    if page == "ssh.md":
        add_ssh_image(fresh_cloud.directory / "images")
    for name in ("exported", "exported-there"):
        (tmp_path / name).touch()
    # An address of the host that no other test uses.
    address = f"127.69.{secrets.randbelow(250)}.{secrets.randbelow(250) + 1}"
    for step in steps:
        if step.file:
            (tmp_path / step.file).write_text(step.command)
        else:
            run(fresh_cloud, tmp_path, step, address)
