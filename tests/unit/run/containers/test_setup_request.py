"""A setup in a container: the complete request, compared with golden text, and the image that the ranks run in."""

import json
from dataclasses import replace

import pytest

from cloudgpu.launch.containers import DockerEngine
from cloudgpu.launch.inventory import Inventory
from cloudgpu.node.agent.containers.image import kept_config
from cloudgpu.node.agent.environments.setup import _read
from cloudgpu.node.agent.untrusted_data import AgentError
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.agent import Agent
from cloudgpu.run.containers import NodeImage, container_start_fields, node_run_paths
from cloudgpu.run.job import Job
from cloudgpu.run.stage import _ENTER, ImageSetup
from tests.fake_host import FakeHost
from tests.unit.run.containers.test_run_line import IMAGE, LAUNCH, node

HOME = "/home/ubuntu"
AGENT = Agent(FakeHost(node()), "/a", HOME)
RUN = """\
run
--detach
--rm
--init
--pull=never
--name=cloudgpu-setup-KEY
--network=host
--ipc=host
--ulimit=memlock=-1
--ulimit=stack=67108864
--gpus=all
--device=/dev/infiniband/rdma_cm
--device=/dev/infiniband/uverbs0
--mount=type=bind,source=FOLDER/container,target=/.cloudgpu
--mount=type=bind,source=FOLDER/work,target=FOLDER/work
--mount=type=bind,source=/data/imagenet,target=/data/imagenet,readonly
--mount=type=bind,source=/sets,target=/sets,readonly
--mount=type=bind,source=/dev/hugepages,target=/dev/hugepages
--interactive
--entrypoint=sh
nvcr.io/nvidia/pytorch@sha256:0
"""
SECRETS = {"TOKEN": "hf_s3cr3t"}
DATA = {"imagenet": "/data/imagenet"}


def setup(container=None, digest="ab" * 32, **sections) -> ImageSetup:
    recipe = Recipe.model_validate(
        {
            "schema": 1,
            "name": "plain",
            "resources": {"instance_type": "p4d.24xlarge", "nodes": 2},
            "environment": {
                "container": {"image": "nvcr.io/nvidia/pytorch:24.12-py3", **(container or {})},
                "env": {"A": "value-of-a"},
                "secrets": ["TOKEN"],
            },
            "storage": [{"name": "sets", "to": "/sets", "mode": "ro"}],
            "setup": "pip install x",
            "launch": {"with": "torchrun", "command": "train.py"},
            **sections,
        }
    )
    job = Job("plain-abc", recipe, Inventory("demo", (node(), node())), "token")
    return ImageSetup(job, recipe.environment.container, digest, DATA, SECRETS)


def folder_of(made: ImageSetup, image: NodeImage = IMAGE, agent: Agent = AGENT) -> str:
    return made.result(agent, image).setup.workdir.removesuffix("/work")


def test_request_of_a_setup_matches_golden_text():
    made = setup()
    folder, request = folder_of(made), made.request(AGENT, IMAGE)
    key = folder.removeprefix(f"{HOME}/.cloudgpu/setup/")
    container = request.pop("container")
    expected = RUN.replace("FOLDER", folder).replace("KEY", key)
    assert "\n".join(container.pop("run")) + "\n" == expected
    assert container == {
        "name": f"cloudgpu-setup-{key}",
        "image": "nvcr.io/nvidia/pytorch@sha256:0",
        "shown": "nvcr.io/nvidia/pytorch:24.12-py3",
        "client": ["/usr/bin/docker", "--host", "unix:///var/run/docker.sock"],
        "gpus": True,
        "devices": [],
        "own": [f"{folder}/work", "/.cloudgpu"],
        "script": f"{folder}/container/setup.sh",
        "run_script": [
            *("/usr/bin/docker", "--host", "unix:///var/run/docker.sock", "exec", "--workdir", f"{folder}/work"),
            *("--env-file", f"{folder}/setup.names", f"cloudgpu-setup-{key}", "sh", "-c", _ENTER, "cloudgpu"),
            *("/opt/nvidia/nvidia_entrypoint.sh", "bash", "-eo", "pipefail", "/.cloudgpu/setup.sh"),
        ],
        "recipe": "plain",
    }
    digest = request.pop("digest")
    assert request == {
        "script": "pip install x",
        "interpreter": "",
        "workdir": f"{HOME}/.cloudgpu/runs/plain-abc/work",
        "root": f"{HOME}/.cloudgpu/setup",
        "env": {"A": "value-of-a"},
        "secrets": SECRETS,
    }
    assert key == f"plain-{digest[:20]}"
    assert _read(made.request(AGENT, IMAGE)).key == key, "the agent uses the same directory"


