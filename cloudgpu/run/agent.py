"""Client of the agent on one node: install it, run its verbs, and turn its error lines into typed errors."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from cloudgpu import bounds
from cloudgpu.decoding import MALFORMED, decode_as, describe_error
from cloudgpu.errors import ConnectError, RemoteCommandError
from cloudgpu.files import parse_json
from cloudgpu.launch.inventory import Node
from cloudgpu.node.agent.heartbeat import ADVANCED_LINE, EVERY_S, LINE, LONG_VERBS
from cloudgpu.node.payload import agent_name, agent_source
from cloudgpu.ssh.base import Host, Stream, TimeLimitError, login_command
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.fanout import all_or_raise, run_on_all
from cloudgpu.text import printable

_MARK = "\x1ecloudgpu\x1e"
"""Separator in the output of `_PATHS_COMMAND`. A login shell may print a banner before the first separator."""
_PATHS_SCRIPT = (
    r"""printf '\036cloudgpu\036%s' "$HOME" "${CLOUDGPU_NODE_ROOT:-}" "$(ls -1 "$HOME/.cloudgpu" 2>/dev/null)" """
)
_PATHS_COMMAND = RemoteCommand("sh", "-c", _PATHS_SCRIPT)
"""Command that prints a node's paths and installed agents."""
SERVE_PEERS: Final = "hand"
"""Verb that serves files or an image to other nodes. This and the next two are names of the protocol."""
START_UPLOAD: Final = "keep"
"""Verb that starts the upload of checkpoints or outputs."""
FINISH_UPLOAD: Final = "kept"
"""Verb that uploads the remaining files after a run."""
_MAKE: Final = 'umask 077 && mkdir -p -- "$1"'
_PARTS = 4
_LOOK_AT_SHELL: Final = "check what the node's login shell runs and prints: ~/.bashrc, /etc/profile.d"
_MAX_TEXT: Final = 4000
_LONGEST_LINE: Final = 300
_TAIL_LINES: Final = 10
_MOST_NOISE: Final = 16 << 20
_ANSWER_S: Final = 120.0
"""Time limit in seconds for a short verb, and for the wait between two output lines of a long verb."""
_SLOW_S: Final[Mapping[str, float]] = {"describe": 240.0, "start": 300.0}
"""Time limits for short verbs that run several tools or start a container, in seconds."""
_STALLED_S: Final[Mapping[str, float]] = {
    "forget": 1800.0,
    START_UPLOAD: 1800.0,
    FINISH_UPLOAD: 1800.0,
    "stop": 150.0,
}
"""Time limits for long verbs whose heartbeats report no progress, in seconds. A request's grace period is added.

An upload that works is faster than the part of 32 MiB that counts as progress; `stop` reports none, but gives up by
itself 20 seconds after the grace period. The other long verbs run the user's programs or download, which has limits of
its own.
"""
_HEARTBEATS: Final = (json.loads(LINE), json.loads(ADVANCED_LINE))
_SHELL_S: Final = 60.0
"""Time limit for the login shell, in seconds. A slower shell probably waits for input, such as a password."""
_ONCE = (
    "import runpy,sys,tempfile;i=sys.stdin.buffer;f=tempfile.NamedTemporaryFile(suffix='.py');"
    "f.write(i.read(int(i.readline())));f.flush();sys.argv[0]=f.name;runpy.run_path(f.name,run_name='__main__')"
)
"""Python code that runs the agent from a temporary file. Stdin contains the agent's size, the agent and its request."""

OnLine = Callable[[Mapping[str, Any]], None]


class AgentReplyError(RemoteCommandError):
    """An agent returned an error. `code` is the reason, such as `port-in-use`, `disk-full` or `checksum`."""

    def __init__(self, message: str, *, code: str = "", hint: str = "", tail: Sequence[str] = ()) -> None:
        super().__init__(message, tail=tail, hint=hint)
        self.code = code


class SilentAgentError(ConnectError):
    """The host is reachable, but its agent did not respond in time."""


