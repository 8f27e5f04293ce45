"""Test cases for the checks of containers, drivers and wheels."""

from dataclasses import replace

from tests.unit.plan.checks.worlds import ONE, PlanInputs, boxed, fails, rehearsed, resources, row

DLAMI = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"


def python(*requirements, **given):
    return PlanInputs({"environment": {"python": {"requirements": list(requirements), **given}}})


def on(world, instance_type, nodes=1, **wanted):
    hardware = {"instance_type": instance_type, "nodes": nodes, **wanted}
    return replace(world, recipe={**world.recipe, "resources": hardware})


SOFTWARE = (
    row(
        "image",
        boxed("nvcr.io/nvidia/pytorch:24.12-py3"),
        fails(
            boxed("nvcr.io/nvidia/pytorch:25.01-py3"),
            (
                "error",
                "nvcr.io/nvidia/pytorch:25.01-py3 cannot run on V100 (p3dn.24xlarge): "
                "its native code starts at 7.5, but V100 has 7.0",
                "--set environment.container.image=nvcr.io/nvidia/pytorch:24.12-py3",
            ),
        ),
    ),
    row(
        "container-code",
        boxed("nvcr.io/nvidia/pytorch:24.12-py3"),
        fails(
            on(boxed("nvcr.io/nvidia/caffe2:18.08-py3"), "g4dn.12xlarge"),
            ("warning", "nvcr.io/nvidia/caffe2:18.08-py3 is not tuned for T4: its newest native code is for 7.0", ""),
        ),
        fails(
            boxed("lab/own:1"),
            ("unknown", "cannot tell whether lab/own:1 contains code for V100: the image is not in the catalog", ""),
        ),
    ),
    row(
        "torch",
        python("torch>=2.11", torch_backend="cu126"),
        fails(
            python("torch>=2.11"),
            (
                "error",
                "the default wheels (cu130) of PyTorch 2.11 and later do not run on V100: they "
                "support compute capabilities 7.5 to 12.0, but V100 has 7.0; the requirements allow this release "
                "(p3dn.24xlarge)",
                "--set environment.python.torch_backend=cu126",
            ),
        ),
    ),
    row(
        "torch-on-aws",
        (python("torch>=2.11"), rehearsed(python("torch>=2.6,<2.11"))),
        fails(
            rehearsed(python("torch>=2.11")),
            (
                "note",
                "on AWS: the default wheels (cu130) of PyTorch 2.11 and later do not run on V100: "
                "they support compute capabilities 7.5 to 12.0, but V100 has 7.0; the requirements allow "
                "this release",
                "--set environment.python.torch_backend=cu126",
            ),
        ),
    ),
    row(
        "torch-brought",
        (
            python("torchvision", "torch~=2.10.0"),
            python("timm", torch_backend="cu126"),
            python("einops"),
            on(python("torchvision"), "g4dn.12xlarge"),
        ),
        fails(
            python("PyTorch_Lightning>=2", "einops"),
            (
                "unknown",
                "pytorch-lightning may install a PyTorch release that does not support V100, "
                "because the recipe does not pin the version",
                "add torch to the requirements",
            ),
        ),
    ),
    row(
        "machine-image",
        on(PlanInputs({}), "g4dn.12xlarge", image=DLAMI),
        fails(
            resources(**ONE, image=DLAMI),
            (
                "error",
                f"{DLAMI} has NVIDIA's open kernel modules, which do not support V100 (Volta); "
                "without resources.image the nodes get plain Ubuntu, and the bootstrap installs R580 "
                "with the proprietary modules",
                "--set resources.image=",
            ),
        ),
    ),
    row(
        "driver",
        resources(**ONE, driver=580),
        fails(
            resources(**ONE, driver=595),
            (
                "error",
                "driver R595 does not support V100 (p3dn.24xlarge): the last branch for Volta is R580",
                "--set resources.driver=580",
            ),
        ),
    ),
    row(
        "cuda",
        on(boxed("nvcr.io/nvidia/pytorch:26.06-py3"), "g5.xlarge", driver=610),
        fails(
            on(boxed("nvcr.io/nvidia/pytorch:26.06-py3"), "g5.xlarge", driver=470),
            (
                "error",
                "nvcr.io/nvidia/pytorch:26.06-py3 is built for CUDA 13.3.0, which needs driver R580 or newer, not R470",
                "--set resources.driver=580",
            ),
        ),
    ),
    row(
        "driver-known",
        (PlanInputs(), on(PlanInputs(), "g4dn.12xlarge", image=DLAMI)),
        fails(
            resources(**ONE, image="ami-0123456789abcdef0"),
            (
                "unknown",
                "cannot tell whether ami-0123456789abcdef0 has a driver: the bootstrap installs one if none is present",
                "",
            ),
        ),
    ),
    row(
        "driver-given",
        (resources(**ONE, driver=580), resources(**ONE, driver=580, image="ami-0123456789abcdef0")),
        fails(
            on(PlanInputs(), "g4dn.12xlarge", driver=580, image=DLAMI),
            ("error", f"resources.driver is 580, but {DLAMI} already has R595", "--set resources.image="),
        ),
    ),
    row(
        "efa-software",
        (on(boxed("nvcr.io/nvidia/pytorch:24.12-py3"), "p3dn.24xlarge"), on(boxed("lab/own:1"), "p5.48xlarge")),
        fails(
            on(boxed("nvcr.io/nvidia/pytorch:24.05-py3"), "p5.48xlarge", 2),
            (
                "note",
                "EFA on p5.48xlarge needs NCCL 2.18.5 or newer and aws-ofi-nccl 1.7.3 or newer in the container",
                "add the libraries to a framework image with images/efa-nccl",
            ),
        ),
    ),
)
