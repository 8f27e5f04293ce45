"""The errors that cloudgpu raises, and the exit code of each.

    CloudGpuError                     1
    |-- UsageError                    2   the command line, a settings file or an environment variable
    |-- RecipeError                   2   the recipe
    |-- BudgetError                   3   a budget would be exceeded
    |-- LaunchError                   4   instances could not be launched
    |   |-- CapacityError             4   no capacity in this zone: try the next one
    |   |   `-- NoCapacityError       4   every candidate was tried
    |   |-- QuotaError                4   quota exhausted: skip every candidate that shares it
    |   `-- NotOfferedError           4   the type is retired or not offered in this zone
    |-- RemoteCommandError            5   a command on a node failed, for example the training command
    |-- TeardownError                 6   a resource still exists, or its state is unknown
    |-- PlanError                     7   the plan has an error finding, or a saved plan is out of date
    |-- CloudError                    8   the cloud rejected a request or cannot be reached
    |   |-- AuthError                 8   credentials or permissions
    |   |-- ThrottledError            8   retry later with the same client token
    |   |-- BadRequestError           8   the request is invalid: stop
    |   `-- UnsupportedError          8   the engine does not support a type, property or option
    |-- ConnectError                  9   a node cannot be reached, or a download failed
    |   |-- HostKeyError              9   a host key is unknown or differs from the pinned key
    |   `-- SshSetupError             9   the SSH key, a proxy command or the network of this machine cannot be used
    |-- StateError                   10   the state home or a local file is unusable, or recorded state is out of date
    |   `-- NewerFormatError         10   a newer version of cloudgpu wrote a file in the state home
    |-- BusyError                    11   another process or user is changing the same resource
    |-- RehearsalError               12   the rehearsal cloud failed
    |-- LedgerError                  13   the ledger cannot be read or written
    |-- QuestionError                14   a prompt needs an answer, but there is no terminal
    `-- UnfitError                   15   a check of `doctor` or `hosts` failed

Ctrl-C exits with 130. An unexpected exception exits with 1 and shows its traceback.
"""

from collections.abc import Sequence
from typing import Any, ClassVar


class CloudGpuError(Exception):
    """Base class of all cloudgpu errors.

    Attributes:
        message: What happened and where, in one sentence.
        hint: What to type or change next, or empty.
        exit_code: The exit code of a command that fails with this error.
        partial_result: Results that the command produced before the error, as fields of its `--json` output.
        nodes: Indices of the nodes that failed; empty if the error concerns no node, or not only nodes.
        renewable: Whether the operation can succeed once the user has renewed expired credentials. While nodes are
            running, a command then waits instead of failing.
        summary: Sentence for a screen that already shows the message and the details; empty if it does not.
    """

    exit_code: ClassVar[int] = 1
    partial_result: dict[str, Any]
    nodes: Sequence[int] = ()
    summary: str = ""
    renewable: bool = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.partial_result = {}


class UsageError(CloudGpuError):
    """The command line, a settings file or an environment variable is invalid."""

    exit_code = 2


class RecipeError(CloudGpuError):
    """The recipe is invalid; `problems` lists every problem as `file:line: field: problem`."""

    exit_code = 2

    def __init__(self, message: str, *, problems: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems)


class BudgetError(CloudGpuError):
    """A budget would be exceeded."""

    exit_code = 3


