"""A cloud that is reached from other machines: a client in another network namespace, with nothing but the command."""

from __future__ import annotations

import json
import os
import pty
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atoll.system import namespaces
from atoll.system.links import Links

if TYPE_CHECKING:
    from tests.host.conftest import Cli

# Another machine has no file of the cloud.
WITHOUT = 'mount -t tmpfs -o size=64k none "$0" && exec "$@"'


@dataclass(frozen=True)
class Elsewhere:
    """Another machine: a namespace, joined to the host by one link with an address at each end."""

    namespace: str
    host: str
    """The address of the host on that link."""


@dataclass(frozen=True)
class Person:
    """Somebody there, with a home directory and the command."""

    enter: tuple[str, ...]
    program: Path
    home: Path
    more: tuple[tuple[str, str], ...] = ()

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        environment = {"HOME": str(self.home), "PATH": os.environ["PATH"], "USER": "zoe", **dict(self.more)}
        options = {"stdin": subprocess.DEVNULL, **options}
        return subprocess.Popen([*self.enter, str(self.program), *words], env=environment, **options)

    def __call__(self, *words: str, status: int = 0, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.start(*words, **pipes) as process:
            try:
                out, err = process.communicate(stdin, timeout=60)
            except BaseException:
                process.kill()
                raise
        done = subprocess.CompletedProcess(words, process.returncode, out.decode(), err.decode())
        assert done.returncode == status, f"atoll {' '.join(words)}: {done}"
        assert "Traceback" not in done.stderr
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "-o", "json").stdout)

    def remote(self, name: str) -> Path:
        return self.home / ".config" / "atoll" / "remotes" / name


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    number = secrets.randbelow(200)
    here, there, link = f"198.18.{number}.1", f"198.18.{number}.2", f"tre{number}"
    name = f"test-remote-{number}"
    namespaces.ensure(name)
    try:
        with Links() as ours, Links(name) as theirs:
            ours.ensure_veth(link, "eth0", name)
            ours.add_address(link, f"{here}/30")
            ours.up(link)
            theirs.add_address("eth0", f"{there}/30")
            theirs.up("eth0")
        yield Elsewhere(name, here)
    finally:
        with Links() as ours:
            ours.delete(link)
        namespaces.delete(name)


@pytest.fixture(scope="module")
def served(fresh_cloud: Cli, elsewhere: Elsewhere) -> Cli:
    """A cloud that listens at an address of the host."""
    fresh_cloud("up", "--listen", elsewhere.host)
    return fresh_cloud


@pytest.fixture
def person(served: Cli, elsewhere: Elsewhere) -> Iterator[Person]:
    """Somebody who has nothing yet."""
    home = Path(tempfile.mkdtemp(prefix="atoll-home-"))
    hidden = str(served.directory.parent)
    enter = ("nsenter", f"--net=/run/netns/{elsewhere.namespace}", "unshare", "--mount", "sh", "-c", WITHOUT)
    try:
        yield Person((*enter, hidden), served.program, home)
    finally:
        shutil.rmtree(home)


@pytest.fixture
def added(served: Cli, person: Person) -> Person:
    """Somebody who was invited, and has used the token."""
    token = served("remote", "invite", "zoe", "-q").stdout.strip()
    person("remote", "add", "prod", "-", stdin=token.encode())
    return person


def answers(elsewhere: Elsewhere, cloud: Cli, port: int) -> bool:
    """Whether the cloud proves there, to somebody who trusts its CA, that it is at this address."""
    context = ssl.create_default_context(cafile=cloud.directory / "client/ca.pem")

    def ask() -> bool:
        try:
            with (
                socket.create_connection((elsewhere.host, port), timeout=5) as plain,
                context.wrap_socket(plain, server_hostname=elsewhere.host) as tls,
            ):
                tls.sendall(b"GET /healthz HTTP/1.0\r\nHost: x\r\n\r\n")
                return b"200 OK" in tls.recv(4096)
        except ConnectionRefusedError:
            return False

    return namespaces.inside(elsewhere.namespace, ask)


