"""Explain why credentials cannot be obtained or renewed: what failed, in which profile, and what to type next."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches

import botocore.session
from botocore import exceptions as boto

from cloudgpu.aws.session.errors import UNREACHABLE, convert_errors
from cloudgpu.errors import AuthError, CloudError, ThrottledError
from cloudgpu.settings.sources import PROFILE_VARIABLES
from cloudgpu.text import command, printable

EXPIRED_CODES = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "UnauthorizedSSOTokenError", "LoginRefreshRequired"}
)
"""Values of `AuthError.code` for expired credentials."""
MFA_CODE = "MfaCodeRequired"
"""`AuthError.code` for a profile that needs an MFA code although there is no terminal."""

_SIGN_ON = (boto.SSOError, boto.TokenRetrievalError, boto.NoAuthTokenError)
_BROKEN = (boto.InvalidConfigError, boto.ConfigParseError, boto.UnknownCredentialError)
_METADATA = (
    boto.MetadataRetrievalError,
    boto.InvalidIMDSEndpointError,
    boto.InvalidIMDSEndpointModeError,
)
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)
"""What botocore raises if a credential process or a cached token contains no valid credentials."""
_UNEXPECTED = (OSError, RuntimeError, *_UNREADABLE)
_SHOWN_PROFILES = 12
_SHOWN_CHARACTERS = 300
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

    @property
    def is_renewable(self) -> bool:
        """Whether the user can renew the credentials while a command runs: the command's environment stays as it is."""
        return self.method != "env"

    def aws(self, *words: str) -> str:
        """Return an AWS CLI command for this profile."""
        return command("aws", *words, *(["--profile", self.profile] if self.profile else []))

    @property
    def _of_profile(self) -> str:
        return f" of profile {self.profile}" if self.profile else ""


@contextmanager
def explain_errors(login: CredentialSource, doing: str) -> Iterator[None]:
    """Convert errors from the credential chain, and add a hint to those with a known cause.

    Keep other code out of the block, because every error in it is reported as a fault of the credentials.
    """
    try:
        with convert_errors(doing):
            yield
    except CloudError as err:
        raise _explained(err, login, doing) from err.__cause__
    except _UNEXPECTED as err:
        raise _known(err, login, doing) or err from err


def mark_renewable(err: AuthError, login: CredentialSource) -> AuthError:
    """Mark an error of the credential chain as one that new credentials solve."""
    err.renewable = login.is_renewable
    return err


def missing_credentials(profile: str, unreadable: str) -> AuthError:
    """Return the error for a chain without credentials. `unreadable` names configuration files without permission."""
    login = CredentialSource(profile, "")
    which = f"profile {profile} has none" if profile else "neither the environment nor a profile contains any"
    hint = (
        f"run `{login.aws('configure')}` or `{login.aws('sso', 'login')}`; without an AWS account, use --on rehearsal"
    )
    err = AuthError(f"no AWS credentials were found: {which}{unreadable}", code="NoCredentials", hint=hint)
    return mark_renewable(err, login)


def _known(cause: BaseException | None, login: CredentialSource, doing: str) -> AuthError | None:
    for classes, explain in _EXPLANATIONS:
        if isinstance(cause, classes):
            code, text, hint = explain(cause, login)
            return mark_renewable(AuthError(f"{doing}: {text}", code=code, hint=hint), login)
    return None


def _explained(err: CloudError, login: CredentialSource, doing: str) -> CloudError:
    cause = err.__cause__
    known = _known(cause, login, doing)
    if known is not None:
        return known
    if isinstance(cause, boto.ClientError) and not isinstance(err, ThrottledError):
        hint = login.renewal if err.code in EXPIRED_CODES else err.hint
        refused = AuthError(err.message, code=err.code, request_id=err.request_id, hint=hint)
        return mark_renewable(refused, login)
    if isinstance(cause, boto.BotoCoreError) and err.code != UNREACHABLE:
        hint = f"`{login.aws('configure', 'list')}` shows the values in use"
        return mark_renewable(AuthError(f"{doing}: {_text(cause)}", code=err.code, hint=hint), login)
    return err


def _text(cause: BaseException) -> str:
    """Return an error's text in one printable line. It may contain the output of any program."""
    return printable(" ".join(str(cause).split()))[:_SHOWN_CHARACTERS]


Explanation = Callable[[BaseException, CredentialSource], tuple[str, str, str]]


def _sign_on(cause: BaseException, login: CredentialSource) -> tuple[str, str, str]:
    hint = CredentialSource(login.profile, "sso").renewal
    text = f"credentials expired: sign in again through single sign-on ({_text(cause)})"
    return "UnauthorizedSSOTokenError", text, hint


