"""Descriptions of services are read once a process, whichever loader asks."""

from botocore.loaders import JSONFileLoader, Loader

from cloudgpu.rehearsal.server import botocore_models


def test_two_loaders_share_what_one_of_them_read(monkeypatch):
    monkeypatch.setattr(JSONFileLoader, "load_file", JSONFileLoader.load_file)
    apart = [Loader().load_service_model("sts", "service-2") for _ in range(2)]
    assert apart[0] is not apart[1]
    botocore_models.share_loader_cache()
    shared = [Loader().load_service_model("sts", "service-2") for _ in range(2)]
    assert shared[0] is shared[1]
    assert shared[0] == apart[0]
