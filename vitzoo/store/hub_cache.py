"""Files in the user's Hub cache, copied while they are hashed; torch-free."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from vitzoo.errors import StoreError
from vitzoo.files.access import open_regular
from vitzoo.store.hub_file import Remote
from vitzoo.store.partial_file import Partial

log = logging.getLogger("vitzoo")


def from_hub_cache(remote: Remote, partial: Partial) -> bool:
    """Copy the file from the user's Hub cache if it is there and its bytes are right."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=remote.repo, repo_type="model")
    blob = folder / "blobs" / remote.sha256
    without_links = folder / "snapshots" / remote.revision / remote.file
    return any(_from_cached(path, remote, partial) for path in (blob, without_links))


def _from_cached(blob: Path, remote: Remote, partial: Partial) -> bool:
    try:
        source = open_regular(blob, follow=True)
    except StoreError:
        return False
    if source is None:
        return False
    try:
        if remote.size not in (None, os.fstat(source).st_size):
            log.warning("%s has another size than %s; left alone", blob, remote)
            return False
        partial.copy(source)
    finally:
        os.close(source)
    if partial.sha256 == remote.sha256:
        return True
    log.warning("%s is damaged (sha256 %s); left alone", blob, partial.sha256)
    partial.restart()
    return False
