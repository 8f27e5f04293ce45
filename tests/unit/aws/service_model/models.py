"""Small service models for the tests, one for each protocol."""

from typing import Any

from botocore.model import OperationModel, ServiceModel

SHAPES: dict[str, Any] = {
    "Name": {"type": "string", "min": 2, "max": 8, "pattern": "[a-z]+"},
    "State": {"type": "string", "enum": ["on", "off"]},
    "Size": {"type": "integer", "min": 1, "max": 10},
    "Ratio": {"type": "double"},
    "Flag": {"type": "boolean"},
    "Time": {"type": "timestamp"},
    "Data": {"type": "blob"},
    "Secret": {"type": "string", "max": 3, "sensitive": True},
    "Names": {"type": "list", "member": {"shape": "Name", "locationName": "item"}, "max": 3},
    "Sizes": {"type": "map", "key": {"shape": "Name"}, "value": {"shape": "Size"}},
    "Either": {"type": "structure", "union": True, "members": {"A": {"shape": "Name"}, "B": {"shape": "Size"}}},
    "Node": {
        "type": "structure",
        "required": ["Name"],
        "members": {
            "Name": {"shape": "Name", "locationName": "name"},
            "State": {"shape": "State", "locationName": "state"},
            "Size": {"shape": "Size", "locationName": "size"},
            "Ratio": {"shape": "Ratio", "locationName": "ratio"},
            "Flag": {"shape": "Flag", "locationName": "flag"},
            "Time": {"shape": "Time", "locationName": "time"},
            "Data": {"shape": "Data", "locationName": "data"},
            "Secret": {"shape": "Secret", "locationName": "secret"},
            "Names": {"shape": "Names", "locationName": "nameSet"},
            "Sizes": {"shape": "Sizes", "locationName": "sizes"},
            "Either": {"shape": "Either", "locationName": "either"},
        },
    },
    "Request": {"type": "structure", "members": {}},
}


def operation(protocol: str, *, method: str = "POST", uri: str = "/", output: dict[str, Any] | None = None) -> Any:
    """The operation `GetNode` of a service; its output is `Node`, or another shape."""
    wrapper = {"resultWrapper": "GetNodeResult"} if protocol == "query" else {}
    model = {
        "metadata": {"protocol": protocol, "serviceId": "Nodes", "endpointPrefix": "nodes", "apiVersion": "1"},
        "operations": {
            "GetNode": {
                "name": "GetNode",
                "http": {"method": method, "requestUri": uri},
                "input": {"shape": "Request"},
                "output": {"shape": "Output" if output else "Node", **wrapper},
            },
            "Reset": {"name": "Reset", "http": {"method": "POST", "requestUri": "/"}},
        },
        "shapes": {**SHAPES, **({"Output": output} if output else {})},
    }
    return ServiceModel(model, "nodes").operation_model("GetNode")


def without_output(protocol: str) -> OperationModel:
    """The operation `Reset`, which has no output."""
    return operation(protocol).service_model.operation_model("Reset")
