"""Render progress events as lines: stages, resource operations, the output of ranks, and work that takes a while."""

import re
import time
from collections.abc import Callable, Mapping, Sequence

from cloudgpu.cli.terminal.number_format import duration
from cloudgpu.cli.terminal.output import Color, ColoredText, Line
from cloudgpu.engine.base import Event
from cloudgpu.run.progress import (
    Activity,
    LogFolder,
    MetricValue,
    Note,
    ProgressEvent,
    RankLine,
    RankOutput,
    ServiceAddress,
    StageChange,
)
from cloudgpu.text import duration_text, size_text

_MINUTE_S = 60
_LEAST_S = 2.0
"""Seconds after which a rate is meaningful."""
STAGES: Mapping[str, str] = {
    "check data": "checking that every dataset exists",
    "provision": "launching all nodes, or none",
    "connect": "connecting to every node, with pinned host keys",
    "gate": "checking the hardware and software of every node",
    "stage": "preparing the work directory, data and software on every node",
    "strip": "removing keys, host names and history from the node",
    "image": "waiting for AWS to copy the disk",
    "start": "starting the ranks",
    "train": "training output; the run continues if you close this terminal",
    "serve": "service output; the service continues if you close this terminal",
    "collect": "downloading outputs",
    "extend": "extending the expiry of the cluster and of every node",
    "search": "searching for resources by their tags",
    "delete": "deleting resources and confirming that nothing is left",
    "create": "creating storage",
    "refresh": "reading types, prices, images and quotas",
    "down": "deleting the cluster and confirming that nothing is left",
}
_WORDS: Mapping[str, str] = {
    "Role": "IAM role",
    "Eip": "Elastic IP",
    "EipAssociation": "Elastic IP association",
    "NatGateway": "NAT gateway",
    "Vpc": "VPC",
    "VpcEndpoint": "VPC endpoint",
    "Fleet": "EC2 fleet",
}
_SIGNS = {"create": "+", "update": "~", "replace": "+-", "delete": "-", "adopt": "&"}
_LINES_PER_ADDRESS = 100
"""Lines of output after which the addresses of services are repeated on a terminal without a live region."""
_RANK_COLOURS: tuple[Color, ...] = ("cyan", "green", "yellow")
_CODE = re.compile(r"^(?P<reason>.*) \((?P<code>[A-Z][A-Za-z.]+)\)$", re.DOTALL)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
# Installers print most of these lines once per package. Dozens of them would bury the other output.
_PACKAGE_NOISE = re.compile(
    r"^([+~-] \S+==|Collecting |Requirement already|Using cached |Obtaining |Preparing |Looking in |Attempting |"
    r"Found existing|Uninstalling |Audited |Using Python |Creating virtual|Activate with|Using CPython|"
    r"Downloading \S+ \([\d.]+ ?[kK]i?B\)|Downloading \S+\.metadata)"
)
_ACTIVITY_S = 10.0
"""Seconds after which the state of work that is still running is printed again."""
_PIP_DONE = re.compile(r"^Successfully installed (?P<packages>.+)$")
_PIP_ABOUT = re.compile(r"^Installing collected packages: (?P<packages>.+)$")


def elapsed_text(seconds: float) -> str:
    """Format a running time in whole seconds: `7 s`, `2 min 05 s`, `1 h 02 min`."""
    whole = max(0, int(seconds))
    return f"{whole} s" if whole < _MINUTE_S else duration(whole)


def activity_text(activity: Activity, elapsed_s: float) -> str:
    """Return one line about the work, such as `node 1: copying data: 1.2 GiB of 4.0 GiB, 12 s, 102.4 MiB/s, 28 s left`.

    Rate and remaining time are shown for bytes, once they are meaningful.
    """
    where = "" if activity.node is None else f"node {activity.node}: "
    parts = [*_amount(activity), _time(activity, elapsed_s), *_rate(activity, elapsed_s)]
    if activity.last:
        parts.append(activity.last)
    return f"{where}{activity.name}: {', '.join(parts)}"


def _amount(activity: Activity) -> list[str]:
    if activity.done is None:
        return []
    if activity.unit == "B":
        done = size_text(activity.done)
        return [done if activity.total is None else f"{done} of {size_text(activity.total)}"]
    done = f"{activity.done}" if activity.total is None else f"{activity.done} of {activity.total}"
    return [f"{done} {activity.unit}".rstrip()]


def _time(activity: Activity, elapsed_s: float) -> str:
    at_most = "" if activity.limit_s is None else f" of at most {duration_text(activity.limit_s)}"
    return f"{elapsed_text(elapsed_s)}{at_most}"


def _rate(activity: Activity, elapsed_s: float) -> list[str]:
    if activity.unit != "B" or not activity.done or elapsed_s < _LEAST_S:
        return []
    rate = activity.done / elapsed_s
    parts = [f"{size_text(int(rate))}/s"]
    if activity.total is not None and activity.total > activity.done:
        parts.append(f"{elapsed_text((activity.total - activity.done) / rate)} left")
    return parts


