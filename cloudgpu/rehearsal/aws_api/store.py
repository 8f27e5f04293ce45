"""Durable state: moto's backends and our records, one snapshot file per service and region.

The contents of S3 objects are stored outside the snapshots, in files that are named by digest and written only
once. Otherwise, after the upload of a 50 MiB object, every further change in S3 would write 50 MiB.

If a call changes several backends (creating an EFS mount target also creates a network interface in EC2), the new
snapshots are first written to one batch file. Otherwise, a server that is killed between writing two snapshots
would restart with only some of the call's effects.

Objects that `pickle` does not support (local functions, KMS keys) are reduced here.
"""

import contextlib
import hashlib
import importlib
import io
import logging
import marshal
import pickle
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import CellType, FunctionType
from typing import Any, get_args

from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_der_private_key
from moto.core.base_backend import BackendDict, BaseBackend
from moto.ec2.models import ec2_backends
from moto.ec2.models.subnets import Subnet
from moto.s3.models import FakeKey, s3_backends

from cloudgpu import files
from cloudgpu.errors import StateError
from cloudgpu.paths import unwritable_error
from cloudgpu.rehearsal.layout import Reserve, write_durably
from cloudgpu.text import command

MOVED_MODULES = {
    "cloudgpu.rehearsal.records": "cloudgpu.rehearsal.aws_api.records",
    "cloudgpu.rehearsal.reductions": "cloudgpu.rehearsal.aws_api.store",
    "cloudgpu.rehearsal.store": "cloudgpu.rehearsal.aws_api.store",
    "cloudgpu.rehearsal.strict.lustre_records": "cloudgpu.rehearsal.aws_api.fsx",
    "cloudgpu.rehearsal.strict.own_images": "cloudgpu.rehearsal.aws_api.ec2.images",
    "cloudgpu.rehearsal.aws_api.ec2.baked_images": "cloudgpu.rehearsal.aws_api.ec2.images",
    "cloudgpu.rehearsal.aws_api.ec2.default_members": "cloudgpu.rehearsal.aws_api.ec2.backend",
    "cloudgpu.rehearsal.aws_api.ec2.describe": "cloudgpu.rehearsal.aws_api.ec2.backend",
    "cloudgpu.rehearsal.aws_api.ec2.public_images": "cloudgpu.rehearsal.aws_api.ec2.images",
    "cloudgpu.rehearsal.aws_api.fsx_records": "cloudgpu.rehearsal.aws_api.fsx",
    "cloudgpu.rehearsal.aws_api.fsx.records": "cloudgpu.rehearsal.aws_api.fsx",
    "cloudgpu.rehearsal.aws_api.launch.capacity": "cloudgpu.rehearsal.aws_api.ec2.capacity",
    "cloudgpu.rehearsal.aws_api.launch.fleets": "cloudgpu.rehearsal.aws_api.ec2.fleets",
    "cloudgpu.rehearsal.aws_api.launch.instances": "cloudgpu.rehearsal.aws_api.ec2.instances",
    "cloudgpu.rehearsal.aws_api.launch.launch": "cloudgpu.rehearsal.aws_api.ec2.instances",
    "cloudgpu.rehearsal.aws_api.launch.placement_groups": "cloudgpu.rehearsal.aws_api.ec2.placement_groups",
    "cloudgpu.rehearsal.aws_api.launch.request": "cloudgpu.rehearsal.aws_api.ec2.launch_request",
    "cloudgpu.rehearsal.aws_api.launch.validation": "cloudgpu.rehearsal.aws_api.ec2.launch_validation",
    "cloudgpu.rehearsal.state.pickling": "cloudgpu.rehearsal.aws_api.store",
    "cloudgpu.rehearsal.state.records": "cloudgpu.rehearsal.aws_api.records",
    "cloudgpu.rehearsal.state.store": "cloudgpu.rehearsal.aws_api.store",
}
"""Module name in older snapshots -> current module name. Only modules whose objects a snapshot contains need a row."""
_FORMAT = f"cloudgpu-rehearsal 1 moto {version('moto')} python {sys.version_info[:2]}\n".encode()
_DURABLE = ("ec2@", "efs@", "iam@", "s3@", "ssm@", "sts@", "kms@", "scheduler@")
_log = logging.getLogger(__name__)
_DIGEST_ATTRIBUTE = "_rehearsal_digest"
_RESET = command("cloudgpu", "rehearsal", "reset")
_BATCH = "batch"
_STATE_BYTES = 1 << 30
_OBJECT_BYTES = 5 << 30


