"""Ranks in containers on a real engine: their environment, how they end, and cleanup."""

import os
import signal
import socket
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from cloudgpu.errors import RemoteCommandError
from cloudgpu.launch.containers import container_name
from cloudgpu.launch.environment import gang_port

pytestmark = pytest.mark.system
OPEN = {"memlock": None}
"""This engine may not raise the limit, like most that run inside a container themselves."""
FINDS = """
cat sample.txt $DATA/sample
echo rank=$RANK of $WORLD_SIZE secret=${#TOKEN} lines=$BOTH
pwd
ulimit -s
touch $DATA/no 2>/dev/null || echo read-only
touch made-$RANK
env | sed -n 's/=.*//p' >names
"""
OBEYS = """
(trap 'echo child; exit 0' TERM; while :; do sleep 0.1; done) &
trap 'echo saved; exit 0' USR1
trap 'wait; echo saved; exit 0' TERM
echo ready
while :; do sleep 0.1; done
"""
DEAF = """
trap '' TERM INT
(trap '' TERM; sleep 1000) &
echo ready
while :; do sleep 1; done
"""


def ready(gang, job, until, rank=0):
    until(lambda: gang.log(job, rank), lambda log: "ready" in log)


@pytest.mark.main_path
def test_ranks_receive_environment_data_and_secrets(cluster, base):
    gang = cluster(2)
    data = gang.root / "data"
    data.mkdir()
    (data / "sample").write_text("from the data\n")
    around = {"env": {"DATA": str(data), "BOTH": "a\nb"}, "secrets": ["TOKEN"]}
    source = [{"name": "numbers", "from": "numbers", "to": str(data)}]
    job = gang.job({"image": base, **OPEN}, FINDS, environment=around, data=source)
    for node in (0, 1):
        (gang.work(job, node) / "sample.txt").write_text(f"from node {node}\n")
    gang.start(job, TOKEN="s3cret\nof two lines")
    assert gang.wait(job)["state"] == "succeeded", gang.log(job)
    gang.wait(job, 1)
    assert gang.docker.names() == []
    for rank in (0, 1):
        told = gang.log(job, rank).splitlines()
        assert told[:3] == [f"from node {rank}", "from the data", f"rank={rank} of 2 secret=19 lines=a b"]
        assert told[3:] == [str(gang.work(job, rank)), "65536", "read-only"]
        assert (gang.work(job, rank) / f"made-{rank}").exists()
    names = set((gang.work(job) / "names").read_text().split())
    assert not {"CLOUDGPU_AGENT_MARK", "DOCKER_HOST", "PYTEST_CURRENT_TEST"} & names
    for path in Path(job.run_dir(gang.agents[0].home)).rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes(), path


@pytest.mark.main_path
def test_failed_rank_ends_other_ranks_and_containers(cluster, base):
    gang = cluster(2)
    job = gang.job({"image": base, **OPEN}, "test $RANK = 0 || { echo bad >&2; exit 3; }\nsleep 60")
    gang.start(job)
    ended = gang.wait(job)
    assert (ended["state"], ended["first_failure"]["rank"], ended["first_failure"]["exit_code"]) == ("failed", 1, 3)
    assert ended["ranks"][0]["state"] == "stopped"
    gang.wait(job, 1)
    assert gang.docker.names() == []


@pytest.mark.parametrize(("name", "told"), [("SIGUSR1", ["saved"]), ("SIGTERM", ["child", "saved"])])
def test_stop_signal_reaches_program_and_sigterm_also_its_children(cluster, base, until, name, told):
    gang = cluster()
    job = gang.job({"image": base, **OPEN}, OBEYS)
    gang.start(job)
    ready(gang, job, until)
    ended = gang.stop(job, name, grace_s=20)
    assert ended["state"] == "cancelled"
    # The message of the shell shows that its `sleep` was signalled too.
    assert [line for line in gang.log(job).splitlines() if line != "Terminated"] == ["ready", *told]
    assert gang.docker.names() == []


def test_entrypoint_ignoring_signals_is_killed_after_grace_period(cluster, load_image, until):
    load_image("deaf:1", change=('ENTRYPOINT ["entry", "--loud"]',), entry=f'#!/bin/sh\necho "$@"\n{DEAF}')
    gang = cluster()
    job = gang.job({"image": "deaf:1", **OPEN})
    gang.start(job)
    ready(gang, job, until)
    ended = gang.stop(job, grace_s=1)
    assert (ended["state"], ended["ranks"][0]["state"]) == ("cancelled", "stopped")
    assert gang.log(job).splitlines() == ["--loud sh job.sh", "ready"]
    assert gang.docker.names() == []


