"""An interrupted fuzz campaign resumes where it stopped and prints a short summary."""

import json
from pathlib import Path

import pytest

from tests.unit.fuzz import campaign
from tests.unit.fuzz.campaign import Result


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Record the shards that would run; the second is interrupted."""
    seen: list[tuple[str, int, int]] = []

    def results(missing, _jobs):
        for name, shard, examples in missing:
            seen.append((name, shard, examples))
            if len(seen) == 2:
                raise KeyboardInterrupt
            yield Result(name, shard, examples, 1.0)

    monkeypatch.setattr(campaign, "_results", results)
    return seen


def test_interrupted_campaign_resumes_with_missing_shards(tmp_path: Path, started, capsys):
    assert campaign._run(tmp_path, ["size"], 3 * campaign.SHARD, 1) == 130
    assert "the same command continues" in capsys.readouterr().err
    assert campaign._run(tmp_path, ["size"], 3 * campaign.SHARD, 1) == 0
    assert [shard for _, shard, _ in started] == [0, 1, 1, 2]
    assert capsys.readouterr().out.split() == ["size", "7500", "examples", "0", "failures", "3.0", "s"]


def test_truncated_result_lines_are_ignored(tmp_path: Path):
    campaign._keep(tmp_path, Result("size", 0, 5, 1.0))
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text() + "\n" + json.dumps({"target": "size"}) + '\n{"target": "si')
    campaign._keep(tmp_path, Result("size", 2, 5, 1.0))
    assert [one.shard for one in campaign._stored(tmp_path)] == [0, 2]
