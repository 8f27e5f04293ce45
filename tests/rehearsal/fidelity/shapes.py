"""Compare responses of a rehearsal cloud with the members that AWS returned in recordings and shows in examples.

`recorded_shapes.json` has, for each operation that cloudgpu calls and that others recorded, the structures in its
response by path (`[]` stands for each item of a list) and their members with types. `always` has the members that at
least nine of ten recorded structures had (many recordings are years old, and some were shortened by hand), without
those that depend on the request; `sometimes` has the rest. Members that botocore's service model does not know are left
out: the server checks each of its responses against that model.

`example_shapes.json` has the same for the examples of AWS that botocore ships. Their types are those of the service
model, since examples write times and numbers as text. `sometimes` has there too what depends on the request, such as
`NextToken`, or belongs to kinds of resources that cloudgpu does not create, such as Windows file systems.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

_NOT_SIMULATED: Mapping[tuple[str, str], tuple[str, str]] = {
    ("ec2 DescribeCapacityReservations", "CapacityAllocations"): ("CapacityReservations/[]", "cloudgpu never reads it"),
    ("ec2 DescribeInstanceTypes", "ValidCores"): ("InstanceTypes/[]/VCpuInfo", "moto's data lacks it; never read"),
    ("ec2 DescribeInstanceTypes", "ValidThreadsPerCore"): ("InstanceTypes/[]/VCpuInfo", "as ValidCores"),
    ("ec2 RunInstances", "PrivateDnsName"): (
        "Instances/[]/NetworkInterfaces/[]/PrivateIpAddresses/[]",
        "nodes have loopback addresses without names",
    ),
    ("efs CreateFileSystem", "KmsKeyId"): (".", "cloudgpu never reads it"),
    ("s3 ListMultipartUploads", "NextKeyMarker"): (".", "read only where the listing is truncated"),
    ("s3 ListMultipartUploads", "NextUploadIdMarker"): (".", "read only where the listing is truncated"),
}
"""Members that the rehearsal cloud does not return, by operation and member, with path and reason."""


@dataclass(frozen=True)
class RecordedShape:
    """The members of one structure in the response of an operation, with their types."""

    operation: str
    path: str
    always: Mapping[str, str]
    sometimes: Mapping[str, str]
    source: str

    @property
    def name(self) -> str:
        """A short name for lists of results."""
        return f"{self.operation} {self.path}"


def recorded_shapes() -> list[RecordedShape]:
    """Return the table of recorded structures."""
    return _read("recorded_shapes.json")


def example_shapes() -> list[RecordedShape]:
    """Return the table of structures in published examples."""
    return _read("example_shapes.json")


def _read(name: str) -> list[RecordedShape]:
    table = json.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
    return [
        RecordedShape(operation, path, members["always"], members.get("sometimes", {}), row["source"])
        for operation, row in table.items()
        for path, members in row["shapes"].items()
    ]


def limits_of(shape: RecordedShape) -> dict[str, str]:
    """Return the differences of a structure that are declared, with their reasons."""
    return {
        f"no {member}": reason
        for (operation, member), (path, reason) in _NOT_SIMULATED.items()
        if (operation, path) == (shape.operation, shape.path)
    }


def shape_differences(shape: RecordedShape, responses: list[Mapping[str, Any]]) -> list[str]:
    """Return what the structures at the shape's path lack or have another type of, one line each."""
    steps = [] if shape.path == "." else shape.path.split("/")
    problems: list[str] = []
    for structure in [found for response in responses for found in _structures(response, steps)]:
        for member, kind in {**shape.sometimes, **shape.always}.items():
            if member in structure and kind not in ("blob", _kind(structure[member])):
                problems.append(f"{member} is a {_kind(structure[member])}, not a {kind}")
        problems += [f"no {member}" for member in shape.always if member not in structure]
    return sorted(set(problems))


def is_reached(shape: RecordedShape, responses: list[Mapping[str, Any]]) -> bool:
    """Return True if a response contains the structure."""
    steps = [] if shape.path == "." else shape.path.split("/")
    return any(True for response in responses for _ in _structures(response, steps))


def _structures(value: Any, steps: list[str]) -> Iterator[Mapping[str, Any]]:
    if not steps:
        yield value
    elif steps[0] == "[]":
        for item in value:
            yield from _structures(item, steps[1:])
    elif steps[0] in value:
        yield from _structures(value[steps[0]], steps[1:])


def _kind(value: Any) -> str:
    kinds = ((bool, "boolean"), ((int, float), "number"), (str, "string"), (datetime, "time"), (list, "list"))
    return next((kind for types, kind in kinds if isinstance(value, types)), "structure")
