"""`atoll ca` on a directory of its own."""

from __future__ import annotations

import json
import os
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.cli.main import main
from atoll.identity import validity


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Runs `atoll ca …` on a CA in the test's directory: exit status and output."""

    def run(*argv: str) -> tuple[int, str]:
        status = main(["--dir", str(tmp_path), "-q", "ca", *argv])
        return status, capsys.readouterr().out

    return run


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_user_gets_a_certificate_a_private_key_and_the_ca(run, tmp_path: Path) -> None:
    assert run("init", "--name", "Example CA")[0] == 0
    out = tmp_path / "out"
    status, text = run(
        "issue", "user", "alice", "--group", "ops", "--grant", "vm.*", "--lifetime", "2h", "--out", str(out),
        "-o", "json",
    )  # fmt: skip
    assert status == 0
    described = json.loads(text)
    assert (described["subject"], described["groups"], described["methods"]) == ("alice", ["ops"], ["vm.*"])
    assert sorted(path.name for path in out.iterdir()) == ["alice.key", "alice.pem", "ca.pem"]
    assert (mode(out / "alice.key"), mode(out / "alice.pem")) == (0o600, 0o644)
    context = ssl.create_default_context(cafile=out / "ca.pem")
    context.load_cert_chain(out / "alice.pem", out / "alice.key")


def test_the_private_key_is_never_printed(run, tmp_path: Path) -> None:
    run("init")
    for form in ("table", "json", "yaml"):
        assert "PRIVATE" not in run("issue", "user", "bob", "--out", str(tmp_path / form), "-o", form)[1]


def test_show_tells_what_is_in_a_file_or_in_the_ca(run, tmp_path: Path) -> None:
    run("init", "--name", "Example CA")
    run("issue", "server", "node1", "--address", "10.0.0.1", "--out", str(tmp_path))
    assert json.loads(run("show", "-o", "json")[1])["kind"] == "ca"
    shown = json.loads(run("show", str(tmp_path / "node1.pem"), "-o", "json")[1])
    assert (shown["kind"], shown["names"], shown["issuer"]) == ("server", ["node1", "10.0.0.1"], "Example CA")
    assert "state       valid" in run("show", str(tmp_path / "node1.pem"))[1]


@pytest.mark.parametrize("keep", [True, False])
def test_a_certificate_is_renewed_with_the_same_rights_and_limits(run, tmp_path: Path, keep: bool) -> None:
    run("init")
    rights = ("--group", "ops", "--grant", "vm.log", "--limit", "vm.list vm.log", "--lifetime", "2h")
    run("issue", "user", "alice", *rights, "--out", str(tmp_path))
    before, key = (tmp_path / "alice.pem").read_bytes(), (tmp_path / "alice.key").read_bytes()
    os.chown(tmp_path / "alice.key", 1234, 1235)
    status, text = run(
        "renew", "alice", "--out", str(tmp_path), *(["--keep-key"] if keep else []), "-o", "json"
    )
    described = json.loads(text)
    assert (status, described["subject"], described["groups"]) == (0, "alice", ["ops"])
    assert (described["methods"], described["limit"]) == (["vm.log"], ["vm.list", "vm.log"])
    assert validity.of_pem((tmp_path / "alice.pem").read_bytes()).lifetime == validity.of_pem(before).lifetime
    assert (tmp_path / "alice.pem").read_bytes() != before
    assert ((tmp_path / "alice.key").read_bytes() == key) is keep
    owner = (tmp_path / "alice.key").stat()
    assert (owner.st_uid, owner.st_gid, mode(tmp_path / "alice.key")) == (1234, 1235, 0o600)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alice.key", "alice.pem", "ca.pem", "pki"]
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    context.load_cert_chain(tmp_path / "alice.pem", tmp_path / "alice.key")
    run("revoke", described["serial"])
    assert run("renew", str(tmp_path / "alice.pem"))[0] == 5


