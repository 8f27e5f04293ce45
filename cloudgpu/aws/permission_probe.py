"""Determine the permissions of the caller and of an instance profile, by IAM policy simulation or by dry runs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from botocore import xform_name

from cloudgpu.aws.iam_grants import NODE_SESSION_ACTIONS, ROLE_GRANTS, grants_for_boundary
from cloudgpu.aws.session.errors import convert_errors, convert_response_errors
from cloudgpu.aws.session.session import Clients, Session
from cloudgpu.cloud import Grant, Identity, PermissionResult, PermissionState
from cloudgpu.errors import AuthError, CloudGpuError
from cloudgpu.plan.named_resources import ProfileSeen
from cloudgpu.workers import Workers

_TAG = {"Key": "cloudgpu:owner", "Value": "doctor"}
_NAME = "cloudgpu-doctor"
_KEY = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f doctor"
_FLEET_TYPE = "g4dn.xlarge"
_PERMISSIONS = [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "192.0.2.1/32"}]}]
_CAPACITY = {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "on-demand"}
WITHOUT_DRY_RUN = frozenset({"ModifySubnetAttribute", "ModifyVpcAttribute"})
"""EC2 operations that do not support dry runs."""
IMAGE_PARAMETER = "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"
"""SSM parameter with the ID of a public image. EC2 checks that the image exists before it checks the permission."""
HARMLESS_CALLS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "sts:GetCallerIdentity": ("sts", "get_caller_identity", {}),
    "iam:ListInstanceProfiles": ("iam", "list_instance_profiles", {"MaxItems": 1}),
    "iam:ListRoles": ("iam", "list_roles", {"MaxItems": 1}),
    "s3:ListAllMyBuckets": ("s3", "list_buckets", {}),
    "pricing:GetProducts": ("pricing", "get_products", {"ServiceCode": "AmazonEC2", "MaxResults": 1}),
    "servicequotas:ListAWSDefaultServiceQuotas": (
        "service-quotas",
        "list_aws_default_service_quotas",
        {"ServiceCode": "ec2"},
    ),
    "servicequotas:ListServiceQuotas": ("service-quotas", "list_service_quotas", {"ServiceCode": "ec2"}),
    "ssm:GetParameter": (
        "ssm",
        "get_parameter",
        {"Name": IMAGE_PARAMETER},
    ),
}
"""Action -> boto3 service, client method and arguments of a read-only call that tests the permission."""
_AT_ONCE = 8
_WOULD_SUCCEED = "DryRunOperation"
_WORST: Mapping[PermissionState, int] = {"failed": 2, "unknown": 1, "ok": 0}
_ACTION: Final = "iam:PassRole"


def _unused_id(kind: str) -> str:
    """Return a well-formed ID that does not belong to any resource."""
    return f"{kind}-00000000000000000"


def _tagged(kind: str) -> dict[str, Any]:
    return {"TagSpecifications": [{"ResourceType": kind, "Tags": [_TAG]}]}


_GROUP, _VPC, _SUBNET = _unused_id("sg"), _unused_id("vpc"), _unused_id("subnet")
_ROUTES, _GATEWAY, _TEMPLATE = _unused_id("rtb"), _unused_id("igw"), _unused_id("lt")
_ADDRESS, _RULES = _unused_id("eipalloc"), {"GroupId": _GROUP, "IpPermissions": _PERMISSIONS}

EC2_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "GetConsoleOutput": {"InstanceId": _unused_id("i")},
    "AllocateAddress": {"Domain": "vpc", **_tagged("elastic-ip")},
    "AssociateAddress": {"AllocationId": _ADDRESS, "NetworkInterfaceId": _unused_id("eni")},
    "AssociateRouteTable": {"RouteTableId": _ROUTES, "SubnetId": _SUBNET},
    "AttachVolume": {"Device": "/dev/sdf", "InstanceId": _unused_id("i"), "VolumeId": _unused_id("vol")},
    "AttachInternetGateway": {"InternetGatewayId": _GATEWAY, "VpcId": _VPC},
    "AuthorizeSecurityGroupEgress": _RULES,
    "AuthorizeSecurityGroupIngress": _RULES,
    "CreateFleet": {
        "LaunchTemplateConfigs": [{"LaunchTemplateSpecification": {"LaunchTemplateId": _TEMPLATE, "Version": "1"}}],
        "TargetCapacitySpecification": _CAPACITY,
        "Type": "instant",
        **_tagged("fleet"),
    },
    "CreateImage": {"InstanceId": _unused_id("i"), "Name": _NAME, **_tagged("image")},
    "CreateInternetGateway": _tagged("internet-gateway"),
    "CreateLaunchTemplate": {
        "LaunchTemplateName": _NAME,
        "LaunchTemplateData": {"InstanceType": _FLEET_TYPE},
        **_tagged("launch-template"),
    },
    "CreateLaunchTemplateVersion": {"LaunchTemplateId": _TEMPLATE, "LaunchTemplateData": {}},
    "CreateNatGateway": {"SubnetId": _SUBNET, "AllocationId": _ADDRESS, **_tagged("natgateway")},
    "CreatePlacementGroup": {"GroupName": _NAME, "Strategy": "cluster", **_tagged("placement-group")},
    "CreateRoute": {"RouteTableId": _ROUTES, "DestinationCidrBlock": "0.0.0.0/0", "GatewayId": _GATEWAY},
    "CreateRouteTable": {"VpcId": _VPC, **_tagged("route-table")},
    "CreateSecurityGroup": {"GroupName": _NAME, "Description": "doctor", **_tagged("security-group")},
    "CreateSubnet": {"VpcId": _VPC, "CidrBlock": "10.0.0.0/24", **_tagged("subnet")},
    "CreateTags": {"Resources": [_unused_id("i")], "Tags": [_TAG]},
    "CreateVpc": {"CidrBlock": "10.0.0.0/16", **_tagged("vpc")},
    "CreateVpcEndpoint": {"VpcId": _VPC, "ServiceName": "com.amazonaws.us-east-1.s3", **_tagged("vpc-endpoint")},
    "CreateVolume": {"AvailabilityZone": "us-east-1a", "Size": 1, **_tagged("volume")},
    "DeleteFleets": {"FleetIds": ["fleet-00000000-0000-0000-0000-000000000000"], "TerminateInstances": True},
    "DeleteInternetGateway": {"InternetGatewayId": _GATEWAY},
    "DeleteKeyPair": {"KeyName": _NAME},
    "DeleteLaunchTemplate": {"LaunchTemplateId": _TEMPLATE},
    "DeleteNatGateway": {"NatGatewayId": _unused_id("nat")},
    "DeleteNetworkInterface": {"NetworkInterfaceId": _unused_id("eni")},
    "DeletePlacementGroup": {"GroupName": _NAME},
    "DeleteRoute": {"RouteTableId": _ROUTES, "DestinationCidrBlock": "0.0.0.0/0"},
    "DeleteRouteTable": {"RouteTableId": _ROUTES},
    "DeleteSecurityGroup": {"GroupId": _GROUP},
    "DeleteSnapshot": {"SnapshotId": _unused_id("snap")},
    "DeleteSubnet": {"SubnetId": _SUBNET},
    "DeleteTags": {"Resources": [_unused_id("i")], "Tags": [{"Key": "cloudgpu:run"}]},
    "DeleteVolume": {"VolumeId": _unused_id("vol")},
    "DeleteVpc": {"VpcId": _VPC},
    "DeleteVpcEndpoints": {"VpcEndpointIds": [_unused_id("vpce")]},
    "DeregisterImage": {"ImageId": _unused_id("ami")},
    "DetachInternetGateway": {"InternetGatewayId": _GATEWAY, "VpcId": _VPC},
    "DisassociateAddress": {"AssociationId": _unused_id("eipassoc")},
    "DisassociateRouteTable": {"AssociationId": _unused_id("rtbassoc")},
    "ImportKeyPair": {"KeyName": _NAME, "PublicKeyMaterial": _KEY, **_tagged("key-pair")},
    "ModifyLaunchTemplate": {"LaunchTemplateId": _TEMPLATE, "DefaultVersion": "1"},
    "ModifyVpcEndpoint": {"VpcEndpointId": _unused_id("vpce"), "AddRouteTableIds": [_ROUTES]},
    "ModifyVolume": {"VolumeId": _unused_id("vol"), "Size": 2},
    "ReleaseAddress": {"AllocationId": _ADDRESS},
    "ReplaceRoute": {"RouteTableId": _ROUTES, "DestinationCidrBlock": "0.0.0.0/0", "GatewayId": _GATEWAY},
    "RevokeSecurityGroupEgress": _RULES,
    "RevokeSecurityGroupIngress": _RULES,
    "RunInstances": {
        "ImageId": _unused_id("ami"),
        "InstanceType": _FLEET_TYPE,
        "MinCount": 1,
        "MaxCount": 1,
        "TagSpecifications": [{"ResourceType": kind, "Tags": [_TAG]} for kind in ("instance", "volume")],
    },
    "TerminateInstances": {"InstanceIds": [_unused_id("i")]},
    "UpdateSecurityGroupRuleDescriptionsEgress": _RULES,
    "UpdateSecurityGroupRuleDescriptionsIngress": _RULES,
}
"""EC2 operation -> arguments of its dry run. Operations without an entry need no arguments."""


def probe_permissions(clients: Clients, identity: Identity, grants: Sequence[Grant]) -> tuple[PermissionResult, ...]:
    """Probe every action and return one result per action, sorted by action. Does not change any resource."""
    if identity.arn.endswith(":root"):
        return tuple(PermissionResult(action, "ok", "the root user has all permissions") for action in _actions(grants))
    try:
        results = _simulated(clients, principal_arn(clients, identity.arn), grants)
    except CloudGpuError:
        results = _tested(clients, grants)
    return tuple(_worst(action, results) for action in _actions(grants))


def simulated_permissions(clients: Clients, identity: Identity, grants: Sequence[Grant]) -> Sequence[PermissionResult]:
    """Return the results of IAM's policy simulator for every action of the grants. Does not change any resource."""
    if identity.arn.endswith(":root"):
        return [PermissionResult(action, "ok", "the root user has all permissions") for action in _actions(grants)]
    return _simulated(clients, principal_arn(clients, identity.arn), grants)


