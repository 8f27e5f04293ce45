"""Compatibility of GPU, driver, CUDA, container and PyTorch wheels, with handmade and real catalog data."""

from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from cloudgpu.backends.aws.clusters.launch_attempt import node_kind
from cloudgpu.catalog import load
from cloudgpu.catalog.catalog import bare_image, carried_driver, driver_for
from cloudgpu.catalog.compatibility import FabricMinimum, FrameworkImage, NgcMonth, Software, TorchWheels, software
from cloudgpu.node.bootstrap import EFA_INSTALLER, bootstrap_script
from cloudgpu.plan import exclusions, planner
from cloudgpu.plan.checks.container_and_driver import container_choices, image_support, parse_image_tag, repository
from cloudgpu.plan.checks.software_torch import allows, backends_for, series_for, torch_bounds, torch_misfit, wheels_of
from cloudgpu.plan.node_software import machine_image, node_driver
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe.schema import PythonEnvironment, Recipe

CATALOG = load()
GPUS = CATALOG.gpus
OSS = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
PROPRIETARY = "/aws/service/deeplearning/ami/x86_64/base-proprietary-nvidia-driver-amazon-linux-2/latest/ami-id"
UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
MONTHS = {
    "20.03": NgcMonth("20.03", "10.2.89", 440, (418,), "6.0", "made"),
    "23.01": NgcMonth("23.01", "12.0.1", 525, (470,), "6.0", "made"),
    "25.08": NgcMonth("25.08", "13.0.1", 580, (), "7.5", "made"),
}
BOX = "registry.example/box"
MADE = Software(
    ngc=MONTHS,
    images=(
        FrameworkImage("box", f"{BOX}:1", "8.0", None, (), False, "made"),
        FrameworkImage("box", f"{BOX}:2", "6.0", "7.0", (), False, "made"),
        FrameworkImage("box", f"{BOX}:3", None, None, (), False, "made"),
        FrameworkImage("new", "registry.example/new:1", "9.0", None, (), False, "made"),
    ),
    torch=(
        TorchWheels("cu118", "2.0", "2.3", ("5.0", "7.0", "8.0"), "2.0", "2.3", "made"),
        TorchWheels("cu126", "2.4", "2.9", ("7.0", "8.0", "9.0"), "2.4", "2.6", "made"),
        TorchWheels("cu130", "2.7", None, ("7.5", "8.0", "9.0", "10.0"), "2.7", None, "made"),
    ),
    fabric={"p5.48xlarge": FabricMinimum("p5.48xlarge", "1.29.0", "1.7.3", "2.18.5", "12.0", "made")},
)


def recipe(environment=None, **resources):
    return Recipe.model_validate(
        {
            "schema": 1,
            "name": "tiny",
            "resources": {"instance_type": "p3dn.24xlarge", **resources},
            "environment": environment or {},
            "launch": {"with": "torchrun", "command": "train.py"},
        }
    )


def asked(one, *, target="aws", known=MADE):
    return PlannerInput(one, target, CATALOG, Quotes(), "us-east-1", date(2026, 8, 1), software=known)


def boxed(image, **resources):
    return recipe({"container": {"image": image}}, **resources)


def required(*lines, resources=None, **more):
    return recipe({"python": {"requirements": list(lines), **more}}, **(resources or {}))


def thrown_out(one, **world):
    planner_input = asked(one, **world)
    return {reason.check for reason in exclusions.type_exclusions(planner_input, planner_input.types[0])}


def found(one, **world):
    return {(finding.check, finding.severity) for finding in planner.plan_with_findings(asked(one, **world)).findings}


