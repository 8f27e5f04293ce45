"""The lab hosts that other tests use are isolated from each other and removed afterwards."""

from pathlib import Path

from tests.hosts.lab import Lab, Spec, lab


def test_lab_hosts_have_separate_names_and_files(lab_hosts: Lab) -> None:
    red, blue = lab_hosts["red"], lab_hosts["blue"]
    red.run(["sh", "-c", "echo mine > ~/note; echo mine > /var/tmp/note"], user="lab")
    assert red.run(["uname", "-n"]).stdout == "red\n"
    assert blue.run(["uname", "-n"]).stdout == "blue\n"
    assert not blue.run(["sh", "-c", "find ~ /var/tmp -name note"], user="lab").stdout
    assert (red.folder / "home/lab/note").read_text() == "mine\n"


def test_lab_hosts_end_with_their_context_manager(tmp_path: Path) -> None:
    with lab(tmp_path, [Spec("short")]) as hosts:
        inside = Path(f"/proc/{hosts['short'].pid}/ns/net").stat().st_ino
        daemon = hosts["short"].run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"])
        assert daemon.stdout.strip().isdigit()
    assert inside not in _network_namespaces()


def _network_namespaces() -> set[int]:
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add((process / "ns/net").stat().st_ino)
        except OSError:
            continue
    return found
