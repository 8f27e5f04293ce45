"""Every wait of a command ends when the user interrupts the command, and at faults that a retry cannot heal.

Waits go through `Clock.sleep` and `Workers`. Anything else that blocks is listed here with what ends it.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.source_code import syntax_nodes

PACKAGE = Path(__file__).parents[3] / "cloudgpu"
OTHER_PROCESSES = (
    "node/",
    "rehearsal/aws_api/",
    "rehearsal/server/",
    "rehearsal/nodes/",
    "rehearsal/faults/",
    "rehearsal/session_plugin.py",
    "engine/plugin/",
)
"""Code on the nodes, in the server of the rehearsal cloud and in the provider of the Pulumi CLI."""

ALLOWED = {
    ("app/execute.py", "_all", "get"): "in the main thread, which a signal interrupts",
    ("app/execute.py", "_stop_all", "get"): "after an interrupt, with a time limit",
    ("app/planning/image_check.py", "RegistryImages._within_time", "join"): "bounded by the limit of the lookup",
    ("app/runs/concurrency.py", "only_sender", "flock"): "in the main thread",
    ("app/runs/services.py", "Probe._connected", "get"): "in a daemon thread that no caller waits for",
    ("app/runs/services.py", "ServiceProbes.__exit__", "join"): "bounded, and zero after an interrupt",
    ("app/runs/services.py", "ServiceProbes._watch", "wait"): "in a daemon thread",
    ("clock.py", "CancelScope._pause", "wait"): "the wait of every thread that has a caller",
    ("clock.py", "SystemClock.sleep", "sleep"): "in the main thread, or in a daemon thread",
    ("engine/direct/delete.py", "run_in_dependency_order", "wait"): "calls to AWS that are in progress",
    ("engine/direct/language_host.py", "_run", "ThreadPoolExecutor"): "asyncio accepts no other; has a scope",
    ("engine/direct/language_host.py", "_run", "wait"): "the event loop of the main thread",
    ("engine/direct/resource_monitor.py", "Monitor.drain", "wait"): "calls to AWS that are in progress",
    ("engine/direct/deployment.py", "Gate.wait", "wait_for"): "calls to AWS that are in progress",
    ("engine/lease.py", "ClusterLease._beat", "wait"): "in a daemon thread",
    ("engine/lease.py", "ClusterLease._locked", "flock"): "held for the time of one write",
    ("engine/lease.py", "ClusterLease.hold", "join"): "bounded",
    ("engine/pulumi_cli/command.py", "PulumiCommand._version", "run"): "in the main thread",
    ("engine/pulumi_cli/command.py", "_followed", "join"): "the output of a process that has exited",
    ("engine/pulumi_cli/command.py", "_wait", "wait"): "short waits, with a check between them",
    ("engine/pulumi_cli/engine.py", "PulumiEngine._delete_unrecorded", "wait"): "waits on the clock",
    ("engine/pulumi_cli/engine.py", "PulumiEngine.destroy", "wait"): "waits on the clock",
    ("ledger/database.py", "_write_ahead", "sleep"): "a fraction of a second",
    ("run/follow.py", "Feed.next", "get"): "in the main thread",
    ("run/follow.py", "Reader._pause", "wait"): "in a daemon thread",
    ("run/log_store.py", "LogStore.add", "flock"): "held for the time of one write",
    ("run/metric_search.py", "_end", "wait"): "a process that has been killed",
    ("ssh/session.py", "CommandSession.output", "wait"): "short waits, with a check between them",
    ("ssh/forwarding.py", "_stop", "wait"): "in a daemon thread",
    ("ssh/transfer/node_tree.py", "claim", "flock"): "travels to the node",
    ("ssh/transfer/receive.py", "DownloadDirectory.__enter__", "flock"): "a new file that only this process knows",
    ("ssh/transfer/receive.py", "_remove_unlocked", "flock"): "does not wait",
    ("ssh/forwarding.py", "Tunnel._carry", "join"): "in a daemon thread",
    ("ssh/forwarding.py", "Tunnel._serve", "wait"): "in a daemon thread",
    ("state/catalog_snapshots.py", "CatalogSnapshots._locked", "flock"): "in the main thread",
    ("state/user_ssh_config.py", "SshFolder._locked", "flock"): "in the main thread",
    ("workers.py", "Workers.__exit__", "join"): "in the main thread; other threads are ended by their own caller",
    ("workers.py", "Workers._work", "get"): "in a daemon thread",
    ("workers.py", "Workers.cancel", "join"): "bounded by the grace period",
}
"""(file, function, call) -> what ends the wait."""
Places = Iterable[tuple[str, ast.AST]]


def places(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield every call and loop with the dotted name of the function that contains it."""
    parents = [("", tree)]
    while parents:
        inside, node = parents.pop()
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            below = f"{inside}.{child.name}".lstrip(".") if named else inside
            if isinstance(child, ast.Call | ast.While):
                yield below, child
            parents.append((below, child))