def test_no_value_is_in_a_command_and_the_user_is_set_for_the_script_only():
    container = setup({"user": "1000:1000"}).request(AGENT, IMAGE)["container"]
    shown = json.dumps(container)
    assert "value-of-a" not in shown
    assert "hf_s3cr3t" not in shown
    assert not [word for word in container["run"] if word.startswith("--user")]
    options = container["run_script"]
    assert options[options.index("--user") + 1] == "1000:1000"
    assert options.index("--user") < options.index(container["name"])


@pytest.mark.parametrize(
    ("made", "image", "agent"),
    [
        (setup(digest="cd" * 32), IMAGE, AGENT),
        (setup({"user": "worker"}), IMAGE, AGENT),
        (setup({"flags": ["--cap-add=SYS_PTRACE"]}), IMAGE, AGENT),
        (setup(), replace(IMAGE, image_id="sha256:2"), AGENT),
        (setup(), IMAGE, replace(AGENT, home="/home/ubuntu/.cloudgpu/hosts/demo-1")),
        (setup(name="other"), IMAGE, AGENT),
    ],
    ids=["script", "user", "flags", "image", "directory", "recipe"],
)
def test_every_input_changes_the_image(made, image, agent):
    assert made.result(agent, image).to_run != setup().result(AGENT, IMAGE).to_run


def test_inputs_that_change_nothing_keep_the_image():
    same = replace(IMAGE, engine=DockerEngine("/bin/docker", "unix:///x"), devices=())
    assert setup(params={"lr": 1}).result(AGENT, same).to_run == setup().result(AGENT, IMAGE).to_run


def test_ranks_run_in_the_result_and_see_its_work_directory():
    made = setup()
    with_setup, job = made.result(AGENT, IMAGE), made.job
    paths = node_run_paths(job, AGENT, DATA)
    plain, kept = (
        container_start_fields(job, made.container, node(), image, paths, LAUNCH)["container"]["run"]
        for image in (IMAGE, with_setup)
    )
    folder = folder_of(made)
    assert [word for word in kept if word not in plain] == [
        f"--mount=type=bind,source={folder}/work,target={folder}/work,readonly",
        f"cloudgpu-setup:{folder.rpartition('/')[2]}",
    ]
    assert with_setup.image == IMAGE.image, "the run's record names the image of the registry"


@pytest.mark.parametrize("entry_point", [None, [], ["/e", "--x"]])
def test_local_image_keeps_the_configuration(entry_point):
    config = {"Entrypoint": entry_point, "Cmd": ["serve"], "Env": ["A=b"], "User": "worker", "Labels": {"made-by": "x"}}
    kept = kept_config({"Config": config}, "plain")
    assert kept == {**config, "Entrypoint": entry_point or [], "Labels": {"made-by": "x", "cloudgpu.recipe": "plain"}}


@pytest.mark.parametrize("description", [None, {"Config": 1}, {"Config": {"Labels": ["a"]}}])
def test_missing_or_malformed_image_is_an_error(description):
    with pytest.raises(AgentError):
        kept_config(description, "plain")
