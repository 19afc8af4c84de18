"""The weights file and the sidecars at an address of the Hub; torch-free."""

from __future__ import annotations

from vitzoo.errors import EntryNotFound
from vitzoo.foreign.sidecars import SIDECARS, Sidecars, read_sidecars
from vitzoo.schema.addresses import parts_of_address
from vitzoo.store.hub_file import HubFile
from vitzoo.store.obtain import read_small, together

WEIGHTS_FILES = ("model.safetensors", "open_clip_model.safetensors")


def sidecars_at(address: str) -> tuple[Sidecars, HubFile]:
    """Return the sidecars of an address on the Hub, and its weights file with its pin.

    An address without a file means `model.safetensors`, or else open_clip's file.

    Args:
        address: `hf://owner/repo`, with or without `@revision` and `/file`.

    Raises:
        InvalidOption: the address has another form.
        WeightsError: the repository has no such file, or a file could not be verified.
    """
    found = together(files_at(address))
    weights = [one for one in found if not one.small]
    there = [one for one in weights if not one.pin.absent]
    if not there:
        first, names = weights[0], " or ".join(one.entry.file for one in weights)
        raise EntryNotFound(
            f"{address}: commit {first.pin.commit} of {first.entry.repo} has no file {names}, as "
            f"{first.pin.endpoint} states; name the weights file: "
            f"hf://{first.entry.repo}@{first.entry.revision}/FILE"
        )
    small = {one.entry.file.rpartition("/")[2]: one for one in found if one.small}
    repo = there[0].entry.repo
    return read_sidecars(lambda name: read_small(small[name]), repo), there[0]


def files_at(address: str) -> list[HubFile]:
    """Return the weights files that an address may mean, and then its sidecars.

    Raises:
        InvalidOption: the address has another form.
    """
    repo, revision, file = parts_of_address(address)
    parent, slash, _ = file.rpartition("/")
    root = f"hf://{repo}@{revision}/"
    weights = [HubFile.at(root + name) for name in ([file] if file else WEIGHTS_FILES)]
    folder = root + parent + slash
    return weights + [HubFile.at(folder + name, small=True) for name in SIDECARS]