def _actions(grants: Iterable[Grant]) -> list[str]:
    return sorted({action for grant in grants for action in grant.actions})


def _worst(action: str, results: Sequence[PermissionResult]) -> PermissionResult:
    """Return the worst of an action's results because an action with several grants needs all of them."""
    matching = [result for result in results if result.action == action]
    return max(matching, key=lambda result: _WORST[result.state])


def _simulated(clients: Clients, principal: str, grants: Sequence[Grant]) -> list[PermissionResult]:
    """Run IAM's policy simulator for every grant, with a sample resource and the tags that the grant requires."""
    with convert_errors("simulating the caller's permissions"):
        return [result for grant in grants for result in _simulation(clients.client("iam"), principal, grant)]


def _simulation(iam: Any, principal: str, grant: Grant) -> Iterator[PermissionResult]:  # noqa: ANN401
    pages = iam.get_paginator("simulate_principal_policy").paginate(
        PolicySourceArn=principal,
        ActionNames=list(grant.actions),
        ResourceArns=[_sample(grant.resources[0])],
        ContextEntries=list(_context(grant)),
    )
    for page in pages:
        for row in page["EvaluationResults"]:
            allowed = row["EvalDecision"] == "allowed"
            why = "IAM policy simulation" if allowed else f"IAM policy simulation: {row['EvalDecision']}"
            yield PermissionResult(row["EvalActionName"], "ok" if allowed else "failed", why)


