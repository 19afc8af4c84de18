"""The user's token of the Hub, read without network libraries; torch-free."""

from __future__ import annotations

import os
import re
from pathlib import Path

from huggingface_hub import constants

from vitzoo.errors import StoreError
from vitzoo.files.access import read_regular
from vitzoo.log import log

TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")  # what an Authorization header can hold
MAX_TOKEN = 8192  # bytes of a file with a token


def user_token() -> str:
    """Return the user's Hub token as huggingface_hub stores it, empty if there is none."""
    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return ""
    for place in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if token := os.environ.get(place, "").strip():
            break
    else:
        place = constants.HF_TOKEN_PATH
        token = _token_in(Path(place))
    if not token or TOKEN.fullmatch(token):
        return token
    log.warning(
        "the token in %s is ignored: expected at most 4096 printable ASCII characters without "
        "spaces; log in again with `hf auth login`",
        place,
    )
    return ""


def _token_in(path: Path) -> str:
    try:
        return (read_regular(path, MAX_TOKEN) or b"").decode(errors="replace").strip()
    except StoreError as error:
        log.warning("%s; requests are sent without a token", error)
        return ""
