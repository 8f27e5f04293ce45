"""The devices of a node that its containers get."""

from pathlib import Path

from cloudgpu.node.agent.containers import image
from cloudgpu.node.agent.containers.docker_api import DockerEndpoint


def reported() -> list[str]:
    """Return the devices in the agent's answer."""
    return image._engine(DockerEndpoint("docker", ""), {})["devices"]


def test_existing_rdma_and_gdrcopy_devices_are_reported(tmp_path: Path, monkeypatch) -> None:
    assert image._DEVICES == ("/dev/infiniband/*", "/dev/gdrdrv")
    monkeypatch.setattr(image, "_DEVICES", tuple(f"{tmp_path}{pattern}" for pattern in image._DEVICES))
    assert reported() == []
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    for name in ("infiniband/uverbs0", "infiniband/rdma_cm", "gdrdrv"):
        (tmp_path / "dev" / name).symlink_to("/dev/null")  # a character device
    (tmp_path / "dev/infiniband/by-path").mkdir()
    found = [path.removeprefix(str(tmp_path)) for path in reported()]
    assert found == ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0", "/dev/gdrdrv"]
