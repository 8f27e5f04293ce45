"""Talking to the agent on one node: its verbs as functions, its error lines as typed errors."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cloudgpu import bounds
from cloudgpu.decoding import MALFORMED, decoded, described
from cloudgpu.errors import ConnectError, RemoteCommandError
from cloudgpu.files import parse_json
from cloudgpu.launch.inventory import Node
from cloudgpu.node.agent.heartbeat import LINE, LONG_VERBS
from cloudgpu.node.payload import agent_name, agent_source
from cloudgpu.ssh.base import Host, Stream
from cloudgpu.ssh.command import Command
from cloudgpu.ssh.outcome import TimeLimitError, log_in
from cloudgpu.text import printable

_MARK = "\x1ecloudgpu\x1e"
"""Between answers: a login shell may print anything before them."""
_PLACES = r"""printf '\036cloudgpu\036%s' "$HOME" "${CLOUDGPU_NODE_ROOT:-}" "$(ls -1 "$HOME/.cloudgpu" 2>/dev/null)" """
_WHERE = Command("sh", "-c", _PLACES)
"""Through `sh`, as everything that is more than a plain command: a login shell may be fish or tcsh."""
_MAKE: Final = 'umask 077 && mkdir -p -- "$1"'
_PARTS = 4
_LOOK_AT_SHELL: Final = "look for what its login shell runs and prints: ~/.bashrc, /etc/profile.d"
_LONGEST_SAID: Final = 4000
_LONGEST_LINE: Final = 300
_MOST_NOISE: Final = 16 << 20
_ANSWER_S: Final = 120.0
"""Time limit of a short verb, and of the time between two lines of a long one, seconds."""
_SLOW_S: Final[Mapping[str, float]] = {"describe": 240.0, "start": 300.0}
"""Short verbs that run several tools, or start a container, and may take longer."""
_ALIVE: Final = json.loads(LINE)
_SHELL_S: Final = 60.0
"""A login shell that has not answered by then waits for something, for instance for a password."""
_ONCE = (
    "import runpy,sys,tempfile;i=sys.stdin.buffer;f=tempfile.NamedTemporaryFile(suffix='.py');"
    "f.write(i.read(int(i.readline())));f.flush();sys.argv[0]=f.name;runpy.run_path(f.name,run_name='__main__')"
)
"""Runs the agent from a file that is gone when it ends; what follows on standard input is the agent's."""

OnLine = Callable[[Mapping[str, Any]], None]


