"""The table of accepted EC2 filters: extracted from botocore's documentation, and applied to requests."""

import importlib.util
import json
from pathlib import Path

import pytest

from cloudgpu.rehearsal.aws_api.dispatch import AwsError
from cloudgpu.rehearsal.aws_api.ec2.backend import reject_unknown_filters

SCRIPT = Path(__file__).resolve().parents[3] / "scripts/filter_names.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("filter_names", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_committed_table_is_what_the_installed_botocore_documents(script):
    assert json.loads(script.TABLE.read_text("utf-8")) == script.table(), "run scripts/filter_names.py --write"


def test_filters_are_read_from_the_outer_list_with_their_aliases_and_tags(script):
    documentation = (
        "<p>The filters.</p> <ul> <li> <p> <code>availability-zone</code> - The zone. You can also use "
        "<code>availabilityZone</code> as the filter name.</p> </li> <li> <p> <code>state</code> - One of:</p> <ul> "
        "<li> <p> <code>active</code>- In use.</p> </li> </ul> </li> <li> <p> <code>tag</code>:&lt;key&gt; - A tag, "
        "for example <code>tag:Owner</code>.</p> </li> <li> <p> <code>tag-key </code> - A key.</p> </li> </ul>"
    )
    assert script.filter_names(documentation) == ["availability-zone", "availabilityZone", "state", "tag-key", "tag:*"]


@pytest.mark.parametrize(
    ("action", "name"),
    [
        ("DescribeInstances", "public-ip"),  # boto/boto3 issue 1299
        ("DescribeInstanceStatus", "tag:Name"),  # aws/aws-cli issue 7225
        ("DescribeCapacityReservations", "capacity-reservation-id"),
        ("DescribeFleets", "tag:Name"),
    ],
)
def test_filter_that_the_operation_lacks_is_rejected(action, name):
    with pytest.raises(AwsError) as err:
        reject_unknown_filters(action, {"Filters": [{"Name": name, "Values": ["x"]}]})
    assert (err.value.code, err.value.message) == ("InvalidParameterValue", f"The filter '{name}' is invalid")


def test_documented_filters_and_operations_without_documented_filters_pass():
    reject_unknown_filters("DescribeInstances", {"Filters": [{"Name": "tag:any key", "Values": ["x"]}]})
    reject_unknown_filters("DescribeNatGateways", {"Filter": [{"Name": "state", "Values": ["available"]}]})
    reject_unknown_filters("DescribeIpams", {"Filters": [{"Name": "anything", "Values": ["x"]}]})
    reject_unknown_filters("DescribeInstances", {})
