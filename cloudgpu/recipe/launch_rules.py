"""Validation rules for what the nodes execute: launchers, services, scripts, `docker run` options, `execve` limits.

Linux rejects any argument or NAME=VALUE string of 128 KiB or more (MAX_ARG_STRLEN), and a total above a quarter of
the stack limit. A recipe that exceeds either limit would fail on every node after the launch.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from cloudgpu import bounds
from cloudgpu.errors import RecipeError
from cloudgpu.recipe import template
from cloudgpu.recipe.launch_sections import DIST_KINDS, LOCAL_KINDS, RANK_PER_NODE_LAUNCHERS, Endpoint, kvstore_kind
from cloudgpu.recipe.problem import FieldPath, Problem, suggestion
from cloudgpu.recipe.schema import Environment, Recipe, Scalar, rule
from cloudgpu.recipe.template import variable_name
from cloudgpu.recipe.text_rules import RUN_PORTS

_PLACEHOLDER: Final = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_LAUNCHERS_WITH_SERVERS = ("kvstore", "tf-config")
_KINDS = (*sorted(LOCAL_KINDS), *sorted(DIST_KINDS))
_RESERVED: Final = {
    "--name": "cloudgpu names the container",
    "--detach": "cloudgpu waits for the ranks",
    "--rm": "cloudgpu removes the container",
    "--restart": "a container that restarts would outlive its run",
    "--entrypoint": "ranks run through the image's own entry point",
    "--interactive": "ranks have no terminal",
    "--tty": "ranks have no terminal",
    "--cidfile": "cloudgpu finds the container by name",
    "--sig-proxy": "cloudgpu sends signals to the ranks",
    "--init": "the container already has an init process",
    "--pull": "use environment.container.pull",
    "--env": "use environment.env, or environment.secrets for secret values",
    "--env-file": "use environment.env, or environment.secrets for secret values",
    "--network": "ranks need the host network to reach each other",
    "--net": "ranks need the host network to reach each other",
    "--user": "use environment.container.user",
    "--shm-size": "use environment.container.shm",
    "--ipc": "use environment.container.shm",
    "--workdir": "ranks start in the run's work directory",
    "--help": "docker would print its help instead of starting a container",
}
_SHORT: Final = {
    "-d": "--detach",
    "-i": "--interactive",
    "-t": "--tty",
    "-e": "--env",
    "-u": "--user",
    "-w": "--workdir",
    "-h": "--hostname",
}
_FORM: Final = re.compile(r"--[a-z][a-z0-9-]*(=.*)?|-[a-zA-Z]+(=.*)?", re.DOTALL)
_MOUNT: Final = re.compile(
    r"^(?:-v=?|--volume=)[^:]*:(?P<short>[^:]+)|^--mount=.*\b(?:target|dst|destination)=(?P<long>[^,]+)"
)
_RESERVED_DIRECTORIES: Final = frozenset(
    {"/", "/bin", "/boot", "/etc", "/home", "/lib", "/lib32", "/lib64", "/opt", "/root", "/run", "/sbin", "/tmp"}  # noqa: S108
    | {"/usr", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local", "/usr/local/bin", "/usr/local/lib", "/usr/sbin"}
    | {"/usr/local/cuda", "/usr/share", "/var", "/var/lib", "/var/run"}
)
_RESERVED_TREES: Final = ("/dev", "/proc", "/sys", "/.cloudgpu")
_KIB: Final = 1024
_SAFE_TOTAL: Final = 1024 * _KIB
"""Half the total that Linux allows with the default 8 MiB stack. Launchers and the node add further variables."""
_MINIMUM_TOTAL: Final = 128 * _KIB
"""Total that Linux allows even with a very small stack limit."""
_SAFE_SSH_ARGUMENT: Final = 96 * _KIB
"""Safe limit, below the 128 KiB per argument, for launchers that export all variables in a single `ssh` argument."""
_EXPORTS_BY_SSH: Final = frozenset({"mpirun", "deepspeed"})
_POINTER: Final = 8
_LONGEST_PATH: Final = "x" * 4095
"""Placeholder for a node path that is not known yet, at the maximum length: PATH_MAX without the terminating NUL."""
_SSH_PORT: Final = 22


def script_problems(script: str, recipe: Recipe, path: FieldPath) -> Iterator[Problem]:
    """Yield a problem for an empty script, for placeholders, and for parameters that share a variable."""
    if not script.strip():
        yield Problem(path, "expected a shell script, got nothing")
    known = template.placeholders(recipe)
    for name in dict.fromkeys(match[1] for match in _PLACEHOLDER.finditer(script) if match[1] in known):
        yield Problem(
            path, f'placeholders are not substituted in a script: write "${variable_name(name)}" for {{{name}}}'
        )
    taken: dict[str, str] = {}
    for name in known:
        first = taken.setdefault(variable_name(name), name)
        if first != name:
            message = f"{first} and {name} would both be {variable_name(name)} in the script; rename one of them"
            yield Problem(path, message)


def setup_problems(script: str, recipe: Recipe, path: FieldPath) -> Iterator[Problem]:
    """Yield a problem for every placeholder in a setup script, which is the same for all runs."""
    known = template.placeholders(recipe)
    for name in dict.fromkeys(match[1] for match in _PLACEHOLDER.finditer(script) if match[1] in known):
        message = f"{{{name}}} is not substituted: setup is the same for all runs; set a variable in environment.env"
        yield Problem(path, message)


@rule("launch")
def ranks_per_node_problems(recipe: Recipe) -> Iterator[Problem]:
    """Require one rank per node for launchers that start one process per node."""
    launch = recipe.launch
    if launch.launcher in RANK_PER_NODE_LAUNCHERS and launch.ranks not in (1, "gpus"):
        message = f"{launch.launcher} starts one process per node; expected 1, got {launch.ranks}"
        yield Problem(("launch", "ranks_per_node"), message)


@rule("launch", "params")
def kvstore_problems(recipe: Recipe) -> Iterator[Problem]:
    """Require a known KVStore kind with MXNet's launcher, and no KVStore kind with other launchers."""
    launch = recipe.launch
    if launch.launcher != "kvstore":
        if launch.kvstore is not None:
            yield Problem(("launch", "kvstore"), f"applies only to the kvstore launcher, not to {launch.launcher}")
        return
    if launch.kvstore is None:
        yield Problem(("launch", "kvstore"), f"required by the kvstore launcher; expected one of {', '.join(_KINDS)}")
        return
    unknown = list(template.placeholder_problems(launch.kvstore, tuple(recipe.params)))
    for message in unknown:
        yield Problem(("launch", "kvstore"), message)
    kind = kvstore_kind(launch, recipe.params)
    if not unknown and kind not in _KINDS:
        listed = ", ".join(_KINDS)
        yield Problem(("launch", "kvstore"), f"unknown kind {kind}{suggestion(kind, _KINDS)}; expected {listed}")


