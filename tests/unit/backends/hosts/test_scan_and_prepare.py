"""`hosts scan`, `check` and `prepare`: facts reported by hosts, and install commands."""

import pytest

from cloudgpu.backends.hosts.scan import (
    InstallStep,
    find_missing_components,
    plan_install_steps,
    run_install_steps,
    scan,
)
from cloudgpu.catalog import load
from cloudgpu.cli.commands.hosts import check_lines
from cloudgpu.errors import HostKeyError, RemoteCommandError, UsageError
from cloudgpu.hosts.host import HostSeen
from tests.unit.backends.hosts.conftest import GPUS, V100, host
from tests.unit.plan.checks.table_hosts import lab as lab_of

CATALOG = load()


def test_scan_fills_the_inventory_and_reports_differences(lab):
    lab.machines["blue"].facts = {"gpus": [{**V100, "driver": "535.1"}] * 4}
    red, blue = scan(lab.backend, lab.hosts, CATALOG, None)
    assert red.differs == ()
    assert red.found["gpus"] == f"V100-16GB:{GPUS}"
    assert red.found["memory"] == "768GiB"
    assert blue.differs == (
        "it has 4 GPUs, but the inventory lists 8",
        "its driver is 535.1, but the inventory lists 580.126.09",
    )
    document = blue.as_json()
    assert document["reachable"] is True
    assert document["found"]["driver"] == "535.1"


