"""Node records, consoles, sockets, addresses and base layers of simulated nodes."""

import json
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal.nodes import addresses, images, record
from cloudgpu.rehearsal.nodes.record import Console
from cloudgpu.rehearsal.nodes.values import NodeSpec, spec_from_json, spec_to_json
from cloudgpu.rehearsal.nodes.visible_paths import find_visible_paths

_SPEC = NodeSpec(
    instance_id="i-0abc", instance_type="g5.xlarge", region="us-east-1", zone="us-east-1c", image_id="ami-1",
    address="", user="ubuntu", authorized_keys=("ssh-ed25519 A me",), user_data=b"\x00\xff", gpu="A10G", gpus=1,
    gpu_memory_mib=24576, efa_interfaces=0,
)  # fmt: skip
_RECORD = record.SimulatedNodeRecord(_SPEC, "127.1.2.3", 2222, 1338, "SHA256:x", "cage")


@given(st.binary(max_size=100), st.lists(st.text(max_size=20), max_size=3))
def test_node_spec_round_trips_through_json(data, keys):
    spec = replace(_SPEC, user_data=data, authorized_keys=tuple(keys))
    assert spec_from_json(json.loads(json.dumps(spec_to_json(spec))) | {"later": 1}) == spec


def test_saved_node_record_is_private_and_loads_unchanged(tmp_path):
    kept = replace(_RECORD, state="running", pid=7, timers=(record.Timer("x", 1.5, ("a", "b")),))
    record.save(tmp_path / "record.json", kept)
    assert record.load(tmp_path / "record.json") == kept
    assert stat.S_IMODE((tmp_path / "record.json").stat().st_mode) == 0o600
    assert kept.off("why", unheard=True).report().reason == "why"
    assert kept.off("why", unheard=True).timers == ()


@pytest.mark.parametrize("text", ["", "rubbish", "{}", "[]", '{"timers": []}', '{"timers": [], "spec": {}}'])
def test_damaged_record_raises_an_error_the_host_handles(tmp_path, text):
    (tmp_path / "record.json").write_text(text)
    with pytest.raises((OSError, ValueError, KeyError, TypeError)):
        record.load(tmp_path / "record.json")


def test_console_log_is_trimmed_and_uses_crlf_line_ends(tmp_path):
    console = Console(tmp_path / "console.log")
    assert console.read() == b""
    console.write("one\ntwo\r\n")
    assert console.read() == b"one\r\ntwo\r\n"
    console.write("x" * (5 << 20) + "end\n")
    console.trim()
    assert console.path.stat().st_size == 64 * 1024
    assert console.read().endswith(b"xend\r\n")
    assert len(console.read()) == 64 * 1024


def test_unix_sockets_work_under_long_paths(tmp_path):
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    (folder / "host.sock").write_text("left over")
    with addresses.bind(folder / "host.sock") as server:
        server.listen()
        addresses.connect(folder / "host.sock", 5).close()
        assert stat.S_IMODE((folder / "host.sock").stat().st_mode) == 0o600
    with pytest.raises(ConnectionRefusedError):
        addresses.connect(folder / "host.sock", 5)


def test_taken_address_is_replaced_by_the_next_free_address(tmp_path):
    first = addresses.claim_free_address(tmp_path, "", set())
    second = addresses.claim_free_address(tmp_path, "", set())
    third = addresses.claim_free_address(tmp_path, first.address, set())
    try:
        assert len({(claim.address, claim.port) for claim in (first, second, third)}) == 3
        assert all(claim.address.startswith("127.") for claim in (first, second, third))
        assert not _listens(first.address, first.port)
    finally:
        for claim in (first, second, third):
            claim.close()


def _listens(address, port):
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def test_address_that_cannot_be_bound_is_rejected(tmp_path):
    claim = addresses.bind_address("127.0.0.1", 0, 0)
    with claim.ssh, claim.metadata, pytest.raises(OSError, match="in use"):
        addresses.bind_address("127.0.0.1", 0, claim.metadata_port)


