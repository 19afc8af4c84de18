"""Copying files from the Hub cache of the user, with a hash of the bytes; torch-free."""

from __future__ import annotations

import os
from pathlib import Path

from vitzoo.errors import StoreError
from vitzoo.files.access import open_regular
from vitzoo.log import log
from vitzoo.store.hub_file import HubFile
from vitzoo.store.partial_file import Partial


def from_hub_cache(file: HubFile, partial: Partial) -> bool:
    """Copy the file from the Hub cache of the user, if it is there and has the right sha256."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(
        repo_id=file.entry.repo, repo_type="model"
    )
    blob = folder / "blobs" / file.pin.sha256
    without_links = folder / "snapshots" / file.revision / file.entry.file
    return any(_from_cached(path, file, partial) for path in (blob, without_links))


def _from_cached(blob: Path, file: HubFile, partial: Partial) -> bool:
    try:
        source = open_regular(blob, follow=True)
    except StoreError:
        return False
    if source is None:
        return False
    with os.fdopen(source, "rb"):
        if file.size not in (None, os.fstat(source).st_size):
            log.warning("%s has another size than %s; it is ignored", blob, file)
            return False
        partial.copy(source)
    if partial.sha256 == file.pin.sha256:
        return True
    log.warning("%s is damaged (sha256 %s); it is ignored", blob, partial.sha256)
    partial.restart()
    return False
