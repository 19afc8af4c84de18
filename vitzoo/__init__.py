"""vitzoo: Vision Transformers by name, built from replaceable parts, with verified weights.

`import vitzoo` imports neither torch nor numpy. Each name imports its module on first use.
"""

# `python -m vitzoo` looks for each module in the working directory first, until `_leave_directory`
# is called. So nothing above that call imports what Python has not imported yet, as `__future__`.
import os
import sys


def _check_python(version: "tuple[int, ...]") -> None:
    """Raise ImportError for a version of Python that is too old, before another import fails.

    The command `vitzoo` ends with the message instead. This module is also read by older versions
    of Python, so nothing above the call needs Python 3.11.
    """
    if version >= (3, 11):
        return
    message = (
        f"vitzoo {__version__} needs Python 3.11 or newer; this is Python {version[0]}."
        f"{version[1]}; create a new environment with a newer Python and install vitzoo there"
    )
    called = getattr(sys, "argv", None) or [""]
    module = called[0] == "-m" and "vitzoo" in getattr(sys, "orig_argv", ())
    if module or os.path.basename(called[0]) in ("vitzoo", "vitzoo.exe"):  # noqa: PTH119
        sys.exit(message)
    raise ImportError(message)


def _leave_directory() -> None:
    """Take the working directory from `sys.path`, to which `python -m vitzoo` has added it."""
    argv = getattr(sys, "argv", None) or [""]
    asked = sys.orig_argv[-len(argv) :][:1] if argv[0] == "-m" and not sys.flags.safe_path else []
    name = "".join(asked).partition(".")[0]  # `vitzoo`, or after other options: `-umvitzoo`
    own = name == "vitzoo" or (name.startswith("-") and name.endswith("mvitzoo"))
    # If the working directory was deleted, the first entry is another one, or no folder.
    if own and os.path.exists(sys.path[0]) and os.path.samefile(sys.path[0], "."):  # noqa: PTH110, PTH121
        del sys.path[0]


__version__ = "0.1.0"
# A call, so that type checkers do not take the rest for unreachable.
_check_python(sys.version_info[:2])
_leave_directory()

from _thread import RLock  # noqa: E402
from importlib import import_module  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

if TYPE_CHECKING:
    from vitzoo import errors as errors, formats as formats, parts as parts, ray as ray
    from vitzoo.apps.backbone.backbone import Backbone as Backbone, backbone as backbone
    from vitzoo.apps.backbone.timm_registry import register_in_timm as register_in_timm
    from vitzoo.apps.bench.bench import bench as bench
    from vitzoo.apps.bench.results import Benchmark as Benchmark
    from vitzoo.apps.convert.conversion import convert as convert
    from vitzoo.apps.embed.embed import Embedded as Embedded, embed as embed
    from vitzoo.apps.export.export import export as export
    from vitzoo.apps.identity.canary import Canary as Canary
    from vitzoo.apps.identity.identity import (
        identity as identity,
        require_identity as require_identity,
    )
    from vitzoo.apps.plot.plot import plot as plot
    from vitzoo.apps.predict.predict import predict as predict
    from vitzoo.apps.predict.prediction import (
        Prediction as Prediction,
        Predictions as Predictions,
    )
    from vitzoo.apps.predict.predictor import Predictor as Predictor
    from vitzoo.apps.probe.confusion import confusion_figure as confusion_figure
    from vitzoo.apps.probe.labelled import (
        LabelledImages as LabelledImages,
        read_labelled as read_labelled,
    )
    from vitzoo.apps.probe.probe import Probe as Probe, probe as probe
    from vitzoo.apps.publish.link import (
        Linked as Linked,
        link as link,
        timm_overlay as timm_overlay,
    )
    from vitzoo.apps.publish.push import Pushed as Pushed, push as push
    from vitzoo.apps.train.freeze import freeze as freeze
    from vitzoo.apps.train.lora import lora as lora
    from vitzoo.apps.train.param_groups import param_groups as param_groups
    from vitzoo.errors import (
        CheckpointError as CheckpointError,
        ExportError as ExportError,
        FirstUseWarning as FirstUseWarning,
        ImageError as ImageError,
        IntegrityError as IntegrityError,
        InvalidInput as InvalidInput,
        InvalidOption as InvalidOption,
        MissingDependency as MissingDependency,
        NetworkError as NetworkError,
        PinError as PinError,
        PluginError as PluginError,
        RegistryError as RegistryError,
        StoreError as StoreError,
        UnknownName as UnknownName,
        VitzooError as VitzooError,
        WeightsError as WeightsError,
        WeightsUnavailable as WeightsUnavailable,
    )
    from vitzoo.factory import create as create
    from vitzoo.images.transform import Transform as Transform
    from vitzoo.inventory import Verification as Verification, fetch as fetch, verify as verify
    from vitzoo.known import labels as labels, summary as summary, transform as transform
    from vitzoo.network.model import VisionTransformer as VisionTransformer
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
    from vitzoo.schema.preprocessing import Preprocessing as Preprocessing
    from vitzoo.schema.rows import (
        CheckpointFormat as CheckpointFormat,
        DropPathPolicy as DropPathPolicy,
        Head as Head,
        PaperResult as PaperResult,
        PatchEmbedder as PatchEmbedder,
        Pool as Pool,
        PositionEmbedding as PositionEmbedding,
        Recipe as Recipe,
        Throughput as Throughput,
        Variant as Variant,
        Weights as Weights,
    )
    from vitzoo.schema.spec import BlockSpec as BlockSpec, PartSpec as PartSpec, Spec as Spec

