"""Find credentials through boto3's credential chain (environment, profile, SSO ...), and explain each failure."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
from botocore import exceptions as boto

from cloudgpu import files
from cloudgpu.aws.session.boto_session import open_boto_session
from cloudgpu.aws.session.errors import convert_errors
from cloudgpu.errors import AuthError, CloudError
from cloudgpu.files import FileRefusedError
from cloudgpu.text import command

EXPIRED_CODES = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "UnauthorizedSSOTokenError", "LoginRefreshRequired"}
)
"""Values of `AuthError.code` for expired credentials."""

_SIGN_ON = (boto.SSOError, boto.TokenRetrievalError, boto.NoAuthTokenError)
_BROKEN = (boto.InvalidConfigError, boto.ConfigParseError, boto.UnknownCredentialError)
_FILES = {
    "AWS_CONFIG_FILE": "~/.aws/config",
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CA_BUNDLE": "",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "",
}
"""Environment variable -> default path of the file that boto3 reads; empty if there is no default."""
_METHODS = {
    "env": "environment variables",
    "shared-credentials-file": "credentials file",
    "config-file": "configuration file",
    "assume-role": "assumed role",
    "assume-role-with-web-identity": "assumed role with a web identity",
    "sso": "single sign-on",
    "login": "aws login",
    "custom-process": "credential process",
    "container-role": "container role",
    "iam-role": "instance role",
}
"""boto3's name for a credential source -> name in messages."""


@dataclass(frozen=True)
class CredentialSource:
    """The source of the credentials in use. `profile` is empty for the default profile or if no profile is used."""

    profile: str
    method: str

    @property
    def label(self) -> str:
        """Description of the source in messages, such as `profile research, single sign-on`."""
        method = _METHODS.get(self.method, self.method)
        return f"profile {self.profile}, {method}" if self.profile else method

    @property
    def renewal(self) -> str:
        """Instruction for renewing the credentials."""
        if self.method == "env":
            return "set new values for AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or unset them"
        if self.method == "login":
            return self.aws("login")
        if self.method == "sso" or not self.method:
            return self.aws("sso", "login")
        if self.method in ("shared-credentials-file", "config-file"):
            return f"store new keys with `{self.aws('configure')}`, or run `{self.aws('sso', 'login')}`"
        return f"renew the credentials of the {_METHODS.get(self.method, self.method)}{self._of_profile}"

    def aws(self, *words: str) -> str:
        """Return an AWS CLI command for this profile."""
        return command("aws", *words, *(["--profile", self.profile] if self.profile else []))

    @property
    def _of_profile(self) -> str:
        return f" of profile {self.profile}" if self.profile else ""


def check_configuration(environ: Mapping[str, str]) -> None:
    """Reject AWS configuration files that boto3 might never finish reading, because boto3 sets no size limit.

    Raises:
        AuthError: A file is a named pipe or a device, or is larger than any valid configuration.
    """
    for name, default in _FILES.items():
        path = Path(environ.get(name) or default).expanduser()
        if not path.name or str(path) == os.devnull or path.is_dir():
            continue  # users disable a file with /dev/null, and a CA bundle may be a directory
        try:
            files.require_regular_file(path, files.KEY_BYTES * 4)
        except FileRefusedError as err:
            message = f"the AWS configuration file {path} cannot be read: {err.strerror}"
            raise AuthError(message, code="InvalidConfig", hint=f"set {name} to another file, or unset it") from err
        except OSError:
            continue  # boto3 handles missing and unreadable files


def open_chain(profile: str, region: str) -> tuple[boto3.Session, CredentialSource]:
    """Open a boto3 session and fetch the user's credentials, so that expired credentials are reported immediately.

    Raises:
        AuthError: There are no credentials, they have expired, or their configuration is wrong.
        CloudError: The credential provider is unreachable.
    """
    with _explain_errors(CredentialSource(profile, ""), "reading the AWS configuration"):
        source = open_boto_session(profile_name=profile or None, region_name=region)
        credentials = source.get_credentials()
    if credentials is None:
        which = f"profile {profile} has none" if profile else "neither the environment nor a profile contains any"
        message = f"no AWS credentials were found: {which}"
        raise AuthError(message, code="NoCredentials", hint=_login_hint(profile))
    login = CredentialSource(
        profile or ("" if credentials.method == "env" else _profile_name(source)), credentials.method
    )
    with _explain_errors(login, f"fetching credentials ({login.label})"):
        credentials.get_frozen_credentials()
    return source, login