def current_module(name: str) -> str:
    """Return the current name of a module that a snapshot refers to."""
    return MOVED_MODULES.get(name, name)


def take_apart(value: object) -> tuple[Any, ...] | None:
    """Return a pickle reduction of the value, or None to let `pickle` reduce the value."""
    if isinstance(value, FunctionType) and "<" in value.__qualname__:
        return _function(value)
    if isinstance(value, defaultdict) and type(value) is not defaultdict:
        arguments = (type(value), value.default_factory)
        return _bare_dictionary, arguments, value.__dict__, None, iter(list(dict.items(value)))
    if isinstance(value, get_args(PrivateKeyTypes)):
        # A simulated KMS key protects nothing outside this cloud, so it is stored without encryption.
        return _private_key, (value.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),)
    return None


def _private_key(content: bytes) -> PrivateKeyTypes:
    return load_der_private_key(content, None)


def _bare_dictionary(dictionary_type: type[Any], factory: Any) -> Any:  # noqa: ANN401 - any subclass of defaultdict
    dictionary = defaultdict.__new__(dictionary_type)
    defaultdict.__init__(dictionary, factory)
    return dictionary


def _function(function: FunctionType) -> tuple[Any, ...]:
    """Reduce a function to its code and, separately, its closure, because a closure may refer back to the function."""
    cells = function.__closure__ or ()
    code = marshal.dumps(function.__code__)
    arguments = (function.__module__, code, function.__defaults__, len(cells))
    return _blank, arguments, [cell.cell_contents for cell in cells], None, None, _fill


def _blank(module: str, code: bytes, defaults: tuple[Any, ...] | None, cells: int) -> FunctionType:
    namespace = vars(importlib.import_module(current_module(module)))
    closure = tuple(CellType() for _ in range(cells))
    return FunctionType(marshal.loads(code), namespace, None, defaults, closure)  # noqa: S302 - our own snapshot


def _fill(function: FunctionType, contents: list[Any]) -> None:
    for cell, value in zip(function.__closure__ or (), contents, strict=True):
        cell.cell_contents = value


