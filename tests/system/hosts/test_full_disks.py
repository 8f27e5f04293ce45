"""The caller's disk is full: commands fail with typed errors, the run result is reported, and `down` works."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.lab import Lab
from tests.rehearsal.test_homes import fill, mounted
from tests.system.hosts.callers import PROGRAM, Caller, leftovers
from tests.system.hosts.short_limits import run, start, until, wait

HELD = PROGRAM.replace("time.sleep(1000)", 'while not os.path.exists("/tmp/finish"): time.sleep(0.05)')
LARGE = 'if rank > 1: Path(os.environ["CLOUDGPU_OUTPUTS"], f"large-{rank}.bin").write_bytes(bytes(1 << 20))\n'
TRAIN = "train tiny --on ssh --cluster pair --yes"


@pytest.fixture
def disk(lea: Caller, lab_hosts: Lab) -> Iterator[Path]:
    """Mount a small disk as Lea's home and create a cluster of two hosts."""
    lea.write_inventory(only=("red", "blue"))
    (lea.folder / "recipes/tiny/tiny.py").write_text(HELD.replace("if len(sys.argv)", LARGE + "if len(sys.argv)"))
    with mounted("tmpfs", "none", lea.home, "size=8m") as small:
        lea.run("up", "tiny", "--on", "ssh", "--name", "pair", "--yes")
        yield small
        free(small)
        for name in ("red", "blue"):
            lab_hosts[name].run(["rm", "-f", "/tmp/finish"])
        code, said = run(lea, "down pair --on ssh")
        assert code == 0, said


def free(disk: Path) -> None:
    (disk / "ballast").unlink(missing_ok=True)


def leave(disk: Path, size: int) -> None:
    """Fill the disk, leaving `size` bytes free."""
    fill(disk)
    with (disk / "ballast").open("r+b") as ballast:
        ballast.truncate((disk / "ballast").stat().st_size - size)


def test_down_works_on_full_disk_and_rerun_closes_ledger(lea: Caller, lab_hosts: Lab, disk: Path):
    fill(disk)
    code, said = run(lea, "train tiny --on ssh --yes")
    assert (code, "no space left on the disk that holds" in said) == (10, True)
    code, said = run(lea, "down pair")
    assert code == 13, said
    assert "cluster pair is deleted, confirmed by its hosts, but its ledger rows are not closed" in said
    assert str(disk) in said
    assert "/cloudgpu-ledger-" not in said, "the path of a copy helps nobody"
    assert {name: leftovers(lab_hosts[name]) for name in ("red", "blue")} == {"red": [], "blue": []}
    free(disk)
    assert "nothing is left on red, blue" in lea.run("down", "pair").stdout
    rows = lea.json("cost", "--by", "cluster")["rows"]
    assert [(row["cluster"], row["open_entries"]) for row in rows] == [("pair", 0)]


def test_oversized_outputs_are_reported_and_fetched_after_freeing_space(lea: Caller, disk: Path):
    leave(disk, 1 << 19)
    code, said = run(lea, TRAIN)
    assert code == 5, said
    shown = " ".join(said.split())
    assert "not downloaded node 1: " in shown
    assert re.search(r"large-3.bin: needs 1.0 MiB, but only [0-9.]+ KiB is free on the disk that holds", shown)
    (folder,) = (disk / "runs").glob("*/outputs")
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        f"rank-{rank}.txt" for rank in range(4)
    ]
    free(disk)
    code, said = run(lea, f"attach {folder.parent.name}")
    assert code == 0, said
    sizes = {path.name: path.stat().st_size for path in folder.rglob("*.bin")}
    assert sizes == {"large-2.bin": 1 << 20, "large-3.bin": 1 << 20}


def test_disk_filling_up_does_not_hide_run_result(lea: Caller, lab_hosts: Lab, disk: Path):
    held = f"{TRAIN} --detach --set launch.command=held"
    words = held.removesuffix("held").split()
    words[-1] += "python3 tiny.py waiting"
    run_id = str(lea.json(*words)["run_id"])
    following = start(lea, f"attach {run_id}")
    until(lambda: len(list((disk / "runs").glob("*/logs/rank-*.log"))) == 4, "the first lines")
    fill(disk)
    for name in ("red", "blue"):
        lab_hosts[name].run(["touch", "/tmp/finish"])
    code, said = wait(following)
    assert code == 10, said
    assert f"run {run_id} has finished (succeeded); attach to it with `cloudgpu attach {run_id}`" in said
    assert "delete it with `cloudgpu down pair`" in said
    free(disk)
    code, said = run(lea, f"attach {run_id}")
    assert code == 0, said
    assert len(list((disk / "runs" / run_id / "outputs").rglob("*.bin"))) == 2
