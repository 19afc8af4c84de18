"""`create`: name -> statement -> plan -> module on meta -> verified file -> tensors -> report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._device import DeviceContext

from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.errors import InvalidOption, MissingDependency, short_repr
from vitzoo.keywords import check_keywords
from vitzoo.loading.adapter import Adapter, check_base, with_adapter
from vitzoo.loading.differences import HEAD_FIELDS, changed, joined
from vitzoo.loading.load import load
from vitzoo.loading.plan import Plan, check_remote
from vitzoo.loading.statement import Statement
from vitzoo.loading.text_head import text_head
from vitzoo.loading.weights import with_weights
from vitzoo.log import log
from vitzoo.network.activation import usual_activation
from vitzoo.network.build import build, make_dynamic
from vitzoo.network.calls import checked_parts
from vitzoo.network.device import check_place
from vitzoo.network.model import VisionTransformer
from vitzoo.network.wrappers import network_of
from vitzoo.opening import is_model, stated
from vitzoo.parts.init import WithoutData
from vitzoo.parts.protocols import blaming
from vitzoo.registry.choice import UNTRAINED, NotGiven
from vitzoo.registry.label_sets import known_labels
from vitzoo.registry.registry import Registry, registry
from vitzoo.report import LoadReport
from vitzoo.schema.kinds import PARTS
from vitzoo.schema.preprocessing import StatedPreprocessing, UnreadPreprocessing
from vitzoo.schema.rows import Variant, built_of_parts
from vitzoo.schema.spec import Spec
from vitzoo.text import px

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vitzoo.loading.text_head import TextHead

OTHER_SIZE = (
    "images: their processor states inputs of {0} px and the network {1} px; vitzoo.transform "
    "resizes and crops in proportion to {1} px, with dynamic=True or image_size= to {0} px"
)
Part = str | Mapping[str, Any] | nn.Module


def _hint(name: str, value: object) -> str:
    return str(import_module("vitzoo.advice.arguments").hint(name, value))


@check_keywords(_hint)
def create(
    name: str | os.PathLike[str] | Mapping[str, Any] | Spec,
    *,
    pretrained: bool = UNTRAINED,
    weights: str | os.PathLike[str] | None = None,
    num_classes: int | None = None,
    in_chans: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    patch_embed: Part | None = None,
    pos_embed: Part | None = None,
    block: Mapping[str, Any] | None = None,
    pool: Part | None = None,
    head: Part | None = None,
    drop_path: Part | float | None = None,
    dropout: float | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    class_embeddings: Tensor | NDArray[Any] | str | os.PathLike[str] | None = None,
    labels: str | Sequence[str] | None = None,
    logit_scale: float | Tensor | None = None,
    logit_bias: float | Tensor | None = None,
    dynamic: bool = False,
    check_finite: bool = True,
    mmap: bool = False,
    prefix: str | None = None,
) -> VisionTransformer:
    """Create a Vision Transformer with random or trained weights.

    An argument that is None keeps the value of the variant, the spec or the saved file.

    Args:
        name: the network, see docs/create.md#which-network: a registered name (`vitzoo list --all`
            shows all) such as "vit_b16" or "vit_b16:augreg_in21k", a path, an address
            "hf://owner/repo" or a spec.
        pretrained: whether to load the default weights of the variant. The weights of
            "variant:weights" and of `adapter` are loaded in any case.
        weights: weights to load instead of the default weights: a weights name of the variant, an
            address "hf://owner/repo@revision/file", or a path. The path is a safetensors file, an
            npz file, the index of several safetensors files, or a folder with one of these.
        num_classes: number of logits; with 0 the model has no classifier and returns features.
        in_chans: number of image channels.
        image_size: (height, width) of the images in px, or one number for both.
        patch_embed, pos_embed, pool, head: a part to use instead: a registered name, a mapping
            with `name` and the options of the part, or a module.
        block: options of all encoder blocks, such as `{"norm_eps": 1e-5}`.
        drop_path: a rate, or a mapping with a policy and its options. With a rate, the drop-path
            rates of the blocks rise linearly from 0 in the first block to this rate in the last.
        dropout: dropout rate after positions, attention projection and MLP layers.
        dtype: floating type of the parameters. None: torch's default, or the types in the file
            for a file written by `vitzoo.save`.
        device: device of the parameters. None: torch's default device. "meta" allocates no memory.
        adapter: a folder that PEFT's `save_pretrained` wrote, with an adapter of `vitzoo.lora`. It
            is merged into the weights that it was trained on, whose SHA-256 is checked. Its head,
            labels, preprocessing and image size are used.
        class_embeddings: vectors of texts, (classes, width), floating-point, of any length, which
            become a zero-shot classifier: the logits are `logit_scale` times their cosines with
            the image embedding, plus `logit_bias`. A tensor, an array, or the path of a
            .safetensors or .npz file. The file may have tensors of one number `logit_scale` and
            `logit_bias`, and, as JSON in the metadata of safetensors, a list `labels`.
        labels: the name of each class of `class_embeddings`, or the name of a label set. None:
            those of the file, if any.
        logit_scale: the positive factor itself, not its logarithm, which CLIP and SigLIP store.
            None: that of the file.
        logit_bias: of a model trained with a sigmoid for each text, such as SigLIP, whose
            probabilities are sigmoids; 0 for a model without bias, such as CLIP, whose
            probabilities are a softmax. None: that of the file.
        dynamic: whether each batch may have any image size that is a whole number of patches. The
            results equal those after `set_input_size`.
        check_finite: whether weights with NaN or infinite values, or with only zeros, raise an
            error.
        mmap: whether to map a weights file of yours instead of reading it into memory, as is always
            done with registered weights. An unchanged file is then loaded without reading it. If
            the file is rewritten in place, the model may change; if it is truncated, the process
            may be killed (SIGBUS).
        prefix: of the keys of the network, in a weights file with several, such as `"ema."` or
            `"student.backbone."`. None: the file has one network, behind any prefix.

    Returns:
        The model, in training mode. `model.spec` describes the network; `model.load_report` lists
        for each tensor whether it was loaded, changed, newly initialised or ignored. A variant
        with its own builder (`timm/*`) is another module class with the same two attributes.

    Raises:
        UnknownName, UnknownOption: a name, an argument or an option does not exist. The message
            suggests the closest ones.
        InvalidOption: a value is not possible, or values do not fit together.
        WeightsUnavailable: the variant has no such weights.
        CheckpointError: the file is no checkpoint, or its tensors do not fit the model. The
            adapter is damaged, does not fit, or was trained on other weights.
        IntegrityError: the file has another hash or size than the registry states.
        NetworkError: the file cannot be downloaded.

    >>> model = create("vit_digits", pretrained=True)
    >>> model(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    check_place(dtype, device)
    # Text vectors and an adapter are steps before and after: no statement or plan knows them.
    text_arguments = class_embeddings, labels, logit_scale, logit_bias
    texts = _text_head(text_arguments, num_classes=num_classes, head=head)
    num_classes = None if texts else num_classes  # that of the network with the embedding
    lora = _opened(adapter)
    call, ready = _call_changes(
        num_classes=num_classes,
        in_chans=in_chans,
        image_size=image_size,
        patch_embed=patch_embed,
        pos_embed=pos_embed,
        block=block,
        pool=pool,
        head=head,
        drop_path=drop_path,
        dropout=dropout,
    )
    # What is stated, without a tensor. Configs on the Hub are read, and a file of `save` there.
    zoo = registry()
    statement = stated(name, zoo, weights)
    if lora:
        statement = with_adapter(statement, lora)
    wanted = changed(statement.spec, statement.changes, call)
    below, trained = _below(lora, statement, weights, pretrained)
    statement = with_weights(statement, below, trained, mmap=mmap, prefix=prefix)
    if lora:
        check_base(statement, lora)
    with blaming(checked_parts(wanted)):
        new = partial(_network, ready=ready, statement=statement, dynamic=dynamic)
        steps = [step for step in (lora, texts) if step]
        if statement.opening is None:
            model = new(wanted, steps, device)
            report = LoadReport("random initialisation", reinitialised=tuple(model.state_dict()))
            model.to(device=device, dtype=dtype)
            preprocessing, notes = _preprocessing(None, statement, wanted, call)
            report = replace(report, assumed=(*report.assumed, *notes))
            return _finish(model, wanted, report, preprocessing, texts)
        # The plan of a file on the Hub without entry needs its header. So a wrong argument raises
        # here, before the download.
        if statement.remote:
            new(wanted, steps, "meta")
            check_remote(statement, joined(statement.changes, call))
        asked = HEAD_FIELDS if lora else frozenset[str]()
        plan = Plan.of(statement, call, asked=asked, replaced=texts is not None)
        model = new(plan.wanted, steps, "meta")
        # The file of registered weights is fetched now, after all checks.
        checkpoint = replace(statement.checkpoint, mapped=mmap)
        checkpoint = lora.described(checkpoint) if lora else checkpoint
        preprocessing, notes = _preprocessing(checkpoint, statement, plan.wanted, call)
        if dtype is None and not _keeps_dtype(statement):
            dtype = torch.get_default_dtype()
        elsewhere = torch.get_default_device().type != "cpu"
        with DeviceContext("cpu") if elsewhere else nullcontext():  # a file's tensors are there
            report = load(
                model, checkpoint, plan, zoo, dtype=dtype, notes=notes, check_finite=check_finite
            )
            if lora:
                report = lora.merge(model, report, check_finite=check_finite)
        result: Any = _moved(model, device)
    given = {key: value for key, value in call.items() if key not in ready}
    again = {"pretrained": pretrained, "weights": weights, "dtype": dtype, **given}
    again |= {"mmap": mmap, "prefix": prefix}
    again |= texts.arguments if texts else {}
    result.create_again = partial(create, deepcopy(name), **deepcopy(again))  # for `lora`
    return _finish(result, plan.wanted, report, preprocessing, texts, checkpoint)


def _opened(folder: object) -> Adapter | None:
    """Open an adapter with the code of `apps/train`, which the core does not know otherwise."""
    if folder is None:
        return None
    try:
        app = import_module("vitzoo.apps.train.adapter")
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"create(adapter=) needs vitzoo.apps.train, which cannot be imported: {error}; install "
            "vitzoo again"
        ) from error
    adapter: Adapter = app.open_adapter(folder)
    return adapter


