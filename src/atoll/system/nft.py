"""The packet filter. Takes all commands in one transaction: all of them, or none.

Where we are, by the library of nft; in other namespaces, or without it, by the program.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from atoll.errors import HostFailure
from atoll.system import libnft, processes

_RUN = ("nft", "-f", "-")
_LIST = ("nft", "-j", "list")


async def run(script: str) -> None:
    """Run commands in nft's own words, here. Nothing changes when one is refused."""
    here = libnft.context()
    if here is not None:
        _refuse(here.run(script.encode()), None)
    else:
        _check(await processes.run(_RUN, stdin=script.encode(), check=False), None)


def run_blocking(script: str, namespace: str | None = None) -> None:
    """`run` for those who have no event loop."""
    completed = processes.run_blocking(_RUN, stdin=script.encode(), check=False, namespace=namespace)
    _check(completed, namespace)


def apply_blocking(commands: Sequence[Mapping[str, Any]], namespace: str | None = None) -> None:
    """The same for commands as nft's JSON has them, such as {"add": {"table": …}}."""
    told = json.dumps({"nftables": list(commands)}).encode()
    completed = processes.run_blocking(("nft", "-j", "-f", "-"), stdin=told, check=False, namespace=namespace)
    _check(completed, namespace)


def tables(namespace: str | None = None) -> set[tuple[str, str]]:
    """Family and name of every table."""
    completed = processes.run_blocking((*_LIST, "tables"), check=False, namespace=namespace)
    _check(completed, namespace)
    entries = _entries(completed)
    return {(entry["table"]["family"], entry["table"]["name"]) for entry in entries if "table" in entry}


async def listing(family: str, table: str) -> list[dict[str, Any]]:
    """All that is in a table here, as nft's JSON has it."""
    completed = await processes.run((*_LIST, "table", family, table), check=False)
    _check(completed, None)
    return _entries(completed)


def drops_forwarded() -> bool:
    """Whether a base chain here drops what is forwarded unless a rule says otherwise, as Docker's does."""
    completed = processes.run_blocking((*_LIST, "chains"), check=False)
    _check(completed, None)
    chains = [entry["chain"] for entry in _entries(completed) if "chain" in entry]
    return any(chain.get("hook") == "forward" and chain.get("policy") == "drop" for chain in chains)


def complaint(stderr: str) -> str:
    """The one line of what nft said that tells why."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.partition("Error: ")[2] for line in lines if "Error: " in line]
    return (errors or lines or ["it said nothing"])[0]


def _entries(completed: processes.Completed) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(completed.stdout)["nftables"]
    return entries


def _check(completed: processes.Completed, namespace: str | None) -> None:
    _refuse(None if completed.returncode == 0 else completed.stderr.decode(errors="replace"), namespace)


def _refuse(said: str | None, namespace: str | None) -> None:
    if said is None:
        return
    said = said.strip()
    where = "" if namespace is None else f" of namespace {namespace}"
    enter = "" if namespace is None else f"ip netns exec {namespace} "
    raise HostFailure(
        f"talking to the packet filter{where}: {complaint(said)}",
        hint=f"see what is there: {enter}nft list ruleset",
        details={"stderr": said[-2000:]},
    )
