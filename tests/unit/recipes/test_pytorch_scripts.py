"""Pure functions of the PyTorch recipe scripts: formulas, tables, schedules and NCCL log parsing."""

import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

RECIPES = Path(__file__).parents[3] / "recipes"
EXCERPTS = Path(__file__).parents[1] / "run/excerpts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator:
    """Import a module of a recipe; recipes may have modules with the same name."""
    loaded: set[str] = set()

    def load(folder: str, name: str) -> ModuleType:
        here = RECIPES / folder
        monkeypatch.syspath_prepend(str(here))
        loaded.update(path.stem for path in here.glob("*.py"))
        for stem in loaded:
            sys.modules.pop(stem, None)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        return import_module(name)

    yield load
    for stem in loaded:
        sys.modules.pop(stem, None)


def test_bus_bandwidth_is_derived_from_algorithm_bandwidth_and_ranks(script):
    table = script("nccl-tests", "table")
    one = table.row(1_000_000_000, 0.1, ranks=8)
    assert (one.time_us, one.algbw) == pytest.approx((100_000, 10))
    assert one.busbw == pytest.approx(10 * 2 * 7 / 8)
    assert table.row(8, 1e-6, ranks=1).busbw == 0


@pytest.mark.parametrize("name", ["nccl-tests", "nccl-tests-old"])
def test_real_nccl_tests_table_is_parsed(script, name):
    table = script("nccl-tests", "table")
    rows = table.read((EXCERPTS / f"{name}.txt").read_text().splitlines())
    assert rows
    for one in rows:
        assert one.size > 0
        assert one.algbw == pytest.approx(one.size / one.time_us / 1e3, rel=0.02, abs=0.01)


def test_table_row_is_parsed_by_column(script):
    table = script("nccl-tests", "table")
    new = "   536870912     134217728     float     sum      -1   1806.7  297.16  586.06      0   "
    new += "1835.9  292.43  576.74      0"
    (one,) = table.read(["# nThread 1", f"[1,0]<stdout>:{new}", "# Avg bus bandwidth    : 581.4"])
    assert one == table.Row(536870912, 1835.9, 292.43, 576.74, 0, 586.06)
    assert table.average([one]) == pytest.approx((576.74 + 586.06) / 2)


def test_printed_table_is_parsed_back_unchanged(script):
    table = script("nccl-tests", "table")
    rows = [table.row(size, 0.001 * size / 64, ranks=4, wrong=size % 3) for size in table.sizes("64", "1M", 4)]
    again = table.read(map(table.line, rows))
    assert [one.size for one in again] == [64, 256, 1024, 4096, 16384, 65536, 262144, 1048576]
    for one, read in zip(rows, again, strict=True):
        assert read.busbw == pytest.approx(one.busbw, abs=0.005)
        assert (read.wrong, read.beside) == (one.wrong, None)


@pytest.mark.parametrize("wrong", [("8", "1T", 2), ("x", "1G", 2), ("8", "4", 2), ("8", "1G", 1), ("2", "1G", 2)])
def test_invalid_message_sizes_are_rejected(script, wrong):
    with pytest.raises(ValueError, match="siz"):
        script("nccl-tests", "table").sizes(*wrong)


