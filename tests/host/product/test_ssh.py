"""`atoll vm ssh` with a real OpenSSH server in guests: who gets in, who does not, and what they are told."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.host.conftest import wait_until

import terminals
from atoll.identity.ssh_authority import SshAuthority, SshCa
from atoll.system import clock
from ssh_images import NAME, START, add_ssh_image

if TYPE_CHECKING:
    from tests.host.conftest import Cli

KINDS = ("lxc",)


@pytest.fixture(scope="module")
def served(
    images: Path,
    making_cloud: Callable[[Path], AbstractContextManager[Cli]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cli]:
    """A cloud with VMs whose guests have an SSH server that was set up by metadata, and one that has none."""
    with making_cloud(images) as cli:
        add_ssh_image(cli.directory / "images")
        cli("up")
        script = tmp_path_factory.mktemp("ssh") / "start-ssh.sh"
        script.write_text(START)
        for name, kind in (*((f"a-{kind}", kind) for kind in KINDS), ("other", "lxc")):
            vm = cli.json(
                *("vm", "create", "--name", name, "--image", NAME, "--driver", kind, "--memory", "256M"),
                *("--user-data", str(script)),
            )
            assert cli.until_script(vm["ip"]) == 0, cli("vm", "log", name).stdout
        cli.create("bare", "--driver", "lxc")
        yield cli


@pytest.fixture(params=KINDS)
def vm(request: pytest.FixtureRequest) -> str:
    return f"a-{request.param}"


def test_the_status_and_the_streams_are_those_of_the_command(served: Cli, vm: str) -> None:
    done = served("vm", "ssh", vm, "--", "echo out; echo oops >&2; id -u; exit 3", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n0\n", "oops\n")
    assert served("vm", "ssh", vm, "-l", "www", "--", "id", "-u").stdout == "1000\n"
    assert served("vm", "ssh", vm, "--", "exit", "255", check=False).returncode == 255


def test_what_comes_in_a_pipe_comes_out_of_another(served: Cli) -> None:
    content = bytes(range(256)) * 8192
    with served.start(
        "vm", "ssh", "a-lxc", "--", "cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        out, _ = process.communicate(content, timeout=60)
    assert (process.returncode, out == content) == (0, True)


def test_without_a_command_it_is_a_shell_on_the_terminal(served: Cli) -> None:
    ours, theirs = terminals.opened(101)
    person = served.start(
        *("vm", "ssh", "a-lxc"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    seen = terminals.until(ours, b"# ")
    os.write(ours, b"echo $((6*7)); stty size\r")
    seen = terminals.until(ours, b"24 101", seen)
    assert b"42" in seen
    os.write(ours, b"exit 5\r")
    assert person.wait(15) == 5
    os.close(ours)


def test_a_key_is_nowhere_afterwards(served: Cli, tmp_path: Path) -> None:
    mine = replace(served, environment={"TMPDIR": str(tmp_path), "HOME": str(tmp_path)})
    assert mine("vm", "ssh", "a-lxc", "--", "true").stderr == ""
    assert [path for path in tmp_path.rglob("*") if path.is_file() and "cache" not in str(path)] == []


def test_others_and_those_who_were_revoked_get_nothing(served: Cli) -> None:
    bob = served.issue("bob")
    refusal = bob.refused("vm", "ssh", "a-lxc", "--", "true")
    assert (refusal.status, "may not call vm.ssh" in refusal.brief) == (5, True)
    served("vm", "change", "other", "--owner-user", "carol")
    carol = served.issue("carol")
    carol("vm", "ssh", "other", "--", "true")
    served("ca", "revoke", "--subject", "carol")

    def refused() -> bool:
        return carol("vm", "ssh", "other", "--", "true", check=False).returncode == 5

    wait_until(refused, lambda: "carol still gets in")


def logging_in(at: str, key: Path, certificate: Path) -> str:
    """What ssh itself says of a certificate, at a server of our choice."""
    options = {
        "UserKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "no",
        "IdentityFile": str(key),
        "CertificateFile": str(certificate),
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    done = subprocess.run(
        ["ssh", "-F", "none", *words, f"root@{at}", "echo in"], capture_output=True, text=True, timeout=30
    )
    return done.stdout + done.stderr


def a_certificate(served: Cli, vm: str, directory: Path) -> tuple[Path, Path]:
    key, certificate = directory / "key", directory / "cert"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    body = json.dumps({"key": (directory / "key.pub").read_text().strip()}).encode()
    reply = served.request("POST", f"/v1/vms/{vm}/ssh", body, headers={"Content-Type": "application/json"})
    assert reply.status == 200, reply.body
    certificate.write_text(reply.json()["certificate"])
    return key, certificate


def test_a_certificate_opens_one_vm_and_not_after_its_time(served: Cli, tmp_path: Path) -> None:
    key, certificate = a_certificate(served, "a-lxc", tmp_path)
    own, other = served.show("a-lxc"), served.show("other")
    assert "in\n" in logging_in(own["ip"], key, certificate)
    assert "Permission denied" in logging_in(other["ip"], key, certificate)

    # The same, by the CA itself, but over.
    ca, then = SshAuthority(served.directory / "pki", SshCa.LOGINS), clock.now() - timedelta(hours=1)
    public = (tmp_path / "key.pub").read_text().strip()
    certificate.write_text(
        ca.sign(public, [own["instance_id"]], "late", now=then, lifetime=timedelta(minutes=59))
    )
    assert "Permission denied" in logging_in(own["ip"], key, certificate)


def test_what_is_missing_is_said_and_what_there_is_instead(served: Cli) -> None:
    bare = served.refused("vm", "ssh", "bare")
    assert (bare.status, "no SSH server that trusts this cloud" in bare.brief) == (4, True)
    assert bare.hint == "use: atoll vm shell bare"
    nobody = served.refused("vm", "ssh", "a-lxc", "-l", "nobody-here", "--", "true")
    assert (nobody.status, "does not let nobody-here in" in nobody.brief) == (5, True)
    closed = served.refused("vm", "ssh", "a-lxc", "-p", "23", "--", "true")
    assert (closed.status, "port 23 of" in closed.brief) == (7, True)

    served("vm", "exec", "other", "--", "ip", "link", "set", "eth0", "down")
    down = served.refused("vm", "ssh", "other", "--", "true")
    assert (down.status, "port 22 of" in down.brief, "atoll vm shell other" in down.hint) == (7, True, True)


def test_a_server_without_a_certificate_of_this_cloud_is_not_believed(served: Cli) -> None:
    other_key = "cd /etc/ssh; rm ssh_host_*; ssh-keygen -q -t ed25519 -N '' -f ssh_host_ed25519_key"
    served("vm", "exec", "a-lxc", "--", "sh", "-c", f"{other_key}; kill -HUP $(cat /run/sshd.pid); sleep 0.5")
    refusal = served.refused("vm", "ssh", "a-lxc", "--", "true")
    assert (refusal.status, "does not prove to be its own" in refusal.brief) == (4, True)


def test_it_says_where_there_is_no_ssh(served: Cli) -> None:
    program = replace(served, program=Path(sys.executable), environment={"PATH": "/nowhere"})
    done = program("-m", "atoll.cli", "vm", "ssh", "a-lxc", check=False)
    assert (done.returncode, "there is no ssh-keygen on this machine" in done.stderr) == (1, True)
