"""Open MPI between hosts with their own network, hostname and OpenSSH server; one uses a non-default SSH port."""

from pathlib import Path

REDUCE = (Path(__file__).parent / "reduce.py").read_text()
RECIPE = """
    schema: 1
    name: reduce
    resources: {instance_type: p3dn.24xlarge, nodes: 2}
    environment: {env: {NOTE: "a b;c"}, secrets: [TOKEN]}
    launch: {with: mpirun, ranks_per_node: 2, command: reduce.py}
"""


def authorized(host) -> str:
    return (host.folder / "home/lab/.ssh/authorized_keys").read_text()


def test_mpi_ranks_on_both_hosts_complete_allreduce(launches) -> None:
    red, green = launches.lab["red"], launches.lab["green"]
    before = authorized(green)
    result = launches.run(RECIPE, red, green, env={"TOKEN": "s3cret"}, reduce_py=REDUCE)
    assert result.verdict["state"] == "succeeded", (result.messages, result.stderr)
    assert [line.split(":")[0] for line in result.lines] == [
        "rank 0 of 4 on red node 0",
        "rank 1 of 4 on red node 0",
        "rank 2 of 4 on green node 1",
        "rank 3 of 4 on green node 1",
    ]
    assert all("sum=1111 note='a b;c' token=****** ips='10.77.0.11\\n10.77.0.13'" in line for line in result.lines)
    # The run's key no longer gives access to the other node, and it has been deleted.
    assert authorized(green) == before
    assert not (red.folder / f"home/lab/.cloudgpu/runs/{result.run_id}/ssh/id_ed25519").exists()


def test_failed_remote_rank_ends_run_and_removes_run_key(launches) -> None:
    red, green = launches.lab["red"], launches.lab["green"]
    before = authorized(green)
    recipe = RECIPE.replace("command: reduce.py", "command: reduce.py fail=2")
    result = launches.run(recipe, red, green, env={"TOKEN": "s3cret"}, reduce_py=REDUCE)
    assert (result.verdict["state"], result.verdict["reason"]) == ("failed", "mpirun: exit code 3")
    assert authorized(green) == before


def test_run_key_is_restricted_to_node_network_without_forwarding(launches) -> None:
    """During the run, authorized_keys contains its key, without terminal or forwarding, only for the nodes' network."""
    red, green = launches.lab["red"], launches.lab["green"]
    script = """
        import os, pathlib, subprocess

        if os.environ["OMPI_COMM_WORLD_RANK"] == "2":
            (line,) = [
                one
                for one in (pathlib.Path.home() / ".ssh/authorized_keys").read_text().splitlines()
                if "cloudgpu-run:" in one
            ]
            print(line.partition(" ssh-ed25519 ")[0], line.split()[-1], flush=True)
    """
    recipe = RECIPE.replace("command: reduce.py", "command: look.py")
    result = launches.run(recipe, red, green, env={"TOKEN": "s3cret"}, look_py=script)
    assert result.verdict["state"] == "succeeded", (result.messages, result.stderr)
    shell = "sh -c 'eval \\\"$SSH_ORIGINAL_COMMAND\\\"'"
    assert result.lines == [f'restrict,from="10.77.0.0/24",command="{shell}" cloudgpu-run:{result.run_id}']


def test_head_rejects_node_with_unverified_host_key(launches) -> None:
    """The head trusts only the host keys that the caller verified; here known_hosts holds a different key."""
    red, green = launches.lab["red"], launches.lab["green"]
    recipe = RECIPE.replace("with: mpirun", "with: deepspeed").replace("reduce.py", "'bash look.sh {hostfile}'")
    look = """
        sed -i 's/AAAA/AAAB/' ../ssh/known_hosts
        ssh -o PasswordAuthentication=no 10.77.0.13 hostname
    """
    result = launches.run(recipe, red, green, env={"TOKEN": "s3cret"}, look_sh=look)
    assert result.verdict["state"] == "failed"
    assert any("Host key verification failed" in line for line in result.lines), result.messages


def test_launcher_programs_reach_nodes_with_plain_ssh(launches) -> None:
    """Like DeepSpeed's runner, read the hostfile and connect to every node, including the head, with plain `ssh`."""
    red, green = launches.lab["red"], launches.lab["green"]
    script = """
        while read -r host slots; do
          ssh -o PasswordAuthentication=no "$host" hostname </dev/null
          echo "$host $slots"
        done <"$1"
        grep NOTE "$DS_ENV_FILE"
    """
    recipe = RECIPE.replace("with: mpirun", "with: deepspeed").replace("reduce.py", "'bash look.sh {hostfile}'")
    result = launches.run(recipe, red, green, env={"TOKEN": "s3cret"}, look_sh=script)
    assert result.verdict["state"] == "succeeded", (result.messages, result.stderr)
    assert result.lines == ["10.77.0.11 slots=2", "10.77.0.13 slots=2", "NOTE=a b;c", "green", "red"]
