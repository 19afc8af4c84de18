"""`push`: a folder that the Hub, vitzoo, timm and transformers read, and its upload."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitzoo.apps.publish.checks import CARD, MODEL, PUSH_FILES, check_push
from vitzoo.apps.publish.libraries import LibraryFolder
from vitzoo.apps.publish.model_card import Card, Origin, model_card
from vitzoo.apps.publish.section import read_section
from vitzoo.apps.publish.upload import check_upload, upload
from vitzoo.apps.publish.written import write_model
from vitzoo.display import brief
from vitzoo.errors import InvalidOption, StoreError, VitzooError
from vitzoo.factory import open_network
from vitzoo.files.folder_manifest import MANIFEST, write_manifest, writing_own
from vitzoo.keywords import check_progress, short_errors
from vitzoo.log import log
from vitzoo.opening import Named, is_model, locate
from vitzoo.progress import OnProgress, by_steps, reporting
from vitzoo.registry.registry import Registry, registry
from vitzoo.saving import whole_network
from vitzoo.schema.addresses import parts_of_name
from vitzoo.schema.rows import Variant
from vitzoo.schema.spec import Spec

if TYPE_CHECKING:
    from torch import nn


OPEN, WRITE, UPLOAD = "open the network", "write the folder", "upload"


@dataclass(frozen=True)
class Pushed:
    """What `push` wrote and uploaded.

    Args:
        repo: `owner/name`.
        library: whose calls load the folder: `timm`, `transformers`, or `vitzoo` alone.
        folder: path of the folder; None if it was temporary.
        files: size in bytes and sha256 of each file.
        url, commit: of the commit; empty if nothing was uploaded.
    """

    repo: str
    library: str
    folder: Path | None
    files: Mapping[str, tuple[int, str]]
    url: str = ""
    commit: str = ""

    __repr__ = brief


@short_errors
def push(
    model: str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module,
    repo: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    license: str | None = None,  # noqa: A002  # the Hub's name of it
    library: str | None = None,
    base_model: Sequence[str] = (),
    datasets: Sequence[str] = (),
    private: bool | None = None,
    force: bool = False,
    message: str = "Upload the model with vitzoo",
    on_progress: OnProgress | None = None,
    progress: bool = True,
) -> Pushed:
    """Write a model and its card to a folder, and upload the folder to a repository of the Hub.

    The folder has the weights, the configs of timm or of transformers with class names and
    preprocessing, a model card and `vitzoo.json`. `vitzoo.create("folder/")` loads it, and so does
    timm (`local-dir:folder`) or transformers (`from_pretrained(folder)`) if it has the network.
    Each file is hashed when it is written and compared before it is sent. The text of a file
    `card.md` beside the weights is part of the card; `curves.png`, `confusion.png`, `metrics.csv`
    and `run.toml` are copied if it links them.

    Args:
        model: the network, see docs/create.md#which-network. A variant gets its default weights.
        repo: `owner/name`.
        folder: where to write the folder; None writes a temporary one.
        dry_run: write the folder, and upload nothing.
        license: of the weights; None for that of the registered weights.
        library: `timm`, `transformers` or `vitzoo`; None for timm if it has the network, else
            vitzoo alone.
        base_model: repositories that the model was made from; by default that of its weights.
        datasets: names of data sets on the Hub that the model was trained on.
        private: whether a new repository is private; None for the owner's setting.
        force: replace a folder that `push` wrote, and commit to a repository that exists. A file of
            the folder that was changed since is kept, and an error.
        message: of the commit.
        on_progress: is called with the number of steps so far, of all, and the name of the next
            one. An error that it raises ends the call and is raised as it is.
        progress: whether to show a bar on a terminal or in a notebook.

    Raises:
        InvalidOption: the license is not known, the repository or the folder exists, or a value is
            not possible.
        CheckpointError: the library has no such network.
        NetworkError: one of its kinds; offline, before anything is written.
    """
    check_push(
        repo, folder, library, license, base_model, datasets, message, dry_run=dry_run, force=force
    )
    check_progress("push", on_progress, progress)
    token = "" if dry_run else check_upload(repo)
    zoo = registry()
    shown = reporting("push", on_progress, progress)
    with shown as report, _folder(folder, force=force) as part:
        step = by_steps(report, (OPEN, WRITE) if dry_run else (OPEN, WRITE, UPLOAD))
        step(OPEN)
        network, origin = _model(model, zoo)
        terms = _license(license, origin)
        section, beside = ("", {}) if is_model(model) else read_section(locate(model, zoo=zoo))
        step(WRITE)
        found = write_model(network, library, part, zoo)
        for name, content in beside.items():
            (part / name).write_bytes(content)
        card = Card(
            repo=repo,
            library=found.library if found else "vitzoo",
            call=_call(found, repo),
            model=network,
            license=terms,
            sha256=write_manifest(part, {})[MODEL][1],
            origin=replace(origin, variant=origin.variant or _variant(network.spec.variant, zoo)),
            base_model=base_model or _base(origin),
            datasets=datasets,
            section=section,
        )
        (part / CARD).write_text(model_card(card), encoding="utf-8", newline="\n")
        about = {"weights": repo, "library": card.library, "spec": network.spec.to_data()}
        files = write_manifest(part, about)
        url = commit = ""
        if not dry_run:
            step(UPLOAD)
            data = (part / MANIFEST).read_bytes()
            manifest = {MANIFEST: (len(data), sha256(data).hexdigest())}
            url, commit = upload(
                part, files | manifest, repo, token,
                message=message, private=private, force=force,
            )  # fmt: skip
        step("")
    path = None if folder is None else Path(folder)
    return Pushed(repo, card.library, path, files, url, commit)


def _model(model: object, zoo: Registry) -> tuple[Any, Origin]:
    """Return the model, and the registered weights that it was loaded from."""
    made = whole_network(model) if is_model(model) else open_network(model)
    origin = _origin(made, zoo)
    if isinstance(locate(model, zoo=zoo), Named):
        origin = replace(origin, unchanged=not made.load_report.reinitialised)
    return made, origin


def _origin(model: Any, zoo: Registry) -> Origin:
    report = model.load_report
    for place in (report.trunk or report.source, report.made_from):
        name, weights = parts_of_name(place)
        variant = _variant(name, zoo)
        row = next((w for w in variant.weights if w.name == weights), None) if variant else None
        if row:
            tuned = place == report.made_from
            return Origin(variant, row, below_head=bool(report.trunk), tuned=tuned)
    return Origin()


def _variant(name: str | None, zoo: Registry) -> Variant | None:
    try:
        return zoo.variant(name) if name else None
    except VitzooError:
        return None


def _license(given: str | None, origin: Origin) -> str:
    """Return the license; warn about terms of the weights that the model was loaded from."""
    row = origin.weights
    stated = given or (row.license if row else "")
    if not stated or stated == "unknown":
        raise InvalidOption(
            "the license of the weights is not known; pass --license NAME (license=), such as "
            "apache-2.0, if you may publish them"
        )
    if row is not None and row.has_terms:
        log.warning(
            "the weights come from %s, license %s; read whether its terms let you publish them%s",
            row.place,
            row.license_note or "not known",
            f": https://huggingface.co/{row.repo}" if row.repo else "",
        )
    return stated


def _base(origin: Origin) -> tuple[str, ...]:
    return (origin.weights.repo,) if origin.weights and origin.weights.repo else ()


@contextmanager
def _folder(folder: str | os.PathLike[str] | None, *, force: bool) -> Iterator[Path]:
    if folder is not None:
        with writing_own(Path(folder), PUSH_FILES, force=force) as part:
            yield part
        return
    try:
        with tempfile.TemporaryDirectory(prefix="vitzoo-push-") as path:
            yield Path(path)
    except OSError as error:
        if isinstance(error, VitzooError):
            raise
        raise StoreError(
            f"cannot write a temporary folder: {error.strerror}; pass --folder DIR (folder=)"
        ) from error


def _call(target: LibraryFolder | None, repo: str) -> str:
    if target is None:
        return ""
    place = f"hf-hub:{repo}" if target.library == "timm" else repo
    return target.call.replace("local-dir:{}", "{}").format(place)
