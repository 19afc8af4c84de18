"""The model card of a pushed model: a README with the metadata that the Hub reads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitzoo import __version__
from vitzoo.errors import printable
from vitzoo.network.activation import MEANING, activation_of
from vitzoo.schema.preprocessing import OF_TIMM, StatedPreprocessing, UnreadPreprocessing
from vitzoo.schema.rows import Variant, Weights
from vitzoo.schema.terms import IDENTITY, SOFTMAX

HUB_LICENSES = (  # names of the Hub; any other license is written as `other` with its name
    *("apache-2.0", "mit", "bsd", "bsd-2-clause", "bsd-3-clause", "isc", "unlicense", "cc0-1.0"),
    *("cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "cc-by-nc-nd-4.0"),
    *("gpl-3.0", "lgpl-3.0", "agpl-3.0", "mpl-2.0", "gemma", "apple-amlr", "openrail"),
)


@dataclass(frozen=True)
class Origin:
    """The registered weights that a model was loaded from.

    Args:
        variant, weights: None if they are not registered.
        unchanged: whether the model has exactly these weights.
        below_head: whether these weights are only those before a classifier of `probe`.
        tuned: whether the file states that it was fine-tuned from these weights.
    """

    variant: Variant | None = None
    weights: Weights | None = None
    unchanged: bool = False
    below_head: bool = False
    tuned: bool = False


@dataclass(frozen=True)
class Card:
    """What a model card states.

    Args:
        repo: `owner/name`, empty if the folder is not uploaded.
        library: whose calls load the folder: `timm`, `transformers`, or `vitzoo` alone.
        call: the call of that library.
        model: the network.
        license: of the weights.
        sha256: of the weights file.
        origin: the registered weights that the model was loaded from.
        base_model: repositories of the Hub that the model was made from.
        datasets: names of data sets on the Hub.
        section: Markdown of the file `card.md` beside the weights.
    """

    repo: str
    library: str
    call: str
    model: Any
    license: str
    sha256: str
    origin: Origin
    base_model: Sequence[str]
    datasets: Sequence[str]
    section: str = ""


def model_card(card: Card) -> str:
    """Return the text of the README."""
    from huggingface_hub import ModelCardData

    spec, number = card.model.spec, _of_numbers(card.model)
    tag = "image-classification" if spec.num_classes else "image-feature-extraction"
    more = ["regression"] if number else []
    license_id, license_name = _license(card.license)
    data = ModelCardData(
        license=license_id,
        license_name=license_name,
        library_name=card.library,
        pipeline_tag=None if number else tag,  # the Hub has none for numbers
        tags=list(dict.fromkeys(["vitzoo", "vision-transformer", card.library, *more])),
        base_model=list(card.base_model) or None,
        datasets=list(card.datasets) or None,
    )
    name = _markdown(card.repo.rpartition("/")[2] or spec.variant or "Vision Transformer")
    parts = [f"---\n{data.to_yaml()}\n---", f"# {name}", _summary(card), _table(_facts(card))]
    parts += [*_use(card), *_results(card), *([card.section] if card.section else [])]
    return "\n\n".join([*parts, *_origin(card.origin)]) + "\n"


def _of_numbers(model: Any) -> bool:
    """Tell whether a network returns the numbers of a regression."""
    return bool(model.spec.num_classes) and activation_of(model) == IDENTITY


def _license(text: str) -> tuple[str, str | None]:
    """Return the Hub's name of a license, and the name of a license that the Hub does not know."""
    name = text.lower()
    known = name in HUB_LICENSES
    return (name, None) if known else ("other", re.sub(r"[^a-z0-9.]+", "-", name).strip("-"))


def _summary(card: Card) -> str:
    name = card.origin.variant.name if card.origin.variant else "local/"
    network = "" if name.startswith("local/") else f", with the network {_code(name)} of vitzoo"
    classes = card.model.spec.num_classes
    what = "number" if _of_numbers(card.model) else "class"
    many = {"class": "classes", "number": "numbers"}
    task = (
        f"for {classes} {what if classes == 1 else many[what]}" if classes else "for image features"
    )
    return f"A Vision Transformer {task}{network}. Written by vitzoo {__version__}."


