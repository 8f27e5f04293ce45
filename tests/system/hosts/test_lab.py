"""The hosts that other tests stand on are what they claim to be: apart from each other, and gone afterwards."""

from pathlib import Path

from tests.hosts.lab import Lab, Spec, lab


def test_hosts_are_apart(lab_hosts: Lab) -> None:
    red, blue = lab_hosts["red"], lab_hosts["blue"]
    red.run(["sh", "-c", "echo mine > ~/note; echo mine > /var/tmp/note"], user="lab")
    assert red.run(["uname", "-n"]).stdout == "red\n"
    assert blue.run(["sh", "-c", "uname -n; ls ~ /var/tmp"], user="lab").stdout == "blue\n/home/lab:\n\n/var/tmp:\n"
    assert (red.folder / "home/lab/note").read_text() == "mine\n"


def test_hosts_end_with_the_block_that_made_them(tmp_path: Path) -> None:
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
