"""Pulling the same image on all nodes: requests to agents, digest agreement and registry logins."""

import base64
import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from cloudgpu.backends.aws.queries import RegistryLogins
from cloudgpu.errors import CloudError, RemoteCommandError, UsageError
from cloudgpu.launch.containers import parse_image_name
from cloudgpu.launch.inventory import Node
from cloudgpu.recipe.launch_rules import flag_problems, hides_the_system
from cloudgpu.recipe.launch_sections import Container, Environment
from cloudgpu.run.agent import Agent
from cloudgpu.run.containers import provide_image
from cloudgpu.run.registry_logins import RegistryLogin, registry_login
from tests.fake_host import FakeHost, ScriptedResult
from tests.manual_clock import ManualClock


def reject_login(region):
    """A backend without AWS credentials."""
    raise UsageError(f"the image is in ECR in {region}, but no AWS credentials are available")


ONE, TWO = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
ENGINE = {"docker": "/d", "host": "unix:///s", "gpu_runtime": False, "devices": [], "huge_pages": False}


class Nodes:
    """Agents that answer `image` with a digest each; `here` is the digest that a node has until it pulls another."""

    def __init__(self, resolved: str, *here: str) -> None:
        self.resolved, self.here, self.asked = resolved, list(here), []
        self.agents = []
        for index in range(len(here)):
            node = Node(index, f"i-{index}", "192.0.2.1", 22, "u", ("x",), "10.0.0.1", "t", "z", "", 0, False)
            host = FakeHost(node).on(
                "image", ScriptedResult(reply=lambda stdin, at=index: self.answer(at, json.loads(stdin)))
            )
            self.agents.append(Agent(host, "/a", "/h"))

    def answer(self, index: int, request: dict) -> str:
        self.asked.append((index, request))
        if request.get("resolve"):
            return json.dumps({"digest": self.resolved}) + "\n"
        self.here[index] = request["digest"] or self.here[index]
        told = {"id": f"id-of-{self.here[index]}", "digest": self.here[index] if ":" in self.here[index] else ""}
        return json.dumps({**told, "pulled": True, "entrypoint": ["/e"], "engine": ENGINE}) + "\n"


def provided(nodes, said=None, **container):
    wanted = Container(image="nvcr.io/nvidia/pytorch:24.12-py3", **container)
    return provide_image(wanted, nodes.agents, said, lambda _: None)


def test_head_node_resolves_tag_and_all_nodes_pull_its_digest():
    nodes = Nodes(ONE, TWO, "", "")
    assert {one.image for one in provided(nodes).values()} == {f"nvcr.io/nvidia/pytorch@{ONE}"}
    assert [(index, bool(request.get("resolve"))) for index, request in nodes.asked[:1]] == [(0, True)]
    assert {request["digest"] for _, request in nodes.asked[1:]} == {ONE}


def test_tag_moved_during_pull_uses_digest_of_head_node():
    nodes = Nodes("", ONE, TWO)
    assert {one.digest for one in provided(nodes).values()} == {ONE}


def test_locally_built_images_must_be_identical_on_all_nodes():
    assert provided(Nodes("", "built", "built"))[1].image == "id-of-built"
    with pytest.raises(RemoteCommandError, match=r"have different images .*: node 0 has .*, node 1 has") as caught:
        provided(Nodes("", "built-by-me", "built-by-you"))
    assert "image's digest" in caught.value.hint


def test_registry_login_is_sent_by_stdin_only():
    nodes = Nodes(ONE, ONE)
    provided(nodes, RegistryLogin("$oauthtoken", "p@ss"))
    assert all("p@ss" not in sent.text for agent in nodes.agents for sent in agent.host.sent)
    assert nodes.asked[0][1]["login"] == {"username": "$oauthtoken", "password": "p@ss", "server": "nvcr.io"}