# The public names of each module; `__getattr__` imports a module when one of its names is used.
_NAMES = {
    "apps.backbone.backbone": "Backbone backbone",
    "apps.backbone.timm_registry": "register_in_timm",
    "apps.bench.bench": "bench",
    "apps.bench.results": "Benchmark",
    "apps.convert.conversion": "convert",
    "apps.embed.embed": "Embedded embed",
    "apps.export.export": "export",
    "apps.identity.canary": "Canary",
    "apps.identity.identity": "identity require_identity",
    "apps.plot.plot": "plot",
    "apps.predict.predict": "predict",
    "apps.predict.prediction": "Prediction Predictions",
    "apps.predict.predictor": "Predictor",
    "apps.probe.confusion": "confusion_figure",
    "apps.probe.labelled": "LabelledImages read_labelled",
    "apps.probe.probe": "Probe probe",
    "apps.publish.link": "Linked link timm_overlay",
    "apps.publish.push": "Pushed push",
    "apps.train.freeze": "freeze",
    "apps.train.lora": "lora",
    "apps.train.param_groups": "param_groups",
    "errors": (
        "CheckpointError ExportError FirstUseWarning ImageError IntegrityError InvalidInput "
        "InvalidOption MissingDependency NetworkError PinError PluginError RegistryError "
        "StoreError UnknownName VitzooError WeightsError WeightsUnavailable"
    ),
    "factory": "create",
    "images.transform": "Transform",
    "inventory": "Verification fetch verify",
    "known": "labels summary transform",
    "network.model": "VisionTransformer",
    "plugin.hookspecs": "hookimpl",
    "plugin.info": "PluginInfo",
    "registry.label_sets": "synsets",
    "registry.registry": "describe plugins variants",
    "report": "LoadReport",
    "saving": "save",
    "schema.preprocessing": "Preprocessing",
    "schema.rows": (
        "CheckpointFormat DropPathPolicy Head PaperResult PatchEmbedder Pool "
        "PositionEmbedding Recipe Throughput Variant Weights"
    ),
    "schema.spec": "BlockSpec PartSpec Spec",
}
_IMPORTING = RLock()
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}
_HOME |= {module: module for module in ("errors", "formats", "parts", "ray")}
__all__ = list(_HOME)
_ELSEWHERE = {  # functions of other libraries, and commands: what to call here
    "create_model": "vitzoo.create(name, pretrained=True)",
    "from_pretrained": "vitzoo.create(name, pretrained=True)",
    "list": "vitzoo.variants(pattern)",
    "list_models": "vitzoo.variants(pattern)",
    "load": "vitzoo.create(path) for a file of vitzoo.save, vitzoo.create(name, weights=path) else",
    "show": "vitzoo.describe(name)",
    "which": "vitzoo.describe(name); the command `vitzoo which NAME` translates other names",
}

if not TYPE_CHECKING:  # because of `__getattr__`, type checkers would accept every name

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            fix = f"; use {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            message = f"module 'vitzoo' has no attribute {name!r}{fix}"
            raise AttributeError(message, name=name, obj=sys.modules[__name__])
        with _IMPORTING:  # two threads in modules that import each other: Python's DeadlockError
            home = import_module(f"vitzoo.{_HOME[name]}")
        value = home if _HOME[name] == name else getattr(home, name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return [*__all__, "__version__"]
