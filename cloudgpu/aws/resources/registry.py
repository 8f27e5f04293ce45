"""Registry of the resource handlers by type token, and of the lookup functions by function token."""

from collections.abc import Mapping
from typing import Any

from cloudgpu.aws.resources.addresses import EipAssociationHandler, EipHandler
from cloudgpu.aws.resources.base import Handler
from cloudgpu.aws.resources.ec2_network import InternetGatewayHandler, SubnetHandler, VpcHandler
from cloudgpu.aws.resources.fleet import FleetHandler
from cloudgpu.aws.resources.instance_profile import InstanceProfileHandler
from cloudgpu.aws.resources.key_pair import KeyPairHandler
from cloudgpu.aws.resources.launch_template import LaunchTemplateHandler
from cloudgpu.aws.resources.lookups import LOOKUPS
from cloudgpu.aws.resources.nat_gateway import NatGatewayHandler
from cloudgpu.aws.resources.placement_group import PlacementGroupHandler
from cloudgpu.aws.resources.role import RoleHandler
from cloudgpu.aws.resources.role_policy import RolePolicyHandler
from cloudgpu.aws.resources.routes import RouteTableAssociationHandler, RouteTableHandler
from cloudgpu.aws.resources.schedule import ScheduleHandler
from cloudgpu.aws.resources.schedule_group import ScheduleGroupHandler
from cloudgpu.aws.resources.security_group import SecurityGroupHandler
from cloudgpu.aws.resources.storage.handlers import STORAGE_HANDLERS
from cloudgpu.aws.resources.vpc_endpoint import VpcEndpointHandler
from cloudgpu.aws.session.errors import convert_response_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import UnsupportedError

_ALL: tuple[Handler, ...] = (
    SecurityGroupHandler(),
    KeyPairHandler(),
    RoleHandler(),
    RolePolicyHandler(),
    InstanceProfileHandler(),
    LaunchTemplateHandler(),
    PlacementGroupHandler(),
    FleetHandler(),
    VpcHandler(),
    SubnetHandler(),
    InternetGatewayHandler(),
    RouteTableHandler(),
    RouteTableAssociationHandler(),
    VpcEndpointHandler(),
    EipHandler(),
    EipAssociationHandler(),
    NatGatewayHandler(),
    ScheduleGroupHandler(),
    ScheduleHandler(),
    *STORAGE_HANDLERS,
)
HANDLERS: Mapping[str, Handler] = {handler.type: handler for handler in _ALL}


def handler(type_token: str) -> Handler:
    """Return the handler for a resource type."""
    if type_token not in HANDLERS:
        message = f"the direct engine does not support the resource type {type_token}"
        raise UnsupportedError(message, code="UnsupportedType", hint="use the pulumi engine for this program")
    return HANDLERS[type_token]


def invoke(token: str, args: Mapping[str, Any], clients: Clients) -> dict[str, Any]:
    """Run the lookup with this function token for a Pulumi program, and return its result."""
    if token not in LOOKUPS:
        message = f"the direct engine does not support the function {token}"
        raise UnsupportedError(message, code="UnsupportedType", hint="use the pulumi engine for this program")
    with convert_response_errors(f"calling {token}"):
        return LOOKUPS[token](args, clients)
