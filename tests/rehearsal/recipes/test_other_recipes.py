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
from tests.rehearsal.recipes.recipe_run import INSTALL_TIMEOUT_S, ROOT, RecipeRun, cache_environment, cache_folder

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(1200)]


NOT_RUN = {
    "caffe2": "nvcr.io/nvidia/caffe2:18.08-py3",
    "cntk": "nvcr.io/nvidia/cntk:18.08-py3",
    "digits": "nvcr.io/nvidia/digits:21.02-tensorflow-py3",
    "nvcaffe": "nvcr.io/nvidia/caffe:20.03-py3",
    "torch7": "nvcr.io/nvidia/torch:18.08-py2",
}
"""The container that each recipe needs: no packages of these frameworks exist for current Pythons without a GPU."""


@pytest.mark.environments
def test_mxnet_imagenet_trains_with_every_kvstore_and_compression(recipe_workspace):
    """Run a matrix of kvstore types and compression on one cluster, with one table of results."""
    (documented,) = blocks_for(__file__, "docs/guides/matrix.md")
    (first_page,) = blocks_for(__file__, "README.md")
    assert documented.startswith(first_page.rstrip())
    assert "train mxnet-imagenet " in documented
    table = recipe_workspace.work / "kvstore.csv"
    process = recipe_workspace.popen(*shlex.split(documented)[1:], "--yes", env=cache_environment())
    try:
        out, err = process.communicate(timeout=INSTALL_TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, f"{out}\n{err}"
    rows = list(csv.DictReader(table.read_text().splitlines()))
    losses = {(row["kvstore"], row["compression"]): float(row["loss"]) for row in rows}
    assert set(losses) == {(kind, how) for kind in ("dist_sync", "dist_async") for how in ("none", "2bit")}
    assert all(float(row["images_per_s"]) > 0 for row in rows)
    # With the same seed, both losses would be equal if the gradients were not compressed.
    assert losses["dist_sync", "none"] != losses["dist_sync", "2bit"]
    for kind, how in losses:
        greeting = rf"worker \d of 2 on CPU, MXNet 1\.9\.1, kvstore={kind} compression={how}$"
        assert len(re.findall(greeting, out + err, re.MULTILINE)) >= 2, err
    assert recipe_workspace.left() == {}


@pytest.mark.environments
def test_tensorflow_resnet50_trains_on_two_workers(recipe_workspace):
    """Two workers share their variables; the chief writes TensorBoard events."""
    run = RecipeRun(recipe_workspace, "tensorflow-resnet50")
    for worker in (0, 1):
        assert run.printed_once(f"worker {worker}: 2 replicas on CPU, TensorFlow 2.15.1, float32 xla=false")
    assert run.metrics_file["replicas"] == 2
    assert run.metric("images_per_s") == pytest.approx(run.metrics_file["images_per_s"], rel=1e-3)
    first = next(float(found[1]) for line in run.lines if (found := re.search(r" - loss: (\S+)", line)))
    assert run.metric("loss") < first / 2, "the loss must decrease on a batch that is repeated"
    (events,) = (run.outputs / "tensorboard/train").iterdir()
    assert events.stat().st_size > 0


@pytest.mark.environments
def test_theano_recipe_reaches_its_validation_error(recipe_workspace):
    run = RecipeRun(recipe_workspace, "theano")
    assert run.printed_once("Theano 1.0.5 on cpu, floats are float32")
    assert run.metric("validation_error") == pytest.approx(run.metrics_file["validation_error"])
    assert run.metric("validation_error") == pytest.approx(4.5, abs=1.0)  # one image is half a percent
    assert run.metric("images_per_s") > 0


@pytest.fixture(scope="module")
def horovod_python() -> str:
    """Build an environment with Horovod once, as the recipe's documentation describes."""
    directory = cache_folder() / "horovod"
    line = [str(ROOT / "recipes/horovod/build.sh"), str(directory)]
    build = subprocess.run(line, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    if "not found: install" in build.stderr:
        pytest.skip(build.stderr.strip())
    assert build.returncode == 0, build.stdout + build.stderr
    return str(directory / "bin/python3")


@pytest.mark.environments
def test_horovod_trains_two_ranks_under_mpirun(make_workspace, tmp_path, horovod_python):
    """Run two ranks under a real mpirun; their gradients are averaged."""
    with make_workspace(tmp_path) as workspace:
        run = RecipeRun(workspace, "horovod", CLOUDGPU_REHEARSAL_PYTHON=horovod_python)
    for rank in (0, 1):
        assert any(re.match(rf"rank {rank} of 2 on \S+, CPU, MXNet 1\.9\.1$", line) for line in run.lines), run.lines
    assert run.metrics_file["ranks"] == 2
    assert run.metric("images_per_s") == pytest.approx(run.metrics_file["images_per_s"], rel=0.01)
    assert 0 < run.metric("loss") < 5


@pytest.mark.parametrize("name", NOT_RUN)
def test_recipe_that_needs_a_container_reports_not_run(recipe_workspace, name):
    run = RecipeRun(recipe_workspace, name, state="not-run")
    assert run.result["reason"] == f"not run: needs {NOT_RUN[name]}"
    assert not run.lines
    assert all(metric["value"] is None for metric in run.result["metrics"].values())


def test_every_recipe_is_covered_by_a_test():
    """The tests in this folder and the quickstart test together name every recipe folder."""
    folders = {path.parent.name for path in (ROOT / "recipes").glob("*/recipe.yaml")}
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_*_recipes.py")]
    tested = {name for text in texts for name in re.findall(r'(?:RecipeRun\(\w+, "|recipes/|train )([\w-]+)', text)}
    assert folders == (tested & folders) | {"quickstart"} | set(NOT_RUN)