@contextmanager
def add_renewal_hint(login: CredentialSource) -> Iterator[None]:
    """Add the hint for renewing these credentials to an expired-token error that the block raises.

    Open sessions need this because AWS reports an expired token only when it is used.

    Raises:
        AuthError: The block raised this error. For an expired token, the hint is replaced.
    """
    try:
        yield
    except AuthError as err:
        if err.code in EXPIRED_CODES:
            err.hint = login.renewal
        raise


def _profile_name(source: boto3.Session) -> str:
    return "" if source.profile_name == "default" else source.profile_name


def _login_hint(profile: str) -> str:
    login = CredentialSource(profile, "")
    return (
        f"run `{login.aws('configure')}` or `{login.aws('sso', 'login')}`; without an AWS account, use --on rehearsal"
    )


@contextmanager
def _explain_errors(login: CredentialSource, doing: str) -> Iterator[None]:
    """Convert errors from the credential chain, and add a hint to those with a known cause.

    Raises:
        AuthError: The credentials are missing or invalid.
        CloudError: The credential provider is unreachable.
    """
    try:
        with convert_errors(doing):
            yield
    except CloudError as err:
        raise _with_explanation(err, login, doing) from err.__cause__


def _with_explanation(err: CloudError, login: CredentialSource, doing: str) -> CloudError:
    cause = err.__cause__
    for classes, explain in _EXPLANATIONS:
        if isinstance(cause, classes):
            code, text, hint = explain(cause, login)
            return AuthError(f"{doing}: {text}", code=code, hint=hint)
    if isinstance(err, AuthError) and err.code in EXPIRED_CODES:
        return AuthError(err.message, code=err.code, request_id=err.request_id, hint=login.renewal)
    return err


Explanation = Callable[[BaseException, CredentialSource], tuple[str, str, str]]


def _sign_on(cause: BaseException, login: CredentialSource) -> tuple[str, str, str]:
    hint = CredentialSource(login.profile, "sso").renewal
    return "UnauthorizedSSOTokenError", f"credentials expired: sign in again through single sign-on ({cause})", hint


def _signed_out(cause: BaseException, login: CredentialSource) -> tuple[str, str, str]:
    hint = CredentialSource(login.profile, "login").renewal
    return "LoginRefreshRequired", f"credentials expired ({cause})", hint


def _no_profile(cause: BaseException, _: CredentialSource) -> tuple[str, str, str]:
    profiles = ", ".join(boto3.Session().available_profiles)
    return (
        "ProfileNotFound",
        str(cause),
        f"use one of these profiles: {profiles}" if profiles else "create a profile with `aws configure`",
    )


def _partial(cause: BaseException, login: CredentialSource) -> tuple[str, str, str]:
    return "PartialCredentials", str(cause), f"complete the credentials, for example with `{login.aws('configure')}`"


def _process(cause: BaseException, _: CredentialSource) -> tuple[str, str, str]:
    return (
        "CredentialRetrievalError",
        str(cause),
        "run the profile's credential_process command manually to see its error",
    )


def _broken(cause: BaseException, _: CredentialSource) -> tuple[str, str, str]:
    hint = "correct the AWS configuration file (`aws configure list` shows the values in use)"
    return "InvalidConfig", str(cause), hint


_EXPLANATIONS: tuple[tuple[tuple[type[BaseException], ...], Explanation], ...] = (
    (_SIGN_ON, _sign_on),
    ((boto.LoginError,), _signed_out),
    ((boto.ProfileNotFound,), _no_profile),
    ((boto.PartialCredentialsError,), _partial),
    ((boto.CredentialRetrievalError,), _process),
    (_BROKEN, _broken),
)
