"""Fine-tune a network: on one device, with DDP, or with FSDP2. Copy this file and change it.

    python docs/examples/finetune.py --data FOLDER --model vit_b16 --out RUN
    torchrun --nproc-per-node 2 docs/examples/finetune.py --data FOLDER --model vit_b16 --out RUN
    torchrun --nproc-per-node 2 docs/examples/finetune.py --fsdp --data FOLDER ... --out RUN

FOLDER has the folders `train` and `val`, each with one folder of images per class. Without
`--data`, the data are scikit-learn's digits. The batch size is that of all processes together, and
the images of a step depend on the seed and the step only. The same command continues after the
last checkpoint in RUN, also with another number of processes, and with or without `--fsdp`. Drop
path and mixup are drawn in each process: then the number of processes changes the losses.
"""

import argparse
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.state_dict as states
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

import vitzoo

FREE = ("out", "fsdp", "workers", "save_every", "log_every")  # may differ when a run continues
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
NUMBERS = {  # and their defaults; the warm-up is a share of the steps, the shift one of the image
    "epochs": 10, "batch-size": 64, "lr": 1e-3, "layer-decay": 0.75, "weight-decay": 0.05,
    "warm-up": 0.1, "clip": 1.0, "drop-path": 0.1, "mixup": 0.0, "label-smoothing": 0.1,
    "shift": 0.1, "ema": 0.0, "workers": 0, "save-every": 100, "log-every": 10, "seed": 0,
}  # fmt: skip


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Fine-tune a network of vitzoo.")
    add = parser.add_argument
    add("--model", default="vit_digits", help="a name, a file of vitzoo.save, or a spec file")
    add("--scratch", action="store_true", help="start a named network from random weights")
    add("--data", type=Path, help="folder with train/CLASS/* and val/CLASS/*")
    add("--out", type=Path, required=True, help="folder for checkpoints and model.safetensors")
    add("--freeze", help="the first layer that trains, such as blocks.9 or head")
    add("--image-size", type=int, help="px; that of the network by default")
    add("--bf16", action="store_true", help="autocast to bfloat16")
    add("--fsdp", action="store_true", help="FSDP2 instead of DDP")
    for name, default in NUMBERS.items():
        add(f"--{name}", type=type(default), default=default, help="default: %(default)s")
    return parser.parse_args()


def visible(folder: Path) -> list[Path]:
    """Return what a folder has, in order, without files of the system such as `.DS_Store`."""
    hidden = (".", "@eaDir", "__MACOSX")
    return sorted(path for path in folder.iterdir() if not path.name.startswith(hidden))


def listed(folder: Path, name: str) -> list[Path]:
    """Return what is in `train`, `val` or a class of these; exit if that folder is missing."""
    if not (folder / name).is_dir():
        expected = f"{folder / 'train' / 'CLASS'} and {folder / 'val' / 'CLASS'}"
        raise SystemExit(f"{folder} has no folder {name}; expected {expected}")
    return visible(folder / name)


def read_data(folder: Path | None) -> tuple[list[str], list[Any], list[Any]]:
    """Return the classes, and (image or path, class) pairs for training and for validation."""
    if folder is None:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()  # 8x8 px, bright ink on black, values to 16; split as for vit_digits
        images = [Image.fromarray((x * 255 / 16).round().astype("uint8")) for x in digits.images]
        pairs, split = list(zip(images, digits.target.tolist(), strict=True)), digits.target
        parts = train_test_split(pairs, test_size=0.2, stratify=split, random_state=0)
        return list("0123456789"), *parts
    classes = [path.name for path in listed(folder, "train") if path.is_dir()]
    found: dict[str, list[Any]] = {"train": [], "val": []}
    left_out = 0
    for part, named in found.items():
        for k, name in enumerate(classes):
            paths = listed(folder, f"{part}/{name}")
            images = [path for path in paths if path.suffix.lower() in ENDINGS]
            named += [(path, k) for path in images]
            left_out += len(paths) - len(images)
    if left_out and os.environ.get("RANK", "0") == "0":
        print(f"{left_out} files are left out, because their names do not end in {ENDINGS}")
    return classes, found["train"], found["val"]