def test_killed_rank_reports_its_signal(cluster, base, until):
    gang = cluster()
    job = gang.job({"image": base, **OPEN}, "echo ready; kill -KILL $$")
    gang.start(job)
    failure = gang.wait(job)["first_failure"]
    assert (failure["exit_code"], failure["reason"].partition(" (")[0]) == (-9, "killed by SIGKILL")


def test_killed_agent_leaves_no_container(cluster, base, until):
    gang = cluster()
    job = gang.job({"image": base, **OPEN}, DEAF)
    gang.start(job)
    ready(gang, job, until)
    status = gang.status(job)
    assert gang.docker.names() == [container_name(job.run_id, 0)]
    os.kill(status["agent"]["pid"], signal.SIGKILL)
    until(gang.docker.names, lambda names: not names)
    assert gang.status(job)["state"] in ("lost", "failed")


@pytest.mark.parametrize(
    ("container", "command", "code", "reason"),
    [
        ({}, "train --fast", 127, "'train', or a command that it runs, was not found in base:1"),
        ({}, "/etc/passwd", 126, "'/etc/passwd', or a command that it runs, is not executable in base:1"),
        ({"user": "nobody-here"}, "", None, "unable to find user nobody-here"),
        ({"memlock": "unlimited"}, "", None, "the engine cannot raise a resource limit"),
        ({"flags": ["--no-such"]}, "", None, "an option is invalid: unknown flag: --no-such"),
        ({"flags": ["--gpus=all"]}, "", None, "the engine cannot provide GPUs"),
    ],
    ids=["missing", "no-program", "user", "memlock", "flag", "gpus"],
)
def test_container_start_failure_is_reported_and_leaves_no_container(cluster, base, container, command, code, reason):
    gang = cluster()
    job = gang.job({"image": base, **OPEN, **container}, command=command or "true")
    if code is None:
        with pytest.raises(RemoteCommandError) as caught:
            gang.start(job)
        assert reason in caught.value.message
        assert caught.value.hint
    else:
        gang.start(job)
        failure = gang.wait(job)["first_failure"]
        assert (failure["exit_code"], reason in failure["reason"]) == (code, True), failure
    assert gang.docker.names() == []


def on_efa_nodes(cluster):
    """Two nodes with EFA and GPUs, which are simulated, so that the container gets none."""
    gang = cluster(2)
    gang.nodes = tuple(replace(node, simulated=True, gpus=1, efa=1) for node in gang.nodes)
    for agent, node in zip(gang.agents, gang.nodes, strict=True):
        agent.host.node = node
    return gang


@pytest.fixture(scope="module")
def pluginless(load_image):
    """Image with the tools of the check, but without NCCL's EFA plugin. Its entry point names another plugin."""
    grep = '#!/bin/sh\nexec busybox grep "$@"\n'
    enter = '#!/bin/sh\nexport NCCL_NET_PLUGIN=${NCCL_NET_PLUGIN:-spcx}\nexec "$@"\n'
    load_image("pluginless:1", change=('ENTRYPOINT ["enter"]',), grep=grep, ldconfig="#!/bin/sh\n", enter=enter)
    return "pluginless:1"


def test_image_without_the_efa_plugin_is_rejected_before_the_ranks_start(cluster, pluginless):
    gang = on_efa_nodes(cluster)
    resources = {"instance_type": "p4d.24xlarge", "nodes": 2, "network": "efa"}
    job = gang.job({"image": pluginless, **OPEN}, "touch started", resources=resources)
    with pytest.raises(RemoteCommandError) as caught:
        gang.start(job)
    assert caught.value.message.endswith(
        "resources.network is efa, but NCCL cannot use it in this image: the loader cannot find libnccl-net-spcx.so"
    )
    assert gang.docker.names() == []
    assert not (gang.work(job) / "started").exists()


def test_missing_efa_plugin_is_reported_if_the_recipe_accepts_any_network(cluster, pluginless):
    gang = on_efa_nodes(cluster)
    resources = {"instance_type": "p4d.24xlarge", "nodes": 2}
    environment = {"env": {"NCCL_NET_PLUGIN": "ofi"}}
    job = gang.job({"image": pluginless, **OPEN}, "true", resources=resources, environment=environment)
    gang.start(job)
    ended = gang.wait(job)
    assert ended["state"] == "succeeded"
    assert ended["transport"] == {"name": "unknown", "line": "", "why": "the loader cannot find libnccl-net-ofi.so"}


