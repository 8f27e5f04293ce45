"""Find credentials through boto3's credential chain (environment, profile, SSO ...), renew them, and open sessions.

Documentation is a third of the model of EC2, and botocore keeps every model that it has read. Without it, and with
plain instead of ordered dictionaries, a session with all clients of `train` is 16 MB smaller.

A login to ECR has the permissions of the caller's credentials, and is valid for 12 hours.
"""

import base64
import getpass
import gzip
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import boto3
import botocore.session
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES, ConstantProvider
from botocore.loaders import JSONFileLoader, Loader
from botocore.session import Session as BotocoreSession
from botocore.utils import JSONFileCache

from cloudgpu import files
from cloudgpu.aws.session.credential_errors import (
    MFA_CODE,
    CredentialSource,
    explain_errors,
    mark_renewable,
    mfa_hint,
    missing_credentials,
)
from cloudgpu.aws.session.errors import convert_response_errors
from cloudgpu.errors import AuthError, CloudError
from cloudgpu.files import FileRefusedError
from cloudgpu.settings.sources import PROFILE_VARIABLES

_SECTIONS = ("s3", "proxies_config")
"""Sections of the AWS configuration, which botocore reads in addition to its session variables."""
_CONFIGURATION_FILES = {"config_file": os.devnull, "credentials_file": os.devnull}
_FILES = {
    "AWS_CONFIG_FILE": "~/.aws/config",
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CA_BUNDLE": "",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "",
}
"""Environment variable -> default path of the file that boto3 reads; empty if there is no default."""
_DOCUMENTATION = re.compile(rb'("documentation"\s*:\s*)"[^"\\]*(?:\\.[^"\\]*)*"')
"""A documentation text in JSON, with its key. Within a text, the quotes of such a key would be escaped.

The key stays, because botocore requires it for some objects, such as the context parameters of S3.
"""
_CLI_SESSIONS = "~/.aws/cli/cache"
"""Folder in which the AWS CLI stores the sessions of assumed roles, with the keys that boto3 uses, too."""


class ServiceModelFiles(JSONFileLoader):
    """Reads botocore's data files without their documentation."""

    def load_file(self, file_path: str) -> Any:  # noqa: ANN401 - JSON
        """Return the content of a data file, given without its extension; None if there is no such file."""
        plain, packed = Path(f"{file_path}.json"), Path(f"{file_path}.json.gz")
        if plain.is_file():
            content = plain.read_bytes()
        elif packed.is_file():
            content = gzip.decompress(packed.read_bytes())
        else:
            return None
        return json.loads(_DOCUMENTATION.sub(rb'\1""', content))


class ServiceModels(Loader):
    """Finds botocore's service models without looking into the folders of all services."""

    def __init__(self, search_paths: Sequence[str]) -> None:
        super().__init__([*search_paths], ServiceModelFiles(), include_default_search_paths=False)
        self._services: list[str] = []

    def list_available_services(self, type_name: str) -> list[str]:  # noqa: ARG002 - see below
        """Return the folders of services, whether or not they contain a model of this type.

        botocore looks into all 430 of them, which takes 10 ms of CPU time per type. It uses the list only to choose
        between two errors for a missing model, and handles both.
        """
        if not self._services:
            folders = [folder for folder in map(Path, self.search_paths) if folder.is_dir()]
            self._services = sorted({service.name for folder in folders for service in folder.iterdir()})
        return self._services


def open_isolated_session(access_key_id: str, secret_access_key: str, region: str) -> boto3.Session:
    """Open a boto3 session that reads neither the user's AWS configuration files nor the AWS environment variables.

    The rehearsal cloud has its own endpoint and key. A broken file or variable of the user must not stop it.
    """
    source = botocore.session.Session()
    for name, (*_, default, convert) in BOTOCORE_DEFAUT_SESSION_VARIABLES.items():
        source.session_var_map[name] = (None, None, _CONFIGURATION_FILES.get(name, default), convert)
    for name in _SECTIONS:
        source.get_component("config_store").set_config_provider(name, ConstantProvider(None))
    models = Loader(extra_search_paths=[Loader.BUILTIN_DATA_PATH], include_default_search_paths=False)
    source.register_component("data_loader", models)
    return boto3_session(
        source, aws_access_key_id=access_key_id, aws_secret_access_key=secret_access_key, region_name=region
    )


def boto3_session(source: botocore.session.Session, **settings: str | None) -> boto3.Session:
    """Return the boto3 session of a botocore session. `settings` are arguments of `boto3.Session`."""
    opened = boto3.Session(botocore_session=source, **settings)
    source.register_component("data_loader", ServiceModels(source.get_component("data_loader").search_paths))
    return opened


def check_configuration(environ: Mapping[str, str]) -> None:
    """Reject AWS configuration files that boto3 might never finish reading, because boto3 sets no size limit."""
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