class Images(Dataset[tuple[Tensor, int]]):
    """Inputs of a network; the key (index, seed) of an image also seeds its augmentation."""

    def __init__(self, pairs: list[Any], transform: vitzoo.Transform, shift: float = 0.0) -> None:
        self.pairs, self.transform, self.shift = pairs, transform, shift

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        """Return the input (c, h, w) of an image, shifted at random, and its class."""
        (image, label), generator = self.pairs[key[0]], torch.Generator().manual_seed(key[1])
        x = self.transform(image)  # put your augmentation here
        n = round(self.shift * x.shape[1])
        top, left = torch.randint(2 * n + 1, (2,), generator=generator).tolist()
        padded = F.pad(x, (n, n, n, n), mode="replicate")
        return padded[:, top : top + x.shape[1], left : left + x.shape[2]], label


def shard(model: Any) -> None:
    """Shard a network block by block; its methods other than `forward` gather parameters, too."""
    for module in (*model.blocks, model):
        fully_shard(module)
    for method in ("forward_features", "forward_head", "features", "forward_intermediates"):
        register_fsdp_forward_method(model, method)


class Run:
    """A network in training, with everything that a checkpoint contains."""

    def __init__(self, args: argparse.Namespace, classes: list[str], count: int) -> None:
        self.args, self.step, self.count = args, 0, count
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        if args.batch_size % self.world or args.batch_size > count:
            most = max(count // self.world, 1) * self.world
            raise SystemExit(
                f"--batch-size is {args.batch_size}, expected at most the {count} training images, "
                f"and a multiple of the number of processes ({self.world}); pass {most} or less"
            )
        self.steps = count // args.batch_size * args.epochs
        self.device = torch.device("cpu")
        if torch.cuda.is_available():
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
        self.options = {"num_classes": len(classes), "image_size": args.image_size}
        named = {} if args.scratch or Path(args.model).suffix else {"pretrained": True}
        drop = {"name": "linear", "rate": args.drop_path, "mode": "subset"}
        self.model = vitzoo.create(args.model, drop_path=drop, **named, **self.options)
        self.transform = vitzoo.transform(self.model)
        self.model.to(self.device)
        if args.freeze:
            vitzoo.freeze(self.model, until=args.freeze)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(args.ema))
        self.network: nn.Module = self.model
        if args.fsdp:
            shard(self.model)
            shard(self.ema.module)
        elif self.world > 1:
            self.network = DistributedDataParallel(self.model)
        decay = {"layer_decay": args.layer_decay, "weight_decay": args.weight_decay}
        self.optimizer = torch.optim.AdamW(vitzoo.param_groups(self.model, args.lr, **decay))
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.settings = {key: str(value) for key, value in vars(args).items() if key not in FREE}

    def state(self) -> dict[str, Any]:
        """Return all tensors, under names that do not depend on how they are sharded."""
        weights, moments = states.get_state_dict(self.model, self.optimizer)
        average = states.get_model_state_dict(self.ema.module)
        return {"model": weights, "optim": moments, "ema": average}

    def checkpoints(self) -> list[Path]:
        """Return the folders of complete checkpoints, the oldest first."""
        return sorted(self.args.out.glob("step-*"), key=lambda path: int(path.name[5:]))

    def save(self) -> None:
        """Write a checkpoint under a temporary name, rename it, and remove those before it."""
        old, partial = self.checkpoints(), self.args.out / f"partial-{self.step}"
        dcp.save(self.state(), checkpoint_id=partial)
        if self.rank == 0:  # with a rename, a checkpoint is complete or has another name
            (partial / "settings.json").write_text(json.dumps(self.settings))
            partial.rename(self.args.out / f"step-{self.step}")
            for folder in old:
                shutil.rmtree(folder)

    def resume(self) -> None:
        """Continue after the last checkpoint, if there is one."""
        for found in self.checkpoints()[-1:]:
            before = json.loads((found / "settings.json").read_text())
            if other := [key for key in before if before[key] != self.settings.get(key)]:
                raise SystemExit(f"{found} was made with another value of {', '.join(other)}")
            dcp.load(state := self.state(), checkpoint_id=found)
            states.set_model_state_dict(self.model, state["model"])
            states.set_optimizer_state_dict(self.model, self.optimizer, state["optim"])
            states.set_model_state_dict(self.ema.module, state["ema"])
            self.step = int(found.name[5:])
            self.ema.n_averaged.fill_(self.step)

    def keys(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the keys of this process's images for each step that is left."""
        size, seed = self.args.batch_size, self.args.seed * self.args.epochs
        start, steps, generator = self.step, self.count // size, torch.Generator()
        for epoch in range(start // steps, self.args.epochs):
            order = torch.randperm(self.count, generator=generator.manual_seed(seed + epoch))
            for chosen in order.split(size)[max(start - epoch * steps, 0) : steps]:
                mine = chosen[self.rank :: self.world].tolist()
                yield [(index, (seed + epoch) * self.count + index) for index in mine]

    def train(self, x: Tensor, target: Tensor) -> float:
        """Make one step with inputs (b, c, h, w) and targets (b, k); return the mean loss."""
        args, rise = self.args, max(round(self.args.warm_up * self.steps), 1)
        after = (self.step - rise) / max(self.steps - rise, 1)  # the cosine's share of the steps
        factor = (self.step + 1) / rise if after < 0 else (1 + math.cos(math.pi * after)) / 2
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        torch.manual_seed((args.seed * self.steps + self.step) * self.world + self.rank)
        if args.mixup:  # with the reversed batch
            share = float(torch.distributions.Beta(args.mixup, args.mixup).sample())
            x, target = x.lerp(x.flip(0), share), target.lerp(target.flip(0), share)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=args.bf16):
            logits = self.network(x)
        loss = F.cross_entropy(logits.float(), target, label_smoothing=args.label_smoothing)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), args.clip)
        self.optimizer.step()
        self.ema.update_parameters(self.model)
        self.step += 1
        dist.all_reduce(total := loss.detach())
        return float(total) / self.world

    @torch.no_grad()
    def accuracy(self, model: nn.Module, data: Images) -> float:
        """Return the share of images that are classified correctly."""
        count, size = len(data.pairs), self.args.batch_size
        right = torch.zeros((), device=self.device)
        model.eval()
        for start in range(0, count, size):  # every process calls the network equally often
            mine = range(start + self.rank, start + size, self.world)
            x, label = zip(*(data[min(i, count - 1), 0] for i in mine), strict=True)
            hits = model(torch.stack(x).to(self.device)).argmax(1).cpu() == torch.tensor(label)
            right += hits[torch.tensor(mine) < count].sum().item()
        dist.all_reduce(right)
        return float(right) / count