@dataclass(frozen=True)
class Agent:
    """The agent installed on one node.

    Attributes:
        home: The login user's home directory on the node.
        root: Prefix of absolute paths; empty except on rehearsal nodes without namespaces.
    """

    host: Host
    path: str
    home: str
    root: str = ""

    def ask(self, verb: str, request: Mapping[str, Any], on_line: OnLine | None = None) -> dict[str, Any]:
        """Run a verb to completion and return its last output line. `on_line` receives the lines before the last."""
        stream = self.stream(verb, request)
        last: dict[str, Any] = {}
        printed: deque[str] = deque(maxlen=_TAIL_LINES)
        try:
            for answer in _lines(
                stream, verb, self.host.node, printed=printed, stalled_s=_stalled_limit_s(verb, request)
            ):
                if last and on_line is not None:
                    on_line(last)
                last = answer
        finally:
            stream.close()
        return self.answered(verb, last, stream, printed)

    def stream(self, verb: str, request: Mapping[str, Any]) -> Stream:
        """Start a verb and return its output stream."""
        return self.host.stream(RemoteCommand("python3", self.path, verb), stdin=json.dumps(request).encode())

    def answers(
        self, stream: Stream, verb: str, on_alive: Callable[[], None] = lambda: None
    ) -> Iterator[dict[str, Any]]:
        """Yield the lines of a stream as they arrive. `on_alive` is called for every line, including heartbeats."""
        for answer in _lines(stream, verb, self.host.node, on_alive):
            yield self._checked(verb, answer)

    def answered(self, verb: str, last: dict[str, Any], stream: Stream, printed: Iterable[str] = ()) -> dict[str, Any]:
        """Return the last output line of a finished verb. `printed` contains the other output of the login shell."""
        if stream.exit_code and "error" not in last:
            # The agent was killed, for example by the OOM killer, so its last line is not the response.
            raise self._exit_error(verb, stream, printed)
        return self._checked(verb, last)

    def _exit_error(self, verb: str, stream: Stream, printed: Iterable[str]) -> RemoteCommandError:
        node = self.host.node
        # `nologin` explains itself on standard output.
        lines = stream.stderr.strip().splitlines() or [line for line in printed if line.strip()]
        tail = [printable(line)[:_LONGEST_LINE] for line in lines[-_TAIL_LINES:]]
        because = f": {tail[-1]}" if tail else ""
        message = f"node {node.index} ({node.instance_id}): the agent's `{verb}` exited with code"
        return RemoteCommandError(
            f"{message} {stream.exit_code}{because}",
            tail=tail,
            hint="check that the node has python3 (3.8 or newer) on its PATH, and enough memory and disk space",
        )

    def _checked(self, verb: str, answer: dict[str, Any]) -> dict[str, Any]:
        node = self.host.node
        if "error" in answer:
            what, output = _split_output(str(answer["error"])[:_MAX_TEXT])
            message = f"node {node.index} ({node.instance_id}): {what}"
            code, hint = _text_field(answer, "code"), _text_field(answer, "hint")
            raise AgentReplyError(message, code=code, hint=hint, tail=output)
        if not answer:
            message = f"node {node.index} ({node.instance_id}): the agent exited without a response to `{verb}`"
            raise RemoteCommandError(message, hint="check that the node has python3")
        return AgentReply(answer, f"node {node.index} ({node.instance_id}): the agent's response")


class AgentReply(dict[str, Any]):
    """An agent's response. Reading a missing field raises RemoteCommandError instead of KeyError."""

    def __init__(self, fields: Mapping[str, Any], what: str) -> None:
        super().__init__(fields)
        self._what = what

    def __missing__(self, name: str) -> Any:  # noqa: ANN401 - it never returns
        raise RemoteCommandError(f"{self._what} lacks {name}", hint="run the command again")


def _text_field(answer: Mapping[str, Any], name: str) -> str:
    """Return a text field of a response, bounded in length and safe to print."""
    return printable(str(answer.get(name, ""))[:_MAX_TEXT])


def _split_output(text: str) -> tuple[str, list[str]]:
    """Split an agent's error into a one-line message and the output of the tool that failed, both safe to print.

    If the first line ends with a colon, the message ends with the last line of the output, which states the cause.
    """
    first, *output = [printable(line.rstrip()) for line in text.split("\n") if line.strip()] or [""]
    return (f"{first} {output[-1].strip()}" if output and first.endswith(":") else first), output


def install_agent(host: Host) -> Agent:
    """Install the agent on a node unless this version is already there. On self-managed hosts, always reinstall it."""
    name = agent_name()
    login_home, root, present = _node_paths(host)
    home = f"{login_home}/{host.node.base}" if host.node.own else login_home
    path = f"{home}/.cloudgpu/{name}"
    if host.node.own or name not in present.split():
        host.run(RemoteCommand("sh", "-c", _MAKE, "sh", f"{home}/.cloudgpu"), timeout_s=_SHELL_S)
        _upload(host, path)
    return Agent(host, path, home, root)


def find_login_home(host: Host) -> str:
    """Return the login user's home directory on a host."""
    return _node_paths(host)[0]


def _node_paths(host: Host) -> tuple[str, str, str]:
    """Return the home directory, the prefix of absolute paths, and the listing of `~/.cloudgpu`."""
    fields = host.run(_PATHS_COMMAND, timeout_s=_SHELL_S).stdout.split(_MARK)
    if len(fields) != _PARTS or not fields[1].startswith("/"):
        node = host.node
        message = f"node {node.index} ({node.instance_id}): the login shell did not report the home directory"
        raise RemoteCommandError(message, hint=f"check what the login shell prints: {login_command(node)}")
    return fields[1], fields[2], fields[3]


def _upload(host: Host, path: str) -> None:
    try:
        host.put_bytes(agent_source(), path, mode=0o700)
    except RemoteCommandError as err:
        if "No space left" not in err.message:
            raise
        node = host.node
        message = f"node {node.index} ({node.instance_id}): the disk is full: cannot write {path}"
        raise RemoteCommandError(message, hint="set a larger resources.disk, or free space on the host") from err


