"""Names that code for timm's Vision Transformers uses, each with timm's meaning or an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from vitzoo.errors import InvalidOption, short_repr
from vitzoo.network.calls import Network
from vitzoo.parts.heads import NoHead, classes_of
from vitzoo.parts.pools import AttentionPool, ClassPool, MeanPool
from vitzoo.parts.pos_embed import LearnedPositions
from vitzoo.parts.protocols import NAMES
from vitzoo.schema.preprocessing import Preprocessing
from vitzoo.schema.spec import PartSpec
from vitzoo.schema.terms import AVG

POOLS: dict[type, str] = {ClassPool: "token", MeanPool: "avg", AttentionPool: "map"}
INSTEAD = {  # of attributes of timm that this network has not
    "dynamic_img_size": "with dynamic = True patch_embed still returns (b, n, d) tokens, not the "
    "(b, h, w, d) of timm; read model.dynamic, or create the model without dynamic",
    "global_pool": "timm has no such pool; call model.forward_head(tokens)",
    "head_drop": "no dropout acts before the head; call model.head(x)",
    "no_embed_class": "no learned table is added once to the tokens; call model.embed(images)",
    "patch_drop": "no patches are dropped; leave the call out",
}


class TimmNames(Network):
    """What training, feature extraction and other libraries read of timm's networks."""

    block_indices: Callable[[int | Sequence[int] | None], list[int]]

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
    def in_chans(self) -> int:
        """Number c of image channels."""
        return self.patch_embed.in_chans

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

    def _take_pool(self, kind: str) -> None:
        """Use the pool of a name of timm from now on; the final norm stays before or after it.

        Raises:
            InvalidOption: the network cannot take this pool.
        """
        own = POOLS.get(type(self._pool))
        possible = ["avg", *["token"] * self.has_class_token, *["map"] * (own == "map")]
        if own is None or kind not in possible:
            name = type(self._pool).__name__
            wanted = (
                f"one of {', '.join(possible)}" if own else "None, for a pool without timm's name"
            )
            raise InvalidOption(
                f"global_pool = {short_repr(kind)} is not possible after {name}, expected "
                f"{wanted}; leave it out, or create the network with pool="
            )
        if kind == own:
            return
        after = type(self.norm) is nn.Identity and type(self.fc_norm) is not nn.Identity
        if kind == "avg":
            self.pool, chosen = MeanPool(norm_first=not after), AVG if after else "mean"
        else:
            self.pool, chosen = ClassPool(), "class"
            if after:  # the norm of one token is that of all tokens, and the spec has no other
                self.norm, self.fc_norm = self.fc_norm, nn.Identity()
        self.attn_pool = None
        self._note(pool=PartSpec.parse(chosen, "pool"))

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Name, width and px per token of the result of each block; its width after a neck."""
        sides = zip(self.image_size, self.grid_size, strict=True)
        each = {"num_chs": self.embed_dim, "reduction": max(px // n for px, n in sides)}
        if self.num_features != self.embed_dim:
            each["num_chs_norm"] = self.num_features
        return [{"module": f"blocks.{i}"} | each for i in range(len(self.blocks))]

    @property
    def pretrained_cfg(self) -> dict[str, Any]:
        """Preprocessing under timm's keys, for `timm.data.resolve_model_data_config`.

        timm sets its config of a network that it names; sizes are still those of the network.
        """
        c, k = self.in_chans, classes_of(self.head)
        row = self.preprocessing or Preprocessing(mean=(0.5,) * c, std=(0.5,) * c)
        images = row.of_timm if isinstance(row, Preprocessing) else {}
        embedder: Any = self.patch_embed
        kernels = [name for name, x in embedder.named_parameters() if x.dim() > 1]
        layers = self.head.named_parameters(prefix="head")
        ends = [name for name, x in layers if type(x) is nn.Parameter and x.shape[:-1] == (k,)]
        last = [name.removesuffix(".weight") for name in ends]
        return {
            **images,
            **vars(self).get("_timm_cfg", {}),
            "input_size": (c, *self.image_size),
            "fixed_input_size": not self.dynamic,
            "num_classes": k,
            "first_conv": f"patch_embed.{kernels[0]}".removesuffix(".weight") if kernels else None,
            "classifier": tuple(last) if len(last) > 1 else next(iter(last), None),
        }

    @pretrained_cfg.setter
    def pretrained_cfg(self, value: dict[str, Any]) -> None:
        self._timm_cfg = value

    default_cfg = pretrained_cfg

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove the layers that the results of some blocks do not need, as timm does.

        The spec follows, but the drop-path rates of the other blocks stay.

        Args:
            indices: as in `forward_intermediates`; blocks after the last of them are removed.
            prune_norm: whether to remove the final norm.
            prune_head: whether to remove the head and the norm after the pool. A pool with
                parameters becomes the mean of the patch tokens.

        Returns:
            The indices of the blocks, each at least 0.
        """
        wanted = self.block_indices(indices)
        self.blocks = self.blocks[: max(wanted) + 1]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.fc_norm, self.head = nn.Identity(), NoHead(in_dim=self.num_features)
            if self.attn_pool is not None:
                self.attn_pool, self.pool = None, MeanPool()
                self._note(pool=PartSpec("mean"))
        norms = {type(self.norm), type(self.fc_norm)} - {nn.Identity}
        self._note(depth=len(self.blocks), final_norm=bool(norms))
        return wanted

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
