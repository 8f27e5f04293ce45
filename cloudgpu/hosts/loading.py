"""Load, validate and update an inventory file.

Validation has four steps: syntax, limits on text and numbers, schema, and consistency. The error lists every
problem of the first step that fails, with line numbers and suggestions.

Scan results are added without changing existing fields, comments or order.
"""

import errno
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints, ValidationError, field_validator
from ruamel.yaml import YAML

from cloudgpu.bounds import MAX_PORT
from cloudgpu.catalog import Catalog
from cloudgpu.errors import UsageError
from cloudgpu.files import SAVE_AS_UTF8, NotUtf8Error, decode_text, read_bytes
from cloudgpu.hosts.host import PORT, HostsFile, Jump, OwnHost
from cloudgpu.recipe import text_rules
from cloudgpu.recipe.document import Document, field_problems, parse
from cloudgpu.recipe.field_types import MemoryGib, Section, Usd
from cloudgpu.recipe.loader import display_path
from cloudgpu.recipe.problem import FieldPath, Problem, suggestion

HOST_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
_GPUS = re.compile(r"(?P<model>[A-Za-z0-9][A-Za-z0-9 .-]*?)(?:-(?P<size>[0-9]{1,4})Gi?B)?:(?P<count>[0-9]{1,2})")
_JUMP = re.compile(r"[a-z_][a-z0-9_-]{0,31}@([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::(?P<port>[1-9][0-9]{0,4}))?")
FINGERPRINT = r"^SHA256:[A-Za-z0-9+/]{43}=?$"
_ADDRESS = r"^[A-Za-z0-9_.:%-]{1,253}$"

Name = Annotated[str, StringConstraints(pattern=HOST_NAME)]
Address = Annotated[str, StringConstraints(pattern=_ADDRESS)]
Fingerprint = Annotated[str, StringConstraints(pattern=FINGERPRINT)]
User = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}$")]
FILE_NAME = "hosts.yaml"
_MAX_BYTES = 1 << 20
_MOST_GPUS = 64
"""Maximum number of GPUs per host. It equals the maximum number of ranks per node."""


class Shared(Section):
    """Fields that `defaults` may set for all hosts."""

    port: int | None = Field(default=None, ge=1, le=65535, strict=True)
    """Port of the host's SSH server. Default: 22."""
    user: User | None = None
    """Login name. Default: your user name on this machine."""
    jump: str | None = None
    """Jump host: the name of another host in this file, or `user@host[:port]`."""
    key: str | None = None
    """Private key without a passphrase. Default: the setting `ssh_key`."""
    gpus: str | None = None
    """GPU model and count, for example `V100:8`, or `V100-32GB:8` if the model has several memory sizes."""
    memory: MemoryGib | None = None
    """Main memory of the host, for example `256GiB`."""
    network_interface: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.:-]{1,15}$")
    """Network interface that has the private address, for example `ib0`."""
    rate_usd_per_hour: Usd | None = None
    """Hourly price of the whole host in USD; unknown if omitted."""
    pool: Name | None = None
    """Name of the host's pool. A cluster never spans pools."""
    keep_cache: bool | None = None
    """Whether to keep Python environments on the host after your last cluster there is deleted, and downloaded datasets
    after their cluster is deleted. Files in the cluster's own directory are always deleted."""

    @field_validator("gpus")
    @classmethod
    def _are_gpus(cls, value: str | None) -> str | None:
        if value is not None and _GPUS.fullmatch(value) is None:
            message = f'expected a GPU model and count, for example V100:8, got "{value}"'
            raise ValueError(message)
        return value


class HostSection(Shared):
    """A host's entry in the inventory."""

    name: Name
    """Name of the host in plans and messages."""
    address: Address
    """Host name or IP address of the SSH server."""
    host_key: tuple[Fingerprint, ...] | Fingerprint | None = None
    """Host key fingerprints, as written by `cloudgpu hosts scan`. If omitted, the key must be in your known_hosts."""
    private_address: Address | None = None
    """Address at which other hosts reach this host. Default: `address`."""
    cores: int | None = Field(default=None, ge=1, le=8192, strict=True)
    """Number of CPU cores."""
    driver: str | None = Field(default=None, pattern=r"^[0-9]{3}(\.[0-9]+)*$")
    """Version of the host's NVIDIA driver."""


