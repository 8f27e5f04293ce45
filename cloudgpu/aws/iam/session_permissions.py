"""Additional permissions for `reach = ssm`, in a separate policy because of the size limit of policies."""

from cloudgpu.aws.iam.grants import OURS, Grant, ec2

SESSION_GRANTS: tuple[Grant, ...] = (
    Grant("SessionsToNodes", "reach nodes by Session Manager", ("ssm:StartSession",), ec2("instance"), OURS),
    Grant(
        "SessionsBySsh",
        "tunnel SSH through sessions",
        ("ssm:StartSession",),
        ("arn:aws:ssm:*::document/AWS-StartSSHSession",),
    ),
)