class Store:
    """The snapshots on disk. Saving writes only the backends that changed; loading restores all backends."""

    def __init__(self, state: Path, objects: Path, reserve: Reserve) -> None:
        self._state = state
        self._batch = state / _BATCH
        self._objects = objects
        self._reserve = reserve
        self._written: dict[str, bytes] = {}
        self._volatile: set[str] = set()
        for directory in (state, objects):
            try:
                files.make_private_directory(directory)
            except OSError as err:
                raise unwritable_error(directory, err) from err

    def save(self, *, mutated: bool) -> None:
        """Save the current state.

        If `mutated` is false, save only backends without a snapshot, such as a new region's.
        """
        changed: dict[str, bytes] = {}
        for name, backend in _live():
            if (not mutated and name in self._written) or name in self._volatile:
                continue
            content = self._dump(name, backend)
            if content and self._written.get(name) != _digest(content):
                changed[name] = content
        try:
            self._write(changed)
        except StateError:
            if not mutated or not self._reserve.release():
                raise
            self._write(changed)

    def load(self) -> None:
        """Replace the current state with the saved snapshots."""
        self._forget()
        batch = self._read_batch()
        for name in sorted({path.stem for path in self._state.glob("*.pickle")} | set(batch)):
            path = self._batch if name in batch else self._path(name)
            try:
                content = batch[name] if name in batch else self._read(path)
                _shelve(name, self._backend(content, path))
            except StateError:
                raise
            # Unpickling damaged data can raise almost any exception, so report every exception as damage to this file.
            except Exception as err:
                raise _damaged(path, f"{type(err).__name__}: {err}") from err
            if name not in batch:
                self._written[name] = _digest(content)
        self._drop_orphans()

    def _write(self, changed: Mapping[str, bytes]) -> None:
        """Write all of these snapshots, or none if an error occurs."""
        if len(changed) > 1 or (changed and self._batch.exists()):
            write_durably(self._batch, _FORMAT + pickle.dumps(dict(changed)))
            with contextlib.suppress(StateError):  # the batch is saved, and the next save writes the snapshots
                self._write_each(changed)
                self._drop_batch()
        else:
            self._write_each(changed)

    def _write_each(self, changed: Mapping[str, bytes]) -> None:
        for name, content in changed.items():
            write_durably(self._path(name), _FORMAT + content)
            self._written[name] = _digest(content)

    def _drop_batch(self) -> None:
        """Delete the batch and sync the directory: a batch that survived a power failure would undo later changes."""
        try:
            self._batch.unlink(missing_ok=True)
            files.sync_directory(self._state)
        except OSError as err:
            raise unwritable_error(self._batch, err) from err

    def _read_batch(self) -> dict[str, bytes]:
        if not self._batch.exists():
            return {}
        try:
            return dict(pickle.loads(self._read(self._batch)))  # noqa: S301 - our own
        except StateError:
            raise
        except Exception as err:
            raise _damaged(self._batch, f"{type(err).__name__}: {err}") from err

    def _path(self, name: str) -> Path:
        return self._state / f"{name}.pickle"

    def _read(self, path: Path) -> bytes:
        content = files.read_bytes(path, _STATE_BYTES)
        if not content.startswith(_FORMAT):
            raise StateError(
                f"{path} was written by another version of cloudgpu, moto or Python",
                hint=f"use the versions that wrote the file, or delete all simulated state: {_RESET}",
            )
        return content[len(_FORMAT) :]

    def _backend(self, content: bytes, path: Path) -> BaseBackend:
        backend = _Unpickler(io.BytesIO(content), self._objects).load()
        if not isinstance(backend, BaseBackend):
            raise _damaged(path, f"it contains a {type(backend).__name__}")
        return backend

    def _forget(self) -> None:
        """Remove all backends from memory, except volatile backends, which no snapshot can restore."""
        registered: list[Any] = list(vars(BackendDict)["_instances"])
        for backends in registered:
            for account, region, _ in list(backends.iter_backends()):
                if _name(backends, region, account) not in self._volatile:
                    dict.pop(backends[account], region)
        s3_backends.bucket_accounts.clear()
        self._written.clear()

    def _dump(self, name: str, backend: Any) -> bytes:  # noqa: ANN401
        """Serialize a backend.

        If a backend cannot be serialized, mark it as volatile and return empty bytes, so that calls still work. If the
        backend must be durable, raise the exception instead.
        """
        buffer = io.BytesIO()
        try:
            _Pickler(buffer, self._objects, name.partition("@")[0]).dump(backend)
        except (pickle.PicklingError, TypeError, AttributeError):
            if name.startswith(_DURABLE):
                raise
            _log.warning("moto backend %s cannot be saved and is lost when the server stops", name, exc_info=True)
            self._volatile.add(name)
            return b""
        return buffer.getvalue()

    def _drop_orphans(self) -> None:
        """Delete contents that no S3 object refers to. Safe only while no call can store contents."""
        named = {getattr(key, _DIGEST_ATTRIBUTE, ("", 0))[0] for key in _all_keys()}
        for path in self._objects.iterdir():
            if path.name not in named:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)


def _damaged(path: Path, why: str) -> StateError:
    message = f"cannot read the state of the rehearsal cloud: {path} is damaged ({why})"
    return StateError(message, hint=f"delete all simulated state: {_RESET}")


