"""Delete resources in dependency order: those removed from the program or replaced, or all of a stack."""

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Final, TypeVar

from cloudgpu.clock import SIGNALS_S
from cloudgpu.engine.direct.deployment import Deployment, Gate
from cloudgpu.engine.direct.intent_search import HOURLY_BILLED_TYPES, adopt, existing_resources, unanswered_creates
from cloudgpu.engine.direct.journal_state import Intent, Resource
from cloudgpu.engine.direct.operation_choice import reject_protected
from cloudgpu.errors import CloudGpuError, TeardownError
from cloudgpu.text import command, plural
from cloudgpu.workers import Workers

WORKERS = 32

K = TypeVar("K", bound=Hashable)
_FOLLOWS: Final = "a resource that depends on it was not deleted"
Key = tuple[str, str]
"""URN and physical ID. The URN alone is not unique, because a resource and its replacement have the same URN."""


def run_in_dependency_order(first: Mapping[K, Set[K]], work: Callable[[K], None]) -> dict[K, CloudGpuError]:
    """Call `work` for every key, after the calls for all keys in `first[key]` have succeeded; return the failures.

    Keys that depend on a failed key are skipped; all other keys are processed. Any exception other than `CloudGpuError`
    (a bug or an interrupt) is raised once the work in progress has finished; an interrupt ends its waits.
    """
    waiting = {key: set(before) & set(first) for key, before in first.items()}
    failures: dict[K, CloudGpuError] = {}
    running: dict[Future[None], K] = {}
    gate = Gate()

    def guarded(key: K) -> None:
        with gate:
            work(key)

    try:
        with Workers(WORKERS) as pool, gate.closing():
            while True:
                for key in _ready(waiting, idle=not running, failed=failures):
                    del waiting[key]
                    running[pool.submit(guarded, key)] = key
                if not running:
                    return failures
                for future in wait(running, SIGNALS_S, FIRST_COMPLETED).done:
                    _settle(future, running.pop(future), waiting, failures)
    finally:
        gate.wait()  # calls to AWS in progress are finished, because only their answers say what exists


def _ready(waiting: Mapping[K, set[K]], *, idle: bool, failed: Mapping[K, CloudGpuError]) -> list[K]:
    ready = [key for key, before in waiting.items() if not before]
    if ready or not idle or failed:
        return ready
    # only a damaged journal contains a cycle; still try to delete its resources, which may be billed
    return list(waiting)


def _settle(future: Future[None], key: K, waiting: Mapping[K, set[K]], failures: dict[K, CloudGpuError]) -> None:
    try:
        future.result()
    except CloudGpuError as err:
        failures[key] = err
        return
    for before in waiting.values():
        before.discard(key)


def delete_all_resources(deployment: Deployment) -> None:
    """Delete every resource in the journal and every resource that an interrupted call may have created."""
    protected = [resource for resource in existing_resources(deployment) if resource.meta.protect]
    if protected:
        count = plural(len(protected), "protected resource")
        message = f"nothing was deleted: {deployment.stack.name} has {count}"
        hint = "remove `protect` from these resources in the program and run `up` once"
        raise TeardownError(message, left=[_shown(resource) for resource in protected], hint=hint)
    intents = unanswered_creates(deployment)
    if intents:
        # The search may take minutes: delete billed nodes first.
        delete_resources(
            deployment,
            [resource for resource in existing_resources(deployment) if resource.type in HOURLY_BILLED_TYPES],
        )
    failures = adopt_all(deployment, intents, ending=True)
    failures += delete_resources(deployment, existing_resources(deployment))
    raise_if_undeleted(deployment, failures)


def delete_resources(deployment: Deployment, resources: Sequence[Resource]) -> list[str]:
    """Delete resources, dependents first. Return one line for each resource that was not deleted."""
    nodes = {(resource.urn, resource.id): resource for resource in resources}
    hosted = _hosted(nodes)
    order = _order(nodes, hosted)
    failures = run_in_dependency_order(order, lambda key: _delete_with_guests(deployment, nodes, hosted, key))
    remaining = _remaining(deployment, nodes)
    return [f"{_shown(resource)}: {_reason(failures, key)}" for key, resource in remaining.items()]


def delete_resource(deployment: Deployment, resource: Resource) -> None:
    """Delete one resource and wait until the cloud confirms the deletion.

    A resource with the `retain_on_delete` option is only removed from the journal.
    """
    reject_protected(resource, "deleted")
    if resource.meta.retain:
        _record_deleted(deployment, resource, f"{resource.id}, retained because of its retain_on_delete option")
        return
    seq = deployment.journal.next_seq()
    clock = deployment.watched_clock("delete", resource)
    deployment.journal.add(_delete_intent(deployment, resource, seq).as_row())
    deployment.report.emit("start", "delete", resource, detail=resource.id)
    try:
        handler = deployment.handlers.handler(resource.type)
        context = deployment.context(resource.region, resource.token, clock)
        handler.delete(context, resource.id, resource.outputs)
    except CloudGpuError as err:
        deployment.failed("delete", resource, err)
        raise
    deployment.journal.add({"row": "done", "seq": seq})
    deployment.report.emit("done", "delete", resource, detail=resource.id, seconds=clock.elapsed())


