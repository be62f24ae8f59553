"""The packet filter. Takes all commands in one transaction: all of them, or none.

Where we are, by the library of nft; in other namespaces, or without it, by the program.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from atoll.errors import HostFailure
from atoll.system import libnft, processes

_APPLY = ("nft", "-j", "-f", "-")
_LIST = ("nft", "-j", "list", "tables")


async def apply(commands: Sequence[Mapping[str, Any]], namespace: str | None = None) -> None:
    """Apply commands of nft's JSON, such as {"add": {"table": …}}. Nothing changes when one is refused."""
    here = libnft.context() if namespace is None else None
    if here is not None:
        _refuse(here.run(_encode(commands)), namespace)
        return
    completed = await processes.run(_APPLY, stdin=_encode(commands), check=False, namespace=namespace)
    _check(completed, namespace)


def apply_blocking(commands: Sequence[Mapping[str, Any]], namespace: str | None = None) -> None:
    """`apply` for those who have no event loop."""
    completed = processes.run_blocking(_APPLY, stdin=_encode(commands), check=False, namespace=namespace)
    _check(completed, namespace)


def tables(namespace: str | None = None) -> set[tuple[str, str]]:
    """Family and name of every table."""
    completed = processes.run_blocking(_LIST, check=False, namespace=namespace)
    _check(completed, namespace)
    entries = json.loads(completed.stdout)["nftables"]
    return {(entry["table"]["family"], entry["table"]["name"]) for entry in entries if "table" in entry}


async def chains(family: str, table: str) -> set[str]:
    """Names of the chains of a table, here. No such table is none."""
    completed = await processes.run(("nft", "-j", "list", "chains", family), check=False)
    _check(completed, None)
    entries = (entry.get("chain", {}) for entry in json.loads(completed.stdout)["nftables"])
    return {entry["name"] for entry in entries if entry.get("table") == table}


def drops_forwarded() -> bool:
    """Whether a base chain here drops what is forwarded unless a rule says otherwise, as Docker's does."""
    completed = processes.run_blocking(("nft", "-j", "list", "chains"), check=False)
    _check(completed, None)
    chains = [entry["chain"] for entry in json.loads(completed.stdout)["nftables"] if "chain" in entry]
    return any(chain.get("hook") == "forward" and chain.get("policy") == "drop" for chain in chains)


def complaint(stderr: str) -> str:
    """The one line of what nft said that tells why."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.partition("Error: ")[2] for line in lines if "Error: " in line]
    return (errors or lines or ["it said nothing"])[0]


def _encode(commands: Sequence[Mapping[str, Any]]) -> bytes:
    return json.dumps({"nftables": list(commands)}).encode()


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
