"""The backend of the rehearsal cloud: the AWS backend, connected to an endpoint on this machine that simulates AWS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudgpu.backends.aws.backend import AwsBackend, backend_of

if TYPE_CHECKING:
    # Only for annotations: an offline plan must not import boto3.
    from cloudgpu.backends.aws.account import AwsAccount
    from cloudgpu.backends.environment import BackendEnvironment
    from cloudgpu.rehearsal.client import RehearsalClient


def open_backend(environment: BackendEnvironment) -> AwsBackend:
    """Return the backend of this state home's rehearsal cloud. The backend starts the cloud on first use."""

    def open_cloud() -> AwsAccount:
        from cloudgpu.backends.aws.rehearsal_account import connect_rehearsal  # noqa: PLC0415 - imports boto3

        home = environment.writable_home()
        return connect_rehearsal(environment.settings, home, environment.environ, environment.clock, environment.calls)

    return backend_of("rehearsal", "the rehearsal cloud", environment, open_cloud)


def start_rehearsal(environment: BackendEnvironment) -> RehearsalClient:
    """Return the client of this state home's rehearsal cloud, after starting the cloud if it is not running."""
    from cloudgpu.backends.aws import rehearsal_account  # noqa: PLC0415 - imports boto3

    return rehearsal_account.start_rehearsal(environment.settings, environment.writable_home(), environment.clock)
