"""A recipe's setup in its image, on a real engine: what is kept, what is not, and what an interruption leaves."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cloudgpu.errors import CloudGpuError, RemoteCommandError
from cloudgpu.node.agent.containers.image import LABEL
from cloudgpu.node.agent.containers.run_container import setup_container_name, setup_image_name
from cloudgpu.node.payload import agent_name

pytestmark = pytest.mark.system
OPEN = {"memlock": None}
"""This engine may not raise the limit, like most that run inside a container themselves."""
BASH = '#!/bin/sh\nexec sh "$@"\n'
SECRET, VALUE = "hf_s3cr3t-of-the-test", "value-of-the-recipe"
INSTALLS = """
echo "setup as $(id -u) in $(pwd) with ${#TOKEN} and $NAME: $TOKEN"
echo '#!/bin/sh' > /bin/tool
echo 'echo tool of the setup' >> /bin/tool
chmod 755 /bin/tool
mkdir built
cp job.sh built/copy
"""


@pytest.fixture(scope="module", name="image")
def _image(load_image):
    """Image with an entry point, a command, a user with a home, a variable and a label."""
    changes = (
        'ENTRYPOINT ["enter"]', 'CMD ["serve", "--all"]', "ENV KEPT=yes", "LABEL made-by=tests", "WORKDIR /tmp",
        "EXPOSE 80",
    )  # fmt: skip
    enter = '#!/bin/sh\nexport ENTERED=yes\nexec "$@"\n'
    load_image("kept:1", change=changes, bash=BASH, cp='#!/bin/sh\nexec busybox cp "$@"\n', enter=enter)
    return "kept:1"


@pytest.fixture(scope="module", name="plain")
def _plain(load_image):
    """Image without an entry point and a command."""
    load_image("bash:1", bash=BASH, cp='#!/bin/sh\nexec busybox cp "$@"\n')
    return "bash:1"


@pytest.fixture(name="gang")
def _gang(cluster):
    made = cluster()
    yield made
    for name in images(made.docker):
        made.docker.run("rmi", name)


def images(docker) -> list[str]:
    """Return the local images that setups made, also those without a name."""
    shown = docker.run("images", "--filter", f"label={LABEL}", "--format", "{{.Repository}}:{{.Tag}}")
    return shown.stdout.decode().split()


def config(docker, name: str) -> dict:
    return json.loads(docker.run("image", "inspect", name).stdout)[0]["Config"]


def job(gang, image: str, setup: str, script: str = "tool", container=OPEN, **sections):
    sections = {"environment": {"env": {"NAME": VALUE}, "secrets": ["TOKEN"]}, **sections}
    made = gang.job({"image": image, **container}, script, setup=setup, **sections)
    home = gang.agents[0].home
    subprocess.run(["chown", "--recursive", f"--reference={home}", f"{home}/.cloudgpu/runs"], check=True)
    return made


AS_A_MEMBER = """
mount --bind $HOME/passwd /etc/passwd
mount --bind $HOME/group /etc/group
exec setpriv --reuid=1234 --regid=1234 --groups=$GID sh -c "$0"
"""


def as_member(gang, engine_root):
    """Return a cluster whose login user is not root, but in the group of the engine."""
    gang.root = Path(tempfile.mkdtemp(dir=engine_root))
    gang.root.chmod(0o755)
    home = gang.root / "node-0"
    host = gang.agents[0].host
    shutil.copytree(host.home, home)
    (home / "passwd").write_text("root:x:0:0::/root:/bin/sh\nworker:x:1234:1234::/:/bin/sh\n")
    (home / "group").write_text(f"worker:x:1234:\nengine:x:{gang.docker.socket.stat().st_gid}:worker\n")
    host.shell = ["unshare", "--mount", "sh", "-euc", AS_A_MEMBER]
    host.env |= {"HOME": str(home), "GID": str(gang.docker.socket.stat().st_gid)}
    gang.agents[0] = replace(gang.agents[0], path=str(home / ".cloudgpu" / agent_name()), home=str(home))
    subprocess.run(["chown", "-R", "1234:1234", home], check=True)
    return gang


def ran(gang) -> int:
    """Return how often a script ran since the last call."""
    count = gang.progress.count("running setup")
    gang.progress.clear()
    return count


def run(gang, made, **secrets) -> str:
    """Run the setup and the ranks. Return the output of the first rank."""
    secrets = secrets or {"TOKEN": SECRET}
    gang.start(made, gang.set_up(made, **secrets), **secrets)
    ended = gang.wait(made)
    assert ended["state"] == "succeeded", (ended, gang.log(made))
    return gang.log(made)


@pytest.mark.main_path
def test_setup_runs_once_in_the_image_and_ranks_run_in_the_result(gang, image):
    first = job(gang, image, INSTALLS, "tool; cat built/copy; echo entered=$ENTERED")
    shown = run(gang, first)
    assert shown == f"tool of the setup\n{'tool; cat built/copy; echo entered=$ENTERED'}entered=yes\n"
    folder = gang.agents[0].home + "/.cloudgpu/setup/" + images(gang.docker)[0].partition(":")[2]
    said = f"setup as 0 in {folder}/work with {len(SECRET)} and {VALUE}: {'*' * len(SECRET)}"
    assert said in gang.progress
    assert ran(gang) == 1
    again = job(gang, image, INSTALLS)
    assert run(gang, again) == "tool of the setup\n"
    assert "setup already ran on every node with the same inputs" in gang.progress
    assert ran(gang) == 0
    assert (gang.work(again) / "built/copy").exists()
    assert gang.docker.names() == []


def test_changed_script_image_user_and_missing_result_run_it_again(gang, image, load_image):
    run(gang, job(gang, image, INSTALLS))
    assert ran(gang) == 1
    changed = INSTALLS.replace("tool of", "other tool of")
    assert run(gang, job(gang, image, changed)) == "other tool of the setup\n"
    assert ran(gang) == 1
    gang.docker.run("rmi", *images(gang.docker))
    run(gang, job(gang, image, changed))
    assert ran(gang) == 1
    load_image("kept:2", bash=BASH, cp='#!/bin/sh\nexec busybox cp "$@"\n')
    run(gang, job(gang, "kept:2", changed))
    assert ran(gang) == 1
    as_root = {**OPEN, "user": "root"}
    run(gang, job(gang, image, changed, container=as_root))
    assert ran(gang) == 1


@pytest.mark.parametrize("with_entry_point", [True, False])
def test_configuration_of_the_image_is_kept_without_variables_and_secrets(gang, image, plain, with_entry_point):
    source = image if with_entry_point else plain
    made = job(gang, source, "echo $TOKEN > /tmp/of-the-script; rm /tmp/of-the-script", "true")
    run(gang, made)
    (name,) = images(gang.docker)
    before, after = config(gang.docker, source), config(gang.docker, name)
    assert after["Labels"] == {**(before["Labels"] or {}), LABEL: "plain"}
    for field in ("Entrypoint", "Cmd", "Env", "User", "WorkingDir", "ExposedPorts", "Volumes", "OnBuild"):
        assert (after.get(field) or None) == (before.get(field) or None), field
    archive = gang.docker.run("save", name).stdout
    history = gang.docker.run("history", "--no-trunc", name).stdout
    inspected = gang.docker.run("image", "inspect", name).stdout
    for text in (archive, history, inspected):
        assert SECRET.encode() not in text
        assert VALUE.encode() not in text
    for path in gang.root.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_script_has_the_user_the_data_and_the_read_only_mounts_of_the_ranks(gang, image):
    data = gang.root / "data"
    data.mkdir()
    (data / "sample").write_text("from the data\n")
    setup = f"id -u; cat {data}/sample; touch {data}/no 2>/dev/null || echo read-only; echo entered=$ENTERED"
    source = [{"name": "numbers", "from": "numbers", "to": str(data)}]
    made = job(gang, image, setup, "id -u", {**OPEN, "user": "worker"}, data=source)
    assert run(gang, made) == "1234\n"
    begun = gang.progress.index("running setup")
    assert gang.progress[begun + 1 : begun + 5] == ["1234", "from the data", "read-only", "entered=yes"]
    assert config(gang.docker, images(gang.docker)[0])["User"] == ""


def test_packages_may_refer_to_the_work_directory_of_the_setup(gang, image):
    made = job(gang, image, "echo 'echo from here' > mine; pwd > /bin/place", 'sh "$(cat /bin/place)/mine"')
    assert run(gang, made) == "from here\n"


def test_failed_script_shows_its_last_lines_and_leaves_nothing(gang, image):
    with pytest.raises(RemoteCommandError) as caught:
        gang.set_up(job(gang, image, "echo one; echo two $TOKEN >&2; exit 3"), TOKEN=SECRET)
    stars = "*" * len(SECRET)
    assert caught.value.message == f"node 0 (i-0): setup failed (bash: exit code 3): two {stars}"
    assert list(caught.value.tail) == ["one", f"two {stars}"]
    assert "correct `setup` in the recipe" in caught.value.hint
    assert (gang.docker.names(), images(gang.docker)) == ([], [])
    assert run(gang, job(gang, image, INSTALLS)) == "tool of the setup\n"


def test_image_without_bash_is_named(gang, base):
    with pytest.raises(RemoteCommandError, match="bash: not found in the container"):
        gang.set_up(job(gang, base, "true"), TOKEN=SECRET)
    assert (gang.docker.names(), images(gang.docker)) == ([], [])


class Waiting:
    """A setup that waits until the test lets it continue."""

    def __init__(self, gang, image: str, until) -> None:
        self.gang, self.image, self.until = gang, image, until
        self.data, self.errors = gang.root / "data", []
        self.data.mkdir()
        self.thread = threading.Thread(target=self._set_up)
        self.thread.start()
        until(lambda: list(gang.root.glob("*/.cloudgpu/setup/*/work/begun")), bool)

    def job(self, **sections):
        script = f"mkdir -p inner; touch inner/file begun; while ! test -e {self.data}/go; do sleep 0.1; done"
        source = [{"name": "numbers", "from": "numbers", "to": str(self.data)}]
        return job(self.gang, self.image, script, "ls", data=source, **sections)

    def _set_up(self) -> None:
        try:
            self.gang.set_up(self.job(), TOKEN=SECRET)
        except CloudGpuError as error:
            self.errors.append(error)

    def agent(self) -> int:
        """Return the PID of the agent that runs the setup: the parent of the client in the container."""
        (name,) = self.gang.docker.names()
        assert name.startswith(setup_container_name(""))
        clients = subprocess.run(["pgrep", "--full", f"docker .* exec .*{name}"], capture_output=True, check=True)
        (client,) = clients.stdout.split()
        return int(subprocess.run(["ps", "-o", "ppid=", "-p", client], capture_output=True, check=True).stdout)

    def lock_holders(self) -> set[str]:
        """Return the processes that have the lock of the setup open, also while they wait for it."""
        links = (link for link in Path("/proc").glob("[0-9]*/fd/*") if os.path.lexists(link))
        pids = set()
        for link in links:
            with contextlib.suppress(OSError):
                path = str(link.readlink())
                if path.endswith(".lock") and "/setup/plain-" in path:
                    pids.add(link.parts[2])
        return pids

    def proceed(self) -> None:
        (self.data / "go").touch()


def test_killed_agent_leaves_nothing_and_the_next_run_succeeds(gang, image, until):
    waiting = Waiting(gang, image, until)
    os.kill(waiting.agent(), signal.SIGKILL)
    waiting.thread.join(30)
    assert "the agent's `setup` exited" in waiting.errors[0].message
    until(gang.docker.names, lambda names: not names)
    assert images(gang.docker) == []
    waiting.proceed()
    ran(gang)
    assert run(gang, waiting.job()) == "begun\ninner\njob.sh\noutputs\n"
    assert ran(gang) == 1


def test_leftovers_of_a_reboot_and_files_of_another_user_are_replaced(gang, image, until, engine_root):
    """The node's user cannot delete what root created in the container, and nothing cleaned up before the reboot."""
    gang = as_member(gang, engine_root)
    waiting = Waiting(gang, image, until)
    agent, (name,) = waiting.agent(), gang.docker.names()
    guard = subprocess.run(["pgrep", "--parent", str(agent)], capture_output=True, check=True).stdout.split()
    for pid in (*map(int, guard), agent):
        os.kill(pid, signal.SIGKILL)
    waiting.thread.join(30)
    assert gang.docker.names() == [name]
    key = name.removeprefix(setup_container_name(""))
    gang.docker.run("commit", "--change", f"LABEL {LABEL}=plain", name, setup_image_name(key))
    (left,) = gang.root.glob("*/.cloudgpu/setup/*/work/inner/file")
    assert left.stat().st_uid == 0
    waiting.proceed()
    ran(gang)
    assert run(gang, waiting.job()) == "begun\ninner\njob.sh\noutputs\n"
    assert ran(gang) == 1
    assert left.stat().st_uid == 1234
    assert len(images(gang.docker)) == 1