@pytest.mark.parametrize(
    ("image", "gpu", "fit"),
    [
        ("nvcr.io/nvidia/pytorch:24.12-py3", "V100", "native"),
        ("nvcr.io/nvidia/pytorch:25.01-py3", "V100", "no"),
        ("nvcr.io/nvidia/pytorch:17.08", "V100", "no"),
        ("nvcr.io/nvidia/pytorch:18.08-py3", "T4", "untuned"),  # Volta's code; Turing came with 18.09
        ("nvcr.io/nvidia/pytorch:20.06-py3", "A10G", "untuned"),
        ("nvcr.io/nvidia/pytorch:20.03-py3", "A100", "no"),  # nothing of its major version was known
        ("nvcr.io/nvidia/pytorch:25.01-py3", "B300", "untuned"),
        ("nvcr.io/nvidia/pytorch:24.12-py3", "B200", "no"),
        ("nvcr.io/nvidia/pytorch:23.01-py3", "K80", "no"),
        (f"{BOX}:1", "V100", "no"),
        (f"{BOX}:1", "A100", "native"),
        (f"{BOX}:2", "T4", "untuned"),
        (f"{BOX}:2", "A100", "no"),
        (f"{BOX}:3", "A100", None),
        (f"{BOX}:9", "A100", None),
        ("registry.example/new:7", "A100", None),
        ("ubuntu:22.04", "V100", None),
        ("nvcr.io/nvidia/pytorch@sha256:0", "V100", None),
        ("nvidia/cuda:13.0.1-devel-ubuntu22.04", "V100", "no"),
        ("nvidia/cuda:13.0.1-devel-ubuntu22.04", "T4", None),
        ("nvidia/cuda:12.9.1-devel-ubuntu22.04", "V100", None),
        ("pytorch/pytorch:2.8.0-cuda13.0-cudnn9-runtime", "V100", "no"),
        ("pytorch/pytorch:2.8.0-cuda13.0-cudnn9-runtime", "B200", "native"),
        ("pytorch/pytorch:2.8.0-cuda12.6-cudnn9-runtime", "V100", "native"),
        ("pytorch/pytorch:2.8.0-cuda12.6-cudnn9-runtime", "B200", "no"),
        ("pytorch/pytorch:2.99.0-cuda12.6-cudnn9-runtime", "V100", None),
    ],
)
def test_container_support_level_is_determined_per_gpu(image, gpu, fit):
    assert image_support(image, GPUS[gpu], asked(recipe())).fit == fit


@pytest.mark.parametrize(
    ("image", "cuda", "torch"),
    [
        ("pytorch/pytorch:2.11.0-cuda13.0-cudnn9-runtime", "13.0", "2.11"),
        ("docker.io/pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel@sha256:0", "12.4", "2.6"),
        ("1234.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-ec2", "12.4", "2.5"),
        ("nvidia/cuda:12.8.1-cudnn-devel-ubuntu22.04", "12.8", None),
        ("lab/own:cuda11.8", "11.8", None),
        ("lab/cuda:13.0", None, None),
        ("localhost:5000/lab/own", None, None),
        ("lab/own:accu126-x", None, None),
        ("lab/own", None, None),
    ],
)
def test_image_tag_reveals_cuda_and_torch_versions(image, cuda, torch):
    assert (parse_image_tag(image).cuda, parse_image_tag(image).torch) == (cuda, torch)


def test_cuda_version_of_image_tag_requires_a_matching_driver():
    one = "pytorch/pytorch:2.8.0-cuda12.6-cudnn9-runtime"
    assert thrown_out(boxed(one, instance_type="g4dn.12xlarge", driver=515)) == {"cuda"}
    assert thrown_out(boxed(one, instance_type="g4dn.12xlarge", driver=525)) == set()


@pytest.mark.parametrize(("driver", "refused"), [(384, set()), (390, {"cuda"}), (410, set()), (470, set())])
def test_pre_cuda_11_image_accepts_older_driver_only_if_listed(driver, refused):
    old = recipe({"container": {"image": "nvcr.io/nvidia/pytorch:18.09-py3"}}, driver=driver)
    planned = planner.plan_with_findings(asked(old, known=software()))
    assert {one.check for one in planned.errors} & {"cuda"} == refused


def test_unknown_container_image_is_reported_as_unknown():
    assert ("container-code", "unknown") in found(boxed("ubuntu:22.04"), target="rehearsal")
    assert ("container-code", "unknown") not in found(boxed("nvcr.io/nvidia/pytorch:23.01-py3"), target="rehearsal")


