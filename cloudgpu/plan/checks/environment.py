"""Check the software of the nodes: variables, secrets, the container and its registry, PyTorch, drivers and EFA."""

import re
from collections.abc import Iterator
from typing import Final

from cloudgpu.catalog.catalog import carried_driver
from cloudgpu.catalog.compatibility import release_of
from cloudgpu.plan.checks.check import CheckContext, Issue, check
from cloudgpu.plan.checks.container_and_driver import image_support
from cloudgpu.plan.checks.software_torch import nearest_build, packages_requiring_torch, torch_misfit
from cloudgpu.plan.named_resources import ImageSeen
from cloudgpu.plan.plan import Severity
from cloudgpu.recipe.launch_rules import flag_problems, hides_the_system
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.text_rules import LAUNCHER_VARIABLES
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
SETUP_IN_IMAGE: Final = "setup runs once per node, in the container's image; ranks run in the local image that it makes"
_IMAGE_PLATFORM: Final = "linux/amd64"
"""Platform of every instance type in the catalog."""
_UNKNOWN: Final[Severity] = "unknown"
_WARNING: Final[Severity] = "warning"


@check("secrets", "note", "The plan shows which of your environment variables a run would use.")
def required_secrets(context: CheckContext) -> Iterator[Issue]:
    """Report the secrets that are taken from the caller's environment. `secret-missing` reports missing secrets."""
    known = context.inputs.quotes.lookups.set_variables
    secrets = [name for name in required_variables(context.inputs.recipe) if known is None or name in known]
    if secrets:
        yield Issue(f"sent to the nodes from your environment, and never stored: {', '.join(secrets)}")


@check("secret-missing", "warning", "A secret that is not set would make the run fail after the launch.")
def secrets_set(context: CheckContext) -> Iterator[Issue]:
    """Report secrets that are not set in the caller's environment."""
    set_variables = context.inputs.quotes.lookups.set_variables
    if set_variables is None:
        return
    missing = [name for name in required_variables(context.inputs.recipe) if name not in set_variables]
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
def no_credentials_in_recipe(context: CheckContext) -> Iterator[Issue]:
    """Report values that look like credentials, without showing them."""
    for field, name, value in _texts_with_secrets(context.inputs.recipe):
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
def launcher_variables(context: CheckContext) -> Iterator[Issue]:
    """Report variables in `env` or `secrets` that the launcher sets itself."""
    recipe = context.inputs.recipe
    reserved = LAUNCHER_VARIABLES[recipe.launch.launcher]
    for name in sorted(reserved & {*recipe.environment.env, *recipe.environment.secrets}):
        yield Issue(f"{name} is set by the {recipe.launch.launcher} launcher", f"remove {name} from environment")


@check("login", "error", "A registry that requires a login would reject the pull after the nodes are launched.")
def registry_login(context: CheckContext) -> Iterator[Issue]:
    """Report a login without a secret, or a private registry without a login."""
    container, secrets = context.inputs.recipe.environment.container, context.inputs.recipe.environment.secrets
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


