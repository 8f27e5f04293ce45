"""Two at once: one wins and the other is told; separate clusters and runs do not meet."""

import re

import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

LIMIT_S = 120


def ended(process):
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


def test_whoever_comes_second_is_told_who_works_on_it(bench):
    bench.recipe()
    client.put_faults(bench.cloud, [{"action": "CreateFleet", "do": "hold", "times": 1}])
    first = bench.popen("up", "plain", "--yes", "--owner", "ada")
    bench.until_held(first)
    for args in (("up", "plain", "--yes", "--owner", "bob"), ("down", "plain")):
        second = bench.run(*args, code=11)
        assert re.search(rf"ada \(process {first.pid} on .+\) .* plain", second.stderr), second.stderr
        assert "hint:" in second.stderr
    client.release(bench.cloud)
    code, out, err = ended(first)
    assert code == 0, out + err
    assert len(client.nodes(bench.cloud)) == 2
    bench.run("down", "plain")
    assert bench.left() == {}


def test_four_at_once_make_one_gang(bench):
    bench.recipe()
    ups = [bench.popen("up", "plain", "--yes", "--json") for _ in range(4)]
    codes = [ended(up) for up in ups]
    assert {code for code, _, _ in codes} <= {0, 11}, codes
    assert sum('"made": true' in out for _, out, _ in codes) == 1, codes
    assert len(client.nodes(bench.cloud)) == 2
    downs = [ended(down) for down in [bench.popen("down", "plain", "--json") for _ in range(3)]]
    assert {code for code, _, _ in downs} <= {0, 11}, downs
    bench.run("down", "plain")
    assert bench.left() == {}
    assert bench.json("status")["clusters"] == []


def test_a_dead_holder_holds_nothing_up(bench):
    bench.recipe()
    client.put_faults(bench.cloud, [{"action": "CreateFleet", "do": "hold", "times": 1}])
    first = bench.popen("up", "plain", "--yes")
    bench.until_held(first)
    first.kill()
    first.communicate()
    client.release(bench.cloud)
    assert bench.json("up", "plain", "--yes")["made"]
    assert len(client.nodes(bench.cloud)) == 2
    bench.run("down", "plain")
    assert bench.left() == {}


def test_two_trains_at_once_have_a_cluster_and_a_bill_each(bench):
    bench.recipe()
    both = [ended(train) for train in [bench.popen("train", "plain", "--yes", "--json") for _ in range(2)]]
    assert [code for code, _, _ in both] == [0, 0], both
    assert bench.left() == {}
    assert len(bench.json("cost")["rows"]) == 2


def test_two_runs_at_once_on_one_standing_cluster(bench):
    """Ports, work directories, logs and outputs of their own."""
    bench.recipe()
    bench.run("up", "plain", "--yes")
    runs = [bench.popen("train", "plain", "--yes", "--json", "--cluster", "plain") for _ in range(2)]
    both = [ended(run) for run in runs]
    assert [code for code, _, _ in both] == [0, 0], both
    ids = [run["run_id"] for run in bench.json("status", "--all")["runs"]]
    assert len(set(ids)) == 2
    for run_id in ids:
        logs = bench.run("logs", run_id).stdout
        assert logs.count("epoch=3") == 4
        assert (bench.home.run(run_id).outputs / "outputs/metrics.json").exists()
    assert len(client.nodes(bench.cloud)) == 2
    bench.run("down", "plain")
    assert bench.left() == {}


def test_two_homes_never_meet(bench, make_bench, tmp_path):
    (tmp_path / "other").mkdir()
    with make_bench(tmp_path / "other") as other:
        for one in (bench, other):
            one.recipe()
        ups = [one.popen("up", "plain", "--yes") for one in (bench, other)]
        assert [ended(up)[0] for up in ups] == [0, 0]
        other.run("down", "plain")
        assert other.left() == {}
        assert len(client.nodes(bench.cloud)) == 2
        bench.run("down", "plain")
        assert bench.left() == {}
    assert {path.name for path in bench.home.clusters.glob("*/*")} <= {"lease.guard"}