def test_suggested_image_tags_exist_and_support_the_gpu():
    planner_input = asked(recipe(), known=software())
    choices = lambda image, gpu: list(container_choices(image, GPUS[gpu], planner_input))  # noqa: E731
    assert choices("nvcr.io/nvidia/pytorch:25.03-py3", "V100")[0] == "nvcr.io/nvidia/pytorch:24.12-py3"
    # TensorFlow 1 ended with 23.03, so that there is no 24.12 of it.
    assert choices("nvcr.io/nvidia/tensorflow:25.03-tf1-py3", "V100")[0] == "nvcr.io/nvidia/tensorflow:23.03-tf1-py3"
    assert choices("nvcr.io/nvidia/caffe2:18.08-py3", "A100") == []


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("nvcr.io/nvidia/pytorch:24.12-py3", "nvcr.io/nvidia/pytorch"),
        ("localhost:5000/a/b", "localhost:5000/a/b"),
        ("localhost:5000/a/b:c", "localhost:5000/a/b"),
        ("a/b@sha256:00", "a/b"),
        ("a/b:c@sha256:00", "a/b"),
    ],
)
def test_image_repository_is_parsed_without_tag_and_digest(image, name):
    assert repository(image) == name


@pytest.mark.parametrize(
    ("resources", "gpu", "driver"),
    [
        ({}, "V100", (580, "proprietary", True)),
        ({"driver": 535}, "V100", (535, "proprietary", True)),
        ({}, "T4", (595, "open", False)),
        ({"driver": 550}, "T4", (550, "proprietary", True)),
        ({"image": OSS}, "V100", (595, "open", False)),
        ({"image": PROPRIETARY}, "V100", (570, "proprietary", False)),
        ({"image": UBUNTU}, "V100", (580, "proprietary", True)),
        ({"image": "ami-0123456789abcdef0"}, "V100", (None, None, False)),
        ({"image": "/aws/service/deeplearning/ami/x86_64/other/ami-id"}, "V100", (None, None, False)),
        ({"image": "/lab/images/ours"}, "V100", (None, None, False)),
    ],
)
def test_node_driver_matches_machine_image_and_request(resources, gpu, driver):
    there = node_driver(recipe(**resources), GPUS[gpu])
    assert (there.branch, there.flavour, there.installed) == driver


def test_explicit_driver_selects_bare_image_and_is_installed_by_bootstrap():
    one = recipe(instance_type="g4dn.12xlarge", driver=550)
    assert machine_image(one, GPUS["T4"]) == bare_image().parameter
    plan = planner.plan_with_findings(asked(one))
    assert {candidate.image_parameter for candidate in plan.candidates} == {bare_image().parameter}
    assert carried_driver(bare_image().parameter) is None
    text = bootstrap_script(node_kind(plan, plan.candidates[0]))
    assert "\ndriver_branch=550\n" in text
    assert "\ndriver_branch=580\n" in bootstrap_script(
        node_kind(planner.plan_with_findings(asked(recipe())), plan.candidates[0])
    )


def test_bootstrap_installs_pdsh_for_multi_node_deepspeed_only():
    started = {"with": "deepspeed", "command": "deepspeed --hostfile {hostfile} train.py"}

    def steps(nodes, launch):
        one = recipe(instance_type="p4d.24xlarge", nodes=nodes)
        plan = planner.plan_with_findings(
            asked(Recipe.model_validate({**one.model_dump(by_alias=True), "launch": launch}))
        )
        return bootstrap_script(node_kind(plan, plan.candidates[0]))

    assert "\nstep pdsh\n" in steps(2, started)
    assert "\nstep pdsh\n" not in steps(1, started)
    assert "\nstep pdsh\n" not in steps(2, {"with": "torchrun", "command": "train.py"})


@pytest.mark.parametrize(
    ("resources", "rules"),
    [
        ({}, set()),
        ({"image": OSS}, {"machine-image"}),
        ({"image": PROPRIETARY}, set()),
        ({"driver": 595}, {"driver"}),
        ({"driver": 340}, {"driver"}),
        ({"driver": 470}, set()),
        ({"instance_type": "g4dn.12xlarge", "image": OSS}, set()),
        ({"instance_type": "p4d.24xlarge", "driver": 418}, {"driver"}),
        ({"instance_type": "p2.xlarge", "driver": 580}, {"retired", "driver"}),
        ({"instance_type": "p2.xlarge", "driver": 470}, {"retired"}),
    ],
)
def test_driver_unsupported_by_the_gpu_excludes_the_type(resources, rules):
    assert thrown_out(recipe(**resources)) == rules