class FileSection(Section):
    """The top-level fields of an inventory file."""

    defaults: Shared = Shared()
    """Default values for all hosts."""
    hosts: tuple[HostSection, ...]
    """Hosts in the inventory; at least one is required."""


def jump_is_address(text: str) -> bool:
    """Return True if a jump host is written as `user@host[:port]`."""
    match = _JUMP.fullmatch(text)
    return match is not None and (not match["port"] or int(match["port"]) <= MAX_PORT)


def split_gpus(text: str) -> tuple[str, int | None, int]:
    """Return the GPU model, the memory of each GPU in GB (None if omitted) and the number of GPUs."""
    match = _GPUS.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return match["model"], int(match["size"]) if match["size"] else None, int(match["count"])


def fill_scanned_fields(text: str, scanned: Mapping[str, Mapping[str, Any]]) -> tuple[str, dict[str, list[str]]]:
    """Return the file's text with the scanned fields added, and the names of the added fields by host.

    Fields that are already set for the host or under `defaults` are not changed. Empty scanned values are ignored.
    """
    yaml = YAML(typ="rt")
    yaml.width = 10_000
    yaml.indent(mapping=2, sequence=4, offset=2)
    document = yaml.load(text)
    shared = document.get("defaults") or {}
    added: dict[str, list[str]] = {}
    for entry in document["hosts"]:
        for field, value in scanned.get(entry["name"], {}).items():
            if value not in (None, "", ()) and field not in entry and field not in shared:
                entry[field] = value
                added.setdefault(entry["name"], []).append(field)
    if not added:
        return text, added
    written = io.StringIO()
    yaml.dump(document, written)
    return written.getvalue(), added


