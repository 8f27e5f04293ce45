"""Check environment variables, secrets and the registry login."""

import re
from collections.abc import Iterator
from typing import Final

from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.recipe.rules.text import LAUNCHER_VARIABLES
from cloudgpu.recipe.schema import Recipe
from cloudgpu.text import command

_PUBLIC: Final = ("nvcr.io/nvidia/", "public.ecr.aws/")
_PRIVATE: Final = re.compile(r"^(nvcr\.io/|[a-z0-9-]+\.azurecr\.io/|[a-z0-9-]+-docker\.pkg\.dev/)")
"""Registries that require a login, except for the public repositories in `_PUBLIC`. ECR logins are automatic."""

_KEYS: Final = (
    ("an AWS access key", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
    ("a GitHub token", re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,})")),
    ("a Hugging Face token", re.compile(r"\bhf_[A-Za-z0-9]{30,}")),
    ("an NGC key", re.compile(r"\bnvapi-[\w-]{20,}")),
    (
        "an API key",
        re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{20,}|\bAIza[\w-]{35}|\bxox[baprs]-[\w-]{10,}|\bglpat-[\w-]{20}"),
    ),
    ("a signed token", re.compile(r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}")),
    ("a URL with a password", re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s@]+@")),
)
_SECRET_NAME: Final = re.compile(r"(?:SECRET|TOKEN|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY)$", re.IGNORECASE)
_KEYLIKE: Final = re.compile(r"^(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/_=.-]{16,}$")


@check("secrets", "note", "The plan shows which of your environment variables a run would use.")
def required_secrets(case: CheckInput) -> Iterator[Issue]:
    """Report the secrets that are taken from the caller's environment. `secret-missing` reports missing secrets."""
    known = case.question.quotes.survey.set_variables
    secrets = [name for name in required_variables(case.question.recipe) if known is None or name in known]
    if secrets:
        yield Issue(f"sent to the nodes from your environment, and never stored: {', '.join(secrets)}")


@check("secret-missing", "warning", "A secret that is not set would make the run fail after the launch.")
def secrets_set(case: CheckInput) -> Iterator[Issue]:
    """Report secrets that are not set in the caller's environment."""
    set_variables = case.question.quotes.survey.set_variables
    if set_variables is None:
        return
    missing = [name for name in required_variables(case.question.recipe) if name not in set_variables]
    if missing:
        export = command("export", f"{missing[0]}=...")
        yield Issue(
            f"not set in your environment: {', '.join(missing)}", f"run `{export}`, or type it when `train` asks"
        )


@check(
    "credentials",
    "error",
    "A key in a recipe is copied to logs, records and repositories, from which it cannot be removed.",
)
def no_credentials_in_recipe(case: CheckInput) -> Iterator[Issue]:
    """Report values that look like credentials, without showing them."""
    for field, name, value in _texts(case.question.recipe):
        kind = next((kind for kind, pattern in _KEYS if pattern.search(value)), "")
        if not kind and _SECRET_NAME.search(name) and _KEYLIKE.match(value):
            kind = "a secret"
        if kind:
            fix = (
                f"list {name} under environment.secrets, set it in your environment, and remove the value"
                if name
                else ""
            )
            yield Issue(
                f"{field} appears to contain {kind}", fix or "list a variable under environment.secrets instead"
            )


@check(
    "variables",
    "error",
    "Ranks that disagree about the world size or the rendezvous address wait for each other forever.",
)
def launcher_variables(case: CheckInput) -> Iterator[Issue]:
    """Report variables in `env` or `secrets` that the launcher sets itself."""
    recipe = case.question.recipe
    reserved = LAUNCHER_VARIABLES[recipe.launch.launcher]
    for name in sorted(reserved & {*recipe.environment.env, *recipe.environment.secrets}):
        yield Issue(f"{name} is set by the {recipe.launch.launcher} launcher", f"remove {name} from environment")


@check("login", "error", "A registry that requires a login would reject the pull after the nodes are launched.")
def registry_login(case: CheckInput) -> Iterator[Issue]:
    """Report a login without a secret, or a private registry without a login."""
    container, secrets = case.question.recipe.environment.container, case.question.recipe.environment.secrets
    if container is None:
        return
    if container.login is not None and not secrets and container.password is None:
        message = (
            f"{container.image} is pulled as {container.login}, but the recipe specifies no variable for the password"
        )
        yield Issue(message, "set environment.container.password to the name of that variable")
    elif container.login is None and container.password is not None:
        message = f"environment.container.password names the variable {container.password}, but login is not set"
        yield Issue(message, "set environment.container.login, for example $oauthtoken for NGC")
    elif container.login is None and _PRIVATE.match(container.image) and not container.image.startswith(_PUBLIC):
        message = f"the registry of {container.image} requires a login, but the recipe sets none"
        yield Issue(message, "set environment.container.login and password", "warning")


def required_variables(recipe: Recipe) -> tuple[str, ...]:
    """Return the caller's environment variables that the run uses."""
    container = recipe.environment.container
    password = container.password if container is not None else None
    return tuple(dict.fromkeys([*recipe.environment.secrets, *([password] if password else [])]))


def _texts(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Yield (field, variable name or empty, text) for the fields that are searched for credentials."""
    for name, text in recipe.environment.env.items():
        yield f"environment.env.{name}", name, text
    for name, value in recipe.params.items():
        yield f"params.{name}", name, str(value)
    yield ("launch.run" if recipe.launch.run else "launch.command"), "", recipe.launch.text
    for flag in recipe.environment.container.flags if recipe.environment.container else ():
        yield "environment.container.flags", "", flag
    for data in recipe.data:
        yield f"data.{data.name}", "", data.source
