"""Synchronize nodes and instances: nodes boot and stop in the background, and the API shows their changes."""

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from cloudgpu.errors import CloudGpuError
from cloudgpu.rehearsal.aws_api.ec2 import instance_store as book
from cloudgpu.rehearsal.aws_api.ec2.reachability import tell
from cloudgpu.rehearsal.aws_api.interfaces import Parts
from cloudgpu.rehearsal.aws_api.launch.run_instances import set_state
from cloudgpu.rehearsal.nodes.servers.spot_notices import SPOT_END
from cloudgpu.rehearsal.nodes.values import NodeReport, RoleCredentials
from cloudgpu.rehearsal.state.records import records_of

_AT_ONCE = 48
_SHOWN_AFTER_END = timedelta(hours=1)
_CREDENTIALS_LAST = timedelta(days=7)
_SHOWN_TOKEN = "simulated"  # noqa: S105 - no secret
_RETRY_S = 1.0
_ENDING = ("shutting-down", "terminated", "stopping", "stopped")
_log = logging.getLogger(__name__)

Work = Callable[[str, str], None]


class NodeKeeper:
    """Boots, stops and reconciles nodes.

    Changes made by nodes are saved a little later, through `changed`. After a crash an instance may show its former
    state until `reconcile` updates it. Changes requested by callers are saved elsewhere, before the response.
    """

    def __init__(self, parts: Parts) -> None:
        self._host = parts.host
        self._lock = parts.lock
        self._clock = parts.clock
        self._role = parts.role
        self._pool = ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="node")
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self._dirty = False

    def boot(self, region: str, instance_ids: Iterable[str]) -> None:
        """Start the nodes of pending instances."""
        self._watch_from_now_on()
        self._submit(self._boot, region, instance_ids)

    def end(self, region: str, instance_ids: Iterable[str]) -> None:
        """Stop nodes; the instance's state decides between stop and terminate."""
        self._submit(self._end, region, instance_ids)

    def reboot(self, region: str, instance_ids: Iterable[str]) -> None:
        """Boot the nodes of running instances again."""
        self._submit(self._reboot, region, instance_ids)

    def reconcile(self) -> None:
        """After a restart: finish pending work, reboot lost nodes, and stop unknown ones."""
        self._watch_from_now_on()
        reports = {report.instance_id: report for report in self._host.list()}
        with self._lock:
            known = {str(instance.id): instance for instance in book.all_instances()}
            for instance_id, instance in known.items():
                self._resume(instance, reports.get(instance_id))
        self._submit(self._forget, "", [name for name in reports if name not in known])

    def changed(self) -> bool:
        """Return True if nodes changed anything since the last call."""
        with self._lock:
            dirty, self._dirty = self._dirty, False
            return dirty

    def note_change(self) -> None:
        """Make `changed` return True once more, because a save failed or is needed."""
        with self._lock:
            self._dirty = True

    def forget_old(self) -> None:
        """Drop instances an hour after their termination, as AWS does."""
        before = self._clock.now() - _SHOWN_AFTER_END
        with self._lock:
            gone = [name for backend in book.backends() for name in book.forget(backend, before)]
            self._dirty = self._dirty or bool(gone)
        self._submit(self._forget, "", gone)

    def terminate_all(self) -> None:
        """Mark every instance as terminated; the caller shuts down the node host."""
        with self._lock:
            for instance in [item for item in book.all_instances() if item.state != "terminated"]:
                record = records_of(instance.ec2_backend).nodes[instance.id]
                book.terminate(instance, record, self._clock.now())

    def close(self) -> None:
        """Accept no more work."""
        self._stopping.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, work: Work, region: str, instance_ids: Iterable[str]) -> None:
        for instance_id in instance_ids:
            self._pool.submit(self._persistently, work, region, instance_id)

    def _persistently(self, work: Work, region: str, instance_id: str) -> None:
        """Retry until it works: an instance must not stay shutting-down because the node host was restarting."""
        while not self._stopping.is_set():
            try:
                work(region, instance_id)
            except CloudGpuError as err:
                _log.warning("%s of %s: %s; again in %.0f s", work.__name__, instance_id, err, _RETRY_S)
                self._stopping.wait(_RETRY_S)
            except Exception:
                _log.exception("%s of %s failed", work.__name__, instance_id)
                raise
            else:
                return

    def _watch_from_now_on(self) -> None:
        """Follow power-offs once there are nodes; before that no node host needs to run."""
        with self._lock:
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, daemon=True, name="events")
                self._watcher.start()

    def _watch(self) -> None:
        while not self._stopping.is_set():
            try:
                for event in self._host.events():
                    _log.info("%s powered itself off: %s", event.instance_id, event.reason)
                    taken = event.reason == SPOT_END
                    self._submit(self._taken_back if taken else self._powered_off, "", [event.instance_id])
            except (CloudGpuError, OSError) as err:
                _log.warning("lost the node host's events: %s", err)
            self._stopping.wait(_RETRY_S)

    def _boot(self, region: str, instance_id: str) -> None:
        with self._lock:
            found = book.find(region, instance_id)
            if found is None or found[0].state != "pending":
                return
            spec = book.spec(*found)
        try:
            if spec.role:
                self._host.give_credentials(self._credentials())
            started = self._host.start(spec)
        except CloudGpuError as err:
            _log.exception("the node of %s did not start", instance_id)
            self._fail(region, instance_id, err.message)
            return
        with self._lock:
            # Look it up again: a call that could not be saved may have replaced this state with the previous one.
            found = book.find(region, instance_id)
            wanted = found is not None and found[0].state == "pending"
            if found is not None and wanted:
                instance, record = found
                book.came_up(instance, record, started.address, started.port, started.host_key)
                tell(self._host, instance.ec2_backend, records_of(instance.ec2_backend))
                self._dirty = True
        if not wanted:
            self._end(region, instance_id)  # terminated while it booted: the other stop may have come too early

    def _credentials(self) -> RoleCredentials:
        """Return the role key for nodes; the session token is only for show, the signature decides."""
        return RoleCredentials(
            access_key_id=self._role.access_key_id,
            secret_access_key=self._role.secret_access_key,
            session_token=_SHOWN_TOKEN,
            expires_at=self._clock.now() + _CREDENTIALS_LAST,
        )

    def _fail(self, region: str, instance_id: str, why: str) -> None:
        with self._lock:
            found = book.find(region, instance_id)
            if found is not None and found[0].state != "terminated":
                book.terminate(*found, self._clock.now(), failure=why)
                self._dirty = True

    def _end(self, region: str, instance_id: str) -> None:
        with self._lock:
            found = book.find(region, instance_id)
            if found is None or found[0].state not in _ENDING:
                return  # the call that was to stop it could not be saved
            work = self._host.power_off if found[0].state in ("stopping", "stopped") else self._host.stop
        work(instance_id)
        with self._lock:
            found = book.find(region, instance_id)
            if found is None:
                return
            instance, record = found
            if instance.state == "shutting-down" and not record.lingers:
                book.terminate(instance, record, self._clock.now())
            elif instance.state == "stopping":
                set_state(instance, "stopped")
            self._dirty = True

    def _powered_off(self, _region: str, instance_id: str) -> None:
        self._ended(instance_id, book.shut_down_by_itself)

    def _taken_back(self, _region: str, instance_id: str) -> None:
        self._ended(instance_id, book.taken_back)

    def _ended(self, instance_id: str, note: Callable[[Any], None]) -> None:
        with self._lock:
            instance = book.search(instance_id)
            if instance is None or instance.state not in ("pending", "running"):
                return
            note(instance)
            region = book.region_of(instance)
        self.end(region, [instance_id])

    def _reboot(self, _region: str, instance_id: str) -> None:
        self._host.reboot(instance_id)

    def _forget(self, _region: str, instance_id: str) -> None:
        self._host.forget(instance_id)

    def _resume(self, instance: Any, report: NodeReport | None) -> None:  # noqa: ANN401 - moto's instance
        region, state = book.region_of(instance), str(instance.state)
        on = report is not None and report.state == "running"
        if state in ("shutting-down", "stopping") or (state in ("terminated", "stopped") and on):
            self.end(region, [instance.id])
        elif state == "pending":
            self.boot(region, [instance.id])
        elif state == "running" and report is None:
            set_state(instance, "pending")
            self.boot(region, [instance.id])
        elif state == "running" and not on:
            self._submit(self._powered_off, "", [instance.id])