def _texts_with_secrets(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
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


def runs_setup_in_image(recipe: Recipe) -> bool:
    """Return True if the recipe has a setup and a container."""
    return bool(recipe.setup) and recipe.environment.container is not None


@check("container", "warning", "Runs in a container are not started on nodes that cannot run containers.")
def container_runs(context: CheckContext) -> Iterator[Issue]:
    """Report a container in a rehearsal, whose nodes cannot run containers."""
    recipe = context.inputs.recipe
    container = recipe.environment.container
    if container is not None and context.inputs.rehearsed:
        fix = "add a rehearsal section with another environment to the recipe"
        what = "setup and the command are" if recipe.setup else "the command is"
        yield Issue(f"{what} not run, because rehearsal nodes cannot run containers: {container.image}", fix)


@check("container-setup", "note", "The result of setup stays on the nodes as a local image.")
def setup_runs_in_image(context: CheckContext) -> Iterator[Issue]:
    """Report that setup runs in the image, and how the result is stored."""
    if runs_setup_in_image(context.inputs.recipe) and not context.inputs.rehearsed:
        yield Issue(SETUP_IN_IMAGE)


@check(
    "container-flags",
    "error",
    "Flags that conflict with cloudgpu's own make the container fail at startup or outlive the run.",
)
def flags_fit(context: CheckContext) -> Iterator[Issue]:
    """Report entries of `environment.container.flags` that are invalid or that cloudgpu sets itself."""
    container = context.inputs.recipe.environment.container
    for flag, problem in flag_problems(container.flags if container else ()):
        # The value after the equals sign may be a secret.
        yield Issue(f"{flag.partition('=')[0]}: {problem}", "remove it from environment.container.flags")


@check("container-mounts", "error", "Data mounted over a system directory hides files that the image needs.")
def mounts_hide_nothing(context: CheckContext) -> Iterator[Issue]:
    """Report data or storage whose mount point would hide files that the image needs."""
    recipe = context.inputs.recipe
    if recipe.environment.container is None:
        return
    data_paths = [(f"data {data.name}", data.to) for data in recipe.data]
    storage_paths = [(f"storage {storage.name}", storage.to) for storage in recipe.storage]
    for name, path in [*data_paths, *storage_paths]:
        if hides_the_system(path):
            yield Issue(
                f"{name} at {path} would hide the image's own files", "choose another directory, for example /data"
            )


@check("image-there", "error", "Nodes that wait for an image that cannot be pulled cost money and do nothing.")
def image_exists(context: CheckContext) -> Iterator[Issue]:
    """Report an image that does not exist, that the registry denies access to, or that could not be checked."""
    image = _found_image(context)
    if image is None or image.presence == "there":
        return
    if image.presence == "unknown":
        yield Issue(f"cannot tell whether {image.image} can be pulled: {image.why}", severity="unknown")
        return
    fix = "correct environment.container.image"
    if image.presence == "refused":
        fix = "check environment.container.image, login and password"
    yield _image_issue(context, image, image.why, fix)


@check("image-machine", "error", "An image for another CPU architecture fails at its first command.")
def image_fits_machine(context: CheckContext) -> Iterator[Issue]:
    """Report an image that is not built for x86_64, the architecture of every instance type."""
    image = _found_image(context)
    if image is None or not image.platforms or _IMAGE_PLATFORM in image.platforms:
        return
    built_for = f"{image.image} is built for {', '.join(image.platforms)}"
    if context.inputs.hosts is not None:
        yield Issue(f"{built_for}; the architecture of these hosts was not checked", severity="unknown")
        return
    fix = f"choose a tag that is built for {_IMAGE_PLATFORM}"
    yield _image_issue(context, image, f"{built_for}, but the nodes are {_IMAGE_PLATFORM}", fix)


def _found_image(context: CheckContext) -> ImageSeen | None:
    container = context.inputs.recipe.environment.container
    return None if container is None else context.inputs.quotes.lookups.of_image(container.image)


def _image_issue(context: CheckContext, image: ImageSeen, message: str, fix: str) -> Issue:
    """Return an issue, with a lower severity if nodes may still be able to run the image.

    The severity is lower if the image name refers to a different registry on the nodes, or if the nodes may already
    have the image.
    """
    recipe, severity = context.inputs.recipe, None
    may_have_image = context.inputs.hosts is not None or bool(recipe.resources.image)
    if image.on_loopback:
        message, fix, severity = f"{message}; on a node, this address is a different registry", "", _UNKNOWN
    elif may_have_image and recipe.environment.container is not None and recipe.environment.container.pull == "missing":
        message, severity = f"{message}; only nodes that already have the image can run it", _WARNING
    return Issue(message, fix, severity)


@check("container-code", "warning", "A container older than the GPU runs slowly or behaves differently than tested.")
def container_untuned(context: CheckContext) -> Iterator[Issue]:
    """Report images that contain code only for an older GPU, or whose supported GPUs are unknown."""
    container = context.inputs.recipe.environment.container
    if container is None:
        return
    for name in dict.fromkeys(candidate.gpu for candidate in context.candidate_list.candidates):
        support = image_support(container.image, context.inputs.catalog.gpus[name], context.inputs)
        if support.fit == "untuned":
            yield Issue(f"{container.image} is not tuned for {name}: {support.why}")
        elif support.fit is None:
            yield Issue(
                f"cannot tell whether {container.image} contains code for {name}: {support.why}", severity="unknown"
            )


@check(
    "torch-on-aws",
    "note",
    "A rehearsal runs without a GPU, so it cannot reveal that PyTorch does not support the GPU used on AWS.",
    on_hosts=False,
)
def torch_rehearsed(context: CheckContext) -> Iterator[Issue]:
    """Report PyTorch wheels that would fail on AWS. A rehearsal runs them without a GPU and cannot reveal this."""
    python = context.inputs.recipe.environment.python
    if python is None or not context.inputs.rehearsed:
        return
    releases = context.inputs.software.torch
    for name in dict.fromkeys(candidate.gpu for candidate in context.candidate_list.candidates):
        gpu = context.inputs.catalog.gpus[name]
        problem = torch_misfit(python, gpu, releases)
        if problem:
            yield Issue(f"on AWS: {problem}", nearest_build(python, gpu, releases))


@check(
    "torch-brought",
    "unknown",
    "A package that depends on PyTorch installs the newest release, which may not support the GPU.",
)
def torch_as_dependency(context: CheckContext) -> Iterator[Issue]:
    """Report that PyTorch is installed as a dependency if its newest release does not support the GPU."""
    python = context.inputs.recipe.environment.python
    packages = packages_requiring_torch(python.requirements) if python is not None else ()
    if python is None or not packages or context.inputs.rehearsed:
        return
    newest = python.model_copy(update={"requirements": ("torch",)})
    for name in dict.fromkeys(candidate.gpu for candidate in context.candidate_list.candidates):
        if torch_misfit(newest, context.inputs.catalog.gpus[name], context.inputs.software.torch):
            packages_text = ", ".join(packages)
            message = (
                f"{packages_text} may install a PyTorch release that does not support {name}, "
                "because the recipe does not pin the version"
            )
            yield Issue(message, "add torch to the requirements")


@check(
    "driver-known", "unknown", "The driver of a custom machine image is unknown until the node boots.", on_hosts=False
)
def driver_known(context: CheckContext) -> Iterator[Issue]:
    """Report a custom machine image whose driver is unknown."""
    image = context.inputs.recipe.resources.image
    preinstalled = carried_driver(image) if image else None
    if preinstalled is not None and preinstalled.branch is None:
        yield Issue(f"cannot tell whether {image} has a driver: the bootstrap installs one if none is present")


@check(
    "driver-given",
    "error",
    "A requested driver is not installed on a machine image that already has one.",
    on_hosts=False,
)
def driver_ignored(context: CheckContext) -> Iterator[Issue]:
    """Report `resources.driver` together with a machine image that already has a driver."""
    resources = context.inputs.recipe.resources
    preinstalled = carried_driver(resources.image) if resources.image else None
    if resources.driver is not None and preinstalled is not None and preinstalled.branch is not None:
        message = f"resources.driver is {resources.driver}, but {resources.image} already has R{preinstalled.branch}"
        yield Issue(message, "--set resources.image=")


@check("efa-software", "warning", "EFA is slow or hangs if its software is older than its hardware.", on_hosts=False)
def efa_software(context: CheckContext) -> Iterator[Issue]:
    """Report a container whose CUDA version is too old for EFA, and the libraries that the container must include."""
    container = context.inputs.recipe.environment.container
    if container is None:
        return
    release = release_of(container.image, context.inputs.software)
    for name in dict.fromkeys(
        candidate.instance_type for candidate in context.candidate_list.candidates if candidate.efa_interfaces
    ):
        minimum = context.inputs.software.fabric.get(name)
        if minimum is None:
            continue
        if minimum.cuda is not None and release is not None and _older(release.cuda, minimum.cuda):
            message = f"EFA on {name} needs CUDA {minimum.cuda} or newer, but {container.image} has {release.cuda}"
            yield Issue(message, "--set resources.network=tcp")
        parts = [
            f"{library} {version} or newer"
            for library, version in (("NCCL", minimum.nccl), ("aws-ofi-nccl", minimum.ofi_nccl))
            if version is not None
        ]
        if parts:
            message = f"EFA on {name} needs {' and '.join(parts)} in the container"
            yield Issue(message, "add the libraries to a framework image with images/efa-nccl", "note")


def _older(version: str, minimum: str) -> bool:
    """Return True if a version is older than the minimum. Compares numbers, so that `12.8` is older than `12.10`."""
    return _numbers(version) < _numbers(minimum)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if re.fullmatch("[0-9]{1,9}", part))
