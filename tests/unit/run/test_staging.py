"""Staging and starting a run: requests to every node, and nodes that differ from the others."""

import json
from dataclasses import replace

import pytest

from cloudgpu.errors import ConnectError, RemoteCommandError
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.agent import Agent, AgentReplyError, install_agent
from cloudgpu.run.collect import collect
from cloudgpu.run.dataset_copies import RemoteFile
from cloudgpu.run.job import Job
from cloudgpu.run.local_files import without_data
from cloudgpu.run.metrics import Metrics
from cloudgpu.run.progress import Activity, Note
from cloudgpu.run.stage import Staged, send_workdir, stage_job
from cloudgpu.run.start import rank_launches, start
from cloudgpu.ssh.transfer.local_tree import files_to_send
from tests.fake_host import FakeHost, ScriptedResult

MARK = "\x1ecloudgpu\x1e"


def node(index):
    return Node(
        index, f"i-{index}", "127.0.0.2", 22, "ubuntu", ("SHA256:x",), f"10.0.0.{index}", "g5.xlarge", "z", "A10G", 1,
        True,
    )  # fmt: skip


def agents(count=2, home="/home/ubuntu", **scripts):
    made = []
    for index in range(count):
        host = FakeHost(node(index)).on("^(mkdir|cp|test|sudo)")
        made.append(Agent(host, "/a", home))
    return made


def job(**sections):
    recipe = Recipe.model_validate(
        {
            "schema": 1,
            "name": "plain",
            "resources": {"instance_type": "g5.xlarge", "nodes": 2},
            "launch": {"with": "torchrun", "command": "train.py", "ranks_per_node": 1},
            **sections,
        }
    )
    return Job("plain-abc", recipe, Inventory("demo", (node(0), node(1))), "token")


def staged(**more):
    return Staged({0: "/env/bin/python", 1: "/env/bin/python"}, {}, 0, 0, False, **more)


def test_workdir_is_copied_into_the_run_directory(tmp_path):
    (tmp_path / "it's \n odd.py").write_text("x")
    (one,) = agents(1)
    assert send_workdir(job(), [one], tmp_path, lambda _: None) == 1
    assert one.host.files == {"/home/ubuntu/.cloudgpu/work/plain/it's \n odd.py": b"x"}
    cp = next(sent.text for sent in one.host.sent if sent.text.startswith("cp"))
    assert cp == ("cp -a --reflink=auto /home/ubuntu/.cloudgpu/work/plain/. /home/ubuntu/.cloudgpu/runs/plain-abc/work")


def test_unsent_files_are_named_and_the_rest_counted(tmp_path):
    for number in range(7):
        (tmp_path / f"link{number}").symlink_to("/etc/passwd")
    heard = []
    send_workdir(job(), agents(1), tmp_path, heard.append)
    texts = [event.text for event in heard if isinstance(event, Note)]
    assert "not sent: link0: symlink that points outside the directory, to /etc/passwd" in texts
    assert texts[-1] == "not sent: 2 more"


