"""Staging and starting: what every node is asked for, and what a node that is different gets."""

import json
from dataclasses import replace

import pytest

from cloudgpu.errors import RemoteCommandError
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.agent import Agent, install_agent
from cloudgpu.run.collect import collect
from cloudgpu.run.data.files import RemoteFile
from cloudgpu.run.job import Job
from cloudgpu.run.metrics import Metrics
from cloudgpu.run.stage import Staged, send_workdir, stage
from cloudgpu.run.start import rank_launches, start
from cloudgpu.ssh.fake import FakeHost, ScriptedResult

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


def test_the_work_directory_is_copied_for_this_run_alone(tmp_path):
    (tmp_path / "it's \n odd.py").write_text("x")
    (one,) = agents(1)
    assert send_workdir(job(), [one], tmp_path, lambda _: None) == 1
    assert one.host.files == {"/home/ubuntu/.cloudgpu/work/plain/it's \n odd.py": b"x"}
    cp = next(sent.wire for sent in one.host.sent if sent.wire.startswith("cp"))
    assert cp == ("cp -a --reflink=auto /home/ubuntu/.cloudgpu/work/plain/. /home/ubuntu/.cloudgpu/runs/plain-abc/work")


def test_what_is_not_sent_is_named_and_the_rest_counted(tmp_path):
    for number in range(7):
        (tmp_path / f"link{number}").symlink_to("/etc/passwd")
    heard = []
    send_workdir(job(), agents(1), tmp_path, lambda note: heard.append(note.text))
    assert "not sent: link0: symlink that points outside the directory, to /etc/passwd" in heard
    assert heard[-1] == "not sent: 2 more"


def test_a_hundred_thousand_objects_are_ordered_in_parts():
    files = [RemoteFile(f"https://x/{number}", f"f{number}", 1, None) for number in range(4100)]
    (one,) = agents(1)
    one.host.on(
        " fetch$", ScriptedResult(reply=lambda stdin: json.dumps({"bytes": len(json.loads(stdin)["files"])}) + "\n")
    )
    data = [{"name": "big", "from": "s3://bucket/k/", "to": "/data/big"}]
    done = stage(job(data=data), [one], lambda _: files, None, lambda _: None)
    sizes = [len(json.loads(sent.stdin)["files"]) for sent in one.host.sent if "fetch" in sent.wire]
    assert (sizes, done.data_bytes) == ([2000, 2000, 100], 4100)


def test_a_single_file_is_a_dataset_too(tmp_path):
    (tmp_path / "digits.csv").write_text("1,2")
    (one,) = agents(1)
    data = [{"name": "digits", "from": "digits.csv", "to": "/data/digits"}]
    listed = [RemoteFile("", "digits.csv", 3, None)]
    stage(job(data=data), [one], lambda _: listed, tmp_path, lambda _: None)
    assert one.host.files == {"/data/digits/digits.csv": b"1,2"}


def test_a_directory_that_only_root_may_make_never_waits_for_a_password(tmp_path):
    (one,) = agents(1)
    one.host.on("test -w", ScriptedResult(exit_code=1))
    data = [{"name": "digits", "from": ".", "to": "/data/digits"}]
    stage(job(data=data), [one], lambda _: [], tmp_path, lambda _: None)
    made = [sent.wire for sent in one.host.sent if sent.wire.startswith("sudo")]
    assert made == ['sudo -n mkdir -p /data/digits && sudo -n chown "$(id -u):$(id -g)" /data/digits']


def test_every_node_has_the_interpreter_that_it_found():
    two = agents(2)
    for one in two:
        answer = {"interpreter": f"/env{one.host.node.index}/bin/python", "built": False}
        one.host.on(" env$", ScriptedResult(stdout='{"progress": "looking"}\n' + json.dumps(answer) + "\n"))
    work = job(environment={"python": {"requirements": ["numpy"]}})
    done = stage(work, two, lambda _: [], None, lambda _: None)
    gang = rank_launches(work, two, done)
    assert [node.ranks[0].argv[0] for node in gang] == ["/env0/bin/python", "/env1/bin/python"]
    assert [node.ranks[0].env["RANK"] for node in gang] == ["0", "1"]


@pytest.mark.parametrize(("simulated", "wanted"), [(False, "cu126"), (True, None)])
def test_a_build_of_pytorch_is_asked_for_where_there_is_a_gpu(simulated, wanted):
    """What is simulated has no GPU, and PyTorch's own index is not reachable from everywhere."""
    (one,) = agents(1)
    one.host.on(" env$", ScriptedResult(stdout='{"interpreter": "/env/bin/python", "built": true}\n'))
    work = job(environment={"python": {"requirements": ["torch"], "torch_backend": "cu126"}})
    there = replace(one.host.node, simulated=simulated)
    stage(replace(work, inventory=Inventory("demo", (there,))), [one], lambda _: [], None, lambda _: None)
    (asked,) = [sent for sent in one.host.sent if sent.wire.endswith(" env")]
    assert json.loads(asked.stdin)["torch_backend"] == wanted