@pytest.mark.parametrize(
    ("month", "driver", "fits"),
    [
        ("23.01", 525, True),
        ("23.01", 580, True),
        ("23.01", 470, True),  # its notes accept it
        ("23.01", 515, False),
        ("20.03", 440, True),
        ("20.03", 418, True),
        ("20.03", 410, False),  # before CUDA 11 only what the notes say
        ("25.08", 580, True),
        ("25.08", 575, False),
        ("24.07", 410, True),  # nobody looked it up
    ],
)
def test_container_requires_a_driver_that_supports_its_cuda(month, driver, fits):
    one = boxed(f"nvcr.io/nvidia/pytorch:{month}-py3", instance_type="g4dn.12xlarge", driver=driver)
    assert ("cuda" not in thrown_out(one)) == fits


def test_pytorch_wheels_require_a_driver_that_supports_their_cuda():
    assert thrown_out(required("torch", torch_backend="cu126", resources={"driver": 470})) == {"cuda"}
    assert thrown_out(required("torch<2.4", resources={"driver": 470})) == set()
    assert thrown_out(required("torch", torch_backend="cu126", resources={"driver": 470}), target="rehearsal") == set()


def test_custom_image_has_unknown_driver_and_preinstalled_driver_conflicts():
    own = recipe(image="ami-0123456789abcdef0")
    assert ("driver-known", "unknown") in found(own)
    assert ("driver-known", "unknown") not in found(recipe())
    both = recipe(instance_type="g4dn.12xlarge", image=OSS, driver=550)
    assert ("driver-given", "error") in found(both)
    assert ("driver-given", "error") not in found(recipe(instance_type="g4dn.12xlarge", image=UBUNTU, driver=550))


@pytest.mark.parametrize(
    ("lines", "backend", "gpu", "newest", "runs"),
    [
        (["torch"], None, "V100", "cu130", False),
        (["torch"], None, "T4", "cu130", True),
        (["torch<2.7"], None, "V100", "cu126", True),
        (["torch<2.7.0"], None, "V100", "cu126", True),
        (["torch<=2.7"], None, "V100", "cu130", False),
        (["torch<2.7.1"], None, "V100", "cu130", False),
        (["torch~=2.6"], None, "V100", "cu130", False),
        (["torch~=2.6.0"], None, "V100", "cu126", True),
        (["torch==2.6.0+cu126"], None, "V100", "cu126", True),
        (["torch==2.6.*"], None, "V100", "cu126", True),
        (["torch==2.2.1"], None, "H100", "cu118", False),
        (["torch>=2.8"], "cu126", "V100", "cu126", True),
        (["torch>2.8,<2.9"], "cu126", "V100", "cu126", True),
        (["torch"], "cu118", "V100", "cu118", True),
        (["torch"], "cu130", "V100", "cu130", False),
        (["torch[opt]>=2.0 ; python_version > '3'"], None, "V100", "cu130", False),
        (["Torch >= 2.0, < 2.4"], None, "V100", "cu118", True),
        (["torch!=2.7.0,<2.8"], None, "V100", "cu130", False),
    ],
)
def test_pytorch_wheel_build_and_gpu_support_are_determined(lines, backend, gpu, newest, runs):
    python = PythonEnvironment(requirements=tuple(lines), torch_backend=backend)
    assert wheels_of(python, MADE.torch).build == newest
    assert (torch_misfit(python, GPUS[gpu], MADE.torch) == "") == runs


@pytest.mark.parametrize(
    ("requirement", "gpu", "reason"),
    [
        ("torch", "V100", "they support compute capabilities 7.5 to 10.0, but V100 has 7.0"),
        ("torch==2.2.1", "H100", "they support compute capabilities 5.0 to 8.0, but H100 has 9.0"),
    ],
)
def test_wheel_error_states_supported_and_actual_compute_capability(requirement, gpu, reason):
    python = PythonEnvironment(requirements=(requirement,))
    assert reason in torch_misfit(python, GPUS[gpu], MADE.torch)


@pytest.mark.parametrize("line", ["torchvision", "torch-geometric", "torch @ https://x.example/t.whl", "numpy", ""])
def test_requirements_without_pytorch_have_no_pytorch_bounds(line):
    assert torch_bounds([line]) is None
    assert torch_misfit(PythonEnvironment(requirements=(line,)), GPUS["V100"], MADE.torch) == ""


