"""The failover policy: which candidates remain after each launch error code."""

from datetime import date
from decimal import Decimal
from itertools import islice, pairwise

import pytest

from cloudgpu.aws.session.errors import error_from_code
from cloudgpu.errors import (
    AuthError,
    BadRequestError,
    CapacityError,
    LaunchError,
    NotOfferedError,
    QuotaError,
    ThrottledError,
)
from cloudgpu.plan import launch_error_codes
from cloudgpu.plan.plan import Candidate


def candidate(zone, instance_type="p3dn.24xlarge", market="on-demand"):
    return Candidate(
        instance_type, zone[:-1], zone, market, Decimal(1), date(2026, 7, 20), "V100", 8, Decimal(32), 1, "ami-1"
    )


REFUSED = candidate("us-east-1c")
SAME_POOL = candidate("us-east-1d")
SAME_FAMILY = candidate("us-east-1d", "p4d.24xlarge")
OTHER_FAMILY = candidate("us-east-1d", "g5.48xlarge")
SPOT = candidate("us-east-1c", market="spot")
ELSEWHERE = candidate("us-west-2b")
OTHERS = (SAME_POOL, SAME_FAMILY, OTHER_FAMILY, SPOT, ELSEWHERE)

EXPECTED = {
    # no capacity: this type in this zone and market
    "InsufficientInstanceCapacity": (CapacityError, OTHERS),
    "InsufficientHostCapacity": (CapacityError, OTHERS),
    "InsufficientReservedInstanceCapacity": (CapacityError, OTHERS),
    "InsufficientCapacityOnOutpost": (CapacityError, OTHERS),
    "ReservationCapacityExceeded": (CapacityError, OTHERS),
    "UnfulfillableCapacity": (CapacityError, OTHERS),
    "InsufficientFreeAddressesInSubnet": (CapacityError, OTHERS),
    "SpotMaxPriceTooLow": (CapacityError, OTHERS),
    # a quota: its pool in this region
    "VcpuLimitExceeded": (QuotaError, (OTHER_FAMILY, SPOT, ELSEWHERE)),
    "InstanceLimitExceeded": (QuotaError, (OTHER_FAMILY, SPOT, ELSEWHERE)),
    "MaxSpotInstanceCountExceeded": (QuotaError, (OTHER_FAMILY, SPOT, ELSEWHERE)),
    "MaxFleetCountExceeded": (QuotaError, (ELSEWHERE,)),
    "AddressLimitExceeded": (QuotaError, (ELSEWHERE,)),
    "LimitExceeded": (QuotaError, ()),
    # not offered: here, or anywhere
    "Unsupported": (NotOfferedError, OTHERS),
    "InvalidInstanceType": (NotOfferedError, (SAME_FAMILY, OTHER_FAMILY)),
    # the same call again
    "RequestLimitExceeded": (ThrottledError, OTHERS),
    "ServiceUnavailable": (ThrottledError, OTHERS),
    "InternalError": (ThrottledError, OTHERS),
    "Unavailable": (ThrottledError, OTHERS),
    # nothing that another zone cures
    "UnauthorizedOperation": (AuthError, ()),
    "AuthFailure": (AuthError, ()),
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": (AuthError, ()),
    "OptInRequired": (AuthError, ()),
    "PendingVerification": (AuthError, ()),
    "InvalidAMIID.NotFound": (BadRequestError, ()),
    "InvalidAMIID.Malformed": (BadRequestError, ()),
    "InvalidKeyPair.NotFound": (BadRequestError, ()),
    "InvalidSubnetID.NotFound": (BadRequestError, ()),
    "InvalidParameterCombination": (BadRequestError, ()),
    "IdempotentParameterMismatch": (BadRequestError, ()),
    "SomethingNobodyKnows": (BadRequestError, ()),
}


@pytest.mark.parametrize("code", EXPECTED)
def test_error_code_maps_to_error_class_and_remaining_candidates(code):
    error, remaining = EXPECTED[code]
    rule = launch_error_codes.find_rule(code) or launch_error_codes.DEFAULT_RULE
    assert rule.error is error
    assert launch_error_codes.remaining_candidates(OTHERS, REFUSED, rule.skips) == remaining
    assert (rule.skips == "again") == (error is ThrottledError)


ANYWHERE = "https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html"
STATE_REASON = "https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html"
PARALLELCLUSTER = "https://docs.aws.amazon.com/parallelcluster/latest/ug/slurm-short-capacity-fail-mode-v3.html"
KARPENTER = "github.com/aws/karpenter-provider-aws, pkg/errors/errors.go"
BOTOCORE = "github.com/boto/botocore, botocore/data/_retry.json and retries/standard.py"
SIGNING = "https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot_iam-signature.html and common errors of IAM"

