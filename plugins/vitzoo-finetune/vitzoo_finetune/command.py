"""The command `vitzoo finetune`; torch is imported after the checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vitzoo import read_labelled
from vitzoo.cli import (
    PATH,
    check_network,
    complete_names,
    device_option,
    json_option,
    print_rows,
    say,
    weights_option,
)
from vitzoo.errors import ExitCode
from vitzoo_finetune.recipes import read_recipe
from vitzoo_finetune.settings import (
    MANY,
    NAMES,
    OPTIMIZERS,
    SCHEDULES,
    TARGETS,
    Settings,
    leads,
    with_run,
)

number = click.FloatRange(0)
count = click.IntRange(1)


@click.command("finetune")
@click.argument("model", shell_complete=complete_names)
@click.argument("data", type=PATH)
@click.option("--out", metavar="DIR", type=PATH, required=True, help="Folder of all results.")
@click.option(
    "--target",
    type=click.Choice(TARGETS),
    help="Of an image: one class (the default), labels (any number of classes), or a number.",
)
@click.option(
    "--method",
    metavar="full|head|lora|last:N",
    help="What trains: all layers (the default), the classifier, an adapter, or the last N blocks "
    "and the classifier.",
)
@click.option(
    "--recipe",
    metavar="own|VARIANT:WEIGHTS",
    help="Take the recipe of the publishers of MODEL, or of other weights, as the defaults. "
    "What is not in it is off, or has the default of the README of vitzoo-finetune.",
)
@click.option(
    "--epochs",
    type=count,
    help="Passes through the training images. Default: as many as make 1,000 steps, from "
    "10 to 100.",
)
@click.option("--steps", type=click.IntRange(0), help="End after so many steps; 0: the epochs.")
@click.option("--optimizer", type=click.Choice(OPTIMIZERS), help="By timm's name; default: adamw.")
@click.option("--momentum", type=number, help="Of sgd and momentum; default: 0.9.")
@click.option(
    "--lr",
    type=number,
    help="Learning rate of the head. Default: for 64 images and a width of 384 3e-4, "
    "with head and lora 1e-3.",
)
@click.option(
    "--batch-size",
    type=count,
    help="Images of a step, in all processes together. Default: 64, or fewer for 10 "
    "steps in an epoch.",
)
@click.option(
    "--accumulate",
    type=count,
    help="Compute a step in so many parts: less memory. Default: 1.",
)
@click.option(
    "--layer-decay",
    type=number,
    help="Factor of the rate from layer to layer. Default: 0.75 for full and last:N, else 1.",
)
@click.option("--weight-decay", type=number, help="Weight decay of matrices. Default: 0.05.")
@click.option("--schedule", type=click.Choice(SCHEDULES), help="Fall of the rate; default: cosine.")
@click.option(
    "--warm-up",
    type=number,
    help="Share of the steps in which the rate rises. Default: 0.1.",
)
@click.option(
    "--clip",
    type=number,
    help="Largest norm of the gradients; 0 does not clip. Default: 1.",
)
@click.option(
    "--drop-path",
    type=number,
    help="Rate of drop path in the last block. Default: 0.1 for full and last:N with "
    "1,000 images, else 0.",
)
@click.option(
    "--label-smoothing",
    type=number,
    help="Label smoothing of the loss. Default: 0.1 for one class of each image with "
    "1,000 images, else 0.",
)
@click.option(
    "--augment",
    metavar="NAMES",
    help="crop or simple-crop, flip, randaugment or timm's rand-..., and 3-augment, separated by "
    "commas; or none. The default, crop, is right for digits and text; crop,flip is for photos.",
)
@click.option("--crop-scale", type=number, help="Smallest share of a crop; default: 0.5.")
@click.option("--color-jitter", type=number, help="Brightness, contrast, saturation; default: 0.")
@click.option("--erase", type=number, help="Probability of random erasing; default: 0.")
@click.option("--mixup", type=number, help="Alpha of mixup; 0, the default, does not mix.")
@click.option("--cutmix", type=number, help="Alpha of CutMix; 0, the default, does not mix.")
@click.option(
    "--image-size",
    metavar="PX",
    type=count,
    help="Side of the images in px. Default: that of MODEL.",
)
@click.option("--precision", type=click.Choice(("32", "bf16", "16")), help="Autocast; default: 32.")
@click.option("--rank", type=count, help="Rank of LoRA. Default: 8.")
@click.option(
    "--balance",
    is_flag=True,
    default=None,
    help="Draw images with probabilities of 1/frequency of their classes.",
)
@click.option(
    "--ema", type=number, help="Average weights with this decay, such as 0.9999; default: 0."
)
@click.option(
    "--patience",
    type=click.IntRange(0),
    help="Epochs without a better one before the end. Default: 0, all epochs.",
)
@click.option("--seed", type=click.IntRange(0), help="Of all random numbers. Default: 0.")
@click.option("--run", metavar="FILE", type=PATH, help="Take the settings of this run.toml.")
@weights_option
@click.option("--image-column", metavar="NAME", help="Column of paths or images in a file.")
@click.option("--label-column", metavar="NAME", help="Column of classes or numbers in a file.")
@click.option("--split-column", metavar="NAME", help="Column of train, val and test in a file.")
@device_option
@click.option("--devices", type=count, default=1, show_default=True, help="Number of GPUs.")
@click.option(
    "--shard",
    is_flag=True,
    help="Divide weights and optimizer among the GPUs with FSDP2: less memory; without --ema.",
)
@click.option(
    "--workers",
    type=click.IntRange(0),
    help="Processes that read images. Default: 0 on a CPU, else up to 8.",
)
@click.option("--grad-checkpointing", is_flag=True, help="Compute activations twice: less memory.")
@click.option(
    "--save-every",
    type=count,
    default=500,
    show_default=True,
    help="Steps between checkpoints within an epoch.",
)
@click.option("--force", is_flag=True, help="Replace the results of another run in DIR.")
@json_option
def finetune_command(
    model: str, data: Path, out: Path, weights: str | None, as_json: bool, **options: Any
) -> None:
    """Fine-tune MODEL on the labelled images in DATA.

    MODEL is a variant, VARIANT:WEIGHTS, a path or hf://OWNER/REPO: see
    docs/create.md#which-network.

    DATA is a folder with one folder of images for each class, or with folders train, val and test
    that have these; or a .csv, .tsv or .parquet file with the columns path and label, and perhaps
    split. The validation images choose the epoch, and the test images are measured once. Without
    validation images, a fifth of the training images is used for validation.

    Each option that is not given gets a default for the method and the number of images, which is
    printed. The same command continues a run that was interrupted.

    An image that cannot be read is named and left out, and the exit code is 1.

    \b
    Examples:
      vitzoo finetune dinov2/vit_s14 photos --out flowers
      vitzoo finetune vit_b16 photos.csv --out flowers --method lora
      vitzoo finetune mae/vit_b16 photos --out flowers --recipe own
      vitzoo predict flowers/ image.jpg
    """
    named = check_network(model, weights)
    given: dict[str, Any] = {"model": model}
    given |= {name: options[name] for name in NAMES if name in options}
    given = with_run(given, options["run"])
    recipe = read_recipe(given["recipe"], named, weights)
    Settings.complete(given, MANY, 0, recipe)  # refuses wrong values early
    if not data.exists():
        read_labelled(data)  # raises
    from vitzoo_finetune.run import finetune

    try:
        made = finetune(model, data, out, weights=weights, on_text=say, **options)
    except KeyboardInterrupt:
        say("vitzoo: interrupted; the same command continues the run after its last checkpoint")
        raise
    if not leads():
        return
    found = made.to_data()
    columns = ("path", "best_epoch", f"val_{made.metric}", f"test_{made.metric}")
    shown = {key: found[key] for key in columns if key in found}
    row = {key: round(x, 4) if isinstance(x, float) else x for key, x in shown.items()}
    print_rows([row], columns, as_json=as_json, data=found)
    if made.broken:
        click.get_current_context().exit(ExitCode.FAILED)
