"""The patterns in docs/guides/metrics.md match real framework output."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from cloudgpu.recipe.schema import Metric
from cloudgpu.run.metrics import Metrics

PAGE = Path(__file__).parents[3] / "docs/guides/metrics.md"
EXCERPTS = Path(__file__).parent / "excerpts"
BLOCK = re.compile(r"^```yaml\n(?:# excerpt: (\S+)\n)?(.*?)^```$", re.MULTILINE | re.DOTALL)


def patterns():
    """Return the documented metrics by excerpt name."""
    blocks = BLOCK.findall(PAGE.read_text())
    return {excerpt: YAML(typ="safe", pure=True).load(text) for excerpt, text in blocks}


def excerpt(name):
    """Return the expected values by metric, and the log lines."""
    head, _, lines = (EXCERPTS / f"{name}.txt").read_text().partition("\n\n")
    source, *reads = head.splitlines()
    assert source.startswith("from: ")
    expected = dict(line.removeprefix("reads: ").split(" = ") for line in reads)
    return {metric: [float(value) for value in values.split()] for metric, values in expected.items()}, lines


@pytest.mark.parametrize("name", [name for name in patterns() if name])
def test_documented_pattern_matches_exactly_the_expected_log_lines(name):
    wanted = {metric: Metric.model_validate(fields) for metric, fields in patterns()[name].items()}
    expected, lines = excerpt(name)
    read = {metric: [] for metric in wanted}
    for line in lines.splitlines():
        for metric, value, _ in Metrics(wanted).read(line):
            read[metric].append(value)
    assert read == expected


def test_every_log_excerpt_has_a_documented_pattern():
    assert {path.stem for path in EXCERPTS.glob("*.txt")} == {name for name in patterns() if name}


def test_introductory_metric_example_is_valid():
    (metric,) = patterns()[""]["metrics"].values()
    assert Metric.model_validate(metric).over_ranks == "sum"
