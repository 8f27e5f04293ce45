"""The storage program under Pulumi's mocks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
from program_mock import Recorder, run_project

STORAGE = Path(__file__).resolve().parents[2] / "infra" / "storage"
SETTINGS: dict[str, str | None] = {"storage": "data", "owner": "ada", "team": "lab", "token": "tok-1"}
SUBNETS = {
    "subnet-a": ("us-east-1a", "vpc-default"),
    "subnet-b": ("us-east-1b", "vpc-default"),
    "subnet-c": ("us-east-1b", "vpc-default"),
    "subnet-x": ("us-east-1a", "vpc-other"),
}


@dataclass
class Account(Recorder):
    """A default VPC with three subnets in two zones."""

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        made, outputs = super().new_resource(args)
        return made, {**outputs, "dnsName": "dns", "mountName": "mnt"}

    def call(self, args: pulumi.runtime.MockCallArgs) -> Any:
        self.calls.append(args)
        if args.token == "aws:ec2/getSubnets:getSubnets":
            wanted = args.args["filters"][0]["values"]
            return {"ids": [name for name, (_, vpc) in SUBNETS.items() if [vpc] == wanted]}
        if args.token == "aws:ec2/getSubnet:getSubnet":
            zone, vpc = SUBNETS[args.args["id"]]
            return {"id": args.args["id"], "availabilityZone": zone, "vpcId": vpc}
        return {"id": "vpc-default"}


def run_storage(**changes: str | None) -> Recorder:
    """Run the program with changes to `SETTINGS`; None removes a setting."""
    return run_project(STORAGE, SETTINGS | changes, Account())
