"""Image sharing between nodes: of two engines only the first pulls from the registry."""

from datetime import UTC, datetime

import pytest

from cloudgpu.errors import RemoteCommandError
from cloudgpu.ssh.keys import generate_certificate

pytestmark = pytest.mark.system


def pulled(registry, docker, load_image, name: str) -> str:
    """Push an image to the registry, remove it from the engine and return its name."""
    load_image(f"{name}:1", **{name: "#!/bin/sh\n"})
    registry.push(docker, f"{name}:1", f"team/{name}:1")
    docker.run("rmi", f"{name}:1")
    return f"{registry.address}/team/{name}:1"


def image_id(docker, image: str) -> str:
    return docker.run("image", "inspect", image, "--format", "{{.Id}}").stdout.decode().strip()


def test_only_first_node_pulls_image_and_shares_with_others(cluster, docker, other_docker, registry, load_image, login):
    image = pulled(registry, docker, load_image, "shared")
    gang = cluster(2, engines=(docker, other_docker))
    job = gang.job({"image": image, "login": login.user, "share": "head", "memlock": None})
    images = gang.images(job, login)
    assert images[0].image_id == images[1].image_id
    assert images[0].image.startswith(f"{registry.address}/team/shared@sha256:")
    assert images[1].image == images[1].image_id, "no registry has told its engine of a digest"
    assert sum("layers done" in line for line in gang.progress) == 1, gang.progress
    assert sum("from another node" in line for line in gang.progress) == 1, gang.progress
    assert image_id(other_docker, image) == images[0].image_id
    # Nobody hands anything over the second time, and nothing of the archive stays.
    gang.progress.clear()
    assert gang.images(job, login)[1].image_id == images[0].image_id
    assert f"image {image}: already on every node" in gang.progress
    assert not [one for one in gang.progress if "archive" in one]
    for folder in gang.root.glob("node-*/.cloudgpu/images"):
        assert list(folder.iterdir()) == []
    # The ranks of both nodes run in it.
    gang.start(job, images)
    assert [gang.wait(job, node)["state"] for node in (0, 1)] == ["succeeded", "succeeded"]


def test_local_image_of_first_node_is_shared_with_others(cluster, docker, other_docker, load_image):
    load_image("mine:1", mine="#!/bin/sh\n")
    gang = cluster(2, engines=(docker, other_docker))
    images = gang.images(gang.job({"image": "mine:1", "pull": "never", "share": "head"}))
    assert images[0].image_id == images[1].image_id


def test_image_sharing_without_disk_space_for_archive_is_rejected(cluster, docker, other_docker, load_image):
    load_image("large:1", large="#!/bin/sh\n")
    gang = cluster(2, engines=(docker, other_docker))
    _, other = gang.agents
    asked = {"id": image_id(docker, "large:1"), "archive_bytes": 1 << 60}
    request = {"image": "large:1", "repository": "large", "tag": "1", **asked}
    hand = {"url": "https://127.0.0.1:1", "token": "x", "cert": generate_certificate(datetime.now(UTC)).pem}
    with pytest.raises(RemoteCommandError, match=r"temporarily needs up to .* GiB") as caught:
        other.ask("image", {**request, "hand": hand})
    assert caught.value.code == "disk-full"
