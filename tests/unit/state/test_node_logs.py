"""Logs of failed nodes: bounded, printable, and never the cause of another failure."""

from pathlib import Path

from cloudgpu.state.nodes import MOST_BYTES, mention, node_log, save_node_log


def test_log_of_a_node_is_saved_printable(tmp_path: Path) -> None:
    path = node_log(tmp_path, 3, "console")
    assert save_node_log(path, "one\r\n\x1b[31mtwo\u202e\tend\r\n") == path
    assert path == tmp_path / "nodes" / "node-3-console.log"
    assert path.read_text() == "one\n\ufffd[31mtwo\ufffd\tend\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_end_of_a_long_log_is_kept_within_the_limit(tmp_path: Path) -> None:
    for text in ("x" * (3 * MOST_BYTES) + "\nlast\n", "\x1b" * (3 * MOST_BYTES) + "\nlast\n"):
        path = save_node_log(node_log(tmp_path, 0, "bootstrap"), text)
        assert path is not None
        assert path.stat().st_size <= MOST_BYTES
        assert path.read_bytes().endswith(b"last\n")


def test_empty_log_and_unwritable_folder_are_not_an_error(tmp_path: Path) -> None:
    assert save_node_log(node_log(tmp_path, 0, "console"), "\r\n") is None
    assert not (tmp_path / "nodes").exists()
    (tmp_path / "nodes").write_text("in the way")
    assert save_node_log(node_log(tmp_path, 0, "console"), "text") is None


def test_hint_names_both_files_of_a_node_or_the_folder_of_several() -> None:
    one = [node_log(Path("/run"), 0, what) for what in ("console", "bootstrap")]
    assert (
        mention("then retry", one)
        == "read /run/nodes/node-0-console.log and /run/nodes/node-0-bootstrap.log; then retry"
    )
    several = [*one, node_log(Path("/run"), 1, "console")]
    assert mention("", several) == "read the 3 files in /run/nodes"
    assert mention("then retry", []) == "then retry"