DECISIONS: list[tuple[type, str, str, str]] = [
    # What a launch, and the disks, interfaces and networks of a launch, can return: each code that AWS publishes.
    (CapacityError, "zone", ANYWHERE, """
        InsufficientInstanceCapacity InsufficientHostCapacity InsufficientCapacityOnHost InsufficientCapacity
        InsufficientReservedInstanceCapacity InsufficientReservedInstancesCapacity ReservationCapacityExceeded
        InsufficientFreeAddressesInSubnet InsufficientVolumeCapacity IncompatibleHostRequirements
        UnavailableHostRequirements
    """),
    (CapacityError, "zone", KARPENTER, "UnfulfillableCapacity"),
    (CapacityError, "zone", PARALLELCLUSTER, "SpotMaxPriceTooLow InsufficientCapacityOnOutpost"),
    (CapacityError, "region", ANYWHERE, "InsufficientAddressCapacity"),
    (QuotaError, "pool", ANYWHERE, "InstanceLimitExceeded VcpuLimitExceeded MaxSpotInstanceCountExceeded"),
    (QuotaError, "zone", ANYWHERE, "NatGatewayLimitExceeded"),
    (QuotaError, "region", ANYWHERE, """
        AddressLimitExceeded HostLimitExceeded InternetGatewayLimitExceeded KeyPairLimitExceeded MaxIOPSLimitExceeded
        MaxSpotFleetRequestCountExceeded MaxTemplateLimitExceeded NetworkInterfaceLimitExceeded
        PlacementGroupLimitExceeded RequestResourceCountExceeded RouteTableLimitExceeded SecurityGroupLimitExceeded
        SubnetLimitExceeded VolumeLimitExceeded VpcEndpointLimitExceeded VpcLimitExceeded
    """),
    (QuotaError, "region", KARPENTER, "MaxFleetCountExceeded"),
    (QuotaError, "stop", ANYWHERE, "ResourceLimitExceeded"),
    (NotOfferedError, "zone", ANYWHERE, """
        Unsupported VolumeTypeNotAvailableInZone InvalidZone.NotFound InvalidAvailabilityZone
    """),
    (NotOfferedError, "type", ANYWHERE, """
        InvalidInstanceType AttachmentLimitExceeded PrivateIpAddressLimitExceeded
        InvalidInterface.IpAddressLimitExceeded EncryptedVolumesNotSupported
    """),
    (ThrottledError, "again", ANYWHERE, """
        ConcurrentTagAccess InternalError InternalFailure RequestLimitExceeded ServiceUnavailable Unavailable
    """),
    (ThrottledError, "again", BOTOCORE, """
        Throttling ThrottlingException ThrottledException RequestThrottled RequestThrottledException RequestTimeout
        RequestTimeoutException TooManyRequestsException EC2ThrottledException SlowDown PriorRequestNotComplete
    """),
    (AuthError, "stop", ANYWHERE, """
        AuthFailure Blocked IncompleteSignature InvalidClientTokenId InvalidSecurity.RequestHasExpired
        MissingAuthenticationToken OptInRequired PendingVerification RequestExpired SignatureDoesNotMatch
        TokenRefreshRequired UnauthorizedOperation
    """),
    (AuthError, "stop", KARPENTER, "AuthFailure.ServiceLinkedRoleCreationNotPermitted"),
    (AuthError, "stop", SIGNING, """
        AccessDenied AccessDeniedException ExpiredToken ExpiredTokenException InvalidAccessKeyId
        InvalidSignatureException UnrecognizedClientException
    """),
    (LaunchError, "stop", ANYWHERE, "CustomerKeyHasBeenRevoked"),
    # The request itself is wrong, so another zone would not help.
    (BadRequestError, "stop", ANYWHERE, """
        BootForVolumeTypeUnsupported DefaultVpcDoesNotExist DependencyViolation Gateway.NotAttached
        IdempotentInstanceTerminated IdempotentParameterMismatch IncorrectInstanceState IncorrectState
        InvalidAllocationID.NotFound InvalidAMIID.Malformed InvalidAMIID.NotFound InvalidAMIID.Unavailable
        InvalidAddress.NotFound InvalidAssociationID.NotFound InvalidBlockDeviceMapping
        InvalidCapacityReservationIdMalformedException InvalidCapacityReservationIdNotFoundException
        InvalidClientToken InvalidDevice.InUse InvalidGroup.Duplicate InvalidGroup.InUse InvalidGroup.NotFound
        InvalidGroup.Reserved InvalidGroupId.Malformed InvalidIamInstanceProfileArn.Malformed InvalidID InvalidInput
        InvalidInstanceAttributeValue InvalidInstanceID.NotFound InvalidIPAddress.InUse InvalidKeyPair.Duplicate
        InvalidKeyPair.Format InvalidKeyPair.NotFound InvalidLaunchTemplateId.Malformed
        InvalidLaunchTemplateId.NotFound InvalidLaunchTemplateId.VersionNotFound
        InvalidLaunchTemplateName.AlreadyExistsException InvalidLaunchTemplateName.MalformedException
        InvalidLaunchTemplateName.NotFoundException InvalidManifest InvalidNetworkInterface.InUse
        InvalidNetworkInterfaceID.NotFound InvalidParameter InvalidParameterCombination InvalidParameterValue
        InvalidPermission.Duplicate InvalidPlacementGroup.Duplicate InvalidPlacementGroup.Unknown InvalidProductInfo
        InvalidRequest InvalidRoute.InvalidState InvalidRouteTableID.NotFound InvalidSecurityGroupID.NotFound
        InvalidSnapshot.NotFound InvalidSnapshotID.Malformed InvalidSpotFleetRequestConfig InvalidState InvalidSubnet
        InvalidSubnet.Conflict InvalidSubnet.Range InvalidSubnetID.Malformed InvalidSubnetID.NotFound
        InvalidTagKey.Malformed InvalidTenancy InvalidUserID.Malformed InvalidVolume.NotFound
        InvalidVolume.ZoneMismatch InvalidVpcID.NotFound MaxTemplateVersionLimitExceeded MissingInput MissingParameter
        NatGatewayNotFound NonEBSInstance OperationNotPermitted Resource.AlreadyAssigned Resource.AlreadyAssociated
        ResourceCountExceeded RouteAlreadyExists RouteLimitExceeded RulesPerSecurityGroupLimitExceeded
        SecurityGroupsPerInstanceLimitExceeded SecurityGroupsPerInterfaceLimitExceeded TagLimitExceeded
        UnknownParameter UnknownVolumeType UnsupportedOperation UnsupportedTenancy VPCIdNotSpecified
        VPCResourceNotSpecified ValidationError VolumeInUse VolumeIOPSLimit
    """),
    # Why instances ended while starting.
    (CapacityError, "zone", STATE_REASON, """
        Server.InsufficientInstanceCapacity Server.InternalError Server.ScheduledStop Server.SpotInstanceShutdown
        Server.SpotInstanceTermination Server.SomethingNew
    """),
    (QuotaError, "region", STATE_REASON, "Client.VolumeLimitExceeded"),
    (QuotaError, "pool", STATE_REASON, "Client.InstanceLimitExceeded"),
    (LaunchError, "stop", STATE_REASON, """
        Client.InternalError Client.InvalidSnapshot.NotFound Client.UserInitiatedShutdown
        Client.UserInitiatedHibernate Client.InstanceTerminated Client.InstanceInitiatedShutdown Client.SomethingNew
    """),
    (LaunchError, "stop", "https://repost.aws/knowledge-center/kms-launch-ec2-instance", """
        Client.InvalidKMSKey.InvalidState InvalidKMSKey.InvalidState
    """),
]  # fmt: skip
EACH = [(code, error, skips) for error, skips, _, codes in DECISIONS for code in codes.split()]


