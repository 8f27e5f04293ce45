"""Ask and change several regions of one account, each on its own: a region that fails never stops the others."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from cloudgpu.aws.ec2 import instances, tag_search
from cloudgpu.aws.ec2.tagged_types import GLOBAL, FoundResource, SearchResult
from cloudgpu.aws.session.session import Session
from cloudgpu.clock import Clock
from cloudgpu.errors import AuthError, CloudError, CloudGpuError, TeardownError

_T = TypeVar("_T")

SessionOf = Callable[[str], Session]

_AT_ONCE: Final = 8
_STAND_INS: Final[Mapping[str, tuple[str, ...]]] = {
    "cn": ("cn-north-1", "cn-northwest-1"),
    "us-gov": ("us-gov-west-1", "us-gov-east-1"),
    "": ("us-east-1", "us-west-2", "eu-west-1"),
}
"""Partition -> regions that answer questions about the whole account when the usual region does not."""


class AwsRegions:
    """The regions of one account.

    Args:
        session_of: Returns the API clients of a region.
        usual: The region to ask about the account as a whole.
        clock: Clock for waiting.
    """

    def __init__(self, session_of: SessionOf, usual: str, clock: Clock) -> None:
        self._session_of = session_of
        self._usual = usual
        self._clock = clock

    def answered_as_usual(self, question: Callable[[Session], _T]) -> _T:
        """Ask about the account in the usual region alone.

        Raises:
            CloudError: It does not answer.
        """
        return question(self._session_of(self._usual))

    def answered_anywhere(self, question: Callable[[Session], _T]) -> _T:
        """Ask about the account in the usual region, then in others.

        Raises:
            CloudError: No region answers, or the credentials are not valid anywhere; the usual region's error.
        """
        try:
            return question(self._session_of(self._usual))
        except CloudError as err:
            if isinstance(err, AuthError) and not err.request_id:
                raise  # this machine has no usable credentials, whatever the region
            for region in _stand_ins(self._usual):
                try:
                    return question(self._session_of(region))
                except CloudError:
                    continue
            raise

    def names(self) -> tuple[str, ...]:
        """Return every region that the account can use."""
        return self.answered_anywhere(tag_search.enabled_regions)

    def search(self, cluster: str, regions: Sequence[str]) -> SearchResult:
        """Search these regions (`global`: IAM) for the cluster's tag; of an empty name, for the tag of any cluster."""

        def ask(region: str) -> SearchResult:
            try:
                if region == GLOBAL:
                    return tag_search.search_iam(self._session_of(self._usual), cluster)
                return tag_search.search_region(self._session_of(region), cluster)
            except CloudGpuError as err:
                return SearchResult(failures={region: err})

        result = SearchResult()
        for answer in _in_parallel(ask, tuple(dict.fromkeys(regions))):
            result = result.merged(answer)
        return result

    def terminate(self, region: str, instance_ids: Sequence[str]) -> None:
        """Terminate instances by their ids and wait until AWS confirms it.

        Raises:
            CloudError: AWS refused, cannot be reached, or took too long.
        """
        instances.terminate(self._session_of(region), self._clock, instance_ids)

    def release(self, found: Sequence[FoundResource]) -> None:
        """Delete tagged resources in all regions in parallel and wait for confirmation.

        IAM comes last, once no region uses its resources any more.

        Raises:
            TeardownError: Something could not be deleted; the error lists all of it.
        """
        regional = [resource for resource in found if resource.region != GLOBAL]
        regions = sorted({resource.region for resource in regional})

        def work(region: str) -> CloudGpuError | None:
            return self._released(region, [resource for resource in regional if resource.region == region])

        failures = [err for err in _in_parallel(work, regions) if err is not None]
        in_iam = [resource for resource in found if resource.region == GLOBAL]
        err = self._released(self._usual, in_iam) if in_iam else None
        failures += [err] if err is not None else []
        if len(failures) == 1:
            raise failures[0]
        if failures:
            left = [line for err in failures for line in getattr(err, "left", (err.message,))]
            message = "; ".join(err.message for err in failures)
            raise TeardownError(message, left=left, hint="run the same command again")

    def _released(self, region: str, found: Sequence[FoundResource]) -> CloudGpuError | None:
        try:
            tag_search.release(self._session_of(region), found, self._clock)
        except CloudGpuError as err:
            return err
        return None


def _in_parallel(work: Callable[[str], _T], regions: Sequence[str]) -> list[_T]:
    """Do this in all regions at once; one region alone needs no thread, so that Ctrl-C interrupts it."""
    if len(regions) <= 1:
        return [work(region) for region in regions]
    with ThreadPoolExecutor(min(_AT_ONCE, len(regions)), thread_name_prefix="region") as pool:
        return list(pool.map(work, regions))


def _stand_ins(region: str) -> list[str]:
    """Return the other regions of its partition that may answer instead."""
    partition = next((prefix for prefix in _STAND_INS if prefix and region.startswith(f"{prefix}-")), "")
    return [stand_in for stand_in in _STAND_INS[partition] if stand_in != region]