def test_plot_has_a_point_for_every_row(script):
    plot, table = script("nccl-tests", "plot"), sys.modules["table"]
    rows = [table.row(size, 1e-4 + size / 1e10, ranks=16) for size in table.sizes("8", "1G", 2)]
    drawing = ET.fromstring(plot.svg(rows, "p3dn", table.EXPECTED["p3dn.24xlarge", 2]))
    (line,) = drawing.iter("{http://www.w3.org/2000/svg}polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert len(points) == len(rows)
    assert all(0 <= x <= plot.WIDTH and 0 <= y <= plot.HEIGHT for x, y in points)
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert "EFA of 2019" in "".join(drawing.itertext())
    assert plot.svg(rows[:1], "one", None)
    assert [plot.ceiling(value) for value in (0, 0.03, 1, 7, 120)] == [1, 0.05, 1, 10, 200]


OVER_EFA = [
    "ip-10-0-0-1:12:30 [0] NCCL INFO NET/OFI Selected Provider is efa (found 1 nics)",
    "ip-10-0-0-1:12:30 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/AWS Libfabric/0",
    "ip-10-0-0-1:12:30 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/0",
    "ip-10-0-0-1:12:30 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
]
OVER_TCP = ["NCCL INFO Using network Socket", "NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0"]


def test_nccl_transport_is_detected_from_debug_log(script):
    transport = script("nccl-tests", "transport")
    assert transport.used(OVER_EFA) == ("EFA", 2)
    assert transport.used(OVER_TCP) == ("TCP", 1)
    assert transport.used([*OVER_EFA, *OVER_TCP]) == ("TCP", 1)
    assert transport.used([line.replace("is efa", "is tcp") for line in OVER_EFA]) == ("TCP", 2)
    assert transport.used(["Channel 00 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA"]) == ("RDMA", 1)
    assert transport.used(OVER_EFA[-1:]) == ("inside the node", 1)
    assert transport.used(["nothing of the kind"]) == ("", 0)


@pytest.mark.parametrize(
    ("name", "asked", "has_efa", "told"),
    [
        ("EFA", "auto", True, ""),
        ("EFA", "efa", True, ""),
        ("TCP", "auto", False, ""),
        ("TCP", "tcp", True, ""),
        ("TCP", "auto", True, "the node has EFA, and NCCL talked through TCP"),
        ("TCP", "efa", False, "EFA was asked for, and NCCL talked through TCP"),
        ("EFA", "tcp", True, "TCP was asked for, and NCCL talked through EFA"),
        ("", "auto", False, "NCCL did not say"),
    ],
)
def test_transport_fallback_is_reported(script, name, asked, has_efa, told):
    found = script("nccl-tests", "transport").problem(name, nodes=2, has_efa=has_efa, asked=asked)
    assert found.startswith(told) if told else found == ""


def test_single_node_has_no_transport_fallback(script):
    assert script("nccl-tests", "transport").problem("", nodes=1, has_efa=True, asked="efa") == ""


def test_efa_device_is_detected_by_its_driver(script, tmp_path):
    transport = script("nccl-tests", "transport")
    assert not transport.efa_here(tmp_path / "none")
    device = tmp_path / "infiniband/rdmap0/device"
    device.mkdir(parents=True)
    (tmp_path / "drivers/efa").mkdir(parents=True)
    (device / "driver").symlink_to(tmp_path / "drivers/efa")
    assert transport.efa_here(tmp_path / "infiniband")


def test_image_size_grows_and_learning_rate_follows_a_single_cycle(script):
    schedule = script("pytorch-resnet50", "schedule")
    found = schedule.phases("0:128,13:224,25:288")
    assert [schedule.size_at(found, epoch) for epoch in (0, 12, 13, 24, 25, 27)] == [128, 128, 224, 224, 288, 288]
    rates = [schedule.one_cycle(step / 100, peak=2.0) for step in range(101)]
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == rates[25] == 2.0
    assert rates[:26] == sorted(rates[:26])
    assert rates[25:] == sorted(rates[25:], reverse=True)
    assert rates[-1] == 0


@pytest.mark.parametrize("text", ["", "128", "1:128", "0:128,5:224,5:288", "0:128,9:224,3:288", "0:4", "a:b"])
def test_invalid_image_size_phases_are_rejected(script, text):
    with pytest.raises(ValueError, match=f'"{text}"'):
        script("pytorch-resnet50", "schedule").phases(text)


def test_transformer_learning_rate_follows_inverse_square_root(script):
    inverse_sqrt = script("fairseq-transformer", "schedule").inverse_sqrt
    assert inverse_sqrt(1, 0.0005, 4000) == pytest.approx(0.0005 / 4000)
    assert inverse_sqrt(4000, 0.0005, 4000) == pytest.approx(0.0005)
    assert inverse_sqrt(16000, 0.0005, 4000) == pytest.approx(0.00025)


def test_token_batches_are_distributed_evenly_across_ranks(script):
    text = script("fairseq-transformer", "text")
    corpus = text.made_up(300, words=20, longest=12, seed=0)
    assert corpus == text.made_up(300, words=20, longest=12, seed=0)
    parts = [list(text.batches(corpus.train, 64, seed=1, place=(rank, 3))) for rank in range(3)]
    assert len({len(part) for part in parts}) == 1
    for batch in (batch for part in parts for batch in part):
        assert len(batch) * max(map(text.longest, batch)) <= 64
    seen = [id(pair) for part in parts for batch in part for pair in batch]
    assert len(seen) == len(set(seen))
    assert len(seen) > 280
    with pytest.raises(SystemExit, match="is more than a batch of 4"):
        list(text.batches(corpus.train, 4, seed=1, place=(0, 1)))


def test_synthetic_translation_reverses_the_sentence(script):
    text = script("fairseq-transformer", "text")
    for said, told in text.made_up(50, words=20, longest=12, seed=3).valid:
        assert (said[-1], told[-1]) == (text.END, text.END)
        backwards = [(one - text.SPECIAL + 1) % 20 for one in reversed(said[:-1])]
        assert backwards == [one - text.SPECIAL for one in told[:-1]]


def test_parallel_corpus_is_read_from_two_files_per_split(script, tmp_path):
    text = script("fairseq-transformer", "text")
    files = {"train.en": "a b\na\n\n", "train.de": "x y\nx\nz\n", "valid.en": "a q\n", "valid.de": "x\n"}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    corpus = text.read(tmp_path, ("en", "de"), most=4)
    assert corpus.words == text.SPECIAL + 4
    assert len(corpus.train) == 2  # one side of the third is empty
    assert corpus.valid[0][0] == [corpus.train[1][0][0], text.UNKNOWN, text.END]
    (tmp_path / "valid.de").write_text("x\ny\n")
    with pytest.raises(SystemExit, match="1 lines in en, 2 in de"):
        text.read(tmp_path, ("en", "de"), most=4)
    (tmp_path / "valid.de").unlink()
    with pytest.raises(SystemExit, match="No such file"):
        text.read(tmp_path, ("en", "de"), most=4)
