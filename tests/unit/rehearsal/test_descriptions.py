"""Botocore's model of EC2 is loaded once per process and shared by all loaders; other models are not shared."""

import subprocess
import sys

SHARES_EC2 = """
from botocore.loaders import Loader
from cloudgpu.rehearsal.server.main import share_ec2_model

load = lambda: Loader().load_service_model("ec2", "service-2")
apart = load()
share_ec2_model()
shared = [load(), load()]
assert shared[0] is shared[1]
assert shared[0] is not apart
assert shared[0]["metadata"] == apart["metadata"]
"""

LEAVES_S3 = """
from botocore.loaders import Loader
from cloudgpu.rehearsal.server.main import share_ec2_model

load = lambda: Loader().load_service_model("s3", "service-2")
share_ec2_model()
load()["operations"]["CreateBucket"]["http"]["requestUri"] = ""
assert load()["operations"]["CreateBucket"]["http"]["requestUri"] == "/{Bucket}"
"""


def _run_in_new_process(source):
    """Run a program where no other test has changed the loaders."""
    subprocess.run([sys.executable, "-c", source], check=True)


def test_botocore_loaders_share_the_model_of_ec2():
    _run_in_new_process(SHARES_EC2)


def test_client_of_s3_does_not_change_the_model_of_the_next_loader():
    """The client removes the bucket from its model's paths with the first call."""
    _run_in_new_process(LEAVES_S3)