class ProgressPrinter:
    """Formats progress events as lines. If `verbose` is set, the output of package installers is not shortened."""

    def __init__(self, *, verbose: bool = False, now: Callable[[], float] = time.monotonic) -> None:
        self._verbose = verbose
        self._now = now
        self._activities: dict[tuple[str, int | None], tuple[float, float]] = {}
        """When each activity began, and when it was last printed, in seconds of `now`."""
        self._addresses: dict[str, ServiceAddress] = {}
        self._lines_since_address = 0

    def lines(self, what: ProgressEvent) -> list[Line]:
        """Return the lines of an event, or an empty list for events that are not shown."""
        shown: list[Line] = []  # nothing for a metric: the line that contains it has just been shown
        match what:
            case StageChange():
                shown = [_stage(what)]
            case Note():
                shown = self._note(what)
            case Activity():
                shown = self._activity(what)
            case RankLine() | RankOutput():
                shown = self._output([what] if isinstance(what, RankLine) else list(what.each()))
            case ServiceAddress():
                self._addresses[what.name], self._lines_since_address = what, 0
                shown = [f"    {what.url}"]
            case Event():
                shown = _event(what)
            case MetricValue() | LogFolder():
                pass
        return shown

    def _output(self, lines: Sequence[RankLine]) -> list[Line]:
        """Return output of a rank. The addresses of services are repeated regularly, so that they stay easy to find."""
        shown = [rank_line(line) for line in lines]
        self._lines_since_address += len(lines)
        if self._addresses and self._lines_since_address >= _LINES_PER_ADDRESS:
            self._lines_since_address = 0
            shown += [address_line(address) for address in self._addresses.values()]
        return shown

    def _activity(self, activity: Activity) -> list[Line]:
        """Return a line about the work if none was printed for a while."""
        key, now = (activity.name, activity.node), self._now()
        began, printed = self._activities.get(key, (now, now))
        if activity.finished:
            self._activities.pop(key, None)
            return []
        due = now - printed >= _ACTIVITY_S
        self._activities[key] = began, now if due else printed
        return [f"    {activity_text(activity, now - began)}"] if due else []

    def _note(self, note: Note) -> list[Line]:
        text = note.text if note.node is None or self._verbose else installer_line(note.text)
        if not text:
            return []
        return [f"    {'' if note.node is None else f'node {note.node}: '}{text}"]


def rank_line(line: RankLine) -> Line:
    """Return a line of a rank's output, with the rank's number unless the run has only one rank."""
    if line.single_rank:
        return f"    {line.text}"
    return ("    ", ColoredText(f"[rank {line.rank}]", _RANK_COLOURS[line.rank % len(_RANK_COLOURS)]), f" {line.text}")


def address_line(address: ServiceAddress) -> Line:
    """Return the line with the address of a service that is ready."""
    return (f"    {address.name} is ready: ", ColoredText(address.url, "cyan"))


def rank_prefix(rank: int, *, single_rank: bool) -> str:
    """Return what `rank_line` puts before the text of a line, without colors."""
    return "    " if single_rank else f"    [rank {rank}] "


def _stage(stage: StageChange) -> Line:
    if stage.seconds is not None:
        return (ColoredText(f"    took {duration(stage.seconds)}", "dim"),)
    name = ColoredText(f"==> {stage.name}", "bold")
    return (name, "  ", ColoredText(STAGES[stage.name], "dim")) if stage.name in STAGES else (name,)


def _event(event: Event) -> list[Line]:
    if event.kind == "failed":
        return [("    ", ColoredText("x", "red"), f" {resource_words(event.type)}: {shorten_aws_error(event.detail)}")]
    if event.kind == "waiting":
        return [(ColoredText(f"    ... {_waiting(event)}", "dim"),)]
    if event.kind == "start" or event.operation in ("same", "read"):
        return []
    what = f"{resource_words(event.type)} {event.detail or event.name} ({event.seconds:.1f} s)"
    return [("    ", ColoredText(_SIGNS[event.operation], "green"), f" {what}")]


def resource_words(token: str) -> str:
    """Return the display name of a Pulumi type: `aws:ec2/securityGroup:SecurityGroup` becomes `security group`."""
    kind = token.rpartition(":")[2]
    return _WORDS.get(kind) or _CAMEL.sub(" ", kind).lower()


def shorten_aws_error(detail: str) -> str:
    """Shorten an AWS error to its code and first sentence. A text without an error code is returned unchanged."""
    match = _CODE.match(detail)
    if match is None:
        return detail
    return f"{match['code']}: {match['reason'].partition('. ')[0]}"


def installer_line(text: str) -> str:
    """Return a line of `uv` or `pip` output, shortened if it lists packages; empty for a progress message."""
    for pattern, word in ((_PIP_DONE, "installed"), (_PIP_ABOUT, "installing")):
        match = pattern.match(text)
        if match is not None:
            packages = match["packages"].replace(",", " ").split()
            return f"{word} {len(packages)} packages" if len(packages) > 1 else f"{word} {packages[0]}"
    return "" if _PACKAGE_NOISE.match(text) else text


def _waiting(event: Event) -> str:
    if event.type == "pulumi:log":
        return f"engine message: {event.detail}"
    doing = "the deletion of " if event.operation == "delete" else ""
    return f"waiting for {doing}{resource_words(event.type)} {event.name}, {event.detail}"
