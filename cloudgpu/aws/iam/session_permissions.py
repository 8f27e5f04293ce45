"""Additional permissions for `reach = ssm`, in a separate policy because of the size limit of policies."""

from cloudgpu.aws.iam.grants import RESOURCE_HAS_TAG, Grant, ec2_arns

SESSION_GRANTS: tuple[Grant, ...] = (
    Grant(
        "SessionsToNodes",
        "reach nodes by Session Manager",
        ("ssm:StartSession",),
        ec2_arns("instance"),
        RESOURCE_HAS_TAG,
    ),
    Grant(
        "SessionsBySsh",
        "tunnel SSH through sessions",
        ("ssm:StartSession",),
        ("arn:aws:ssm:*::document/AWS-StartSSHSession",),
    ),
)