@pytest.mark.parametrize(
    ("container", "secrets", "environ", "user", "password"),
    [
        ({"image": "busybox"}, [], {}, "", ""),
        (
            {"image": "nvcr.io/x/y", "login": "$oauthtoken"},
            ["A", "B"],
            {"A": "first", "B": "x"},
            "$oauthtoken",
            "first",
        ),
        ({"image": "x/y", "login": "me", "password": "P"}, ["A"], {"A": "no", "P": "yes"}, "me", "yes"),
        ({"image": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/x:1"}, [], {}, "AWS", "of eu-west-1"),
    ],
)
def test_registry_login_uses_the_configured_user_and_password(container, secrets, environ, user, password):
    around = Environment.model_validate({"container": container, "secrets": secrets})
    login = registry_login(around, environ, lambda region: RegistryLogin("AWS", f"of {region}"))
    assert (login.user, login.password) == (user, password) if login else not user
    assert password not in repr(login) or not password


def test_missing_registry_password_is_reported_before_launch():
    around = Environment.model_validate({"container": {"image": "x", "login": "me", "password": "P"}})
    with pytest.raises(UsageError, match="x is pulled as me, but P is not set"):
        registry_login(around, {}, reject_login)
    ecr = Environment.model_validate({"container": {"image": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/x:1"}})
    with pytest.raises(UsageError, match="no AWS credentials"):
        registry_login(ecr, {}, reject_login)


def test_ecr_login_is_cached_and_renewed_before_expiry():
    fetched = []

    def clients(region):
        def token():
            fetched.append(region)
            text = base64.b64encode(f"AWS:token-{len(fetched)}".encode()).decode()
            return {"authorizationData": [{"authorizationToken": text if len(fetched) < 3 else ""}]}

        return SimpleNamespace(region=region, client=lambda _: SimpleNamespace(get_authorization_token=token))

    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    logins = RegistryLogins(clients, clock)
    assert [logins("eu-west-1").password, logins("eu-west-1").password] == ["token-1", "token-1"]
    clock.sleep(11 * 3600 + 1)
    assert logins("eu-west-1") == RegistryLogin("AWS", "token-2")
    with pytest.raises(CloudError, match="ECR in us-east-1 returned no login"):
        logins("us-east-1")


@pytest.mark.parametrize(
    ("written", "registry", "path", "tag", "digest"),
    [
        ("busybox", "docker.io", "library/busybox", "latest", ""),
        ("pytorch/pytorch:2.7", "docker.io", "pytorch/pytorch", "2.7", ""),
        ("localhost/x", "localhost", "x", "latest", ""),
        ("127.0.0.1:5000/a/b:1", "127.0.0.1:5000", "a/b", "1", ""),
        (f"nvcr.io/nvidia/x@{ONE}", "nvcr.io", "nvidia/x", "", ONE),
        (f"nvcr.io/nvidia/x:1@{ONE}", "nvcr.io", "nvidia/x", "1", ONE),
    ],
)
def test_image_name_is_parsed_like_docker(written, registry, path, tag, digest):
    name = parse_image_name(written)
    assert (name.registry, name.path, name.tag, name.digest) == (registry, path, tag, digest)
    assert Container(image=written).image == written


@pytest.mark.parametrize("written", ["", "x/UPPER", "a b", "x:", "x@sha256:1", "-x", "http://x/y"])
def test_invalid_image_name_is_rejected_by_the_recipe(written):
    with pytest.raises(ValueError, match="image"):
        Container(image=written)


@pytest.mark.parametrize(
    "flag", ["--rm", "-d", "-it", "-e=A=b", "--mount=type=bind,src=/x,dst=/etc", "-v=/a:/proc/b", "x"]
)
def test_reserved_docker_flags_and_system_mounts_are_rejected(flag):
    assert [one for one, _ in flag_problems([flag])] == [flag]


@pytest.mark.parametrize(
    "flag", ["--cap-add=IPC_LOCK", "-v=/raid:/raid", "--mount=type=tmpfs,dst=/scratch", "--device=/dev/fuse"]
)
def test_other_docker_flags_are_accepted(flag):
    assert list(flag_problems([flag])) == []


def test_mount_that_hides_a_system_directory_is_detected():
    assert all(map(hides_the_system, ["/", "/usr", "/usr/", "/proc/1", "/dev/shm", "/.cloudgpu"]))
    assert not any(map(hides_the_system, ["/data", "/usr/local/share/data", "/home/me", "/opt/data", "/mnt"]))
