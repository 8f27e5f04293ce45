"""How `quota` turns limits and usage into node counts and increase requests."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.app.planning.quota_report import MARKETS, quota_report_lines, report_subjects
from cloudgpu.backends.quota_headroom import RegionQuotas
from cloudgpu.catalog import load
from cloudgpu.catalog.prices_and_quotas import quota_of
from cloudgpu.errors import UsageError

CATALOG = load()
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
P, SPOT_P = "L-417A185B", "L-7212CCBC"


def region_quotas(limits, used=None, region="us-east-1"):
    return RegionQuotas(region, limits, NOW, used if used is not None else {}, NOW)


def only(about, found, market="on-demand", nodes=1):
    (line,) = quota_report_lines([found], about, [market], nodes)
    return line


def about(**options):
    return report_subjects(CATALOG, **{"gpu": "", "instance_type": "", **options})


def test_two_p3dn_nodes_need_192_vcpus():
    line = only(about(instance_type="p3dn.24xlarge"), region_quotas({P: 96}), nodes=2)
    assert (line.needed_vcpus, line.nodes_free, line.enough) == (192, 1, False)
    assert line.request == (
        "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-417A185B "
        "--desired-value 192 --region us-east-1"
    )


def test_running_vcpus_are_added_to_the_requested_increase():
    line = only(about(instance_type="p3dn.24xlarge"), region_quotas({P: 192}, {P: 192}), nodes=2)
    assert (line.nodes_free, line.enough) == (0, False)
    assert "--desired-value 384" in line.request


def test_sufficient_quota_suggests_no_increase():
    line = only(about(instance_type="p3dn.24xlarge"), region_quotas({P: 192}, {P: 96}))
    assert (line.nodes_free, line.enough, line.request) == (1, True, "")


def test_unknown_quota_or_usage_leaves_the_result_unknown():
    kind = about(instance_type="p3dn.24xlarge")
    nothing = only(kind, RegionQuotas("us-east-1"))
    assert (nothing.room, nothing.nodes_free, nothing.enough) == (None, None, None)
    assert "--desired-value 96" in nothing.request
    uncounted = RegionQuotas("us-east-1", {P: 192}, NOW, None, None)
    assert (only(kind, uncounted).nodes_free, only(kind, uncounted).enough) == (None, None)
    # A limit below the need of one node is too low, whatever is in use.
    small = RegionQuotas("us-east-1", {P: 64}, NOW, None, None)
    assert only(kind, small).enough is False


def test_quota_without_known_code_suggests_no_command():
    kind = about(instance_type="p6-b200.48xlarge")
    line = only(kind, region_quotas({}), "spot")
    assert (line.room, line.request) == (None, "")
    found = region_quotas({quota_of("p6-b200.48xlarge", "spot").key: 192})
    assert only(kind, found, "spot").nodes_free == 1


def test_families_of_the_same_quota_share_a_line():
    found = quota_report_lines([region_quotas({P: 1})], about(gpu="P"), MARKETS, 1)
    assert [(line.market, line.quota.code) for line in found] == [
        ("on-demand", P),
        ("spot", "L-C4BD4855"),
        ("spot", ""),
        ("spot", SPOT_P),
    ]
    assert all(line.kind is None and line.needed_vcpus is None and line.request == "" for line in found)
    assert len(quota_report_lines([region_quotas({})], about(), ["on-demand"], 1)) == 2
    assert [line.quota.code for line in quota_report_lines([region_quotas({})], about(gpu="g"), ["on-demand"], 1)] == [
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
def test_gpu_spec_selects_every_launchable_type_with_that_gpu(spec, names):
    assert [kind.name for kind in about(gpu=spec)] == names


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
def test_unknown_gpu_or_instance_type_is_rejected(options, message):
    with pytest.raises(UsageError, match=message):
        about(**options)


@given(st.integers(0, 2000), st.none() | st.integers(0, 2000), st.integers(1, 9))
def test_quota_is_enough_exactly_if_headroom_covers_all_nodes(limit, used, nodes):
    found = RegionQuotas("us-east-1", {P: limit}, NOW, None if used is None else {P: used}, NOW)
    line = only(about(instance_type="p3dn.24xlarge"), found, nodes=nodes)
    if used is not None:
        assert line.enough == (max(0, limit - used) >= 96 * nodes)
    else:
        assert line.enough is (None if limit >= 96 * nodes else False)
    assert bool(line.request) == (line.enough is not True)
