"""The expiry schedule: EventBridge Scheduler terminates the nodes after their expiry if their own timers failed."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pulumi
import pulumi_aws as aws

from gpu_cluster.node_policy import partition_of

_AFTER = timedelta(minutes=5)
"""Delay of TerminateInstances after the expiry. The nodes' own timers act first: they stop processes and sync disks."""
_FLEET_AFTER = timedelta(minutes=10)
"""Delay of DeleteFleets after the expiry. It has an effect only if the earlier call, TerminateInstances, failed."""
_POLICY = "end-the-nodes"
_NODES = "end-the-nodes"
_FLEET = "end-the-fleet"
_SHORT = (("north", "n"), ("south", "s"), ("east", "e"), ("west", "w"), ("central", "c"), ("-", ""))


@dataclass(frozen=True)
class ExpiryScheduleArgs:
    """Settings of the expiry schedule.

    Attributes:
        group: Name of the schedule group, unique in the region.
        token: Value of the nodes' `cloudgpu:token` tag. Only instances with this tag can be terminated.
        expires_at: Time (UTC) at which the nodes power themselves off.
        permissions_boundary: ARN of the policy that limits the schedules' role; empty for no limit.
        role_arn: Existing role that EventBridge Scheduler assumes; empty for a new one.
    """

    group: str
    region: str
    token: str
    expires_at: datetime
    permissions_boundary: str
    tags: dict[str, str]
    role_arn: str = ""


class ExpirySchedule(pulumi.ComponentResource):
    """An expiry schedule: a tagged schedule group, and a new role that can terminate only this cluster's nodes.

    With an existing role, the group is the only new resource besides the schedules.

    The group and the role must be created before the nodes and deleted after them. Pass `before_nodes` to the nodes'
    `depends_on`.
    """

    before_nodes: list[pulumi.Resource]

    def __init__(self, name: str, args: ExpiryScheduleArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:infra:Belt", name, None, opts)
        self._name, self._args = name, args
        alone = pulumi.ResourceOptions(parent=self, delete_before_replace=True)
        # Unlike EC2 and IAM, EventBridge Scheduler rejects tags without a value.
        filled = {key: value for key, value in args.tags.items() if value}
        self._group = aws.scheduler.ScheduleGroup(name, name=args.group, tags=filled, opts=alone)
        self.before_nodes = [self._group]
        self._role_arn = pulumi.Output.from_input(args.role_arn) if args.role_arn else self._new_role(alone)
        self.register_outputs({"group": self._group.name})

    def _new_role(self, alone: pulumi.ResourceOptions) -> pulumi.Output[str]:
        name, args = self._name, self._args
        role = aws.iam.Role(
            f"{name}-belt",
            name=role_name(args.group, args.region),
            description="cloudgpu: EventBridge Scheduler ends the nodes after their expiry",
            assume_role_policy=self._group.arn.apply(_trust),
            permissions_boundary=args.permissions_boundary or None,
            tags=args.tags,
            opts=alone,
        )
        policy = aws.iam.RolePolicy(
            f"{name}-belt",
            name=_POLICY,
            role=role.name,
            policy=_policy(args),
            opts=pulumi.ResourceOptions(parent=self, deleted_with=role),
        )
        self.before_nodes += [role, policy]
        arn: pulumi.Output[str] = role.arn
        return arn

    def attach_targets(self, fleet_id: pulumi.Output[str], instance_ids: pulumi.Output[list[str]]) -> None:
        """Schedule the termination of these nodes in two ways.

        `TerminateInstances` fails for all nodes once EC2 no longer lists one of the IDs, about an hour after that node
        terminated. `DeleteFleets` needs no node IDs and terminates the nodes that the fleet still has.
        """
        nodes = instance_ids.apply(lambda ids: json.dumps({"InstanceIds": ids}))
        self._schedule(self._name, _NODES, _AFTER, "terminateInstances", nodes)
        fleet = fleet_id.apply(lambda identifier: json.dumps({"FleetIds": [identifier], "TerminateInstances": True}))
        self._schedule(f"{self._name}-fleet", _FLEET, _FLEET_AFTER, "deleteFleets", fleet)

    def _schedule(
        self, name: str, schedule_name: str, after: timedelta, call: str, parameters: pulumi.Output[str]
    ) -> None:
        aws.scheduler.Schedule(
            name,
            name=schedule_name,
            group_name=self._group.name,
            schedule_expression=f"at({self._args.expires_at + after:%Y-%m-%dT%H:%M:%S})",
            schedule_expression_timezone="UTC",
            flexible_time_window={"mode": "OFF"},
            action_after_completion="DELETE",
            target={
                "arn": f"arn:{partition_of(self._args.region)}:scheduler:::aws-sdk:ec2:{call}",
                "role_arn": self._role_arn,
                "input": parameters,
            },
            # AWS deletes the schedules with their group. Until then, they can still terminate the nodes.
            opts=pulumi.ResourceOptions(parent=self, deleted_with=self._group),
        )


def role_name(group: str, region: str) -> str:
    """Return a role name that is unique in the account, because IAM is global, and has at most 64 characters."""
    for word, short in _SHORT:
        region = region.replace(word, short)
    return f"{group}-{region}-belt"


def _trust(group_arn: str) -> str:
    """Return a trust policy that lets only schedules in this group use the role."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "scheduler.amazonaws.com"},
        "Action": "sts:AssumeRole",
        "Condition": {"StringEquals": {"aws:SourceArn": group_arn}},
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]}, sort_keys=True)


def _policy(args: ExpiryScheduleArgs) -> str:
    statements = [_allowed(args, "TerminateInstances", "instance"), _allowed(args, "DeleteFleets", "fleet")]
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, sort_keys=True)


def _allowed(args: ExpiryScheduleArgs, call: str, kind: str) -> dict[str, Any]:
    return {
        "Effect": "Allow",
        "Action": f"ec2:{call}",
        "Resource": f"arn:{partition_of(args.region)}:ec2:{args.region}:*:{kind}/*",
        "Condition": {"StringEquals": {"aws:ResourceTag/cloudgpu:token": args.token}},
    }
