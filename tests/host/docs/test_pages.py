"""Pages of docs/ mean what they say: their commands are run, in order, on a cloud of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from doc_pages import DOCS, Step, missing, steps_of

if TYPE_CHECKING:
    from tests.host.conftest import Cli

PAGES = ["users.md"]

# Each command is a shell of its own; what one exports, the next one has.
RUN = '. ./exported; eval "$1"; status=$?; export -p > ./exported; exit $status'


def run(cloud: Cli, place: Path, step: Step) -> None:
    settings = {"ATOLL_DIR": str(cloud.directory), "ATOLL_IDS": str(cloud.ids), **cloud.environment}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ATOLL_")}
    path = f"{cloud.program.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", RUN, "bash", step.command],
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
    (tmp_path / "exported").touch()
    for step in steps:
        run(fresh_cloud, tmp_path, step)