def test_index_without_matching_pytorch_is_rejected_unknown_index_is_not():
    old = PythonEnvironment(requirements=("torch>=2.10",), torch_backend="cu126")
    assert torch_misfit(old, GPUS["V100"], MADE.torch) == (
        "the cu126 index has no PyTorch release that these requirements allow; its last release is 2.9"
    )
    unheard = PythonEnvironment(requirements=("torch",), torch_backend="cu140")
    assert torch_misfit(unheard, GPUS["V100"], MADE.torch) == ""


def test_compatible_wheel_builds_and_release_series_are_found():
    python = PythonEnvironment(requirements=("torch",))
    assert list(backends_for(python, GPUS["V100"], MADE.torch)) == ["cu126", "cu118"]
    assert series_for(python, GPUS["V100"], MADE.torch) == "2.6"
    newer = PythonEnvironment(requirements=("torch>=2.8",))
    assert list(backends_for(newer, GPUS["V100"], MADE.torch)) == ["cu126"]
    assert series_for(newer, GPUS["V100"], MADE.torch) == ""


VERSIONS = st.lists(st.integers(0, 12), min_size=1, max_size=3).map(tuple)
OPERATORS = st.sampled_from(["==", "<", "<=", ">", ">=", "~=", "!="])


@given(st.lists(st.tuples(OPERATORS, VERSIONS), max_size=3), st.integers(0, 12), st.integers(0, 12), st.integers(0, 12))
def test_version_bounds_allow_every_series_that_packaging_accepts(bounds, major, minor, patch):
    """Compare with `packaging`: if it accepts any release of a series, the series must be allowed."""
    bounds = [
        (operator, (*version, 0) if operator == "~=" and len(version) < 2 else version) for operator, version in bounds
    ]
    text = ",".join(f"{operator}{'.'.join(map(str, version))}" for operator, version in bounds)
    if SpecifierSet(text).contains(f"{major}.{minor}.{patch}"):
        assert allows(tuple(bounds), (major, minor))


def test_incompatible_torch_is_an_error_only_on_aws():
    one = required("torch")
    assert ("torch", "error") in found(one)
    assert ("torch-on-aws", "note") in found(one, target="rehearsal")
    assert ("torch-on-aws", "note") not in found(required("torch<2.7"), target="rehearsal")
    assert not {check for check, _ in found(one, target="rehearsal")} & {"torch"}


def test_efa_requires_recent_nccl_and_ofi_plugin_in_container():
    old = boxed("nvcr.io/nvidia/pytorch:20.03-py3", instance_type="p5.48xlarge", network="efa")
    no_code = replace(MADE, images=(FrameworkImage("x", "registry.example/x:1", "7.0", None, (), False, "made"),))
    assert ("image", "error") in found(old)
    fits = boxed("nvcr.io/nvidia/pytorch:23.01-py3", instance_type="p5.48xlarge", network="efa")
    messages = [
        one.message
        for one in planner.plan_with_findings(asked(fits, target="rehearsal")).findings
        if one.check == "efa-software"
    ]
    assert messages == [
        "EFA on p5.48xlarge needs NCCL 2.18.5 or newer and aws-ofi-nccl 1.7.3 or newer in the container"
    ]
    late = replace(no_code, fabric={"p5.48xlarge": replace(MADE.fabric["p5.48xlarge"], cuda="12.4")})
    (warning, _) = [
        one
        for one in planner.plan_with_findings(asked(fits, target="rehearsal", known=late)).findings
        if one.check == "efa-software"
    ]
    assert warning.severity == "warning"
    assert warning.message.startswith("EFA on p5.48xlarge needs CUDA 12.4 or newer, but nvcr.io/nvidia/pytorch:23.01")
    tcp = boxed("nvcr.io/nvidia/pytorch:23.01-py3", instance_type="p5.48xlarge", network="tcp")
    assert "efa-software" not in {check for check, _ in found(tcp, target="rehearsal", known=late)}