def main() -> None:
    """Fine-tune, evaluate and save."""
    args = arguments()
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(**alone)
    torch.manual_seed(args.seed)  # of a new head
    classes, train, val = read_data(args.data)
    run = Run(args, classes, len(train))
    run.resume()
    run.network.train()
    data, keys = Images(train, run.transform, args.shift), run.keys()
    for images, labels in DataLoader(data, batch_sampler=keys, num_workers=args.workers):
        target = F.one_hot(labels, len(classes)).float()
        loss = run.train(images.to(run.device), target.to(run.device))
        if run.rank == 0 and run.step % args.log_every == 0:
            print(f"step {run.step} of {run.steps}: loss {loss:.6f}", flush=True)
        if run.step % args.save_every == 0 or run.step == run.steps:
            run.save()
    best = run.ema.module if args.ema else run.model
    share = run.accuracy(best, Images(val, run.transform))
    whole = states.StateDictOptions(full_state_dict=True)
    tensors = states.get_model_state_dict(best, options=whole)
    if run.rank == 0:
        trained = vitzoo.create(args.model, **run.options)
        trained.load_state_dict(tensors)
        trained.labels, trained.preprocessing = tuple(classes), run.transform.preprocessing
        trained.output_activation = "softmax"  # as the loss
        path = vitzoo.save(trained, args.out / "model.safetensors")
        print(f"validation: {100 * share:.2f} % of {len(val)} images are correct; saved {path}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
