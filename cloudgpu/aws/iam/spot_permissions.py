"""Additional permission for the first spot launch of an account, in a separate policy because the main one is full."""

from cloudgpu.aws.iam.grants import Grant
from cloudgpu.aws.iam.service_roles import SPOT, service_role_arns

SPOT_GRANTS: tuple[Grant, ...] = (
    Grant(
        "MakeSpotRole",
        "create the service-linked role of spot",
        ("iam:CreateServiceLinkedRole",),
        (service_role_arns(SPOT.service),),
        {"StringEquals": {"iam:AWSServiceName": SPOT.service}},
    ),
)
