"""The common SSH clients against a simulated node: OpenSSH, scp, sftp, rsync and paramiko."""

import hashlib
import os
import shutil
import subprocess

import paramiko
import pytest

from cloudgpu.errors import RehearsalError

pytestmark = pytest.mark.system


def test_command_returns_stdout_stderr_and_exit_status(workspace):
    node = workspace.client.start(workspace.spec())
    done = workspace.ssh(node, "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")


def test_fifty_mebibytes_round_trip_unchanged(workspace):
    node = workspace.client.start(workspace.spec())
    data = os.urandom(50 << 20)
    assert workspace.ssh(node, "cat", data=data).stdout == data
    assert workspace.ssh(node, "sha256sum", data=data).stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_empty_stdin_reaches_eof_immediately(workspace):
    node = workspace.client.start(workspace.spec())
    assert workspace.ssh(node, "cat; echo end", data=b"").stdout == b"end\n"


def test_requested_terminal_is_allocated_on_node(workspace):
    node = workspace.client.start(workspace.spec())
    done = workspace.ssh(node, "tty && echo said > /dev/tty; test -t 0; exit $?", "-tt")
    assert done.returncode == 0
    assert done.stdout.startswith(b"/dev/pts/")
    assert b"said" in done.stdout


def test_background_process_outlives_session_without_blocking(workspace):
    node = workspace.client.start(workspace.spec())
    assert workspace.ssh(node, "sleep 300 >/dev/null 2>&1 </dev/null & echo $! > pid").returncode == 0
    assert workspace.ssh(node, 'kill -0 "$(cat pid)"').returncode == 0


def test_login_requires_authorized_key_and_user(workspace, tmp_path):
    node = workspace.client.start(workspace.spec())
    stranger = paramiko.RSAKey.generate(2048)
    for user, key in (("root", paramiko.Ed25519Key(filename=str(workspace.key))), ("ubuntu", stranger)):
        with (
            paramiko.Transport((node.address, node.port)) as transport,
            pytest.raises(paramiko.AuthenticationException),
        ):
            transport.connect(username=user, pkey=key)


def test_host_key_matches_start_response_and_console(workspace):
    node = workspace.client.start(workspace.spec())
    with paramiko.Transport((node.address, node.port)) as transport:
        transport.start_client(timeout=20)
        shown = transport.get_remote_server_key().fingerprint
        public = transport.get_remote_server_key().get_base64()
    assert shown == node.host_key
    console = workspace.finished()
    framed = console.split("-----BEGIN SSH HOST KEY FINGERPRINTS-----")[1].split("-----END")[0]
    assert f"256 {node.host_key} root@" in framed
    keys = console.split("-----BEGIN SSH HOST KEY KEYS-----\r\n")[1].split("-----END")[0]
    assert keys.startswith(f"ssh-ed25519 {public} root@")


def test_scp_sftp_and_rsync_transfer_files(workspace, tmp_path):
    node = workspace.client.start(workspace.spec())
    tree = tmp_path / "tree"
    tree.mkdir()
    names = ["plain", "with space", "quote'\"", "new\nline", "ünïcode"]
    for name in names:
        (tree / name).write_text(name)
    (tree / "dead link").symlink_to("nowhere")
    there = f"ubuntu@{node.address}"
    ssh = " ".join(workspace.ssh_command(node))
    commands = [
        [*workspace.ssh_command(node, "-r", program="scp"), str(tree / "plain"), f"{there}:one"],
        [*workspace.ssh_command(node, program="scp"), f"{there}:one", str(tmp_path / "back")],
    ]
    if shutil.which("rsync"):
        commands.append(["rsync", "-a", "-e", ssh, f"{tree}/", f"{there}:tree/"])
        commands.append(["rsync", "-a", "-e", ssh, f"{there}:tree/", f"{tmp_path}/again/"])
    for command in commands:
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "back").read_text() == "plain"
    if shutil.which("rsync"):
        assert sorted(path.name for path in (tmp_path / "again").iterdir()) == sorted([*names, "dead link"])
    batch = b"mkdir a\nput %s a/b\nrename a/b a/c\nchmod 600 a/c\nls -l a\nrm a/c\nrmdir a\n" % bytes(tree / "plain")
    done = subprocess.run(
        [*workspace.ssh_command(node, "-b", "-", program="sftp"), there], input=batch, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"-rw-------" in done.stdout


def test_paramiko_opens_concurrent_channels_sftp_and_tunnel(workspace):
    node = workspace.client.start(workspace.spec())
    with paramiko.SSHClient() as client:
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        client.connect(node.address, node.port, "ubuntu", key_filename=str(workspace.key), allow_agent=False)
        running = [client.exec_command(f"read x; echo {number}; exit {number}") for number in range(9)]
        for stdin, _, _ in running:
            stdin.write("go\n")
        assert [channel[1].read() for channel in running] == [b"%d\n" % number for number in range(9)]
        assert [channel[1].channel.recv_exit_status() for channel in running] == list(range(9))
        with client.open_sftp() as files:
            data = os.urandom(3 << 20)
            with files.open("big", "wb") as stream:
                stream.write(data)
            with files.open("big", "rb") as stream:
                stream.prefetch()
                assert stream.read() == data
            assert files.stat("big").st_size == len(data)
            with pytest.raises(FileNotFoundError):
                files.stat("missing")
        tunnel = client.get_transport().open_channel("direct-tcpip", (node.address, node.port), ("127.0.0.1", 1))
        assert tunnel.recv(8) == b"SSH-2.0-"
        with pytest.raises(paramiko.ChannelException):
            client.get_transport().open_channel("direct-tcpip", ("127.0.0.1", 99), ("127.0.0.1", 1))
        with pytest.raises(paramiko.ChannelException):
            client.get_transport().open_channel("direct-tcpip", ("192.0.2.1", 22), ("127.0.0.1", 1))


def test_node_provides_python_and_shared_environments_directory(workspace):
    node = workspace.client.start(workspace.spec())
    asked = (
        'python3 -c "import sys; print(sys.version_info[:2] >= (3, 8))"; echo $CLOUDGPU_ENVS; touch $CLOUDGPU_ENVS/x'
    )
    done = workspace.ssh(node, asked)
    assert done.stdout.decode().split() == ["True", str(workspace.home / "envs")]
    assert (workspace.home / "envs" / "x").exists()


def test_repeated_start_is_idempotent_and_invalid_specs_are_rejected(workspace):
    first = workspace.client.start(workspace.spec())
    assert workspace.client.start(workspace.spec()) == first
    for changes in ({"instance_id": "../x"}, {"user": "a b"}, {"user": "../root"}):
        with pytest.raises(RehearsalError):
            workspace.client.start(workspace.spec(**changes))
    assert len(workspace.client.list()) == 1
