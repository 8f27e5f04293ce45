"""The steps of each level, and the cleanup that always follows a launch."""

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cloudgpu.errors import BudgetError, CloudGpuError, PlanError
from cloudgpu.text import command
from live_tier.commands import Commands
from live_tier.evidence import CommandResult, Evidence
from live_tier.levels import CHECK, PAIR, SMOKE, SMOKE_RECIPE, UNKNOWN_RESERVATION, Level
from live_tier.report import question

_OURS = re.compile(r"live-(?:smoke|pair)-[0-9a-f]{8}")
"""Matches the names of clusters that this script creates."""
_DOWN_ATTEMPTS = 3
"""`down` is repeated, because a command that was killed may still hold the cluster for a moment."""


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    Attributes:
        image: Replaces the container image of the level's recipe if it is not empty.
        cluster: Name of the cluster in the recording that is replayed; empty for a new name.
    """

    level: Level
    target: str
    region: str
    owner: str
    image: str = ""
    cluster: str = ""


class LiveRun:
    """One run of a level.

    Attributes:
        cluster: Name of the cluster, once it may exist.
        left: What may be left after the cleanup.
    """

    def __init__(
        self, request: Request, commands: Commands, show: Callable[[str], None], confirm: Callable[[str], None]
    ) -> None:
        """Take a function that shows a line, and one that asks a question and raises an exception on a refusal."""
        self._request = request
        self._commands = commands
        self._show = show
        self._confirm = confirm
        self.cluster = ""
        self.left: list[str] = []

    def run(self) -> None:
        """Run the level. After a launch, clean up whatever happened."""
        if self._request.level == CHECK:
            self._run_free_checks()
            return
        self._offer_to_delete_leftovers()
        self._confirm_price()
        self.cluster = self._request.cluster or f"live-{self._request.level.name}-{secrets.token_hex(4)}"
        try:
            self._use_cluster()
        finally:
            self._clean_up()

    def _run_free_checks(self) -> None:
        region = ("--region", self._request.region)
        reservation = ["resources.market=reservation", f"resources.reservation={UNKNOWN_RESERVATION}"]
        self._run("doctor", "doctor", *region)
        self._run("quota", "quota", *region)
        self._run("plan smoke", "plan", SMOKE.recipe, *self._settings(SMOKE))
        self._run("offers smoke", "offers", SMOKE.recipe, *self._settings(SMOKE))
        self._run("plan pair", "plan", PAIR.recipe, *self._settings(PAIR))
        changes = [word for change in reservation for word in ("--set", change)]
        self._run("plan reservation", "plan", SMOKE_RECIPE, *self._settings(SMOKE), *changes)
        self._run("search", "sweep")

    def _settings(self, level: Level) -> list[str]:
        return level.settings(self._request.region, self._request.image if level == PAIR else "")

    def _run(self, name: str, *arguments: str) -> CommandResult:
        """Run a command on the target, with JSON output."""
        return self._commands.run(name, arguments[0], *arguments[1:], "--on", self._request.target, "--json")

    def _offer_to_delete_leftovers(self) -> None:
        """Search for clusters of earlier runs by the same owner, and delete those that the user agrees to delete."""
        found = self._run("search", "sweep").document.get("clusters", [])
        for row in found:
            if not _OURS.fullmatch(row["cluster"]) or row["owner"] != self._request.owner:
                continue
            self._show(f"an earlier run left {row['cluster']}: {_things(row)}, expires at {row['expires_at']}")
            self._confirm(f"Delete {row['cluster']}?")
            regions = [region for region in row["regions"] if region != "global"]
            self._down(row["cluster"], [*regions, self._request.region][0])

    def _confirm_price(self) -> None:
        level = self._request.level
        planned = self._run("plan", "plan", level.recipe, *self._settings(level))
        worst = planned.document.get("worst_case_usd")
        if planned.exit_code or worst is None:
            raise _refusal(level, planned)
        prices = (str(worst), str(level.limit_usd))
        for line in question(level.name, self._request.target, self._request.region, level.hardware, prices):
            self._show(line)
        self._confirm("Launch it?")

    def _use_cluster(self) -> None:
        level, name = self._request.level, self.cluster
        settings = self._settings(level)
        up = self._run("up", "up", level.recipe, "--name", name, *settings, "--yes", "--on-interrupt", "end")
        if up.exit_code:
            return
        self._execute("bootstrap state", "cat /var/lib/cloudgpu/bootstrap.json")
        self._execute(
            "expiry",
            "grep -m1 ^deadline= /var/lib/cloudgpu/expiry;"
            " systemctl list-timers --all --no-legend --no-pager 'cloudgpu-expiry-*' || true",
        )
        self._execute("driver", "nvidia-smi --query-gpu=name,driver_version --format=csv,noheader")
        self._execute("EFA devices", "ls /sys/class/infiniband")
        self._execute("bootstrap log", "cat /var/lib/cloudgpu/bootstrap.log")
        self._run("train", "train", level.recipe, "--cluster", name, *settings, "--yes", "--on-interrupt", "end")

    def _execute(self, name: str, script: str) -> CommandResult:
        return self._commands.run(name, "exec", self.cluster, "--json", "--", script)

    def _clean_up(self) -> None:
        """Delete the cluster, then search the whole account for it."""
        self._commands.cleaning = True
        self._show(f"deleting {self.cluster}, then searching every region")
        self._down(self.cluster, self._request.region)
        search = self._run("final search", "sweep").document
        self._commands.run("cost", "cost", "--by", "cluster", "--json")
        found = [row for row in search.get("clusters", []) if row["cluster"] == self.cluster]
        self.left += [f"{row['cluster']}: {_things(row)}; {self._hint()}" for row in found]
        if "clusters" not in search or search["unknown"]:
            self.left.append(f"not every region could be searched for {self.cluster}; {self._hint()}")

    def _down(self, cluster: str, region: str) -> None:
        for _ in range(_DOWN_ATTEMPTS):
            if not self._run("down", "down", cluster, "--region", region, "--yes").exit_code:
                return

    def _hint(self) -> str:
        return command("cloudgpu", "down", self.cluster, "--on", self._request.target)


def _refusal(level: Level, planned: CommandResult) -> CloudGpuError:
    """Return the error for a plan that cannot be launched."""
    errors = [row["message"] for row in planned.document.get("findings", []) if row["severity"] == "error"]
    hint = "run `scripts/live check` for the account's quotas, permissions and offers"
    if planned.exit_code == BudgetError.exit_code and errors:
        return BudgetError(f"{level.name} may cost at most {level.limit_usd} USD: {errors[0]}", hint=hint)
    message = f"{level.name} cannot be launched, because `cloudgpu plan` ended with {planned.failure}"
    return PlanError(message, findings=errors, hint=hint)


def versions(evidence: Evidence) -> dict[str, str]:
    """Return the versions that the nodes and the run reported."""
    found = {}
    drivers = [] if evidence.simulated else evidence.node_outputs("driver")
    if drivers:
        found["driver"] = drivers[0].split("\n")[0].strip()
    image = str(evidence.document("train").get("image") or "")
    return found | ({"container": image} if image else {})


def spent_usd(evidence: Evidence, cluster: str) -> str:
    """Return the cost of the cluster by the ledger; empty if the ledger does not know the cluster."""
    rows: list[Mapping[str, Any]] = evidence.document("cost").get("rows", [])
    return next((str(row["usd"]) for row in rows if row["cluster"] == cluster), "")


def _things(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in row["things"].items()) or "open rows in the ledger"
