"""Test cases for the checks of container images that were looked up in their registry."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudgpu.hosts.host import HostsFile, HostsView
from cloudgpu.plan.named_resources import ImageSeen, Lookups
from tests.unit.plan.checks.worlds import PlanInputs, boxed, fails, row

BOXED = "nvcr.io/nvidia/pytorch:24.12-py3"
OWN = "lab/own:1"
OWN_HOSTS = HostsView(HostsFile(Path("hosts.yaml"), ()))


def seen(presence: Any, why: str = "", *, image: str = OWN, asked: str = "", **given: Any) -> PlanInputs:
    """Return inputs with a container image and the registry's response."""
    known = {name: given.pop(name) for name in ("platforms", "packed_bytes", "on_loopback") if name in given}
    world = boxed(image, **given)
    lookups = Lookups(image=ImageSeen(asked or image, presence, why, **known))
    return replace(world, quotes=replace(world.quotes, lookups=lookups))


def baked(world: PlanInputs) -> PlanInputs:
    """Use a custom machine image, whose contents are unknown."""
    resources = {**world.recipe["resources"], "image": "ami-0123456789abcdef0"}
    return replace(world, recipe={**world.recipe, "resources": resources})


IMAGES = (
    row(
        "image-size",
        (
            boxed("nvcr.io/nvidia/pytorch:24.12-py3"),
            boxed("ubuntu:22.04", disk="150GiB"),
            boxed(BOXED, disk="70GiB", share="head"),
            boxed("ubuntu:22.04", disk="150GiB", share="head"),
        ),
        fails(
            boxed(BOXED, disk="69GiB", share="head"),
            (
                "error",
                f"{BOXED} takes about 20 GiB and three times that while the first node sends it to other nodes, "
                "but the disk has 69 GiB",
                "--set resources.disk=150GiB",
            ),
        ),
        fails(
            boxed("ubuntu:22.04", disk="149GiB", share="head"),
            (
                "unknown",
                "the size of ubuntu:22.04 is unknown, so a disk of 149 GiB may be too small",
                "--set resources.disk=150GiB",
            ),
        ),
        fails(
            boxed("nvcr.io/nvidia/pytorch:24.12-py3", disk="49GiB"),
            (
                "error",
                "nvcr.io/nvidia/pytorch:24.12-py3 takes about 20 GiB and twice that during the pull, "
                "but the disk has 49 GiB",
                "--set resources.disk=150GiB",
            ),
        ),
        fails(
            boxed("ubuntu:22.04", disk="149GiB"),
            (
                "unknown",
                "the size of ubuntu:22.04 is unknown, so a disk of 149 GiB may be too small",
                "--set resources.disk=150GiB",
            ),
        ),
        fails(
            seen("there", image=BOXED, disk="189GiB", packed_bytes=60 * 2**30),
            (
                "error",
                f"{BOXED} is 60.0 GiB compressed and needs about three times that while it is unpacked, "
                "but the disk has 189 GiB",
                "--set resources.disk=190GiB",
            ),
        ),
    ),
    row(
        "image-there",
        (seen("there"), seen("missing", asked="lab/another:1"), boxed("lab/own:1")),
        fails(
            seen("missing", "docker.io has no lab/own:1"),
            ("error", "docker.io has no lab/own:1", "correct environment.container.image"),
        ),
        fails(
            seen("refused", "docker.io does not give lab/own:1 to ann"),
            (
                "error",
                "docker.io does not give lab/own:1 to ann",
                "check environment.container.image, login and password",
            ),
        ),
        fails(
            seen("unknown", "docker.io did not answer within 5 s"),
            ("unknown", "cannot tell whether lab/own:1 can be pulled: docker.io did not answer within 5 s", ""),
        ),
        fails(
            seen(
                "missing", "127.0.0.1:5000 has no 127.0.0.1:5000/own:1", image="127.0.0.1:5000/own:1", on_loopback=True
            ),
            (
                "unknown",
                "127.0.0.1:5000 has no 127.0.0.1:5000/own:1; on a node, this address is a different registry",
                "",
            ),
        ),
        fails(
            baked(seen("missing", "docker.io has no lab/own:1")),
            (
                "warning",
                "docker.io has no lab/own:1; only nodes that already have the image can run it",
                "correct environment.container.image",
            ),
        ),
        fails(
            baked(seen("missing", "docker.io has no lab/own:1", pull="always")),
            ("error", "docker.io has no lab/own:1", "correct environment.container.image"),
        ),
    ),
    row(
        "image-machine",
        (seen("there"), seen("there", platforms=("linux/amd64", "linux/arm64"))),
        fails(
            seen("there", platforms=("linux/arm64", "linux/s390x")),
            (
                "error",
                "lab/own:1 is built for linux/arm64, linux/s390x, but the nodes are linux/amd64",
                "choose a tag that is built for linux/amd64",
            ),
        ),
        fails(
            replace(seen("there", platforms=("linux/arm64",)), hosts=OWN_HOSTS),
            (
                "unknown",
                "lab/own:1 is built for linux/arm64; the architecture of these hosts was not checked",
                "",
            ),
        ),
    ),
)
