"""Fixtures of the host tests: clouds of their own, named by their state, gone even when pytest is killed."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from atoll.system import processes

ATOLL = Path(sys.executable).with_name("atoll")
CACHE = os.environ.get("ATOLL_CACHE") or str(Path(__file__).parents[2] / ".cache")
PORT = 6976
DEADLINE_S = 60.0

# Waits until we close its input or die, then does what was left to do.
JANITOR = """
import json, subprocess, sys
sys.stdin.read()
for command in json.loads(sys.argv[1]):
    subprocess.run(command, capture_output=True)
"""


@dataclass(frozen=True)
class Refusal:
    """What a command that failed said."""

    status: int
    brief: str
    hint: str


@dataclass(frozen=True)
class Reply:
    """An answer of the API."""

    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


WITHOUT_NAME_SERVERS = (
    *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
    *('mount --bind /dev/null /etc/resolv.conf && exec "$@"', "sh"),
)
"""`atoll doctor` asks those of the host, and a test asks nobody outside."""


@dataclass(frozen=True)
class Cli:
    """The `atoll` command on one cloud, as a script would use it, and what a script could look at besides."""

    directory: Path
    environment: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    program: Path = ATOLL

    @property
    def ids(self) -> Path:
        """The register of user ids, for clouds beside each other."""
        return self.directory.parent / "ids"

    # --- the command

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """A command that runs beside the test."""
        settings = {"ATOLL_DIR": str(self.directory), "ATOLL_CACHE": CACHE, **self.environment}
        settings.setdefault("ATOLL_IDS", str(self.ids))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ATOLL_")}
        options = {"stdin": subprocess.DEVNULL, **options}
        prefix = (*WITHOUT_NAME_SERVERS, *self.prefix) if words[:1] == ("doctor",) else self.prefix
        return subprocess.Popen(
            [*prefix, str(self.program), *words], env={**inherited, **settings}, **options
        )

    def __call__(
        self, *words: str, check: bool = True, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        with self.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        done = subprocess.CompletedProcess(words, process.returncode, str(out), str(err))
        said = f"atoll {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert not check or done.returncode == 0, said
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "-o", "json").stdout)

    def refused(self, *words: str) -> Refusal:
        """How a command is refused: nothing on standard output, a brief and a hint."""
        done = self(*words, check=False)
        assert done.returncode != 0, f"atoll {' '.join(words)} was not refused: {done.stdout}"
        assert done.stdout == ""
        lines = [line for line in done.stderr.splitlines() if line.startswith(("atoll: ", "  hint: "))]
        assert lines, f"atoll {' '.join(words)}: {done.returncode} without a brief: {done.stderr}"
        hint = lines[1].removeprefix("  hint: ") if len(lines) > 1 else ""
        return Refusal(done.returncode, lines[0].removeprefix("atoll: "), hint)

    def create(self, name: str, *options: str) -> dict[str, Any]:
        vm: dict[str, Any] = self.json("vm", "create", "--name", name, "--image", "appliance", *options)
        return vm

    def show(self, name: str) -> dict[str, Any]:
        vm: dict[str, Any] = self.json("vm", "show", name)
        return vm

    def names(self) -> set[str]:
        return {vm["name"] for vm in self.json("vm", "list")}

    def destroy(self, *names: str) -> None:
        self("vm", "destroy", "--yes", *names)

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self("status", "-o", "json", check=False).stdout)
        return status

    def until(self, name: str, state: str) -> dict[str, Any]:
        """The VM once it is in that state."""
        vm: dict[str, Any] = {}

        def arrived() -> bool:
            vm.update(self.show(name))
            return bool(vm["state"] == state)

        wait_until(arrived, lambda: f"{name} is {vm.get('state')}, not {state}")
        return vm

    def issue(self, user: str, *options: str) -> Cli:
        """The same cloud for another user, with a certificate of its CA."""
        folder = self.directory.parent / f"of-{user}"
        self("ca", "issue", "user", user, "--out", str(folder), *options)
        return self.with_certificate(folder / f"{user}.pem", folder / f"{user}.key")

    def with_certificate(self, certificate: Path, key: Path) -> Cli:
        """The same cloud for somebody on another machine, who has a certificate and nothing else of it."""
        chosen = {
            "ATOLL_DIR": str(certificate.parent),
            "ATOLL_NODE": f"{self.address}:{PORT}",
            "ATOLL_CA": str(self.directory / "client/ca.pem"),
            "ATOLL_CERT": str(certificate),
            "ATOLL_KEY": str(key),
        }
        return replace(self, environment={**self.environment, **chosen})

    # --- what is behind it

    @property
    def facts(self) -> dict[str, Any]:
        """What the cloud knows of itself."""
        facts: dict[str, Any] = json.loads((self.directory / "cloud.json").read_text())
        return facts

    @property
    def namespace(self) -> str:
        return f"atoll-{self.facts['id']}"

    @property
    def address(self) -> str:
        return f"10.213.{128 + self.facts['number']}.1"

    def group(self, ip: str, kind: str = "qemu") -> str:
        return f"atoll/{self.facts['id']}/{kind}/{ip}"

    def record(self, ip: str) -> Path:
        return self.directory / "node" / "vms" / ip / "vm.json"

    def qemu(self, ip: str) -> int:
        """The process of a VM."""
        (pid,) = processes.processes_in(self.group(ip))
        return pid

    def end_keeper(self) -> None:
        """From now on an agent that dies stays dead, until the next `up`."""
        keeper = self.status()["keeper"]
        if keeper is not None:
            os.kill(keeper, signal.SIGKILL)
            wait_until(lambda: not _alive(keeper), lambda: f"{keeper} lives on")

    def kill_agent(self) -> None:
        """kill -9, and gone; nobody starts it again."""
        self.end_keeper()
        pid = json.loads((self.directory / "agent.pid").read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: processes.identify(pid) is None or not _alive(pid), lambda: f"{pid} lives on")

    def request(
        self,
        verb: str,
        path: str,
        body: bytes = b"",
        *,
        anonymous: bool = False,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """One request to the agent, by hand."""
        context = ssl.create_default_context(cafile=self.directory / "client/ca.pem")
        if not anonymous:
            own = self.directory / "client"
            context.load_cert_chain(
                self.environment.get("ATOLL_CERT", own / "user.pem"),
                self.environment.get("ATOLL_KEY", own / "user.key"),
            )
        connection = http.client.HTTPSConnection(self.address, PORT, context=context, timeout=30)
        try:
            connection.request(verb, path, body, headers or {})
            response = connection.getresponse()
            return Reply(response.status, response.read())
        finally:
            connection.close()

    def ask(self, ip: str, timeout: float = 10) -> dict[str, Any]:
        """What a VM says of itself over the network."""
        with urllib.request.urlopen(f"http://{ip}/", timeout=timeout) as reply:
            said: dict[str, Any] = json.load(reply)
            return said

    def until_script(self, ip: str) -> int:
        """How the user data of a VM ended, once it has."""
        said: dict[str, Any] = {}

        def ended() -> bool:
            said.update(self.ask(ip))
            return said["user_data_status"] is not None

        wait_until(ended, lambda: f"the user data of {ip} does not end")
        return int(said["user_data_status"])

    def answers(self, ip: str) -> bool:
        try:
            return bool(self.ask(ip, timeout=2)["ip"] == ip)
        except OSError:
            return False

    @contextmanager
    def shell(self, name: str) -> Iterator[Shell]:
        """A shell in the guest, over its console."""
        with self.start(
            # Taken: one that was killed a moment ago may still have the keyboard.
            *("vm", "console", "-q", "--take", name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                yield Shell(process)
            finally:
                process.kill()


class Shell:
    """Commands in a guest, one after the other."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._count = 0
        self.run("")

    def begin(self, line: str) -> None:
        """Type a command, and wait for nothing."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def run(self, line: str, timeout: float = DEADLINE_S) -> str:
        """Type a command; what came until it was done, the echo of it included."""
        self._count += 1
        # In two pieces: the console shows what we type as well.
        self.begin(f"{line}\necho 'end''ed'-{self._count}")
        return self.expect(f"ended-{self._count}", timeout)

    def expect(self, text: str, timeout: float = DEADLINE_S) -> str:
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        seen = b""

        def arrived() -> bool:
            nonlocal seen
            assert self._process.stdout is not None
            seen += self._process.stdout.read() or b""
            return text.encode() in seen

        wait_until(arrived, lambda: f"no {text!r} on the console: {seen!r}", timeout)
        return seen.decode(errors="replace").replace("\r", "")


def _alive(pid: int) -> bool:
    known = processes.identify(pid)
    return known is not None and processes.alive(known)


def wait_until(
    true: Callable[[], bool], complaint: Callable[[], str], timeout: float = DEADLINE_S, pause: float = 0.05
) -> None:
    until = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < until, complaint()
        time.sleep(pause)


@contextmanager
def cleaned_up_by(*commands: Sequence[str]) -> Iterator[None]:
    """Run the commands when the block ends, however it ends."""
    janitor = subprocess.Popen(
        [sys.executable, "-c", JANITOR, json.dumps([list(command) for command in commands])],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    with janitor:
        try:
            yield
        finally:
            assert janitor.stdin is not None
            janitor.stdin.close()
            janitor.wait(120)


@contextmanager
def new_cloud(images: Path | None = None) -> Iterator[Cli]:
    """A directory for a cloud, with images that were made already; whatever comes of it is removed."""
    base = Path(tempfile.mkdtemp(prefix="atoll-test-"))
    base.chmod(0o711)
    directory = base / "cloud"
    destroy = [str(ATOLL), "down", "--destroy", "--yes", "--dir", str(directory)]
    with cleaned_up_by(destroy, ["rm", "-rf", "--", str(base)]):
        if images is not None:
            # Images never change, so links will do. What the other cloud holds of them is not this one's.
            others = shutil.ignore_patterns("*.held")
            shutil.copytree(images, directory / "images", copy_function=os.link, ignore=others)
        yield Cli(directory)


@pytest.fixture(scope="session", autouse=True)
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("host tests need root")


@pytest.fixture(scope="session")
def cloud() -> Iterator[Cli]:
    """A cloud that is up, shared: tests use VM names of their own and clean up after themselves."""
    with new_cloud() as cli:
        cli("up")
        yield cli


@pytest.fixture(scope="session")
def images(cloud: Cli) -> Path:
    """Images that are made, so that other clouds need not make them."""
    return cloud.directory / "images"


@pytest.fixture
def empty_cloud(images: Path) -> Iterator[Cli]:
    """A cloud that is not up yet."""
    with new_cloud(images) as cli:
        yield cli


@pytest.fixture(scope="module")
def fresh_cloud(images: Path) -> Iterator[Cli]:
    """A cloud that is up and that the tests of one file may break, as long as they mend it."""
    with new_cloud(images) as cli:
        cli("up")
        yield cli


@pytest.fixture(scope="session")
def making_cloud() -> Callable[[Path], AbstractContextManager[Cli]]:
    """How to make a cloud that is not up yet, for those who need it in a setting of their own."""
    return new_cloud
