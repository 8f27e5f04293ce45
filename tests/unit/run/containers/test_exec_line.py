"""The arguments of `docker exec`."""

import shlex

from cloudgpu.launch.containers import DockerEngine, container_name, exec_line, pid_file

ENGINE = DockerEngine("/usr/bin/docker", "unix:///var/run/docker.sock")


def test_program_without_pid_file_is_executed_directly():
    line = exec_line(
        DockerEngine(), container_name("run-1", 2), ["orted", "-mca", "ess"], workdir="/w", interactive=True
    )
    assert shlex.join(line) == "docker exec --interactive --workdir /w cloudgpu-run-1-2 orted -mca ess"


def test_rank_records_its_process_group_and_gets_environment_by_name():
    line = exec_line(
        ENGINE,
        container_name("run-1", 0),
        ["python3", "train.py"],
        workdir="/w",
        pid_file=pid_file("rank-0"),
        env_file="/r/rank-0.names",
    )
    assert shlex.join(line[:3]) == "/usr/bin/docker --host unix:///var/run/docker.sock"
    assert shlex.join(line[3:9]) == "exec --workdir /w --env-file /r/rank-0.names cloudgpu-run-1-0"
    assert line[9:11] == ("sh", "-c")
    assert line[12:] == ("cloudgpu", "/.cloudgpu/rank-0.pid", "python3", "train.py")
