"""Storage requests built from options. Invalid options are rejected before any cloud call."""

from decimal import Decimal

import pytest

from cloudgpu.app.storage import StorageOptions, make_storage_request, request_price
from cloudgpu.catalog.prices_and_quotas import other_price, storage_price
from cloudgpu.errors import UsageError


def test_linked_file_system_request_includes_network_settings():
    typed = StorageOptions("sets", "lustre", 1200, "us-west-2b", "persistent_2", "s3://my-sets/imagenet")
    made = make_storage_request(typed, "us-east-1", {"vpcId": "vpc-1"})
    assert (made.region, made.disposable) == ("us-west-2", False)
    assert made.config == {
        "zone": "us-west-2b",
        "sizeGib": "1200",
        "deployment": "persistent_2",
        "linked": "s3://my-sets/imagenet",
        "vpcId": "vpc-1",
    }


def test_elastic_storage_needs_only_a_name():
    for kind in ("efs", "s3"):
        made = make_storage_request(StorageOptions("sets", kind), "eu-west-1", {})
        assert (made.region, made.config) == ("eu-west-1", {})


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (StorageOptions("Sets", "efs"), "is not a valid storage name"),
        (StorageOptions("sets", "efs", size_gib=100), "--size does not apply to efs: efs storage grows"),
        (StorageOptions("sets", "s3", zone="us-east-1a"), "--zone does not apply to s3"),
        (StorageOptions("sets", "ebs", 8, "us-east-1a", linked="s3://bucket"), "--linked does not apply to ebs"),
        (StorageOptions("sets", "lustre", 1200, "us-east-1a", snapshot_id="snap-1"), "--from-snapshot does not apply"),
        (StorageOptions("sets", "lustre", 1300, "us-east-1a"), "--size 1300: Lustre requires 1200 GiB"),
        (StorageOptions("sets", "lustre", zone="us-east-1a"), "--size 0: Lustre"),
        (StorageOptions("sets", "ebs", zone="us-east-1a"), "a volume requires --size"),
        (StorageOptions("sets", "ebs", -1, "us-east-1a"), "--size -1"),
        (StorageOptions("sets", "ebs", 8), "ebs storage is in one zone"),
        (StorageOptions("sets", "ebs", 8, "us-east-1"), "ebs storage is in one zone"),
        (StorageOptions("sets", "lustre", 1200, "us-east-1a", linked="my-sets"), "expected s3://bucket/prefix"),
    ],
)
def test_invalid_storage_option_is_rejected_by_name(typed, message):
    with pytest.raises(UsageError, match=message):
        make_storage_request(typed, "us-east-1", {})


@pytest.mark.parametrize(
    ("kind", "region", "usd"),
    [("s3", "eu-central-1", "0.0245"), ("efs", "eu-central-1", "0.36"), ("efs", "us-west-2", "0.30")],
)
def test_storage_has_price_outside_us_east_1(kind, region, usd):
    price = storage_price(kind, region)
    assert (price.usd, bool(price.source)) == (Decimal(usd), True)


def test_storage_prices_are_unknown_outside_priced_regions():
    lustre = make_storage_request(StorageOptions("sets", "lustre", 2400, "us-east-1a"), "us-east-1", {})
    assert request_price(lustre, "lustre")[1] == Decimal("336.00")
    replicated = make_storage_request(
        StorageOptions("sets", "lustre", 2400, "us-east-1a", "persistent_2"), "us-east-1", {}
    )
    assert request_price(replicated, "lustre")[1] == Decimal("348.000")
    assert request_price(make_storage_request(StorageOptions("sets", "efs"), "us-east-1", {}), "efs")[1] is None
    assert request_price(
        make_storage_request(StorageOptions("sets", "lustre", 2400, "us-west-2a"), "us-east-1", {}), "lustre"
    ) == (
        None,
        None,
    )
    # Plans and storage use the same gp3 price.
    disk, usd = request_price(
        make_storage_request(StorageOptions("sets", "ebs", 8, "eu-west-1a"), "us-east-1", {}), "ebs"
    )
    assert (disk.usd, usd) == (other_price("gp3_gib_month_usd", "eu-west-1").usd, Decimal("0.704"))
    assert request_price(
        make_storage_request(StorageOptions("sets", "ebs", 8, "me-south-1a"), "us-east-1", {}), "ebs"
    ) == (None, None)
    price = storage_price("s3", "us-east-1")
    assert (price.usd * Decimal(1000), price.priced_on.isoformat()) == (Decimal("23.000"), "2026-07-01")