def blocks(call: ast.Call) -> str:
    """Return the name of the function if the call may block for long, otherwise an empty string."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    match name:
        case "wait" | "wait_for" | "flock" | "lockf" | "communicate" | "acquire":
            blocking = True
        case "ThreadPoolExecutor" | "ProcessPoolExecutor":
            blocking = True
        case "sleep":
            blocking = receiver is None or not ast.unparse(receiver).endswith("clock")
        case "join" if not isinstance(receiver, ast.Constant):
            limited = call.args and not ast.unparse(call.args[0]).endswith(("_S", "_s", "0"))
            blocking = not limited or "time." in ast.unparse(call)
        case "get":
            blocking = not call.args or any(keyword.arg == "timeout" for keyword in call.keywords)
        case "run":
            timed = any(keyword.arg == "timeout" for keyword in call.keywords)
            blocking = receiver is not None and ast.unparse(receiver) == "subprocess" and not timed
        case _:
            blocking = False
    return name if blocking else ""


def waits(inside: Places) -> set[tuple[str, str]]:
    """Return the function and the call of every wait that bypasses the clock."""
    found = ((function, blocks(node)) for function, node in inside if isinstance(node, ast.Call))
    return {(function, name) for function, name in found if name}


@pytest.fixture(scope="module")
def modules() -> dict[str, Places]:
    """Return the calls and loops of every module that runs in the process of a command, by its path."""
    paths = {str(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}
    return {
        name: list(places(syntax_nodes(path)[0]))
        for name, path in paths.items()
        if not name.startswith(OTHER_PROCESSES)
    }


def test_no_wait_bypasses_the_clock(modules: dict[str, Places]):
    found = {(module, *wait) for module, inside in modules.items() for wait in waits(inside)}
    assert found == set(ALLOWED), "wait with Clock.sleep and Workers, or say here what ends the wait"


def endless_retries(inside: Places) -> list[str]:
    """Return the functions with a loop that catches an error of a connection without asking whether it can heal."""
    found = []
    for function, node in inside:
        if not isinstance(node, ast.While):
            continue
        handlers = [inner for inner in ast.walk(node) if isinstance(inner, ast.ExceptHandler) and inner.type]
        caught = [handler for handler in handlers if "ConnectError" in ast.unparse(handler.type)]
        found += [function for handler in caught if "retryable" not in ast.unparse(handler)]
    return found


def test_no_loop_retries_a_connection_that_cannot_heal(modules: dict[str, Places]):
    found = {f"{module}: {function}" for module, inside in modules.items() for function in endless_retries(inside)}
    assert found == set(), "end the loop at errors whose `retryable` is False"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("time.sleep(5)", "sleep"),
        ("self._clock.sleep(5)", ""),
        ("', '.join(names)", ""),
        ("os.path.join(folder, name)", ""),
        ("thread.join()", "join"),
        ("thread.join(_LEAVE_S)", "join"),
        ("event.wait(5)", "wait"),
        ("items.get()", "get"),
        ("rows.get('name')", ""),
        ("subprocess.run(argv)", "run"),
        ("subprocess.run(argv, timeout=5)", ""),
        ("ThreadPoolExecutor(8)", "ThreadPoolExecutor"),
    ],
)
def test_waits_are_detected(line: str, found: str):
    assert waits(places(ast.parse(line))) == ({("", found)} if found else set())


def test_endless_retries_are_detected():
    loop = "while True:\n  try:\n    connect()\n  except ConnectError as err:\n    {}"
    assert endless_retries(places(ast.parse(loop.format("pass")))) == [""]
    assert endless_retries(places(ast.parse(loop.format("if not err.retryable: raise")))) == []
