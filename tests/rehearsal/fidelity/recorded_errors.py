"""Errors that AWS returned to others, who recorded them: code, HTTP status and message of each, with its source.

A message keeps AWS's wording. `{name}` in a message or request stands for a value of the situation in which the error
occurred, such as the id of a resource that the situation created.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.rehearsal.fidelity import situations
from tests.rehearsal.fidelity.situations import Situation

_CUSTODIAN = "cloud-custodian/cloud-custodian@df800e9e tests/data/placebo/"
_LOCALSTACK = "localstack/localstack@8b9a79f0 tests/aws/services/"
_S3 = f"{_LOCALSTACK}s3/test_s3.snapshot.json TestS3::"
_S3_API = f"{_LOCALSTACK}s3/test_s3_api.snapshot.json "
_IAM = f"{_LOCALSTACK}iam/test_iam.snapshot.json "
_SCHEDULER = f"{_LOCALSTACK}scheduler/test_scheduler.snapshot.json "


@dataclass(frozen=True)
class RecordedError:
    """An error that AWS returned to a call, and how to provoke it."""

    service: str
    operation: str
    request: Mapping[str, Any]
    code: str
    status: int
    message: str
    source: str
    """Repository at a revision, and the path of the recording in it; or a repository with the number of an issue."""
    given: Callable[[Situation], Mapping[str, str]] = situations.nothing
    """Creates what the call needs, and returns the values of the placeholders."""
    details: Mapping[str, str] = field(default_factory=dict)
    """Further members of the error, which S3 returns."""
    region: str = "us-east-1"

    @property
    def name(self) -> str:
        """A short name for lists of results."""
        return f"{self.service} {self.operation}: {self.code}: {self.message[:60]}"


def _no_bucket(operation: str, source: str, **request: Any) -> RecordedError:
    return RecordedError(
        "s3", operation, {"Bucket": "cloudgpu-no-such-bucket", **request}, "NoSuchBucket", 404,
        "The specified bucket does not exist", source, details={"BucketName": "cloudgpu-no-such-bucket"},
    )  # fmt: skip


def _bad_expression(expression: str) -> RecordedError:
    request = {
        "Name": "bad",
        "ScheduleExpression": expression,
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "Target": {"Arn": "arn:aws:lambda:us-east-1:111111111111:function:f",
        "RoleArn": "arn:aws:iam::111111111111:role/r"},
    }  # fmt: skip
    return RecordedError(
        "scheduler", "CreateSchedule", request, "ValidationException", 400,
        f"Invalid Schedule Expression {expression}.",
        f"{_SCHEDULER}tests_create_schedule_with_invalid_schedule_expression",
    )  # fmt: skip


def _bad_tag(case: str, key: str, value: str, message: str, **details: str) -> RecordedError:
    return RecordedError(
        "s3", "PutBucketTagging", {"Bucket": "{bucket}", "Tagging": {"TagSet": [{"Key": key, "Value": value}]}},
        "InvalidTag", 400, message, f"{_S3_API}TestS3BucketObjectTagging::test_tagging_validation {case}",
        given=situations.bucket, details=details,
    )  # fmt: skip


_MALFORMED = "The XML you provided was not well-formed or did not validate against our published schema"
_NO_UPLOAD = (
    "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or "
    "completed."
)
_UPLOAD = {"Bucket": "{bucket}", "Key": "key", "UploadId": "fakeid"}
_OWNED = "Your previous request to create the named bucket succeeded and you already own it."
_INCOMPATIBLE = "location constraint is incompatible for the region specific endpoint this request was sent to."
_TRUST = '{"Version":"2012-10-17","Statement":[]}'

EC2 = (
    RecordedError(
        "ec2", "AuthorizeSecurityGroupIngress",
        {"GroupId": "{group}", "IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": "0.0.0.0/0"},
        "InvalidPermission.Duplicate", 400,
        'the specified rule "peer: 0.0.0.0/0, TCP, from port: 22, to port: 22, ALLOW" already exists',
        f"{_CUSTODIAN}test_security_group_set_permissions/ec2.AuthorizeSecurityGroupIngress_1.json",
        given=situations.group_open_for_ssh,
    ),
    RecordedError(
        "ec2", "CreateTags", {"Resources": [], "Tags": [{"Key": "k", "Value": "v"}]}, "MissingParameter", 400,
        "The request must contain the parameter resourceIdSet",
        f"{_CUSTODIAN}test_asg_propagate_tag_no_instances/ec2.CreateTags_1.json",
    ),
    RecordedError(
        "ec2", "CreateVolume", {"AvailabilityZone": "us-east-1a"}, "MissingParameter", 400,
        "The request must contain the parameter size/snapshot",
        f"{_LOCALSTACK}ec2/test_ec2.snapshot.json test_raise_create_volume_without_size",
    ),
    RecordedError(
        "ec2", "DeleteInternetGateway", {"InternetGatewayId": "{gateway}"}, "DependencyViolation", 400,
        "The internetGateway '{gateway}' has dependencies and cannot be deleted.",
        f"{_CUSTODIAN}test_internet_gateway_delete_with_dependencies/ec2.DeleteInternetGateway_1.json",
        given=situations.attached_gateway,
    ),
    RecordedError(
        "ec2", "DeleteNetworkInterface", {"NetworkInterfaceId": "eni-d834cdcf"}, "InvalidNetworkInterfaceID.NotFound",
        400,
        "The networkInterface ID 'eni-d834cdcf' does not exist",
        f"{_CUSTODIAN}test_network_interface_delete/ec2.DeleteNetworkInterface_2.json",
    ),
    RecordedError(
        "ec2", "DeleteSecurityGroup", {"GroupId": "sg-22992c53"}, "InvalidGroup.NotFound", 400,
        "The security group 'sg-22992c53' does not exist",
        f"{_CUSTODIAN}test_security_group_delete/ec2.DeleteSecurityGroup_2.json",
    ),
    RecordedError(
        "ec2", "DeleteSubnet", {"SubnetId": "{subnet}"}, "DependencyViolation", 400,
        "The subnet '{subnet}' has dependencies and cannot be deleted.",
        f"{_CUSTODIAN}test_subnet_delete_with_dependencies/ec2.DeleteSubnet_1.json",
        given=situations.subnet_in_use,
    ),
    RecordedError(
        "ec2", "DeleteSubnet", {"SubnetId": "subnet-056d542a687f866ee"}, "InvalidSubnetID.NotFound", 400,
        "The subnet ID 'subnet-056d542a687f866ee' does not exist",
        f"{_CUSTODIAN}test_subnet_delete/ec2.DeleteSubnet_2.json",
    ),
    RecordedError(
        "ec2", "DescribeAddresses", {"AllocationIds": ["eipalloc-2da7a824"]}, "InvalidAllocationID.NotFound", 400,
        "The allocation ID 'eipalloc-2da7a824' does not exist",
        f"{_CUSTODIAN}test_release_attached_ec2/ec2.DescribeAddresses_3.json",
    ),
    RecordedError(
        "ec2", "DescribeInternetGateways", {"InternetGatewayIds": ["igw-5bce113f"]},
        "InvalidInternetGatewayID.NotFound", 400,
        "The internetGateway ID 'igw-5bce113f' does not exist",
        f"{_CUSTODIAN}test_query_manager_get/ec2.DescribeInternetGateways_2.json",
    ),
    RecordedError(
        "ec2", "DescribeLaunchTemplateVersions", {"LaunchTemplateId": "lt-0877401c93c294001"},
        "InvalidLaunchTemplateId.NotFound", 400,
        "The specified launch template, with template ID lt-0877401c93c294001, does not exist.",
        f"{_CUSTODIAN}test_asg_image_age_filter_deleted_config/ec2.DescribeLaunchTemplateVersions_1.json",
    ),
    RecordedError(
        "ec2", "DescribeNetworkInterfaces", {"NetworkInterfaceIds": ["eni-d834cdcf"]},
        "InvalidNetworkInterfaceID.NotFound", 400, "The networkInterface ID 'eni-d834cdcf' does not exist",
        f"{_CUSTODIAN}test_network_interface_delete/ec2.DescribeNetworkInterfaces_2.json",
    ),
    RecordedError(
        "ec2", "DescribeSecurityGroups", {"GroupIds": ["sg-22992c53"]}, "InvalidGroup.NotFound", 400,
        "The security group 'sg-22992c53' does not exist",
        f"{_CUSTODIAN}test_security_group_delete/ec2.DescribeSecurityGroups_2.json",
    ),
    RecordedError(
        "ec2", "DescribeSnapshots", {"SnapshotIds": ["snap-0d16416527e67c663"]}, "InvalidSnapshot.NotFound", 400,
        "The snapshot 'snap-0d16416527e67c663' does not exist.",
        f"{_CUSTODIAN}test_ami_deregister_delete_snap/ec2.DescribeSnapshots_1.json",
    ),
    RecordedError(
        "ec2", "DescribeSubnets", {"SubnetIds": ["subnet-06261c743949f093d"]}, "InvalidSubnetID.NotFound", 400,
        "The subnet ID 'subnet-06261c743949f093d' does not exist",
        f"{_CUSTODIAN}test_ecs_service_subnet/ec2.DescribeSubnets_1.json",
    ),
    RecordedError(
        "ec2", "DescribeVolumes", {"VolumeIds": ["vol-04c1b309bb8d18d71"]}, "InvalidVolume.NotFound", 400,
        "The volume 'vol-04c1b309bb8d18d71' does not exist.",
        f"{_CUSTODIAN}test_ebs_snapshot_copy_related_tags_missing_volumes/ec2.DescribeVolumes_1.json",
    ),
    RecordedError(
        "ec2", "ReleaseAddress", {"AllocationId": "eipalloc-bbaf95b2"}, "InvalidAllocationID.NotFound", 400,
        "The allocation ID 'eipalloc-bbaf95b2' does not exist",
        f"{_CUSTODIAN}test_release_detached_vpc/ec2.ReleaseAddress_2.json",
    ),
    RecordedError(
        "ec2", "StopInstances", {"InstanceIds": ["{instance}"]}, "OperationNotPermitted", 400,
        "The instance '{instance}' may not be stopped. Modify its 'disableApiStop' instance attribute and try again.",
        f"{_CUSTODIAN}test_ec2_stop_with_protection_enabled/ec2.StopInstances_1.json",
        given=situations.stop_protected_instance,
    ),
    RecordedError(
        "ec2", "TerminateInstances", {"InstanceIds": ["{instance}"]}, "OperationNotPermitted", 400,
        "The instance '{instance}' may not be terminated. Modify its 'disableApiTermination' instance attribute and "
        "try again.",
        f"{_CUSTODIAN}test_ec2_terminate_with_protection_enabled/ec2.TerminateInstances_1.json",
        given=situations.termination_protected_instance,
    ),
    RecordedError(
        "ec2", "TerminateInstances", {"InstanceIds": ["{instance}"]}, "OperationNotPermitted", 400,
        "The instance '{instance}' may not be terminated. Modify its 'disableApiStop' instance attribute and try "
        "again.",
        f"{_CUSTODIAN}test_ec2_stop_with_protection_enabled_ephemeral/ec2.TerminateInstances_1.json",
        given=situations.stop_protected_instance,
    ),
)  # fmt: skip

IAM = (
    RecordedError(
        "iam", "AttachRolePolicy", {"RoleName": "{role}", "PolicyArn": "longpolicynamebutnoarn"}, "ValidationError",
        400,
        "Invalid ARN:  Could not be parsed!",
        f"{_IAM}TestIAMIntegrations::test_role_attach_policy non_existent_malformed_policy_arn", given=situations.role,
    ),
    RecordedError(
        "iam", "AttachRolePolicy",
        {"RoleName": "{role}", "PolicyArn": "arn:aws:iam::{account}:policy/missing"}, "NoSuchEntity", 404,
        "Policy arn:aws:iam::{account}:policy/missing does not exist or is not attachable.",
        f"{_IAM}TestIAMIntegrations::test_role_attach_policy valid_arn_not_existent", given=situations.role,
    ),
    RecordedError(
        "iam", "CreateRole", {"RoleName": "malformed", "AssumeRolePolicyDocument": _TRUST[:-1]},
        "MalformedPolicyDocument", 400, "This policy contains invalid Json",
        f"{_IAM}TestIAMExtensions::test_create_role_with_malformed_assume_role_policy_document",
    ),
    RecordedError(
        "iam", "DeleteInstanceProfile", {"InstanceProfileName": "test"}, "NoSuchEntity", 404,
        "Instance Profile test cannot be found.",
        f"{_CUSTODIAN}test_force_delete_role/iam.DeleteInstanceProfile_2.json",
    ),
    RecordedError(
        "iam", "DeleteRole", {"RoleName": "{role}"}, "UnmodifiableEntity", 400,
        "Cannot perform the operation on the protected role '{role}' - this role is only modifiable by AWS",
        f"{_CUSTODIAN}test_delete_role_error/iam.DeleteRole_1.json", given=situations.service_linked_role,
    ),
    RecordedError(
        "iam", "DetachRolePolicy",
        {"RoleName": "{role}", "PolicyArn": "arn:aws:iam::aws:policy/AdministratorAccessDoesNotExist"},
        "NoSuchEntity", 404,
        "Policy arn:aws:iam::aws:policy/AdministratorAccessDoesNotExist was not found.",
        f"{_CUSTODIAN}test_iam_instance_profile_set_policy_nosuchentity/iam.DetachRolePolicy_1.json",
        given=situations.role,
    ),
    RecordedError(
        "iam", "GetPolicy", {"PolicyArn": "arn:aws:iam::aws:policy/AdministratorAccessDoesNotExist"}, "NoSuchEntity",
        404,
        "Policy arn:aws:iam::aws:policy/AdministratorAccessDoesNotExist was not found.",
        f"{_CUSTODIAN}test_iam_instance_profile_set_policy_nosuchentity/iam.GetPolicy_1.json",
    ),
    RecordedError(
        "iam", "GetRole", {"RoleName": "test_role"}, "NoSuchEntity", 404,
        "The role with name test_role cannot be found.",
        f"{_CUSTODIAN}test_iam_role_delete/iam.GetRole_3.json",
    ),
    RecordedError(
        "iam", "ListInstanceProfilesForRole", {"RoleName": "test"}, "NoSuchEntity", 404,
        "The role with name test cannot be found.",
        f"{_CUSTODIAN}test_force_delete_role/iam.ListInstanceProfilesForRole_3.json",
    ),
    RecordedError(
        "iam", "RemoveRoleFromInstanceProfile", {"InstanceProfileName": "{profile}", "RoleName": "test"},
        "NoSuchEntity", 404,
        "The role with name test cannot be found.",
        f"{_CUSTODIAN}test_force_delete_role/iam.RemoveRoleFromInstanceProfile_2.json", given=situations.empty_profile,
    ),
    RecordedError(
        "iam", "SimulatePrincipalPolicy",
        {"PolicySourceArn": "arn:aws:iam::{account}:role/deleted", "ActionNames": ["ec2:RunInstances"]},
        "NoSuchEntity", 404,
        "Unable to retrieve specified IAM entity.",
        f"{_CUSTODIAN}test_aws_lambda_check_permission_deleted_role/iam.SimulatePrincipalPolicy_1.json",
    ),
)  # fmt: skip

S3 = (
    RecordedError(
        "s3", "AbortMultipartUpload", _UPLOAD, "NoSuchUpload", 404, _NO_UPLOAD,
        f"{_S3}test_multipart_no_such_upload abort-exc", given=situations.bucket, details={"UploadId": "fakeid"},
    ),
    RecordedError(
        "s3", "UploadPart", {**_UPLOAD, "PartNumber": 1, "Body": b"x"}, "NoSuchUpload", 404, _NO_UPLOAD,
        f"{_S3}test_multipart_no_such_upload upload-exc", given=situations.bucket, details={"UploadId": "fakeid"},
    ),
    RecordedError(
        "s3", "CreateBucket",
        {"Bucket": "{bucket}", "CreateBucketConfiguration": {"LocationConstraint": "us-east-2"}},
        "BucketAlreadyOwnedByYou",
        409, _OWNED, f"{_S3}test_create_bucket_with_existing_name create-bucket-us-east-2", region="us-east-2",
        given=situations.bucket_in_us_east_2, details={"BucketName": "{bucket}"},
    ),
    RecordedError(
        "s3", "CreateBucket",
        {"Bucket": "{bucket}", "CreateBucketConfiguration": {"Tags": [{"Key": "tag1", "Value": "value1"}]}},
        "BucketAlreadyOwnedByYou", 409, _OWNED,
        f"{_S3_API}TestS3BucketObjectTagging::test_create_bucket_with_tags_us_east_1_idempotency",
        given=situations.bucket, details={"BucketName": "{bucket}"},
    ),
    RecordedError(
        "s3", "CreateBucket", {"Bucket": "cloudgpu-no-constraint"}, "IllegalLocationConstraintException", 400,
        f"The unspecified {_INCOMPATIBLE}",
        f"{_S3}test_different_location_constraint create-bucket-us-east-2-no-constraint-exc", region="us-east-2",
    ),
    RecordedError(
        "s3", "CreateBucket",
        {"Bucket": "cloudgpu-elsewhere", "CreateBucketConfiguration": {"LocationConstraint": "us-west-1"}},
        "IllegalLocationConstraintException", 400, f"The us-west-1 {_INCOMPATIBLE}",
        f"{_S3}test_different_location_constraint create-bucket-us-east-2-constraint-to-us-west-1", region="us-east-2",
    ),
    RecordedError(
        "s3", "CreateBucket",
        {"Bucket": "cloudgpu-constraint", "CreateBucketConfiguration": {"LocationConstraint": "us-east-1"}},
        "InvalidLocationConstraint", 400, "The specified location-constraint is not valid",
        f"{_S3}test_create_bucket_with_invalid_location_constraint[us-east-1-us-east-1]",
        details={"LocationConstraint": "us-east-1"},
    ),
    RecordedError(
        "s3", "CreateBucket", {"Bucket": "UpperCase-Bucket"}, "InvalidBucketName", 400,
        "The specified bucket is not valid.",
        f"{_S3}test_s3_uppercase_bucket_name", details={"BucketName": "UpperCase-Bucket"},
    ),
    RecordedError(
        "s3", "CreateBucket",
        {"Bucket": "cloudgpu-tags", "CreateBucketConfiguration": {"Tags": [{"Key": "aws:test", "Value": "v"}]}},
        "InvalidTag", 400,
        'User-defined tag keys can\'t start with "aws:". This prefix is reserved for system tags. Remove "aws:" '
        "from your tag keys and try again.",
        f"{_S3_API}TestS3BucketObjectTagging::test_create_bucket_with_tags_exc tags-key-aws-prefix",
    ),
    _no_bucket("DeleteBucket", f"{_S3}test_delete_bucket_no_such_bucket"),
    _no_bucket("DeleteBucketEncryption", f"{_S3_API}TestS3BucketEncryption::test_s3_default_bucket_encryption_exc"),
    _no_bucket("GetBucketEncryption", f"{_S3_API}TestS3BucketEncryption::test_s3_default_bucket_encryption_exc"),
    _no_bucket("GetBucketTagging", f"{_S3_API}TestS3BucketObjectTagging::test_bucket_tagging_exc get-no-bucket-tags"),
    _no_bucket("GetObject", f"{_S3}test_get_object_no_such_bucket", Key="key"),
    _no_bucket("ListObjectVersions", f"{_CUSTODIAN}test_s3_normalize_initstate/s3.ListObjectVersions_1.json"),
    _no_bucket(
        "PutBucketEncryption", f"{_S3_API}TestS3BucketEncryption::test_s3_default_bucket_encryption_exc",
        ServerSideEncryptionConfiguration={"Rules": []},
    ),
    _no_bucket(
        "PutBucketTagging", f"{_S3_API}TestS3BucketObjectTagging::test_bucket_tagging_exc put-no-bucket-tags",
        Tagging={"TagSet": [{"Key": "a", "Value": "b"}]},
    ),
    RecordedError(
        "s3", "GetBucketTagging", {"Bucket": "{bucket}"}, "NoSuchTagSet", 404, "The TagSet does not exist",
        f"{_CUSTODIAN}bedrock_evaluation_job_output_bucket/s3.GetBucketTagging_1.json", given=situations.bucket,
        details={"BucketName": "{bucket}"},
    ),
    RecordedError(
        "s3", "GetObject", {"Bucket": "{bucket}", "Key": "my-key"}, "NoSuchKey", 404,
        "The specified key does not exist.",
        f"{_S3}test_range_key_not_exists", given=situations.bucket, details={"Key": "my-key"},
    ),
    RecordedError(
        "s3", "GetPublicAccessBlock", {"Bucket": "{bucket}"}, "NoSuchPublicAccessBlockConfiguration", 404,
        "The public access block configuration was not found",
        f"{_S3_API}TestS3PublicAccessBlock::test_crud_public_access_block", details={"BucketName": "{bucket}"},
        given=situations.bucket_without_public_access_block,
    ),
    RecordedError(
        "s3", "HeadBucket", {"Bucket": "cloudgpu-no-such-bucket"}, "404", 404, "Not Found",
        f"{_S3}test_create_bucket_head_bucket head_bucket_not_exist",
    ),
    RecordedError(
        "s3", "HeadObject", {"Bucket": "{bucket}", "Key": "my-key"}, "404", 404, "Not Found",
        f"{_S3}test_head_object_fields head-object-404", given=situations.bucket,
    ),
    RecordedError(
        "s3", "PutBucketEncryption", {"Bucket": "{bucket}", "ServerSideEncryptionConfiguration": {"Rules": []}},
        "MalformedXML", 400, _MALFORMED,
        f"{_S3_API}TestS3BucketEncryption::test_s3_default_bucket_encryption_exc put-bucket-encryption-no-rules",
        given=situations.bucket,
    ),
    _bad_tag("put-bucket-tags-invalid-key", "Key1,Key2", "Val1", "The TagKey you have provided is invalid",
             TagKey="Key1,Key2"),
    _bad_tag("put-bucket-tags-invalid-value", "Key1", "Val1,Val2", "The TagValue you have provided is invalid",
             TagKey="Key1", TagValue="Val1,Val2"),
    _bad_tag("put-bucket-tags-aws-prefixed", "aws:prefixed", "Val1",
             "System tags cannot be added/updated by requester", TagKey="aws:prefixed"),
    RecordedError(
        "s3", "PutBucketTagging",
        {"Bucket": "{bucket}", "Tagging": {"TagSet": [{"Key": "Key1", "Value": "Val1"}, {"Key": "Key1",
        "Value": "Val1"}]}},
        "InvalidTag", 400, "Cannot provide multiple Tags with the same key",
        f"{_S3_API}TestS3BucketObjectTagging::test_tagging_validation put-bucket-tags-duplicate-keys",
        given=situations.bucket, details={"TagKey": "Key1"},
    ),
)  # fmt: skip

OTHERS = (
    RecordedError(
        "fsx", "DeleteFileSystem", {"FileSystemId": "{file_system}"}, "BadRequest", 400,
        "Cannot take final backup while {file_system} is in CREATING",
        f"{_CUSTODIAN}test_fsx_delete_file_system_with_error/fsx.DeleteFileSystem_1.json",
        given=situations.file_system_in_creation,
    ),
    RecordedError(
        "scheduler", "GetSchedule", {"Name": "custodian-schedule-ec2-checker"}, "ResourceNotFoundException", 404,
        "Schedule custodian-schedule-ec2-checker does not exist.",
        f"{_CUSTODIAN}test_eb_scheduler/scheduler.GetSchedule_1.json",
    ),
    *(
        _bad_expression(expression)
        for expression in (
            "cron(0 1 * * * *)", "cron(0 dummy ? * MON-FRI *)", "cron(7 20 * * NOT *)", "cron(71 8 1 * ? *)",
            "cron(INVALID)", "cron()", "rate(10 seconds)", "rate(10 years)", "rate()", "rate(10)", "rate(10 minutess)",
            "rate(foo minutes)", "rate(-10 minutes)", "rate( 10 minutes )", " rate(10 minutes)",
            "at(2021-12-31T23:59:59Z)", "at(2021-12-31)",
        )
    ),
)  # fmt: skip

REPORTED = (
    RecordedError(
        "ec2", "AssociateRouteTable", {"RouteTableId": "rtb-0123456789abcdef0", "SubnetId": "{subnet}"},
        "InvalidRouteTableID.NotFound", 400, "The routeTable ID 'rtb-0123456789abcdef0' does not exist",
        "cloudnloud/weekly-cloud-engineer-interview-program#14", given=situations.subnet_in_use,
    ),
    RecordedError(
        "ec2", "CreatePlacementGroup", {"GroupName": "{group}"}, "InvalidPlacementGroup.Duplicate", 400,
        "The placement group '{group}' already exists.", "FDio/csit#179", given=situations.placement_group,
    ),
    RecordedError(
        "ec2", "CreateRoute",
        {"RouteTableId": "{table}", "DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-0770306a339d57474"},
        "InvalidNatGatewayID.NotFound", 400, "The natGateway ID 'nat-0770306a339d57474' does not exist",
        "boto/boto3#779", given=situations.route_table,
    ),
    RecordedError(
        "ec2", "CreateRoute",
        {"RouteTableId": "{table}", "DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "i-09d47501"},
        "InvalidGatewayID.NotFound", 400, "The gateway ID 'i-09d47501' does not exist", "ansible/ansible#7368",
        given=situations.route_table,
    ),
    RecordedError(
        "ec2", "CreateRoute", {"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-0123456789abcdef0"},
        "MissingParameter", 400, "The request must contain the parameter routeTableId",
        "prabhatsharma/kubernetes-the-hard-way-aws#5",
    ),
    RecordedError(
        "ec2", "CreateSubnet", {"VpcId": "vpc-0123456789abcdef0", "CidrBlock": "10.0.1.0/24"}, "InvalidVpcID.NotFound",
        400, "The vpc ID 'vpc-0123456789abcdef0' does not exist",
        "cloudnloud/weekly-cloud-engineer-interview-program#14",
    ),
    RecordedError(
        "ec2", "CreateVolume", {"AvailabilityZone": "us-west-2a", "Size": 50, "VolumeType": "gp2"},
        "InvalidZone.NotFound", 400, "The zone 'us-west-2a' does not exist.", "hashicorp/terraform#6110",
    ),
    RecordedError(
        "ec2", "DeleteSecurityGroup", {"GroupId": "{group}"}, "DependencyViolation", 400,
        "resource {group} has a dependent object", "lianghong/delete_vpc#10", given=situations.security_group_in_use,
    ),
    RecordedError(
        "ec2", "DeleteVpc", {"VpcId": "{vpc}"}, "DependencyViolation", 400,
        "The vpc '{vpc}' has dependencies and cannot be deleted.", "binlab/terraform-aws-vault-ha-raft#57",
        given=situations.subnet_in_use,
    ),
    RecordedError(
        "ec2", "DescribeNatGateways", {"NatGatewayIds": ["nat-0f23ac5d3265a98ff"]}, "NatGatewayNotFound", 400,
        "NAT gateway nat-0f23ac5d3265a98ff was not found", "gruntwork-io/cloud-nuke#325",
    ),
    RecordedError(
        "ec2", "ReleaseAddress", {"AllocationId": "{allocation}"}, "InvalidIPAddress.InUse", 400,
        "Address {address} is in use.", "scylladb/scylla-cluster-tests#2299", given=situations.associated_address,
    ),
    RecordedError(
        "ec2", "RunInstances",
        {
            "MinCount": 1, "MaxCount": 1, "ImageId": "{image}", "InstanceType": "g5.xlarge", "SubnetId": "{subnet}",
            "Placement": {"GroupName": "lll-cadvise-cluster"},
        },
        "InvalidPlacementGroup.Unknown", 400, "The placement group 'lll-cadvise-cluster' is unknown.",
        "cd-athena/LLL-CAdViSE@master README.md", given=situations.launch_parameters,
    ),
    RecordedError(
        "scheduler", "CreateSchedule",
        {
            "Name": "untrusted", "ScheduleExpression": "at(2100-01-01T00:00:00)", "FlexibleTimeWindow": {"Mode": "OFF"},
            "Target": {
                "Arn": "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances",
                "RoleArn": "arn:aws:iam::{account}:role/{role}",
            },
        },
        "ValidationException", 400,
        "The execution role you provide must allow AWS EventBridge Scheduler to assume the role.",
        "aws/aws-sdk-js-v3#6494", given=situations.role,
    ),
)  # fmt: skip
"""Errors of AWS in public reports of their authors. A source is a repository with the number of an issue."""

RECORDED_ERRORS = (*EC2, *IAM, *S3, *OTHERS, *REPORTED)
