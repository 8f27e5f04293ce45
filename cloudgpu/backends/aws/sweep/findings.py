"""What a sweep finds in the account, the ledger and this state home before it decides what to delete. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cloudgpu.backends.sweep.retained_resources import RetainedResource
from cloudgpu.backends.tagged_resource import BillableResource
from cloudgpu.ledger.entry import LedgerEntry


@dataclass(frozen=True)
class RegionSearch:
    """The result of searching one region, or IAM (`global`).

    Attributes:
        tagged: Resources with a cluster's tag. The list may be incomplete if `unknown` is set.
        retained: Storage and images. The list may be incomplete if `denied` or `unknown` is set.
        denied: Error message if the caller lacks the permission to list storage and images, or empty.
        unknown: Error message if any other request failed, or empty.
    """

    region: str
    tagged: Sequence[BillableResource] = ()
    retained: Sequence[RetainedResource] = ()
    denied: str = ""
    unknown: str = ""


@dataclass(frozen=True)
class LocalCluster:
    """A cluster that has a record in this state home.

    Attributes:
        up: Whether the record's state is `up`.
        busy: Whether another command that uses this state home is working on the cluster.
        problem: Error message if `busy` could not be determined, or empty.
    """

    token: str
    up: bool = False
    busy: bool = False
    problem: str = ""


@dataclass(frozen=True)
class SweepFindings:
    """Everything that the decisions of a sweep depend on.

    Attributes:
        regions: The regions to search, as requested or as enabled in the account.
        everywhere: Whether IAM and every enabled region were to be searched.
        searches: One result per region and, if everything was to be searched, one for IAM.
        endpoint: Endpoint of the account; empty for AWS.
        rows: Every ledger row, open or closed, of the account's clusters that have an open row.
        local: Cluster name -> this state home's record, for each cluster in a tag or in a ledger row.
        recorded: Names of all clusters with a record in this state home.
    """

    regions: tuple[str, ...]
    everywhere: bool
    searches: tuple[RegionSearch, ...]
    endpoint: str = ""
    rows: tuple[LedgerEntry, ...] = ()
    local: Mapping[str, LocalCluster] = field(default_factory=dict)
    recorded: frozenset[str] = frozenset()
