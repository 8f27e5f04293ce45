"""Collect the errors of a deletion by region, and combine them into one error."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from cloudgpu.aws.ec2.tagged_types import GLOBAL
from cloudgpu.errors import CloudGpuError, TeardownError, decisive_cause
from cloudgpu.text import command


class RegionFailures:
    """Collects errors by region, so that a failure in one region does not stop work in the other regions.

    Args:
        name: Name of the cluster.
        regions: Every region to process.
    """

    def __init__(self, name: str, regions: Sequence[str]) -> None:
        self._name = name
        self._regions = tuple(regions)
        self._errors: dict[str, list[CloudGpuError]] = {}

    def __bool__(self) -> bool:
        """Return True if anything failed."""
        return bool(self._errors)

    def __contains__(self, region: str) -> bool:
        """Return True if something failed in this region."""
        return region in self._errors

    @property
    def asked(self) -> tuple[str, ...]:
        """Every region to process."""
        return self._regions

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions in which something failed; `global` stands for IAM."""
        return tuple(self._errors)

    def add(self, region: str, err: CloudGpuError) -> None:
        """Add an error, unless the region already has one with the same message."""
        noted = self._errors.setdefault(region, [])
        if err.message not in {known.message for known in noted}:
            noted.append(err)

    def add_all(self, failures: Mapping[str, CloudGpuError]) -> None:
        """Add the errors from a search, by region."""
        for region, err in failures.items():
            self.add(region, err)

    @contextmanager
    def guard(self, region: str) -> Iterator[None]:
        """Add a `CloudGpuError` that the block raises to the region's errors instead of propagating the error."""
        try:
            yield
        except CloudGpuError as err:
            self.add(region, err)

    def raise_any(self, remarks: Mapping[str, str] | None = None) -> None:
        """Raise one error for everything that failed.

        Args:
            remarks: Region -> additional explanation for the user.
        """
        errors = [err for noted in self._errors.values() for err in noted]
        if not errors:
            return
        if len(errors) == 1 and self.regions == self._regions and not remarks:
            raise errors[0]
        left = [
            f"{_place(region)}: {line}{_remark(remarks, region)}"
            for region, noted in self._errors.items()
            for err in noted
            for line in tuple(getattr(err, "left", ())) or (err.message,)
        ]
        again = f"run `{command('cloudgpu', 'down', self._name)}` again"
        hints = dict.fromkeys(err.hint for err in errors if err.hint and self._name not in err.hint)
        places = ", ".join(_place(region) for region in self._errors)
        message = f"cluster {self._name} is not confirmed deleted in {places}"
        raise TeardownError(message, left=left, hint="; ".join([*hints, again])) from decisive_cause(errors)


def _place(region: str) -> str:
    return "IAM" if region == GLOBAL else region


def _remark(remarks: Mapping[str, str] | None, region: str) -> str:
    return f" ({remarks[region]})" if remarks and region in remarks else ""
