"""Every wait of a command ends when the user interrupts the command, and at faults that a retry cannot heal.

Waits go through `Clock.sleep` and `Workers`. Anything else that blocks is listed here with what ends it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    ("app/access/execute.py", "_all", "get"): "in the main thread, which a signal interrupts",
    ("app/access/execute.py", "_stop_all", "get"): "after an interrupt, with a time limit",
    ("app/planning/registry_images.py", "RegistryImages._within_time", "join"): "bounded by the limit of the lookup",
    ("app/runs/concurrency.py", "only_sender", "flock"): "in the main thread",
    ("app/runs/services.py", "Probe._connected", "get"): "in a daemon thread that no caller waits for",
    ("app/runs/services.py", "ServiceProbes.__exit__", "join"): "bounded, and zero after an interrupt",
    ("app/runs/services.py", "ServiceProbes._watch", "wait"): "in a daemon thread",
    ("backends/aws/clusters/delete.py", "Teardown._delete_resources", "wait"): "waits on the clock",
    ("backends/aws/clusters/delete.py", "UnrecordedTeardown.end", "wait"): "waits on the clock",
    ("backends/aws/sweep/sweep.py", "UnrecordedDeletion.delete", "wait"): "waits on the clock",
    ("clock.py", "CancelScope._pause", "wait"): "the wait of every thread that has a caller",
    ("clock.py", "SystemClock.sleep", "sleep"): "in the main thread, or in a daemon thread",
    ("engine/direct/delete.py", "run_in_dependency_order", "wait"): "calls to AWS that are in progress",
    ("engine/direct/program/language_host.py", "_run", "ThreadPoolExecutor"): "asyncio accepts no other; has a scope",
    ("engine/direct/program/language_host.py", "_run", "wait"): "the event loop of the main thread",
    ("engine/direct/program/resource_monitor.py", "Monitor.drain", "wait"): "calls to AWS that are in progress",
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
    ("ssh/proxies.py", "_stop", "wait"): "in a daemon thread",
    ("ssh/transfer/node_tree.py", "claim", "flock"): "travels to the node",
    ("ssh/transfer/receive.py", "DownloadDirectory.__enter__", "flock"): "a new file that only this process knows",
    ("ssh/transfer/receive.py", "_remove_unlocked", "flock"): "does not wait",
    ("ssh/tunnel.py", "Tunnel._carry", "join"): "in a daemon thread",
    ("ssh/tunnel.py", "Tunnel._serve", "wait"): "in a daemon thread",
    ("state/catalog_snapshots.py", "CatalogSnapshots._locked", "flock"): "in the main thread",
    ("state/user_ssh_config.py", "SshFolder._locked", "flock"): "in the main thread",
    ("workers.py", "Workers.__exit__", "join"): "in the main thread; other threads are ended by their own caller",
    ("workers.py", "Workers._work", "get"): "in a daemon thread",
    ("workers.py", "Workers.cancel", "join"): "bounded by the grace period",
}
"""(file, function, call) -> what ends the wait."""


def places(node: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[tuple[str, ast.AST]]:
    """Yield every node with the dotted name of the function that contains it."""
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        below = (*inside, child.name) if named else inside
        yield ".".join(below), child
        yield from places(child, below)


def blocks(call: ast.Call) -> str:
    """Return the name of the function if the call may block for long, otherwise an empty string."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    receiver = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    keywords = {keyword.arg for keyword in call.keywords}
    may_block = {
        "sleep": not receiver.endswith("clock"),
        "join": not call.args or ast.unparse(call.args[0]).endswith(("_S", "_s", "0")) or "time." in ast.unparse(call),
        "get": not call.args or "timeout" in keywords,
        "run": receiver == "subprocess" and "timeout" not in keywords,
        **dict.fromkeys(("wait", "wait_for", "flock", "lockf", "communicate", "acquire"), True),
        **dict.fromkeys(("ThreadPoolExecutor", "ProcessPoolExecutor"), True),
    }
    if name == "join" and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Constant):
        return ""
    return name if may_block.get(name) else ""


def waits(source: str) -> set[tuple[str, str]]:
    """Return the function and the call of every wait that bypasses the clock."""
    found = ((function, blocks(node)) for function, node in places(ast.parse(source)) if isinstance(node, ast.Call))
    return {(function, name) for function, name in found if name}


def modules() -> dict[str, str]:
    """Return the source of every module that runs in the process of a command, by its path."""
    paths = {str(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}
    return {name: path.read_text() for name, path in paths.items() if not name.startswith(OTHER_PROCESSES)}


def test_no_wait_bypasses_the_clock():
    found = {(module, *wait) for module, source in modules().items() for wait in waits(source)}
    assert found == set(ALLOWED), "wait with Clock.sleep and Workers, or say here what ends the wait"


def endless_retries(source: str) -> list[str]:
    """Return the functions with a loop that catches an error of a connection without asking whether it can heal."""
    found = []
    for function, node in places(ast.parse(source)):
        if not isinstance(node, ast.While):
            continue
        handlers = [inner for inner in ast.walk(node) if isinstance(inner, ast.ExceptHandler) and inner.type]
        caught = [handler for handler in handlers if "ConnectError" in ast.unparse(handler.type)]
        found += [function for handler in caught if "retryable" not in ast.unparse(handler)]
    return found


def test_no_loop_retries_a_connection_that_cannot_heal():
    found = {f"{module}: {function}" for module, source in modules().items() for function in endless_retries(source)}
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
    assert waits(line) == ({("", found)} if found else set())


def test_endless_retries_are_detected():
    loop = "while True:\n  try:\n    connect()\n  except ConnectError as err:\n    {}"
    assert endless_retries(loop.format("pass")) == [""]
    assert endless_retries(loop.format("if not err.retryable: raise")) == []