class RenewableCredentials:
    """Credentials that are fetched through the chain again if they cannot be refreshed or AWS rejects them as expired.

    A command may run for longer than a login lasts. After a new login, or after the user has stored new keys, the same
    clients continue with the new credentials. boto3 signs every request with `get_frozen_credentials`.
    """

    def __init__(self, profile: str, region: str) -> None:
        """Fetch the credentials. A profile with MFA prompts for a code."""
        self._profile, self._region = profile, region
        self._lock = Lock()
        self._may_prompt = True
        self._current, self.login = _resolve(profile, region, self._ask_for_mfa_code)
        self._frozen()
        self._may_prompt = False  # later, the terminal shows the progress of the command

    @property
    def method(self) -> str:
        """boto3's name for the source of the credentials."""
        return self.login.method

    def get_frozen_credentials(self) -> Any:  # noqa: ANN401 - boto3's type
        """Return the current keys, refreshed if necessary."""
        try:
            return self._frozen()
        except AuthError:
            self._fetch_again()
            return self._frozen()

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        """Return a function that returns a member of the current keys, such as the account ID."""
        return lambda: getattr(self.get_frozen_credentials(), name)

    def replaced(self) -> bool:
        """Fetch the credentials again because AWS rejected them. Return True if the chain now returns other keys."""
        before = self._current
        try:
            old = self._frozen()
            self._fetch_again()
            return bool(self._frozen() != old)
        except CloudError:
            self._current = before
            return False

    def _fetch_again(self) -> None:
        with self._lock:
            self._current, self.login = _resolve(self._profile, self._region, self._ask_for_mfa_code)

    def _ask_for_mfa_code(self, question: str, login: CredentialSource) -> str:
        """Ask for an MFA code on the terminal."""
        if not (self._may_prompt and sys.stdin.isatty() and sys.stderr.isatty()):
            of_profile = f"profile {login.profile}: " if login.profile else ""
            needed = AuthError(f"{of_profile}an MFA code needs a terminal", code=MFA_CODE, hint=mfa_hint(login))
            raise mark_renewable(needed, login)
        try:
            code = getpass.getpass(question).strip()
        except EOFError:
            code = ""  # Ctrl-D
        if not re.fullmatch("[0-9]+", code):
            raise AuthError("an MFA code consists of digits", code=MFA_CODE, hint="run the command again")
        return code

    def _frozen(self) -> Any:  # noqa: ANN401 - boto3's type
        with explain_errors(self.login, f"fetching credentials ({self.login.label})"):
            return self._current.get_frozen_credentials()


def open_chain(profile: str, region: str) -> tuple[boto3.Session, RenewableCredentials]:
    """Open a boto3 session and fetch the user's credentials, so that expired credentials are reported immediately."""
    credentials = RenewableCredentials(profile, region)
    with explain_errors(credentials.login, "reading the AWS configuration"):
        source = BotocoreSession()
        source.register_component("credential_provider", _Resolver(credentials))
        return boto3_session(source, profile_name=profile or None, region_name=region), credentials


class _Resolver:
    """Takes the place of botocore's credential chain in a session."""

    def __init__(self, credentials: RenewableCredentials) -> None:
        self._credentials = credentials

    def load_credentials(self) -> RenewableCredentials:
        """Return the credentials. botocore calls this method."""
        return self._credentials


def _resolve(profile: str, region: str, prompt: Callable[[str, CredentialSource], str]) -> tuple[Any, CredentialSource]:
    """Return the credentials of the chain and their source. Reads the configuration and all caches again."""
    named = profile or next(filter(None, (os.environ.get(name) for name in PROFILE_VARIABLES)), "")
    unknown = CredentialSource(named, "")
    with explain_errors(unknown, "reading the AWS configuration"):
        source = BotocoreSession()
        opened = boto3_session(source, profile_name=profile or None, region_name=region)
        assumed: Any = source.get_component("credential_provider").get_provider("assume-role")
        assumed.cache = _CliSessions(str(Path(_CLI_SESSIONS).expanduser()))
        assumed._prompter = lambda question: prompt(question, unknown)  # botocore has no option for it
        credentials = opened.get_credentials()
    if credentials is None:
        raise missing_credentials(named, _unreadable_files(os.environ))
    method = str(credentials.method)
    return credentials, CredentialSource(profile or ("" if method == "env" else named), method)


class _CliSessions(JSONFileCache):
    """Sessions of assumed roles: those that the AWS CLI stored, which are only read, and those of this process."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._own: dict[str, Any] = {}

    def __contains__(self, key: str) -> bool:
        if key in self._own:
            return True
        try:
            return "Expiration" in super().__getitem__(key)["Credentials"]
        except (KeyError, TypeError, OSError, ValueError):
            return False  # missing or damaged

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - JSON
        return self._own[key] if key in self._own else super().__getitem__(key)

    def __setitem__(self, key: str, value: Any) -> None:  # noqa: ANN401 - JSON
        self._own[key] = value


def _unreadable_files(environ: Mapping[str, str]) -> str:
    """Name the configuration files that the user may not read, which boto3 silently treats as empty."""
    paths = (Path(environ.get(name) or default).expanduser() for name, default in _FILES.items() if default)
    denied = [str(path) for path in paths if path.exists() and not os.access(path, os.R_OK)]
    return f"; permission to read {' and '.join(denied)} is denied" if denied else ""


def ecr_login(ecr: Any, region: str) -> tuple[str, str]:  # noqa: ANN401 - boto3 clients have no static type
    """Fetch a username and password for all ECR registries in a region that the caller may read."""
    with convert_response_errors(f"fetching a login for ECR in {region}"):
        response = ecr.get_authorization_token()
        tokens = [
            str(authorization.get("authorizationToken", ""))
            for authorization in response.get("authorizationData") or ()
        ]
        user, colon, password = base64.b64decode(tokens[0]).decode().partition(":") if tokens else ("", "", "")
    if not (colon and password):
        raise CloudError(f"ECR in {region} returned no login", hint="try again")
    return user, password
