"""Connect to the rehearsal cloud of a state home, which is started if it is not running."""

from collections.abc import Mapping, Sequence, Set

from cloudgpu.aws.ec2.instances import Instance
from cloudgpu.aws.service_model.values import install_request_checks
from cloudgpu.aws.session.session import CloudEndpoint
from cloudgpu.backends.aws.account import AwsAccount, CloudTarget
from cloudgpu.backends.environment import ApiCallLog
from cloudgpu.clock import Clock
from cloudgpu.paths import Home
from cloudgpu.rehearsal import client as rehearsal
from cloudgpu.settings import Settings


def connect_rehearsal(
    settings: Settings, home: Home, environ: Mapping[str, str], clock: Clock, calls: ApiCallLog
) -> AwsAccount:
    """Connect to the rehearsal cloud of this state home, starting it if necessary."""
    install_request_checks()  # without effect unless a test has set the environment variable
    cloud = start_rehearsal(settings, home, clock)
    endpoint = CloudEndpoint(cloud.url, cloud.access_key_id, cloud.secret_access_key)

    def reach(found: Sequence[Instance], _private: Set[str]) -> Mapping[str, tuple[str, int]]:
        ids = {instance.id for instance in found}
        nodes = [node for node in rehearsal.nodes(cloud) if node.instance_id in ids]
        return {node.instance_id: (node.address, node.port) for node in nodes if node.address and node.port}

    # The access key identifies the cloud: unlike the port, it is unique to the state home and survives restarts.
    where = CloudTarget("rehearsal", endpoint, f"rehearsal:{cloud.access_key_id}", environ)
    return AwsAccount(where, reach, settings, clock, calls)


def start_rehearsal(settings: Settings, home: Home, clock: Clock) -> rehearsal.RehearsalClient:
    """Start the rehearsal cloud of this state home if it is not running."""
    return rehearsal.ensure_running(
        home, clock, envs=settings.env_cache, idle_minutes=float(settings.rehearsal_idle_minutes)
    )
