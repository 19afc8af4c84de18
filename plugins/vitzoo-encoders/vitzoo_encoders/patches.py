"""The patch embedder of ViTPose, whose patches begin outside of the image."""

from __future__ import annotations

from vitzoo.errors import InvalidOption
from vitzoo.parts import ConvPatchEmbed


class PaddedPatchEmbed(ConvPatchEmbed):
    """Projects patches of an image with zeros around it; the stride is the patch size.

    The patches begin `padding` px above and left of the image, and the last px are not read.

    Shapes: (b, c, h, w) images to (b, n, d) tokens, n = (h / patch) * (w / patch).

    Args:
        patch_size: (height, width) in px.
        in_chans: channels of the image.
        embed_dim: width d.
        padding: number of px, less than half of a patch.
        bias, norm, norm_eps: as in `ConvPatchEmbed`.

    Raises:
        InvalidOption: an option has no such value.

    Source: `VitPoseBackbonePatchEmbeddings` of transformers.
    """

    def __init__(
        self,
        *,
        patch_size: tuple[int, int],
        in_chans: int,
        embed_dim: int,
        padding: int = 2,
        bias: bool = True,
        norm: str = "none",
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(
            patch_size=patch_size,
            in_chans=in_chans,
            embed_dim=embed_dim,
            bias=bias,
            norm=norm,
            norm_eps=norm_eps,
        )
        if type(padding) is not int or not 0 <= 2 * padding < min(patch_size):
            raise InvalidOption(
                f"padding must be a whole number of px, less than half of the patch size "
                f"{patch_size}, got {padding!r}"
            )
        self.proj.padding = (padding, padding)
