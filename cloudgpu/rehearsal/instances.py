"""Keep nodes and instances in step: nodes boot and end in the background, and what they do shows in the API."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import StateReason

from cloudgpu.clock import Clock
from cloudgpu.errors import CloudGpuError
from cloudgpu.rehearsal.keyring import AccessKey
from cloudgpu.rehearsal.node_spec import NodeSpec
from cloudgpu.rehearsal.nodes.values import NodeReport, RoleCredentials
from cloudgpu.rehearsal.records import NodeRecord, records_of
from cloudgpu.rehearsal.strict import offers
from cloudgpu.rehearsal.strict.running import set_state
from cloudgpu.rehearsal.world import NodeHost

_AT_ONCE = 48
_SHOWN_AFTER_END = timedelta(hours=1)
_CREDENTIALS_LAST = timedelta(days=7)
_RETRY_S = 1.0
_log = logging.getLogger(__name__)


class NodeKeeper:
    """Starts, ends and reconciles nodes. Every change of a record happens under `lock` and is saved."""

    def __init__(
        self, host: NodeHost, lock: "threading.RLock", clock: Clock, save: Callable[[], None], role: AccessKey
    ) -> None:
        self._host = host
        self._lock = lock
        self._clock = clock
        self._save = save
        self._pool = ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="node")
        self._role = role
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None

    def boot(self, region: str, instance_ids: list[str]) -> None:
        """Start the nodes of pending instances."""
        self._watch_from_now_on()
        for instance_id in instance_ids:
            self._pool.submit(self._logged, self._boot, region, instance_id)

    def end(self, region: str, instance_ids: list[str]) -> None:
        """End nodes; what follows depends on the state that the instance is in."""
        for instance_id in instance_ids:
            self._pool.submit(self._logged, self._end, region, instance_id)

    def reboot(self, region: str, instance_ids: list[str]) -> None:
        """Boot the nodes of running instances again."""
        for instance_id in instance_ids:
            self._pool.submit(self._logged, self._reboot, region, instance_id)

    def reconcile(self) -> None:
        """After a restart: finish what was under way, restart lost nodes as a reboot would, end strangers."""
        self._watch_from_now_on()
        reports = {report.instance_id: report for report in self._host.list()}
        with self._lock:
            known = {instance.id: (region, instance) for region, instance in _all_instances()}
            for instance_id, (region, instance) in known.items():
                self._resume(region, instance, reports.get(instance_id))
            strangers = [name for name in reports if name not in known]
            ended = [name for name, (_, instance) in known.items() if instance.state == "terminated"]
        for instance_id in strangers:
            self._pool.submit(self._logged, self._host_forget, "", instance_id)
        for instance_id in [name for name in ended if name in reports and reports[name].state == "running"]:
            self._pool.submit(self._logged, self._host_stop, "", instance_id)

    def _watch_from_now_on(self) -> None:
        """Follow power-offs once there are nodes; before, no node host need run."""
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, daemon=True, name="events")
            self._watcher.start()

    def _watch(self) -> None:
        """Follow power-offs until the server stops."""
        while not self._stopping.is_set():
            try:
                for event in self._host.events():
                    self._logged(self._powered_off, event.reason, event.instance_id)
            except (CloudGpuError, OSError) as err:
                _log.warning("lost the node host's events: %s", err)
            self._stopping.wait(_RETRY_S)

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopping.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def forget_old(self) -> None:
        """Drop terminated instances an hour after their end, as AWS does."""
        before = self._clock.now() - _SHOWN_AFTER_END
        with self._lock:
            gone = [name for backend in _regions() for name in _forget(backend, before)]
            if gone:
                self._save()
        for instance_id in gone:
            self._pool.submit(self._logged, self._host_forget, "", instance_id)

    def _logged(self, work: Callable[[str, str], None], first: str, instance_id: str) -> None:
        try:
            work(first, instance_id)
        except Exception:
            _log.exception("%s of %s failed", work.__name__, instance_id)
            raise

    def _boot(self, region: str, instance_id: str) -> None:
        with self._lock:
            instance, record = _find(region, instance_id)
            if instance.state != "pending":
                return
            spec = _spec(region, instance, record)
        try:
            if spec.role:
                self._host.give_credentials(self._credentials())
            started = self._host.start(spec)
        except CloudGpuError as err:
            _log.exception("node of %s did not start", instance_id)
            self._fail(region, instance_id, err.message)
            return
        self._came_up(region, instance_id, started.address, started.port, started.host_key)

    def _credentials(self) -> RoleCredentials:
        """The role key for nodes; the session token is for show, the signature decides."""
        return RoleCredentials(
            access_key_id=self._role.access_key_id,
            secret_access_key=self._role.secret_access_key,
            session_token="rehearsal",
            expires_at=self._clock.now() + _CREDENTIALS_LAST,
        )

    def _came_up(self, region: str, instance_id: str, address: str, port: int, host_key: str) -> None:
        with self._lock:
            instance, record = _find(region, instance_id)
            record.address, record.port, record.host_key = address, port, host_key
            if instance.state == "pending":
                _readdress(instance, address)
                set_state(instance, "running")
                self._save()
                return
        self.end(region, [instance_id])  # terminated while it booted

    def _fail(self, region: str, instance_id: str, why: str) -> None:
        with self._lock:
            instance, record = _find(region, instance_id)
            self._terminate(instance, record, "Server.InternalError", f"Server.InternalError: {why}")

    def _end(self, region: str, instance_id: str) -> None:
        with self._lock:
            stopping = _find(region, instance_id)[0].state == "stopping"
        (self._host.power_off if stopping else self._host.stop)(instance_id)
        with self._lock:
            instance, record = _find(region, instance_id)
            if instance.state == "shutting-down":
                why = "Client.UserInitiatedShutdown"
                self._terminate(instance, record, why, f"{why}: User initiated shutdown")
            elif instance.state == "stopping":
                set_state(instance, "stopped")
                self._save()

    def _powered_off(self, reason: str, instance_id: str) -> None:
        """A node ended itself: the launch's shutdown behaviour decides what becomes of the instance."""
        with self._lock:
            found = next(((r, i) for r, i in _all_instances() if i.id == instance_id), None)
            if found is None or found[1].state not in ("pending", "running"):
                return
            region, instance = found
            ends = instance.instance_initiated_shutdown_behavior == "terminate"
            set_state(instance, "shutting-down" if ends else "stopping")
            instance.state_reason = StateReason(
                "Client.InstanceInitiatedShutdown: Instance initiated shutdown", "Client.InstanceInitiatedShutdown"
            )
            _log.info("%s powered itself off: %s", instance_id, reason)
            self._save()
        self._end(region, instance_id)

    def _reboot(self, _region: str, instance_id: str) -> None:
        self._host.reboot(instance_id)

    def _host_forget(self, _region: str, instance_id: str) -> None:
        self._host.forget(instance_id)

    def _host_stop(self, _region: str, instance_id: str) -> None:
        self._host.stop(instance_id)

    def _terminate(self, instance: Any, record: NodeRecord, code: str, message: str) -> None:  # noqa: ANN401
        own_reason = instance.state_reason
        volumes = [device.volume_id for _, device in instance.get_block_device_mapping]
        interfaces = [interface.id for interface in instance.nics.values()]
        _readdress(instance, record.original_address)
        instance.terminate()
        backend = instance.ec2_backend
        for gone in (name for name in volumes + interfaces if name not in backend.volumes and name not in backend.enis):
            backend.tags.pop(gone, None)
        set_state(instance, "terminated")
        kept = own_reason.code == "Client.InstanceInitiatedShutdown"
        instance.state_reason = own_reason if kept else StateReason(message, code)
        record.ended = self._clock.now()
        self._save()

    def _resume(self, region: str, instance: Any, report: NodeReport | None) -> None:  # noqa: ANN401
        if instance.state in ("shutting-down", "stopping"):
            self.end(region, [instance.id])
        elif instance.state == "pending":
            self.boot(region, [instance.id])
        elif instance.state == "running" and report is None:
            set_state(instance, "pending")
            self.boot(region, [instance.id])
        elif instance.state == "running" and report is not None and report.state == "off":
            self._pool.submit(self._logged, self._powered_off, report.reason, instance.id)


