"""Machine images: what a public parameter names can be described and launched, on types of its architecture."""

import pytest
from botocore.exceptions import ClientError

pytestmark = pytest.mark.rehearsal

LINUX = "/aws/service/ami-amazon-linux-latest"


def error_of(work, *args, **kwargs) -> tuple[str, str]:
    with pytest.raises(ClientError) as err:
        work(*args, **kwargs)
    answer = err.value.response
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 400
    return str(answer["Error"]["Code"]), str(answer["Error"]["Message"])


def ami(rig, name, region="us-east-1"):
    return str(rig.aws("ssm", region).get_parameter(Name=f"{LINUX}/{name}")["Parameter"]["Value"])


@pytest.mark.parametrize("region", ["us-east-1", "us-west-2"])
@pytest.mark.parametrize("name", ["al2023-ami-kernel-6.1-x86_64", "al2023-ami-kernel-default-x86_64"])
def test_image_of_a_public_parameter_can_be_launched_in_its_region(rig, name, region):
    image_id, ec2 = ami(rig, name, region), rig.aws("ec2", region)
    described = ec2.describe_images(ImageIds=[image_id])["Images"][0]
    assert (described["Architecture"], described["State"]) == ("x86_64", "available")
    made = ec2.run_instances(MinCount=1, MaxCount=1, ImageId=image_id, InstanceType="t3.micro")["Instances"][0]
    assert (made["ImageId"], made["InstanceType"]) == (image_id, "t3.micro")


def test_parameter_of_an_image_that_is_not_simulated_does_not_exist(rig):
    ssm = rig.aws("ssm")
    names = [f"{LINUX}/al2027-preview-ami-kernel-default-x86_64", f"{LINUX}/al2023-ami-kernel-6.1-x86_64"]
    assert error_of(ssm.get_parameter, Name=names[0])[0] == "ParameterNotFound"
    read = ssm.get_parameters(Names=names)
    assert [row["Name"] for row in read["Parameters"]] == names[1:]
    assert read["InvalidParameters"] == names[:1]


def test_instance_without_a_type_is_an_m1_small(rig):
    made = rig.ec2.run_instances(MinCount=1, MaxCount=1, ImageId=rig.ami())["Instances"][0]
    assert made["InstanceType"] == "m1.small"
    template = rig.ec2.create_launch_template(LaunchTemplateName="untyped", LaunchTemplateData={"ImageId": rig.ami()})
    version = {"LaunchTemplateId": template["LaunchTemplate"]["LaunchTemplateId"]}
    made = rig.ec2.run_instances(MinCount=1, MaxCount=1, LaunchTemplate=version)["Instances"][0]
    assert made["InstanceType"] == "m1.small"


def test_image_must_have_an_architecture_of_the_type(rig):
    arm = ami(rig, "al2023-ami-kernel-6.1-arm64")
    run = {"MinCount": 1, "MaxCount": 1}
    assert rig.ec2.run_instances(ImageId=arm, InstanceType="g5g.xlarge", **run)["Instances"]
    code, message = error_of(rig.ec2.run_instances, ImageId=arm, InstanceType="g5.xlarge", **run)
    assert code == "InvalidParameterValue"
    assert "'x86_64' of the specified instance type does not match the architecture 'arm64'" in message
    code, message = error_of(rig.ec2.run_instances, ImageId=rig.ami(), InstanceType="g5g.xlarge", **run)
    assert code == "InvalidParameterValue"
    assert "'arm64' of the specified instance type does not match the architecture 'x86_64'" in message


def test_unknown_images_are_rejected_by_name(rig):
    """Source of the texts: moto tests/test_ec2/test_amis.py and test_instances.py, verified against AWS."""
    describe = rig.ec2.describe_images
    one, two = "ami-0fedcba9", "ami-9abcdef0"
    assert error_of(describe, ImageIds=[one]) == ("InvalidAMIID.NotFound", f"The image id '[{one}]' does not exist")
    assert error_of(describe, ImageIds=[one, two]) == (
        "InvalidAMIID.NotFound",
        f"The image ids '[{one}, {two}]' do not exist",
    )
    assert error_of(describe, ImageIds=["image-1"])[0] == "InvalidAMIID.Malformed"
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": one}
    assert error_of(rig.ec2.run_instances, **run) == error_of(describe, ImageIds=[one])
