"""The routes of a Hypervisor. Pure declarations."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, MsgspecError, Struct, json

from atoll.api import (
    changes,
    forwards,
    given,
    hands,
    joining,
    observing,
    publishing,
    quotas,
    shares,
    ssh,
    suspending,
    volumes,
)
from atoll.api.access import Access
from atoll.api.codec import SECRET
from atoll.api.route import NOTHING, Download, Route, Socket, Stream, Unary
from atoll.errors import Invalid
from atoll.model import long_lived
from atoll.model.checks import IP_PATTERN, NAME_PATTERN, Name, Principal, check_name, check_pattern
from atoll.model.event import Event
from atoll.model.image import Image
from atoll.model.lease import Lease, Reservation
from atoll.model.long_lived import LongLivedCredential
from atoll.model.network import Address, Subnet
from atoll.model.node import Node
from atoll.model.vm import VM, UserData, VmSpec, VmState, WaitFor, check_user_data, check_wait_for
from atoll.model.volume import VOLUME_PATTERN

PORT = 6976
VM_REF_PATTERN = r"^[a-z0-9][a-z0-9.-]{0,62}$"
REQUEST_ID_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"
MAX_WAIT_S = 3600
MAX_FILTER = 512
"""Characters, each of which may be twelve in a URL, of which servers take about 8000."""

Seconds = Annotated[float, Meta(gt=0, le=MAX_WAIT_S)]
RequestId = Annotated[str, Meta(pattern=REQUEST_ID_PATTERN, max_length=64)]
RoleCredential = Annotated[LongLivedCredential | None, SECRET]


class Health(Struct, frozen=True):
    status: str


class Wait(Struct, frozen=True, forbid_unknown_fields=True):
    """How long to follow a VM after it was started: up to a stage, for so many seconds."""

    wait_for: WaitFor | None = None
    timeout_s: Seconds = 60

    def __post_init__(self) -> None:
        if self.wait_for is not None:
            check_wait_for("wait_for", self.wait_for)
        if not 0 < self.timeout_s <= MAX_WAIT_S:
            raise Invalid("timeout_s", self.timeout_s, f"must be above 0 and at most {MAX_WAIT_S}")


class CreateVm(Struct, frozen=True, forbid_unknown_fields=True):
    """A VM to make. Sent again with the same request id it gives the VM that the first one made."""

    spec: VmSpec
    user_data: UserData = b""
    wait: Wait = Wait()
    request_id: RequestId | None = None
    acknowledge: bool = False
    """It is undone unless its creator says soon after the reply that it came: vm.acknowledge."""
    role_credential: RoleCredential = None
    """What the node asks the issuer of roles with, for this VM: needs no other right to give it that role."""

    def __post_init__(self) -> None:
        check_user_data(len(self.user_data))
        if self.request_id is not None:
            check_pattern("request_id", self.request_id, REQUEST_ID_PATTERN, "1 to 64 letters, digits, . _ -")
        if self.role_credential is not None and self.spec.role is None:
            raise Invalid(
                long_lived.FIELD,
                self.role_credential,
                "is for a role, and the VM has none",
                hint="name it in spec.role",
            )


class VmFilter(Struct, frozen=True, forbid_unknown_fields=True):
    """Which VMs: those for which all of this holds. Left out: all."""

    owner: Principal | None = None
    """One of its owner users."""
    mine: bool = False
    """The caller is an owner of it, by name or by group."""
    state: VmState | None = None
    kind: Name | None = None
    """The driver that runs it."""
    tags: Annotated[str, Meta(max_length=MAX_FILTER)] | None = None
    """A JSON object of tags that it has, with these values."""

    def __post_init__(self) -> None:
        self.wanted_tags()

    def wanted_tags(self) -> dict[str, str]:
        if self.tags is None:
            return {}
        if len(self.tags) > MAX_FILTER:
            raise Invalid("tags", self.tags, f"is longer than {MAX_FILTER} characters", hint="ask for fewer")
        try:
            return json.decode(self.tags, type=dict[str, str])
        except MsgspecError:
            raise Invalid(
                "tags", self.tags, "is not a JSON object of strings", hint='for example {"role":"web"}'
            ) from None


class StopVm(Struct, frozen=True, forbid_unknown_fields=True):
    """Ask the guest to power down; end it by force when it has not done so after the grace."""

    grace_s: Annotated[float, Meta(ge=0, le=600)] = 15


class Progress(Struct, frozen=True):
    """A stage that a VM has reached, so many seconds after the request."""

    stage: str
    elapsed_s: float
    ip: str


class AddAddress(Struct, frozen=True, forbid_unknown_fields=True):
    """Addresses for the pool of a subnet."""

    subnet: Name
    addresses: Annotated[tuple[Address, ...], Meta(min_length=1, max_length=65536)]


class Since(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to resume a stream of events: after this one. Left out: from the full state on."""

    epoch: Annotated[str, Meta(max_length=64)] = ""
    sequence: Annotated[int, Meta(ge=0, le=2**53)] = 0
    follow: bool = True