@rule("launch")
def parameter_server_problems(recipe: Recipe) -> Iterator[Problem]:
    """Allow parameter servers only with launchers that support them."""
    launch = recipe.launch
    if launch.servers_per_node is not None and launch.launcher not in _LAUNCHERS_WITH_SERVERS:
        launchers = " and ".join(_LAUNCHERS_WITH_SERVERS)
        message = f"applies only to the {launchers} launchers, not to {launch.launcher}"
        yield Problem(("launch", "servers_per_node"), message)
    if launch.servers_per_node == 0 and launch.launcher == "kvstore":
        yield Problem(("launch", "servers_per_node"), "expected 1 or more: a distributed KVStore needs servers")


@rule("launch")
def service_launcher_problems(recipe: Recipe) -> Iterator[Problem]:
    """Require `launch.service` if the launcher is `service`, and reject it with other launchers."""
    launch = recipe.launch
    if launch.launcher == "service" and launch.service is None:
        yield Problem(
            ("launch", "service"), "required by the service launcher; set the service's port, for example {port: 8888}"
        )
    if launch.launcher != "service" and launch.service is not None:
        message = f"applies only to the service launcher, not to {launch.launcher}; move the service to launch.beside"
        yield Problem(("launch", "service"), message)


@rule("launch")
def service_name_problems(recipe: Recipe) -> Iterator[Problem]:
    """Require every service to have a unique name and a free port."""
    names: set[str] = set()
    ports: dict[int, str] = {_SSH_PORT: "the SSH server"}
    for index, service in enumerate(recipe.launch.beside):
        if service.name in names:
            yield Problem(("launch", "beside", index, "name"), f"another service is already named {service.name}")
        names.add(service.name)
    for path, name, endpoint in endpoints(recipe):
        if endpoint.port in RUN_PORTS:
            message = f"ports {RUN_PORTS.start}-{RUN_PORTS.stop - 1} are reserved for cloudgpu; choose another port"
            yield Problem((*path, "port"), message)
        elif endpoint.port in ports:
            yield Problem(
                (*path, "port"), f"port {endpoint.port} is already used by {ports[endpoint.port]}; choose another port"
            )
        ports.setdefault(endpoint.port, name)


