"""The rehearsal's reader of user data finds the same parts as cloud-init itself."""

import json
import shutil

import pytest

from cloudgpu.rehearsal.nodes.boot import parse
from tests.system.cloud_init import machine
from tests.system.cloud_init.samples import MALFORMED, OURS

pytestmark = pytest.mark.system
SAMPLES = {f"ours-{name}": data for name, data in OURS.items()} | MALFORMED


@pytest.fixture(scope="module")
def read_by_cloud_init(tmp_path_factory):
    """Parts of all samples as parsed by cloud-init."""
    made = machine.build(tmp_path_factory.mktemp("machine"))
    for name, data in SAMPLES.items():
        (made.root / "samples" / name).write_bytes(data)
    shutil.copy2(machine.HERE / "read_parts.py", made.root / "tmp/read_parts.py")
    done = made.run("/usr/bin/python3 /tmp/read_parts.py")
    return json.loads(done.stdout)


def rows(parts) -> list[tuple[str, bytes]]:
    return [(name, bytes.fromhex(body)) for name, body in parts]


@pytest.mark.parametrize("name", SAMPLES)
def test_reader_finds_the_parts_that_cloud_init_runs(read_by_cloud_init, name):
    real, ours = read_by_cloud_init[name], parse(SAMPLES[name])
    assert [(part.name, part.body) for part in ours.of("boothook")] == rows(real["hooks"]), real["error"]
    assert [(part.name, part.body) for part in ours.of("script")] == rows(real["scripts"]), real["error"]
    if real["error"]:
        assert ours.refused


def test_cloud_init_reads_every_part_of_our_user_data(read_by_cloud_init):
    assert [name for name, _ in read_by_cloud_init["ours-gpu"]["hooks"]] == ["expiry.sh"]
    assert read_by_cloud_init["ours-gpu"]["scripts"]
    assert not any(real["error"] for name, real in read_by_cloud_init.items() if name.startswith("ours-"))
    assert all(parse(data).refused == () for data in OURS.values() if b"MIME" in data)
