"""The probe's CUDA check, against real shared libraries, and its time limits."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from cloudgpu.node.agent import gpus, subprocess_tool

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
NAMED = 'int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_UNKNOWN"; return 0; }\n'
DRIVER = "580.126.20"


def library(root: Path, body: str, more: str = "") -> str:
    """Compile a CUDA library whose `cuInit` has this body; return the root below which the check finds it."""
    (root / "usr/lib").mkdir(parents=True)
    (root / "gpus.c").write_text(
        f"#include <stdlib.h>\n#include <unistd.h>\nint cuInit(unsigned flags) {{ {body} }}\n{more}"
    )
    command = ["gcc", "-w", "-shared", "-fPIC", "-o", root / "usr/lib/libcuda.so.1", root / "gpus.c"]
    subprocess.run(command, check=True)
    return str(root)


def fabric_manager(monkeypatch, folder: Path, version: str) -> None:
    folder.mkdir()
    if version:
        (folder / "nv-fabricmanager").write_text(
            f"#!/bin/sh\nprintf '\\n\\tFabric Manager version is : {version}\\n'\n"
        )
        (folder / "nv-fabricmanager").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@needs_gcc
def test_cuda_that_initializes_is_ok_whatever_devices_are_visible(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    root = library(tmp_path, 'return getenv("CUDA_VISIBLE_DEVICES") ? 100 : 0;')
    assert gpus.check_cuda(root, DRIVER) == {"state": "ok", "error": 0, "reason": ""}


@needs_gcc
@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("580.173.02", "Fabric Manager 580.173.02 does not match driver 580.126.20"),
        ("580.126.20", "Fabric Manager 580.126.20 is not running or not ready"),
        ("", "Fabric Manager is not installed"),
    ],
)
def test_error_802_names_what_is_wrong_with_fabric_manager(tmp_path: Path, monkeypatch, version: str, why: str) -> None:
    fabric_manager(monkeypatch, tmp_path / "bin", version)
    answer = gpus.check_cuda(library(tmp_path / "root", "return 802;"), DRIVER)
    assert (answer["state"], answer["error"]) == ("failed", 802)
    assert answer["reason"] == f"CUDA does not initialize (error 802, CUDA_ERROR_SYSTEM_NOT_READY): {why}"


@needs_gcc
def test_other_errors_are_named_by_the_library(tmp_path: Path) -> None:
    answer = gpus.check_cuda(library(tmp_path, "return 999;", NAMED), DRIVER)
    assert (answer["state"], answer["reason"]) == ("failed", "CUDA does not initialize (error 999, CUDA_ERROR_UNKNOWN)")


@needs_gcc
def test_library_that_crashes_is_a_failure(tmp_path: Path) -> None:
    answer = gpus.check_cuda(library(tmp_path, "return *(volatile int *)0;"), DRIVER)
    assert (answer["state"], "killed by signal 11" in answer["reason"]) == ("failed", True)


@needs_gcc
def test_cuda_that_hangs_fails_within_the_limit(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(gpus, "_CUDA_LIMIT_S", 0.1)
    answer = gpus.check_cuda(library(tmp_path, "sleep(600); return 0;"), DRIVER)
    assert (answer["state"], answer["error"]) == ("failed", None)
    assert "did not initialize within" in answer["reason"]


def test_library_that_cannot_be_loaded_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/libcuda.so.1").write_text("not a library")
    answer = gpus.check_cuda(str(tmp_path), DRIVER)
    assert answer == {"state": "unknown", "error": None, "reason": "libcuda.so.1 was not found"}


def test_tool_that_cannot_be_killed_is_given_up(monkeypatch) -> None:
    """A process in an uninterruptible system call does not exit when it is killed."""
    tools = []
    kill = subprocess.Popen.kill

    def survive(tool: subprocess.Popen[bytes]) -> None:
        tools.append(tool)

    monkeypatch.setattr(subprocess.Popen, "kill", survive)
    monkeypatch.setattr(subprocess_tool, "_KILL_S", 0.1)
    began = time.monotonic()
    assert subprocess_tool.run_bounded(("sleep", "60"), 0.1)[0] == subprocess_tool.TIMED_OUT
    assert time.monotonic() - began < 30
    kill(tools[0])
    tools[0].wait()
    tools[0].stdout.close()


def test_output_and_exit_code_of_a_tool_are_returned() -> None:
    assert subprocess_tool.run_bounded(("sh", "-c", "echo out; echo err >&2; exit 3"), 60) == (3, "out\nerr\n")