class LaunchError(CloudGpuError):
    """Instances could not be launched.

    Attributes:
        code: The cloud's error code; empty if there is none.
        launched: Instances that were launched despite the error and have been terminated; their running time is billed.
    """

    exit_code = 4
    launched: Sequence[str] = ()

    def __init__(self, message: str, *, code: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class CapacityError(LaunchError):
    """The cloud has no capacity for this type in this zone and market. The next candidate may have some."""


class NoCapacityError(CapacityError):
    """No candidate could be launched.

    Attributes:
        tried: One line for each candidate that was tried.
        passing: Whether the same request may succeed later.
    """

    def __init__(self, message: str, *, tried: Sequence[str] = (), passing: bool = False, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.tried = tuple(tried)
        self.passing = passing


class QuotaError(LaunchError):
    """An account quota is exhausted. Every candidate that counts toward the same quota would fail too."""


class NotOfferedError(LaunchError):
    """The type is retired or not offered in this zone."""


class RemoteCommandError(CloudGpuError):
    """A command on a node failed.

    Attributes:
        rank: The rank that failed; None if the command was not a rank.
        tail: Last lines of the command's output.
    """

    exit_code = 5

    def __init__(self, message: str, *, rank: int | None = None, tail: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.rank = rank
        self.tail = tuple(tail)


class TeardownError(CloudGpuError):
    """A resource still exists, or its state is unknown; `left` lists these resources."""

    exit_code = 6

    def __init__(self, message: str, *, left: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.left = tuple(left)


class PlanError(CloudGpuError):
    """The plan cannot be applied, because it has at least one error finding or is out of date."""

    exit_code = 7

    def __init__(self, message: str, *, findings: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.findings = tuple(findings)


class CloudError(CloudGpuError):
    """The cloud rejected a request or cannot be reached.

    Attributes:
        code: The cloud's error code, or cloudgpu's own code if the cloud returned none.
        request_id: ID of the rejected request; empty if unknown.
    """

    exit_code = 8

    def __init__(self, message: str, *, code: str = "", request_id: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.request_id = request_id


class AuthError(CloudError):
    """Credentials are missing or invalid, or a permission is missing."""


class ThrottledError(CloudError):
    """The request was throttled or the service failed temporarily: retry with backoff and the same client token."""


class BadRequestError(CloudError):
    """The request is invalid; retrying it in another zone or region cannot help."""


class UnsupportedError(CloudError):
    """This engine does not implement a resource type, property or resource option."""


def renewable_cause(err: BaseException | None) -> CloudGpuError | None:
    """Return the error, or the one that caused it, that new credentials solve; None if there is none."""
    while err is not None:
        if isinstance(err, CloudGpuError) and err.renewable:
            return err
        err = err.__cause__
    return None


def decisive_cause(errors: Sequence[CloudGpuError]) -> CloudGpuError:
    """Return the error to raise a summary of several errors from: one that new credentials solve, or else the first."""
    return next((err for err in errors if renewable_cause(err) is not None), errors[0])


class ConnectError(CloudGpuError):
    """A node cannot be reached over SSH, or a download failed.

    Attributes:
        retryable: Whether another attempt may succeed although the user changes nothing. Every loop that waits for a
            node ends at an error for which this is False.
    """

    exit_code = 9
    retryable: bool = True


class HostKeyError(ConnectError):
    """A host key is unknown or differs from the pinned key; `expected` and `got` are SHA256 fingerprints."""

    retryable = False

    def __init__(self, message: str, *, expected: Sequence[str] = (), got: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.expected = tuple(expected)
        self.got = got


class SshSetupError(ConnectError):
    """This machine cannot connect: its SSH key, proxy command or network configuration cannot be used."""

    retryable = False


class StateError(CloudGpuError):
    """The state home or a local file cannot be used, or recorded state does not match what exists."""

    exit_code = 10


class NewerFormatError(StateError):
    """A newer version of cloudgpu wrote a file in the state home."""


class BusyError(CloudGpuError):
    """Another process or user is changing the same resource."""

    exit_code = 11


class RehearsalError(CloudGpuError):
    """The rehearsal cloud did not start, respond or stop."""

    exit_code = 12


class LedgerError(CloudGpuError):
    """The ledger cannot be read or written."""

    exit_code = 13


class QuestionError(CloudGpuError):
    """A prompt needs an answer, but there is no terminal; `reasons` lists why it is asked, one line each."""

    exit_code = 14

    def __init__(self, message: str, *, reasons: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reasons = tuple(reasons)


class UnfitError(CloudGpuError):
    """At least one check of `doctor` or `hosts` failed."""

    exit_code = 15
