"""Modules and data that a fork server loads before it forks, so that no forked process has to load them."""

import functools
import gc
import importlib
import sys

COMMANDS = (
    "cloudgpu.cli.main",
    "cloudgpu.cli.context",
    "cloudgpu.backends.aws.clusters.create",
    "cloudgpu.backends.aws.clusters.operations",
    "cloudgpu.backends.aws.session_manager",
    "cloudgpu.backends.hosts.backend",
    "cloudgpu.backends.hosts.operations",
    "cloudgpu.backends.hosts.scan",
    "cloudgpu.backends.aws.sweep",
    "cloudgpu.cli.commands.train_run",
    "cloudgpu.cli.terminal.live_view",
    "cloudgpu.app.runs.train",
    "cloudgpu.backends.aws.account",
    "cloudgpu.aws.service_model",
    "cloudgpu.rehearsal.client",
    "cloudgpu.backends.aws.storage_manager",
    "cloudgpu.catalog.catalog",
    "cloudgpu.ledger.store",
    "cloudgpu.engine.direct.engine",
    "cloudgpu.ssh.keys",
    "boto3.session",
    "botocore.endpoint",
    "botocore.httpsession",
    "botocore.regions",
    "pulumi_aws",
    "sqlalchemy.dialects.sqlite",
    "sqlite3",
    "typer._adapters",
    "typer._click.decorators",
    "_strptime",
    "importlib.readers",
    "encodings.idna",
)
SERVERS = (
    "cloudgpu.rehearsal.server.main",
    "cloudgpu.rehearsal.aws_api.simulated_cloud",
    "cloudgpu.rehearsal.nodes.host",
)
PULUMI_AWS_MODULES = ("ec2", "iam", "scheduler", "ssm", "ebs", "efs", "fsx", "s3")
"""Modules of pulumi_aws that the programs use. Each is loaded when one of its attributes is first accessed."""
SERVICES = ("ec2", "iam", "scheduler", "ssm", "sts", "efs", "fsx", "s3", "pricing", "service-quotas")


def preload(*modules):
    """Import the modules that every command needs and the given ones, and cache botocore's service models."""
    for name in (*COMMANDS, *modules):
        importlib.import_module(name)
    for row in sys.modules["cloudgpu.cli.main"].COMMANDS:
        row.load()
    for name in PULUMI_AWS_MODULES:
        hasattr(getattr(sys.modules["pulumi_aws"], name), "any attribute")
    sessions = sys.modules["cloudgpu.aws.session.credentials"]
    for loader in (importlib.import_module("botocore.loaders").JSONFileLoader, sessions.ServiceModelFiles):
        loader.load_file = functools.cache(loader.load_file)
        loader.__hash__, loader.__eq__ = (lambda _: 0), (lambda *_: True)
    key = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    for name in SERVICES:
        sys.modules["boto3.session"].Session(region_name="us-east-1", **key).client(name)  # as servers load the model
        sessions.open_isolated_session("a", "b", "us-east-1").client(name)  # as commands load the model
    gc.freeze()
