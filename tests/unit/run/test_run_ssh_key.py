"""The SSH key of a run: which nodes get the private and the public half."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.agent import Agent
from cloudgpu.run.job import Job
from cloudgpu.run.stage import Staged
from cloudgpu.run.start import describe_gang, rank_launches, write_ssh_files
from tests.fake_host import FakeHost, ScriptedResult

RUN = "/home/ubuntu/.cloudgpu/runs/reduce-1"


def node(index: int) -> Node:
    return Node(
        index=index,
        instance_id=f"i-{index}",
        address=f"203.0.113.{index}",
        port=22,
        user="ubuntu",
        host_keys=("SHA256:x",),
        private_address=f"10.0.0.{index + 2}",
        instance_type="p3dn.24xlarge",
        zone="us-east-1c",
        gpu="V100",
        gpus=8,
        simulated=False,
    )


def agents(*, running: bool = False) -> list[Agent]:
    test = ScriptedResult(exit_code=0 if running else 1)
    return [Agent(FakeHost(node(index)).on("^test -e", test), "/a", "/home/ubuntu") for index in range(3)]


def job(launcher: str = "mpirun", **launch) -> Job:
    sections = {
        "schema": 1,
        "name": "reduce",
        "resources": {"instance_type": "p3dn.24xlarge", "nodes": 3},
        "launch": {"with": launcher, "command": "reduce.py", "ranks_per_node": 2, **launch},
    }
    return Job("reduce-1", Recipe.model_validate(sections), Inventory("c", (node(0), node(1), node(2))), "token")


def gang_of(one: Job, some: list[Agent]):
    return rank_launches(one, some, Staged(dict.fromkeys(range(3), "python3"), {}, 0, 0, environment_built=False))


def test_head_node_holds_private_key_and_others_authorize_public_key() -> None:
    one, some = job(), agents()
    admits = write_ssh_files(one, some, gang_of(one, some))
    head, *others = (agent.host for agent in some)
    private = head.files[f"{RUN}/ssh/id_ed25519"].decode()
    assert "OPENSSH PRIVATE KEY" in private
    assert head.modes[f"{RUN}/ssh/id_ed25519"] == 0o600
    assert head.files[f"{RUN}/ssh/known_hosts"] == b"node-1 ssh-ed25519 AAAA1\nnode-2 ssh-ed25519 AAAA2\n"
    assert set(admits) == {1, 2}
    assert len(set(admits.values())) == 1
    assert admits[1].startswith('restrict,from="10.0.0.0/24",command="sh -c ')
    assert admits[1].endswith(" cloudgpu-run:reduce-1")
    for host in others:
        assert set(host.files) == {f"{RUN}/mpi/rsh"}
    assert not any("PRIVATE" in sent.text for host in (head, *others) for sent in host.sent)


def test_paths_of_the_head_node_lead_to_the_directory_of_each_host(tmp_path: Path) -> None:
    """On self-managed hosts, the name of a cluster's directory ends with the name of the host."""
    some = agents()
    for agent in some:
        agent.host.node = replace(agent.host.node, base=f".cloudgpu/hosts/c-0123abcd-h{agent.host.node.index}")
    one = job()
    lines = write_ssh_files(one, some, gang_of(one, some))
    for index in (1, 2):
        home = tmp_path / str(index)
        own = home / f".cloudgpu/hosts/c-0123abcd-h{index}"
        own.mkdir(parents=True)
        (own / "reached").write_text(str(index))
        command = lines[index].partition('command="')[2].partition('" ssh-')[0].replace('\\"', '"')
        environ = {"HOME": str(home), "PATH": os.environ["PATH"]}
        environ["SSH_ORIGINAL_COMMAND"] = "cat .cloudgpu/hosts/c-0123abcd-h0/reached"
        for _ in range(2):  # the second login finds the symlink
            done = subprocess.run(
                ["/bin/sh", "-c", command], cwd=home, env=environ, capture_output=True, text=True, check=False
            )
            assert (done.stdout, done.stderr) == (str(index), "")


def test_each_run_has_a_new_key() -> None:
    one = job()
    lines = {write_ssh_files(one, some, gang_of(one, some))[1] for some in (agents(), agents())}
    assert len(lines) == 2


def test_started_run_keeps_its_key() -> None:
    one, some = job(), agents(running=True)
    assert write_ssh_files(one, some, gang_of(one, some)) == {}
    assert not any(agent.host.files for agent in some)


def test_launchers_without_ssh_need_no_key() -> None:
    one, some = job("torchrun"), agents()
    assert write_ssh_files(one, some, gang_of(one, some)) == {}
    assert not any(agent.host.files or agent.host.sent for agent in some)


def test_gang_description_lists_ranks_by_role() -> None:
    one = job("kvstore", kvstore="dist_sync", ranks_per_node=1)
    first, roles = describe_gang(gang_of(one, agents()))
    assert first == "rank 0: python3 reduce.py"
    assert roles == "ranks: worker 0-2, server 3-5, scheduler 6"
    alone = replace(one, recipe=job("each-node", ranks_per_node=1).recipe)
    assert describe_gang(gang_of(alone, agents())) == ("rank 0: python3 reduce.py",)
