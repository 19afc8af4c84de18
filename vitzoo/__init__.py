"""vitzoo: a model zoo for Vision Transformers, made of parts, verified byte by byte.

Importing it imports no torch; `create` and its kind do on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitzoo.conversion import convert as convert
    from vitzoo.errors import (
        AccessDenied as AccessDenied,
        AuthenticationError as AuthenticationError,
        CheckpointError as CheckpointError,
        EntryNotFound as EntryNotFound,
        FirstUseWarning as FirstUseWarning,
        GatedRepo as GatedRepo,
        HashMismatch as HashMismatch,
        ImageError as ImageError,
        IncompatibleManifest as IncompatibleManifest,
        IntegrityError as IntegrityError,
        InvalidInput as InvalidInput,
        InvalidOption as InvalidOption,
        NetworkError as NetworkError,
        NotFoundOnHub as NotFoundOnHub,
        Offline as Offline,
        PinError as PinError,
        PluginError as PluginError,
        RefusedResponse as RefusedResponse,
        RegistryError as RegistryError,
        RepoNotFound as RepoNotFound,
        RevisionNotFound as RevisionNotFound,
        ServerError as ServerError,
        SizeMismatch as SizeMismatch,
        StoreError as StoreError,
        TransferError as TransferError,
        UnknownName as UnknownName,
        UnknownOption as UnknownOption,
        VitzooError as VitzooError,
        WeightsError as WeightsError,
        WeightsUnavailable as WeightsUnavailable,
    )
    from vitzoo.factory import create as create
    from vitzoo.images.lookup import labels as labels, transform as transform
    from vitzoo.inference.predict import predict as predict
    from vitzoo.inventory import Verification as Verification, fetch as fetch, verify as verify
    from vitzoo.model import VisionTransformer as VisionTransformer
    from vitzoo.plugin.hookspecs import hookimpl as hookimpl
    from vitzoo.plugin.info import PluginInfo as PluginInfo
    from vitzoo.registry.label_sets import synsets as synsets
    from vitzoo.registry.registry import (
        describe as describe,
        plugins as plugins,
        variants as variants,
    )
    from vitzoo.report import LoadReport as LoadReport
    from vitzoo.saving import save as save
    from vitzoo.schema.rows import (
        CheckpointFormat as CheckpointFormat,
        DropPathPolicy as DropPathPolicy,
        Head as Head,
        PaperResult as PaperResult,
        PatchEmbedder as PatchEmbedder,
        PositionEmbedding as PositionEmbedding,
        Preprocessing as Preprocessing,
        Variant as Variant,
        Weights as Weights,
    )
    from vitzoo.schema.spec import BlockSpec as BlockSpec, PartSpec as PartSpec, Spec as Spec

# The module of each public name, below vitzoo; it is imported when the name is first used.
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
    "convert": "conversion",
    "create": "factory",
    "describe": "registry.registry",
    "fetch": "inventory",
    "hookimpl": "plugin.hookspecs",
    "labels": "images.lookup",
    "plugins": "registry.registry",
    "predict": "inference.predict",
    "save": "saving",
    "synsets": "registry.label_sets",
    "transform": "images.lookup",
    "variants": "registry.registry",
    "verify": "inventory",
}
__all__ = list(_HOME)
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
