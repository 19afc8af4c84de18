"""A training loop of timm's parts, without vitzoo's: what `finetune` is compared with."""

import torch
from PIL import Image
from timm.data.mixup import Mixup
from timm.data.transforms_factory import transforms_imagenet_train
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from timm.models.vision_transformer import VisionTransformer
from timm.optim import create_optimizer_v2, param_groups_layer_decay
from timm.scheduler import create_scheduler_v2
from timm.utils import dispatch_clip_grad
from torch.utils.data import DataLoader


def network_like(model):
    """Return timm's network with the sizes and the weights of one of vitzoo."""
    spec = model.spec
    made = VisionTransformer(
        spec.image_size,
        spec.patch_size,
        spec.in_chans,
        spec.num_classes,
        embed_dim=spec.embed_dim,
        depth=spec.depth,
        num_heads=spec.num_heads,
        mlp_ratio=spec.mlp_dim / spec.embed_dim,
    )
    made.load_state_dict(model.state_dict())
    return made


def train(network, batches, settings, steps, *, seed_step=None):
    """Train on batches of images and labels; return the loss of each step."""
    groups = param_groups_layer_decay(
        network,
        settings.weight_decay,
        no_weight_decay_list=network.no_weight_decay(),
        layer_decay=settings.layer_decay,
    )
    optimizer = create_optimizer_v2(groups, opt=settings.optimizer, lr=settings.lr)
    rise = round(settings.warm_up * steps)
    schedule, _ = create_scheduler_v2(
        optimizer, "cosine", steps - rise, warmup_epochs=rise, warmup_prefix=True, warmup_lr=0.0,
        step_on_epochs=False, updates_per_epoch=1,
    )  # fmt: skip
    smoothing, mix = settings.label_smoothing, None
    loss_of = LabelSmoothingCrossEntropy(smoothing)
    if settings.mixup or settings.cutmix:
        mix = Mixup(
            settings.mixup,
            settings.cutmix,
            label_smoothing=smoothing,
            num_classes=network.num_classes,
        )
        loss_of = SoftTargetCrossEntropy()
    losses = []
    network.train()
    for step, (images, labels) in enumerate(batches, start=1):
        if seed_step:
            seed_step(step - 1)
        inputs, targets = mix(images, labels) if mix else (images, labels)
        loss = loss_of(network(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        if settings.clip:
            dispatch_clip_grad(network.parameters(), settings.clip)
        optimizer.step()
        schedule.step_update(step)
        losses.append(loss.item())
    return losses


def batches_of(paths, labels, row, settings, size):
    """Yield shuffled batches of cropped images for all epochs, from files."""
    crop = transforms_imagenet_train(
        size, scale=(settings.crop_scale, 1.0), hflip=0.5 * ("flip" in settings.augmentations),
        color_jitter=None, mean=row.mean, std=row.std, interpolation=row.interpolation,
    )  # fmt: skip
    loader = DataLoader(
        list(zip(paths, labels, strict=True)),
        settings.batch_size,
        shuffle=True,
        drop_last=True,
        collate_fn=lambda some: (
            torch.stack([crop(Image.open(path)) for path, _ in some]),
            torch.tensor([label for _, label in some]),
        ),
    )
    for _ in range(settings.epochs):
        yield from loader
