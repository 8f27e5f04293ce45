"""Two state homes of the same user in one account: in whatever order their commands run, nothing leaks."""

from dataclasses import replace

import pytest

from cloudgpu.paths import Home
from cloudgpu.rehearsal import client

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(900)]

UP = ("up", "plain", "--yes")
DOWN = ("down", "plain")
SWEEP = ("sweep", "--yes")
EXTEND = ("extend", "plain", "--by", "30m")
LIMIT_S = 300


def rare(value):
    """Mark a case that only the long tier runs."""
    return pytest.param(value, marks=pytest.mark.full)


FLEET_BEFORE = ("CreateFleet", "before")
FLEET_AFTER = ("CreateFleet", "after_effect")
GROUP_AFTER = ("CreateSecurityGroup", "after_effect")
CONSOLE = ("GetConsoleOutput", "before")


@pytest.fixture(params=[rare("own ledgers"), "one ledger"])
def homes(request, workspace, tmp_path):
    """Return the laptop and the workstation of one user."""
    workspace.recipe()
    home = Home(tmp_path / "other").ensure()
    workspace.home.rehearsal.mkdir(mode=0o700, exist_ok=True)  # either home may be the one that starts the server
    (home.root / "rehearsal").symlink_to(workspace.home.rehearsal)
    ledger = {"CLOUDGPU_LEDGER_URL": f"sqlite:///{tmp_path}/shared.sqlite3"} if request.param == "one ledger" else {}
    owner = {"CLOUDGPU_OWNER": "ann", **ledger}
    return Person(workspace, owner), Person(replace(workspace, home=home), owner)


class Person:
    """One of the two state homes, with the owner and the ledger that both use."""

    def __init__(self, workspace, env):
        self.workspace = workspace
        self.env = env

    def run(self, *args, code=0):
        return self.workspace.run(*args, env=self.env, code=code)

    def json(self, *args, code=0):
        return self.workspace.json(*args, env=self.env, code=code)

    def popen(self, *args):
        return self.workspace.popen(*args, env=self.env)

    def open_rows(self):
        return sum(row["open_entries"] for row in self.json("cost")["rows"])


def held(person, args, action, phase):
    """Start a command and hold it at one of its calls."""
    client.put_faults(person.workspace.cloud, [{"action": action, "phase": phase, "do": "hold", "times": 1}])
    process = person.popen(*args)
    person.workspace.until_held(process)
    return process


def let_go(person, process):
    client.put_faults(person.workspace.cloud, [])
    out, err = process.communicate(timeout=LIMIT_S)
    assert "Traceback" not in err, err
    return process.returncode, out + err


def check_clean(*people):
    """Run `down` everywhere; then the cloud is empty, no ledger entry is open, and no record is left."""
    for one in people:
        one.run(*DOWN)
    assert people[0].workspace.left() == {}
    for one in people:
        assert one.open_rows() == 0
        assert one.json("status")["clusters"] == []


def test_cluster_of_another_home_blocks_up_but_can_be_deleted(homes):
    laptop, workstation = homes
    laptop.run(*UP)
    refused = workstation.run(*UP, code=11)
    assert "cluster name plain is in use by ann" in refused.stderr
    assert "there is no running cluster plain" in workstation.run(*EXTEND, code=2).stderr
    (row,) = workstation.json("sweep")["clusters"]
    assert (row["goes"], row["why"], row["ended"]) == (True, "yours, with no record in this state home", False)
    assert len(client.nodes(laptop.workspace.cloud)) == 2

    # Whoever names the cluster ends it, from wherever.
    assert not workstation.json(*DOWN)["known"]
    assert not client.nodes(laptop.workspace.cloud)
    assert laptop.json("status", "--refresh")["clusters"][0]["state"] == "terminated"
    assert "cloudgpu down plain" in laptop.run(*UP, code=10).stderr
    check_clean(laptop, workstation)


@pytest.mark.parametrize("place", [rare(GROUP_AFTER), rare(FLEET_BEFORE), FLEET_AFTER, rare(CONSOLE)], ids="-".join)
@pytest.mark.parametrize("other", [SWEEP, DOWN, UP], ids=lambda args: args[0])
def test_command_from_another_home_during_up_leaks_nothing(homes, place, other):
    laptop, workstation = homes
    process = held(laptop, UP, *place)
    done = workstation.run(*other, code=None)
    assert done.returncode in (0, 4, 6, 8, 11), done
    assert "Traceback" not in done.stderr
    code, text = let_go(laptop, process)
    assert code in (0, 4, 6, 8, 13), text
    if other == UP and code == 0:
        # Whoever lost has taken nothing of the winner's with it.
        assert done.returncode != 0
        assert len(client.nodes(laptop.workspace.cloud)) == 2
    check_clean(laptop, workstation)


@pytest.mark.parametrize("place", [rare(GROUP_AFTER), FLEET_AFTER, rare(CONSOLE)], ids="-".join)
@pytest.mark.parametrize("other", [SWEEP, DOWN, UP], ids=lambda args: args[0])
def test_command_from_another_home_after_a_killed_up_leaks_nothing(homes, place, other):
    laptop, workstation = homes
    process = held(laptop, UP, *place)
    process.kill()
    process.communicate()
    client.put_faults(laptop.workspace.cloud, [])
    done = workstation.run(*other, code=None)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 4, 8, 11), done
    check_clean(laptop, workstation)


@pytest.mark.parametrize("first", [rare(DOWN), SWEEP], ids=lambda args: args[0])
@pytest.mark.parametrize("second", [DOWN, rare(SWEEP), EXTEND], ids=lambda args: args[0])
def test_concurrent_commands_from_two_homes_leak_nothing(homes, first, second):
    laptop, workstation = homes
    laptop.run(*UP)
    both = [workstation.popen(*first), laptop.popen(*second)]
    for process in both:
        out, err = process.communicate(timeout=LIMIT_S)
        assert "Traceback" not in err, err
        assert process.returncode in (0, 2, 6, 8, 9, 10, 11), out + err
    check_clean(laptop, workstation)


@pytest.mark.parametrize("command", [DOWN, SWEEP], ids=lambda args: args[0])
@pytest.mark.parametrize("phase", [rare("before"), "after_effect"])
def test_killed_deletion_is_completed_by_the_other_home(homes, command, phase):
    laptop, workstation = homes
    laptop.run(*UP)
    process = held(workstation, command, "DeleteSecurityGroup", phase)
    process.kill()
    process.communicate()
    client.put_faults(laptop.workspace.cloud, [])
    check_clean(laptop, workstation)


def test_concurrent_ups_from_two_homes_create_only_complete_clusters(homes):
    laptop, workstation = homes
    both = [one.popen(*UP) for one in homes]
    codes = []
    for process in both:
        out, err = process.communicate(timeout=LIMIT_S)
        assert "Traceback" not in err, err
        assert process.returncode in (0, 4, 6, 8, 11), out + err
        codes.append(process.returncode)
    assert len(client.nodes(laptop.workspace.cloud)) == 2 * codes.count(0), codes
    check_clean(laptop, workstation)
