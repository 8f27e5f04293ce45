"""The network between nodes, read from what NCCL prints.

The lines follow the format strings of NVIDIA/nccl (`src/init.cc`, `src/net.cc`, `src/transport/net.cc`,
`src/transport/net_socket.cc`, `src/debug.cc`; tags v2.4.8-1 to v2.28.3-1) and of aws/aws-ofi-nccl
(`src/nccl_ofi_net.cpp`). No NCCL runs here: there is no GPU.
"""

import os
from pathlib import Path

import pytest

from cloudgpu.launch.containers import INSIDE
from cloudgpu.node.agent import transport as nccl_logs
from cloudgpu.node.agent.containers import run_container
from cloudgpu.node.agent.gang.spec import TransportSpec
from cloudgpu.node.agent.transport import (
    FOLDER,
    NcclLines,
    NcclLogs,
    Transport,
    TransportWatch,
    empty_file,
    slowest,
)

P = "ip-10-0-0-7:812:930 [0] NCCL INFO "
TCP_2_4 = [
    P + "NET/Plugin : No plugin found (libnccl-net.so).",
    P + "NET/Socket : Using [0]ens5:10.0.0.7<0>",
    P + "Ring 00 : 7 -> 8 [send] via NET/Socket/0",
]
EFA_2_4 = [P + "NET/OFI Selected Provider is efa", P + "Ring 00 : 7 -> 8 [send] via NET/AWS Libfabric/0"]
EFA_2_12 = [
    P + "NET/OFI Selected Provider is efa (found 4 nics)",
    P + "Using network AWS Libfabric",
    P + "Channel 00/0 : 7[a01d0] -> 8[101c0] [send] via NET/AWS Libfabric/0(4)/GDRDMA",
]
EFA_2_27 = [
    P + "NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)",
    P + "NET/Plugin: Loaded net plugin Libfabric (v10)",
    P + "Initialized NET plugin Libfabric",
    P + "Assigned NET plugin Libfabric to comm",
    P + "Using network Libfabric",
    P + "Channel 00/0 : 0[0] -> 8[0] [receive] via NET/Libfabric/0/GDRDMA/Shared",
]
TCP_2_21 = [
    P + "NET/Plugin: No plugin found (libnccl-net-spcx.so)",
    P + "NET/Plugin: Using internal network plugin.",
    P + "Using network Socket",
]
TCP_2_28 = [P + "NET/Plugin: Could not find: spcx libnccl-net-spcx.so", P + "Using network Socket"]
FAILED = [
    "[2026-09-11 10:00:00] ip-10-0-0-7:812:930 [0] nccl_net_ofi_rdma_init:7978 NCCL WARN NET/OFI OFI fi_getinfo() call "
    "failed: No data available",
    P + "Using network Socket",
]
OVER_TCP = [
    P + "NET/OFI Selected provider is tcp;ofi_rxm, fabric is 10.0.0.0/24 (found 1 nics)",
    P + "Using network Libfabric",
]


def read(lines: list[str]) -> Transport:
    reader = NcclLines()
    reader.read("\n".join(lines))
    return slowest(reader.found)


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (TCP_2_4, "tcp"),
        (EFA_2_4, "efa"),
        (EFA_2_12, "efa"),
        (EFA_2_27, "efa"),
        (TCP_2_21, "tcp"),
        (TCP_2_28, "tcp"),
        (FAILED, "tcp"),
        (OVER_TCP, "tcp"),
        ([P + "Using network IB"], "ib"),
        ([P + "Using network IBext_v8"], "ib"),
        ([P + "Using network gIB"], "gib"),
        (
            [P + "NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)", P + "Using network AWS Libfabric"],
            "cxi",
        ),
        ([f"[1,7]<stdout>:{line}" for line in EFA_2_12], "efa"),
        (EFA_2_27 + TCP_2_28, "tcp"),
    ],
)
def test_network_of_every_nccl_version_is_recognised(lines: list[str], name: str) -> None:
    assert read(lines).name == name


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["epoch=1 loss=0.3", "Using network Socket", "via NET/Socket/0"],
        [P + "Bootstrap : Using ens5:10.0.0.7<0>", P + "NET/Socket : Using [0]ens5:10.0.0.7<0>"],
        [P + "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", P + "Channel 00 : 1[1] -> 2[2] via SHM/direct/direct"],
        [P + "Using network Libfabric"],
        [P + "CollNet 00/0 : 0 [send] via COLLNET/SHARP/0"],
        [P + "Using network "],
        [P + "Using network \u202e%%%"],
    ],
)
def test_lines_that_name_no_network_leave_it_unknown(lines: list[str]) -> None:
    assert read(lines) == Transport()


def test_reason_why_plugin_is_not_used_is_kept() -> None:
    assert read(TCP_2_28) == Transport(
        "tcp", "Using network Socket", "NET/Plugin: Could not find: spcx libnccl-net-spcx.so"
    )
    assert read(TCP_2_21).why == "NET/Plugin: No plugin found (libnccl-net-spcx.so)"
    assert read(TCP_2_4).why == "NET/Plugin : No plugin found (libnccl-net.so)."
    assert read(FAILED).why == "NET/OFI OFI fi_getinfo() call failed: No data available"


def test_text_of_a_log_is_bounded() -> None:
    found = read([P + "Using network " + "x" * 100_000])
    assert len(found.name) <= 24
    assert len(found.line) <= 300


def watch(folder: Path, required: str = "", container: object = None) -> TransportWatch:
    return TransportWatch(TransportSpec(required), str(folder), [str(folder / "rank-0.log")], container)


