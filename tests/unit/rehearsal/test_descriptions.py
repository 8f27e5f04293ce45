"""Botocore's model of EC2 is loaded once per process and shared by all loaders; other models are not shared."""

from botocore.loaders import JSONFileLoader, Loader

from cloudgpu.rehearsal.server import botocore_models


def test_botocore_loaders_share_the_model_of_ec2(monkeypatch):
    monkeypatch.setattr(JSONFileLoader, "load_file", JSONFileLoader.load_file)
    apart = Loader().load_service_model("ec2", "service-2")
    botocore_models.share_loader_cache()
    shared = [Loader().load_service_model("ec2", "service-2") for _ in range(2)]
    assert shared[0] is shared[1]
    assert shared[0] is not apart
    assert shared[0]["metadata"] == apart["metadata"]


def test_client_of_s3_does_not_change_the_model_of_the_next_loader(monkeypatch):
    """The client removes the bucket from its model's paths with the first call."""
    monkeypatch.setattr(JSONFileLoader, "load_file", JSONFileLoader.load_file)
    botocore_models.share_loader_cache()
    model = Loader().load_service_model("s3", "service-2")
    model["operations"]["CreateBucket"]["http"]["requestUri"] = ""
    again = Loader().load_service_model("s3", "service-2")
    assert again["operations"]["CreateBucket"]["http"]["requestUri"] == "/{Bucket}"