@rule("launch", "environment", "params", "data", "storage", "checkpoint")
def service_reference_problems(recipe: Recipe) -> Iterator[Problem]:
    """Reject token variables that the environment already sets, and unknown placeholders in commands and pages."""
    taken = {**dict.fromkeys(recipe.environment.env, "env"), **dict.fromkeys(recipe.environment.secrets, "secrets")}
    for path, _, endpoint in endpoints(recipe):
        if endpoint.token in taken:
            message = f"{endpoint.token} is also in environment.{taken[endpoint.token]}; remove it there"
            yield Problem((*path, "token"), message)
        if "{token}" in endpoint.page and endpoint.token is None:
            yield Problem((*path, "page"), "uses {token}, but the service has no token; add token: VARIABLE_NAME")
        if set("{}") & set(endpoint.page.replace("{token}", "")):
            yield Problem((*path, "page"), "the only placeholder allowed here is {token}")
    names = (*template.placeholders(recipe), *template.SERVICE_NAMES)
    for index, service in enumerate(recipe.launch.beside):
        for message in template.placeholder_problems(service.command, names):
            yield Problem(("launch", "beside", index, "command"), message)


def endpoints(recipe: Recipe) -> Iterator[tuple[FieldPath, str, Endpoint]]:
    """Yield the field path, name and endpoint of every service in a recipe."""
    if recipe.launch.service is not None:
        yield ("launch", "service"), recipe.name, recipe.launch.service
    for index, service in enumerate(recipe.launch.beside):
        yield ("launch", "beside", index), service.name, service


