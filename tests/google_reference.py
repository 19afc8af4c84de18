"""Google's ViT in plain tensor operations on the arrays of its npz files: numbers to compare with.

Written from the papers and the published layout, without a module of the library under test.
"""

import math

import torch
import torch.nn.functional as F

ORIGINAL = {
    "attention": "MultiHeadDotProductAttention_1",
    "mlp": "MlpBlock_3",
    "norm2": "LayerNorm_2",
    "positions": "Transformer/posembed_input/pos_embedding",
}
BIG_VISION = {
    "attention": "MultiHeadDotProductAttention_0",
    "mlp": "MlpBlock_0",
    "norm2": "LayerNorm_1",
    "positions": "pos_embedding",
}
LAYOUTS = {"original": ORIGINAL, "big_vision": BIG_VISION}


def shapes(
    layout, *, width=32, depth=2, heads=2, mlp=64, patch=8, size=32, classes=5, pre_logits=0
):
    """Return the shape of every array of a file, by key."""
    names = LAYOUTS[layout]
    grid = (size // patch) ** 2
    head_dim = width // heads
    found = {
        "cls": (1, 1, width),
        "embedding/kernel": (patch, patch, 3, width),
        "embedding/bias": (width,),
        names["positions"]: (1, grid + (layout == "original"), width),
        "Transformer/encoder_norm/scale": (width,),
        "Transformer/encoder_norm/bias": (width,),
        "head/kernel": (pre_logits or width, classes),
        "head/bias": (classes,),
    }
    for i in range(depth):
        block = f"Transformer/encoderblock_{i}"
        for norm in ("LayerNorm_0", names["norm2"]):
            found |= {f"{block}/{norm}/{kind}": (width,) for kind in ("scale", "bias")}
        attention = f"{block}/{names['attention']}"
        for part in ("query", "key", "value"):
            found[f"{attention}/{part}/kernel"] = (width, heads, head_dim)
            found[f"{attention}/{part}/bias"] = (heads, head_dim)
        found[f"{attention}/out/kernel"] = (heads, head_dim, width)
        found[f"{attention}/out/bias"] = (width,)
        for layer, sides in (("Dense_0", (width, mlp)), ("Dense_1", (mlp, width))):
            found[f"{block}/{names['mlp']}/{layer}/kernel"] = sides
            found[f"{block}/{names['mlp']}/{layer}/bias"] = sides[1:]
    if pre_logits:
        found |= {"pre_logits/kernel": (width, pre_logits), "pre_logits/bias": (pre_logits,)}
    return found


def hybrid_shapes(layers, *, root=64, width=32, **sizes):
    """Return the shapes of a hybrid's file: a ResNet, then the original layout on its features."""
    found = shapes("original", width=width, **sizes)
    found["conv_root/kernel"] = (7, 7, 3, root)
    found |= norm_shapes("gn_root", root)
    chans = root
    for i, depth in enumerate(layers, start=1):
        inner, outer = root * 2 ** (i - 1), 4 * root * 2 ** (i - 1)
        for j in range(1, depth + 1):
            unit = f"block{i}/unit{j}"
            sides = {1: (1, 1, chans, inner), 2: (3, 3, inner, inner), 3: (1, 1, inner, outer)}
            for n, shape in sides.items():
                found[f"{unit}/conv{n}/kernel"] = shape
                found |= norm_shapes(f"{unit}/gn{n}", shape[-1])
            if j == 1:
                found[f"{unit}/conv_proj/kernel"] = (1, 1, chans, outer)
                found |= norm_shapes(f"{unit}/gn_proj", outer)
            chans = outer
    found["embedding/kernel"] = (1, 1, chans, width)
    return found


def norm_shapes(key, chans):
    return {f"{key}/scale": (chans,), f"{key}/bias": (chans,)}


def fan_in(key, shape):
    """Return how many numbers one output of a kernel sums over."""
    return shape[0] if key.rsplit("/", 2)[1] in ("query", "key", "value") else math.prod(shape[:-1])


def draw(layout, weights, *, seed=0, **sizes):
    """Return random arrays of a file of a layout with these sizes."""
    return draw_all(shapes(layout, **sizes), weights, seed=seed)


def draw_all(shapes, weights, *, seed=0):
    """Return random arrays of these shapes.

    `own` is Google's initialisation (Xavier kernels, tiny biases, unit gains), but for a
    classifier and a class token that are not zero; `scaled` fan-in normals, gains of 1 +- 0.2.
    """
    generator = torch.Generator().manual_seed(seed)
    arrays = {}
    for key, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        kind = key.rsplit("/", 1)[-1]
        if kind == "kernel" and weights == "own" and "Transformer" in key:
            inputs = fan_in(key, shape)
            bound = math.sqrt(6 / (inputs + math.prod(shape) // inputs))
            values = torch.empty(shape).uniform_(-bound, bound, generator=generator)
        elif kind == "kernel":
            values /= math.sqrt(fan_in(key, shape))
        elif kind == "scale":
            values = values * 0.2 + 1 if weights == "scaled" else torch.ones(shape)
        else:
            small = {"pos_embedding": 0.02, "cls": 0.02}.get(kind, 1e-6)
            values = values * (0.2 if weights == "scaled" else small)
        arrays[key] = values
    return arrays


def scanned(arrays):
    """Return the arrays with all blocks as one, stacked along a first axis."""
    mark = "Transformer/encoderblock_"
    stacked, blocks = {}, {}
    for key, array in arrays.items():
        if key.startswith(mark):
            number, _, rest = key.removeprefix(mark).partition("/")
            blocks.setdefault(f"Transformer/encoderblock/{rest}", []).append((int(number), array))
        else:
            stacked[key] = array
    for key, rows in blocks.items():
        stacked[key] = torch.stack([array for _, array in sorted(rows, key=lambda row: row[0])])
    return stacked


def norm(x, arrays, key):
    mean = x.mean(-1, keepdim=True)
    variance = (x * x).mean(-1, keepdim=True) - mean * mean
    return (x - mean) / (variance + 1e-6).sqrt() * arrays[f"{key}/scale"] + arrays[f"{key}/bias"]


def dense(x, arrays, key):
    return x @ arrays[f"{key}/kernel"] + arrays[f"{key}/bias"]


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attend(x, arrays, key):
    query, keys, values = (
        torch.einsum("bnd,dhk->bhnk", x, arrays[f"{key}/{part}/kernel"])
        + arrays[f"{key}/{part}/bias"][None, :, None]
        for part in ("query", "key", "value")
    )
    scores = torch.einsum("bhqk,bhnk->bhqn", query / math.sqrt(query.shape[-1]), keys)
    mixed = torch.einsum("bhqn,bhnk->bqhk", scores.softmax(-1), values)
    return (
        torch.einsum("bqhk,hkd->bqd", mixed, arrays[f"{key}/out/kernel"])
        + arrays[f"{key}/out/bias"]
    )


def embed(images, arrays):
    kernel = arrays["embedding/kernel"]
    patch, _, chans, width = kernel.shape
    b, _, height, wide = images.shape
    pixels = images.permute(0, 2, 3, 1)
    pixels = pixels.reshape(b, height // patch, patch, wide // patch, patch, chans)
    pixels = pixels.transpose(2, 3).reshape(b, -1, patch * patch * chans)
    return pixels @ kernel.reshape(-1, width) + arrays["embedding/bias"]


def same(x, kernel, stride, value=0.0):
    """Pad (b, c, h, w) as TensorFlow does for "SAME"."""
    pads = []
    for size in reversed(x.shape[2:]):
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads, value=value)


def standard_conv(x, kernel, stride=1):
    """Convolve with a kernel standardised as Google does it, over all but its outputs."""
    mean = kernel.mean((0, 1, 2), keepdim=True)
    deviation = ((kernel - mean) ** 2).mean((0, 1, 2), keepdim=True).sqrt()
    kernel = ((kernel - mean) / (deviation + 1e-5)).permute(3, 2, 0, 1)
    return F.conv2d(same(x, kernel.shape[-1], stride), kernel, stride=stride)


def group_norm(x, arrays, key):
    return F.group_norm(x, 32, arrays[f"{key}/scale"], arrays[f"{key}/bias"], eps=1e-6)


def layer(x, arrays, conv, norm, stride=1):
    return group_norm(standard_conv(x, arrays[f"{conv}/kernel"], stride), arrays, norm)


def resnet(images, arrays):
    """Return the (b, c, h, w) features of a hybrid's ResNet."""
    x = layer(images, arrays, "conv_root", "gn_root", 2).relu()
    x = F.max_pool2d(same(x, 3, 2, -math.inf), 3, 2)
    units = {tuple(key.split("/")[:2]) for key in arrays if key.startswith("block")}
    for block, unit in sorted(units, key=lambda name: (name[0], int(name[1].removeprefix("unit")))):
        at, first = f"{block}/{unit}", unit == "unit1"
        stride = 2 if first and block != "block1" else 1
        shortcut = layer(x, arrays, f"{at}/conv_proj", f"{at}/gn_proj", stride) if first else x
        y = layer(x, arrays, f"{at}/conv1", f"{at}/gn1").relu()
        y = layer(y, arrays, f"{at}/conv2", f"{at}/gn2", stride).relu()
        x = (shortcut + layer(y, arrays, f"{at}/conv3", f"{at}/gn3")).relu()
    return x


def forward(arrays, images, layout="original"):
    """Return (tokens after the final norm, pre-logits, logits)."""
    names = LAYOUTS[layout]
    if "conv_root/kernel" in arrays:
        images = resnet(images, arrays)
    x = embed(images, arrays)
    positions = arrays.get(names["positions"], 0)
    if layout == "big_vision":
        x = x + positions
    if "cls" in arrays:
        x = torch.cat([arrays["cls"].expand(len(x), -1, -1), x], dim=1)
    if layout == "original":
        x = x + positions
    depth = len({key.split("/")[1] for key in arrays if key.startswith("Transformer/encoderblock")})
    for i in range(depth):
        block = f"Transformer/encoderblock_{i}"
        y = norm(x, arrays, f"{block}/LayerNorm_0")
        x = x + attend(y, arrays, f"{block}/{names['attention']}")
        y = norm(x, arrays, f"{block}/{names['norm2']}")
        y = gelu(dense(y, arrays, f"{block}/{names['mlp']}/Dense_0"))
        x = x + dense(y, arrays, f"{block}/{names['mlp']}/Dense_1")
    tokens = norm(x, arrays, "Transformer/encoder_norm")
    pooled = tokens[:, 0] if "cls" in arrays else tokens.mean(1)
    if "pre_logits/kernel" in arrays:
        pooled = torch.tanh(dense(pooled, arrays, "pre_logits"))
    return tokens, pooled, dense(pooled, arrays, "head")
