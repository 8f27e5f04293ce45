"""Find credentials through boto3's chain (environment, profile, SSO, role ...), with hints for each failure."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
from botocore import exceptions as boto

from cloudgpu import files
from cloudgpu.aws.session.errors import typed
from cloudgpu.errors import AuthError, CloudError
from cloudgpu.files import FileRefusedError
from cloudgpu.text import command

EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "UnauthorizedSSOTokenError", "LoginRefreshRequired"})
"""`AuthError.code` of credentials that were good once."""

_SIGN_ON = (boto.SSOError, boto.TokenRetrievalError, boto.NoAuthTokenError)
_BROKEN = (boto.InvalidConfigError, boto.ConfigParseError, boto.UnknownCredentialError)
_FILES = {
    "AWS_CONFIG_FILE": "~/.aws/config",
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CA_BUNDLE": "",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "",
}
"""Variables that name files which boto3 reads, and where it looks without them."""
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
"""boto3's own names of the ways in which it finds credentials."""


@dataclass(frozen=True)
class CredentialSource:
    """The source of the credentials in use. `profile` is empty for the default profile and for none."""

    profile: str
    method: str

    @property
    def label(self) -> str:
        """Source of the credentials: `profile research, single sign-on`."""
        method = _METHODS.get(self.method, self.method)
        return f"profile {self.profile}, {method}" if self.profile else method

    @property
    def renewal(self) -> str:
        """How to renew credentials of this kind."""
        if self.method == "env":
            return "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN anew, or unset them"
        if self.method == "login":
            return self.aws("login")
        if self.method == "sso" or not self.method:
            return self.aws("sso", "login")
        if self.method in ("shared-credentials-file", "config-file"):
            return f"write new keys with `{self.aws('configure')}`, or `{self.aws('sso', 'login')}`"
        return f"renew the credentials of the {_METHODS.get(self.method, self.method)}{self._of_profile}"

    def aws(self, *words: str) -> str:
        """Return a command of the AWS command line, for this profile."""
        return command("aws", *words, *(["--profile", self.profile] if self.profile else []))

    @property
    def _of_profile(self) -> str:
        return f" of profile {self.profile}" if self.profile else ""


def check_configuration(environ: Mapping[str, str]) -> None:
    """Refuse files of the AWS configuration that boto3 would never finish reading: it reads them without a limit.

    Raises:
        AuthError: One of them is a named pipe, a device or larger than any configuration.
    """
    for name, usual in _FILES.items():
        path = Path(environ.get(name) or usual).expanduser()
        if not path.name or str(path) == os.devnull or path.is_dir():
            continue  # devnull is how people switch a file off; a bundle of authorities may be a directory
        try:
            files.check(path, files.KEY_BYTES * 4)
        except FileRefusedError as err:
            message = f"the AWS configuration file {path} cannot be read: {err.strerror}"
            raise AuthError(message, code="InvalidConfig", hint=f"name another file in {name}, or unset it") from err
        except OSError:
            continue  # a missing or unreadable file is boto3's to judge


def open_chain(profile: str, region: str) -> tuple[boto3.Session, CredentialSource]:
    """Open a boto3 session with the user's credentials and fetch them, so that expired ones are reported at once.

    Raises:
        AuthError: There are no credentials, they have expired, or their configuration is wrong.
        CloudError: The credential provider cannot be reached.
    """
    with _told(CredentialSource(profile, ""), "reading the AWS configuration"):
        source = boto3.Session(profile_name=profile or None, region_name=region)
        found = source.get_credentials()
    if found is None:
        which = f"profile {profile} has none" if profile else "neither the environment nor a profile has any"
        message = f"no AWS credentials were found: {which}"
        raise AuthError(message, code="NoCredentials", hint=_how_to_begin(profile))
    login = CredentialSource(profile or ("" if found.method == "env" else _named(source)), found.method)
    with _told(login, f"fetching credentials ({login.label})"):
        found.get_frozen_credentials()
    return source, login


@contextmanager
def renewable(login: CredentialSource) -> Iterator[None]:
    """Add the hint for renewing these credentials to an expired-token error, which AWS returns only on use.

    Raises:
        AuthError: As raised in the block.
    """
    try:
        yield
    except AuthError as err:
        if err.code in EXPIRED:
            err.hint = login.renewal
        raise


def _named(source: boto3.Session) -> str:
    return "" if source.profile_name == "default" else source.profile_name


def _how_to_begin(profile: str) -> str:
    login = CredentialSource(profile, "")
    return f"`{login.aws('configure')}` or `{login.aws('sso', 'login')}`; with no account: --on rehearsal"


@contextmanager
def _told(login: CredentialSource, doing: str) -> Iterator[None]:
    """Convert errors of the credential chain and add a hint for each.

    Raises:
        AuthError: The credentials are missing or invalid.
        CloudError: The credential provider cannot be reached.
    """
    try:
        with typed(doing):
            yield
    except CloudError as err:
        raise _explained(err, login, doing) from err.__cause__


def _explained(err: CloudError, login: CredentialSource, doing: str) -> CloudError:
    cause = err.__cause__
    for kinds, explain in _EXPLANATIONS:
        if isinstance(cause, kinds):
            code, text, hint = explain(cause, login)
            return AuthError(f"{doing}: {text}", code=code, hint=hint)
    if isinstance(err, AuthError) and err.code in EXPIRED:
        return AuthError(err.message, code=err.code, request_id=err.request_id, hint=login.renewal)
    return err


Explanation = Callable[[BaseException, CredentialSource], tuple[str, str, str]]


def _sign_on(cause: BaseException, login: CredentialSource) -> tuple[str, str, str]:
    hint = CredentialSource(login.profile, "sso").renewal
    return "UnauthorizedSSOTokenError", f"credentials expired, single sign-on has to be done again ({cause})", hint


def _signed_out(cause: BaseException, login: CredentialSource) -> tuple[str, str, str]:
    hint = CredentialSource(login.profile, "login").renewal
    return "LoginRefreshRequired", f"credentials expired ({cause})", hint


def _no_profile(cause: BaseException, _: CredentialSource) -> tuple[str, str, str]:
    known = ", ".join(boto3.Session().available_profiles)
    return "ProfileNotFound", str(cause), f"known profiles: {known}" if known else "`aws configure` makes one"


def _half(cause: BaseException, login: CredentialSource) -> tuple[str, str, str]:
    return "PartialCredentials", str(cause), f"complete them, for example with `{login.aws('configure')}`"


def _process(cause: BaseException, _: CredentialSource) -> tuple[str, str, str]:
    return (
        "CredentialRetrievalError",
        str(cause),
        "run what the profile's credential_process names by hand",
    )


def _broken(cause: BaseException, _: CredentialSource) -> tuple[str, str, str]:
    return "InvalidConfig", str(cause), "correct the AWS configuration file (`aws configure list` shows what is read)"


_EXPLANATIONS: tuple[tuple[tuple[type[BaseException], ...], Explanation], ...] = (
    (_SIGN_ON, _sign_on),
    ((boto.LoginError,), _signed_out),
    ((boto.ProfileNotFound,), _no_profile),
    ((boto.PartialCredentialsError,), _half),
    ((boto.CredentialRetrievalError,), _process),
    (_BROKEN, _broken),
)
