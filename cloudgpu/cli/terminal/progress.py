"""Render progress events as lines: stages, resource operations of the engine, and output of ranks."""

import re
from collections.abc import Mapping

from cloudgpu.backends.events import ProgressEvent, StageChange
from cloudgpu.cli.terminal.number_format import duration
from cloudgpu.cli.terminal.output import Color, ColoredText, Line
from cloudgpu.engine.base import Event
from cloudgpu.run.progress import MetricValue, Note, RankLine

STAGES: Mapping[str, str] = {
    "check data": "checking that every dataset exists",
    "provision": "launching the nodes, all or none",
    "connect": "connecting to every node, with pinned host keys",
    "gate": "checking the hardware and software of every node",
    "stage": "copying the work directory, data and Python environment to every node",
    "strip": "removing keys, host names and history from the node",
    "image": "waiting for AWS to copy the disk",
    "start": "starting the ranks",
    "train": "training output; the run continues if you close this terminal",
    "serve": "service output; the service continues if you close this terminal",
    "collect": "downloading outputs",
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
_RANK_COLOURS: tuple[Color, ...] = ("cyan", "green", "yellow")
_CODE = re.compile(r"^(?P<reason>.*) \((?P<code>[A-Z][A-Za-z.]+)\)$", re.DOTALL)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
# Installers print these lines for each package. Dozens of them would bury the other output.
_PACKAGE_NOISE = re.compile(
    r"^([+~-] \S+==|Collecting |Requirement already|Using cached |Obtaining |Preparing |Looking in |Attempting |"
    r"Found existing|Uninstalling |Audited |Using Python |Creating virtual|Activate with|Using CPython|"
    r"Downloading \S+ \([\d.]+ ?[kK]i?B\)|Downloading \S+\.metadata)"
)
_PIP_DONE = re.compile(r"^Successfully installed (?P<packages>.+)$")
_PIP_ABOUT = re.compile(r"^Installing collected packages: (?P<packages>.+)$")


class ProgressPrinter:
    """Renderer of progress events as lines. If `verbose` is set, the output of package installers is not shortened."""

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose

    def lines(self, what: ProgressEvent) -> list[Line]:
        """Return the lines of an event, or an empty list for events that are not shown."""
        match what:
            case StageChange():
                return [_stage(what)]
            case Note():
                return self._note(what)
            case RankLine(rank=rank, text=text):
                return [("    ", ColoredText(f"[rank {rank}]", _RANK_COLOURS[rank % len(_RANK_COLOURS)]), f" {text}")]
            case Event():
                return _event(what)
            case MetricValue():
                return []  # the output line that contains the metric has just been shown

    def _note(self, note: Note) -> list[Line]:
        text = note.text if note.node is None or self._verbose else installer_line(note.text)
        if not text:
            return []
        return [f"    {'' if note.node is None else f'node {note.node}: '}{text}"]


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
    """Shorten an AWS error to its code and first sentence: `InsufficientInstanceCapacity: launching 2 instances`."""
    match = _CODE.match(detail)
    if match is None:
        return detail
    return f"{match['code']}: {match['reason'].partition('. ')[0]}"


def installer_line(text: str) -> str:
    """Return a shortened line of `uv` or `pip` output; empty for lines about single packages."""
    for pattern, word in ((_PIP_DONE, "installed"), (_PIP_ABOUT, "installing")):
        match = pattern.match(text)
        if match is not None:
            packages = match["packages"].replace(",", " ").split()
            return f"{word} {len(packages)} packages" if len(packages) > 1 else f"{word} {packages[0]}"
    return "" if _PACKAGE_NOISE.match(text) else text


def _waiting(event: Event) -> str:
    if event.type == "pulumi:log":
        return f"program message: {event.detail}"
    doing = "the deletion of " if event.operation == "delete" else ""
    return f"waiting for {doing}{resource_words(event.type)} {event.name}, {event.detail}"
