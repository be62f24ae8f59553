"""A day at the command: every command there is, on every kind of VM, by its owner, another user and an operator, with
and without a terminal. No traceback, the right exit status, tables that fit, nothing left over."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import private_engine as engine
from atoll.cli.completing import subparsers
from atoll.cli.main import NOUNS, parser_for
from cloud_traces import left_of
from scripted_days import KINDS, commands_of, lines_of, live

if TYPE_CHECKING:
    from tests.host.conftest import Cli

MORNING = """
# The cloud comes up, and people look around.
ops  80    0  up
all  pipe  0
all  60    0  help vm create  => usage: atoll vm create
all  pipe  0  vm              => create
ann  80    2  vm rm           => destroy
ann  80    2  vm list --format json  => --output
ops  all   0  doctor
ops  all   0  status
ann  all   0  image list
bob  60    0  image list
ann  all   0  subnet list
all  60    0  subnet show default
ann  all   0  node show
bob  60    0  node show
all  80    0  completion bash
all  pipe  0  completion zsh
all  pipe  0  completion fish
"""

A_DAY = """
# A VM is made; its name is taken from then on.
ann  80    0  vm create --name $vm --driver $kind --memory 160M --user-data $dir/hello.sh
bob  pipe  4  vm create --name $vm --driver $kind
ann  pipe  2  vm create --name bare --driver $kind --memory 160           => 160M
ann  80  130  vm create --name $vm-late --driver $kind --wait-for port:81  <- $vm-late: \\x03
ann  pipe  3  vm show $vm-late

# Everybody looks at it; nobody but its owner and operators does anything to it.
ann      all   0  vm list                                  => $vm
bob,ops  60    0  vm list                                  => $vm
ann      all   0  vm list -o wide --kind $kind --sort=-memory
all      pipe  0  vm list -o json --owner ann --state running    => "$vm"
ann      60    0  vm list --mine -c NAME,ip,Owners
ann      80    0  vm list --watch                        <- $vm: \\x03
ann      all   0  vm show $vm
bob,ops  60    0  vm show $vm
ann,ops  80    0  vm log $vm                               => hello from $vm
bob      80    5  vm log $vm
ann      80    130  vm log -f $vm                          <- hello: \\x03
ann,ops  pipe  0  vm user-data $vm                         => hello
bob      pipe  5  vm user-data $vm
all      pipe  0  vm top --once
all      60    0  vm top                                   <- $vm: q
ann      all   0  event list --vm $vm
bob,ops  pipe  0  event list --vm $vm
ann      80    130  event list -f                          <- $vm: \\x03
bob      pipe  0  event stream
ann      all   0  lease list

# Hands in it.
ann,ops  pipe  0   vm exec $vm -- hostname                 => $vm
ann      80    7   vm exec -t $vm -- sh -c 'sleep 0.5; stty size; exit 7'  => 24 80
ann      pipe  124 vm exec --timeout 1s $vm -- sleep 60
ann      pipe  127 vm exec $vm -- no-such-program
bob      pipe  5   vm exec $vm -- true
ann      80    4   vm ssh $vm -- true                      => vm shell
bob      pipe  5   vm ssh $vm -- true
ann      60    3   vm shell $vm                            <- #: exit 3\\n
bob      60    5   vm shell $vm
ann      80    0   vm cp $dir/tree $vm:/root/tree
ann      pipe  0   vm cp $vm:/root/tree $dir/back-$kind
ann      pipe  3   vm cp $vm:/root/nothing $dir/nothing
bob      pipe  5   vm cp $vm:/etc/hostname $dir/stolen
ann      80    130 vm forward $vm 0:80                     <- -> $vm:80: \\x03
bob      80    5   vm forward $vm 0:80
ann      80    0   vm console $vm                          <- atoll: metadata: \\x1d
bob      80    5   vm console $vm
ann      pipe  4       vm vnc $vm --listen 127.0.0.1:0 --viewer true
ann      pipe  0   vm publish $vm 127.0.0.1:$port:80
bob      pipe  5   vm publish $vm 127.0.0.1:$port:80
ann      60    0   vm publish $vm
ann      pipe  0   vm unpublish $vm 127.0.0.1:$port

