"""Reading one node's agent in a thread of its own."""

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cloudgpu.clock import Clock
from cloudgpu.errors import ConnectError, HostKeyError, RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.run.agent import Agent
from cloudgpu.run.verdict import Chunk, Verdict
from cloudgpu.ssh.base import Stream
from cloudgpu.ssh.handshake import AuthRefusedError

LOST_CONTACT_S: Final = 180.0
"""How long a node may be out of reach before nobody waits for it alone, seconds."""
_RETRY_S: Final = 1.0
_RETRY_LOST_S: Final = 15.0
"""The pause between attempts once contact is lost: the run may go on for days."""
_SILENT_S: Final = 2.0
"""A connection that is back within this time is not worth a word, seconds."""
_TELL_EVERY_S: Final = 15.0
_TELL_LOST_EVERY_S: Final = 600.0
_REFUSALS: Final = 3
"""Logins that a node may refuse in a row. A node that shuts down refuses everybody for a moment."""
_LOOK_S: Final = 0.2


@dataclass(frozen=True)
class Contact:
    """A node was out of reach for `LOST_CONTACT_S`, and its reader goes on trying; or it is back.

    Attributes:
        node: Its index.
        trouble: Why it cannot be reached; None once it can.
    """

    node: int
    trouble: ConnectError | None


Item = Chunk | Verdict | Contact | BaseException
OnSilence = Callable[[Node, ConnectError | RemoteCommandError], None]
"""Hears of a node that does not answer, now and then; raises ConnectError where it never will again."""


def wait_on(_node: Node, _trouble: ConnectError | RemoteCommandError) -> None:
    """Nobody listens: the node has its three minutes."""


@dataclass(frozen=True)
class Feed:
    """What readers hand over. It is bounded, so that a chatty rank waits and not the caller's memory grows.

    Attributes:
        ended: Set when nobody takes anything out any more.
    """

    items: "queue.Queue[Item]"
    ended: threading.Event

    def put(self, item: Item) -> None:
        """Hand over; waits while it is full, and gives up when nobody takes anything out any more."""
        while not self.ended.is_set():
            with contextlib.suppress(queue.Full):
                self.items.put(item, timeout=_LOOK_S)
                return

    def next(self) -> Item | None:
        """The next one, None when none came for a moment."""
        try:
            return self.items.get(timeout=_LOOK_S)
        except queue.Empty:
            return None


class Reader(threading.Thread):
    """Reads one node's agent into the feed, reconnecting from the offsets it has reached.

    It goes on trying after contact is lost: as long as other nodes are followed, the run is, and it may outlast any
    trouble of the network.
    """

    def __init__(
        self,
        agent: Agent,
        run_dir: str,
        offsets: Mapping[int, int],
        clock: Clock,
        feed: Feed,
        on_silence: OnSilence = wait_on,
    ) -> None:
        super().__init__(name=f"follow-{agent.host.node.index}", daemon=True)
        self._agent = agent
        self._run_dir = run_dir
        self._offsets = dict(offsets)
        self._clock = clock
        self._feed = feed
        self._on_silence = on_silence
        self._stream: Stream | None = None
        self._contact_at = 0.0
        self._told_at = 0.0
        self._lost = False
        self._refusals = 0

    def run(self) -> None:
        """Until the verdict, an error that lasts, or the feed's end."""
        try:
            self._read()
        except BaseException as err:  # noqa: BLE001  it is raised where the feed is read: a silent end would hang there
            self._find()
            self._feed.put(err)

    def hang_up(self) -> None:
        """Stop reading; the node's ranks go on."""
        if self._stream is not None:
            with contextlib.suppress(ConnectError):
                self._stream.close()

    def _read(self) -> None:
        self._contact_at = self._clock.monotonic()
        while not self._feed.ended.is_set():
            try:
                if self._read_once():
                    return
                trouble: ConnectError | RemoteCommandError = self._silent()
            except HostKeyError:
                raise
            except AuthRefusedError as err:
                trouble = self._refused(err)
            except ConnectError as err:
                trouble = err
            if self._feed.ended.is_set():
                return
            self._lose(trouble)
            self._tell(trouble)
            self._pause()

    def _pause(self) -> None:
        if self._lost:
            self._feed.ended.wait(_RETRY_LOST_S)  # and no longer than anybody follows
        else:
            self._clock.sleep(_RETRY_S)

    def _lose(self, trouble: ConnectError | RemoteCommandError) -> None:
        """Report a node that has been out of reach for too long to be waited for alone.

        Raises:
            RemoteCommandError: It can be reached, and its agent does not work: trying again changes nothing.
        """
        if self._lost or self._clock.monotonic() - self._contact_at <= LOST_CONTACT_S:
            return
        if isinstance(trouble, RemoteCommandError):
            raise trouble
        self._lost = True
        self._feed.put(Contact(self._agent.host.node.index, trouble))

    def _heard(self) -> None:
        """Note a sign of life; a run that writes nothing for hours is in contact all the same."""
        self._contact_at = self._clock.monotonic()
        self._refusals = 0
        self._find()

    def _find(self) -> None:
        """Take back that the node is out of reach."""
        if self._lost:
            self._lost = False
            self._feed.put(Contact(self._agent.host.node.index, None))

    def _refused(self, err: AuthRefusedError) -> AuthRefusedError:
        """Return the error while it may pass.

        Raises:
            ConnectError: It will not pass: another key is needed, or the node is gone.
        """
        self._refusals += 1
        if self._refusals >= _REFUSALS:
            self._on_silence(self._agent.host.node, err)
            raise err
        return err

    def _tell(self, trouble: ConnectError | RemoteCommandError) -> None:
        now = self._clock.monotonic()
        again = self._told_at > self._contact_at
        every_s = _TELL_LOST_EVERY_S if self._lost else _TELL_EVERY_S
        if now - (self._told_at if again else self._contact_at) >= (every_s if again else _SILENT_S):
            self._told_at = now
            self._on_silence(self._agent.host.node, trouble)

    def _read_once(self) -> bool:
        """Read one connection's worth; whether the verdict came.

        Raises:
            ConnectError: The connection was lost.
            RemoteCommandError: The agent answered with an error, or with what makes no sense.
        """
        offsets = {str(rank): offset for rank, offset in self._offsets.items()}
        self._stream = stream = self._agent.stream("follow", {"run_dir": self._run_dir, "offsets": offsets})
        answers = self._agent.answers(stream, "follow", self._heard)
        return any(self._feed.ended.is_set() or self._taken(answer) for answer in answers)

    def _taken(self, answer: Mapping[str, Any]) -> bool:
        """Hand one line over; whether it was the verdict."""
        if "status" in answer:
            self._feed.put(Verdict.of(answer["status"], self._agent.host.node.index))
            return True
        if "rank" in answer:
            chunk = Chunk.of(answer)
            expected = self._offsets.get(chunk.rank)
            if chunk.offset != expected:
                node = self._agent.host.node.index
                message = f"node {node} sent rank {chunk.rank} from byte {chunk.offset}, {expected} was asked for"
                raise RemoteCommandError(message)
            self._offsets[chunk.rank] = chunk.offset + chunk.size
            self._feed.put(chunk)
        return False

    def _silent(self) -> RemoteCommandError:
        """The agent ended without a word: it was killed, or there is no Python any more."""
        node = self._agent.host.node
        tail = [] if self._stream is None else self._stream.stderr.strip().splitlines()[-10:]
        message = f"node {node.index} ({node.instance_id}): the agent ends without a word"
        return RemoteCommandError(message, tail=tail, hint="is there a python3 on the node, and space on its disk?")
