"""Network interfaces of terminated instances.

Facts: moto tests/test_ec2/test_elastic_network_interfaces.py, verified against AWS by its authors.
"""

import pytest
from botocore.exceptions import ClientError

pytestmark = pytest.mark.rehearsal


def terminated_interface(rig, *, deleted: bool) -> str:
    """Launch and terminate an instance; return the ID of its interface."""
    rows = [{"DeviceIndex": 0, "SubnetId": rig.subnet(), "DeleteOnTermination": deleted}]
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "t3a.small"}
    made = rig.ec2.run_instances(NetworkInterfaces=rows, **run)["Instances"][0]
    rig.until(lambda: rig.states(made["InstanceId"]) == {"running"})
    interface_id = str(made["NetworkInterfaces"][0]["NetworkInterfaceId"])
    shown = rig.ec2.describe_network_interfaces(NetworkInterfaceIds=[interface_id])["NetworkInterfaces"][0]
    assert shown["Attachment"]["DeleteOnTermination"] is deleted
    assert shown["Status"] == "in-use"
    rig.ec2.terminate_instances(InstanceIds=[made["InstanceId"]])
    rig.until(lambda: rig.states(made["InstanceId"]) == {"terminated"})
    return interface_id


def test_interface_is_deleted_with_its_instance(rig):
    interface_id = terminated_interface(rig, deleted=True)
    with pytest.raises(ClientError) as err:
        rig.ec2.describe_network_interfaces(NetworkInterfaceIds=[interface_id])
    assert err.value.response["Error"]["Code"] == "InvalidNetworkInterfaceID.NotFound"
    assert err.value.response["Error"]["Message"] == f"The networkInterface ID '{interface_id}' does not exist"


def test_kept_interface_is_available_after_termination_and_can_be_deleted(rig):
    interface_id = terminated_interface(rig, deleted=False)
    shown = rig.ec2.describe_network_interfaces(NetworkInterfaceIds=[interface_id])["NetworkInterfaces"][0]
    assert shown["Status"] == "available"
    assert not shown.get("Attachment")
    rig.ec2.delete_network_interface(NetworkInterfaceId=interface_id)
    assert rig.ec2.describe_network_interfaces()["NetworkInterfaces"] == []
