"""Impossible values in the host inventory are rejected with line and field."""

from pathlib import Path

import pytest

from cloudgpu.catalog import load as load_catalog
from cloudgpu.hosts.loading import HostsFileError, load

USD = "expected a number of US dollars, the only supported currency"
KEY = "SHA256:jv2UE6xOw9GZ2Ye0hs1KxlcX3kTyXQ0gEVXrrNzgTno"


def refused(folder: Path, text: str) -> list[str]:
    path = folder / "hosts.yaml"
    path.write_text(text)
    with pytest.raises(HostsFileError) as caught:
        load(path, user="me", catalog=load_catalog())
    assert caught.value.exit_code == 2
    return [line.rpartition("hosts.yaml:")[2] for line in caught.value.problems]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("host_key: garbage", "host_key: expected"),
        (f"host_key: '{KEY}x'", "host_key: expected"),
        ("host_key: [garbage]", "host_key"),
        ("host_key: true", "host_key: expected"),
        ("cores: 8193", "cores: expected at most 8192, got 8193"),
        ("cores: 99999999999999999999", "cores: expected a whole number of at most"),
        ("cores: true", "cores: "),
        ("gpus: V100:65", "gpus: expected 1 to 64 GPUs, got 65"),
        ("gpus: V100:٨", "gpus: expected a GPU model and count"),
        ("gpus: V100-99999GB:8", "gpus: unknown GPU V100-99999GB"),
        ("memory: 99999999999999GiB", "memory: expected a size"),
        ("port: 65536", "port: expected at most 65535"),
        ("port: true", "port: "),
        (
            "rate_usd_per_hour: 1e300",
            f"rate_usd_per_hour: {USD}, got 1e+300",
        ),
        (
            "rate_usd_per_hour: true",
            f"rate_usd_per_hour: {USD}, got True",
        ),
        ("rate_usd_per_hour: -1", "rate_usd_per_hour: expected an amount from 0 to 1,000,000,000"),
        ("jump: bob@gate:65536", "jump: expected the name of a host in this file or user@host[:port]"),
        (r'key: "a\0b"', "key: character 2 is the control character U+0000"),
        (r'key: "a\nb"', "key: character 2 is the control character U+000A"),
        (r'key: "a\ud800b"', "key: character 2 is half of a surrogate pair"),
        (r'pool: "a\eb"', "pool: character 2 is the control character U+001B"),
    ],
)
def test_invalid_host_field_is_rejected_with_line(tmp_path: Path, line, said):
    (found,) = refused(tmp_path, f"hosts:\n  - name: a\n    address: a.example.org\n    {line}\n")
    assert found.startswith("4: hosts[0]."), found
    assert said in found


@pytest.mark.parametrize("hosts", [["b", "a"], ["b", "c", "a"]])
def test_circular_jump_hosts_are_rejected(tmp_path: Path, hosts):
    rows = "".join(
        f"  - {{name: {name}, address: {name}, jump: {to}}}\n" for name, to in zip("abc", hosts, strict=False)
    )
    (found,) = refused(tmp_path, f"hosts:\n{rows}")
    assert found == f"2: hosts[0].jump: circular jump hosts: a -> {' -> '.join(hosts)}"


def test_circular_jump_host_in_defaults_is_rejected(tmp_path: Path):
    rows = "  - {name: gate, address: g, jump: a}\n  - {name: a, address: a}\n  - {name: b, address: b}\n"
    (found,) = refused(tmp_path, f"defaults: {{jump: gate}}\nhosts:\n{rows}")
    assert found == "3: hosts[0].jump: circular jump hosts: gate -> a -> gate"


@pytest.mark.parametrize("behind", ["gate", "bob@gate.example.org"])
def test_jump_host_behind_another_jump_host_is_rejected(tmp_path: Path, behind):
    rows = f"  - {{name: gate, address: g}}\n  - {{name: b, address: b, jump: {behind}}}\n"
    rows += "  - {name: c, address: c, jump: b}\n"
    (found,) = refused(tmp_path, f"hosts:\n{rows}")
    assert found == (
        f"4: hosts[2].jump: jump host b is itself behind jump host {behind}; "
        "if b is reachable directly, use user@address"
    )


def test_unknown_jump_host_in_defaults_is_rejected(tmp_path: Path):
    (found,) = refused(tmp_path, "defaults: {jump: gtae}\nhosts:\n  - {name: gate, address: g}\n")
    assert found.startswith("1: defaults.jump: expected the name of a host in this file or user@host[:port], got gtae")
    assert 'did you mean "gate"?' in found