def _sample(resource: str) -> str:
    return resource if resource == "*" else resource.replace("*", "doctor")


def _context(grant: Grant) -> Iterator[dict[str, Any]]:
    for operator in grant.conditions.values():
        for key, value in operator.items():
            text = value if isinstance(value, str) else value[0]
            yield {
                "ContextKeyName": key,
                "ContextKeyValues": [text.replace("?*", "doctor")],
                "ContextKeyType": "string",
            }


def principal_arn(clients: Clients, arn: str) -> str:
    """Return the ARN of the principal whose policies apply.

    For a role session, the principal is the role, which is looked up because the session's ARN omits the role's path.
    """
    if ":assumed-role/" not in arn:
        return arn
    name = arn.split("/")[1]
    with convert_errors(f"reading role {name}"):
        return str(clients.client("iam").get_role(RoleName=name)["Role"]["Arn"])


def _tested(clients: Clients, grants: Sequence[Grant]) -> list[PermissionResult]:
    """Test grants with EC2 dry runs and read-only calls to other services. Actions without a test are `unknown`."""
    pairs = [(grant, action) for grant in grants for action in grant.actions]
    arguments = {**EC2_ARGUMENTS, "RunInstances": {**EC2_ARGUMENTS["RunInstances"], **_image(clients)}}
    with Workers(_AT_ONCE) as workers:
        return list(workers.map(lambda action: _test(clients, action[0], action[1], arguments), pairs))


def _image(clients: Clients) -> dict[str, str]:
    try:
        with convert_errors("reading the ID of an image"):
            parameter = clients.client("ssm").get_parameter(Name=IMAGE_PARAMETER)
    except CloudGpuError:
        return {}
    return {"ImageId": str(parameter["Parameter"]["Value"])}


def _test(clients: Clients, grant: Grant, action: str, arguments: Mapping[str, Mapping[str, Any]]) -> PermissionResult:
    service, _, operation = action.partition(":")
    if service == "ec2" and operation not in WITHOUT_DRY_RUN:
        return _dry_run(clients, grant, operation, arguments.get(operation, {}))
    if action not in HARMLESS_CALLS:
        return PermissionResult(
            action, "unknown", "cannot be tested without side effects, and the caller's policies could not be simulated"
        )
    client, method, arguments = HARMLESS_CALLS[action]
    try:
        with convert_errors(f"testing {action}"):
            getattr(clients.client(client), method)(**arguments)
    except AuthError as err:
        return PermissionResult(action, "failed", err.code or err.message)
    except CloudGpuError as err:
        return PermissionResult(action, "unknown", err.message)
    return PermissionResult(action, "ok", "test call")


