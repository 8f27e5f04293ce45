"""The simulated AWS services, their state and their nodes. Importing this module loads moto."""

import contextlib
import logging
import os
from datetime import datetime
from typing import Any

from moto.ec2.models import ec2_backends

from cloudgpu.errors import StateError
from cloudgpu.rehearsal.aws_api.ec2 import instance_store
from cloudgpu.rehearsal.aws_api.ec2.instance_lifecycle import NodeKeeper
from cloudgpu.rehearsal.aws_api.ec2.reachability import resend_access
from cloudgpu.rehearsal.aws_api.interfaces import Parts, World
from cloudgpu.rehearsal.aws_api.resource_inventory import data_resource_ids, list_resources
from cloudgpu.rehearsal.aws_api.scheduler import run_due_schedules
from cloudgpu.rehearsal.aws_api.ssm import SsmSessions
from cloudgpu.rehearsal.faults.search_lag import SearchLag
from cloudgpu.rehearsal.nodes.mounts.shared_storage import delete_orphaned_folders
from cloudgpu.rehearsal.server.http_message import HttpRequest, HttpResponse
from cloudgpu.rehearsal.server.services import Services
from cloudgpu.rehearsal.server.sigv4 import Scope
from cloudgpu.rehearsal.state.durable import Reserve, not_saved
from cloudgpu.rehearsal.state.records import records_of
from cloudgpu.rehearsal.state.store import Store

_CLUSTER_TAG = "cloudgpu:cluster"
_log = logging.getLogger(__name__)


class SimulatedCloud:
    """The simulated cloud that serves the endpoint's requests."""

    def __init__(self, parts: Parts) -> None:
        self._lock = parts.lock
        self._time = parts.time
        self._shared = parts.files.nodes
        self._reserve = Reserve(parts.files.reserve)
        self._store = Store(parts.files.state, parts.files.objects, self._reserve)
        self._host = parts.host
        self._keeper = NodeKeeper(parts)
        self._search_lag = SearchLag(parts.clock)
        self._services = Services(
            World(parts.clock, parts.market, parts.host, self._keeper, parts.behaviour, parts.time),
            SsmSessions(parts.files.nodes),
        )

    def restore(self) -> None:
        """Load the state and reconcile nodes and instances."""
        self._store.load()
        with contextlib.suppress(StateError):  # `admit` tries again
            self._reserve.hold()
        if any(True for _ in self._instances()):
            self._keeper.reconcile()

    def answer(self, request: HttpRequest, scope: Scope, *, lag_s: float = 0.0) -> HttpResponse:
        """Execute a verified request. Tag searches find a resource only `lag_s` seconds after it was first tagged."""
        with self._search_lag.hide_recent_tags(request.body, lag_s):
            response = self._services.answer(request, scope)
        self._search_lag.note()
        return response

    def admit(self, *, frees: bool) -> None:
        """Save pending node changes, and reject a call if the disk is full.

        Calls that free resources may use the disk reserve.
        """
        try:
            self._save_nodes()
            if not frees:
                self._reserve.hold()
        except StateError as err:
            raise not_saved(err) from err

    def save(self, *, mutated: bool) -> None:
        """Save the effect of a call. If saving fails, undo the call: a restart must not lose state that clients saw.

        If the call changed nothing, a failure is only logged.
        """
        try:
            self._store.save(mutated=mutated)
        except StateError as err:
            if mutated:
                self._restore_saved_state()
                raise not_saved(err) from err
            _log.warning("cannot save the state of a newly used region; the next call tries again: %s", err.message)

    def _restore_saved_state(self) -> None:
        """Restore the last saved state, so that background work queued by the failed call has no effect."""
        try:
            self._store.load()
        except Exception:  # noqa: BLE001 - any failure is fatal here
            # The state in memory is inconsistent and must not be saved. The next server reports the problem.
            _log.critical("cannot reload the saved state: exiting as if killed", exc_info=True)
            os._exit(1)
        for backend in instance_store.backends():
            resend_access(self._host, backend, records_of(backend))

    def regions(self) -> set[str]:
        """Return the names of the regions that contain resources."""
        return {str(row["region"]) for rows in list_resources().values() for row in rows if row.get("region")}

    def list_resources(self) -> dict[str, list[dict[str, Any]]]:
        """Return the resources that may cost money or be left over, by type."""
        return list_resources()

    def nodes(self) -> list[dict[str, Any]]:
        """Return every instance that is not terminated, with its node's address."""
        with self._lock:
            return [_shown(instance) for instance in self._instances() if instance.state != "terminated"]

    def housekeep(self) -> None:
        """Delete data of deleted storage, remove old terminated instances, run due schedules, and save node changes."""
        with self._lock:
            delete_orphaned_folders(self._shared, data_resource_ids())
        self._keeper.remove_old_instances()
        self.run_due_schedules()

    def run_due_schedules(self) -> None:
        """Run the schedules that are due and save the result."""
        with self._lock:
            if run_due_schedules(self._time.now(), self._keeper):
                self._keeper.mark_changed()
            self._save_nodes()

    def end_nodes(self, at: datetime) -> list[str]:
        """Stop background work, mark every instance as terminated, and return the IDs of those that had not ended."""
        self._keeper.close()
        return self._keeper.terminate_all(at)

    def close(self) -> None:
        """Stop background work and save pending changes."""
        self._keeper.close()
        self._save_nodes()

    def _save_nodes(self) -> None:
        """Save changes that nodes or schedules made. If this fails, the next call tries again."""
        with self._lock:
            if self._keeper.changed():
                try:
                    self._store.save(mutated=True)
                except StateError:
                    self._keeper.mark_changed()
                    raise

    def _instances(self) -> list[Any]:
        registered: list[Any] = list(ec2_backends.iter_backends())
        return [instance for _, _, backend in registered for instance in backend.all_instances()]


def _shown(instance: Any) -> dict[str, Any]:  # noqa: ANN401 - moto is untyped
    backend = instance.ec2_backend
    record = records_of(backend).nodes[instance.id]
    return {
        "instance_id": instance.id,
        "instance_type": str(instance.instance_type),
        "region": str(backend.region_name),
        "zone": str(instance.placement.zone),
        "state": str(instance.state),
        "address": record.address,
        "port": record.port,
        "user": record.user,
        "host_key": record.host_key,
        "cluster": backend.tags.get(instance.id, {}).get(_CLUSTER_TAG, ""),
    }