def test_bundled_efa_installer_is_new_enough_for_every_type():
    numbers = lambda text: tuple(map(int, text.split(".")))  # noqa: E731
    minima = [one.efa_installer for one in software().fabric.values() if one.efa_installer]
    assert minima
    assert all(numbers(EFA_INSTALLER) >= numbers(minimum) for minimum in minima)


@pytest.mark.parametrize("name", [name for name, kind in CATALOG.types.items() if kind.provider == "aws"])
def test_default_driver_supports_every_aws_instance_type(name):
    """Without a driver in the recipe, no driver rule reports anything."""
    assert thrown_out(recipe(instance_type=name), known=software()) <= {"retired", "market"}
    gpu = GPUS[CATALOG.types[name].gpu]
    assert driver_for(gpu.architecture).flavour in gpu.modules


ONE_OF_EACH = ["p3dn.24xlarge", "g4dn.12xlarge", "g5.xlarge", "p4d.24xlarge", "p5.48xlarge", "p6-b200.48xlarge"]
"""Of most types there are many and of V100s one: chance alone would hardly ever meet it."""


ALL_MINORS_FROM = {"11": 450, "12": 525, "13": 580}
"""CUDA major version -> the driver branch from which on all of its minor versions run (NVIDIA, CUDA Compatibility)."""


@st.composite
def anything(draw):
    """Generate recipes with hardware and software that are mostly incompatible."""
    month = draw(st.sampled_from(sorted(software().ngc)))
    series = draw(st.sampled_from(["1.13.1", "2.0.1", "2.6.0", "2.8.0", "2.10.0", "2.12.0", "2.14.0"]))
    build = draw(st.sampled_from([None, *sorted({row.cuda for row in software().torch})]))
    environment = draw(
        st.sampled_from(
            [
                {"container": {"image": f"nvcr.io/nvidia/pytorch:{month}-py3"}},
                {"python": {"requirements": [f"torch=={series}"], "torch_backend": build}},
            ]
        )
    )
    return recipe(
        environment,
        instance_type=draw(st.sampled_from(ONE_OF_EACH) | st.sampled_from(sorted(CATALOG.types))),
        driver=draw(st.sampled_from([None, 390, 418, 450, 470, 525, 580, 595])),
        image=draw(st.sampled_from([None, None, OSS, PROPRIETARY, UBUNTU])),
        regions=["us-east-1", "us-west-2"],
    )


@settings(deadline=None, max_examples=150)  # a busy machine is no bug
@given(anything())
def test_candidates_never_violate_catalog_compatibility_windows(one):
    for candidate in planner.plan_with_findings(asked(one, known=software())).candidates:
        kind, gpu = CATALOG.types[candidate.instance_type], GPUS[candidate.gpu]
        there = node_driver(one, gpu)
        assert (kind.retired, kind.provider) == (False, "aws")
        assert candidate.zone in kind.zones[candidate.region]
        assert there.flavour in gpu.modules
        assert gpu.first_driver is None or there.branch >= gpu.first_driver
        assert gpu.last_driver is None or there.branch <= gpu.last_driver
        if one.environment.container is not None:
            release = software().ngc[one.environment.container.image.partition(":")[2][:5]]
            assert gpu.last_ngc is None or release.month <= gpu.last_ngc
            assert release.lowest is None or float(release.lowest) <= float(gpu.compute_capability)
            of_major = ALL_MINORS_FROM.get(release.cuda.split(".")[0], release.driver)
            assert there.branch >= of_major or there.branch in (release.driver, *release.other_drivers)
            continue
        wanted = one.environment.python
        series = tuple(map(int, wanted.requirements[0].removeprefix("torch==").split(".")[:2]))
        rows = [
            row for row in software().torch if row.cuda == wanted.torch_backend and within(series, row.first, row.last)
        ]
        if wanted.torch_backend is None:
            rows = [row for row in software().torch if within(series, row.default_from, row.default_to)]
        assert len(rows) <= 1
        for row in rows:
            majors = {capability.split(".")[0] for capability in row.capabilities}
            assert gpu.compute_capability.split(".")[0] in majors
            assert there.branch >= {"11": 450, "12": 525, "13": 580}[row.cuda[2:4]]


def within(series, first, last):
    numbers = lambda text: tuple(map(int, text.split(".")))  # noqa: E731
    return first is not None and numbers(first) <= series and (last is None or series <= numbers(last))
