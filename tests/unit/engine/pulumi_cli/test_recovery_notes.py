"""Recovery notes written while commands are killed, and a passphrase created by two commands at once."""

import os
import threading
from datetime import UTC, datetime, timedelta

from cloudgpu.engine.base import Stack
from cloudgpu.engine.pulumi_cli import installation as layouts
from cloudgpu.engine.pulumi_cli.installation import Layout
from cloudgpu.engine.pulumi_cli.state import notes_in


def test_truncated_incomplete_note_still_means_incomplete(tmp_path):
    """Otherwise an empty search by tag would count as proof that nothing is left."""
    notes = notes_in(tmp_path)
    before = datetime.now(UTC)
    notes.unsettled.write_text("2026-11-2")
    os.utime(notes.unsettled, (before.timestamp(),) * 2)  # the kernel's clock may differ in scripts/test-dates
    until = notes.incomplete_until()
    assert until is not None
    assert until > before + timedelta(minutes=1)


def test_incomplete_note_is_written_atomically(tmp_path):
    notes = notes_in(tmp_path)
    until = datetime(2026, 11, 22, tzinfo=UTC)
    notes.mark_incomplete(until)
    (tmp_path / "link").hardlink_to(notes.unsettled)
    notes.mark_incomplete(until + timedelta(hours=1))
    assert (tmp_path / "link").read_text() == until.isoformat()
    assert notes.incomplete_until() == until + timedelta(hours=1)


def test_concurrent_first_commands_agree_on_passphrase(tmp_path, monkeypatch):
    """The second command must not replace the passphrase that encrypts the state of the first."""
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
