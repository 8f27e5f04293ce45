"""The backend of the rehearsal cloud: the AWS backend, connected to an endpoint on this machine that simulates AWS.

A command starts the cloud's server when it first uses the account (`AwsBackend.cloud`): `train` and `up` do so while
they plan, before they ask for confirmation. `cloudgpu/rehearsal/__init__.py` describes what the server does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudgpu.backends.aws.backend import AwsBackend, backend_of

if TYPE_CHECKING:
    # Only for annotations: an offline plan must not import boto3.
    from collections.abc import Mapping, Sequence, Set

    from cloudgpu.aws.ec2.instances import Instance
    from cloudgpu.backends.aws.account import AwsAccount
    from cloudgpu.backends.environment import BackendEnvironment
    from cloudgpu.rehearsal.client import RehearsalClient


def open_backend(environment: BackendEnvironment) -> AwsBackend:
    """Return the backend of this state home's rehearsal cloud. The backend starts the cloud on first use."""
    return backend_of("rehearsal", "the rehearsal cloud", environment, lambda: connect_rehearsal(environment))


def connect_rehearsal(environment: BackendEnvironment) -> AwsAccount:
    """Connect to the rehearsal cloud of this state home, starting it if necessary."""
    from cloudgpu.aws.service_model import install_request_checks  # noqa: PLC0415 - these import boto3
    from cloudgpu.aws.session.session import CloudEndpoint  # noqa: PLC0415
    from cloudgpu.backends.aws.account import AwsAccount, CloudTarget  # noqa: PLC0415
    from cloudgpu.rehearsal.client import nodes  # noqa: PLC0415

    install_request_checks()  # without effect unless a test has set the environment variable
    cloud = start_rehearsal(environment)
    connection = CloudEndpoint(cloud.url, cloud.access_key_id, cloud.secret_access_key)

    def addresses_of(found: Sequence[Instance], _private: Set[str]) -> Mapping[str, tuple[str, int]]:
        ids = {instance.id for instance in found}
        known = [node for node in nodes(cloud) if node.instance_id in ids]
        return {node.instance_id: (node.address, node.port) for node in known if node.address and node.port}

    # The access key identifies the cloud: unlike the port, it is unique to the state home and survives restarts.
    where = CloudTarget("rehearsal", connection, f"rehearsal:{cloud.access_key_id}", environment.environ)
    return AwsAccount(where, addresses_of, environment.settings, environment.clock, environment.calls)


def start_rehearsal(environment: BackendEnvironment) -> RehearsalClient:
    """Return the client of this state home's rehearsal cloud, after starting the cloud if it is not running."""
    from cloudgpu.rehearsal.client import ensure_running  # noqa: PLC0415 - commands that start no cloud do not need it

    settings, idle_minutes = environment.settings, float(environment.settings.rehearsal_idle_minutes)
    return ensure_running(
        environment.writable_home(), environment.clock, envs=settings.env_cache, idle_minutes=idle_minutes
    )
