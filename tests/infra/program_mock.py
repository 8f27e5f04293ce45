"""Run the real program against Pulumi's mock monitor in its own thread, so that no state stays in the process."""

import asyncio
import contextvars
import gc
import runpy
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
import pulumi.runtime
from pulumi.runtime.stack import run_pulumi_func

INFRA = Path(__file__).resolve().parents[2] / "infra"

SETTINGS = {
    "cluster": "demo",
    "owner": "ada",
    "team": "lab",
    "run": "r-1",
    "expiresAt": "2026-11-21T05:00:00Z",
    "token": "tok-1",
    "instanceType": "p3dn.24xlarge",
    "nodes": "2",
    "zone": "us-east-1c",
    "market": "on-demand",
    "publicKey": "ssh-ed25519 AAAAC3Nza ada@laptop",
    "sshCidr": "198.51.100.7/32",
    "image": "/aws/service/some/ami-id",
    "diskGib": "150",
    "efaInterfaces": "1",
}


@dataclass
class Recorder(pulumi.runtime.Mocks):
    """Record the resources and calls of the program."""

    resources: list[pulumi.runtime.MockResourceArgs] = field(default_factory=list)
    calls: list[pulumi.runtime.MockCallArgs] = field(default_factory=list)
    exports: dict[str, Any] = field(default_factory=dict)

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        self.resources.append(args)
        outputs = dict(args.inputs)
        if args.typ.endswith(":Fleet"):
            outputs["fleetInstanceSets"] = [{"instanceIds": ["i-b", "i-a"]}, {"instanceIds": ["i-c"]}]
        if args.typ.endswith(":ScheduleGroup"):
            outputs["arn"] = "arn:of:scheduleGroup"
        return f"{args.typ.rsplit(':', 1)[1].lower()}-id", outputs

    def call(self, args: pulumi.runtime.MockCallArgs) -> Any:
        self.calls.append(args)
        return ANSWERS[args.token](args.args)

    def of(self, suffix: str) -> list[dict[str, Any]]:
        return [one.inputs for one in self.resources if one.typ.endswith(f":{suffix}")]

    def named(self, suffix: str, name: str) -> dict[str, Any]:
        (only,) = [one.inputs for one in self.resources if one.typ.endswith(f":{suffix}") and one.name == name]
        return only

    def one(self, suffix: str) -> dict[str, Any]:
        (only,) = self.of(suffix)
        return only


ANSWERS = {
    "aws:ec2/getVpc:getVpc": lambda args: {"id": args.get("id") or "vpc-default"},
    "aws:ec2/getSubnets:getSubnets": lambda args: {
        "ids": [] if args["filters"][1]["values"] == ["us-east-1f"] else ["subnet-z", "subnet-a"]
    },
    "aws:index/getAvailabilityZones:getAvailabilityZones": lambda args: {
        "names": ["us-east-1a", "us-east-1c"],
        "zoneIds": ["use1-az1", "use1-az2"],
    },
    "aws:ec2/getNetworkInterface:getNetworkInterface": lambda args: {
        "id": f"eni-of-{args['filters'][0]['values'][0]}-{args['filters'][1]['values'][0]}"
    },
    "aws:ec2/getSubnet:getSubnet": lambda args: {
        "id": args["id"],
        "vpcId": "vpc-own",
        "availabilityZone": "us-east-1c",
    },
    "aws:ssm/getParameter:getParameter": lambda args: {"name": args["name"], "value": "ami-from-ssm"},
    "aws:ec2/getAmi:getAmi": lambda args: {"id": args["filters"][0]["values"][0], "rootDeviceName": "/dev/sda1"},
}


def run_program(**changes: str | None) -> Recorder:
    """Run the program with changes to `SETTINGS`; None removes a setting."""
    return run_project(INFRA, SETTINGS | changes, Recorder())


def run_project(directory: Path, given: dict[str, str | None], recorder: Recorder) -> Recorder:
    """Run the program of any project."""
    settings = {key: value for key, value in given.items() if value is not None}
    failures: list[BaseException] = []

    def carry_out() -> None:
        loops: list[asyncio.AbstractEventLoop] = []

        def own_loop() -> None:
            """The mock monitor creates a loop in every worker thread and never closes it; this loop is closed below."""
            loops.append(asyncio.new_event_loop())
            asyncio.set_event_loop(loops[-1])

        own_loop()
        loop = loops[0]
        workers = ThreadPoolExecutor(4, initializer=own_loop)
        loop.set_default_executor(workers)
        try:
            pulumi.runtime.reset_options()
            pulumi.runtime.set_mocks(recorder, project="cloudgpu", stack="demo", preview=False)
            pulumi.runtime.set_all_config({f"cloudgpu:{key}": value for key, value in settings.items()})
            original, pulumi.export = pulumi.export, recorder.exports.__setitem__
            try:
                loop.run_until_complete(run_pulumi_func(lambda: _run_main(directory, recorder)))
            finally:
                pulumi.export = original
        except BaseException as err:  # noqa: BLE001 raised again below, in the thread of the test
            failures.append(err)
        finally:
            workers.shutdown()
            for one in loops:
                one.close()

    thread = threading.Thread(target=contextvars.Context().run, args=(carry_out,))
    thread.start()
    thread.join()
    # A failed program leaves task cycles; collecting them during a later `ast.parse` breaks Python 3.11.
    gc.collect()
    if failures:
        raise failures[0]
    return recorder


def _run_main(directory: Path, recorder: Recorder) -> Any:
    runpy.run_path(str(directory / "__main__.py"))

    async def resolve() -> None:
        for name, value in list(recorder.exports.items()):
            recorder.exports[name] = await pulumi.Output.from_input(value).future()

    return resolve()