def test_scan_reports_another_gpu_model_and_missing_gpus(lab):
    lab.machines["red"].facts = {"gpus": [{**V100, "name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960}] * GPUS}
    lab.machines["blue"].facts = {"gpus": [], "gpu_error": "NVML: driver not loaded"}
    red, blue = scan(lab.backend, lab.hosts, CATALOG, None)
    assert any(line.startswith("its GPUs are A100") for line in red.differs)
    assert blue.differs == ("no GPU: NVML: driver not loaded",)


def test_scan_reports_cuda_that_does_not_initialize(lab):
    reason = "CUDA does not initialize (error 802): Fabric Manager is not installed"
    lab.machines["red"].facts = {"cuda": {"state": "failed", "error": 802, "reason": reason}}
    lab.machines["blue"].facts = {"cuda": {"state": "unknown", "error": None, "reason": "libcuda.so.1 was not found"}}
    red, blue = scan(lab.backend, lab.hosts, CATALOG, None)
    assert reason in red.differs
    assert not any("CUDA" in line for line in blue.differs)


def test_scan_reports_unreachable_and_malformed_hosts(lab):
    lab.machines["red"].unreachable = True
    lab.machines["blue"].facts = {"gpus": [{"name": "V100"}]}
    red, blue = scan(lab.backend, lab.hosts, CATALOG, None)
    assert red.problem == "red is unreachable"
    assert "invalid value for memory_mib" in blue.problem
    assert red.as_json()["reachable"] is False


def test_unknown_host_key_is_pinned_only_when_confirmed(make_lab):
    lab = make_lab(host("red", host_keys=()), host("blue", host_keys=()))
    untrusted = scan(lab.backend, lab.hosts, CATALOG, None)
    assert all("host key" in result.problem for result in untrusted)
    prompts = []

    def trust(host, key):
        prompts.append((host.name, key.fingerprint))
        return host.name == "red"

    red, blue = scan(lab.backend, lab.hosts, CATALOG, trust)
    assert prompts == [("red", "SHA256:red"), ("blue", "SHA256:blue")]
    assert red.pinned == "SHA256:red"
    assert not red.problem
    assert "SHA256:blue was not confirmed" in blue.problem


def test_look_shows_leases_and_processes_of_each_host(make_lab):
    lab = make_lab(host("red"), host("blue"), host("green", host_keys=()))
    lab.machines["red"].leases["t"] = {"cluster": "x", "owner": "ben", "devices": [0, 1]}
    lab.machines["red"].processes = [1, 5]
    lab.machines["blue"].unreachable = True
    seen = lab.backend.look(lab.hosts)
    assert seen["red"] == HostSeen(
        "", GPUS, ("leased: 2 GPUs by ben", "in use: GPU 5 by ben, process 4711"), frozenset({0, 1, 5})
    )
    assert seen["blue"].problem == "blue is unreachable"
    assert "neither in the inventory nor in your known_hosts" in seen["green"].problem
    with pytest.raises(HostKeyError):
        lab.backend.asked(lab.backend.nodes(lab.hosts[2:]), {"action": "show"})


def test_host_without_docker_engine_cannot_run_a_container(make_lab):
    lab = make_lab(host("red"), host("blue"))
    problem = "no Docker engine responds at /var/run/docker.sock: No such file or directory"
    lab.machines["blue"].engine = {"problem": problem, "hint": "run on the node: sudo systemctl start docker"}
    assert lab.backend.look(lab.hosts)["blue"] == HostSeen("", GPUS, engine_problem=problem)
    offers = lab.backend.offers(offline=False)
    plain = lab_of(*lab.hosts).planner_input()
    assert [state.problem for state in offers.quote(plain).hosts.seen.values()] == ["", ""]
    contained = lab_of(*lab.hosts, environment={"container": {"image": "x/y:1"}}).planner_input()
    assert [state.problem for state in offers.quote(contained).hosts.seen.values()] == ["", problem]
    # `hosts check` shows it where there is a client, and does not fail: not every run needs a container.
    lab.machines["blue"].facts = {"docker": "Docker version 26.1, build x", "engine": lab.machines["blue"].engine}
    (_, checked) = scan(lab.backend, lab.hosts, CATALOG, None)
    assert checked.differs == ()
    lines = check_lines([checked])
    assert f"    containers cannot run: {problem}" in lines
    assert "        run on the node: sudo systemctl start docker" in lines


def test_bucket_calls_are_delegated_to_the_callers_credentials(lab, tmp_path):
    backend = lab.backend
    assert backend.put_objects("s3://b/x", tmp_path) == 7
    assert list(backend.objects("s3://b/x", expires_s=60)) == [("s3://b/x", 60)]
    assert backend.bucket_service("s3://b") == "s3://b"
    assert (backend.target, backend.endpoint, backend.account()) == ("ssh", "", "own hosts")


def test_prepare_shows_install_commands_for_missing_components(lab):
    lab.machines["red"].facts = {"venv": False}
    lab.machines["blue"].facts = {"docker": "28.0", "container_toolkit": True}
    found = find_missing_components(lab.backend, lab.hosts, CATALOG)
    assert [missing for _, missing in found] == [("python3-venv", "docker", "container-toolkit"), ()]
    planned = plan_install_steps(found, ["docker"])
    assert [(step.host.name, step.what) for step in planned] == [("red", "docker")]
    assert planned[0].commands[-1] == "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get install -y docker.io"


@pytest.mark.parametrize(
    ("facts", "what", "error", "words"),
    [
        ({}, "emacs", UsageError, "emacs"),
        ({"packages": "pacman"}, "docker", UsageError, "no supported package manager"),
        ({"root": False}, "docker", RemoteCommandError, "not root"),
    ],
)
def test_uninstallable_component_is_rejected(lab, facts, what, error, words):
    lab.machines["red"].facts = facts
    with pytest.raises(error, match=words):
        plan_install_steps(find_missing_components(lab.backend, lab.hosts, CATALOG), [what])


def test_unreachable_host_is_not_prepared(lab):
    lab.machines["red"].unreachable = True
    with pytest.raises(RemoteCommandError, match="red is unreachable"):
        plan_install_steps(find_missing_components(lab.backend, lab.hosts, CATALOG), ["docker"])


def test_install_commands_run_on_their_host_in_order(lab):
    step = InstallStep(lab.hosts[0], "docker", ("first", "second"))
    run_install_steps(lab.backend, [step], lab.events.append)
    assert [sent.text for sent in lab.machines["red"].connections[0].sent] == ["first", "second"]
    assert lab.machines["blue"].connections == []
    assert lab.notes == ["red: first", "red: second"]


def test_two_names_of_one_machine_are_reported(make_lab):
    lab = make_lab(host("red"), host("blue"), host("green"))
    lab.machines["green"].system = "red"
    seen = lab.backend.look(lab.hosts)
    assert {name: usage.problem for name, usage in seen.items()} == {
        "red": "",
        "blue": "",
        "green": "it is the same machine as red",
    }
    differs = {found.host.name: found.differs for found in scan(lab.backend, lab.hosts, CATALOG, None)}
    assert "it is the same machine as red" in differs["green"]
    assert "it is the same machine as red" not in (*differs["red"], *differs["blue"])
