"""Where this machine stands: room, time, names, a container engine, what serves folders.

Effects: looks; asks the name servers one question.

Each is a check of `atoll doctor`. What it found is judged by functions beside it, purely.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from atoll.cli.cloud import space as room
from atoll.cli.cloud import steps
from atoll.cli.cloud.layout import Paths
from atoll.cli.finding import FAIL, OK, WARN, Finding
from atoll.errors import AtollError

WRITTEN = datetime(2025, 1, 1, tzinfo=UTC)
"""No clock that is right says that it is earlier."""
RESOLV_CONF = Path("/etc/resolv.conf")
ANSWER_S = 1.0
DNS_PORT = 53


def space(directory: Path) -> Finding:
    paths = Paths(directory)
    lacks = room.find(paths, steps.cache_of(paths))
    free_mib = room.file_system(directory).free_mib
    if lacks:
        return Finding(
            "space",
            FAIL,
            "; ".join(map(str, lacks)),
            "free some, or choose another place: atoll --dir DIR up (ATOLL_DIR); ATOLL_CACHE=DIR for downloads",
            "atoll up would fail for want of room",
        )
    if free_mib < room.FEW_MIB:
        return Finding(
            "space",
            WARN,
            f"{free_mib} MiB free for {directory}",
            f"du -xh {directory} | sort -h | tail; or choose another place: atoll --dir DIR up (ATOLL_DIR)",
            "VMs that have disks need more; on a full one they are paused",
        )
    return Finding("space", OK, f"{free_mib} MiB free for {directory}")


def time(directory: Path) -> Finding:
    from atoll.identity import validity
    from atoll.system import clock

    begins = None
    with contextlib.suppress(OSError, AtollError):  # there is no CA yet
        begins = validity.of_pem((Paths(directory).pki / "ca.pem").read_bytes()).not_before
    return judge_time(clock.now(), clock.is_synchronised(), begins)


def judge_time(now: datetime, synchronised: bool | None, ca_begins: datetime | None) -> Finding:
    told = f"{now:%Y-%m-%d %H:%M:%SZ}"
    remedy = "timedatectl set-ntp true, or apt-get install chrony"
    if now < WRITTEN or (ca_begins is not None and now < ca_begins):
        since = f", before the CA of this cloud was made ({ca_begins:%Y-%m-%d})" if ca_begins else ""
        why = "certificates hold from one moment to another: with a wrong clock none of them does"
        return Finding("time", FAIL, f"the clock says {told}{since}", f"{remedy}; or date -s", why)
    if synchronised is False:
        why = "certificates, expiries and logs go by it, and other machines have to agree"
        return Finding("time", WARN, f"{told}; nothing keeps the clock in step", remedy, why)
    kept = "kept in step" if synchronised else "whether it is kept in step is not known"
    return Finding("time", OK, f"{told}; {kept}")


def dns() -> Finding:
    try:
        servers = name_servers(RESOLV_CONF.read_text(errors="replace"))
    except OSError:
        servers = []
    return judge_dns({server: _answers(server) for server in servers})


def name_servers(text: str) -> list[str]:
    """Those of a resolv.conf. Pure."""
    lines = [line.split() for line in text.splitlines()]
    return [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"]


def judge_dns(answering: Mapping[str, bool]) -> Finding:
    why = "guests that get out by --nat have names resolved by this host; so has apt, which brings the kernel package"
    if not answering:
        remedy = f"name a server in {RESOLV_CONF}: nameserver IP"
        return Finding("dns", WARN, f"no name server in {RESOLV_CONF}", remedy, why)
    silent = [server for server, answers in answering.items() if not answers]
    if not silent:
        return Finding("dns", OK, f"{', '.join(answering)} answers")
    if len(silent) < len(answering):
        why = "each question waits for it before the next server is asked"
    remedy = f"dig @{silent[0]} . NS; or name another server in {RESOLV_CONF}"
    return Finding("dns", WARN, f"no answer from {', '.join(silent)} within {ANSWER_S:g} s", remedy, why)


def _answers(server: str) -> bool:
    import dns.exception
    import dns.message
    import dns.query

    question = dns.message.make_query(".", "NS")
    try:
        dns.query.udp(question, server, timeout=ANSWER_S, port=DNS_PORT)
    except (OSError, ValueError, dns.exception.DNSException):
        return False
    return True


def folders() -> Finding:
    from atoll.drivers.machine.qemu.folders import PACKAGE, PROGRAM, problem

    return judge_folders(problem(), str(PROGRAM), PACKAGE)


def judge_folders(problem: str, program: str, package: str) -> Finding:
    """`problem`: why virtual machines can have none."""
    if not problem:
        return Finding("shared folders", OK, f"{program} serves them to virtual machines")
    why = "VMs of kind qemu can have no shared folders; others can"
    return Finding("shared folders", WARN, f"there is no {program}", f"apt-get install {package}", why)


def engine() -> Finding:
    from atoll.drivers.machine.docker.socket import USUAL, find_engine

    found = find_engine()
    return judge_engine(os.environ.get("DOCKER_HOST", ""), found, [path for path in USUAL if path.exists()])


def judge_engine(named: str, answers: Path | None, sockets: Sequence[Path]) -> Finding:
    """`named`: what DOCKER_HOST says; `sockets`: those that are at the usual places."""
    said = f" (DOCKER_HOST={named})" if named else ""
    why = "VMs of kind docker cannot be made; others can"
    if answers is not None:
        return Finding("container engine", OK, f"answers at {answers}{said}")
    if named and not named.startswith("unix://"):
        remedy = "unset DOCKER_HOST, or DOCKER_HOST=unix:///run/docker.sock"
        return Finding(
            "container engine", WARN, f"{named}: only an engine of this machine is used", remedy, why
        )
    if named:
        remedy = "start the engine, or unset DOCKER_HOST; sudo keeps it with: sudo --preserve-env=DOCKER_HOST"
        return Finding("container engine", WARN, f"nobody answers{said}", remedy, why)
    if sockets:
        found = f"nobody answers at {sockets[0]}"
        return Finding("container engine", WARN, found, "systemctl start docker", why)
    return Finding("container engine", OK, "none: there is no kind docker (apt-get install docker.io)")
