"""Features on self-managed hosts that work as on AWS: a matrix, data shared between hosts, a tunnel."""

import csv

from tests.hosts.lab import Lab
from tests.system.hosts.callers import Caller

SHARED = """
schema: 1
name: shared
resources: {gpu: "V100:8", nodes: 2}
workdir: .
data:
  - {name: words, from: words, to: /tmp/shared-words, share: head, keep: false}
launch: {with: each-node, command: "cat {data.words}/first"}
budget: {expiry: 30m}
"""
ASK = """
import json, subprocess, sys, urllib.request

argv = [sys.executable, "-m", "cloudgpu", "tunnel", "pair", "8123", "--json"]
tunnel = subprocess.Popen(argv, stdout=subprocess.PIPE)
try:
    text = tunnel.stdout.readline()
    while text.count(b"{") != text.count(b"}"):
        text += tunnel.stdout.readline()
    port = json.loads(text)["tunnels"][0]["local"]
    print(urllib.request.urlopen(f"http://127.0.0.1:{port}/hello", timeout=20).read().decode())
finally:
    tunnel.terminate()
    tunnel.wait(20)
"""


def test_matrix_runs_share_lease_and_table(lea: Caller):
    table = lea.folder / "table.csv"
    axis = ("--matrix", "launch.ranks_per_node=1,2")
    shown = lea.run("train", "tiny", "--on", "ssh", "--yes", *axis, "--csv", str(table)).stdout
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [(row["launch.ranks_per_node"], row["state"]) for row in rows] == [("1", "succeeded"), ("2", "succeeded")]
    assert shown.count("using cluster") == 2, "both runs in the one that was made for them"
    assert {row["simulated"] for row in rows} == {"false"}
    assert "no cluster is recorded on this machine" in lea.run("status").stdout


def test_head_host_shares_data_with_other_hosts(lea: Caller, lab_hosts: Lab):
    folder = lea.folder / "recipes/shared"
    (folder / "words").mkdir(parents=True)
    (folder / "words/first").write_text("said once\n")
    (folder / "recipe.yaml").write_text(SHARED)
    came = lea.json("train", "shared", "--on", "ssh", "--yes")
    assert came["state"] == "succeeded"
    for rank in (0, 1):
        assert (lea.home / "runs" / came["run_id"] / f"logs/rank-{rank}.log").read_text() == "said once\n"
    assert came["stages"], came
    for name in ("red", "blue"):
        assert not lab_hosts[name].run(["ls", "/tmp/shared-words"], check=False).stdout


def test_tunnel_reaches_port_of_first_host(lea: Caller, lab_hosts: Lab):
    serve = "cd $(mktemp -d) && uname -n >hello && exec python3 -m http.server --bind 127.0.0.1 8123"
    started = lab_hosts["red"].run(["sh", "-c", f"({serve}) >/dev/null 2>&1 & echo $!"])
    lea.run("up", "tiny", "--on", "ssh", "--name", "pair", "--yes")
    try:
        asked = lea.script(ASK)
        assert asked.stdout.strip() == "red", asked.stderr
    finally:
        lab_hosts["red"].run(["kill", started.stdout.strip()])
        lea.run("down", "pair")