def adopt_all(deployment: Deployment, intents: Sequence[Intent], *, ending: bool = False) -> list[str]:
    """Find and adopt the resources that these intents created. Return one line for each search that failed.

    If `ending` is true, also wait for calls that have not taken effect yet.
    """
    by_seq = {intent.seq: intent for intent in intents}
    failures = run_in_dependency_order(
        {seq: set() for seq in by_seq}, lambda seq: _adopt(deployment, by_seq[seq], ending)
    )
    return [f"{by_seq[seq].type} {by_seq[seq].name!r} (may exist): {err.message}" for seq, err in failures.items()]


def raise_if_undeleted(deployment: Deployment, left: Sequence[str]) -> None:
    """Raise an error if resources were not deleted."""
    if left:
        shown = [deployment.redactor.redact_text(line) for line in left]
        name = deployment.stack.name
        message = f"could not delete {plural(len(shown), 'resource')} of {name}: {_cause(shown)}"
        raise TeardownError(message, left=shown, hint=f"run `{command('cloudgpu', 'down', name)}` to continue")


def _cause(left: Sequence[str]) -> str:
    """Return the first line that is not a consequence of another failure, or else the first line."""
    return next((line for line in left if not line.endswith(_FOLLOWS)), left[0])


def _adopt(deployment: Deployment, intent: Intent, ending: bool) -> None:  # noqa: FBT001
    adopt(deployment, intent, ending=ending)


def _delete_intent(deployment: Deployment, resource: Resource, seq: int) -> Intent:
    return Intent(
        seq=seq,
        operation="delete",
        urn=resource.urn,
        type=resource.type,
        name=resource.name,
        region=resource.region,
        token=resource.token,
        digest="",
        inputs={},
        meta=resource.meta,
        at=deployment.journal.now(),
        id=resource.id,
    )


def _record_deleted(deployment: Deployment, resource: Resource, detail: str) -> None:
    deployment.journal.add({"row": "gone", "urn": resource.urn, "id": resource.id})
    deployment.report.emit("done", "delete", resource, detail=detail)


def _hosted(nodes: dict[Key, Resource]) -> dict[Key, Key]:
    """Map each resource with a `deleted_with` option (guest) to the resource whose deletion also deletes it (host)."""
    hosts = {
        resource.urn: key
        for key, resource in nodes.items()
        if not resource.meta.retain and not resource.meta.deleted_with
    }
    return {
        key: hosts[resource.meta.deleted_with]
        for key, resource in nodes.items()
        if resource.meta.deleted_with in hosts and not resource.meta.retain
    }


def _order(nodes: dict[Key, Resource], hosted: dict[Key, Key]) -> dict[Key, set[Key]]:
    """Map each key to the dependents that must be deleted before it.

    Guests are omitted. A guest's dependents are deleted before its host.
    """
    by_urn: dict[str, list[Key]] = {}
    for key in nodes:
        by_urn.setdefault(key[0], []).append(key)
    order: dict[Key, set[Key]] = {key: set() for key in nodes if key not in hosted}
    for key, resource in nodes.items():
        if key not in hosted:
            for needed in _needed(resource, nodes, by_urn, hosted):
                order[needed].add(key)
    return order


def _needed(
    resource: Resource, nodes: dict[Key, Resource], by_urn: dict[str, list[Key]], hosted: dict[Key, Key]
) -> set[Key]:
    """Return the keys on which a resource depends, with each guest replaced by its dependencies and its host."""
    needed: set[Key] = set()
    seen: set[str] = {resource.urn}
    pending = list(resource.meta.dependencies)
    while pending:
        urn = pending.pop()
        if urn in seen:
            continue
        seen.add(urn)
        for key in by_urn.get(urn, []):
            if key in hosted:
                pending += [*nodes[key].meta.dependencies, hosted[key][0]]
            else:
                needed.add(key)
    return needed


def _delete_with_guests(deployment: Deployment, nodes: dict[Key, Resource], hosted: dict[Key, Key], key: Key) -> None:
    delete_resource(deployment, nodes[key])
    for guest, host in hosted.items():
        if host == key:
            _record_deleted(deployment, nodes[guest], f"{nodes[guest].id}, with {nodes[key].id}")


def _remaining(deployment: Deployment, nodes: dict[Key, Resource]) -> dict[Key, Resource]:
    present = {(resource.urn, resource.id) for resource in existing_resources(deployment)}
    return {key: resource for key, resource in nodes.items() if key in present}


def _reason(failures: dict[Key, CloudGpuError], key: Key) -> str:
    return failures[key].message if key in failures else _FOLLOWS


def _shown(resource: Resource) -> str:
    return f"{resource.type} {resource.name!r} ({resource.id})"
