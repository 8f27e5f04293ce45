"""The command context: target selection, files written, and resources that are opened once."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudgpu.backends.aws.backend import AwsBackend
from cloudgpu.cli.context import CliContext
from cloudgpu.cli.main import main
from cloudgpu.cli.planning import plan_recipe
from cloudgpu.clock import SystemClock
from cloudgpu.errors import NewerFormatError, StateError
from cloudgpu.paths import Home
from cloudgpu.settings import load
from cloudgpu.state.cluster_record import CLUSTER
from cloudgpu.state.record_store import RecordStore
from tests.manual_clock import ManualClock


@pytest.fixture
def context(tmp_path):
    settings = load(flags={"target": "rehearsal"}, environ={"CLOUDGPU_HOME": str(tmp_path / "home")}, cwd=tmp_path)
    return CliContext(settings, SimpleNamespace(emit=print, remark=print), SystemClock())


def change(record: Path, **fields: object) -> None:
    record.write_text(json.dumps({**json.loads(record.read_text()), **fields}))


def test_down_rejects_a_record_from_a_newer_version(tmp_path, cluster, now, monkeypatch, capsys):
    home = Home(tmp_path / "home").ensure()
    RecordStore(home).save_cluster(cluster, now)
    path = home.cluster(cluster.name).record
    change(path, format=CLUSTER.format + 1, target="aws")
    monkeypatch.setenv("CLOUDGPU_HOME", str(home.root))
    monkeypatch.setattr("cloudgpu.cli.context.open_backend", lambda *_: pytest.fail("a cloud was opened"))
    assert main(["down", cluster.name, "--yes"]) == NewerFormatError.exit_code
    assert "upgrade cloudgpu" in capsys.readouterr().err
    assert path.exists()


def test_unknown_target_in_a_record_is_rejected(context, cluster, now):
    context.records.save_cluster(cluster, now)
    change(context.home.cluster(cluster.name).record, target="moon")
    with pytest.raises(StateError, match="does not know the target 'moon'"):
        context.target_of(cluster.name)


def test_offline_plan_creates_no_state_home(context):
    assert plan_recipe(context, "quickstart", [], offline=True).plan.candidates
    assert not context.settings.home.exists()


def test_command_context_opens_one_backend_per_target(context):
    assert context.backend() is context.backend("rehearsal")
    assert context.backend("aws") is not context.backend()


def test_concurrent_threads_open_the_cloud_client_once(tmp_path):
    at_once, opened = threading.Barrier(4, timeout=20), []

    def open_cloud():
        opened.append(1)
        return SimpleNamespace(endpoint="", for_deletion=lambda: None)

    backend = AwsBackend(("aws", "AWS"), Home(tmp_path), ManualClock(None), open_cloud, lambda: None)

    def delete():
        at_once.wait()
        backend.for_deletion()

    threads = [threading.Thread(target=delete) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [1]
