"""What `quota` makes of what was told: how many nodes that is, and what to ask AWS for."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.app.planning.quota_report import MARKETS, quota_report_lines, report_subjects
from cloudgpu.backends.quota_headroom import RegionQuotas
from cloudgpu.catalog import load
from cloudgpu.catalog.quotas import quota_of
from cloudgpu.errors import UsageError

CATALOG = load()
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
P, SPOT_P = "L-417A185B", "L-7212CCBC"


def told(limits, used=None, region="us-east-1"):
    return RegionQuotas(region, limits, NOW, used if used is not None else {}, NOW)


def only(about, found, market="on-demand", nodes=1):
    (line,) = quota_report_lines([found], about, [market], nodes)
    return line


def about(**options):
    return report_subjects(CATALOG, **{"gpu": "", "instance_type": "", **options})


def test_two_p3dn_under_a_quota_of_96_need_192():
    line = only(about(instance_type="p3dn.24xlarge"), told({P: 96}), nodes=2)
    assert (line.needed_vcpus, line.nodes_free, line.enough) == (192, 1, False)
    assert line.request == (
        "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-417A185B "
        "--desired-value 192 --region us-east-1"
    )


def test_what_runs_already_is_asked_for_as_well():
    line = only(about(instance_type="p3dn.24xlarge"), told({P: 192}, {P: 192}), nodes=2)
    assert (line.nodes_free, line.enough) == (0, False)
    assert "--desired-value 384" in line.request


def test_enough_asks_for_nothing():
    line = only(about(instance_type="p3dn.24xlarge"), told({P: 192}, {P: 96}))
    assert (line.nodes_free, line.enough, line.request) == (1, True, "")


def test_unknown_is_neither_enough_nor_too_little():
    kind = about(instance_type="p3dn.24xlarge")
    nothing = only(kind, RegionQuotas("us-east-1"))
    assert (nothing.room, nothing.nodes_free, nothing.enough) == (None, None, None)
    assert "--desired-value 96" in nothing.request
    uncounted = RegionQuotas("us-east-1", {P: 192}, NOW, None, None)
    assert (only(kind, uncounted).nodes_free, only(kind, uncounted).enough) == (None, None)
    # Whatever runs, a limit below what one node needs is too little.
    small = RegionQuotas("us-east-1", {P: 64}, NOW, None, None)
    assert only(kind, small).enough is False


def test_p6_spot_has_no_certain_code_so_no_command_is_made_up():
    kind = about(instance_type="p6-b200.48xlarge")
    line = only(kind, told({}), "spot")
    assert (line.room, line.request) == (None, "")
    found = told({quota_of("p6-b200.48xlarge", "spot").key: 192})
    assert only(kind, found, "spot").nodes_free == 1


def test_all_families_of_a_quota_are_one_line():
    found = quota_report_lines([told({P: 1})], about(gpu="P"), MARKETS, 1)
    assert [(one.market, one.quota.code) for one in found] == [
        ("on-demand", P),
        ("spot", "L-C4BD4855"),
        ("spot", ""),
        ("spot", SPOT_P),
    ]
    assert all(one.kind is None and one.needed_vcpus is None and one.request == "" for one in found)
    assert len(quota_report_lines([told({})], about(), ["on-demand"], 1)) == 2
    assert [one.quota.code for one in quota_report_lines([told({})], about(gpu="g"), ["on-demand"], 1)] == [
        "L-DB2E81BA"
    ]


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("V100", ["p3dn.24xlarge"]),
        ("V100:8", ["p3dn.24xlarge"]),
        ("V100-32GB", ["p3dn.24xlarge"]),
        ("A100-80GB:8", ["p4de.24xlarge"]),
        ("A100", ["p4d.24xlarge", "p4de.24xlarge"]),
    ],
)
def test_a_gpu_means_every_type_that_can_be_launched_with_it(spec, names):
    assert [one.name for one in about(gpu=spec)] == names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu": "V101"}, r"--gpu V101: unknown GPU V101; did you mean \"V100\"\?"),
        ({"gpu": "V100:3"}, "--gpu V100:3: no instance type has 3 V100; available: V100:8"),
        ({"gpu": "A100-60GB"}, "--gpu A100-60GB: A100 does not come with 60 GB of memory"),
        ({"gpu": "K80"}, "--gpu K80: "),
        ({"instance_type": "p3dn.24xlrage"}, r"unknown instance type p3dn.24xlrage; did you mean \"p3dn.24xlarge\"\?"),
        ({"instance_type": "dgx-2"}, "unknown instance type dgx-2"),
        ({"gpu": "V100", "instance_type": "p3dn.24xlarge"}, "are mutually exclusive"),
    ],
)
def test_what_nothing_is_called_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        about(**options)


@given(st.integers(0, 2000), st.none() | st.integers(0, 2000), st.integers(1, 9))
def test_enough_is_what_the_cloud_would_say(limit, used, nodes):
    found = RegionQuotas("us-east-1", {P: limit}, NOW, None if used is None else {P: used}, NOW)
    line = only(about(instance_type="p3dn.24xlarge"), found, nodes=nodes)
    if used is not None:
        assert line.enough == (max(0, limit - used) >= 96 * nodes)
    else:
        assert line.enough is (None if limit >= 96 * nodes else False)
    assert bool(line.request) == (line.enough is not True)
