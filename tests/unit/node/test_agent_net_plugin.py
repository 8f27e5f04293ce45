"""The search for NCCL's EFA plugin: the script in this machine's shell, with libraries that only it finds."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cloudgpu.node.agent import transport
from cloudgpu.node.agent.gang.spec import TransportSpec
from cloudgpu.node.agent.transport import TransportWatch
from cloudgpu.node.agent.untrusted_data import AgentError

EFA_PLUGIN, OTHER_PLUGIN = "...libfabric.so.1...", "...libibverbs.so.1..."
SHELL = ("/bin/sh", "-c", transport.PLUGIN_SCRIPT)


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    folder = tmp_path / "lib"
    folder.mkdir()
    return folder


def problem(folder: Path, tmp_path: Path, **variables: str) -> str:
    return transport.find_plugin_problem(SHELL, str(tmp_path), {"LD_LIBRARY_PATH": f"/none:{folder}", **variables})


@pytest.mark.parametrize(
    ("file", "text", "value", "found"),
    [
        ("libnccl-net.so", EFA_PLUGIN, None, ""),
        ("libnccl-net.so", EFA_PLUGIN, "", ""),
        ("libnccl-net-ofi.so", EFA_PLUGIN, "ofi", ""),
        ("libnccl-net-ofi.so", EFA_PLUGIN, "spcx,ofi", ""),
        ("libnccl-net-ofi.so", EFA_PLUGIN, "libnccl-net-ofi.so", ""),
        ("libnccl-net-ofi.so", EFA_PLUGIN, "{}/libnccl-net-ofi.so", ""),
        ("libnccl-net-ofi.so", EFA_PLUGIN, None, "the loader cannot find libnccl-net.so"),
        ("libnccl-net.so", EFA_PLUGIN, "spcx", "the loader cannot find libnccl-net-spcx.so"),
        ("libnccl-net.so", EFA_PLUGIN, "a,b", "the loader cannot find libnccl-net-a.so, libnccl-net-b.so"),
        ("libnccl-net.so", EFA_PLUGIN, "none", "NCCL_NET_PLUGIN=none disables every plugin"),
        (
            "libnccl-net.so",
            OTHER_PLUGIN,
            None,
            "{}/libnccl-net.so is not aws-ofi-nccl, because it does not use libfabric",
        ),
    ],
)
def test_problem_names_what_nccl_would_load(
    libraries: Path, tmp_path: Path, file: str, text: str, value: str | None, found: str
) -> None:
    (libraries / file).write_text(text)
    variables = {} if value is None else {"NCCL_NET_PLUGIN": value.format(libraries)}
    assert problem(libraries, tmp_path, **variables) == found.format(libraries)


def test_first_library_of_the_path_shadows_the_others(libraries: Path, tmp_path: Path) -> None:
    first = tmp_path / "hpcx"
    first.mkdir()
    (first / "libnccl-net.so").write_text(OTHER_PLUGIN)
    (libraries / "libnccl-net.so").write_text(EFA_PLUGIN)
    found = problem(libraries, tmp_path, LD_LIBRARY_PATH=f"{first}:{libraries}")
    assert found.startswith(f"{first}/libnccl-net.so is not aws-ofi-nccl")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_plugin_without_its_libfabric_cannot_be_loaded(libraries: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.c").write_text("int fi_version(void) { return 1; }\n")
    shared = ["gcc", "-shared", "-fPIC", "-o"]
    fabric = tmp_path / "libfabric.so.99"  # this machine may have an older one
    subprocess.run([*shared, fabric, tmp_path / "empty.c", "-Wl,-soname,libfabric.so.99"], check=True)
    (tmp_path / "plugin.c").write_text("extern int fi_version(void); int plugin(void) { return fi_version(); }\n")
    subprocess.run([*shared, libraries / "libnccl-net.so", tmp_path / "plugin.c", fabric], check=True)
    found = problem(libraries, tmp_path)
    assert found == f"{libraries}/libnccl-net.so needs libfabric, which the loader cannot find"
    shutil.move(fabric, libraries)
    assert problem(libraries, tmp_path) == ""


def test_image_without_the_tools_has_no_known_problem(libraries: Path, tmp_path: Path) -> None:
    assert problem(libraries, tmp_path, PATH=str(libraries)) == ""


def test_values_of_variables_are_passed_without_being_written(libraries: Path, tmp_path: Path) -> None:
    problem(libraries, tmp_path, TOKEN="s3cret")
    names = (tmp_path / transport.PLUGIN_NAMES_FILE).read_text()
    assert names == "LD_LIBRARY_PATH\nTOKEN\n"
    assert "TOKEN" not in os.environ


def test_last_verdict_counts_and_other_lines_are_ignored() -> None:
    said = "== PyTorch ==\ncloudgpu-net-plugin missing a.so\ncloudgpu-net-plugin missing b.so\nbye\n"
    parse = transport.parse_plugin_problem
    assert parse(said) == "the loader cannot find b.so"
    assert parse("cloudgpu-net-plugin unknown\n") == parse("== PyTorch ==\n") == ""
    assert parse("cloudgpu-net-plugin new-word {0.__class__}\n") == ""
    assert parse("cloudgpu-net-plugin missing {0.__class__}\n") == "the loader cannot find {0.__class__}"


def test_problem_fails_a_run_that_requires_efa_and_is_a_reason_for_others(tmp_path: Path) -> None:
    required = TransportWatch(TransportSpec("efa"), str(tmp_path), [], None)
    with pytest.raises(AgentError) as caught:
        required.take_plugin_problem("the loader cannot find libnccl-net.so")
    assert caught.value.message == (
        "resources.network is efa, but NCCL cannot use it in this image: the loader cannot find libnccl-net.so"
    )
    assert "images/efa-nccl" in caught.value.hint
    required.take_plugin_problem("")
    optional = TransportWatch(TransportSpec(""), str(tmp_path), [], None)
    optional.take_plugin_problem("the loader cannot find libnccl-net.so")
    assert optional.as_json() == {"name": "unknown", "line": "", "why": "the loader cannot find libnccl-net.so"}
