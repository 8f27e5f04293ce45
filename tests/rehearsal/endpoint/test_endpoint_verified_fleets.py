"""Instant fleets: targets of both markets, overrides and template versions.

Facts: moto tests/test_ec2/test_fleets.py, verified against AWS by its authors.
"""

from collections import Counter

import pytest
from botocore.exceptions import ClientError

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal


@pytest.fixture
def template(rig):
    """A template of one small instance in one zone, with the default version 1 and a larger type in version 2."""
    data = {"ImageId": rig.ami(), "InstanceType": "t2.micro", "Placement": {"AvailabilityZone": "us-east-1a"}}
    made = rig.ec2.create_launch_template(LaunchTemplateName="small", LaunchTemplateData=data)
    template_id = str(made["LaunchTemplate"]["LaunchTemplateId"])
    rig.ec2.create_launch_template_version(
        LaunchTemplateId=template_id, LaunchTemplateData={**data, "InstanceType": "t3.medium"}
    )
    return template_id


@pytest.fixture
def create(rig, template):
    """Creates an instant fleet of the template."""

    def create_fleet(capacity, *, overrides=(), specification=None, **more):
        config = {"LaunchTemplateSpecification": specification or {"LaunchTemplateId": template, "Version": "1"}}
        if overrides:
            config["Overrides"] = [{"InstanceType": name} for name in overrides]
        return rig.ec2.create_fleet(
            Type="instant", LaunchTemplateConfigs=[config], TargetCapacitySpecification=capacity, **more
        )

    return create_fleet


def capacity(total, default, on_demand=None, spot=None):
    markets = {"OnDemandTargetCapacity": on_demand, "SpotTargetCapacity": spot}
    given = {name: count for name, count in markets.items() if count is not None}
    return {"TotalTargetCapacity": total, "DefaultTargetCapacityType": default, **given}


def by_market(made):
    counts = Counter()
    for row in made["Instances"]:
        counts[row["Lifecycle"]] += len(row["InstanceIds"])
    return dict(counts)


@pytest.mark.parametrize(
    ("requested", "launched"),
    [
        (capacity(2, "on-demand"), {"on-demand": 2}),
        (capacity(2, "spot"), {"spot": 2}),
        (capacity(2, "on-demand", 2, 0), {"on-demand": 2}),
        (capacity(2, "spot", 0, 2), {"spot": 2}),
        (capacity(2, "on-demand", 1, 1), {"on-demand": 1, "spot": 1}),
        (capacity(2, "spot", 1, 1), {"on-demand": 1, "spot": 1}),
        (capacity(3, "spot", on_demand=1), {"on-demand": 1, "spot": 2}),
        (capacity(3, "on-demand", spot=1), {"on-demand": 2, "spot": 1}),
    ],
)
def test_capacity_assigned_to_no_market_goes_to_the_default_market(rig, create, requested, launched):
    made = create(requested)
    assert made["Errors"] == []
    assert by_market(made) == launched
    for row in made["Instances"]:
        lifecycles = {instance.get("InstanceLifecycle", "on-demand") for instance in rig.instances(*row["InstanceIds"])}
        assert lifecycles == {row["Lifecycle"]}
    shown = rig.ec2.describe_fleets(FleetIds=[made["FleetId"]])["Fleets"][0]
    fulfilled = shown["FulfilledCapacity"], shown["FulfilledOnDemandCapacity"]
    assert fulfilled == (float(sum(launched.values())), float(launched.get("on-demand", 0)))


def test_market_without_capacity_reports_its_error_and_the_other_market_launches(rig, create):
    client.put_capacity(rig.cloud, {"*/*/spot": 0})
    made = create(capacity(3, "spot", on_demand=1))
    assert by_market(made) == {"on-demand": 1}
    errors = {(row["Lifecycle"], row["ErrorCode"]) for row in made["Errors"]}
    assert errors == {("spot", "InsufficientInstanceCapacity")}


def test_minimum_of_a_market_applies_to_that_market(rig, create):
    client.put_capacity(rig.cloud, {"*/*/spot": 1})
    options = {"SpotOptions": {"MinTargetCapacity": 2, "SingleInstanceType": True}}
    assert by_market(create(capacity(3, "spot", on_demand=1), **options)) == {"on-demand": 1}


def test_targets_above_the_total_are_rejected(rig, create):
    with pytest.raises(ClientError) as err:
        create(capacity(2, "spot", 2, 1))
    assert err.value.response["Error"]["Code"] == "InvalidParameterValue"
    assert client.list_resources(rig.cloud)["instances"] == []


@pytest.mark.parametrize("named_by", ["id", "name"])
@pytest.mark.parametrize("types", [("t3.micro",), ("t3.micro", "t3.nano")])
@pytest.mark.parametrize("requested", [capacity(1, "on-demand"), capacity(2, "spot", 0, 2), capacity(3, "spot", 1, 2)])
def test_instances_name_the_template_and_the_override_they_were_launched_with(
    create, template, named_by, types, requested
):
    specification = {"LaunchTemplateId": template} if named_by == "id" else {"LaunchTemplateName": "small"}
    made = create(requested, overrides=types, specification={**specification, "Version": "$Default"})
    assert sum(by_market(made).values()) == requested["TotalTargetCapacity"]
    for row in made["Instances"]:
        origin = row["LaunchTemplateAndOverrides"]
        assert origin["LaunchTemplateSpecification"] == {"LaunchTemplateId": template, "Version": "1"}
        assert origin["Overrides"]["InstanceType"] == row["InstanceType"]
        assert row["InstanceType"] in types


@pytest.mark.parametrize(
    ("version", "number", "instance_type"),
    [("1", "1", "t2.micro"), ("$Default", "1", "t2.micro"), ("2", "2", "t3.medium"), ("$Latest", "2", "t3.medium")],
)
def test_fleet_reports_the_number_of_the_version_it_used(rig, create, template, version, number, instance_type):
    made = create(capacity(1, "on-demand"), specification={"LaunchTemplateId": template, "Version": version})
    row = made["Instances"][0]
    assert row["LaunchTemplateAndOverrides"]["LaunchTemplateSpecification"]["Version"] == number
    assert rig.instances(*row["InstanceIds"])[0]["InstanceType"] == instance_type


def test_dry_run_of_a_fleet_launches_nothing(rig, create):
    with pytest.raises(ClientError) as err:
        create(capacity(1, "spot"), DryRun=True)
    assert err.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412
    assert err.value.response["Error"] == {
        "Code": "DryRunOperation",
        "Message": "Request would have succeeded, but DryRun flag is set.",
    }
    left = client.list_resources(rig.cloud)
    assert (left["instances"], left["fleets"]) == ([], [])