def _signed_out(cause: BaseException, login: CredentialSource) -> tuple[str, str, str]:
    hint = CredentialSource(login.profile, "login").renewal
    return "LoginRefreshRequired", f"credentials expired ({_text(cause)})", hint


def _no_profile(_: BaseException, login: CredentialSource) -> tuple[str, str, str]:
    from_variable = next((name for name in PROFILE_VARIABLES if os.environ.get(name) == login.profile), "")
    where = f"{from_variable} names it" if from_variable else "the setting aws_profile names it"
    profiles = botocore.session.Session().available_profiles
    near = get_close_matches(login.profile, profiles, n=1)
    listed = ", ".join(profiles[:_SHOWN_PROFILES]) + (", ..." if len(profiles) > _SHOWN_PROFILES else "")
    hint = f"use one of these profiles: {printable(listed)}" if profiles else "create a profile with `aws configure`"
    hint = f"did you mean {printable(near[0])}? {hint}" if near else hint
    return "ProfileNotFound", f"profile {printable(login.profile)} does not exist ({where})", hint


def _partial(cause: BaseException, login: CredentialSource) -> tuple[str, str, str]:
    return "PartialCredentials", _text(cause), f"complete the credentials, for example with `{login.aws('configure')}`"


def _not_obtained(cause: BaseException, login: CredentialSource) -> tuple[str, str, str]:
    provider = str(getattr(cause, "kwargs", {}).get("provider", ""))
    if provider == "custom-process":
        hint = "run the profile's credential_process command manually to see its error"
    else:
        hint = f"use another profile, or correct the credential_source of this one: `{login.aws('configure', 'list')}`"
    return "CredentialRetrievalError", _text(cause), hint


def _broken(cause: BaseException, _: CredentialSource) -> tuple[str, str, str]:
    hint = "correct the AWS configuration file (`aws configure list` shows the values in use)"
    return "InvalidConfig", _text(cause), hint


def _no_metadata(cause: BaseException, _: CredentialSource) -> tuple[str, str, str]:
    hint = "give the instance or container a role, or choose another source with AWS_PROFILE"
    return "MetadataRetrievalError", _text(cause), hint


def _mfa_again(_: BaseException, login: CredentialSource) -> tuple[str, str, str]:
    text = "credentials expired: the session of the role has ended, and a new one needs an MFA code"
    return MFA_CODE, text, mfa_hint(login)


def mfa_hint(login: CredentialSource) -> str:
    """Return how to enter an MFA code outside of cloudgpu, which reads the sessions that the AWS CLI stores."""
    return f"run `{login.aws('sts', 'get-caller-identity')}` in a terminal, and enter the code there"


def _still_expired(_: BaseException, login: CredentialSource) -> tuple[str, str, str]:
    source = _METHODS.get(login.method, "source of the credentials")
    return "ExpiredToken", f"credentials expired: the {source} returned expired ones", login.renewal


def _malformed(cause: BaseException, login: CredentialSource) -> tuple[str, str, str]:
    """Explain output of a credential process, or a value in the configuration, that botocore cannot read."""
    reason = "not JSON" if isinstance(cause, json.JSONDecodeError) else _text(cause)
    text = f"the profile's credential_process or a value of its configuration is malformed: {reason}"
    hint = f"`{login.aws('configure', 'list')}` shows the values in use; credential_process must print one JSON object"
    return "InvalidConfig", text, hint


def _no_file(cause: BaseException, login: CredentialSource) -> tuple[str, str, str]:
    path = getattr(cause, "filename", None) or "a file"
    reason = getattr(cause, "strerror", None) or _text(cause)
    of_file = {
        "assume-role-with-web-identity": "check AWS_WEB_IDENTITY_TOKEN_FILE or web_identity_token_file: your identity "
        "provider writes the token to this file",
        "container-role": "check AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    }
    hint = of_file.get(login.method, "check credential_process and the paths in the AWS configuration file")
    return "CredentialFileError", f"cannot use {printable(str(path))}: {reason}", hint


_EXPLANATIONS: tuple[tuple[tuple[type[BaseException], ...], Explanation], ...] = (
    (_SIGN_ON, _sign_on),
    ((boto.LoginError,), _signed_out),
    ((boto.ProfileNotFound,), _no_profile),
    ((boto.PartialCredentialsError,), _partial),
    ((boto.CredentialRetrievalError,), _not_obtained),
    ((boto.RefreshWithMFAUnsupportedError,), _mfa_again),
    (_METADATA, _no_metadata),
    (_BROKEN, _broken),
    ((RuntimeError,), _still_expired),
    (_UNREADABLE, _malformed),
    ((OSError,), _no_file),
)
"""Error classes -> explanation, for errors of the credential chain. The first match applies."""