@pytest.mark.parametrize(("code", "error", "skips"), EACH, ids=[row[0] for row in EACH])
def test_every_published_code_has_one_decision(code, error, skips):
    rule = launch_error_codes.find_rule(code) or launch_error_codes.DEFAULT_RULE
    assert (rule.error, rule.skips) == (error, skips)
    assert [row[0] for row in EACH].count(code) == 1


@pytest.mark.parametrize("code", ["SpotInstanceTermination", "SpotInstanceShutdown"])
@pytest.mark.parametrize("prefix", ["", "Server."])
def test_withdrawn_spot_capacity_is_not_reported_as_a_fault_of_aws(prefix, code):
    assert launch_error_codes.find_rule(prefix + code).summary == "spot capacity withdrawn"


def test_every_rule_is_in_the_table_of_decisions():
    prefixes = {"Server", "SpotInstanceTermination", "SpotInstanceShutdown", "LimitExceeded"}
    others = {"SlowDown", "InternalServerError", "ServiceUnavailableException"}
    assert set(launch_error_codes.RULES_BY_CODE) - {code for code, _, _ in EACH} <= prefixes | others


NOT_IN_ZONE = "Your requested instance type (p3dn.24xlarge) is not supported in your requested Availability Zone (x)."
OTHER_ARCHITECTURE = (
    "The architecture 'x86_64' of the specified instance type does not match the architecture 'arm64' of the "
    "specified AMI."
)
TEXTS = [
    ("InvalidFleetConfiguration", NOT_IN_ZONE, "zone", "not offered"),
    ("InvalidParameterCombination", NOT_IN_ZONE, "zone", "not offered"),
    ("Unsupported", NOT_IN_ZONE + " Please retry your request by choosing y.", "zone", "not offered"),
    ("InvalidFleetConfiguration", "The fleet has duplicate instance pools.", "stop", "refused"),
    ("InvalidParameterValue", "Invalid value 'p9.large' for InstanceType.", "type", "retired or unknown type"),
    ("InvalidParameterValue", OTHER_ARCHITECTURE, "type", "the image does not support the type"),
    ("InvalidParameterValue", "Invalid IAM Instance Profile name", "stop", "refused"),
    (
        "InvalidParameterCombination",
        "Enhanced networking with the Elastic Network Adapter (ENA) is required for the 'p4d.24xlarge' instance type.",
        "type",
        "the image does not support the type",
    ),
    ("InvalidGroup.NotFound", NOT_IN_ZONE, "stop", "refused"),
]


