"""A patch embedder for images that the patches do not tile."""

from __future__ import annotations

from vitzoo.errors import InvalidOption
from vitzoo.parts import ConvPatchEmbed


class CroppedPatchEmbed(ConvPatchEmbed):
    """Projects all whole patches and ignores the remaining pixels at the right and bottom.

    SigLIP So400m uses 27 x 27 patches of 14 px in images of 384 px and ignores the last 6 px.

    Shapes: (b, c, h, w) images to (b, n, d) tokens, n = (h // patch) * (w // patch).

    Args:
        patch_size: (height, width) in px.
        in_chans: channels of the image.
        embed_dim: width d of a token.
        bias: whether the projection has a bias.
        norm, norm_eps: of the norm after the projection, as in `ConvPatchEmbed`.

    Source: the convolution with `VALID` padding in `models/vit.py` of big_vision; numbers checked
    against timm's and transformers' SigLIP.

    >>> CroppedPatchEmbed(patch_size=(14, 14), in_chans=3, embed_dim=4).grid((384, 384))
    (27, 27)
    """

    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return the (h, w) grid of whole patches.

        Raises:
            InvalidOption: the image is smaller than a patch.
        """
        rows, columns = (side // p for side, p in zip(image_size, self.patch_size, strict=True))
        if not rows or not columns:
            (h, w), (height, width) = image_size, self.patch_size
            raise InvalidOption(
                f"image_size {h}x{w} px has no whole patch of {height}x{width} px; take larger "
                "images"
            )
        return rows, columns