def _dry_run(clients: Clients, grant: Grant, operation: str, arguments: Mapping[str, Any]) -> PermissionResult:
    action = f"ec2:{operation}"
    try:
        with convert_errors(f"dry run of {action}"):
            getattr(clients.client("ec2"), xform_name(operation))(DryRun=True, **arguments)
    except CloudGpuError as err:
        return _classified(action, getattr(err, "code", ""), err, grant)
    return PermissionResult(action, "unknown", "EC2 did not treat the call as a dry run")


def _classified(action: str, code: str, err: CloudGpuError, grant: Grant) -> PermissionResult:
    if code == _WOULD_SUCCEED:
        return PermissionResult(action, "ok", "dry run")
    # The dry run's resource does not exist and so has no tags. Even a correct policy denies a call that requires a tag.
    requires_tag = any("aws:ResourceTag" in key for operator in grant.conditions.values() for key in operator)
    if code == "UnauthorizedOperation" and not requires_tag:
        return PermissionResult(action, "failed", "dry run: UnauthorizedOperation")
    return PermissionResult(action, "unknown", f"the dry run failed with {code or err.message}")


def inspect_profile(session: Session, name: str, *, session_manager: bool) -> ProfileSeen | None:
    """Return what is known about a profile, or None if it cannot be read. Changes nothing.

    IAM's policy simulator tells whether the caller may pass the role, and what the role allows, if the caller may use
    the simulator. Otherwise, both are unknown.
    """
    try:
        with convert_response_errors(f"reading instance profile {name}"):
            profile = session.client("iam").get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
            roles = [(str(role["RoleName"]), str(role["Arn"])) for role in profile["Roles"]]
    except CloudGpuError:
        return None  # the check of named resources reports the error
    if not roles:
        return ProfileSeen("", None, "")
    role, arn = roles[0]
    try:
        may_pass, why = _may_pass(session, arn)
    except CloudGpuError as err:
        may_pass, why = None, err.message
    return ProfileSeen(role, may_pass, why, _lacks(session, arn, NODE_SESSION_ACTIONS if session_manager else ()))


def denied_role_actions(session: Session, actions: Sequence[str], boundary_arn: str) -> tuple[str, ...]:
    """Return the actions that the caller's policies deny for the roles that cloudgpu makes; empty if that is unknown.

    The grants that cloudgpu documents, with the boundary of the roles if there is one, determine the resources, tags
    and other conditions of the simulated calls.
    """
    grants = [
        replace(grant, actions=tuple(action for action in grant.actions if action in actions))
        for grant in grants_for_boundary(ROLE_GRANTS, boundary_arn)
    ]
    try:
        results = simulated_permissions(session, session.identity(), [grant for grant in grants if grant.actions])
    except CloudGpuError:
        return ()
    return tuple(sorted({result.action for result in results if result.state == "failed"}))


def _may_pass(session: Session, role_arn: str) -> tuple[bool, str]:
    """Return whether the caller may pass the role to EC2."""
    caller = session.identity().arn
    if caller.endswith(":root"):
        return True, "the root user has all permissions"
    context = {
        "ContextKeyName": "iam:PassedToService",
        "ContextKeyValues": ["ec2.amazonaws.com"],
        "ContextKeyType": "string",
    }
    decisions = _simulate(
        session,
        PolicySourceArn=principal_arn(session, caller),
        ActionNames=[_ACTION],
        ResourceArns=[role_arn],
        ContextEntries=[context],
    )
    decision = decisions.get(_ACTION, "")
    return decision == "allowed", f"IAM policy simulation: {decision}"


def _lacks(session: Session, role_arn: str, actions: tuple[str, ...]) -> tuple[str, ...] | None:
    if not actions:
        return ()
    try:
        decisions = _simulate(session, PolicySourceArn=role_arn, ActionNames=list(actions))
    except CloudGpuError:
        return None
    return tuple(action for action in actions if decisions.get(action) != "allowed")


def _simulate(session: Session, **request: Any) -> dict[str, str]:  # noqa: ANN401 - boto3's arguments
    """Return the decision for each action."""
    with convert_response_errors("simulating policies"):
        answer = session.client("iam").simulate_principal_policy(**request)
        return {str(row["EvalActionName"]): str(row["EvalDecision"]) for row in answer["EvaluationResults"]}
