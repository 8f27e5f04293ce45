"""The notes beside a stack, written while commands are killed, and the passphrase that two commands make at once."""

import threading
from datetime import UTC, datetime, timedelta

from cloudgpu.engine.base import Stack
from cloudgpu.engine.pulumi_cli import layout as layouts
from cloudgpu.engine.pulumi_cli.layout import Layout
from cloudgpu.engine.pulumi_cli.recovery import notes_in


def test_a_torn_note_of_doubt_is_doubt(tmp_path):
    """Read as "no doubt", an empty search by tag would prove that nothing is there."""
    notes = notes_in(tmp_path)
    before = datetime.now(UTC)
    notes.unsettled.write_text("2026-11-2")
    until = notes.incomplete_until()
    assert until is not None
    assert until > before + timedelta(minutes=1)


def test_a_note_of_doubt_is_written_whole_or_not_at_all(tmp_path):
    notes = notes_in(tmp_path)
    until = datetime(2026, 11, 22, tzinfo=UTC)
    notes.mark_incomplete(until)
    (tmp_path / "link").hardlink_to(notes.unsettled)
    notes.mark_incomplete(until + timedelta(hours=1))
    assert (tmp_path / "link").read_text() == until.isoformat()
    assert notes.incomplete_until() == until + timedelta(hours=1)


def test_two_first_commands_of_a_home_agree_on_the_passphrase(tmp_path, monkeypatch):
    """The second one must not replace what the first one's state is encrypted with."""
    program = tmp_path / "program"
    program.mkdir()
    (program / "Pulumi.yaml").write_text("name: cloudgpu\nruntime: python\n")
    both, drawn = threading.Barrier(2), layouts.secrets.token_urlsafe

    def draw(size: int) -> str:
        both.wait(10)  # neither of them has seen a file
        return drawn(size)

    monkeypatch.setattr(layouts.secrets, "token_urlsafe", draw)
    (program / "__main__.py").write_text("")
    layout, read = Layout(tmp_path / "root"), []

    def prepare(name: str) -> None:
        layout.prepare(Stack(name, "us-east-1", program, {}, tmp_path / "journal"))
        read.append(layout.passphrase.read_text())

    threads = [threading.Thread(target=prepare, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(read) == 2
    assert {layout.passphrase.read_text()} == set(read)
    assert layout.passphrase.stat().st_mode & 0o077 == 0
    assert [path.name for path in layout.root.glob(".passphrase*")] == []
