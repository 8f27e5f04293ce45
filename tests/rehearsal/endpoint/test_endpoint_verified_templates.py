"""Launch templates: versions, errors by name, and what an instance takes from them.

Facts: moto tests/test_ec2/test_launch_templates.py and test_instances.py, verified against AWS by its authors.
"""

import pytest
from botocore.exceptions import ClientError

pytestmark = pytest.mark.rehearsal

RUN = {"MinCount": 1, "MaxCount": 1}


def error_of(work, *args, **kwargs) -> dict[str, str]:
    with pytest.raises(ClientError) as err:
        work(*args, **kwargs)
    error = err.value.response["Error"]
    return {"Code": error["Code"], "Message": error["Message"]}


def tagged(rig, value):
    """Template data with an image and one tag for instances."""
    tags = [{"Key": "origin", "Value": value}]
    return {"ImageId": rig.ami(), "TagSpecifications": [{"ResourceType": "instance", "Tags": tags}]}


@pytest.fixture
def template(rig):
    """Create a template named `lab`; return its ID."""
    made = rig.ec2.create_launch_template(LaunchTemplateName="lab", LaunchTemplateData=tagged(rig, "first"))
    template = made["LaunchTemplate"]
    assert (template["DefaultVersionNumber"], template["LatestVersionNumber"]) == (1, 1)
    assert template["LaunchTemplateName"] == "lab"
    return str(template["LaunchTemplateId"])


def tags_of(row):
    return {tag["Key"]: tag["Value"] for tag in row["Tags"]}


@pytest.mark.parametrize(
    ("default", "version", "number"),
    [
        ("1", "1", "1"),
        ("1", "$Default", "1"),
        ("1", "2", "2"),
        ("1", "$Latest", "2"),
        ("2", "2", "2"),
        ("2", "$Latest", "2"),
        ("2", "$Default", "2"),
        ("2", "1", "1"),
    ],
)
def test_instance_takes_the_tags_of_the_version_and_names_it(rig, template, default, version, number):
    rig.ec2.create_launch_template_version(LaunchTemplateId=template, LaunchTemplateData=tagged(rig, "second"))
    if default != "1":
        rig.ec2.modify_launch_template(LaunchTemplateId=template, DefaultVersion=default)
    made = rig.ec2.run_instances(**RUN, LaunchTemplate={"LaunchTemplateId": template, "Version": version})
    expected = {
        "origin": {"1": "first", "2": "second"}[number],
        "aws:ec2launchtemplate:id": template,
        "aws:ec2launchtemplate:version": number,
    }
    instance = made["Instances"][0]
    assert tags_of(instance) == tags_of(rig.instances(instance["InstanceId"])[0]) == expected


def test_template_without_a_version_means_its_default_version(rig, template):
    rig.ec2.create_launch_template_version(LaunchTemplateId=template, LaunchTemplateData=tagged(rig, "second"))
    made = rig.ec2.run_instances(**RUN, LaunchTemplate={"LaunchTemplateName": "lab"})
    assert tags_of(made["Instances"][0])["origin"] == "first"


@pytest.mark.parametrize(("requested", "launched"), [({}, "t2.micro"), ({"InstanceType": "t2.small"}, "t2.small")])
def test_request_overrides_the_type_of_the_template(rig, requested, launched):
    rig.ec2.create_launch_template(LaunchTemplateName="typed", LaunchTemplateData={"InstanceType": "t2.micro"})
    launch = {"ImageId": rig.ami(), "LaunchTemplate": {"LaunchTemplateName": "typed"}, **requested}
    made = rig.ec2.run_instances(**RUN, **launch)["Instances"][0]
    assert made["InstanceType"] == rig.instances(made["InstanceId"])[0]["InstanceType"] == launched


def test_key_pair_and_security_groups_come_from_the_template(rig):
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGCHCKJNLxRUh3U3Lw1QvU6cZv0cT3Y7v0H1lq0m1v8Z lab"
    rig.ec2.import_key_pair(KeyName="lab", PublicKeyMaterial=key.encode())
    group = rig.ec2.create_security_group(GroupName="lab", Description="lab")["GroupId"]
    data = {"InstanceType": "t2.micro", "KeyName": "lab", "SecurityGroupIds": [group]}
    rig.ec2.create_launch_template(LaunchTemplateName="lab", LaunchTemplateData=data)
    launch = {"ImageId": rig.ami(), "LaunchTemplate": {"LaunchTemplateName": "lab"}}
    made = rig.ec2.run_instances(**RUN, **launch)["Instances"][0]
    for row in (made, rig.instances(made["InstanceId"])[0]):
        assert row["KeyName"] == "lab"
        assert [member["GroupId"] for member in row["SecurityGroups"]] == [group]


@pytest.mark.parametrize("named_by", ["LaunchTemplateId", "LaunchTemplateName"])
def test_new_version_is_numbered_described_and_not_the_default(rig, template, named_by):
    named = {named_by: {"LaunchTemplateId": template, "LaunchTemplateName": "lab"}[named_by]}
    # An image ID in a template is checked only when an instance is launched.
    data = {"ImageId": "ami-later"}
    made = rig.ec2.create_launch_template_version(**named, LaunchTemplateData=data, VersionDescription="later")
    version = made["LaunchTemplateVersion"]
    assert (version["VersionNumber"], version["DefaultVersion"]) == (2, False)
    assert (version["LaunchTemplateId"], version["VersionDescription"]) == (template, "later")
    assert version["LaunchTemplateData"] == data
    shown = rig.ec2.describe_launch_templates(LaunchTemplateIds=[template])["LaunchTemplates"][0]
    assert (shown["DefaultVersionNumber"], shown["LatestVersionNumber"]) == (1, 2)


def test_errors_of_templates_have_the_code_and_text_of_aws(rig, template):
    ec2 = rig.ec2
    assert error_of(ec2.create_launch_template, LaunchTemplateName="lab", LaunchTemplateData=tagged(rig, "x")) == {
        "Code": "InvalidLaunchTemplateName.AlreadyExistsException",
        "Message": "Launch template name already in use.",
    }
    assert error_of(ec2.describe_launch_templates, LaunchTemplateNames=["absent"]) == {
        "Code": "InvalidLaunchTemplateName.NotFoundException",
        "Message": "At least one of the launch templates specified in the request does not exist.",
    }
    assert error_of(ec2.modify_launch_template, LaunchTemplateName="lab", DefaultVersion="2") == {
        "Code": "InvalidLaunchTemplateId.VersionNotFound",
        "Message": "The launch template version 2 is not found for the specified launch template.",
    }
    both = {"LaunchTemplateId": template, "LaunchTemplateName": "lab", "DefaultVersion": "1"}
    assert error_of(ec2.modify_launch_template, **both) == {
        "Code": "InvalidParameterCombination",
        "Message": "Either provide launch template ID or launch template name to modify the template.",
    }