def test_without_a_name_the_certificate_in_use_is_renewed(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("init")
    run("issue", "user", "alice", "--out", str(tmp_path))
    before = (tmp_path / "alice.pem").read_bytes()
    (tmp_path / "alice.key").rename(tmp_path / "secret")
    monkeypatch.setenv("ATOLL_CERT", str(tmp_path / "alice.pem"))
    monkeypatch.setenv("ATOLL_KEY", str(tmp_path / "secret"))
    assert run("renew")[0] == 0
    assert (tmp_path / "alice.pem").read_bytes() != before
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    context.load_cert_chain(tmp_path / "alice.pem", tmp_path / "secret")


def test_a_key_of_something_else_is_not_lost_to_a_renewal(run, tmp_path: Path) -> None:
    run("init")
    for name in ("alice", "bob"):
        run("issue", "user", name, "--out", str(tmp_path))
    (tmp_path / "alice.key").replace(tmp_path / "bob.key")
    other = (tmp_path / "bob.key").read_bytes()
    assert run("renew", str(tmp_path / "bob.pem"))[0] == 5
    assert (tmp_path / "bob.key").read_bytes() == other
    assert run("renew", str(tmp_path / "alice.pem"))[0] == 0  # its key is elsewhere
    assert not (tmp_path / "alice.key").exists()


def test_show_and_list_tell_grants_and_limits(run, tmp_path: Path) -> None:
    run("init")
    run("issue", "user", "alice", "--grant", "vm.*", "--limit", "vm.list vm.show", "--out", str(tmp_path))
    shown = run("show", str(tmp_path / "alice.pem"))[1]
    assert "vm.*: may call vm.* on everyone's VMs" in shown
    assert "may call vm.list, vm.show and nothing else" in shown
    (row,) = run("list", "-c", "subject,grants,limit", "--no-header")[1].splitlines()
    assert row.split(None, 2) == ["alice", "vm.*", "vm.list, vm.show"]


def test_issue_says_what_it_hands_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--dir", str(tmp_path), "-q", "ca", "init"])
    main(["--dir", str(tmp_path), "ca", "issue", "user", "alice", "--grant", "vm.*", "--out", str(tmp_path)])
    assert "alice may call vm.* on everyone's VMs\n" in capsys.readouterr().err
    assert main(["--dir", str(tmp_path), "ca", "issue", "user", "bob", "--method", "vm.*"]) == 2
    assert "--grant 'vm.*' hands out the same" in capsys.readouterr().err


def test_what_was_issued_is_listed_and_can_be_revoked_each_way(run, tmp_path: Path) -> None:
    run("init")
    for name in ("alice", "bob", "carol"):
        run("issue", "user", name, "--out", str(tmp_path))
    serials = {each["subject"]: each["serial"] for each in json.loads(run("list", "-o", "json")[1])}
    assert run("revoke", serials["alice"])[0] == 0
    assert run("revoke", "--subject", "bob")[0] == 0
    assert run("revoke", "--file", str(tmp_path / "carol.pem"))[0] == 0
    rows = [row.split() for row in run("list", "-c", "subject,state", "--no-header")[1].splitlines()]
    assert rows == [["alice", "revoked"], ["bob", "revoked"], ["carol", "revoked"]]
    assert run("revoke", serials["alice"])[0] == 0


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (["revoke", "abcd"], 3),
        (["init"], 4),
        (["issue", "user", "../x"], 2),
        (["issue", "user", "alice", "--lifetime", "9999d"], 2),
        (["revoke"], 2),
        (["show", "/nowhere"], 1),
    ],
)
def test_failures_have_their_exit_status(run, argv: list[str], status: int) -> None:
    assert run("init")[0] == 0
    assert run(*argv)[0] == status


def test_no_ca_is_not_found(run) -> None:
    assert run("list")[0] == 3


def test_renewals_at_once_leave_a_whole_pair(tmp_path: Path) -> None:
    """Each of them is done or refused, and none takes the new key of another for one that was left over."""
    environment = {**os.environ, "ATOLL_DIR": str(tmp_path)}

    def command(*words: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "atoll.cli", "-q", "ca", *words]
        return subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    for words in (("init",), ("issue", "user", "alice", "--out", str(tmp_path))):
        with command(*words) as process:
            assert process.wait(30) == 0
    started = [command("renew", "alice", "--out", str(tmp_path)) for _ in range(4)]
    ends = []
    for process in started:
        with process:
            ends.append(process.wait(60))
    assert ends.count(0) >= 1
    assert set(ends) <= {0, 4}
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    context.load_cert_chain(tmp_path / "alice.pem", tmp_path / "alice.key")
    assert not list(tmp_path.glob("*.next"))
