"""How many vCPUs of GPU instances the account may run in a region, as Service Quotas tells."""

from dataclasses import dataclass
from decimal import Decimal

from cloudgpu.aws.faults import typed
from cloudgpu.aws.session import Clients
from cloudgpu.catalog.quotas import Quota, quota_of

_MEANT = (("g5", "on-demand"), ("p4d", "on-demand"), ("g5", "spot"), ("p4d", "spot"), ("p5", "spot"))
"""One family and market of each quota that binds GPU instances."""


@dataclass(frozen=True)
class Allowance:
    """One quota in one region. `vcpus` is None where AWS does not tell it."""

    quota: Quota
    region: str
    vcpus: int | None


def gpu_quotas(clients: Clients) -> tuple[Allowance, ...]:
    """The quotas that GPU instances are launched under.

    Raises:
        CloudError: Service Quotas refused or cannot be reached.
    """
    told: dict[str, Decimal] = {}
    with typed(f"reading the quotas of {clients.region}"):
        pages = clients.client("service-quotas").get_paginator("list_service_quotas").paginate(ServiceCode="ec2")
        for page in pages:
            told |= {row["QuotaCode"]: Decimal(str(row["Value"])) for row in page["Quotas"]}
    quotas = [quota_of(family, market) for family, market in _MEANT]
    return tuple(Allowance(one, clients.region, int(told[one.code]) if one.code in told else None) for one in quotas)