def test_large_dataset_is_fetched_in_batches():
    files = [RemoteFile(f"https://x/{number}", f"f{number}", 1, None) for number in range(4100)]
    (one,) = agents(1)

    def reply(stdin):
        size = len(json.loads(stdin)["files"])
        return "".join(json.dumps(line) + "\n" for line in ({"done": size // 2}, {"done": 9999}, {"bytes": size}))

    one.host.on(" fetch$", ScriptedResult(reply=reply))
    data = [{"name": "big", "from": "s3://bucket/k/", "to": "/data/big"}]
    heard = []
    done = stage_job(job(data=data), [one], lambda _: files, None, heard.append)
    sizes = [len(json.loads(sent.stdin)["files"]) for sent in one.host.sent if "fetch" in sent.text]
    assert (sizes, done.data_bytes) == ([2000, 2000, 100], 4100)
    *moving, ended = [event for event in heard if isinstance(event, Activity) and event.name == "data big"]
    assert [event.done for event in moving] == [1000, 4100, 2000, 3000, 4100, 4000, 4050, 4100, 4100]
    assert {(event.total, event.unit, event.node) for event in moving} == {(4100, "B", 0)}
    assert ended.finished


def test_malformed_progress_of_a_download_is_refused():
    (one,) = agents(1)
    one.host.on(" fetch$", ScriptedResult(stdout='{"done": "much"}\n{"bytes": 1}\n'))
    data = [{"name": "big", "from": "s3://bucket/k/", "to": "/data/big"}]
    with pytest.raises(RemoteCommandError, match="invalid value for done"):
        stage_job(job(data=data), [one], lambda _: [RemoteFile("https://x/1", "f1", 1, None)], None, lambda _: None)


def test_single_file_is_staged_as_a_dataset(tmp_path):
    (tmp_path / "digits.csv").write_text("1,2")
    (one,) = agents(1)
    data = [{"name": "digits", "from": "digits.csv", "to": "/data/digits"}]
    listed = [RemoteFile("", "digits.csv", 3, None)]
    stage_job(job(data=data), [one], lambda _: listed, tmp_path, lambda _: None)
    assert one.host.files == {"/data/digits/digits.csv": b"1,2"}


def test_creating_a_root_owned_directory_never_prompts_for_a_password(tmp_path):
    (one,) = agents(1)
    one.host.on("test -w", ScriptedResult(exit_code=1))
    data = [{"name": "digits", "from": ".", "to": "/data/digits"}]
    stage_job(job(data=data), [one], lambda _: [], tmp_path, lambda _: None)
    made = [sent.text for sent in one.host.sent if sent.text.startswith("sudo")]
    assert made == ['sudo -n mkdir -p /data/digits && sudo -n chown "$(id -u):$(id -g)" /data/digits']


def test_each_node_uses_its_own_interpreter():
    two = agents(2)
    for one in two:
        answer = {"interpreter": f"/env{one.host.node.index}/bin/python", "built": False}
        one.host.on(" env$", ScriptedResult(stdout='{"progress": "looking"}\n' + json.dumps(answer) + "\n"))
    work = job(environment={"python": {"requirements": ["numpy"]}})
    done = stage_job(work, two, lambda _: [], None, lambda _: None)
    gang = rank_launches(work, two, done)
    assert [node.ranks[0].argv[0] for node in gang] == ["/env0/bin/python", "/env1/bin/python"]
    assert [node.ranks[0].env["RANK"] for node in gang] == ["0", "1"]


@pytest.mark.parametrize(("simulated", "wanted"), [(False, "cu126"), (True, None)])
def test_torch_backend_is_requested_only_for_nodes_with_gpus(simulated, wanted):
    """Simulated nodes have no GPU, and PyTorch's index is not reachable everywhere."""
    (one,) = agents(1)
    one.host.on(" env$", ScriptedResult(stdout='{"interpreter": "/env/bin/python", "built": true}\n'))
    work = job(environment={"python": {"requirements": ["torch"], "torch_backend": "cu126"}})
    there = replace(one.host.node, simulated=simulated)
    stage_job(replace(work, inventory=Inventory("demo", (there,))), [one], lambda _: [], None, lambda _: None)
    (asked,) = [sent for sent in one.host.sent if sent.text.endswith(" env")]
    assert json.loads(asked.stdin)["torch_backend"] == wanted


def test_killed_environment_build_is_an_error_with_its_last_output():
    (one,) = agents(1)
    one.host.on(" env$", ScriptedResult(stdout='{"progress": "installing"}\n', exit_code=137, stderr="Killed"))
    with pytest.raises(RemoteCommandError, match="`env` exited with code 137") as caught:
        stage_job(job(environment={"python": {"requirements": ["numpy"]}}), [one], lambda _: [], None, lambda _: None)
    assert caught.value.tail == ("Killed",)


def test_nodes_with_different_home_directories_get_their_own_paths():
    one, two = agents(2)
    two = Agent(two.host, "/a", "/home/ubuntu2", "/cage")
    plan = Staged({0: "python3", 1: "python3"}, {"digits": "/data/digits"}, 0, 0, False)
    data = [{"name": "digits", "from": "s3://b/k", "to": "/data/digits"}]
    work = job(launch={"with": "torchrun", "command": "train.py {data.digits}", "ranks_per_node": 1}, data=data)
    first, second = rank_launches(work, [one, two], plan)
    assert first.ranks[0].argv[-1] == "/data/digits"
    assert second.ranks[0].argv[-1] == "/cage/data/digits"
    assert second.ranks[0].env["CLOUDGPU_OUTPUTS"] == "/home/ubuntu2/.cloudgpu/runs/plain-abc/work/outputs"


def test_failed_start_on_any_node_stops_the_gang():
    one, two = agents(2)
    one.host.on(" start$", ScriptedResult(stdout='{"state": "starting"}\n')).on(
        " stop$", ScriptedResult(stdout='{"state": "x"}\n')
    )
    two.host.on(" start$", ScriptedResult(stdout='{"error": "no", "code": "tool"}\n', exit_code=1)).on(" stop$")
    with pytest.raises(RemoteCommandError, match=r"node 1 \(i-1\): no"):
        start(job(), [one, two], staged(), {})
    assert any(sent.text.endswith(" stop") for sent in one.host.sent)


@pytest.mark.parametrize(
    ("failure", "stopped"),
    [(ConnectError("the connection was lost"), True), (KeyboardInterrupt(), False), (AgentReplyError("no"), False)],
    ids=["lost connection", "Ctrl-C", "refusal"],
)
def test_start_without_a_response_of_the_head_node_stops_the_gang(monkeypatch, failure, stopped):
    """Its ranks may run. An agent that refuses has started nothing, and after Ctrl-C `attach` follows the run."""
    two = agents(2)
    asked = []

    def ask(agent, verb, request):
        asked.append((agent.host.node.index, verb))
        if verb == "start":
            raise failure
        return {}

    monkeypatch.setattr(Agent, "ask", ask)
    with pytest.raises(type(failure)):
        start(job(), two, staged(), {})
    assert sorted(asked) == [(0, "start"), *([(0, "stop"), (1, "stop")] if stopped else [])]


def test_secrets_are_sent_by_stdin_only():
    two = agents(2)
    for one in two:
        one.host.on(" start$", ScriptedResult(stdout='{"state": "starting"}\n'))
    start(job(), two, staged(), {"TOKEN": "s3cret"})
    for one in two:
        assert all("s3cret" not in sent.text + sent.shown for sent in one.host.sent)
        assert any(b"s3cret" in sent.stdin for sent in one.host.sent)


@pytest.mark.parametrize("noise", ["", "Welcome to Ubuntu\nLast login: never\n"])
def test_login_shell_output_is_ignored_when_installing_the_agent(noise):
    host = FakeHost(node(0)).on("mkdir").on("printf", ScriptedResult(stdout=f"{noise}{MARK}/home/me{MARK}/cage{MARK}"))
    found = install_agent(host)
    assert (found.home, found.root) == ("/home/me", "/cage")
    assert found.path in host.files


def test_installed_agent_is_not_uploaded_again():
    host = FakeHost(node(0)).on("mkdir").on("printf", ScriptedResult(stdout=f"{MARK}/home/me{MARK}{MARK}"))
    name = install_agent(host).path.rpartition("/")[2]
    again = FakeHost(node(0)).on("printf", ScriptedResult(stdout=f"{MARK}/home/me{MARK}{MARK}other\n{name}\n"))
    install_agent(again)
    assert again.files == {}


@pytest.mark.parametrize(("why", "told"), [("No space left on device", "the disk is full"), ("denied", "denied")])
def test_node_without_disk_space_for_the_agent_is_rejected(why, told):
    def refuse(*_, **__):
        raise RemoteCommandError(f"cannot write it: {why}")

    host = FakeHost(node(0)).on("mkdir").on("printf", ScriptedResult(stdout=f"{MARK}/home/me{MARK}{MARK}"))
    host.put_bytes = refuse
    with pytest.raises(RemoteCommandError, match=told):
        install_agent(host)


@pytest.mark.parametrize("said", ["", "This account is currently not available.\n", f"{MARK}{MARK}{MARK}"])
def test_account_without_a_login_shell_is_rejected(said):
    with pytest.raises(RemoteCommandError, match="home directory"):
        install_agent(FakeHost(node(0)).on("printf", ScriptedResult(stdout=said)))


def test_outputs_are_collected_from_all_nodes_despite_a_failing_node(tmp_path):
    one, two = agents(2)
    one.host.files["/home/ubuntu/.cloudgpu/runs/plain-abc/work/out/a.json"] = b"{}"
    two.host.fetch_tree = lambda *_, **__: (_ for _ in ()).throw(RemoteCommandError("disk error"))
    collected = collect(job(outputs=["out/*.json"]), [one, two], tmp_path)
    assert collected.files == ("out/a.json",)
    assert collected.failures == ("node 1: disk error",)
    assert (tmp_path / "out" / "a.json").exists()


def test_metric_pattern_with_empty_match_reads_nothing():
    wanted = job(metrics={"a": {"pattern": r"(?:acc=(?P<value>\S+))?", "better": "higher"}}).recipe.metrics
    assert Metrics(wanted).read("nothing here") == []


@pytest.fixture(name="with_data")
def _with_data(tmp_path):
    for name in ("train.py", "sets/a/x.bin", "sets/b/y.bin", "one.csv", "sets/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("12345")
    return tmp_path


def sent_and_links(base, *data):
    (one,) = agents(1)
    one.host.on("^ln")
    root = Agent(one.host, "/a", one.home, root="/root")
    listed = [{"name": f"d{number}", **entry} for number, entry in enumerate(data)]
    send_workdir(job(data=listed), [root], base, lambda _: None)
    prefix = "/home/ubuntu/.cloudgpu/work/plain/"
    links = [sent.text for sent in one.host.sent if sent.text.startswith("ln")]
    return sorted(path.removeprefix(prefix) for path in one.host.files), links


WORK = "/home/ubuntu/.cloudgpu/runs/plain-abc/work"


def test_data_in_the_work_directory_is_not_sent_with_it_but_linked(with_data):
    sent, links = sent_and_links(
        with_data, {"from": "sets/a", "to": "/data/a"}, {"from": "./one.csv", "to": "/data/csv"}
    )
    assert sent == ["sets/b/y.bin", "sets/notes.txt", "train.py"]
    assert links == [f"ln -sfn /root/data/a {WORK}/sets/a", f"ln -sfn /root/data/csv/one.csv {WORK}/one.csv"]


def test_a_link_replaces_the_topmost_of_nested_datasets(with_data):
    sent, links = sent_and_links(with_data, {"from": "sets/a", "to": "/data/a"}, {"from": "sets", "to": "/data/all"})
    assert sent == ["one.csv", "train.py"]
    assert links == [f"ln -sfn /root/data/all {WORK}/sets"]


@pytest.mark.parametrize(
    "entry",
    [
        {"from": ".", "to": "/data/a"},
        {"from": "sets", "to": "/data/a", "manifest": "sums.txt"},
        {"from": "s3://bucket/sets/", "to": "/data/a"},
    ],
)
def test_other_data_leaves_the_work_directory_as_it_is(with_data, entry):
    sent, links = sent_and_links(with_data, entry)
    assert (sent, links) == (["one.csv", "sets/a/x.bin", "sets/b/y.bin", "sets/notes.txt", "train.py"], [])


def test_size_of_the_work_directory_excludes_its_data(with_data):
    recipe = job(data=[{"name": "a", "from": "sets", "to": "/data/a"}]).recipe
    assert without_data(files_to_send(with_data), recipe, with_data).bytes == 10


def test_empty_directories_of_data_are_not_sent_with_the_work_directory(with_data):
    """The link to the data would otherwise be created in the directory instead of in its place."""
    for name in ("sets/empty", "runs"):
        (with_data / name).mkdir()
    recipe = job(data=[{"name": "a", "from": "sets", "to": "/data/a"}]).recipe
    assert without_data(files_to_send(with_data), recipe, with_data).folders == ("runs/",)