def ask_once(host: Host, verb: str, request: Mapping[str, Any], shape: type[Any] = dict) -> dict[str, Any]:
    """Run a verb on a host without installing the agent. The response must match the dataclass `shape`, if given."""
    source = agent_source()
    stdin = b"%d\n" % len(source) + source + json.dumps(request).encode()
    stream = host.stream(RemoteCommand("python3", "-c", _ONCE, verb), stdin=stdin)
    agent = Agent(host, "", "")
    printed: deque[str] = deque(maxlen=_TAIL_LINES)
    try:
        answers = list(_lines(stream, verb, host.node, printed=printed))
    finally:
        stream.close()
    answer = agent.answered(verb, answers[-1] if answers else {}, stream, printed)
    return require_shape(host.node, verb, answer, shape)


def require_shape(node: Node, verb: str, answer: dict[str, Any], shape: type[Any]) -> dict[str, Any]:
    """Return the response if it matches the dataclass `shape`. If `shape` is `dict`, any response matches.

    The response is untrusted: a login shell can print JSON too.
    """
    if shape is dict:
        return answer
    try:
        decode_as(shape, answer)
    except MALFORMED as err:
        message = (
            f"node {node.index} ({node.instance_id}): the response to `{verb}` is malformed: {describe_error(err)}"
        )
        raise RemoteCommandError(message, hint=_LOOK_AT_SHELL) from err
    return answer


def count_field(answer: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a non-negative integer field of a response, or `default` if the field is missing."""
    value = answer.get(name)
    if value is None and default is not None:
        return default
    try:
        return bounds.checked_count(value)
    except ValueError as err:
        raise AgentReplyError(f"the agent sent an invalid value for {name}: {err}") from None


def _lines(
    stream: Stream,
    verb: str,
    node: Node,
    on_alive: Callable[[], None] = lambda: None,
    printed: "deque[str] | None" = None,
    stalled_s: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the agent's response lines without heartbeats. Call `on_alive` for every line, including heartbeats.

    Lines that are not responses are added to `printed`. For a long verb, the time limit applies to each line; for a
    short verb, it applies to the whole response. Heartbeats without progress are accepted for `stalled_s` seconds.
    """
    limit_s, heartbeats = _SLOW_S.get(verb, _ANSWER_S), 0
    try:
        for answer in _answers(stream, limit_s, node, printed):
            if verb in LONG_VERBS:
                stream.renew()
            on_alive()
            if answer not in _HEARTBEATS:
                yield answer
                continue
            # The heartbeats are counted, because this machine may have been suspended meanwhile.
            heartbeats = heartbeats + 1 if answer == _HEARTBEATS[0] else 0
            if stalled_s is not None and heartbeats * EVERY_S > stalled_s:
                raise _stalled_error(node, verb, stalled_s)
    except TimeLimitError as err:
        message = f"node {node.index} ({node.instance_id}): the agent did not respond to `{verb}` within {limit_s:g} s"
        hint = f"log in and check for a hung file system or a hung process, such as nvidia-smi: {login_command(node)}"
        raise SilentAgentError(message, hint=hint) from err


def _stalled_limit_s(verb: str, request: Mapping[str, Any]) -> float | None:
    """Return for how many seconds a verb may send heartbeats without progress, or None if there is no limit."""
    return _STALLED_S[verb] + float(request.get("grace_s", 0)) if verb in _STALLED_S else None


def _stalled_error(node: Node, verb: str, stalled_s: float) -> SilentAgentError:
    message = f"node {node.index} ({node.instance_id}): the agent's `{verb}` made no progress for {stalled_s:g} s"
    hint = f"log in and check for a hung file system, a full disk or a blocked network: {login_command(node)}"
    return SilentAgentError(message, hint=hint)


def _parsed(line: str) -> object:
    """Return the JSON value in a line, or None. A banner without a newline may precede the value."""
    for text in dict.fromkeys((line, line[max(0, line.find('{"')) :])):
        try:
            return parse_json(text)
        except ValueError:
            continue
    return None


def _answers(
    stream: Stream, limit_s: float, node: Node, printed: "deque[str] | None" = None
) -> Iterator[dict[str, Any]]:
    noise = 0
    for line in stream.lines(limit_s):
        answer = _parsed(line)
        if isinstance(answer, dict):
            yield answer
            continue
        # A login shell may print a banner before the agent's lines. Reject endless output.
        noise += len(line) + 1
        if printed is not None:
            printed.append(line[:_LONGEST_LINE])
        if noise > _MOST_NOISE:
            raise RemoteCommandError(
                f"node {node.index} ({node.instance_id}) prints endless output instead of the agent's response",
                hint=_LOOK_AT_SHELL,
            )


_T = TypeVar("_T")


def run_on_agents(agents: Sequence[Agent], do: Callable[[Agent], _T]) -> dict[int, _T]:
    """Call `do` for every node in parallel and return the results by node index."""
    by_index = {agent.host.node.index: agent for agent in agents}
    return all_or_raise(run_on_all([agent.host for agent in agents], lambda host: do(by_index[host.node.index])))