class InSubnet(Struct, frozen=True, forbid_unknown_fields=True):
    """Where an address is, for those that are in several subnets."""

    subnet: Name | None = None

    def __post_init__(self) -> None:
        if self.subnet is not None:
            check_name("subnet", self.subnet)


class Follow(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a stream goes on after the full state."""

    follow: bool = False


class Attach(Struct, frozen=True, forbid_unknown_fields=True):
    """How to join a console."""

    history: bool = True
    """First all that is kept of what the guest wrote before."""
    watch: bool = False
    """Never type."""
    take: bool = False
    """Type, whoever did so far. For owners of the VM."""

    def __post_init__(self) -> None:
        if self.watch and self.take:
            raise Invalid("take", True, "contradicts watch", hint="either watch, or take the keyboard")


class LogFrom(Struct, frozen=True, forbid_unknown_fields=True):
    """Where in all that the guest ever wrote to begin. Left out: with the oldest line that is kept.

    The reply says where it does: later, when what is asked for is gone; earlier, when the guest has not written that
    much, as when another VM has the name now.
    """

    offset: Annotated[int, Meta(ge=0, le=2**53)] | None = None


class Writer(Struct, frozen=True):
    """Who may type on a console just now. The first that is told also marks the end of the history."""

    writer: bool
    """Whether that is you."""
    by: str
    """The user; empty: nobody."""


HEALTH = Unary(
    "health.show",
    "GET",
    "/healthz",
    summary="Whether the Hypervisor serves",
    access=Access.PUBLIC,
    body=NOTHING,
    query=NOTHING,
    result=Health,
)
OPENAPI = Unary(
    "openapi.show",
    "GET",
    "/openapi.json",
    summary="This description",
    access=Access.AUTHENTICATED,
    body=NOTHING,
    query=NOTHING,
    result=dict[str, Any],
)
NODE_SHOW = Unary(
    "node.show",
    "GET",
    "/v1/node",
    summary="The node: capacity, drivers, subnets, pools",
    access=Access.AUTHENTICATED,
    body=NOTHING,
    query=NOTHING,
    result=Node,
)
NODE_DRAIN = Unary(
    "node.drain",
    "POST",
    "/v1/node/drain",
    summary="Make and start no more VMs here, and offer no address; those that run run on",
    access=Access.OPERATOR,
    body=NOTHING,
    query=NOTHING,
    result=Node,
)
NODE_UNDRAIN = Unary(
    "node.undrain",
    "POST",
    "/v1/node/undrain",
    summary="Make and start VMs again",
    access=Access.OPERATOR,
    body=NOTHING,
    query=NOTHING,
    result=Node,
)
NODE_ADD_SUBNET = Unary(
    "node.add-subnet",
    "POST",
    "/v1/node/subnets",
    summary="Add a subnet",
    access=Access.OPERATOR,
    body=Subnet,
    query=NOTHING,
    result=Node,
)
NODE_ADD_ADDRESS = Unary(
    "node.add-address",
    "POST",
    "/v1/node/addresses",
    summary="Add addresses to the pool of a subnet",
    access=Access.OPERATOR,
    body=AddAddress,
    query=NOTHING,
    max_body=given.MAX_ADDRESSES_BODY,
    result=Node,
)
NODE_ADD_LEASE = Unary(
    "node.add-lease",
    "POST",
    "/v1/node/leases",
    summary="Reserve an address for a machine that is not a VM; again with other settings changes them",
    access=Access.OPERATOR,
    body=Reservation,
    query=NOTHING,
    result=Node,
)
NODE_DELETE_LEASE = Unary(
    "node.delete-lease",
    "DELETE",
    "/v1/node/leases/{ip}",
    summary="Take the lease of a machine away; one that is gone already is a success",
    access=Access.OPERATOR,
    body=NOTHING,
    query=InSubnet,
    result=NOTHING,
)
LEASE_LIST = Stream(
    "lease.list",
    "GET",
    "/v1/leases",
    summary="All leases of DHCP, then each one that changes",
    access=Access.AUTHENTICATED,
    body=NOTHING,
    query=Follow,
    item=Lease,
    result=NOTHING,
)
IMAGE_LIST = Unary(
    "image.list",
    "GET",
    "/v1/images",
    summary="The images that this node has",
    access=Access.AUTHENTICATED,
    body=NOTHING,
    query=NOTHING,
    result=tuple[Image, ...],
)
VM_LIST = Unary(
    "vm.list",
    "GET",
    "/v1/vms",
    summary="All VMs of the node, or those that are asked for",
    access=Access.AUTHENTICATED,
    body=NOTHING,
    query=VmFilter,
    result=tuple[VM, ...],
)
VM_CREATE = Stream(
    "vm.create",
    "POST",
    "/v1/vms",
    summary="Create and start a VM; progress, then the VM",
    access=Access.AUTHENTICATED,
    body=CreateVm,
    query=NOTHING,
    max_body=changes.MAX_VM_BODY,
    item=Progress,
    result=VM,
)
VM_SHOW = Unary(
    "vm.show",
    "GET",
    "/v1/vms/{vm}",
    summary="One VM, by IP or name",
    access=Access.AUTHENTICATED,
    body=NOTHING,
    query=NOTHING,
    result=VM,
)
VM_START = Stream(
    "vm.start",
    "POST",
    "/v1/vms/{vm}/start",
    summary="Start a stopped VM",
    access=Access.OWNER,
    body=Wait,
    query=NOTHING,
    item=Progress,
    result=VM,
)
VM_STOP = Unary(
    "vm.stop",
    "POST",
    "/v1/vms/{vm}/stop",
    summary="Stop a VM",
    access=Access.OWNER,
    body=StopVm,
    query=NOTHING,
    result=VM,
)
VM_REBOOT = Stream(
    "vm.reboot",
    "POST",
    "/v1/vms/{vm}/reboot",
    summary="Shut the guest down and start it again",
    access=Access.OWNER,
    body=Wait,
    query=NOTHING,
    item=Progress,
    result=VM,
)
VM_DESTROY = Unary(
    "vm.destroy",
    "DELETE",
    "/v1/vms/{vm}",
    summary="Destroy a VM and all that is its own; one that is gone already is a success",
    access=Access.OWNER,
    body=NOTHING,
    query=NOTHING,
    result=NOTHING,
)
VM_LOG = Download(
    "vm.log",
    "GET",
    "/v1/vms/{vm}/log",
    summary="What the guest wrote to its serial console",
    access=Access.OWNER,
    body=NOTHING,
    query=LogFrom,
    content_type="text/plain",
    is_part=True,
)
VM_USER_DATA = Download(
    "vm.user-data",
    "GET",
    "/v1/vms/{vm}/user-data",
    summary="The user data of a VM",
    access=Access.OWNER,
    body=NOTHING,
    query=NOTHING,
)
VM_CONSOLE = Socket(
    "vm.console",
    "GET",
    "/v1/vms/{vm}/console",
    summary="The serial console: many look, one types",
    access=Access.OWNER,
    body=NOTHING,
    query=Attach,
    told=Writer,
)
VM_VNC = Socket(
    "vm.vnc",
    "GET",
    "/v1/vms/{vm}/vnc",
    summary="The screen: a connection that speaks RFB, as VNC viewers do",
    access=Access.OWNER,
    body=NOTHING,
    query=NOTHING,
)
EVENTS = Stream(
    "event.list",
    "GET",
    "/v1/events",
    summary="The full state, then every change",
    access=Access.AUTHENTICATED,
    body=NOTHING,
    query=Since,
    item=Event,
    result=NOTHING,
)

LAUNCHES = (VM_CREATE.name, VM_START.name, VM_REBOOT.name)
"""Calls that have a VM under way while they are open."""

PARAMETERS = {"vm": VM_REF_PATTERN, "ip": IP_PATTERN, "volume": VOLUME_PATTERN, "subnet": NAME_PATTERN}
"""What stands in a path, by the name of the parameter."""

ROUTES: tuple[Route[Any, Any], ...] = (
    HEALTH,
    *joining.ROUTES,
    OPENAPI,
    NODE_SHOW,
    NODE_DRAIN,
    NODE_UNDRAIN,
    NODE_ADD_SUBNET,
    NODE_ADD_ADDRESS,
    NODE_ADD_LEASE,
    NODE_DELETE_LEASE,
    *given.ROUTES,
    *quotas.ROUTES,
    *shares.ROUTES,
    LEASE_LIST,
    IMAGE_LIST,
    VM_LIST,
    VM_CREATE,
    VM_SHOW,
    VM_START,
    VM_STOP,
    VM_REBOOT,
    *suspending.ROUTES,
    *ssh.ROUTES,
    VM_DESTROY,
    *changes.ROUTES,
    *volumes.ROUTES,
    VM_LOG,
    VM_USER_DATA,
    VM_CONSOLE,
    VM_VNC,
    *hands.ROUTES,
    *forwards.ROUTES,
    *publishing.ROUTES,
    EVENTS,
    *observing.ROUTES,
)