@pytest.mark.parametrize(("code", "text", "skips", "summary"), TEXTS)
def test_message_decides_codes_that_mean_several_things(code, text, skips, summary):
    rule = launch_error_codes.find_rule(code, text) or launch_error_codes.DEFAULT_RULE
    assert (rule.skips, rule.summary) == (skips, summary)
    raised = error_from_code(code, text, "launching 2 instances")
    assert launch_error_codes.rule_for_error(raised).skips == skips


def test_spot_quota_error_skips_only_that_spot_pool_and_region():
    rule = launch_error_codes.RULES_BY_CODE["MaxSpotInstanceCountExceeded"]
    others = (candidate("us-east-1d", market="spot"), REFUSED, candidate("us-west-2b", market="spot"))
    assert launch_error_codes.remaining_candidates(others, SPOT, rule.skips) == others[1:]


def test_p5_has_a_separate_spot_quota():
    rule = launch_error_codes.RULES_BY_CODE["MaxSpotInstanceCountExceeded"]
    p5 = candidate("us-east-1c", "p5.48xlarge", "spot")
    assert launch_error_codes.remaining_candidates((p5,), SPOT, rule.skips) == (p5,)
    assert (
        launch_error_codes.remaining_candidates((candidate("us-east-1d", "p4de.24xlarge", "spot"),), SPOT, rule.skips)
        == ()
    )


def test_unknown_error_code_falls_back_to_the_error_class():
    assert launch_error_codes.rule_for_error(CapacityError("none", code="Novelty")).skips == "zone"
    assert launch_error_codes.rule_for_error(NotOfferedError("none")).skips == "zone"
    assert launch_error_codes.rule_for_error(QuotaError("none")).skips == "pool"
    assert (
        launch_error_codes.rule_for_error(LaunchError("none", code="Client.InvalidSnapshot.NotFound")).skips == "stop"
    )
    assert launch_error_codes.rule_for_error(BadRequestError("none", code="InvalidParameterValue")).skips == "stop"


def test_node_terminated_during_startup_moves_to_the_next_zone():
    rule = launch_error_codes.rule_for_error(CapacityError("ended", code="Server.InternalError"))
    assert (rule.skips, rule.summary) == ("zone", "a node was terminated during startup")


def test_retry_pauses_grow_from_30_s_to_5_minutes():
    pauses = list(islice(launch_error_codes.pauses_s(lambda: 0.5), 10))
    assert pauses[0] == 30
    assert pauses[-1] == 300
    assert all(later >= earlier for earlier, later in pairwise(pauses))
    assert len({pause for pause in pauses if pause < 300}) == 5


@pytest.mark.parametrize("shaken", [0.0, 1.0])
def test_retry_pauses_have_jitter_and_never_exceed_5_minutes(shaken):
    pauses = list(islice(launch_error_codes.pauses_s(lambda: shaken), 10))
    assert pauses[0] == pytest.approx(30 * (0.8 if shaken == 0 else 1.2))
    assert max(pauses) <= 300
