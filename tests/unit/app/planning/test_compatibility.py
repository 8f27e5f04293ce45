"""Which containers have native code for which GPUs."""

import pytest

from cloudgpu.catalog.compatibility import container_fit, latest, month_of, release_of
from cloudgpu.catalog.compatibility import software as known_software


def fit(software, catalog, tag: str, gpu: str) -> str:
    (image,) = [container for container in software.images if container.image.endswith(tag)]
    return container_fit(image, catalog.gpus[gpu]).fit


@pytest.mark.parametrize(
    ("tag", "gpu", "expected"),
    [
        ("caffe2:18.08-py3", "V100", "native"),
        ("caffe2:18.08-py3", "T4", "untuned"),
        ("caffe2:18.08-py3", "A100", "no"),
        ("pytorch:24.12-py3", "V100", "native"),
        ("pytorch:24.12-py3", "A100", "native"),
        ("pytorch:24.12-py3", "B200", "no"),
        ("pytorch:24.12-py3", "K80", "no"),
        ("pytorch:25.01-py3", "V100", "no"),
        ("pytorch:25.01-py3", "B200", "native"),
        ("nccl-tests:cuda12.8", "V100", "no"),
        ("nccl-tests:cuda12.8", "A100", "native"),
    ],
)
def test_container_fit_depends_on_native_code_for_gpu(software, catalog, tag, gpu, expected):
    assert fit(software, catalog, tag, gpu) == expected


def test_container_fit_reason_names_the_limit(software, catalog):
    caffe2 = software.images[2]
    assert container_fit(caffe2, catalog.gpus["A100"]).why == "its native code stops at 7.0, but A100 has 8.0"
    assert (
        container_fit(software.images[1], catalog.gpus["V100"]).why == "its native code starts at 7.5, but V100 has 7.0"
    )
    assert (
        container_fit(software.images[0], catalog.gpus["B200"]).why
        == "the first NGC release that supports B200 is 25.01"
    )


def test_latest_container_per_framework_runs_on_the_gpu(software, catalog):
    assert [container.image.rpartition("/")[2] for container in latest(software, catalog.gpus["V100"])] == [
        "pytorch:24.12-py3",
        "caffe2:18.08-py3",
    ]
    assert [container.framework for container in latest(software, catalog.gpus["A100"])] == ["PyTorch", "nccl-tests"]
    assert latest(software, catalog.gpus["A100"])[0].image.endswith("pytorch:25.01-py3")
    assert latest(software, catalog.gpus["K80"]) == ()


def test_ngc_release_applies_only_to_nvidia_containers(software):
    assert [month_of(container.image) for container in software.images] == ["24.12", "25.01", "18.08", ""]
    assert release_of(software.images[0].image, software).cuda == "12.6.3"
    assert release_of(software.images[3].image, software) is None


def test_image_specific_cuda_version_overrides_the_ngc_release():
    assert release_of("nvcr.io/nvidia/mxnet:24.06-py3", known_software()).cuda == "12.4.1"
    assert release_of("nvcr.io/nvidia/pytorch:24.06-py3", known_software()).cuda == known_software().ngc["24.06"].cuda
