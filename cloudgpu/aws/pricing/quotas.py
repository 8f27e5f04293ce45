"""Read the account's vCPU quotas for GPU instances in a region, and how many vCPUs are in use."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cloudgpu import bounds
from cloudgpu.aws.session.errors import answered
from cloudgpu.aws.session.session import Clients
from cloudgpu.catalog import load
from cloudgpu.catalog.quotas import Quota, quota_of

_MEANT = (("g5", "on-demand"), ("p4d", "on-demand"), ("g5", "spot"), ("p4d", "spot"), ("p5", "spot"))
"""One family and market of each quota that binds GPU instances."""


@dataclass(frozen=True)
class Allowance:
    """One quota in one region. `vcpus` is None if AWS does not report it."""

    quota: Quota
    region: str
    vcpus: int | None


_UNCODED: Final = quota_of("p6", "spot")
"""Known by the end of its name alone."""
_MOST_CORES: Final = 1 << 20
_RUNNING: Final = ("pending", "running")
"""States that count against a quota."""
_OWN_COUNT: Final = frozenset({"capacity-block", "scheduled"})
"""Ways to buy instances that no quota on running ones binds; of capacity blocks that is recalled."""


def gpu_quotas(clients: Clients) -> tuple[Allowance, ...]:
    """Return the quotas that apply to GPU instances.

    Raises:
        CloudError: Service Quotas refused or cannot be reached.
    """
    told = limits(clients)
    quotas = [quota_of(family, market) for family, market in _MEANT]
    return tuple(Allowance(quota, clients.region, told.get(quota.code)) for quota in quotas)


def limits(clients: Clients) -> dict[str, int]:
    """Return the vCPU limit of every EC2 quota on running instances, by quota key.

    The key is the quota code. One quota is also listed by name, because public sources disagree about its code. A quota
    that was never changed may appear only in the list of defaults.

    Raises:
        CloudError: Service Quotas refused or cannot be reached.
    """
    told = _listed(clients, "list_service_quotas")
    if not {quota_of(family, market).code for family, market in _MEANT} <= told.keys():
        told = {**_listed(clients, "list_aws_default_service_quotas"), **told}
    found = {code: vcpus for code, (name, vcpus) in sorted(told.items()) if _is_of_running(name)}
    for name, vcpus in told.values():
        if name.endswith(_UNCODED.name):
            found[_UNCODED.key] = vcpus
    return found


def shipped_vcpus(instance_type: str) -> int | None:
    """Return the vCPUs of a type from the bundled catalog. The size of a type never changes."""
    kind = load().types.get(instance_type)
    return None if kind is None else kind.vcpus


def running(clients: Clients, vcpus_of: Callable[[str], int | None] = shipped_vcpus) -> dict[Quota, int | None]:
    """Return the vCPUs in use by quota, regardless of who launched them.

    Quotas without running instances are left out. None means that the size of an instance is unknown. `vcpus_of` is
    used for examples that do not report their own size.

    Raises:
        CloudError: EC2 refused or cannot be reached.
    """
    used: dict[Quota, int | None] = {}
    with answered(f"counting what runs in {clients.region}"):
        pages = clients.client("ec2").get_paginator("describe_instances")
        filters = [{"Name": "instance-state-name", "Values": list(_RUNNING)}]
        for instance in _instances(pages.paginate(Filters=filters)):
            lifecycle = instance.get("InstanceLifecycle") or "on-demand"
            if lifecycle not in _OWN_COUNT:
                quota, vcpus = quota_of(instance["InstanceType"], lifecycle), _vcpus(instance, vcpus_of)
                before = used.get(quota, 0)
                used[quota] = None if before is None or vcpus is None else before + vcpus
    return used


def _listed(clients: Clients, operation: str) -> dict[str, tuple[str, int]]:
    """Return the name and value of each quota, by code."""
    told = {}
    with answered(f"reading the quotas of {clients.region}"):
        for page in clients.client("service-quotas").get_paginator(operation).paginate(ServiceCode="ec2"):
            for row in page["Quotas"]:
                with contextlib.suppress(ValueError):  # a limit that is no number, or a negative one, is not known
                    told[str(row["QuotaCode"])] = str(row["QuotaName"]), bounds.count(int(bounds.figure(row["Value"])))
    return told


def _is_of_running(name: str) -> bool:
    return name.startswith("Running On-Demand ") or name.endswith("Spot Instance Requests")


def _instances(pages: Any) -> Iterator[Mapping[str, Any]]:  # noqa: ANN401
    for page in pages:
        for reservation in page["Reservations"]:
            yield from reservation["Instances"]


def _vcpus(instance: Mapping[str, Any], vcpus_of: Callable[[str], int | None]) -> int | None:
    """Return the vCPUs an instance reports, which may be fewer than its type has, or else those of its type."""
    options = instance.get("CpuOptions") or {}
    with contextlib.suppress(ValueError):  # cores that no machine has are not known
        cores, threads = (bounds.count(options.get(name), 1, _MOST_CORES) for name in ("CoreCount", "ThreadsPerCore"))
        return cores * threads
    return vcpus_of(instance["InstanceType"])
