"""Run the recipes on frameworks other than PyTorch: the shipped script, the same framework, plausible metrics.

Recipes whose framework exists only in a container are listed by name; they must report that they were not run.
"""

import csv
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.documentation import blocks_for
from tests.rehearsal.recipes.carried import INSTALLING_S, ROOT, Trained, cache, cached

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(1200)]


NOT_RUN = {
    "caffe2": "nvcr.io/nvidia/caffe2:18.08-py3",
    "cntk": "nvcr.io/nvidia/cntk:18.08-py3",
    "digits": "nvcr.io/nvidia/digits:21.02-tensorflow-py3",
    "nvcaffe": "nvcr.io/nvidia/caffe:20.03-py3",
    "torch7": "nvcr.io/nvidia/torch:18.08-py2",
}
"""The container that each recipe needs: no packages of these frameworks exist for current Pythons without a GPU."""


def test_mxnet_imagenet_trains_with_every_kvstore_and_compression(lab):
    """Run a matrix of kvstore types and compression on one cluster, with one table of results."""
    (documented,) = blocks_for(__file__, "docs/guides/matrix.md")
    (first_page,) = blocks_for(__file__, "README.md")
    assert documented.startswith(first_page.rstrip())
    assert "train mxnet-imagenet " in documented
    table = lab.work / "kvstore.csv"
    process = lab.popen(*shlex.split(documented)[1:], "--yes", env=cached())
    try:
        out, err = process.communicate(timeout=INSTALLING_S)
    finally:
        process.kill()
    assert process.returncode == 0, f"{out}\n{err}"
    rows = list(csv.DictReader(table.read_text().splitlines()))
    losses = {(row["kvstore"], row["compression"]): float(row["loss"]) for row in rows}
    assert set(losses) == {(kind, how) for kind in ("dist_sync", "dist_async") for how in ("none", "2bit")}
    assert all(float(row["images_per_s"]) > 0 for row in rows)
    # The same seed: had nothing been compressed, both would have come to the same loss.
    assert losses["dist_sync", "none"] != losses["dist_sync", "2bit"]
    for kind, how in losses:
        greeting = rf"worker \d of 2 on CPU, MXNet 1\.9\.1, kvstore={kind} compression={how}$"
        assert len(re.findall(greeting, out + err, re.MULTILINE)) >= 2, err
    assert lab.left() == {}


def test_tensorflow_resnet50_trains_on_two_workers(lab):
    """Two workers share their variables; the chief writes TensorBoard events."""
    done = Trained(lab, "tensorflow-resnet50")
    for worker in (0, 1):
        assert done.said_once(f"worker {worker}: 2 replicas on CPU, TensorFlow 2.15.1, float32 xla=false")
    assert done.written["replicas"] == 2
    assert done.figure("images_per_s") == pytest.approx(done.written["images_per_s"], rel=1e-3)
    first = next(float(found[1]) for line in done.said if (found := re.search(r" - loss: (\S+)", line)))
    assert done.figure("loss") < first / 2, "the same batch again and again: a network that learns at all learns it"
    (events,) = (done.outputs / "tensorboard/train").iterdir()
    assert events.stat().st_size > 0


def test_theano_recipe_reaches_its_validation_error(lab):
    done = Trained(lab, "theano")
    assert done.said_once("Theano 1.0.5 on cpu, floats are float32")
    assert done.figure("validation_error") == pytest.approx(done.written["validation_error"])
    assert done.figure("validation_error") == pytest.approx(4.5, abs=1.0)  # one image is half a percent
    assert done.figure("images_per_s") > 0


@pytest.fixture(scope="module")
def horovod_python() -> str:
    """Build an environment with Horovod once, as the recipe's documentation describes."""
    directory = cache() / "horovod"
    line = [str(ROOT / "recipes/horovod/build.sh"), str(directory)]
    build = subprocess.run(line, capture_output=True, text=True, timeout=INSTALLING_S, check=False)
    if "not found: install" in build.stderr:
        pytest.skip(build.stderr.strip())
    assert build.returncode == 0, build.stdout + build.stderr
    return str(directory / "bin/python3")


def test_horovod_trains_two_ranks_under_mpirun(make_workspace, tmp_path, horovod_python):
    """Run two ranks under a real mpirun; their gradients are averaged."""
    with make_workspace(tmp_path) as workspace:
        done = Trained(workspace, "horovod", CLOUDGPU_REHEARSAL_PYTHON=horovod_python)
    for rank in (0, 1):
        assert any(re.match(rf"rank {rank} of 2 on \S+, CPU, MXNet 1\.9\.1$", line) for line in done.said), done.said
    assert done.written["ranks"] == 2
    assert done.figure("images_per_s") == pytest.approx(done.written["images_per_s"], rel=0.01)
    assert 0 < done.figure("loss") < 5


@pytest.mark.parametrize("name", NOT_RUN)
def test_recipe_that_needs_a_container_reports_not_run(lab, name):
    done = Trained(lab, name, state="not-run")
    assert done.told["reason"] == f"not run: needs {NOT_RUN[name]}"
    assert not done.said
    assert all(metric["value"] is None for metric in done.told["metrics"].values())


def test_every_recipe_is_covered_by_a_test():
    """The tests in this folder and the quickstart test together name every recipe folder."""
    folders = {path.parent.name for path in (ROOT / "recipes").glob("*/recipe.yaml")}
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_*_recipes.py")]
    carried = {name for text in texts for name in re.findall(r'(?:Trained\(\w+, "|recipes/|train )([\w-]+)', text)}
    assert folders == (carried & folders) | {"quickstart"} | set(NOT_RUN)
