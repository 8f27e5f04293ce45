"""Additional permissions for `reach = ssm`, in a separate policy because IAM limits the size of a policy."""

from cloudgpu.aws.iam.grants import RESOURCE_HAS_TAG, Grant, ec2_arns

SESSION_GRANTS: tuple[Grant, ...] = (
    Grant(
        "SessionsToNodes",
        "connect to nodes through Session Manager",
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