class HostsFileError(UsageError):
    """The inventory file is invalid. `problems` lists each problem as `file:line: field: message`."""

    def __init__(self, message: str, *, problems: tuple[str, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.problems = problems


def load(path: Path, *, user: str, catalog: Catalog) -> HostsFile:
    """Read and validate an inventory file.

    Args:
        path: Path of the inventory file.
        user: Login name for hosts that have no `user`, neither in their own entry nor under `defaults`.
        catalog: Catalog that contains the GPU models.
    """
    shown = display_path(path)
    document = parse(_text(path, shown))
    if document.problems:
        raise _file_error(shown, [(line, problem.text) for line, problem in document.problems])
    unsupported = tuple(text_rules.text_problems(document.value))
    if unsupported:
        raise _file_error(shown, [(document.line(problem.path), problem.text) for problem in unsupported])
    try:
        file = FileSection.model_validate(document.value)
    except ValidationError as error:
        invalid = [_with_suggestion(problem) for problem in field_problems(error, document.value, document.texts)]
        raise _file_error(shown, [(document.line(problem.path), problem.text) for problem in invalid]) from error
    problems = [(document.line(problem.path), problem.text) for problem in _problems(file, document, catalog)]
    if problems:
        raise _file_error(shown, problems)
    hosts = [_host(section, file.defaults, user, catalog, document, at) for at, section in enumerate(file.hosts)]
    return HostsFile(path, tuple(_with_jumps(hosts, file)))


def _text(path: Path, shown: str) -> str:
    try:
        content = read_bytes(path, _MAX_BYTES)
    except OSError as err:
        if err.errno == errno.EFBIG:
            message = f"{shown} is larger than 1 MiB, the limit for inventories"
            raise HostsFileError(message, hint="check that this is the right file") from err
        hint = "see docs/tutorials/own-hosts.md, or specify another file with `--hosts FILE` or CLOUDGPU_HOSTS=FILE"
        absent = isinstance(err, FileNotFoundError)
        message = f"the host inventory {shown} does not exist" if absent else f"cannot read {shown}: {err.strerror}"
        raise HostsFileError(message, hint=hint) from err
    try:
        text = decode_text(content, path)
    except NotUtf8Error as err:
        raise HostsFileError(f"{shown} is not UTF-8 text", hint=SAVE_AS_UTF8) from err
    if not text.strip():
        raise HostsFileError(f"{shown} is empty", hint="check that this is the right file")
    return text


def _with_suggestion(problem: Problem) -> Problem:
    """Replace the suggestion for an unknown field with a field of the inventory file.

    `validation_errors` is shared with recipes and suggests recipe fields.
    """
    if not problem.message.startswith("unknown field"):
        return problem
    section: type[BaseModel] = {0: FileSection, 1: FileSection}.get(len(problem.path), HostSection)
    if problem.path[:1] == ("defaults",):
        section = Shared
    return Problem(problem.path, f"unknown field{suggestion(str(problem.path[-1]), section.model_fields)}")


def _problems(file: FileSection, document: Document, catalog: Catalog) -> Iterator[Problem]:
    """Yield the problems that the schema cannot detect: no hosts, duplicates, unknown GPUs and invalid jump hosts."""
    names: dict[str, int] = {}
    endpoints: dict[tuple[str, int], str] = {}
    known = [host.name for host in file.hosts]
    if not file.hosts:
        yield Problem(("hosts",), "expected at least one host")
    yield from _wrong_defaults(file.defaults, known, catalog)
    for at, host in enumerate(file.hosts):
        line = document.line(("hosts", at))
        if host.name in names:
            yield Problem(("hosts", at, "name"), f"duplicate name {host.name}, first used on line {names[host.name]}")
        names.setdefault(host.name, line)
        endpoint = (host.address.lower(), host.port or file.defaults.port or PORT)
        if host.jump is None and endpoints.get(endpoint, host.name) != host.name:
            address, port = endpoint
            yield Problem(
                ("hosts", at, "address"), f"this is the same host as {endpoints[endpoint]}: {address} port {port}"
            )
        endpoints.setdefault(endpoint, host.name)
        if host.gpus:
            yield from _unknown_gpu(("hosts", at, "gpus"), host.gpus, catalog)
        if host.jump is not None:
            yield from _wrong_jump(host.jump, host.name, ("hosts", at, "jump"), known)
    circular = list(_circular_jumps(file))
    yield from circular or _nested_jumps(file)


def _wrong_defaults(defaults: Shared, known: list[str], catalog: Catalog) -> Iterator[Problem]:
    if defaults.jump:
        yield from _wrong_jump(defaults.jump, "", ("defaults", "jump"), known)
    if defaults.gpus:
        yield from _unknown_gpu(("defaults", "gpus"), defaults.gpus, catalog)


def _unknown_gpu(path: tuple[str | int, ...], text: str, catalog: Catalog) -> Iterator[Problem]:
    model, size, count = split_gpus(text)
    names = {name.replace(" ", "-"): gpu for name, gpu in catalog.gpus.items()}
    gpu = catalog.gpus.get(model) or names.get(model)
    if gpu is None:
        yield Problem(path, f"unknown GPU {model}{suggestion(model, names)}")
    elif size is not None and size not in {memory.sold_as_gb for memory in gpu.memories}:
        available = " or ".join(f"{memory.sold_as_gb} GB" for memory in gpu.memories)
        yield Problem(path, f"{gpu.name} does not come with {size} GB of memory; use {available}")
    if not 1 <= count <= _MOST_GPUS:
        yield Problem(path, f"expected 1 to {_MOST_GPUS} GPUs, got {count}")


def _wrong_jump(jump: str, name: str, path: FieldPath, known: list[str]) -> Iterator[Problem]:
    if jump_is_address(jump):
        return
    if jump == name:
        yield Problem(path, "a host cannot be its own jump host")
    elif jump not in known:
        message = f"expected the name of a host in this file or user@host[:port], got {jump}{suggestion(jump, known)}"
        yield Problem(path, message)


def _circular_jumps(file: FileSection) -> Iterator[Problem]:
    """Yield a problem for each cycle of jump hosts, because a host in a cycle cannot be reached."""
    jump_of = {host.name: _jump_of(host, file) for host in file.hosts}
    reported: set[str] = set()
    for at, host in enumerate(file.hosts):
        chain = [host.name]
        while (next_host := jump_of.get(chain[-1])) is not None and next_host not in chain:
            chain.append(next_host)
        if next_host == host.name and len(chain) > 1 and host.name not in reported:
            reported |= set(chain)
            yield Problem(("hosts", at, "jump"), f"circular jump hosts: {' -> '.join([*chain, host.name])}")


def _nested_jumps(file: FileSection) -> Iterator[Problem]:
    """Yield a problem for each jump host that is itself behind a jump host, because connections use only one."""
    sections = {host.name: host for host in file.hosts}
    for at, host in enumerate(file.hosts):
        jump = _jump_of(host, file)
        section = sections.get(jump or "")
        behind = None if section is None else section.jump or file.defaults.jump
        if behind not in (None, jump):
            message = (
                f"jump host {jump} is itself behind jump host {behind}; "
                f"if {jump} is reachable directly, use user@address"
            )
            yield Problem(("hosts", at, "jump"), message)


def _jump_of(host: HostSection, file: FileSection) -> str | None:
    """Return the inventory name of a host's jump host, or None if it has none or the jump host is an address."""
    jump = host.jump or file.defaults.jump
    return None if jump is None or jump == host.name or jump_is_address(jump) else jump


def _host(section: HostSection, defaults: Shared, user: str, catalog: Catalog, document: Document, at: int) -> OwnHost:
    fields = {name: value for name, value in defaults if value is not None}
    fields |= {name: value for name, value in section if value is not None}
    gpu, count, memory = _hardware(fields.get("gpus"), catalog)
    host_keys = fields.get("host_key") or ()
    size: Any = fields.get("memory")
    return OwnHost(
        name=section.name,
        address=section.address,
        port=fields.get("port", PORT),
        user=fields.get("user", user),
        line=document.line(("hosts", at)),
        key=Path(fields["key"]).expanduser() if "key" in fields else None,
        host_keys=(host_keys,) if isinstance(host_keys, str) else tuple(host_keys),
        gpu=gpu,
        gpus=count,
        gpu_memory_gib=memory,
        memory_gib=None if size is None else int(size),
        cores=section.cores,
        driver=section.driver or "",
        private_address=section.private_address or "",
        network_interface=fields.get("network_interface", ""),
        rate_usd=fields.get("rate_usd_per_hour"),
        pool=fields.get("pool", ""),
        keep_cache=bool(fields.get("keep_cache", False)),
    )


def _hardware(text: str | None, catalog: Catalog) -> tuple[str, int, Decimal | None]:
    if text is None:
        return "", 0, None
    model, size, count = split_gpus(text)
    gpu = next(gpu for name, gpu in catalog.gpus.items() if model in (name, name.replace(" ", "-")))
    sizes = [memory.gib for memory in gpu.memories if size in (None, memory.sold_as_gb)]
    return gpu.name, count, sizes[0] if len(sizes) == 1 else None


def _with_jumps(hosts: list[OwnHost], file: FileSection) -> Iterator[OwnHost]:
    by_name = {host.name: host for host in hosts}
    for host, section in zip(hosts, file.hosts, strict=True):
        text = section.jump or file.defaults.jump
        # The jump host under `defaults` may itself be in the inventory. It must not use itself as its jump host.
        yield host if text is None or text == host.name else replace(host, jump=_jump(text, by_name))


def _jump(text: str, by_name: dict[str, OwnHost]) -> Jump:
    if text in by_name:
        jump_host = by_name[text]
        return Jump(jump_host.user, jump_host.address, jump_host.port, jump_host.host_keys)
    user, _, endpoint = text.partition("@")
    if endpoint.startswith("["):
        address, _, rest = endpoint[1:].partition("]")
        return Jump(user, address, int(rest.removeprefix(":") or PORT))
    address, _, port = endpoint.partition(":")
    return Jump(user, address, int(port or PORT))


def _file_error(shown: str, problems: list[tuple[int, str]]) -> HostsFileError:
    lines = tuple(f"{shown}:{line}: {text}" for line, text in sorted(problems, key=lambda item: item[0]))
    count = "one problem" if len(lines) == 1 else f"{len(lines)} problems"
    return HostsFileError(f"{shown} has {count}", problems=lines, hint="see docs/reference/hosts.md for all fields")
