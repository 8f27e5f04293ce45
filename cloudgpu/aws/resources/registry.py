"""Registry of the resource handlers by type token, and of the lookup functions by function token."""

from collections.abc import Mapping
from typing import Any

from cloudgpu.aws.resources.addresses import EipAssociationHandler, EipHandler, NatGatewayHandler
from cloudgpu.aws.resources.bucket import BucketEncryptionHandler, BucketHandler, BucketPublicAccessBlockHandler
from cloudgpu.aws.resources.efs import EfsHandler, MountTargetHandler
from cloudgpu.aws.resources.fleet import FleetHandler
from cloudgpu.aws.resources.handler import Handler
from cloudgpu.aws.resources.launch_template import KeyPairHandler, LaunchTemplateHandler, PlacementGroupHandler
from cloudgpu.aws.resources.lookups import LOOKUPS
from cloudgpu.aws.resources.lustre import DataRepositoryAssociationHandler, LustreHandler
from cloudgpu.aws.resources.networks import (
    InternetGatewayHandler,
    RouteTableAssociationHandler,
    RouteTableHandler,
    SubnetHandler,
    VpcEndpointHandler,
    VpcHandler,
)
from cloudgpu.aws.resources.role import InstanceProfileHandler, RoleHandler, RolePolicyHandler
from cloudgpu.aws.resources.schedules import ScheduleGroupHandler, ScheduleHandler
from cloudgpu.aws.resources.security_group import SecurityGroupHandler
from cloudgpu.aws.resources.storage_handler import VolumeHandler
from cloudgpu.aws.session.errors import convert_response_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import UnsupportedError

STORAGE_HANDLERS: tuple[Handler, ...] = (
    EfsHandler(),
    MountTargetHandler(),
    LustreHandler(),
    DataRepositoryAssociationHandler(),
    VolumeHandler(),
    BucketHandler(),
    BucketPublicAccessBlockHandler(),
    BucketEncryptionHandler(),
)


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
