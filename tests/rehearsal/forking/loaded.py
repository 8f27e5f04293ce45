"""What a process imports and reads before it forks commands or rehearsal servers, so that each fork finds it done."""

import functools
import gc
import importlib
import sys

COMMANDS = (
    "cloudgpu.cli.main",
    "cloudgpu.cli.context",
    "cloudgpu.backends.aws.clusters.create",
    "cloudgpu.app.runs.train",
    "cloudgpu.backends.aws.cloud",
    "cloudgpu.backends.aws.storage.manage",
    "cloudgpu.catalog.catalog",
    "cloudgpu.ledger.store",
    "cloudgpu.engine.direct.engine",
    "cloudgpu.ssh.keys",
    "boto3.session",
    "botocore.endpoint",
    "botocore.httpsession",
    "botocore.regions",
    "pulumi_aws",
    "sqlite3",
    "importlib.readers",
    "encodings.idna",
)
SERVERS = (
    "cloudgpu.rehearsal.server.main",
    "cloudgpu.rehearsal.aws_api.simulated_cloud",
    "cloudgpu.rehearsal.nodes.host",
)
PROVIDED = ("ec2", "iam", "scheduler", "ssm", "ebs", "efs", "fsx", "s3")
"""Modules of pulumi_aws that the programs use; each is loaded when it is first looked into."""
SERVICES = ("ec2", "iam", "scheduler", "ssm", "sts", "efs", "fsx", "s3", "pricing", "service-quotas")


def load(*modules):
    """Import these beside what every command needs, and read the descriptions of AWS's services once for all."""
    for name in (*COMMANDS, *modules):
        importlib.import_module(name)
    for row in sys.modules["cloudgpu.cli.main"].COMMANDS:
        row.load()
    for name in PROVIDED:
        hasattr(getattr(sys.modules["pulumi_aws"], name), "any attribute")
    sessions = sys.modules["cloudgpu.aws.session.boto_session"]
    for loader in (importlib.import_module("botocore.loaders").JSONFileLoader, sessions.ServiceModelFiles):
        loader.load_file = functools.cache(loader.load_file)
        loader.__hash__, loader.__eq__ = (lambda _: 0), (lambda *_: True)
    key = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    for name in SERVICES:
        sys.modules["boto3.session"].Session(region_name="us-east-1", **key).client(name)  # as servers read them
        sessions.open_boto_session(region_name="us-east-1", **key).client(name)  # and as commands do
    gc.freeze()
