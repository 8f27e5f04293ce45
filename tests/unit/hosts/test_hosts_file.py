"""The host inventory file: fields, mistakes with their line, and fields filled in by a scan."""

from decimal import Decimal
from pathlib import Path

import pytest

from cloudgpu.catalog import load as load_catalog
from cloudgpu.hosts.host import HostsFile, Jump
from cloudgpu.hosts.loading import HostsFileError, fill_scanned_fields, load

KEY = "SHA256:jv2UE6xOw9GZ2Ye0hs1KxlcX3kTyXQ0gEVXrrNzgTno"
WHOLE = f"""
defaults:
  user: ann
  jump: gate
  rate_usd_per_hour: 3
hosts:
  - name: gate
    address: gate.example.org
    host_key: {KEY}
  - name: dgx1
    address: 10.0.0.11
    port: 2222
    gpus: V100-32GB:8
    memory: 512GiB
    cores: 80
    driver: 580.126.09
    private_address: 192.168.0.11
    network_interface: ib0
    rate_usd_per_hour: 12.50
    pool: dgx
    key: ~/.ssh/lab
  - name: dgx2
    address: 10.0.0.12
    jump: bob@[2001:db8::1]:2200
    gpus: T4:4
    keep_cache: true
"""


def read(folder: Path, text: str) -> HostsFile:
    path = folder / "hosts.yaml"
    path.write_text(text)
    return load(path, user="me", catalog=load_catalog())


def refused(folder: Path, text: str) -> list[str]:
    with pytest.raises(HostsFileError) as caught:
        read(folder, text)
    assert caught.value.exit_code == 2
    return [line.rpartition("hosts.yaml:")[2] for line in caught.value.problems]


def test_every_inventory_field_is_read(tmp_path: Path):
    gate, one, two = read(tmp_path, WHOLE).hosts
    assert (gate.jump, gate.user, gate.rate_usd) == (None, "ann", Decimal(3))
    assert one.jump == Jump("ann", "gate.example.org", 22, (KEY,))
    assert (one.gpu, one.gpus, one.gpu_memory_gib, one.memory_gib) == ("V100", 8, Decimal(32), 512)
    assert (one.port, one.inner_address, one.rate_usd, one.line) == (2222, "192.168.0.11", Decimal("12.50"), 10)
    assert str(one.key) == str(Path("~/.ssh/lab").expanduser())
    assert two.jump == Jump("bob", "2001:db8::1", 2200)
    assert two.jump.spelled == "bob@[2001:db8::1]:2200"
    # A GPU that comes in one size has it without being asked.
    assert (two.gpu_memory_gib, two.keep_cache, two.inner_address) == (Decimal(16), True, "10.0.0.12")


def test_every_mistake_is_reported_with_line(tmp_path: Path):
    text = """
hosts:
  - name: red
    address: 10.0.0.1
    gpus: V10:8
  - name: red
    address: 10.0.0.2
    jump: reed
  - name: blue
    address: 10.0.0.1
    gpus: V100-64GB:8
  - name: self
    address: 10.0.0.9
    jump: self
"""
    assert refused(tmp_path, text) == [
        '5: hosts[0].gpus: unknown GPU V10; did you mean "V100"?',
        "6: hosts[1].name: duplicate name red, first used on line 3",
        '8: hosts[1].jump: expected the name of a host in this file or user@host[:port], got reed; did you mean "red"?',
        "10: hosts[2].address: this is the same host as red: 10.0.0.1 port 22",
        "11: hosts[2].gpus: V100 does not come with 64 GB of memory; use 16 GB or 32 GB",
        "14: hosts[3].jump: a host cannot be its own jump host",
    ]


MISTAKES = {
    "hosts:\n  - name: a\n    adress: b\n    address: c": '3: hosts[0].adress: unknown field; did you mean "address"?',
    "defaults:\n  usr: ann\nhosts: []\n": '2: defaults.usr: unknown field; did you mean "user"?',
    "hosts: []\n": "1: hosts: expected at least one host",
    "hosts:\n  - name: a\n    address: b\n    gpus: V100\n": (
        '4: hosts[0].gpus: expected a GPU model and count, for example V100:8, got "V100"'
    ),
    "hosts:\n  - name: a\n    address: b\n    name: c\n": "4: hosts[0].name: duplicate field, first set on line 2",
    "hosts:\n  - !!python/object:os.system {}\n": (
        "2: the tag tag:yaml.org,2002:python/object:os.system is not allowed; use plain values"
    ),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_single_mistake_is_reported_with_line(tmp_path: Path, text: str):
    assert refused(tmp_path, text) == [MISTAKES[text]]


def test_missing_hosts_file_error_suggests_hosts_flag(tmp_path: Path):
    with pytest.raises(HostsFileError, match=r"the host inventory .* does not exist") as caught:
        load(tmp_path / "none.yaml", user="me", catalog=load_catalog())
    assert "--hosts FILE" in caught.value.hint


def test_scan_fills_only_missing_fields():
    text = "# ours\ndefaults:\n  user: ann\nhosts:\n  - name: red  # the old one\n    address: a\n    gpus: V100:8\n"
    told = {"red": {"gpus": "V100-16GB:8", "user": "bob", "cores": 8, "driver": "", "host_key": KEY}}
    written, added = fill_scanned_fields(text, told)
    assert added == {"red": ["cores", "host_key"]}
    assert written == f"{text}    cores: 8\n    host_key: {KEY}\n"
    assert fill_scanned_fields(written, told) == (written, {})
