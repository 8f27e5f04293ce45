"""Data in the recipe's folder is sent once, and the ranks find it in the work directory too."""

import pytest

pytestmark = pytest.mark.rehearsal

READS = """
    import os, pathlib, sys
    for place in (sys.argv[1], "sets"):
        print(place == "sets", [path.read_text() for path in sorted(pathlib.Path(place).iterdir())], flush=True)
"""


def test_ranks_read_data_of_the_work_directory_that_is_sent_once(workspace):
    folder = workspace.recipe(
        script=READS,
        resources="{instance_type: g4dn.xlarge, regions: [us-east-1]}",
        params="{}",
        launch="{with: head-only, command: 'train.py {data.sets}'}",
        data="[{name: sets, from: sets, to: /data/sets}]",
        metrics="{}",
        outputs="[outputs/]",
    )
    (folder / "sets").mkdir()
    (folder / "sets" / "a.txt").write_text("first")
    (folder / "sets" / "b.txt").write_text("second")
    shown = workspace.run("train", "plain", "--yes", "--keep").stdout
    for linked in (False, True):
        assert f"{linked} ['first', 'second']" in shown
    (folder / "sets" / "b.txt").write_text("changed")
    assert "True ['first', 'changed']" in workspace.run("train", "plain", "--yes").stdout
