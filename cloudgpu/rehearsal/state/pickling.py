"""Pickle objects that `pickle` does not support: local functions, lambdas, subclasses of defaultdict, and KMS keys."""

import importlib
import marshal
from collections import defaultdict
from types import CellType, FunctionType
from typing import Any, get_args

from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_der_private_key

MODULES_OF_0_1 = {
    "cloudgpu.rehearsal.records": "cloudgpu.rehearsal.state.records",
    "cloudgpu.rehearsal.reductions": "cloudgpu.rehearsal.state.pickling",
    "cloudgpu.rehearsal.store": "cloudgpu.rehearsal.state.store",
    "cloudgpu.rehearsal.strict.lustre_records": "cloudgpu.rehearsal.aws_api.fsx.records",
    "cloudgpu.rehearsal.strict.own_images": "cloudgpu.rehearsal.aws_api.ec2.baked_images",
}
"""Module name in snapshots from version 0.1.0 -> current module name."""


def current_module(name: str) -> str:
    """Return the current name of a module that a snapshot refers to."""
    return MODULES_OF_0_1.get(name, name)


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
