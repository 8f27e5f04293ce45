"""List the resources that a plan would create, by previewing the infrastructure program for the first candidate."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from cloudgpu.backends.aws.clusters.delete import stack_of
from cloudgpu.backends.aws.ports import Cloud
from cloudgpu.backends.lifecycle.launch_request import Requester, new_record, record_with_candidate
from cloudgpu.backends.lifecycle.results import ResourceForecast
from cloudgpu.clock import Clock
from cloudgpu.engine.base import PreviewStep
from cloudgpu.paths import Home
from cloudgpu.plan.plan import Plan

_PLACEHOLDER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA forecast"
"""Placeholder public key: a preview must not create a key pair."""
_PLACEHOLDER_CIDR = "127.0.0.1/32"
"""Placeholder for the caller's address, which a preview does not look up."""
_NO_JOURNAL = ".forecast"
"""Name of a journal that never exists, so that an existing cluster of the same name does not affect the preview."""
_COMPONENT = "cloudgpu:infra:"
_STACK = "pulumi:"


def forecast(
    plan: Plan, cluster: str, *, cloud: Cloud, requester: Requester, home: Home, clock: Clock
) -> tuple[ResourceForecast, ...]:
    """Preview the resources of a cluster on the plan's first candidate without changing anything.

    The public key of `requester` is not used.
    """
    if not plan.candidates:
        return ()
    record = record_with_candidate(
        new_record(cloud, plan, cluster, requester, "", clock.now()),
        plan,
        plan.candidates[0],
        replace(requester, public_key=_PLACEHOLDER_KEY),
        _PLACEHOLDER_CIDR,
    )
    journal: Path = home.cluster(cluster).journal(record.placement.region).with_name(_NO_JOURNAL)
    stack = replace(stack_of(home, record), journal=journal)
    return tuple(_made(cloud.engine(record).preview(stack)))


def _made(steps: Iterable[PreviewStep]) -> Iterator[ResourceForecast]:
    """Yield the AWS resources that the program would create, without Pulumi components and the stack itself."""
    for step in steps:
        if step.operation == "create" and not step.type.startswith((_COMPONENT, _STACK)):
            yield ResourceForecast(step.type, step.name)