# It changes.
ann      80    0   vm change $vm --tag role=web --memory 176M
ann      pipe  2   vm change $vm --memory 176
bob      pipe  5   vm change $vm --tag role=mine
ops      pipe  0   vm change $vm --protect
ann      pipe  4   vm destroy --yes $vm                     => protected
ann      pipe  0   vm change $vm --no-protect
ann      pipe  0/4/4   volume add $vm --name data --size 16MiB --fs ext4
ann      pipe  0/4/4   volume add $vm --name more --size 8MiB
bob      pipe  5   volume add $vm --name his --size 8MiB
ann      pipe  0/3/3   volume grow $vm data +8MiB
ann      pipe  0/3/3   volume detach $vm more
ann      pipe  0/3/3   volume attach $vm more
ann      pipe  0/3/3   volume show $vm data
ann      all   0       volume list
bob,ops  80    0       volume list $vm
ann      pipe  2       volume delete $vm more                 => --yes
ann      80    0/3/3   volume delete --yes $vm more

# It rests.
ann      60    0   vm suspend $vm
ann      pipe  0   vm resume $vm
ann      pipe  0/4/4   vm suspend $vm --to-disk
ann      80    0   vm resume $vm
bob      pipe  5   vm suspend $vm
ann      80    0   vm stop $vm
ann      60    0   vm show $vm
ann      pipe  4   vm exec $vm -- true
ann      pipe  0/2/2   volume reorder $vm data
ann      pipe  0/3/3   volume shrink $vm data 16MiB
ann      pipe  3   volume move $vm data nowhere
ann      80    0   vm start $vm
bob      60    5   vm reboot $vm
ops      80    0   vm reboot $vm
bob      pipe  5   vm become-primary-owner $vm
ann      pipe  0   vm become-primary-owner $vm

# It goes, when it is meant.
ann      pipe  2   vm destroy $vm                           => --yes
bob      pipe  5   vm destroy --yes $vm
ann      80    1   vm destroy $vm                           <- [y/N]: n\\n
ann      60    0   vm destroy $vm                           <- [y/N]: y\\n
ann      pipe  3   vm show $vm
"""

EVENING = """
# What operators do, and nobody else may.
ann  pipe  5  quota set --default --vms 5
ops  80    0  quota set --default --vms 5
ops  all   0  quota list
ann  all   0  quota show
bob  60    0  quota show
ops  pipe  0  quota delete --default
ann  pipe  5  audit list
ops  all   0  audit list --limit 20
bob  pipe  5  subnet add blue 10.88.0.0/24
ops  80    0  subnet add blue 10.88.0.0/24
ops  60    0  subnet change blue --domain blue.example
ann  all   0  subnet list
ops  pipe  0  node add-lease 10.88.0.9 52:54:00:AB:CD:EF --subnet blue --name printer
ann  pipe  5  node delete-lease 10.88.0.9
ops  pipe  0  node delete-lease 10.88.0.9
ops  pipe  2  subnet delete blue                               => --yes
ops  80    0  subnet delete blue                               <- [y/N]: y\\n
ann  pipe  5  node drain
ops  pipe  0  node drain
ann  pipe  6  vm create --name late
ops  pipe  0  node undrain
ann  pipe  5  node change --cpu-overcommit 8
ops  80    0  node change --cpu-overcommit 8
ann  all   0  share list
ann  pipe  5  share allow docs $dir/tree --everyone
ops  pipe  5  share allow docs $dir/tree --everyone               => /srv
ops  pipe  0  share deny docs
ops  60    0  service show
ops  pipe  0  service install --print                             => ExecStart
ops  pipe  0  service uninstall
ops  pipe  0  node set-owners --user ops
ops  pipe  2  node check-config $dir/wrong.toml
ops  pipe  0  node install --name other --ip 127.0.0.1 --dry-run --dir $dir/other
ops  pipe  0  node uninstall --yes --dir $dir/other

