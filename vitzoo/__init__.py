"""vitzoo: a model zoo for Vision Transformers, made of parts, verified byte by byte.

Importing it imports no torch; `create` and its kind do on first use.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitzoo.errors import (
        AccessDenied,
        AuthenticationError,
        CheckpointError,
        EntryNotFound,
        FirstUseWarning,
        GatedRepo,
        HashMismatch,
        ImageError,
        IncompatibleManifest,
        IntegrityError,
        InvalidInput,
        InvalidOption,
        NetworkError,
        NotFoundOnHub,
        Offline,
        PinError,
        PluginError,
        RefusedResponse,
        RegistryError,
        RepoNotFound,
        RevisionNotFound,
        ServerError,
        SizeMismatch,
        StoreError,
        TransferError,
        UnknownName,
        UnknownOption,
        VitzooError,
        WeightsError,
        WeightsUnavailable,
    )
    from vitzoo.factory import create
    from vitzoo.images.lookup import labels, transform
    from vitzoo.inventory import Verification, fetch, verify
    from vitzoo.model import VisionTransformer
    from vitzoo.plugin.hookspecs import hookimpl
    from vitzoo.plugin.info import PluginInfo
    from vitzoo.registry.registry import describe, plugins, variants
    from vitzoo.report import LoadReport
    from vitzoo.saving import save
    from vitzoo.schema.rows import (
        CheckpointFormat,
        DropPathPolicy,
        Head,
        PaperResult,
        PatchEmbedder,
        PositionEmbedding,
        Preprocessing,
        Variant,
        Weights,
    )
    from vitzoo.schema.spec import BlockSpec, PartSpec, Spec

_HOME = {
    "AccessDenied": "errors",
    "AuthenticationError": "errors",
    "BlockSpec": "schema.spec",
    "CheckpointError": "errors",
    "CheckpointFormat": "schema.rows",
    "DropPathPolicy": "schema.rows",
    "EntryNotFound": "errors",
    "FirstUseWarning": "errors",
    "GatedRepo": "errors",
    "HashMismatch": "errors",
    "Head": "schema.rows",
    "ImageError": "errors",
    "IncompatibleManifest": "errors",
    "IntegrityError": "errors",
    "InvalidInput": "errors",
    "InvalidOption": "errors",
    "LoadReport": "report",
    "NetworkError": "errors",
    "NotFoundOnHub": "errors",
    "Offline": "errors",
    "PaperResult": "schema.rows",
    "PartSpec": "schema.spec",
    "PatchEmbedder": "schema.rows",
    "PinError": "errors",
    "PluginError": "errors",
    "PluginInfo": "plugin.info",
    "PositionEmbedding": "schema.rows",
    "Preprocessing": "schema.rows",
    "RefusedResponse": "errors",
    "RegistryError": "errors",
    "RepoNotFound": "errors",
    "RevisionNotFound": "errors",
    "ServerError": "errors",
    "SizeMismatch": "errors",
    "Spec": "schema.spec",
    "StoreError": "errors",
    "TransferError": "errors",
    "UnknownName": "errors",
    "UnknownOption": "errors",
    "Variant": "schema.rows",
    "Verification": "inventory",
    "VisionTransformer": "model",
    "VitzooError": "errors",
    "Weights": "schema.rows",
    "WeightsError": "errors",
    "WeightsUnavailable": "errors",
    "create": "factory",
    "describe": "registry.registry",
    "fetch": "inventory",
    "hookimpl": "plugin.hookspecs",
    "labels": "images.lookup",
    "plugins": "registry.registry",
    "save": "saving",
    "transform": "images.lookup",
    "variants": "registry.registry",
    "verify": "inventory",
}

__all__ = [
    "AccessDenied",
    "AuthenticationError",
    "BlockSpec",
    "CheckpointError",
    "CheckpointFormat",
    "DropPathPolicy",
    "EntryNotFound",
    "FirstUseWarning",
    "GatedRepo",
    "HashMismatch",
    "Head",
    "ImageError",
    "IncompatibleManifest",
    "IntegrityError",
    "InvalidInput",
    "InvalidOption",
    "LoadReport",
    "NetworkError",
    "NotFoundOnHub",
    "Offline",
    "PaperResult",
    "PartSpec",
    "PatchEmbedder",
    "PinError",
    "PluginError",
    "PluginInfo",
    "PositionEmbedding",
    "Preprocessing",
    "RefusedResponse",
    "RegistryError",
    "RepoNotFound",
    "RevisionNotFound",
    "ServerError",
    "SizeMismatch",
    "Spec",
    "StoreError",
    "TransferError",
    "UnknownName",
    "UnknownOption",
    "Variant",
    "Verification",
    "VisionTransformer",
    "VitzooError",
    "Weights",
    "WeightsError",
    "WeightsUnavailable",
    "create",
    "describe",
    "fetch",
    "hookimpl",
    "labels",
    "plugins",
    "save",
    "transform",
    "variants",
    "verify",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'vitzoo' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"vitzoo.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Package(ModuleType):
    """Keeps `vitzoo.create` the function after the submodule `vitzoo.create` is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel by name, as other modules do, with functions that are sent to Ray or dask."""
        from importlib import import_module

        return import_module, (__name__,)


sys.modules[__name__].__class__ = _Package