def write(folder: Path, lines: list[str], name: str = "ip-10-0-0-7-812.log") -> None:
    with (folder / FOLDER / name).open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def test_unwatched_run_reports_no_network(tmp_path: Path) -> None:
    unwatched = TransportWatch(None, str(tmp_path), [], None)
    unwatched.read(1.0)
    assert unwatched.as_json() is None
    assert unwatched.failure(0, 2.0) is None
    assert list(tmp_path.iterdir()) == []


def test_other_network_than_the_required_one_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    watched = watch(tmp_path, "efa")
    watched.read(10.0)
    assert watched.failure(1, 10.0) is None
    write(tmp_path, TCP_2_28)
    watched.read(10.5)
    assert watched.failure(1, 10.5) is None, "logs are read once a second"
    watched.read(11.1)
    failure = watched.failure(1, 12.1)
    assert failure == {
        "rank": None,
        "exit_code": None,
        "node_index": 1,
        "reason": failure["reason"],
        "age_s": pytest.approx(1.0),
    }
    assert failure["reason"].startswith(
        "resources.network is efa, but NCCL uses tcp (Using network Socket; NET/Plugin: Could not find: spcx "
        "libnccl-net-spcx.so): NCCL needs the plugin aws-ofi-nccl"
    )
    assert "--set resources.network=auto" in failure["reason"]


@pytest.mark.parametrize(("required", "lines"), [("efa", EFA_2_27), ("efa", []), ("", TCP_2_28)])
def test_required_unknown_and_optional_networks_are_no_failure(tmp_path: Path, required: str, lines: list[str]) -> None:
    watched = watch(tmp_path, required)
    write(tmp_path, lines)
    watched.read(5.0)
    assert watched.failure(0, 900.0) is None


def test_lines_in_the_output_of_a_rank_count_too(tmp_path: Path) -> None:
    watched = watch(tmp_path)
    (tmp_path / "rank-0.log").write_text("epoch=1\n" + "\n".join(EFA_2_27) + "\n")
    watched.read(5.0)
    assert watched.as_json() == {
        "name": "efa",
        "line": "Using network Libfabric",
        "why": "",
    }


def test_line_that_is_still_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    watched = watch(tmp_path)
    path = tmp_path / FOLDER / "h-1.log"
    path.write_text(P + "Using net")
    watched.read(1.0)
    with path.open("a") as file:
        file.write("work Socket\n")
    watched.read(3.0)
    assert watched.as_json()["name"] == "tcp"


def test_file_that_grows_is_emptied_while_its_writer_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_logs, "_KEPT_BYTES", 64 * 1024)
    logs = NcclLogs(str(tmp_path / FOLDER), [], lambda name: empty_file(str(tmp_path / FOLDER / name)))
    with (tmp_path / FOLDER / "h-1.log").open("w", buffering=1) as file:
        for _ in range(20):
            for _ in range(200):
                file.write(f"{P}Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM {'x' * 200}\n")
            logs.read()
        file.write(P + "Using network Socket\n")
        for _ in range(40):
            logs.read()
        assert os.fstat(file.fileno()).st_blocks * 512 <= 128 * 1024
    assert logs.transport.name == "tcp"


def test_only_the_beginning_of_a_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_logs, "_READ_BYTES", 1024)
    watched = watch(tmp_path)
    (tmp_path / "rank-0.log").write_text("x" * nccl_logs._STEP_BYTES + "\n" + "\n".join(TCP_2_28) + "\n")
    for second in range(10):
        watched.read(2.0 * second)
    assert watched.as_json() is None


def test_links_pipes_and_missing_files_are_ignored(tmp_path: Path) -> None:
    watched = watch(tmp_path)
    outside = tmp_path / "outside.log"
    outside.write_text("\n".join(TCP_2_28) + "\n")
    (tmp_path / FOLDER / "link.log").symlink_to(outside)
    os.mkfifo(tmp_path / FOLDER / "pipe.log")
    watched.read(5.0)
    assert watched.as_json() is None


def test_file_of_a_container_is_emptied_inside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[str] = []
    monkeypatch.setattr(nccl_logs, "_KEPT_BYTES", 1024)

    class Container:
        empty = emptied.append

    watched = watch(tmp_path, container=Container())
    (tmp_path / "container" / FOLDER / "h-9.log").write_text(f"{P}Using network Socket\n{'x' * 9000}\n")
    watched.read(5.0)
    assert watched.as_json()["name"] == "tcp"
    assert emptied == ["h-9.log"]
    assert f'"{INSIDE}/{FOLDER}/$1"' in run_container._EMPTY


@pytest.mark.parametrize(
    ("line", "network"),
    [
        ("epoch=1 loss=0.5 uses gloo, not NCCL", None),
        ("ip-10-0-0-7:812:812 [0] NCCL INFO Bootstrap : Using ens5:10.0.0.7<0>", "unknown"),
        ("NCCL version 2.18.5+cuda12.2", "unknown"),
        ("ip-10-0-0-7:812:812 [0] NCCL INFO Using network Socket", "tcp"),
    ],
)
def test_network_is_not_mentioned_until_nccl_prints_something(tmp_path: Path, line: str, network: str | None) -> None:
    watched = watch(tmp_path)
    (tmp_path / "rank-0.log").write_text("starting\n")
    watched.read(1.0)
    assert watched.as_json() is None
    write(tmp_path, [line])
    watched.read(3.0)
    assert (watched.as_json() or {}).get("name") == network


def test_required_network_stays_unknown_while_nccl_is_silent(tmp_path: Path) -> None:
    watched = watch(tmp_path, "efa")
    watched.read(1.0)
    assert watched.as_json() == {"name": "unknown", "line": "", "why": ""}
