"""Names that code for timm's Vision Transformers uses, each with timm's meaning or an error."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from vitzoo.network.calls import Network
from vitzoo.parts.heads import classes_of
from vitzoo.parts.pools import AttentionPool, ClassPool, MeanPool
from vitzoo.parts.pos_embed import LearnedPositions
from vitzoo.parts.protocols import NAMES
from vitzoo.schema.rows import Preprocessing

POOLS: dict[type, str] = {ClassPool: "token", MeanPool: "avg", AttentionPool: "map"}
INSTEAD = {  # of attributes of timm that this network has not
    "dynamic_img_size": "with dynamic = True patch_embed still returns (b, n, d) tokens, not the "
    "(b, h, w, d) of timm; read model.dynamic, or create the model without dynamic",
    "global_pool": "timm has no such pool; call model.forward_head(tokens)",
    "head_drop": "no dropout acts before the head; call model.head(x)",
    "no_embed_class": "no learned table is added once to the tokens; call model.embed(images)",
    "patch_drop": "no patches are dropped; leave the call out",
    "prune_intermediate_layers": "no block is removed; model.features(images, names), and "
    "model.forward_intermediates(images, indices, stop_early=True), run only the blocks they need",
}


class TimmNames(Network):
    """What training, feature extraction and other libraries read of timm's networks."""

    def __getattr__(self, name: str) -> Tensor | nn.Module:
        """Return a parameter, buffer or module; say what there is in place of a name of timm."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name not in INSTEAD:
                raise
        text = f"{type(self).__name__} has no attribute {name!r}: {INSTEAD[name]}"
        raise AttributeError(text, name=name, obj=self)

    @property
    def num_features(self) -> int:
        """Width d of tokens and pooled features."""
        return self.embed_dim

    @property
    def has_class_token(self) -> bool:
        """Whether the first token is a class token."""
        return self.cls_token is not None

    @property
    def num_reg_tokens(self) -> int:
        """Number of registers, the learned tokens after the class token."""
        return 0 if self.reg_token is None else self.reg_token.shape[1]

    @property
    def no_embed_class(self) -> bool:
        """Whether the table `pos_embed`, added once, has rows for patches alone."""
        if type(self.positions) is not LearnedPositions or self.positions.where != "stem":
            raise AttributeError(name="no_embed_class")  # `__getattr__` explains it
        return self.positions.skipped > 0

    @property
    def dynamic_img_size(self) -> bool:
        """False for a network that takes images of one size."""
        if self.dynamic:
            raise AttributeError(name="dynamic_img_size")
        return False

    @property
    def global_pool(self) -> str:
        """Kind of the pool, which is `token`, `avg` or `map`."""
        if type(self._pool) not in POOLS:
            raise AttributeError(name="global_pool")
        return POOLS[type(self._pool)]

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Name, width and px per token of the result of each block."""
        sides = zip(self.image_size, self.grid_size, strict=True)
        each = {"num_chs": self.embed_dim, "reduction": max(px // n for px, n in sides)}
        return [{"module": f"blocks.{i}"} | each for i in range(len(self.blocks))]

    @property
    def pretrained_cfg(self) -> dict[str, Any]:
        """Preprocessing under timm's keys, for `timm.data.resolve_model_data_config`."""
        c, (h, w) = self.patch_embed.in_chans, self.image_size
        row = self.preprocessing or Preprocessing(mean=(0.5,) * c, std=(0.5,) * c)
        return {
            "input_size": (c, h, w),
            "mean": row.mean,
            "std": row.std,
            "interpolation": row.interpolation,
            "crop_pct": row.crop_pct,
            "crop_mode": row.crop_mode,
            "num_classes": classes_of(self.head),
        }

    default_cfg = pretrained_cfg

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters that optimisers should not decay.

        These are class token, registers, the table of positions, and the parameters that the
        method `no_weight_decay` of a part names. A position embedding without this method adds all
        its parameters.
        """
        tokens = ("pos_embed", "cls_token", "reg_token")
        names = {name for name in tokens if getattr(self, name) is not None}
        for field in ("patch_embed", "positions", "pool", "attn_pool", "head"):
            part: Any = getattr(self, field)
            own = getattr(part, "no_weight_decay", None)
            if own is not None:
                kind = {"positions": "pos_embed", "attn_pool": "pool"}.get(field, field)
                names |= {f"{field}.{name}" for name in self._run(kind, own, NAMES)}
            elif field == "positions":
                names |= {f"positions.{name}" for name, _ in part.named_parameters()}
        return names

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return the layer groups in timm's form, for layer-wise learning rates."""
        return {
            "stem": r"^cls_token|^reg_token|pos_embed|patch_embed|positions|^norm_pre",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm\.", (99999,))],
        }