def _live() -> Iterator[tuple[str, Any]]:
    registered: list[Any] = list(vars(BackendDict)["_instances"])
    for backends in registered:
        for account, region, backend in list(backends.iter_backends()):
            yield _name(backends, region, account), backend


def _name(backends: Any, region: str, account: str) -> str:  # noqa: ANN401 - moto is untyped
    return f"{backends.service_name}@{region}@{account}"


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _shelve(name: str, backend: Any) -> None:  # noqa: ANN401
    service, region, account = name.split("@")
    module = importlib.import_module(f"moto.{service.replace('-', '')}.models")
    backends = getattr(module, f"{service.replace('-', '')}_backends")
    backends[account][region] = backend
    if service == "s3":
        for bucket in backend.buckets:
            backends.bucket_accounts[bucket] = (backend.partition, account)


def _all_keys() -> Iterator[FakeKey]:
    registered: list[Any] = list(s3_backends.iter_backends())
    for _, _, backend in registered:
        for bucket in backend.buckets.values():
            for _, versions in bucket.keys.iterlists():
                yield from (item for item in versions if isinstance(item, FakeKey))
            for multipart in bucket.multiparts.values():
                yield from multipart.parts.values()


@dataclass(frozen=True)
class _Contents:
    """Placeholder for an S3 object's contents in a snapshot."""

    digest: str


class _Pickler(pickle.Pickler):
    """Pickler that stores S3 objects without their contents."""

    def __init__(self, buffer: io.BytesIO, objects: Path, service: str) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self._objects = objects
        self._service = service

    def persistent_id(self, obj: Any) -> str | tuple[str, str, str] | None:  # noqa: ANN401 - protocol of pickle
        """Return a reference to S3 contents or to a subnet of the EC2 backend, and None for all other objects."""
        if isinstance(obj, Subnet) and self._service != "ec2":
            return str(obj.ec2_backend.account_id), str(obj.ec2_backend.region_name), str(obj.id)
        return obj.digest if isinstance(obj, _Contents) else None

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 - protocol of pickle
        """Reduce an S3 object without its contents, which are stored again only if their size has changed."""
        if not isinstance(obj, FakeKey):
            return take_apart(obj) or NotImplemented
        fields = obj.__dict__
        if fields.get(_DIGEST_ATTRIBUTE, ("", -1))[1] != obj.contentsize:
            fields[_DIGEST_ATTRIBUTE] = (_put_object(self._objects, obj.value), obj.contentsize)
        state = {name: value for name, value in fields.items() if name not in ("_value_buffer", "lock")}
        return _bare_key, (), {**state, "value": _Contents(fields[_DIGEST_ATTRIBUTE][0])}


def _bare_key() -> Any:  # noqa: ANN401 - a FakeKey without its state
    return FakeKey.__new__(FakeKey)


class _Unpickler(pickle.Unpickler):
    """Unpickler that loads a snapshot and the S3 contents to which the snapshot refers."""

    def __init__(self, buffer: io.BytesIO, objects: Path) -> None:
        super().__init__(buffer)
        self._objects = objects

    def find_class(self, module_name: str, global_name: str, /) -> Any:  # noqa: ANN401 - protocol of pickle
        """Return a class or function, even if a snapshot from an earlier version refers to its former module."""
        return super().find_class(current_module(module_name), global_name)

    def persistent_load(self, pid: Any) -> Any:  # noqa: ANN401 - protocol of pickle
        """Return the contents of an S3 object, or a subnet of the EC2 backend, which must already be loaded."""
        if isinstance(pid, tuple):
            account, region, subnet_id = pid
            return ec2_backends[account][region].get_subnet(subnet_id)
        return files.read_bytes(self._objects / str(pid), _OBJECT_BYTES)


def _put_object(objects: Path, content: bytes) -> str:
    """Write the contents unless their file exists. Return their digest."""
    digest = hashlib.sha256(content).hexdigest()
    path = objects / digest
    if not path.exists():
        write_durably(path, content)
    return digest
