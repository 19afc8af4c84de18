"""`finetune`: from labelled images to a file that `create` and `predict` take."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import threading
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

import vitzoo
from vitzoo.cli import check_network
from vitzoo.errors import FirstUseWarning, InvalidOption, VitzooError, short_repr
from vitzoo_finetune import results
from vitzoo_finetune.augmenting import augmented
from vitzoo_finetune.averaging import Averaging
from vitzoo_finetune.checkpoints import SafeCheckpoints, read_tensors, same_settings
from vitzoo_finetune.checks import check_counts, check_parts, check_paths, check_shard, place_of
from vitzoo_finetune.images import (
    Batches,
    Data,
    Every,
    Images,
    Loader,
    read_data,
)
from vitzoo_finetune.networks import finish, prepared, source_of
from vitzoo_finetune.optimizing import mixing_of
from vitzoo_finetune.progress import Move, Moving, bar
from vitzoo_finetune.recipes import read_recipe
from vitzoo_finetune.settings import CLASS, NAMES, Settings, checked_target, leads, with_run
from vitzoo_finetune.sharding import Sharding, set_whole
from vitzoo_finetune.targets import Answers, Classes
from vitzoo_finetune.training import Epoch, Saving, Training

CARD = "card.md"  # a section of the model card, which `vitzoo push` takes over
WEIGHTS, RUN, CHECKPOINT = "model.safetensors", "run.toml", "checkpoint.safetensors"
METRICS = "metrics.csv"
CURVES, CONFUSION, MISTAKES = FIGURES = "curves.png", "confusion.png", "mistakes.png"
PRECISIONS: dict[str, Any] = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}
LOGGERS = ("lightning.pytorch", "lightning.fabric", "torch.utils._pytree")  # for their authors
LIBRARIES = ("vitzoo", "vitzoo-finetune", "lightning", "timm", "torch", "torchvision")
MEMORY = ("out of memory", "can't allocate memory", "not enough memory")  # in errors of torch


@dataclass(frozen=True)
class Finetuned:
    """The result of a run.

    Args:
        out: the folder.
        path: `model.safetensors` in it, with the weights of the best epoch.
        settings: all of them.
        classes: names, in the order of the logits.
        best_epoch: from 1.
        metric: `accuracy`, `mAP` or `MAE`.
        val_score: this metric on the validation images, which chose the epoch.
        test_score: on the test images, which chose nothing; None without test images.
        broken: name and error of each image that was left out because it cannot be read.
    """

    out: Path
    path: Path
    settings: Settings
    classes: tuple[str, ...]
    best_epoch: int
    metric: str
    val_score: float
    test_score: float | None
    broken: tuple[tuple[str, str], ...] = ()

    def to_data(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "out": str(self.out),
            "path": str(self.path),
            "best_epoch": self.best_epoch,
            f"val_{self.metric}": self.val_score,
            f"test_{self.metric}": self.test_score,
            "classes": list(self.classes),
            "broken": [{"image": name, "error": error} for name, error in self.broken],
            "settings": self.settings.to_data(),
        }


def finetune(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    weights: str | os.PathLike[str] | None = None,
    target: str | None = None,
    method: str | None = None,
    recipe: str | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    optimizer: str | None = None,
    momentum: float | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    accumulate: int | None = None,
    layer_decay: float | None = None,
    weight_decay: float | None = None,
    schedule: str | None = None,
    warm_up: float | None = None,
    clip: float | None = None,
    drop_path: float | None = None,
    label_smoothing: float | None = None,
    augment: str | None = None,
    crop_scale: float | None = None,
    color_jitter: float | None = None,
    erase: float | None = None,
    mixup: float | None = None,
    cutmix: float | None = None,
    image_size: int | None = None,
    precision: str | None = None,
    rank: int | None = None,
    balance: bool | None = None,
    ema: float | None = None,
    patience: int | None = None,
    seed: int | None = None,
    run: str | os.PathLike[str] | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    device: str | None = None,
    devices: int = 1,
    shard: bool = False,
    workers: int | None = None,
    grad_checkpointing: bool = False,
    save_every: int = 500,
    force: bool = False,
    progress: bool = True,
    on_text: Callable[[str], object] | None = None,
) -> Finetuned:
    """Fine-tune a network on labelled images, and save the weights of its best epoch.

    The validation images choose the epoch, and test images are measured once. Without validation
    images, a fifth of the training images is used for validation. The same call continues a run
    that was interrupted. On a CPU, the same call gives the same bytes, interrupted or not.

    Args:
        model: a name, a path or an address, as for `vitzoo.create`. A name gets trained weights.
        data: what `vitzoo.read_labelled` reads.
        out: folder of the results. Nothing is written elsewhere.
        weights: name of weights, or a file; None: the default weights.
        target: `class` (None), `labels` for any number of classes of an image, or `number`: see
            `vitzoo.read_labelled`.
        method: `full` trains all layers, `head` the classifier, `last:N` the last N blocks and the
            classifier, `lora` an adapter. None: `full`.
        recipe: `own`, or VARIANT:WEIGHTS: take what the publishers of the network, or of these
            weights, state as the defaults. The rate is in proportion to the batch size.
        epochs, steps, optimizer, momentum, lr, batch_size, accumulate, layer_decay, weight_decay,
            schedule, warm_up, clip, drop_path, label_smoothing, augment, crop_scale, color_jitter,
            erase, mixup, cutmix, image_size, precision, rank, balance, ema, patience, seed: see
            `Settings`. None: a default for this method and number of images.
        run: a file `run.toml` of another run, whose settings are the defaults.
        image_column, label_column, split_column: names of columns of a file.
        device: such as `cpu` or `cuda:1`. None: VITZOO_DEVICE, or a GPU if there is one.
        devices: number of GPUs, or of processes on the CPU.
        shard: divide parameters, gradients and the optimizer among the devices with FSDP2: less
            memory.
        workers: processes that read images. They do not change the result.
        grad_checkpointing: compute activations twice instead of keeping them: less memory.
        save_every: steps between checkpoints within an epoch.
        force: replace the results of another run in `out`.
        progress: whether to show a bar on a terminal.
        on_text: is called with each line about the run.

    Raises:
        InvalidOption: a value is not possible, the data has no two classes, or memory is too small.
        VitzooError: the network cannot be created, or the loss is not finite.
    """
    check_paths(model, weights)
    weights = None if weights is None else os.fspath(weights)
    given = {name: value for name, value in locals().items() if name in NAMES}
    given["model"] = os.fspath(model)
    say = on_text if on_text and leads() else lambda _text: None
    passed, given = given, with_run(given, run)
    weights = given["weights"] or None
    named = check_network(given["model"], weights)
    place = place_of(device, devices)
    check_counts(save_every=(save_every, 1), workers=(0 if workers is None else workers, 0))
    folder = _checked(Path(out))
    columns = {
        "image_column": image_column,
        "label_column": label_column,
        "split_column": split_column,
    }
    chosen = read_recipe(given.get("recipe"), named, weights)
    size = given.get("image_size")
    size = chosen.values["image_size"] if chosen and size is None else size
    prepare = vitzoo.transform(given["model"], image_size=size or None)
    kind = CLASS if given["target"] is None else checked_target(given["target"])
    found = read_data(Path(data), columns, prepare, kind)
    settings = Settings.complete(given, len(found.train), named.spec.embed_dim or 0, chosen)
    augmented(given["model"], prepare, settings)  # refuses what the images cannot be
    check_parts(settings, devices)
    if shard:
        check_shard(settings, devices)
    if (folder / RUN).exists() and not force:
        made = _finished(folder, settings, found)
        say(f"{folder} has this run already; force=True (--force) repeats it")
        if leads():
            _tidy(folder)
        return made
    resume = (folder / CHECKPOINT).exists() and not force
    if resume:
        _check_same(same_settings(folder / CHECKPOINT), _state(settings, found), folder)
        say(f"continues the run in {folder}")
    _explain(found, say)
    if chosen:
        say(f"recipe of {chosen.name}: {chosen.source}")
    h, w = named.spec.image_size
    if settings.image_size and (h, w) != (settings.image_size, settings.image_size):
        say(
            f"the network gets images of {settings.image_size} px instead of {h}x{w} px: its "
            "position embedding is interpolated"
        )
    say(chosen.explain(settings, passed) if chosen else _shown(settings))
    if force and leads():
        _clear(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _quiet(), _memory(settings), bar(progress) as move:
        return _trained(
            settings, found, folder, say,
            place=place, shard=shard, workers=workers, save_every=save_every,
            grad_checkpointing=grad_checkpointing, resume=resume, move=move,
        )  # fmt: skip


def _trained(
    settings: Settings,
    data: Data,
    folder: Path,
    say: Callable[[str], object],
    *,
    place: Mapping[str, Any],
    shard: bool,
    workers: int | None,
    save_every: int,
    grad_checkpointing: bool,
    resume: bool,
    move: Move,
) -> Finetuned:
    """Train, measure, and write all files; the checkpoint is removed last."""
    model, network = prepared(settings, data.target)
    if (report := getattr(model, "load_report", None)) is not None:
        say(report.summary())
    if grad_checkpointing:
        model.set_grad_checkpointing()
    prepare = vitzoo.transform(model)
    pipeline = augmented(model, prepare, settings)
    trained = Images(data.train, data.target, pipeline, settings.seed)
    steps = len(data.train) // settings.batch_size * settings.epochs
    steps = min(settings.steps or steps, steps)
    module = Training(
        network, data.target, data.validation, settings, steps, folder, lambda _epoch: None,
        mixing_of(settings, len(data.classes)),
    )  # fmt: skip
    averages = [Averaging(settings.ema)] if settings.ema else []
    callbacks: list[Callback] = [
        *averages,
        Saving(folder / CHECKPOINT, save_every, settings.accumulate),
        Moving(move),
    ]
    trainer = Trainer(
        **place,
        strategy=Sharding(place["devices"]) if shard else "auto",
        max_epochs=settings.epochs,
        precision=PRECISIONS[settings.precision],
        accumulate_grad_batches=settings.accumulate,
        gradient_clip_val=settings.clip or None,
        default_root_dir=folder,
        plugins=[SafeCheckpoints(_state(settings, data))],
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )

    def note(epoch: Epoch) -> None:
        if trainer.is_global_zero:
            results.write_metrics(folder / METRICS, module.epochs)
            say(
                f"epoch {epoch['epoch']} of {settings.epochs}: loss {epoch['train_loss']:.4f}, "
                f"validation {data.target.shown(epoch[f'val_{data.target.metric}'])}"
            )

    module.note = note
    loaders = _Loaders(settings, data, prepare, trainer, module, _workers(workers, trainer))
    start = folder / CHECKPOINT
    trainer.fit(
        module,
        loaders.train(trained),
        loaders.every(data.validation),
        ckpt_path=start if resume else None,
        weights_only=False,
    )
    trainer.strategy.barrier()
    best, _ = read_tensors(module.best_path)
    set_whole(network, best)
    tested = data.test or data.validation
    trainer.test(module, loaders.every(tested), verbose=False)
    measured = module.measured()
    if trainer.is_global_zero:
        _write(settings, data, folder, module, best, measured, prepare, source_of(model))
    trainer.strategy.barrier()
    made = _finished(folder, settings, data)
    if trainer.is_global_zero:
        _tidy(folder)
    return made


def _write(
    settings: Settings,
    data: Data,
    folder: Path,
    module: Training,
    best: Mapping[str, Tensor],
    lines: Answers,
    prepare: vitzoo.Transform,
    source: Any,
) -> None:
    """Write the files of a finished run; `run.toml`, which says that it is finished, last."""
    final = finish(settings, data.target, best, prepare.preprocessing, folder)
    vitzoo.save(final, folder / WEIGHTS, made_from=source)
    target, metric = data.target, data.target.metric
    results.draw_curves(folder / CURVES, target, module.epochs, module.best)
    part, pairs = ("test", data.test) if data.test else ("validation", data.validation)
    true = [answer for _, answer in pairs]
    score = target.score(lines[:, 2:], true)
    for name in (CONFUSION, MISTAKES):
        (folder / name).unlink(missing_ok=True)
    if isinstance(target, Classes):
        title = f"{score:.1%} of {len(pairs)} {part} images"
        confusion = target.confusion(lines[:, 2:], true)
        results.draw_confusion(folder / CONFUSION, title, confusion, target.names)
    results.draw_mistakes(folder / MISTAKES, target, pairs, lines)
    epoch = module.epochs[module.best - 1]
    result = {"best_epoch": module.best, f"val_{metric}": epoch[f"val_{metric}"]}
    tables = {
        "settings": settings.to_data(),
        "data": data.to_data(),
        "source": {"sha256": source.sha256 if source else ""},
        "versions": {name: version(name) for name in LIBRARIES},
        "result": result | ({f"test_{metric}": score} if data.test else {}),
    }
    named = check_network(settings.model, settings.weights or None)
    public = named.variant is not None and (named.weights is not None or not settings.weights)
    shown = isinstance(target, Classes)
    results.write_card(folder / CARD, settings, tables, confusion=shown, public=public)
    results.write_run(folder / RUN, tables)


class _Loaders:
    """Makes the loaders of a run, for one process."""

    def __init__(
        self,
        settings: Settings,
        data: Data,
        prepare: vitzoo.Transform,
        trainer: Trainer,
        module: Training,
        workers: int,
    ) -> None:
        self.settings, self.target, self.prepare = settings, data.target, prepare
        self.module = module
        self.rank, self.world = trainer.global_rank, trainer.world_size
        self.options: dict[str, Any] = {
            "num_workers": workers,
            "persistent_workers": workers > 0,
            "pin_memory": trainer.strategy.root_device.type == "cuda",
        }

    def train(self, images: Images) -> Loader:
        answers = [answer for _, answer in images.pairs]
        weights = self.target.weights(answers) if self.settings.balance else None
        batches = Batches(len(images.pairs), self.settings, self.rank, self.world, weights)
        loader = Loader(images, batch_sampler=batches, **self.options)
        loader.position = lambda: self.module.place
        return loader

    def every(self, pairs: Any) -> Loader:
        size = max(self.settings.batch_size // self.settings.accumulate // self.world, 1)
        images = Images(pairs, self.target, self.prepare, self.settings.seed)
        batches = Every(len(pairs), size, self.rank, self.world)
        loader = Loader(images, batch_sampler=batches, **self.options)
        loader.position = lambda: (0, 0)
        return loader


def _checked(out: Path) -> Path:
    """Return the folder of a run.

    Raises:
        InvalidOption: it is a file, or has other files.
    """
    if out.exists() and not out.is_dir():
        raise InvalidOption(f"{out} is a file, expected a folder for the results")
    names = {path.name for path in out.iterdir()} if out.exists() else set[str]()
    of_run = (RUN, CHECKPOINT, METRICS, "best-")  # also of a run that was killed
    if names and not any(name.startswith(of_run) for name in names):
        raise InvalidOption(
            f"{out} has other files, such as {min(names)}; pass a new folder for the results"
        )
    return out


def _tidy(out: Path) -> None:
    """Remove what a run that has ended does not need."""
    for path in (out / CHECKPOINT, *out.glob("best-*.safetensors"), *out.glob("*.partial")):
        path.unlink(missing_ok=True)


def _clear(out: Path) -> None:
    """Remove what another run wrote."""
    for name in (RUN, WEIGHTS, METRICS, CARD, *FIGURES):
        (out / name).unlink(missing_ok=True)
    _tidy(out)
    shutil.rmtree(out / "adapter", ignore_errors=True)


def _shown(settings: Settings) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.used().items())


def _state(settings: Settings, data: Data) -> dict[str, Any]:
    """Return what must be equal for a run to continue."""
    return settings.to_data() | {"data": data.sha256}


def _check_same(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Refuse to continue a run with other settings or other data."""
    other = [name for name in now if before.get(name) != now[name]]
    if other:
        name = other[0]
        shown = f"{name} {short_repr(before.get(name))}, now {short_repr(now[name])}"
        raise InvalidOption(
            f"{folder} has a run with other values of {', '.join(other)} ({shown}); pass the same "
            "values, another folder, or force=True (--force) to start again"
        )