def flag_problems(flags: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a (flag, problem) pair for every flag that a recipe may not add."""
    for flag in flags:
        if not _FORM.fullmatch(flag):
            yield flag, "expected one `docker run` option as a single word, for example --cap-add=SYS_PTRACE"
            continue
        name = flag.partition("=")[0]
        if not name.startswith("--"):
            name = _SHORT.get(name[:2], name)
        if name in _RESERVED:
            yield flag, _RESERVED[name]
        mount = _MOUNT.match(flag)
        target = (mount["short"] or mount["long"]) if mount else ""
        if target and hides_the_system(target):
            yield flag, f"a mount at {target} would hide files that the container needs"


def hides_the_system(path: PurePosixPath | str) -> bool:
    """Return True if a mount at this path would hide files that the container needs to run."""
    place = PurePosixPath(path)
    return str(place) in _RESERVED_DIRECTORIES or any(place.is_relative_to(directory) for directory in _RESERVED_TREES)


def samples_per_step(recipe: Recipe) -> int | None:
    """Return the samples per step across all ranks; None if the recipe does not set a whole number above 0."""
    batch = recipe.launch.global_batch
    if batch is None or isinstance(batch, int):
        return batch
    try:
        words = template.argv(batch, recipe.params)
    except RecipeError:
        return None
    text = words[0] if len(words) == 1 else ""
    try:
        return bounds.parse_whole_number(text, least=1)
    except ValueError:
        return None


@rule("launch", "params", "data", "storage", "checkpoint", "environment", "rehearsal", "resources")
def argument_size_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield a problem for every command and variable that exceeds the limits of `execve` or of the launcher."""
    environment = recipe.environment
    yield from _variable_problems(environment, ("environment",))
    if recipe.rehearsal and recipe.rehearsal.environment:
        yield from _variable_problems(recipe.rehearsal.environment, ("rehearsal", "environment"))
    variables = sum(_occupied_bytes(f"{name}={value}") for name, value in environment.env.items())
    limit = _safe_total(environment)
    for path, command in _commands(recipe):
        words = _longest_arguments(recipe, command)
        size = max(map(_bytes, words), default=0)
        total = variables + sum(map(_occupied_bytes, words))
        if size > bounds.MAX_ARGUMENT_BYTES:
            message = f"an argument has {size:,} bytes; Linux allows at most {bounds.MAX_ARGUMENT_BYTES:,}; use a file"
            yield Problem(path, message)
        elif total > limit:
            message = (
                f"command and environment.env take {total:,} bytes together; the safe limit is {limit:,}; use a file"
            )
            yield Problem(path, message)
    yield from _ssh_argument_problems(recipe)


def _variable_problems(environment: Environment, path: FieldPath) -> Iterator[Problem]:
    for name, value in environment.env.items():
        size = _bytes(f"{name}={value}")
        if size > bounds.MAX_ARGUMENT_BYTES:
            message = (
                f"{size:,} bytes including its name; Linux allows at most {bounds.MAX_ARGUMENT_BYTES:,}; use a file"
            )
            yield Problem((*path, "env", name), message)


def _ssh_argument_problems(recipe: Recipe) -> Iterator[Problem]:
    launcher = recipe.launch.launcher
    if launcher not in _EXPORTS_BY_SSH or recipe.resources.nodes == 1:
        return
    # Quoted twice: once for the node's shell, once for the shell that `docker exec` starts.
    lines = (f"export {name}={shlex.quote(shlex.quote(value))}; " for name, value in recipe.environment.env.items())
    size = sum(map(_bytes, lines))
    if size > _SAFE_SSH_ARGUMENT:
        message = (
            f"{launcher} passes env in one ssh argument: {size:,} bytes, but the safe limit is {_SAFE_SSH_ARGUMENT:,}"
        )
        yield Problem(("environment", "env"), message)


def _commands(recipe: Recipe) -> Iterator[tuple[FieldPath, str]]:
    if recipe.launch.command:
        yield ("launch", "command"), recipe.launch.command
    for index, service in enumerate(recipe.launch.beside):
        yield ("launch", "beside", index, "command"), service.command
    if recipe.rehearsal and recipe.rehearsal.command is not None:
        yield ("rehearsal", "command"), recipe.rehearsal.command


def _longest_arguments(recipe: Recipe, command: str) -> tuple[str, ...]:
    """Return the longest possible arguments of a command; empty if another rule rejects the command."""
    names: dict[str, Scalar] = {**dict.fromkeys(template.placeholders(recipe), _LONGEST_PATH), **recipe.params}
    names |= _longer_values(recipe.params, recipe.rehearsal.params if recipe.rehearsal else {})
    names |= dict.fromkeys(template.SERVICE_NAMES, _LONGEST_PATH)
    return () if any(template.placeholder_problems(command, names)) else template.argv(command, names)


def _longer_values(params: Mapping[str, Scalar], rehearsed: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {name: max(value, params.get(name), key=lambda value: len(str(value))) for name, value in rehearsed.items()}


def _safe_total(environment: Environment) -> int:
    stack_mib = environment.container.stack_mib if environment.container else None
    return _SAFE_TOTAL if stack_mib is None else min(_SAFE_TOTAL, max(_MINIMUM_TOTAL, stack_mib * 256 * _KIB))


def _occupied_bytes(text: str) -> int:
    """Return the bytes that one argument occupies: its text, a NUL and a pointer."""
    return _bytes(text) + 1 + _POINTER


def _bytes(text: str) -> int:
    return len(text.encode())