def _below(
    lora: Adapter | None, statement: Statement, weights: Any, pretrained: Any
) -> tuple[Any, Any]:
    """Return `weights` and `pretrained`, by default of the weights that an adapter is for."""
    given = weights is not None or statement.row is not None or bool(statement.place)
    if lora is None or given or not isinstance(pretrained, bool | NotGiven):
        return weights, pretrained
    return lora.weights_of(statement.variant), True


def _text_head(arguments: tuple[Any, ...], *, num_classes: Any, head: Any) -> TextHead | None:
    """Return the classes of text vectors, None if no argument is about them."""
    if all(value is None for value in arguments):
        return None

    return text_head(*arguments, num_classes=num_classes, head=head)


def _call_changes(**arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the given arguments as changes of a spec, and the parts that are ready objects."""
    given = {key: value for key, value in arguments.items() if value is not None}
    ready = {key: given[key] for key in PARTS if callable(given.get(key))}
    opaque = {key: {"name": type(part).__qualname__, "opaque": True} for key, part in ready.items()}
    return given | opaque, ready


def _network(
    spec: Spec,
    steps: Sequence[Adapter | TextHead],
    device: torch.device | str | None,
    *,
    ready: Mapping[str, Any],
    statement: Statement,
    dynamic: bool,
) -> nn.Module:
    """Build a network, with the checks of the steps around."""
    zoo = statement.zoo
    if statement.saved:
        statement.about.check_installed(spec.namespaces, zoo)
    place = torch.device(device or torch.get_default_device())
    with WithoutData() if place.type == "meta" else place:
        model = built(spec, ready, statement.variant, zoo)
        for step in steps:
            step.check(model)
        if dynamic:
            make_dynamic(model)
    return model


def built(
    spec: Spec, ready: Mapping[str, Any], variant: Variant | None, zoo: Registry
) -> nn.Module:
    """Return the network of a spec, of vitzoo's parts or by the builder of its variant.

    Raises:
        VitzooError: a part or the builder cannot be used, or the builder accepts no such change.
    """
    if variant is None or built_of_parts(variant):
        return build(spec, ready, part=zoo.part)
    for field in fields(Spec):
        changed = getattr(spec, field.name) != getattr(variant.spec, field.name)
        if changed and field.name not in variant.accepts:
            raise InvalidOption(
                f"{variant.name} has its own builder, which cannot change {field.name}; it "
                f"accepts: {', '.join(variant.accepts) or 'nothing'}"
            )
    network: nn.Module = zoo.host.network(variant, spec)
    return network


def _preprocessing(
    checkpoint: Checkpoint | None, statement: Statement, spec: Spec, call: Mapping[str, Any]
) -> tuple[StatedPreprocessing | None, tuple[str, ...]]:
    """Return the preprocessing of the weights, or else that of the variant, and notes on it."""
    own = checkpoint.stated.preprocessing if checkpoint else None
    found = own or statement.preprocessing_of(spec)
    if isinstance(found, UnreadPreprocessing):  # a file beside the weights is noted with the others
        noted = checkpoint is not None and found.note in checkpoint.notes
        return found, () if noted else (found.note,)
    if found is None:
        return None, ()
    notes: tuple[str, ...] = ()
    if checkpoint and not own:
        notes = (f"preprocessing = that of {spec.variant}: {found.summary}",)
    chosen = "image_size" in call or "image_size" in statement.changes
    if chosen or found.image_size in (None, spec.image_size):
        return found.fitted(spec.image_size), notes
    return found, (*notes, OTHER_SIZE.format(px(found.image_size), px(spec.image_size)))


def _keeps_dtype(statement: Statement) -> bool:
    """Return whether tensors keep their stored types: a file of `save` names its network."""
    return statement.saved and statement.about.trunk is None


def _moved(model: nn.Module, device: torch.device | str | None) -> nn.Module:
    target = torch.device(device or torch.get_default_device())
    # Loaded tensors are on the CPU, and `to` would take a third of the time.
    return model if target.type == "cpu" else model.to(target)


def _finish(
    model: nn.Module,
    spec: Spec,
    report: LoadReport,
    preprocessing: StatedPreprocessing | None,
    texts: TextHead | None,
    checkpoint: Checkpoint | None = None,
) -> VisionTransformer:
    """Attach spec, report, classes and preprocessing to a model, and log its origin."""
    result: Any = model  # of another class if the variant has its own builder
    if isinstance(model, VisionTransformer) and model.spec is not None:
        spec = model.spec  # a ready head has its own number of classes
    labels, activation = tuple[str, ...](), ""
    if checkpoint and not report.reinitialised:
        activation = checkpoint.stated.output_activation
        label_set = checkpoint.row.label_set if checkpoint.row else ""
        labels = known_labels(label_set, checkpoint.stated.labels)
    result.spec = spec
    result.load_report = report
    fits = len(labels) == spec.num_classes
    if labels and not fits and spec.num_classes and checkpoint and checkpoint.stated.config:
        note = f"labels: {len(labels)} names for {spec.num_classes} classes are not used"
        report = replace(report, assumed=(*report.assumed, note))
        result.load_report = report
    result.labels = labels if fits else ()
    result.output_activation = activation or usual_activation(result)
    result.preprocessing = preprocessing
    if texts:
        texts.put_into(result)
    log.info("created %s from %s", spec.variant or "a custom spec", report)
    return result


def open_network(
    model: Any, weights: Any = None, *, pretrained: bool = True, **options: Any
) -> Any:
    """Return the network that an app was given: that in a model, or a new one of `create`.

    Args:
        model: the network, see docs/create.md#which-network.
        weights, pretrained: as in `create`; the default weights of a variant are loaded.
        options: further arguments of `create`, which a model ignores.

    Raises:
        InvalidOption: vitzoo did not create the model, or it is passed with weights.
        VitzooError: as `create`.
    """
    if not is_model(model):
        return create(model, pretrained=pretrained, weights=weights, **options)
    check_alone(weights, pretrained=pretrained)
    return network_of(model)


def check_alone(weights: object, *, pretrained: bool = True) -> None:
    """Raise InvalidOption for weights, or for none of them, with a model object."""
    if weights is not None or not pretrained:
        name, value = ("weights", weights) if weights is not None else ("untrained", True)
        raise InvalidOption(
            f"a model object has its weights, got {name}={short_repr(value)}; leave {name}= out, "
            "or pass the name of the model"
        )
