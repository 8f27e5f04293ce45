"""What carries a cluster's tag, whatever any record says: searched for, ended, and searched for again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cloudgpu.app.desk import Desk
from cloudgpu.app.ports import Leftover
from cloudgpu.errors import TeardownError
from cloudgpu.run.progress import Note
from cloudgpu.text import command

OWNER = "cloudgpu:owner"
TOKEN = "cloudgpu:token"  # noqa: S105  the name of a tag

Whose = Callable[[Leftover], bool]


@dataclass(frozen=True)
class Strays:
    """The search by tag of one desk."""

    desk: Desk

    def found(self, name: str, regions: Sequence[str], whose: Whose) -> list[Leftover]:
        """What carries the cluster's name in these regions and is whose it should be.

        Raises:
            CloudError: A region could not be asked.
        """
        return [one for one in self.desk.cloud.search(name, regions) if whose(one)] if regions else []

    def end_nodes(self, name: str, regions: Sequence[str], whose: Whose, known: Sequence[str]) -> tuple[str, ...]:
        """Nodes first, whoever knows of them: a journal that lost their row would wait for what they stand on.

        Returns those that are not among the known instances.

        Raises:
            TeardownError: One of them would not end.
        """
        nodes = [one for one in self.found(name, regions, whose) if one.kind in ("fleet", "instance")]
        if nodes:
            self._end(name, nodes)
        recorded = any(one.id in known for one in nodes)
        # Fleets stand in no record: one is known when an instance that was found with it is.
        strays = [one for one in nodes if one.id not in known and not (one.kind == "fleet" and recorded)]
        return tuple(f"{one.kind} {one.id}" for one in strays)

    def ended(self, name: str, regions: Sequence[str], whose: Whose) -> tuple[str, ...]:
        """Search, end what is found, search again; what was found.

        Raises:
            TeardownError: The second search is not empty.
        """
        found = self.found(name, regions, whose)
        if not found:
            return ()
        self.desk.say(Note(f"found by tag and not in the journal: {', '.join(thing.id for thing in found)}"))
        self._end(name, found)
        left = self.found(name, regions, whose)
        if left:
            lines = [f"{thing.kind} {thing.id} in {thing.region}" for thing in left]
            message = f"cluster {name} is not gone: {'; '.join(lines)}"
            raise TeardownError(message, left=lines, hint=_again(name))
        return tuple(f"{thing.kind} {thing.id}" for thing in found)

    def _end(self, name: str, found: Sequence[Leftover]) -> None:
        try:
            self.desk.cloud.release(found)
        except TeardownError as err:
            # AWS does not know which of our commands goes on with it.
            err.hint = _again(name)
            raise

    def mine(self, one: Leftover, token: str) -> bool:
        """Of this cluster, or of this owner: another person's cluster of the same name is not ours to end."""
        return one.tags.get(OWNER, "") in ("", self.desk.owner) or (bool(token) and has_token(one, token))


def _again(name: str) -> str:
    return f"`{command('cloudgpu', 'down', name)}` again; it goes on where it stopped"


def has_token(one: Leftover, token: str) -> bool:
    """Whether it was made by the calls of this very cluster."""
    return one.tags.get(TOKEN, "") == token
