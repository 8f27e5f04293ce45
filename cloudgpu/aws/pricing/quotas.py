"""How many vCPUs of GPU instances the account may run in a region, as Service Quotas tells, and how many it runs."""

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
    """One quota in one region. `vcpus` is None where AWS does not tell it."""

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
    """The quotas that GPU instances are launched under.

    Raises:
        CloudError: Service Quotas refused or cannot be reached.
    """
    told = limits(clients)
    quotas = [quota_of(family, market) for family, market in _MEANT]
    return tuple(Allowance(one, clients.region, told.get(one.code)) for one in quotas)


def limits(clients: Clients) -> dict[str, int]:
    """Key of a quota -> vCPUs that may run, of every quota of EC2 on running instances.

    The key is the quota's code, and beside it the name of one whose code public sources contradict each other about.
    A quota that was never changed may stand in the list of defaults alone.

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
    """Of a type that the shipped catalogue knows: the size of a type never changes."""
    kind = load().types.get(instance_type)
    return None if kind is None else kind.vcpus


def running(clients: Clients, vcpus_of: Callable[[str], int | None] = shipped_vcpus) -> dict[Quota, int | None]:
    """How many vCPUs run now, by the quota that they count against, whoever launched them.

    A quota of which nothing runs is left out. None stands for one that counts an instance whose size is unknown:
    `vcpus_of` tells it for types whose instances do not say it themselves.

    Raises:
        CloudError: EC2 refused or cannot be reached.
    """
    used: dict[Quota, int | None] = {}
    with answered(f"counting what runs in {clients.region}"):
        pages = clients.client("ec2").get_paginator("describe_instances")
        filters = [{"Name": "instance-state-name", "Values": list(_RUNNING)}]
        for one in _instances(pages.paginate(Filters=filters)):
            lifecycle = one.get("InstanceLifecycle") or "on-demand"
            if lifecycle not in _OWN_COUNT:
                quota, vcpus = quota_of(one["InstanceType"], lifecycle), _vcpus(one, vcpus_of)
                before = used.get(quota, 0)
                used[quota] = None if before is None or vcpus is None else before + vcpus
    return used


def _listed(clients: Clients, operation: str) -> dict[str, tuple[str, int]]:
    """Code -> name and value."""
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
    """As the instance says, whose cores may be fewer than its type has; else as its type has them."""
    options = instance.get("CpuOptions") or {}
    with contextlib.suppress(ValueError):  # cores that no machine has are not known
        cores, threads = (bounds.count(options.get(name), 1, _MOST_CORES) for name in ("CoreCount", "ThreadsPerCore"))
        return cores * threads
    return vcpus_of(instance["InstanceType"])
