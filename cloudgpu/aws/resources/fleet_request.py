"""Convert the properties of a fleet to a `CreateFleet` request."""

from collections.abc import Callable, Mapping
from typing import Any

from cloudgpu.aws.resources.base import Properties

Convert = Callable[[Any], Any]

_LOWEST_PRICE = {"lowestPrice": "lowest-price"}
"""Spelling in the Pulumi provider -> spelling in the EC2 API."""

OPTIONS: Mapping[str, tuple[str, Convert]] = {
    "allocationStrategy": ("AllocationStrategy", lambda text: _LOWEST_PRICE.get(text, text)),
    "instanceInterruptionBehavior": ("InstanceInterruptionBehavior", str),
    "maxTotalPrice": ("MaxTotalPrice", str),
    "minTargetCapacity": ("MinTargetCapacity", int),
    "singleAvailabilityZone": ("SingleAvailabilityZone", bool),
    "singleInstanceType": ("SingleInstanceType", bool),
}
CAPACITY: Mapping[str, tuple[str, Convert]] = {
    "defaultTargetCapacityType": ("DefaultTargetCapacityType", str),
    "totalTargetCapacity": ("TotalTargetCapacity", int),
    "onDemandTargetCapacity": ("OnDemandTargetCapacity", int),
    "spotTargetCapacity": ("SpotTargetCapacity", int),
}
SPECIFICATION: Mapping[str, tuple[str, Convert]] = {
    "launchTemplateId": ("LaunchTemplateId", str),
    "launchTemplateName": ("LaunchTemplateName", str),
    "version": ("Version", lambda value: str(int(value)) if isinstance(value, float) else str(value)),
}
OVERRIDE: Mapping[str, tuple[str, Convert]] = {
    "availabilityZone": ("AvailabilityZone", str),
    "instanceType": ("InstanceType", str),
    "maxPrice": ("MaxPrice", str),
    "priority": ("Priority", float),
    "subnetId": ("SubnetId", str),
}
NESTED: Mapping[str, frozenset[str]] = {
    "launchTemplateConfigs": frozenset({"launchTemplateSpecification", "overrides"}),
    "launchTemplateConfigs.launchTemplateSpecification": frozenset(SPECIFICATION),
    "launchTemplateConfigs.overrides": frozenset(OVERRIDE),
    "targetCapacitySpecification": frozenset(CAPACITY),
    "onDemandOptions": frozenset(OPTIONS) - {"instanceInterruptionBehavior"},
    "spotOptions": frozenset(OPTIONS),
}


def fleet_request(inputs: Properties) -> dict[str, Any]:
    """Return the arguments for `CreateFleet` without the token and the tags."""
    request = {
        "Type": inputs["type"],
        "LaunchTemplateConfigs": [_config(config) for config in inputs["launchTemplateConfigs"]],
        "TargetCapacitySpecification": _converted(CAPACITY, inputs["targetCapacitySpecification"]),
    }
    for key, name in (("onDemandOptions", "OnDemandOptions"), ("spotOptions", "SpotOptions")):
        if inputs.get(key):
            request[name] = _converted(OPTIONS, inputs[key])
    return request


def _config(row: Mapping[str, Any]) -> dict[str, Any]:
    specification = _converted(SPECIFICATION, row["launchTemplateSpecification"])
    overrides = [_converted(OVERRIDE, override) for override in row.get("overrides") or ()]
    return {"LaunchTemplateSpecification": specification, "Overrides": overrides}


def _converted(table: Mapping[str, tuple[str, Convert]], properties: Mapping[str, Any]) -> dict[str, Any]:
    present = {key: value for key, value in properties.items() if value is not None}
    return {table[key][0]: table[key][1](value) for key, value in present.items()}