def test_a_cloud_is_served_at_an_address_of_the_host_that_its_certificate_names(
    served: Cli, elsewhere: Elsewhere
) -> None:
    with socket.create_server((elsewhere.host, 7001)):
        taken = served.refused("up", "--listen", f"{elsewhere.host}:7001")
    assert (taken.status, "7001: somebody else" in taken.brief) == (4, True)
    absent = served.refused("up", "--listen", "198.51.100.77")
    assert (absent.status, "not an address of this host" in absent.brief) == (2, True)

    # Remembered, and changed by nothing: the same agent.
    agent = served.status()["pid"]
    said = served("up", "--listen", f"{elsewhere.host}:6976").stdout
    assert f"for other machines at {elsewhere.host}:6976" in said
    served("up")
    assert (served.status()["pid"], served.status()["listen"]) == (agent, [f"{elsewhere.host}:6976"])
    assert answers(elsewhere, served, 6976)


def test_everything_works_through_a_remote(served: Cli, added: Person, elsewhere: Elsewhere) -> None:
    atoll = replace(added, more=(("ATOLL_REMOTE", "prod"),))
    vm = atoll.json("vm", "create", "--name", "far", "--image", "appliance")
    assert vm["owner_users"] == ["zoe"]
    assert atoll("vm", "exec", "far", "--", "sh", "-c", "echo hi; exit 3", status=3).stdout == "hi\n"

    (atoll.home / "note").write_text("from elsewhere\n")
    atoll("vm", "cp", str(atoll.home / "note"), "far:/tmp/note")
    atoll("vm", "cp", "far:/tmp/note", str(atoll.home / "back"))
    assert (atoll.home / "back").read_text() == "from elsewhere\n"

    (atoll.home / "disk").write_bytes(secrets.token_bytes(1 << 20))
    atoll("volume", "add", "far", "--name", "data", "--content", str(atoll.home / "disk"), "--detached")
    assert [one["size_mib"] for one in atoll.json("volume", "list", "far") if one["name"] == "data"] == [1]

    assert '"hostname": "far"' in through_a_forward(atoll, elsewhere)
    assert "from-the-console" in typed(atoll, b"echo from-the'-'console\n", b"from-the-console")
    assert atoll("vm", "log", "far").stdout
    assert "vm.create" in {one["method"] for one in served.json("audit", "list", "--user", "zoe")}
    assert {"far"} <= {one.get("name") for one in atoll.json("event", "list")}
    status = atoll.json("status")
    assert (status["remote"], status["chosen_by"], status["agent"]) == ("prod", "ATOLL_REMOTE", "up")
    assert status["address"] == f"{elsewhere.host}:6976"
    # Others' VMs and the node are as far away as for any user.
    assert atoll("node", "drain", status=5).stderr.startswith("atoll: zoe may not call node.drain")
    atoll("vm", "destroy", "--yes", "far")
    assert atoll("vm", "list", "-o", "name").stdout == ""


def through_a_forward(atoll: Person, elsewhere: Elsewhere) -> str:
    with atoll.start("vm", "forward", "-q", "far", "0:80", stdout=subprocess.PIPE) as forward:
        try:
            assert forward.stdout is not None
            host, _, port = forward.stdout.readline().decode().split()[0].rpartition(":")

            def ask() -> str:
                with socket.create_connection((host, int(port)), 30) as client:
                    client.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    return b"".join(iter(lambda: client.recv(65536), b"")).decode()

            return namespaces.inside(elsewhere.namespace, ask)
        finally:
            forward.kill()