class AgentError(RemoteCommandError):
    """An agent refused; `code` says why: `port-in-use`, `disk-full`, `checksum`, `network`, `tool` ..."""

    def __init__(self, message: str, *, code: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class SilentAgentError(ConnectError):
    """An agent was given up because it did not answer in time; its host does answer."""


@dataclass(frozen=True)
class Agent:
    """The agent file on one node, and where that node keeps things.

    Attributes:
        home: The login user's home directory on the node.
        root: Prefix of absolute paths; empty everywhere but on rehearsal nodes without namespaces.
    """

    host: Host
    path: str
    home: str
    root: str = ""

    def ask(self, verb: str, request: Mapping[str, Any], on_line: OnLine | None = None) -> dict[str, Any]:
        """Run a verb to its end and return its last line; `on_line` sees the lines before it.

        Raises:
            RemoteCommandError: The agent answered with an error.
            ConnectError: The node cannot be reached.
        """
        stream = self.stream(verb, request)
        last: dict[str, Any] = {}
        try:
            for answer in _lines(stream, verb, self.host.node):
                if last and on_line is not None:
                    on_line(last)
                last = answer
        finally:
            stream.close()
        return self.answered(verb, last, stream)

    def stream(self, verb: str, request: Mapping[str, Any]) -> Stream:
        """Start a verb whose lines are read as they come."""
        return self.host.stream(Command("python3", self.path, verb), stdin=json.dumps(request).encode())

    def answers(
        self, stream: Stream, verb: str, on_alive: Callable[[], None] = lambda: None
    ) -> Iterator[dict[str, Any]]:
        """The lines of a stream, checked; `on_alive` is called for each of them and for every sign of life.

        Raises:
            RemoteCommandError: The agent answered with an error.
            SilentAgentError: It did not answer in time.
            ConnectError: The connection was lost.
        """
        for answer in _lines(stream, verb, self.host.node, on_alive):
            yield self._checked(verb, answer)

    def answered(self, verb: str, last: dict[str, Any], stream: Stream) -> dict[str, Any]:
        """The last line of a verb that has ended.

        Raises:
            RemoteCommandError: It is an error, or no answer.
        """
        if stream.exit_code and "error" not in last:
            # Killed half-way, for instance for want of memory: its last line is no answer.
            raise self._ended(verb, stream)
        return self._checked(verb, last)

    def _ended(self, verb: str, stream: Stream) -> RemoteCommandError:
        node = self.host.node
        tail = [printable(line)[:_LONGEST_LINE] for line in stream.stderr.strip().splitlines()[-10:]]
        because = f": {tail[-1]}" if tail else ""
        message = f"node {node.index} ({node.instance_id}): the agent's `{verb}` ended with exit code"
        return RemoteCommandError(
            f"{message} {stream.exit_code}{because}",
            tail=tail,
            hint="the node needs python3 (3.8 or newer) on its PATH, and enough memory and disk",
        )

    def _checked(self, verb: str, answer: dict[str, Any]) -> dict[str, Any]:
        node = self.host.node
        if "error" in answer:
            message = f"node {node.index} ({node.instance_id}): {_said(answer, 'error')}"
            raise AgentError(message, code=_said(answer, "code"), hint=_said(answer, "hint"))
        if not answer:
            message = f"node {node.index} ({node.instance_id}): the agent gave no answer to `{verb}`"
            raise RemoteCommandError(message, hint="is there a python3 on the node?")
        return Answer(answer, f"node {node.index} ({node.instance_id}): the agent's answer")


class Answer(dict[str, Any]):
    """What an agent answered. Reading a field that is missing is an error of the node, not a KeyError."""

    def __init__(self, fields: Mapping[str, Any], what: str) -> None:
        super().__init__(fields)
        self._what = what

    def __missing__(self, name: str) -> Any:  # noqa: ANN401 - it never returns
        raise RemoteCommandError(f"{self._what} lacks {name}", hint="run the command again")


def _said(answer: Mapping[str, Any], name: str) -> str:
    """What a node says, safe for a terminal and of a bounded length."""
    return printable(str(answer.get(name, ""))[:_LONGEST_SAID])


def install(host: Host) -> Agent:
    """Put the agent on a node, unless the same content is already there.

    Raises:
        RemoteCommandError: The node's shell does not work.
        ConnectError: The node cannot be reached.
    """
    name = agent_name()
    login_home, root, present = _places(host)
    home = f"{login_home}/{host.node.base}" if host.node.own else login_home
    path = f"{home}/.cloudgpu/{name}"
    if host.node.own or name not in present.split():
        host.run(Command("sh", "-c", _MAKE, "sh", f"{home}/.cloudgpu"), timeout_s=_SHELL_S)
        _put(host, path)
    return Agent(host, path, home, root)


def home_of(host: Host) -> str:
    """Return the login user's home directory on a host.

    Raises:
        RemoteCommandError: Its shell does not tell.
        ConnectError: The host cannot be reached.
    """
    return _places(host)[0]


def _places(host: Host) -> tuple[str, str, str]:
    """Return the home directory, the prefix of absolute paths, and what lies in `~/.cloudgpu`."""
    found = host.run(_WHERE, timeout_s=_SHELL_S).stdout.split(_MARK)
    if len(found) != _PARTS or not found[1].startswith("/"):
        node = host.node
        message = f"node {node.index} ({node.instance_id}): its shell does not tell where its home directory is"
        raise RemoteCommandError(message, hint=f"log in and try: {log_in(node)}")
    return found[1], found[2], found[3]


def _put(host: Host, path: str) -> None:
    try:
        host.put_bytes(agent_source(), path, mode=0o700)
    except RemoteCommandError as err:
        if "No space left" not in err.message:
            raise
        node = host.node
        message = f"node {node.index} ({node.instance_id}) is not fit to run: its disk is full: cannot write {path}"
        raise RemoteCommandError(message, hint="take a larger disk: resources.disk; or make room on the host") from err


def ask_once(host: Host, verb: str, request: Mapping[str, Any], shape: type[Any] = dict) -> dict[str, Any]:
    """Ask a host where nothing is installed, and leave nothing behind there. `shape` is what `require_shape` takes.

    Raises:
        RemoteCommandError: The agent answered with an error, or there is no Python.
        ConnectError: The host cannot be reached.
    """
    source = agent_source()
    handed = b"%d\n" % len(source) + source + json.dumps(request).encode()
    stream = host.stream(Command("python3", "-c", _ONCE, verb), stdin=handed)
    agent = Agent(host, "", "")
    try:
        answers = list(_lines(stream, verb, host.node))
    finally:
        stream.close()
    return require_shape(host.node, verb, agent.answered(verb, answers[-1] if answers else {}, stream), shape)


def require_shape(node: Node, verb: str, answer: dict[str, Any], shape: type[Any]) -> dict[str, Any]:
    """Return an answer that has the fields of a dataclass.

    A login shell can print JSON too, and a host can answer anything.

    Raises:
        RemoteCommandError: It has other fields.
    """
    if shape is dict:
        return answer
    try:
        decoded(shape, answer)
    except MALFORMED as err:
        message = f"node {node.index} ({node.instance_id}): its answer to `{verb}` makes no sense: {described(err)}"
        raise RemoteCommandError(message, hint=_LOOK_AT_SHELL) from err
    return answer


def number(answer: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a whole number that a node answered, zero or more; `default` where it says nothing.

    Raises:
        AgentError: It sent something else.
    """
    value = answer.get(name)
    if value is None and default is not None:
        return default
    try:
        return bounds.count(value)
    except ValueError as err:
        raise AgentError(f"the agent sent a {name} that makes no sense: {err}") from None


def _lines(
    stream: Stream, verb: str, node: Node, on_alive: Callable[[], None] = lambda: None
) -> Iterator[dict[str, Any]]:
    """Yield the agent's answers, each within the verb's time limit.

    Raises:
        RemoteCommandError: There is other output without end.
        SilentAgentError: No answer came in time.
        ConnectError: The connection was lost.
    """
    limit_s = _SLOW_S.get(verb, _ANSWER_S)
    try:
        for answer in _answers(stream, limit_s, node):
            if verb in LONG_VERBS:
                stream.renew()
            on_alive()
            if answer != _ALIVE:
                yield answer
    except TimeLimitError as err:
        message = f"node {node.index} ({node.instance_id}): its agent has not answered `{verb}` within {limit_s:g} s"
        hint = f"log in and look for what hangs there, a file system or nvidia-smi for instance: {log_in(node)}"
        raise SilentAgentError(message, hint=hint) from err


def _parsed(line: str) -> object:
    """Return the JSON of a line, also behind a banner that has no line end; None where there is none."""
    for text in dict.fromkeys((line, line[max(0, line.find('{"')) :])):
        try:
            return parse_json(text)
        except ValueError:
            continue
    return None


def _answers(stream: Stream, limit_s: float, node: Node) -> Iterator[dict[str, Any]]:
    noise = 0
    for line in stream.lines(limit_s):
        answer = _parsed(line)
        if isinstance(answer, dict):
            yield answer
            continue
        # A login shell may print a banner in front of the agent's own lines, and not without end.
        noise += len(line) + 1
        if noise > _MOST_NOISE:
            raise RemoteCommandError(
                f"node {node.index} ({node.instance_id}) prints without end where its agent should answer",
                hint=_LOOK_AT_SHELL,
            )
