"""Registry logins, specified by the recipe or, for ECR, requested from AWS."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cloudgpu.errors import UsageError
from cloudgpu.recipe.schema import Environment
from cloudgpu.text import command

ECR: Final = re.compile(r"^[0-9]{12}\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/")


@dataclass(frozen=True)
class RegistryLogin:
    """A registry user and password. The password is never shown, and is sent to the nodes only through stdin."""

    user: str
    password: str = field(repr=False)


FetchLogin = Callable[[str], RegistryLogin]
"""Function that returns an ECR login for a region. The login is valid for at least one more hour."""


def password_variable(environment: Environment) -> str:
    """Return the name of the variable that holds the registry password; empty if none is needed or specified."""
    container = environment.container
    if container is None or container.login is None:
        return ""
    return container.password or (environment.secrets[0] if environment.secrets else "")


def registry_login(environment: Environment, environ: Mapping[str, str], fetch: FetchLogin) -> RegistryLogin | None:
    """Return the login for a recipe's image, or None if none is needed."""
    container = environment.container
    if container is None:
        return None
    if container.login is not None:
        name = password_variable(environment)
        if not environ.get(name):
            problem = f"{name} is not set" if name else "the recipe specifies no variable for its password"
            message = f"{container.image} is pulled as {container.login}, but {problem}"
            hint = (
                f"run `{command('export', f'{name}=...')}` first"
                if name
                else "set environment.container.password to the name of the variable"
            )
            raise UsageError(message, hint=hint)
        return RegistryLogin(container.login, environ[name])
    match = ECR.match(container.image)
    return fetch(match[1]) if match else None
