"""Map instance types to the vCPU quota they count against."""

import pytest

from cloudgpu.catalog.prices_and_quotas import quota_of


@pytest.mark.parametrize(
    ("instance_type", "market", "code"),
    [
        ("p3dn.24xlarge", "on-demand", "L-417A185B"),
        ("p5en.48xlarge", "on-demand", "L-417A185B"),
        ("p6-b200.48xlarge", "on-demand", "L-417A185B"),
        ("p3.2xlarge", "spot", "L-7212CCBC"),
        ("p4de.24xlarge", "spot", "L-7212CCBC"),
        ("p5e.48xlarge", "spot", "L-C4BD4855"),
        ("p6-b200.48xlarge", "spot", ""),
        ("g4dn.xlarge", "on-demand", "L-DB2E81BA"),
        ("vt1.3xlarge", "on-demand", "L-DB2E81BA"),
        ("g6e.48xlarge", "spot", "L-3819A6DF"),
        ("m7i.large", "on-demand", "L-1216C47A"),
        ("c5.large", "spot", "L-34B43A08"),
        ("inf2.xlarge", "on-demand", ""),
        ("trn1.2xlarge", "on-demand", ""),
        ("hpc7a.96xlarge", "on-demand", ""),
        ("dl1.24xlarge", "on-demand", ""),
        ("mac2.metal", "on-demand", ""),
        ("x1.16xlarge", "spot", ""),
    ],
)
def test_quota_code_matches_instance_type_and_market(instance_type, market, code):
    assert quota_of(instance_type, market).code == code


def test_accelerator_families_use_separate_quotas():
    assert quota_of("inf2.xlarge", "on-demand") != quota_of("trn1.2xlarge", "on-demand")
    assert quota_of("inf1.xlarge", "on-demand") == quota_of("inf2.xlarge", "on-demand")


def test_quota_links_to_its_console_page():
    console = "https://eu-west-1.console.aws.amazon.com/servicequotas/home/services/ec2/quotas"
    assert quota_of("p4d.24xlarge", "on-demand").console("eu-west-1") == f"{console}/L-417A185B"
    assert quota_of("p6-b200.48xlarge", "spot").console("eu-west-1") == console
    assert str(quota_of("p4d.24xlarge", "on-demand")) == "Running On-Demand P instances (L-417A185B)"