# Certificates, and the cloud from elsewhere.
ops  pipe  0  ca init --ca-dir $dir/ca --name 'A CA'
ops  pipe  0  ca issue user eve --limit vm.list --out $dir/eve
ops  all   0  ca list
ops  60    0  ca show $dir/eve/eve.pem
ops  pipe  0  ca renew eve --out $dir/eve
ops  pipe  2  ca sign $dir/wrong.toml --user eve
ops  pipe  0  ca revoke --subject eve
ops  pipe  0  remote invite zoe --address 127.0.0.1
ops  all   0  remote invitations
ops  pipe  0  remote withdraw zoe
ann  pipe  2  remote add prod 127.0.0.1:$port
ann  80    7  remote add prod 127.0.0.1:$port
ann  all   0  remote list
ann  pipe  3  remote show prod
ann  pipe  3  remote use prod
ann  pipe  3  remote remove --yes prod

# The end.
ops  pipe  2  down --destroy                                   => --yes
ops  80    1  down --destroy                                   <- [y/N]: n\\n
ops  80    0  down
ann  80    7  vm list
ops  80    7  vm list                                          => atoll up
ops  pipe  0  up
ops  60    0  down --destroy                                   <- [y/N]: y\\n
ops  pipe  7  vm list                                          => atoll up
ops  pipe  7  status
"""


@dataclass(frozen=True)
class Place:
    """A cloud with all kinds of VMs, and its people."""

    people: dict[str, Cli]
    directory: Path
    engine_socket: Path

    def live(self, script: str, kind: str = "qemu") -> None:
        names = {"vm": f"day-{kind}", "dir": str(self.directory), "port": str(18400 + KINDS.index(kind))}
        for line in lines_of(script, kind, names):
            live(line, self.people[line.who])


@pytest.fixture(scope="module")
def place(
    images: Path,
    making_cloud: Callable[[Path], AbstractContextManager[Cli]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("day")
    (directory / "hello.sh").write_text("#!/bin/sh\necho hello from $(hostname)\n")
    (directory / "wrong.toml").write_text("name = [\n")
    (directory / "tree").mkdir()
    (directory / "tree" / "file").write_text("here\n")
    with engine.private_engine() as socket, making_cloud(images) as made:
        at_home = {"DOCKER_HOST": f"unix://{socket}", "TERM": "xterm-256color", "HOME": str(directory)}
        ops = replace(made, environment=at_home)
        ops("up")
        yield Place({"ops": ops, "ann": ops.issue("ann"), "bob": ops.issue("bob")}, directory, socket)


def test_every_command_is_part_of_the_day() -> None:
    assert set(commands(parser_for(NOUNS), ())) <= commands_of(MORNING + A_DAY + EVENING)


def commands(parser: ArgumentParser, path: tuple[str, ...]) -> Iterator[str]:
    """All that there are, as they are typed."""
    verbs = subparsers(parser)
    if verbs is None:
        yield " ".join(path)
        return
    for name, child in verbs.choices.items():
        yield from commands(child, (*path, name))


def test_the_morning(place: Place) -> None:
    place.live(MORNING)


@pytest.mark.parametrize("kind", KINDS)
def test_the_day_of_a_vm_of_each_kind(place: Place, kind: str) -> None:
    place.live(A_DAY, kind)
    assert (place.directory / f"back-{kind}" / "file").read_text() == "here\n"
    assert not (place.directory / "stolen").exists()


def test_the_evening_and_nothing_is_left(place: Place) -> None:
    ops = place.people["ops"]
    cloud_id = ops.facts["id"]
    place.live(EVENING)
    assert left_of(cloud_id, ops.directory, place.engine_socket) == []
