"""Write safetensors files from a .pkl file of detectron2's ViTDet.

    python docs/examples/vitdet_to_safetensors.py model_final.pkl vitdet

writes the ViT to vitdet/vit.safetensors, and the pyramid to vitdet/pyramid.safetensors. A pickle
can run code. This script reads arrays, and refuses everything else.
"""

import pickle
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

ARRAYS = {  # what pickles of arrays name, by all versions of NumPy
    *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
    *((f"numpy.{core}.multiarray", "scalar") for core in ("core", "_core")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    *(("numpy", name) for name in ("ndarray", "dtype")),
    *(("collections", "OrderedDict"), ("_codecs", "encode")),
}


class Arrays(pickle.Unpickler):  # noqa: S301  # it calls nothing but ARRAYS
    """Reads arrays in tables."""

    def find_class(self, module: str, name: str) -> object:
        """Return what an array is made with."""
        if (module, name) in ARRAYS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"the file has more than arrays: {module}.{name}")


def main(source: str, folder: str) -> None:
    """Write both files."""
    with Path(source).open("rb") as file:
        tensors = Arrays(file, encoding="latin1").load()["model"]
    Path(folder).mkdir()
    for part, prefix in (("vit", "backbone.net."), ("pyramid", "backbone.simfp_")):
        before = prefix.removesuffix("simfp_")
        chosen = {
            name.removeprefix(before): np.ascontiguousarray(array)
            for name, array in tensors.items()
            if name.startswith(prefix)
        }
        save_file(chosen, Path(folder, f"{part}.safetensors"))


if __name__ == "__main__":
    main(*sys.argv[1:])
