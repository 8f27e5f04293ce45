"""The agent's Python environments with real interpreters; `uv` and `pip` are faked where they need a network."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cloudgpu.node.payload import agent_name, agent_source

pytestmark = [pytest.mark.main_path, pytest.mark.system]

# Creates the environment directory with a Python, records each call, and can be made to fail or to be slow.
UV = """#!/bin/sh
echo "$@" >>"$CALLS"
echo "$UV_CACHE_DIR" >>"$CALLS.caches"
echo "Resolved 1 package from https://user:hunter2@index.example/simple"
[ -z "$UV_SLEEPS" ] || { touch "$CALLS.sleeping"; sleep "$UV_SLEEPS"; }
[ -z "$UV_FAILS" ] || { echo "error: no such package"; exit 2; }
if [ "$1" = venv ]; then
  for last in "$@"; do :; done
  mkdir -p "$last/bin" && ln -s "$REAL_PYTHON" "$last/bin/python"
fi
"""


NOT_MET = ["pytest>=999", "pytest<1", "no-such-thing-zz", "pytest @ https://x.example/y", "-r x"]

# A real venv without pip, so that nothing is downloaded.
PYTHON_WITHOUT_PIP = f"""#!/bin/sh
if [ "$2" = venv ]; then exec {sys.executable} -m venv --without-pip "$3"; fi
exec {sys.executable} "$@"
"""


# Its venvs hold a Python whose pip brings one thing only: uv.
PYTHON_WHOSE_PIP_BRINGS_UV = f"""#!/bin/sh
[ "$2" = venv ] || exec {sys.executable} "$@"
mkdir -p "$3/bin"
cat >"$3/bin/python" <<'END'
#!/bin/sh
if [ "$3" = config ]; then echo "$PIP_SAYS"; exit 0; fi
echo "$@" >>"$CALLS"
case "$*" in
*uv\\>=*) [ -z "$NO_UV" ] || exit 1; cp "$UV_OF_THE_INDEX" "$(dirname "$0")/uv" ;;
esac
END
chmod +x "$3/bin/python"
"""


PYTHON_WITHOUT_ENSUREPIP = f"""#!/bin/sh
case "$*" in *ensurepip*) exit 1 ;; esac
exec {sys.executable} "$@"
"""


class Node:
    def __init__(self, root: Path) -> None:
        self.bin, self.envs, self.calls = root / "bin", root / "envs", root / "calls"
        self.bin.mkdir()
        self.agent = root / agent_name()
        self.agent.write_bytes(agent_source())
        self.add("uv", UV)
        # Not a link: Python would not know by it the environment that the tests run in.
        self.add("python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        self.calls.touch()

    def add(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def popen(self, *requirements: str, version=None, backend=None, **environment: str) -> subprocess.Popen:
        spec = {"requirements": list(requirements), "version": version, "root": str(self.envs)}
        spec |= {} if backend is None else {"torch_backend": backend}
        process = subprocess.Popen(
            [str(self.bin / "python3"), str(self.agent), "env"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                "PATH": f"{self.bin}:/usr/bin:/bin",
                "HOME": str(self.bin),
                "CALLS": str(self.calls),
                "REAL_PYTHON": sys.executable,
                "PIP_CONFIG_FILE": os.devnull,  # the settings of this machine must not choose the tool
                **environment,
            },
        )
        process.stdin.write(json.dumps(spec).encode())
        process.stdin.close()
        process.stdin = None
        return process

    def env(self, *requirements: str, ok: bool = True, version=None, backend=None, **environment: str) -> list[dict]:
        process = self.popen(*requirements, version=version, backend=backend, **environment)
        output = process.communicate(timeout=60)[0]
        assert (process.returncode == 0) is ok, output
        assert b"hunter2" not in output
        return [json.loads(line) for line in output.splitlines()]

    def installs(self) -> int:
        return self.calls.read_text().count("pip install")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_interpreter_with_all_requirements_is_used_without_build(node: Node) -> None:
    assert node.env("pytest>=8") == [{"interpreter": str(node.bin / "python3"), "built": False}]
    assert node.calls.read_text() == ""


def test_interpreter_from_environment_variable_is_preferred(node: Node) -> None:
    (answer,) = node.env("pytest", CLOUDGPU_PYTHON=sys.executable)
    assert answer["interpreter"] == sys.executable


@pytest.mark.parametrize("requirement", NOT_MET)
def test_unmet_requirement_builds_environment_once(node: Node, requirement: str) -> None:
    *progress, answer = node.env(requirement)
    assert answer["built"] is True
    assert answer["interpreter"].startswith(str(node.envs))
    assert any("Resolved" in line["progress"] for line in progress)
    (again,) = node.env(requirement)
    assert again == {**answer, "built": False}
    assert node.installs() == 1


def test_uv_cache_defaults_to_environments_directory(node: Node) -> None:
    node.env("zz")
    node.env("yy", UV_CACHE_DIR="/somewhere/else")
    caches = Path(f"{node.calls}.caches").read_text().split()
    assert caches == [f"{node.envs}/.uv", "/somewhere/else", "/somewhere/else"]


def test_different_python_version_builds_environment(node: Node) -> None:
    assert node.env("pytest", version="3.99")[-1]["built"] is True
    assert "--python 3.99" in node.calls.read_text()


def test_each_torch_backend_gets_separate_environment(node: Node) -> None:
    plain = node.env("pytest>=8")[-1]
    chosen = node.env("pytest>=8", backend="cu126")[-1]
    assert (plain["built"], chosen["built"]) == (False, True)  # the build of an existing interpreter is unknown
    assert node.env("pytest>=8", backend="cu128")[-1]["interpreter"] != chosen["interpreter"]
    assert [line.split(" -r ")[0].rsplit("python ", 1)[1] for line in node.calls.read_text().splitlines()[1::2]] == [
        "--torch-backend cu126",
        "--torch-backend cu128",
    ]


@pytest.mark.parametrize("backend", ["auto", "cu126 --index-url x", 126])
def test_invalid_torch_backend_is_rejected_before_uv_runs(node: Node, backend: object) -> None:
    assert "torch_backend" in node.env("pytest", ok=False, backend=backend)[-1]["error"]
    assert node.calls.read_text() == ""


def test_torch_backend_without_uv_installs_uv_with_pip(node: Node) -> None:
    (node.bin / "uv").rename(node.bin / "kept")
    node.add("python3", PYTHON_WHOSE_PIP_BRINGS_UV)
    *progress, answer = node.env("zz", backend="cu126", UV_OF_THE_INDEX=str(node.bin / "kept"))
    assert answer["built"] is True
    brought, installed = node.calls.read_text().splitlines()
    assert brought.startswith("-m pip install ")
    assert brought.endswith(" uv>=0.7.14")
    assert f"--python {answer['interpreter']} --torch-backend cu126 -r " in installed
    assert any("installing uv" in line["progress"] for line in progress)


def brought(node: Node, **environment: str) -> list[str]:
    """Build on a node without uv whose pip can install it, and return the recorded calls."""
    (node.bin / "uv").rename(node.bin / "kept")
    node.add("python3", PYTHON_WHOSE_PIP_BRINGS_UV)
    assert node.env("zz", UV_OF_THE_INDEX=str(node.bin / "kept"), **environment)[-1]["built"] is True
    return node.calls.read_text().splitlines()


def test_missing_uv_is_installed_with_pip(node: Node) -> None:
    first, second = brought(node, PIP_SAYS="global.index-url='https://index.example/simple'")
    assert first.endswith("uv>=0.7.14")
    assert second.startswith("pip install --compile-bytecode --python ")


def test_pip_only_settings_make_pip_install_requirements(node: Node) -> None:
    (only,) = brought(node, PIP_SAYS="global.keyring-provider='subprocess'")
    assert only.startswith("-m pip install ")
    assert " -r " in only


def test_pip_installs_requirements_when_uv_is_unavailable(node: Node) -> None:
    tried, done = brought(node, PIP_SAYS=":env:.cert='/x.pem'", NO_UV="1")
    assert tried.endswith("uv>=0.7.14")
    assert " -r " in done


def test_pip_retries_after_uv_fails(node: Node) -> None:
    *_, by_uv, by_pip = brought(node, PIP_SAYS="global.retries='3'", UV_FAILS="1")
    assert by_uv.startswith("pip install ")
    assert by_pip.startswith("-m pip install ")


def test_build_of_pytorch_that_the_user_selects_is_not_lost_without_uv(node: Node) -> None:
    """Regression: `UV_TORCH_BACKEND=cpu` had no effect where pip was used instead of uv."""
    kept = node.bin / "kept"
    # uv cannot read this setting of pip, so without the variable pip would install the requirements.
    first, second = brought(node, PIP_SAYS="global.keyring-provider='subprocess'", UV_TORCH_BACKEND="cpu")
    assert first.endswith("uv>=0.7.14")
    assert second.startswith("pip install --compile-bytecode --python ")
    failed = node.env("zz", "yy", ok=False, UV_OF_THE_INDEX=str(kept), UV_FAILS="1", UV_TORCH_BACKEND="cpu")
    assert "installing the requirements" in failed[-1]["error"]
    assert node.calls.read_text().splitlines()[-1].startswith("pip install ")  # and not by pip


def test_another_build_of_pytorch_is_another_environment(node: Node) -> None:
    environments = {
        node.env("zz", **chosen)[-1]["interpreter"]
        for chosen in ({}, {"UV_TORCH_BACKEND": "cpu"}, {"UV_TORCH_BACKEND": "cu126"}, {})
    }
    assert len(environments) == 3


def test_failure_to_install_uv_is_reported(node: Node) -> None:
    (node.bin / "uv").unlink()
    node.add("python3", PYTHON_WITHOUT_PIP)
    assert "installing uv" in node.env("zz", ok=False, backend="cu126")[-1]["error"]


def test_concurrent_requests_for_shared_directory_build_once(node: Node) -> None:
    both = [node.popen("zz", UV_SLEEPS="1") for _ in range(3)]
    answers = [json.loads(process.communicate(timeout=60)[0].splitlines()[-1]) for process in both]
    assert sorted(answer["built"] for answer in answers) == [False, False, True]
    assert node.installs() == 1


def test_failed_build_reports_tool_output_and_is_discarded(node: Node) -> None:
    answer = node.env("zz", ok=False, UV_FAILS="1")[-1]
    assert "no such package" in answer["error"]
    assert node.env("zz")[-1]["built"] is True


def test_killed_build_is_removed_and_rebuilt(node: Node) -> None:
    killed = node.popen("zz", UV_SLEEPS="2")
    deadline = time.monotonic() + 10
    while not Path(f"{node.calls}.sleeping").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    (half,) = [path.with_suffix("") for path in node.envs.glob("*.lock")]
    (half / "bin").mkdir(parents=True)
    (half / "bin" / "python").symlink_to(sys.executable)
    progress, answer = node.env("zz")[:-1], node.env("zz")[-1]
    assert any("removing" in line["progress"] for line in progress)
    assert answer["built"] is False


def test_environment_with_missing_python_is_rebuilt(node: Node) -> None:
    built = node.env("zz")[-1]["interpreter"]
    Path(built).unlink()
    Path(built).symlink_to("/nowhere/python")
    assert node.env("zz")[-1]["built"] is True


def test_build_without_uv_uses_venv_and_pip(node: Node) -> None:
    (node.bin / "uv").unlink()
    (node.bin / "python3").unlink()
    node.add("python3", PYTHON_WITHOUT_PIP)
    process = node.popen("no-such-thing-zz")
    lines = [json.loads(line) for line in process.communicate(timeout=60)[0].splitlines()]
    assert process.returncode == 1
    assert "No module named pip" in lines[-1]["error"]


def built_by_pip(node: Node, **environment: str) -> bool:
    """Return True if pip was used although uv is available."""
    (node.bin / "python3").unlink()
    node.add("python3", PYTHON_WITHOUT_PIP)
    process = node.popen("no-such-thing-zz", **environment)
    output = process.communicate(timeout=60)[0]
    assert ("No module named pip" in output.decode()) is (node.calls.read_text() == "")
    return node.installs() == 0


@pytest.mark.parametrize(
    ("told", "by_pip"),
    [
        ({"PIP_INDEX_URL": "https://index.example/simple"}, True),
        ({"PIP_CERT": "/etc/ssl/company.pem"}, True),
        ({"PIP_CERT": "/etc/ssl/company.pem", "UV_DEFAULT_INDEX": "https://index.example/simple"}, False),
        ({"PIP_CACHE_DIR": "/cache", "PIP_INDEX_URL": ""}, False),
    ],
)
def test_pip_environment_variables_select_pip_over_uv(node: Node, told: dict[str, str], by_pip: bool) -> None:
    assert built_by_pip(node, **told) is by_pip


def test_pip_config_file_with_index_selects_pip(node: Node, tmp_path: Path) -> None:
    named = tmp_path / "pip.conf"
    named.write_text("[global]\nno-input = true\nindex-url = https://index.example/simple\n")
    assert built_by_pip(node, PIP_CONFIG_FILE=str(named))


def test_python_without_pip_bundle_selects_uv_despite_pip_settings(node: Node) -> None:
    (node.bin / "python3").unlink()
    node.add("python3", PYTHON_WITHOUT_ENSUREPIP)
    assert node.env("zz", PIP_INDEX_URL="https://index.example/simple")[-1]["built"] is True
    assert node.installs() == 1


def test_unavailable_python_version_is_reported_with_uv_hint(node: Node) -> None:
    (node.bin / "uv").unlink()
    answer = node.env(ok=False, version="3.99")[-1]
    assert "3.99" in answer["error"]
    assert "uv" in answer["hint"]
