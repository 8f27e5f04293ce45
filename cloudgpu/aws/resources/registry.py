"""Registry of handlers by type token and of lookups by invoke token. Unknown tokens are rejected by name."""

from collections.abc import Mapping
from typing import Any

from cloudgpu.aws.resources.addresses import Eip, EipAssociation
from cloudgpu.aws.resources.base import Handler
from cloudgpu.aws.resources.ec2_network import InternetGateway, Subnet, Vpc
from cloudgpu.aws.resources.fleet import Fleet
from cloudgpu.aws.resources.instance_profile import InstanceProfile
from cloudgpu.aws.resources.key_pair import KeyPair
from cloudgpu.aws.resources.launch_template import LaunchTemplate
from cloudgpu.aws.resources.lookups import LOOKUPS
from cloudgpu.aws.resources.nat_gateway import NatGateway
from cloudgpu.aws.resources.placement_group import PlacementGroup
from cloudgpu.aws.resources.role import Role
from cloudgpu.aws.resources.role_policy import RolePolicy
from cloudgpu.aws.resources.routes import RouteTable, RouteTableAssociation
from cloudgpu.aws.resources.schedule import Schedule
from cloudgpu.aws.resources.schedule_group import ScheduleGroup
from cloudgpu.aws.resources.security_group import SecurityGroup
from cloudgpu.aws.resources.storage.handlers import STORAGE
from cloudgpu.aws.resources.vpc_endpoint import VpcEndpoint
from cloudgpu.aws.session.errors import answered
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import UnsupportedError

_ALL: tuple[Handler, ...] = (
    SecurityGroup(),
    KeyPair(),
    Role(),
    RolePolicy(),
    InstanceProfile(),
    LaunchTemplate(),
    PlacementGroup(),
    Fleet(),
    Vpc(),
    Subnet(),
    InternetGateway(),
    RouteTable(),
    RouteTableAssociation(),
    VpcEndpoint(),
    Eip(),
    EipAssociation(),
    NatGateway(),
    ScheduleGroup(),
    Schedule(),
    *STORAGE,
)
HANDLERS: Mapping[str, Handler] = {handler.type: handler for handler in _ALL}


def handler(type_token: str) -> Handler:
    """Return the handler of a resource type.

    Raises:
        UnsupportedError: The direct engine does not support the type.
    """
    if type_token not in HANDLERS:
        message = f"the direct engine does not support the resource type {type_token}"
        raise UnsupportedError(message, code="UnsupportedType", hint="use the pulumi engine for this program")
    return HANDLERS[type_token]


def invoke(token: str, args: Mapping[str, Any], clients: Clients) -> dict[str, Any]:
    """Answer an invoke.

    Raises:
        UnsupportedError: The direct engine does not know it, or one of its arguments.
        CloudError: AWS refused or cannot be reached.
    """
    if token not in LOOKUPS:
        message = f"the direct engine does not support the function {token}"
        raise UnsupportedError(message, code="UnsupportedType", hint="use the pulumi engine for this program")
    with answered(f"asking for {token}"):
        return LOOKUPS[token](args, clients)
