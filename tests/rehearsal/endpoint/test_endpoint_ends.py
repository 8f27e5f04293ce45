"""End times of billed resources: StateTransitionReason of instances, DeleteTime of NAT gateways."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from cloudgpu.rehearsal import client
from tests.rehearsal.endpoint.test_endpoint_addresses import address, gateways, own_network

pytestmark = pytest.mark.rehearsal

BY_THE_API = re.compile(r"User initiated \((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) GMT\)")


def launch(rig, **more):
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "g5.xlarge", **more}
    instance_id = rig.ec2.run_instances(**run)["Instances"][0]["InstanceId"]
    rig.until(lambda: rig.states(instance_id) == {"running"})
    assert rig.instances(instance_id)[0]["StateTransitionReason"] == ""
    return instance_id


def reason(rig, instance_id):
    return rig.instances(instance_id)[0]["StateTransitionReason"]


def moment(rig, instance_id):
    found = BY_THE_API.fullmatch(reason(rig, instance_id))
    assert found, reason(rig, instance_id)
    return datetime.fromisoformat(found[1]).replace(tzinfo=UTC)


def test_terminated_instance_keeps_the_time_of_the_first_call(rig):
    instance_id = launch(rig)
    before = datetime.now(UTC).replace(microsecond=0)
    rig.ec2.terminate_instances(InstanceIds=[instance_id])
    at = moment(rig, instance_id)
    assert before <= at <= datetime.now(UTC)
    rig.until(lambda: rig.states(instance_id) == {"terminated"})
    rig.ec2.terminate_instances(InstanceIds=[instance_id])
    assert moment(rig, instance_id) == at


def test_stop_records_its_time_and_start_clears_the_reason(rig):
    instance_id = launch(rig)
    rig.ec2.stop_instances(InstanceIds=[instance_id])
    assert moment(rig, instance_id) <= datetime.now(UTC)
    rig.until(lambda: rig.states(instance_id) == {"stopped"})
    rig.ec2.start_instances(InstanceIds=[instance_id])
    assert reason(rig, instance_id) == ""


def test_shutdown_from_inside_the_instance_records_no_time(rig):
    instance_id = launch(rig, InstanceInitiatedShutdownBehavior="terminate")
    rig.host.power_itself_off(instance_id)
    rig.until(lambda: rig.states(instance_id) == {"terminated"})
    assert reason(rig, instance_id) == "User initiated"
    assert rig.instances(instance_id)[0]["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_spot_interruption_records_no_time(rig):
    instance_id = launch(rig, InstanceMarketOptions={"MarketType": "spot"})
    client.put_script(rig.cloud, {"nodes": [{"do": "spot-notice", "seconds": 1}]})
    client.advance(rig.cloud, 2)
    rig.until(lambda: rig.states(instance_id) == {"terminated"})
    assert reason(rig, instance_id) == "Server.SpotInstanceTermination"


def test_deleted_nat_gateway_reports_its_delete_time(rig):
    _, subnet = own_network(rig)
    made = rig.ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address(rig))["NatGateway"]["NatGatewayId"]
    rig.until(lambda: gateways(rig, made)[0]["State"] == "available")
    assert "DeleteTime" not in gateways(rig, made)[0]
    rig.ec2.delete_nat_gateway(NatGatewayId=made)
    rig.until(lambda: gateways(rig, made)[0]["State"] == "deleted")
    assert datetime.now(UTC) - gateways(rig, made)[0]["DeleteTime"] < timedelta(minutes=1)