def _finished(folder: Path, settings: Settings, data: Data) -> Finetuned:
    """Return the result in a folder, whose run must have been the same."""
    table = tomllib.loads((folder / RUN).read_text(encoding="utf-8"))
    before = table["settings"] | {"data": table["data"]["sha256"]}
    _check_same(before, _state(settings, data), folder)
    result, metric = table["result"], data.target.metric
    return Finetuned(
        folder,
        folder / WEIGHTS,
        settings,
        data.classes,
        result["best_epoch"],
        metric,
        result[f"val_{metric}"],
        result.get(f"test_{metric}"),
        data.broken,
    )


def _explain(data: Data, say: Callable[[str], object]) -> None:
    """Say what is trained on what."""
    drawn = ", a fifth of the training images" if data.drawn else ""
    say(
        f"{len(data.train)} training, {len(data.validation)} validation{drawn}, and "
        f"{len(data.test)} test images of {data.target}"
    )
    for name, error in data.broken:
        say(f"left out: {name}: {error}")
    for ending, count in data.left_out.items():
        say(f"left out, no images by their names: {ending} ({count})")
    for names in data.conflicts:
        say(f"the same bytes have different classes: {', '.join(names)}")


def _workers(workers: int | None, trainer: Trainer) -> int:
    if workers is not None:
        return workers
    if trainer.strategy.root_device.type == "cpu":
        return 0
    return min(8, max((os.cpu_count() or 1) // trainer.num_devices - 1, 0))


@contextmanager
def _memory(settings: Settings) -> Iterator[None]:
    """Turn torch's error about memory into one with a fix."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, VitzooError) or not any(text in str(error) for text in MEMORY):
            raise
        parts = 2 * settings.accumulate
        raise InvalidOption(
            f"out of memory with batch_size {settings.batch_size} in {settings.accumulate} parts; "
            f"pass accumulate={parts} (--accumulate {parts}), which keeps the batch and the rate, "
            "or grad_checkpointing=True (--grad-checkpointing), then repeat the command with "
            "force=True (--force)"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep notes for authors away; put random numbers and the answer to Ctrl-C back at the end."""
    main = threading.current_thread() is threading.main_thread()
    interrupted = signal.getsignal(signal.SIGINT)
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", FirstUseWarning)
            yield
    except SystemExit:  # Lightning's answer to Ctrl-C
        raise KeyboardInterrupt from None
    finally:
        if main:
            signal.signal(signal.SIGINT, interrupted)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        random.setstate(state[0])
        np.random.set_state(state[1])
        torch.set_rng_state(state[2])