def test_second_run_waits_for_the_first_and_does_not_run_setup(gang, image, until):
    waiting = Waiting(gang, image, until)
    before = waiting.lock_holders()
    second = threading.Thread(target=lambda: gang.set_up(waiting.job(), TOKEN=SECRET))
    second.start()
    until(waiting.lock_holders, lambda pids: len(pids) > len(before))
    waiting.proceed()
    waiting.thread.join(30)
    second.join(30)
    assert (waiting.errors, ran(gang)) == ([], 1)
    assert (gang.docker.names(), len(images(gang.docker))) == ([], 1)


def test_unused_images_of_older_setups_are_removed_but_for_the_last(gang, image):
    setups = [f"echo {number}" for number in range(4)]
    made = [job(gang, image, setup, "sleep 1000") for setup in setups]
    gang.start(made[0], gang.set_up(made[0], TOKEN=SECRET), TOKEN=SECRET)  # its container uses the first image
    (first,) = images(gang.docker)
    other = job(gang, image, setups[0], name="other")
    (of_other,) = {used.to_run for used in gang.set_up(other, TOKEN=SECRET).values()}
    last = [next(iter(gang.set_up(one, TOKEN=SECRET).values())).to_run for one in made[1:]]
    assert sorted(images(gang.docker)) == sorted([first, of_other, *last[-2:]])
    gang.stop(made[0])
    gang.wait(made[0])
    gang.set_up(made[-1], TOKEN=SECRET)
    assert sorted(images(gang.docker)) == sorted([of_other, *last[-2:]])
    kept = sorted(path.name for path in gang.root.glob("*/.cloudgpu/setup/*") if path.is_dir())
    assert kept == sorted(name.partition(":")[2] for name in (of_other, *last[-2:]))