def typed(atoll: Person, keys: bytes, wanted: bytes) -> str:
    """What a console shows to somebody who types this, until what they want is there."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with atoll.start("vm", "console", "-q", "far", **pipes) as console:
        try:
            assert console.stdin is not None
            assert console.stdout is not None
            console.stdin.write(keys)
            console.stdin.flush()
            os.set_blocking(console.stdout.fileno(), False)
            seen, until = b"", time.monotonic() + 30
            while wanted not in seen:
                assert time.monotonic() < until, seen
                seen += console.stdout.read() or b""
                time.sleep(0.02)
            return seen.decode(errors="replace")
        finally:
            console.kill()


def test_a_token_is_good_once_and_what_it_makes_is_for_its_user_alone(served: Cli, person: Person) -> None:
    invited = served(
        "remote", "invite", "zoe", "--group", "web", "--limit", "vm.list node.show", "--for", "5m"
    )
    token = invited.stdout.strip()
    assert "zoe may call node.show, vm.list and nothing else" in invited.stderr
    assert "good once" in invited.stderr
    assert served.json("remote", "invitations")[0]["user"] == "zoe"

    exposed = person("remote", "add", "prod", token, status=2).stderr
    assert "read by every user of this machine" in exposed
    assert token not in exposed
    assert token not in (
        seen := asked(person, "remote", "add", "prod", at=b"not shown: ", answer=token.encode() + b"\n")
    )
    assert "you are zoe there" in seen
    assert served.json("remote", "invitations") == []
    for file in (person.remote("prod"), *person.remote("prod").iterdir()):
        assert file.stat().st_mode & 0o077 == 0, file
    assert (person.remote("prod") / "user.key").stat().st_mode & 0o777 == 0o600

    used = person("remote", "add", "again", status=5, stdin=token.encode()).stderr
    assert "the token is not valid" in used
    assert token not in used
    assert not person.remote("again").exists()
    assert person("remote", "add", "prod", status=4, stdin=token.encode()).stderr.startswith(
        "atoll: remote prod: there is one already"
    )

    row = person.json("remote", "show", "prod")
    assert (row["user"], row["groups"], row["state"]) == ("zoe", ["web"], "ready")
    assert row["fingerprint"] == f"SHA256:{served.json('ca', 'show')['sha256']}"
    assert person("vm", "list", "--remote", "prod", "-o", "name").stdout == ""
    assert "limited to" in person("vm", "create", "--remote", "prod", status=5).stderr

    # Without --remote it is the cloud on that machine, which has none; with `use` it is the remote.
    assert "no cloud in /var/lib/atoll" in person("vm", "list", "--dir", "/var/lib/atoll", status=7).stderr
    person("remote", "use", "prod")
    assert [row["in_use"] for row in person.json("remote", "list")] == [True]
    person("vm", "list")
    person("remote", "use", "nowhere", status=3)
    assert "--yes" in person("remote", "remove", "prod", status=2).stderr
    person("remote", "remove", "prod", "--yes")
    assert person("remote", "list", "-o", "name").stdout == ""
    assert not person.remote("prod").exists()


def test_tokens_that_are_wrong_withdrawn_or_over_are_refused_alike(served: Cli, person: Person) -> None:
    withdrawn = served("remote", "invite", "zoe", "-q").stdout.strip()
    served("remote", "withdraw", "zoe")
    late = served("remote", "invite", "zoe", "--for", "1s", "-q").stdout.strip()
    time.sleep(1.1)
    said = {
        person("remote", "add", "prod", status=5, stdin=token.encode()).stderr for token in (withdrawn, late)
    }
    assert len(said) == 1
    assert "not whole" in person("remote", "add", "prod", status=2, stdin=late[:-6].encode()).stderr
    assert "at most 7 days" in served("remote", "invite", "zoe", "--for", "8d", check=False).stderr
    assert not person.remote("prod").exists()


def test_by_hand_a_shown_fingerprint_is_trusted_and_a_request_is_signed(
    served: Cli, person: Person, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    fingerprint = served.json("ca", "show")["sha256"]
    add = ("remote", "add", "prod", elsewhere.host)
    assert "--fingerprint" in person(*add, status=2).stderr
    wrong = person(*add, "--fingerprint", f"SHA256:{'00' * 32}", status=5).stderr
    assert "not the one that was named" in wrong
    assert fingerprint in wrong
    assert not person.remote("prod").exists()

    said = asked(person, *add, "--user", "zoe", answer=b"y\n")
    assert f"SHA256:{fingerprint}" in said
    assert "atoll ca sign request.pem --user zoe --out zoe.pem" in said
    request = person.remote("prod") / "request.pem"
    assert person.json("remote", "list")[0]["state"] == "waiting"
    assert "waits for its certificate" in person("vm", "list", "--remote", "prod", status=4).stderr

    signed = tmp_path / "zoe.pem"
    served("ca", "sign", str(request), "--user", "zoe", "--out", str(signed))
    other = served("ca", "issue", "user", "mallory", "--out", str(tmp_path))
    assert other.returncode == 0
    finish = ("remote", "add", "prod", "--certificate")
    assert "for another key" in person(*finish, str(tmp_path / "mallory.pem"), status=5).stderr
    person(*finish, str(signed))
    assert not request.exists()
    assert person("vm", "list", "--remote", "prod").returncode == 0


def asked(person: Person, *words: str, answer: bytes, at: bytes = b"[y/N]") -> str:
    """What somebody at a terminal sees who answers so."""
    ours, theirs = pty.openpty()
    with person.start(*words, stdin=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while at not in seen:
            seen += os.read(ours, 4096)
        os.write(ours, answer)
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:
                break
            seen += piece
    os.close(ours)
    assert process.returncode == 0, seen
    return seen.decode()


def listens(host: str, port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((host, port)) == 0


def test_who_is_not_the_cloud_that_was_added_is_told_nothing(
    served: Cli, added: Person, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    token = served("remote", "invite", "zoe", "--address", f"{elsewhere.host}:7002", "-q").stdout.strip()
    served("ca", "init", "--ca-dir", str(tmp_path / "other"))
    words = ("server", elsewhere.host, "--ca-dir", str(tmp_path / "other"), "--out", str(tmp_path))
    served("ca", "issue", *words)
    record = added.remote("prod") / "remote.json"
    record.write_text(json.dumps({"addresses": [f"{elsewhere.host}:7002"]}))
    command = ["openssl", "s_server", "-quiet", "-accept", f"{elsewhere.host}:7002", "-www"]
    keys = ["-cert", str(tmp_path / f"{elsewhere.host}.pem"), "-key", str(tmp_path / f"{elsewhere.host}.key")]
    with subprocess.Popen([*command, *keys], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as impostor:
        try:
            until = time.monotonic() + 10
            while not listens(elsewhere.host, 7002):
                assert time.monotonic() < until
            said = added("vm", "list", "--remote", "prod", status=5).stderr
            assert "does not prove to be the cloud that was added" in said
            assert "atoll remote add --replace prod" in said
            assert "shows no CA" in added("remote", "add", "two", status=7, stdin=token.encode()).stderr
        finally:
            impostor.send_signal(signal.SIGTERM)
    # Its secret went nowhere.
    assert served.json("remote", "invitations") != []
    for words in (
        ("list",),
        ("stop", "a", "b"),
        ("console", "a"),
        ("exec", "a", "--", "true"),
    ):
        away = added("vm", *words[:1], "--remote", "prod", *words[1:], status=7).stderr
        assert "atoll: remote prod: cannot connect" in away, words
        assert "atoll up --listen" in away
    assert added("status", "--remote", "prod", status=7).stdout


def test_what_is_done_on_the_machine_itself_is_not_done_through_a_remote(added: Person) -> None:
    for words in (("up",), ("down",), ("ca", "list"), ("remote", "invite", "ann")):
        assert "cloud on this machine" in added(*words, "--remote", "prod", status=2).stderr


def test_a_port_that_somebody_takes_meanwhile_is_no_end_of_the_cloud(
    served: Cli, elsewhere: Elsewhere
) -> None:
    served("down")
    with socket.socket() as other:
        # Connections that have ended keep the port for a minute.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((elsewhere.host, 6976))
        other.listen()
        assert "it is not served at" in served("up").stderr
        assert served.status()["agent"] == "up"
    until = time.monotonic() + 15
    while not answers(elsewhere, served, 6976):
        assert time.monotonic() < until, "nobody listens there again"
        time.sleep(0.2)


def test_a_cloud_that_listens_no_more_is_not_reached(served: Cli, elsewhere: Elsewhere) -> None:
    served("up", "--no-listen")
    assert not answers(elsewhere, served, 6976)
    refusal = served.refused("remote", "invite", "zoe")
    assert (refusal.status, "atoll up --listen" in refusal.hint) == (4, True)
