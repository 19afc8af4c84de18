"""The least that loading a Vision Transformer takes: its modules, its file, its tensors.

The modules are those of timm's network, made of torch's classes. None is filled before the tensors
of the file, which safetensors maps, replace its parameters. Nothing is checked.
"""

from contextlib import contextmanager

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

SIZES = {"b": (768, 12, 12), "l": (1024, 24, 16)}  # width, depth, heads
FILLED = (nn.Linear, nn.LayerNorm, nn.Conv2d)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.q_norm, self.k_norm, self.norm = nn.Identity(), nn.Identity(), nn.Identity()
        self.proj, self.proj_drop = nn.Linear(width, width), nn.Dropout(0.0)

    def forward(self, x):
        qkv = self.qkv(x).reshape(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1, self.act, self.drop1 = nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.0)
        self.norm, self.fc2 = nn.Identity(), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width, eps=1e-6), Attention(width, heads)
        self.ls1, self.drop_path1 = nn.Identity(), nn.Identity()
        self.norm2, self.mlp = nn.LayerNorm(width, eps=1e-6), Mlp(width)
        self.ls2 = nn.Identity()

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj, self.norm = nn.Conv2d(3, width, 16, stride=16), nn.Identity()

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Network(nn.Module):
    def __init__(self, width, depth, heads):
        super().__init__()
        self.patch_embed = PatchEmbed(width)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.pos_embed = nn.Parameter(torch.empty(1, 197, width))
        self.pos_drop, self.norm_pre = nn.Dropout(0.0), nn.Identity()
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.fc_norm = nn.LayerNorm(width, eps=1e-6), nn.Identity()
        self.head = nn.Linear(width, 1000)

    def forward(self, x):
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


@contextmanager
def unfilled():
    """Let torch's layers skip the filling of their parameters."""
    own = [kind.reset_parameters for kind in FILLED]
    for kind in FILLED:
        kind.reset_parameters = lambda _: None
    try:
        yield
    finally:
        for kind, reset in zip(FILLED, own, strict=True):
            kind.reset_parameters = reset


def load(size, file):
    """Return the network of a size with the tensors of a safetensors file of timm."""
    with torch.device("meta"), unfilled():
        model = Network(*SIZES[size])
    tensors = safetensors.torch.load_file(file)
    for name, module in model.named_modules():
        for key in module._parameters:
            tensor = tensors.pop(f"{name}.{key}" if name else key)
            module._parameters[key] = nn.Parameter(tensor)
    assert not tensors
    return model.eval()