def _facts(card: Card) -> Mapping[str, object]:
    spec, images = card.model.spec, card.model.preprocessing
    params = sum(parameter.numel() for parameter in card.model.parameters())
    h, w = spec.image_size
    channels = "1 channel" if spec.in_chans == 1 else f"{spec.in_chans} channels"
    names = f"names in {'model.safetensors' if card.library == 'vitzoo' else 'config.json'}"
    what = "numbers" if _of_numbers(card.model) else "classes"
    found: dict[str, object] = {
        "parameters": f"{params:,}",
        "images": f"{h}x{w} px, {channels}, patches of "
        f"{spec.patch_size[0]}x{spec.patch_size[1]} px",
        "blocks, width, heads": f"{spec.depth}, {spec.embed_dim}, {spec.num_heads}",
        what: f"{spec.num_classes} ({names if card.model.labels else 'without names'})"
        if spec.num_classes
        else "none; the outputs are features",
        "license": _markdown(card.license),
        "sha256 of model.safetensors": _code(card.sha256),
    }
    if spec.num_classes and (activation := activation_of(card.model)) != SOFTMAX:
        found["output activation"] = f"{activation}: {MEANING[activation]}"
    if spec.block.merge:
        found["token merging"] = f"each block merges {spec.block.merge} patch tokens into others"
    if images is not None:
        found["preprocessing"] = _images(images)
    return found


def _images(images: StatedPreprocessing) -> str:
    """Return how images are prepared, or why that is not known."""
    if isinstance(images, UnreadPreprocessing):
        return _markdown(f"not known: {images.file} states what vitzoo cannot do: {images.what}")
    size = f"crop_pct {images.crop_pct}" if images.resize is None else f"resize {images.resize}"
    more = {key: v for key, v in images.to_data().items() if key not in (*OF_TIMM, "resize")}
    rest = "".join(f", {key} {value}" for key, value in more.items())
    return (
        f"{images.interpolation}, {size}, {images.crop_mode}; mean {list(images.mean)}, std "
        f"{list(images.std)}{rest}"
    )


def _table(rows: Mapping[str, object]) -> str:
    lines = [f"| {key} | {value} |" for key, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _use(card: Card) -> list[str]:
    place = f"hf://{card.repo}" if card.repo else "FOLDER/"
    code = [
        "import vitzoo",
        "",
        f'model = vitzoo.create("{place}").eval()',
        f'images = vitzoo.transform("{place}")("image.png").unsqueeze(0)',
        "output = model(images)",
    ]
    use = ["## Use", "\n".join(["```python", *code, "```"])]
    if card.library == "vitzoo":
        return [*use, "No other library has this network."]
    other = ["```python", f"import {card.library}", "", f"model = {card.call}", "```"]
    use += [f"Or with {card.library}:", "\n".join(other)]
    if card.library == "timm":
        use.append("transformers loads the repository through timm, too.")
    return use


def _results(card: Card) -> list[str]:
    """Return the published results, which are those of unchanged weights only."""
    row = card.origin.weights
    if row is None or not card.origin.unchanged or row.top1 is None:
        return []
    return ["## Results", f"Top-1 accuracy {row.top1} % ({_markdown(row.evaluation)})."]


def _origin(origin: Origin) -> list[str]:
    row, variant = origin.weights, origin.variant
    if row is None or variant is None:
        return []
    how = "The weights are those of" if origin.unchanged else "The model was loaded from"
    how = "The classifier was trained on the features of" if origin.below_head else how
    how = "The model was fine-tuned from" if origin.tuned else how
    lines = [f"{how} {_code(f'{variant.name}:{row.name}')}"]
    lines += [f" ({_code(row.repo)})"] if row.repo else []
    terms = _markdown(row.license_note or "not known")
    lines += [f", license {terms}. Source: {_markdown(row.source)}."]
    if row.pretraining_data:
        lines.append(f" Pre-trained on {_markdown(row.pretraining_data)}.")
    if origin.unchanged:
        lines.append(
            " vitzoo wrote the tensors to a new file with other metadata. Therefore its SHA-256 "
            "differs from that of the registered file"
            + (f" ({_code(row.sha256)})." if row.sha256 else ".")
        )
    paper = [f"Network: {_markdown(variant.paper)}."] if variant.paper else []
    return ["## Origin", "".join(lines), *paper]


def _markdown(text: str) -> str:
    """Return a text of a registry file, a plugin or a user, which Markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]<>|&~$])", r"\\\1", printable(text))


def _code(text: str) -> str:
    """Return a name as a span of code, without the marks that would end the span."""
    return f"`{printable(text).replace('`', '')}`"
