"""Invalid hosts and inventories: each causes a typed error with a hint and leaves nothing behind."""

from tests.hosts.lab import Lab
from tests.system.hosts.callers import Caller

ONE = "--set resources.nodes=1"


def test_unusable_pools_and_unsupported_commands_are_rejected(lea: Caller):
    codes = lea.run_all(
        f"plan tiny --on ssh {ONE} --set resources.pool=odd",
        f"plan tiny --on ssh {ONE} --set resources.pool=dgz",
        f"plan tiny --on ssh {ONE} --set resources.gpu=H100:8",
        f"up tiny --on ssh {ONE} --set resources.pool=odd --yes",
        "quota --on ssh",
        "offers tiny --on ssh",
        "sweep --on ssh --yes",
        "image list --on ssh",
        "storage list --on ssh",
        "plan tiny --on ssh --out plan.json",
        "hosts check bare",
        "hosts check bear",
    )
    assert [code for code, _ in codes] == [7, 7, 7, 7, 2, 2, 2, 2, 2, 2, 15, 2]
    assert "error: bare: nvidia-smi is not installed on this host [host-free]" in codes[0][1]
    assert 'did you mean "dgx"?' in codes[1][1]
    assert "no host has H100:8" in codes[2][1]
    assert all("self-managed hosts" in said for _, said in codes[4:10])
    assert "no GPU: nvidia-smi is missing" in codes[10][1]
    assert 'did you mean "bare"?' in codes[11][1]


def test_docker_client_without_engine_is_reported_before_the_lease(lea: Caller):
    """The hosts have this machine's Docker client, but no engine."""
    lea.write_inventory(only=("red",))
    image = "--set environment.container.image=127.0.0.1:9/lab/tool:1"
    checked, planned = lea.run_all("hosts check", f"plan tiny --on ssh {ONE} {image}")
    assert checked[0] == 0
    assert "containers cannot run: no Docker engine responds at /var/run/docker.sock" in checked[1]
    assert planned[0] == 7
    assert "error: red: no Docker engine responds at /var/run/docker.sock" in " ".join(planned[1].split())


def test_hosts_check_reports_unreachable_and_untrusted_hosts(lea: Caller, lab_hosts: Lab):
    other = lab_hosts["blue"].fingerprint
    lea.write_inventory(
        red="user: nobody", blue=f"host_key: {lab_hosts['red'].fingerprint}", green="jump: lab@10.77.0.99",
    )  # fmt: skip
    text = lea.inventory.read_text()
    # A second `host_key` for blue would be a mistake of the file: the right one goes.
    lea.inventory.write_text(text.replace(f"    host_key: {other}\n", ""))
    found = {one["name"]: one["problem"] for one in lea.json("hosts", "check", code=15)["hosts"]}
    assert "refused the key" in found["red"]
    assert "has an unexpected host key" in found["blue"]
    assert "the jump host" in found["green"] or "10.77.0.99" in found["green"]
    # Deep is behind red, whose user is wrong now.
    assert "refused the key" in found["deep"]
    failed = lea.json("train", "tiny", "--on", "ssh", "--yes", code=7)
    assert failed["error"]["type"] == "PlanError"


def test_unknown_host_key_is_never_trusted_automatically(lea: Caller, lab_hosts: Lab):
    green = lab_hosts["green"]
    stranger = Caller(lab_hosts, lea.folder, "lea", pinned=False, popen=lea.popen)
    before = stranger.inventory.read_text()
    unknown, asked, wrong = stranger.run_all(
        "hosts check green",
        "hosts scan green",
        f"hosts scan green --trust green={lab_hosts['red'].fingerprint}",
    )
    assert unknown[0] == 15
    assert "neither in the inventory nor in your known_hosts" in unknown[1]
    assert asked[0] == 14
    assert green.fingerprint in asked[1]
    assert wrong[0] == 9
    assert "check whether another host" in wrong[1]
    assert stranger.inventory.read_text() == before
    (lea.folder / ".ssh").mkdir()
    (lea.folder / ".ssh/known_hosts").write_text(lab_hosts.known_hosts())
    known, scanned = stranger.run_all("hosts check green", f"hosts scan green --trust green={green.fingerprint}")
    assert known[0] == 0, known[1]
    assert scanned[0] == 0
    assert "cores" in stranger.inventory.read_text()
    assert "# our lab" in stranger.inventory.read_text()


def test_changed_host_key_fails_plan(lea: Caller, lab_hosts: Lab):
    with lab_hosts["green"].replaced_host_key():
        code, said = lea.run_all(f"plan tiny --on ssh {ONE} --set resources.gpu=T4:4")[0]
    assert code == 7
    assert "has an unexpected host key" in said


def test_hosts_prepare_installs_only_confirmed_components(lea: Caller, lab_hosts: Lab):
    blue = lab_hosts["blue"]
    lea.write_inventory(blue="user: root")
    lea.inventory.write_text(lea.inventory.read_text())
    log = blue.folder / "tmp/apt.log"
    (blue.folder / "bin/apt-get").write_text('#!/bin/sh\necho "$@" >>/tmp/apt.log\n')
    (blue.folder / "bin/nvidia-ctk").write_text('#!/bin/sh\necho ctk "$@" >>/tmp/apt.log\n')
    (blue.folder / "bin/systemctl").write_text('#!/bin/sh\necho systemctl "$@" >>/tmp/apt.log\n')
    (blue.folder / "bin/apt-get").chmod(0o755)
    told, unknown, shown = lea.run_all(
        "hosts prepare blue",
        "hosts prepare blue --install cuda",
        "hosts prepare blue --install container-toolkit",
    )
    assert told[0] == 0
    assert "blue: lacks container-toolkit" in told[1]
    assert unknown[0] == 2
    # Without a terminal and without --yes, the commands are shown but not run.
    assert shown[0] == 14
    assert "apt-get install -y nvidia-container-toolkit" in shown[1]
    assert not log.exists()
    for tool in ("nvidia-ctk", "systemctl"):
        (blue.folder / "bin" / tool).chmod(0o755)
    blue.run(["mv", "/run/host/bin/nvidia-ctk", "/run/host/bin/ctk"])
    (blue.folder / "bin/apt-get").write_text(
        '#!/bin/sh\necho "$@" >>/tmp/apt.log\nmv /run/host/bin/ctk /run/host/bin/nvidia-ctk\n'
    )
    done = lea.run_all("hosts prepare blue --install container-toolkit --yes", "hosts prepare blue")
    assert [code for code, _ in done] == [0, 0], done
    assert log.read_text().splitlines() == [
        "install -y nvidia-container-toolkit",
        "ctk runtime configure --runtime=docker",
        "systemctl restart docker",
    ]
    assert "blue: no component is missing" in done[1][1]