def _regions() -> list[Any]:
    return [backend for _, _, backend in list(ec2_backends.iter_backends())]


def _all_instances() -> Iterator[tuple[str, Any]]:
    for backend in _regions():
        for instance in backend.all_instances():
            yield str(backend.region_name), instance


def _find(region: str, instance_id: str) -> tuple[Any, NodeRecord]:
    backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
    return backend.get_instance(instance_id), records_of(backend).nodes[instance_id]


def _spec(region: str, instance: Any, record: NodeRecord) -> NodeSpec:  # noqa: ANN401
    name, count, memory_mib = offers.gpus(str(instance.instance_type))
    pair = instance.ec2_backend.key_pairs.get(instance.key_name)
    return NodeSpec(
        instance_id=instance.id,
        instance_type=str(instance.instance_type),
        region=region,
        zone=str(instance.placement.zone),
        image_id=str(instance.image_id),
        address="",
        user=record.user,
        authorized_keys=(pair.public_key.strip(),) if pair else (),
        user_data=record.image_user_data,
        gpu=name,
        gpus=count,
        gpu_memory_mib=memory_mib,
        efa_interfaces=record.efa_interfaces,
        spot=instance.lifecycle == "spot",
        role=record.role,
    )


def _readdress(instance: Any, address: str) -> None:  # noqa: ANN401
    """Show the node's own loopback address, private and public at once; only it can be reached."""
    primary = instance.nics.get(0)
    if primary is None or not address:
        return
    primary.private_ip_address = address
    for row in primary.private_ip_addresses:
        if row.get("Primary"):
            row["PrivateIpAddress"] = address
    if primary.public_ip:
        primary.public_ip = address


def _forget(backend: Any, before: datetime) -> list[str]:  # noqa: ANN401
    records = records_of(backend)
    old = {name for name, record in records.nodes.items() if record.ended is not None and record.ended < before}
    for reservation_id in [name for name, row in backend.reservations.items() if _only(row.instances, old)]:
        del backend.reservations[reservation_id]
    left = {instance.id for instance in backend.all_instances()}
    gone = sorted(old - left)
    for instance_id in gone:
        backend.tags.pop(instance_id, None)
        del records.nodes[instance_id]
    return gone


def _only(instances: Iterable[Any], old: set[str]) -> bool:
    return all(instance.id in old for instance in instances)
