"""Synchronize nodes and instances: boot and stop nodes in the background, and update the instances' states."""

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

from cloudgpu.errors import CloudGpuError
from cloudgpu.rehearsal.aws_api.ec2 import instance_store
from cloudgpu.rehearsal.aws_api.ec2.instances import set_state
from cloudgpu.rehearsal.aws_api.ec2.reachability import send_access
from cloudgpu.rehearsal.aws_api.interfaces import Parts
from cloudgpu.rehearsal.aws_api.records import records_of
from cloudgpu.rehearsal.nodes.servers.metadata import SPOT_RECLAIM_REASON
from cloudgpu.rehearsal.nodes.values import NodeReport, RoleCredentials

_MAX_CONCURRENT = 48
_VISIBLE_AFTER_TERMINATION = timedelta(hours=1)
_CREDENTIALS_LIFETIME = timedelta(days=7)
_PLACEHOLDER_TOKEN = "simulated"  # noqa: S105 - not a secret
_RETRY_S = 1.0
_STOP_STATES = ("shutting-down", "terminated", "stopping", "stopped")
_log = logging.getLogger(__name__)

Work = Callable[[str, str], None]


class NodeKeeper:
    """Background worker that boots, stops and reconciles nodes.

    Changes that nodes make are saved with a short delay, when the server polls `changed`. After a crash, an instance
    may therefore show an old state until `reconcile` updates it. Changes that API callers request are saved by the
    endpoint, before it sends the response.
    """

    def __init__(self, parts: Parts) -> None:
        self._host = parts.host
        self._lock = parts.lock
        self._clock = parts.clock
        self._role = parts.role
        self._behaviour = parts.behaviour
        self._pool = ThreadPoolExecutor(max_workers=_MAX_CONCURRENT, thread_name_prefix="node")
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self._dirty = False

    def boot(self, region: str, instance_ids: Iterable[str]) -> None:
        """Start the nodes of pending instances."""
        self._start_watcher()
        self._submit(self._boot, region, instance_ids)

    def end(self, region: str, instance_ids: Iterable[str]) -> None:
        """Stop nodes; each instance's state determines whether the node's disk is kept."""
        self._submit(self._end, region, instance_ids)

    def reboot(self, region: str, instance_ids: Iterable[str]) -> None:
        """Reboot the nodes of running instances."""
        self._submit(self._reboot, region, instance_ids)

    def reconcile(self) -> None:
        """After a server restart, finish pending work, boot lost nodes again, and remove nodes without an instance."""
        self._start_watcher()
        reports = {report.instance_id: report for report in self._host.list()}
        with self._lock:
            known = {str(instance.id): instance for instance in instance_store.all_instances()}
            for instance_id, instance in known.items():
                self._resume(instance, reports.get(instance_id))
        self._submit(self._forget, "", [name for name in reports if name not in known])

    def changed(self) -> bool:
        """Return True if an instance has changed, other than by an API call, since this method was last called."""
        with self._lock:
            dirty, self._dirty = self._dirty, False
            return dirty

    def mark_changed(self) -> None:
        """Make the next call to `changed` return True, so that the state is saved."""
        with self._lock:
            self._dirty = True

    def remove_old_instances(self) -> None:
        """Remove instances from the API an hour after their termination, as AWS does."""
        before = self._clock.now() - _VISIBLE_AFTER_TERMINATION
        with self._lock:
            forgotten = [
                name
                for backend in instance_store.backends()
                for name in instance_store.remove_terminated(backend, before)
            ]
            self._dirty = self._dirty or bool(forgotten)
        self._submit(self._forget, "", forgotten)

    def terminate_all(self, at: datetime) -> list[str]:
        """Mark every instance as terminated and return their IDs; the caller must shut down the node host."""
        with self._lock:
            running = [instance for instance in instance_store.all_instances() if instance.state != "terminated"]
            for instance in running:
                instance_store.terminate(instance, records_of(instance.ec2_backend).nodes[instance.id], at)
            self._dirty = self._dirty or bool(running)
            return [str(instance.id) for instance in running]

    def close(self) -> None:
        """Stop accepting work and cancel queued work."""
        self._stopping.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, work: Work, region: str, instance_ids: Iterable[str]) -> None:
        for instance_id in instance_ids:
            self._pool.submit(self._retry_until_done, work, region, instance_id)

    def _retry_until_done(self, work: Work, region: str, instance_id: str) -> None:
        """Run the work, and retry it after a `CloudGpuError`, because the node host may be restarting."""
        while not self._stopping.is_set():
            try:
                work(region, instance_id)
            except CloudGpuError as err:
                _log.warning("%s for %s failed: %s; retrying in %.0f s", work.__name__, instance_id, err, _RETRY_S)
                self._stopping.wait(_RETRY_S)
            except Exception:
                _log.exception("%s for %s failed", work.__name__, instance_id)
                raise
            else:
                return

    def _start_watcher(self) -> None:
        """Start watching for power-off events. Call this only once a node exists, because it starts the node host."""
        with self._lock:
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, daemon=True, name="events")
                self._watcher.start()

    def _watch(self) -> None:
        while not self._stopping.is_set():
            try:
                for event in self._host.events():
                    _log.info("%s powered itself off: %s", event.instance_id, event.reason)
                    interrupted = event.reason == SPOT_RECLAIM_REASON
                    work = self._interrupted if interrupted else self._powered_off
                    self._submit(work, "", [event.instance_id])
            except (CloudGpuError, OSError) as err:
                _log.warning("lost the node host's event stream: %s", err)
            self._stopping.wait(_RETRY_S)

    def _boot(self, region: str, instance_id: str) -> None:
        with self._lock:
            found = instance_store.find(region, instance_id)
            if found is None or found[0].state != "pending":
                return
            spec = instance_store.boot_spec(*found)
        reason = self._behaviour.failure_at_start()
        if reason:
            self._fail(region, instance_id, instance_store.start_failure_text(reason), reason)
            return
        try:
            if spec.role:
                self._host.set_credentials(self._credentials())
            started = self._host.start(spec)
        except CloudGpuError as err:
            _log.exception("the node of %s did not start", instance_id)
            self._fail(region, instance_id, err.message)
            return
        with self._lock:
            # Look up the instance again: if saving a call failed, the server restored the previous state.
            found = instance_store.find(region, instance_id)
            still_pending = found is not None and found[0].state == "pending"
            if found is not None and still_pending:
                instance, record = found
                instance_store.mark_running(instance, record, started.address, started.port, started.host_key)
                send_access(self._host, instance.ec2_backend, records_of(instance.ec2_backend))
                self._dirty = True
        if not still_pending:
            self._end(region, instance_id)  # terminated during boot: the earlier stop may have found no node

    def _credentials(self) -> RoleCredentials:
        """Return the nodes' role credentials. The session token is a placeholder; only the signature is verified."""
        return RoleCredentials(
            access_key_id=self._role.access_key_id,
            secret_access_key=self._role.secret_access_key,
            session_token=_PLACEHOLDER_TOKEN,
            expires_at=self._clock.now() + _CREDENTIALS_LIFETIME,
        )

    def _fail(self, region: str, instance_id: str, reason: str, code: str = instance_store.INTERNAL_ERROR) -> None:
        with self._lock:
            found = instance_store.find(region, instance_id)
            if found is not None and found[0].state != "terminated":
                instance_store.terminate(*found, self._clock.now(), failure=reason, code=code)
                self._dirty = True

    def _end(self, region: str, instance_id: str) -> None:
        with self._lock:
            found = instance_store.find(region, instance_id)
            if found is None or found[0].state not in _STOP_STATES:
                return  # the call that requested the stop was undone because it could not be saved
            work = self._host.power_off if found[0].state in ("stopping", "stopped") else self._host.stop
        work(instance_id)
        with self._lock:
            found = instance_store.find(region, instance_id)
            if found is None:
                return
            instance, record = found
            if instance.state == "shutting-down" and not record.lingers:
                instance_store.terminate(instance, record, self._clock.now())
            elif instance.state == "stopping":
                set_state(instance, "stopped")
            self._dirty = True

    def _powered_off(self, _region: str, instance_id: str) -> None:
        self._mark_and_stop(instance_id, instance_store.stop_after_power_off)

    def _interrupted(self, _region: str, instance_id: str) -> None:
        self._mark_and_stop(instance_id, instance_store.terminate_interrupted)

    def _mark_and_stop(self, instance_id: str, mark: Callable[[Any], None]) -> None:
        with self._lock:
            instance = instance_store.find_in_any_region(instance_id)
            if instance is None or instance.state not in ("pending", "running"):
                return
            mark(instance)
            region = instance_store.region_of(instance)
        self.end(region, [instance_id])

    def _reboot(self, _region: str, instance_id: str) -> None:
        self._host.reboot(instance_id)

    def _forget(self, _region: str, instance_id: str) -> None:
        self._host.forget(instance_id)

    def _resume(self, instance: Any, report: NodeReport | None) -> None:  # noqa: ANN401 - moto's instance
        region, state = instance_store.region_of(instance), str(instance.state)
        node_running = report is not None and report.state == "running"
        if state in ("shutting-down", "stopping") or (state in ("terminated", "stopped") and node_running):
            self.end(region, [instance.id])
        elif state == "pending":
            self.boot(region, [instance.id])
        elif state == "running" and report is None:
            set_state(instance, "pending")
            self.boot(region, [instance.id])
        elif state == "running" and not node_running:
            self._submit(self._powered_off, "", [instance.id])
