"""What handlers of several nouns read of a call. No effects."""

from __future__ import annotations

from typing import Any

from atoll.api import hypervisor as routes
from atoll.api.route import Call
from atoll.hypervisor.service import Hypervisor
from atoll.hypervisor.vms.permits import Permit
from atoll.model.checks import check_pattern
from atoll.model.volume import VOLUME_PATTERN


def reference(call: Call[Any, Any]) -> str:
    """The VM that a call names, as it names it."""
    return check_pattern("vm", call.params["vm"], routes.VM_REF_PATTERN, "the IP or the name of a VM")


def volume(call: Call[Any, Any]) -> str:
    """The volume that a call names."""
    return check_pattern("volume", call.params["volume"], VOLUME_PATTERN, "the name of a volume")


def permit_of(service: Hypervisor, method: str, call: Call[Any, Any]) -> Permit:
    """Leave to do this to the VM that a call names, if its caller may. The call is over when they no longer may."""
    permit = service.permit(call.identity, method, reference(call))
    call.checks.append(lambda: service.vms.permitted(permit))
    return permit
