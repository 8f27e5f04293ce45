"""The service-linked roles that AWS services need in an account, and the commands and permission that create them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cloudgpu.aws.iam.grants import Grant
from cloudgpu.aws.session.errors import convert_response_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.plan.named_resources import SPOT_ROLE
from cloudgpu.text import command

_PATH: Final = "/aws-service-role/"


@dataclass(frozen=True)
class ServiceRole:
    """A service-linked role.

    Attributes:
        needed_for: What fails without it, for example `spot instances`.
    """

    name: str
    service: str
    needed_for: str

    @property
    def create_command(self) -> str:
        """Command that creates the role; it needs `iam:CreateServiceLinkedRole`."""
        return command("aws", "iam", "create-service-linked-role", "--aws-service-name", self.service)


SPOT: Final = ServiceRole(SPOT_ROLE, "spot.amazonaws.com", "spot instances")
EFS: Final = ServiceRole("AWSServiceRoleForAmazonElasticFileSystem", "elasticfilesystem.amazonaws.com", "EFS storage")
FSX: Final = ServiceRole("AWSServiceRoleForAmazonFSx", "fsx.amazonaws.com", "Lustre storage")
FSX_DATA_SERVICE: Final = "s3.data-source.lustre.fsx.amazonaws.com"
"""Service of the roles for linked buckets. FSx creates one for each file system, with the caller's permissions."""
STORAGE_ROLES: Final = (EFS, FSX)


def service_role_arns(service: str) -> str:
    """Return the ARN pattern of a service's roles."""
    return f"arn:aws:iam::*:role{_PATH}{service}/*"


def service_role_names(clients: Clients) -> Sequence[str]:
    """Return the names of the account's service-linked roles."""
    with convert_response_errors("listing the service-linked roles"):
        pages = clients.client("iam").get_paginator("list_roles").paginate(PathPrefix=_PATH)
        return tuple(str(role["RoleName"]) for page in pages for role in page["Roles"])


SPOT_GRANTS: tuple[Grant, ...] = (
    Grant(
        "MakeSpotRole",
        "create the service-linked role of spot",
        ("iam:CreateServiceLinkedRole",),
        (service_role_arns(SPOT.service),),
        {"StringEquals": {"iam:AWSServiceName": SPOT.service}},
    ),
)
"""Permission for the first spot launch of an account. A policy of its own, because the main one is full."""