def test_node_environment_contains_package_settings_and_hides_secrets(tmp_path, monkeypatch):
    home, user = tmp_path / "state", tmp_path / "user"
    (user / ".config" / "pip").mkdir(parents=True)
    (user / ".config" / "pip" / "pip.conf").write_text("")
    monkeypatch.setenv("HOME", str(user))
    environment = {"PIP_INDEX_URL": "x", "UV_INDEX": "y", "HTTPS_PROXY": "z", "AWS_SECRET_ACCESS_KEY": "s", "HOME": "h"}
    seen = find_visible_paths(home, home / "envs", environment)
    passed = dict(seen.environment)
    assert {"PIP_INDEX_URL", "UV_INDEX", "HTTPS_PROXY"} <= passed.keys()
    assert {"AWS_SECRET_ACCESS_KEY", "HOME"}.isdisjoint(passed)
    assert passed["PIP_CONFIG_FILE"] == str(user / ".config" / "pip" / "pip.conf")
    assert passed["CLOUDGPU_ENVS"] == str(home / "envs")
    # uv's cache is in the same mount as the environments, so that uv can hard-link files into them.
    assert set(seen.writable) == {home / "envs", user / ".cache" / "pip"}
    assert passed["UV_CACHE_DIR"] == str(home / "envs" / ".uv")
    assert "UV_LINK_MODE" not in passed
    assert {home, user, Path("/root"), Path("/home")} <= set(seen.hidden)
    assert user not in seen.readable
    assert dict(seen.commands)["python3"] == seen.base_python


def test_configured_uv_cache_is_used_with_copy_mode(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    seen = find_visible_paths(tmp_path / "h", tmp_path / "h" / "envs", {"UV_CACHE_DIR": str(tmp_path / "warm")})
    assert tmp_path / "warm" in seen.writable
    assert dict(seen.environment)["UV_CACHE_DIR"] == str(tmp_path / "warm")
    assert dict(seen.environment)["UV_LINK_MODE"] == "copy"


def test_configured_python_keeps_its_virtual_environment(tmp_path, monkeypatch):
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    python = tmp_path / "venv" / "bin" / "python"
    python.symlink_to("/usr/bin/env")
    monkeypatch.setenv("HOME", str(tmp_path))
    seen = find_visible_paths(tmp_path / "h", tmp_path / "h" / "envs", {"CLOUDGPU_REHEARSAL_PYTHON": str(python)})
    assert dict(seen.commands)["python3"] == str(python)
    assert tmp_path / "venv" in seen.readable


def test_base_layer_installs_stub_commands_under_quoted_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    root = tmp_path / "it's a root"
    root.mkdir()
    laid = images.Layer(root, str(root), find_visible_paths(tmp_path / "h", tmp_path / "h" / "envs", {}))
    laid.write_files(user="ubuntu", hostname="n", authorized_keys=("k1", "k2"), host_key_public="ssh-ed25519 A")
    assert (root / "home/ubuntu/.ssh/authorized_keys").read_text() == "k1\nk2\n"
    for name in images.STUB_COMMANDS:
        assert os.access(root / "usr/local/bin" / name, os.X_OK)
    assert not (root / "etc/passwd").exists()


def test_isolated_layer_has_its_own_user_and_no_passwords(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    root = tmp_path / "root"
    root.mkdir()
    laid = images.Layer(root, "", find_visible_paths(tmp_path / "h", tmp_path / "h" / "envs", {}))
    laid.write_files(user="ubuntu", hostname="n", authorized_keys=(), host_key_public="ssh-ed25519 A")
    assert (root / "etc/passwd").read_text().startswith("ubuntu:x:0:0:ubuntu:/home/ubuntu:/bin/bash\n")
    assert "$" not in (root / "etc/shadow").read_text()
    assert (root / "usr/sbin/shutdown").readlink() == Path("/opt/cloudgpu/standin")


def test_long_socket_path_without_proc_raises_a_typed_error(tmp_path, monkeypatch):
    monkeypatch.setattr(addresses, "_LIMIT_BYTES", 1)
    monkeypatch.setattr(Path, "is_dir", lambda _: False)
    with pytest.raises(RehearsalError, match="too long"):
        addresses.connect(tmp_path / "x", 1)