def test_a_build_that_was_killed_is_an_error_with_its_last_words():
    (one,) = agents(1)
    one.host.on(" env$", ScriptedResult(stdout='{"progress": "installing"}\n', exit_code=137, stderr="Killed"))
    with pytest.raises(RemoteCommandError, match="`env` exited with code 137") as caught:
        stage(job(environment={"python": {"requirements": ["numpy"]}}), [one], lambda _: [], None, lambda _: None)
    assert caught.value.tail == ("Killed",)


def test_nodes_with_other_homes_get_paths_of_their_own():
    one, two = agents(2)
    two = Agent(two.host, "/a", "/home/ubuntu2", "/cage")
    plan = Staged({0: "python3", 1: "python3"}, {"digits": "/data/digits"}, 0, 0, False)
    data = [{"name": "digits", "from": "s3://b/k", "to": "/data/digits"}]
    work = job(launch={"with": "torchrun", "command": "train.py {data.digits}", "ranks_per_node": 1}, data=data)
    first, second = rank_launches(work, [one, two], plan)
    assert first.ranks[0].argv[-1] == "/data/digits"
    assert second.ranks[0].argv[-1] == "/cage/data/digits"
    assert second.ranks[0].env["CLOUDGPU_OUTPUTS"] == "/home/ubuntu2/.cloudgpu/runs/plain-abc/work/outputs"


def test_a_gang_that_lacks_a_member_is_called_back():
    one, two = agents(2)
    one.host.on(" start$", ScriptedResult(stdout='{"state": "starting"}\n')).on(
        " stop$", ScriptedResult(stdout='{"state": "x"}\n')
    )
    two.host.on(" start$", ScriptedResult(stdout='{"error": "no", "code": "tool"}\n', exit_code=1)).on(" stop$")
    with pytest.raises(RemoteCommandError, match=r"node 1 \(i-1\): no"):
        start(job(), [one, two], staged(), {})
    assert any(sent.wire.endswith(" stop") for sent in one.host.sent)


def test_secrets_travel_by_standard_input_only():
    two = agents(2)
    for one in two:
        one.host.on(" start$", ScriptedResult(stdout='{"state": "starting"}\n'))
    start(job(), two, staged(), {"TOKEN": "s3cret"})
    for one in two:
        assert all("s3cret" not in sent.wire + sent.shown for sent in one.host.sent)
        assert any(b"s3cret" in sent.stdin for sent in one.host.sent)


@pytest.mark.parametrize("noise", ["", "Welcome to Ubuntu\nLast login: never\n"])
def test_a_login_shell_may_say_what_it_likes(noise):
    host = FakeHost(node(0)).on("mkdir").on("printf", ScriptedResult(stdout=f"{noise}{MARK}/home/me{MARK}/cage{MARK}"))
    found = install_agent(host)
    assert (found.home, found.root) == ("/home/me", "/cage")
    assert found.path in host.files


def test_an_agent_that_is_there_is_not_sent_again():
    host = FakeHost(node(0)).on("mkdir").on("printf", ScriptedResult(stdout=f"{MARK}/home/me{MARK}{MARK}"))
    name = install_agent(host).path.rpartition("/")[2]
    again = FakeHost(node(0)).on("printf", ScriptedResult(stdout=f"{MARK}/home/me{MARK}{MARK}other\n{name}\n"))
    install_agent(again)
    assert again.files == {}


@pytest.mark.parametrize(("why", "told"), [("No space left on device", "the disk is full"), ("denied", "denied")])
def test_a_node_without_room_for_the_agent_is_not_fit(why, told):
    def refuse(*_, **__):
        raise RemoteCommandError(f"cannot write it: {why}")

    host = FakeHost(node(0)).on("mkdir").on("printf", ScriptedResult(stdout=f"{MARK}/home/me{MARK}{MARK}"))
    host.put_bytes = refuse
    with pytest.raises(RemoteCommandError, match=told):
        install_agent(host)


@pytest.mark.parametrize("said", ["", "This account is currently not available.\n", f"{MARK}{MARK}{MARK}"])
def test_an_account_without_a_shell_is_told_as_such(said):
    with pytest.raises(RemoteCommandError, match="home directory"):
        install_agent(FakeHost(node(0)).on("printf", ScriptedResult(stdout=said)))


def test_outputs_come_from_every_node_and_a_broken_one_does_not_spoil_the_rest(tmp_path):
    one, two = agents(2)
    one.host.files["/home/ubuntu/.cloudgpu/runs/plain-abc/work/out/a.json"] = b"{}"
    two.host.fetch_tree = lambda *_: (_ for _ in ()).throw(RemoteCommandError("disk error"))
    collected = collect(job(outputs=["out/*.json"]), [one, two], tmp_path)
    assert collected.files == ("out/a.json",)
    assert collected.failures == ("node 1: disk error",)
    assert (tmp_path / "out" / "a.json").exists()


def test_a_pattern_without_its_value_reads_nothing():
    wanted = job(metrics={"a": {"pattern": r"(?:acc=(?P<value>\S+))?", "better": "higher"}}).recipe.metrics
    assert Metrics(wanted).read("nothing here") == []