def test_start_failure_on_second_node_removes_containers_of_first(cluster, base):
    gang = cluster(2)
    job = gang.job({"image": base, **OPEN}, "sleep 60")
    images = gang.images(job)
    images[1] = replace(images[1], image="lost:1")
    with pytest.raises(RemoteCommandError, match=r"node 1 .* No such image: lost:1"):
        gang.start(job, images)
    gang.wait(job)
    assert gang.docker.names() == []


def test_start_succeeds_when_default_gang_port_is_in_use(cluster, base):
    gang = cluster(2)
    job = gang.job({"image": base, **OPEN}, "sleep 4")
    with socket.create_server(("127.0.0.1", gang_port(job.run_id))):
        gang.start(job)
    assert [gang.wait(job, node)["state"] for node in (0, 1)] == ["succeeded", "succeeded"]


def test_container_runs_with_custom_user_and_shared_memory(cluster, base):
    gang = cluster()
    job = gang.job({"image": base, **OPEN, "user": "worker", "shm": "1GiB"}, "id -u; stat -c %u /.cloudgpu/*.pid")
    gang.start(job)
    assert gang.wait(job)["state"] == "succeeded", gang.log(job)
    assert gang.log(job).split() == ["1234", "1234"]


@pytest.mark.parametrize("seen", ["GPU-a", "GPU-b"])
def test_container_gpus_must_match_node_gpus(cluster, load_image, tmp_path, seen):
    """The engine uses NVIDIA's runtime, as on hosts with nvidia-docker2; here it is runc under that name."""
    smi = tmp_path / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\necho GPU-a\n")
    smi.chmod(0o755)
    load_image("smi:1", **{"nvidia-smi": f"#!/bin/sh\necho {seen}\n"})
    gang = cluster(gpus=1, PATH=f"{smi.parent}:{os.environ['PATH']}:/usr/sbin:/sbin")
    job = gang.job({"image": "smi:1", **OPEN}, "echo devices=$NVIDIA_VISIBLE_DEVICES")
    if seen == "GPU-a":
        gang.start(job)
        assert gang.wait(job)["state"] == "succeeded"
        assert gang.log(job) == "devices=all\n"
    else:
        with pytest.raises(RemoteCommandError, match="shows different GPUs in the container than the run should use"):
            gang.start(job)
    assert gang.docker.names() == []


AS_A_MEMBER = """
mount --bind $HOME/passwd /etc/passwd
mount --bind $HOME/group /etc/group
mount --bind /dev/null /etc/gshadow
exec setpriv --reuid=1234 --regid=1234 --clear-groups sh -c "$0"
"""


@pytest.mark.parametrize("member", [True, False])
def test_docker_access_follows_current_group_membership_not_login(cluster, base, docker, engine_root, member):
    """The node's boot added the user to Docker's group after the SSH login."""
    gang = cluster(root=Path(tempfile.mkdtemp(dir=engine_root)))
    host, home = gang.agents[0].host, Path(gang.agents[0].home)
    name = "worker" if member else "somebody"
    home.joinpath("passwd").write_text("root:x:0:0::/root:/bin/sh\nworker:x:1234:1234::/:/bin/sh\n")
    home.joinpath("group").write_text(f"worker:x:1234:\nengine:x:{docker.socket.stat().st_gid}:{name}\n")
    host.shell = ["unshare", "--mount", "sh", "-euc", AS_A_MEMBER]
    job = gang.job({"image": base, **OPEN}, "id -u; mkdir made; touch made/file; chmod 700 made")
    gang.root.parent.chmod(0o755)
    subprocess.run(["chown", "-R", "1234:1234", home], check=True)
    if member:
        gang.start(job, TOKEN="s3cret")
        assert (gang.wait(job)["state"], gang.log(job)) == ("succeeded", "0\n")
        assert {path.stat().st_uid for path in gang.work(job).rglob("made*")} == {1234}
    else:
        with pytest.raises(RemoteCommandError, match="worker cannot use Docker on this node") as caught:
            gang.start(job)
        assert "sudo usermod -aG engine worker" in caught.value.hint
