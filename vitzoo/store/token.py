"""The user's token of the Hub, which huggingface_hub reads and renews; torch-free."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import constants

from vitzoo import settings
from vitzoo.errors import StoreError, printable
from vitzoo.files.access import read_regular
from vitzoo.log import log

TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")  # what an Authorization header can hold
MAX_TOKEN = 8192  # bytes of a file with a token
PATIENCE = 10.0  # seconds for a renewal
VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_gave_up: list[str] = []  # why this process reads the stored token itself


def user_token() -> str:
    """Return the user's Hub token, empty if there is none.

    `huggingface_hub.get_token` renews the token of a login in a browser, and requests that of a
    service (OIDC). It is called only if vitzoo is online and HF_ENDPOINT names the official host,
    since its requests go there. After it failed, or took more than `PATIENCE` seconds, this process
    uses the stored token as it is.
    """
    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN or not token_place():
        return ""
    if settings.offline() or _gave_up or not _is_official(constants.ENDPOINT):
        return _usable(_stored())
    import httpx2
    from huggingface_hub import get_token

    from vitzoo.store.hub_client import SHOWN, within

    try:
        return _usable(within(PATIENCE, get_token) or "")
    except Exception as error:  # noqa: BLE001  # of a service, of Colab, or of a file
        # The text of this one kind repeats headers, which can contain a token.
        text = "" if isinstance(error, httpx2.LocalProtocolError) else f": {error}"
        _gave_up.append(printable(type(error).__name__ + text, SHOWN))
    log.warning(
        "huggingface_hub gave no token of %s: %s; until it ends, this process uses the stored "
        "token, if there is one; log in with `hf auth login`, or set HF_TOKEN",
        *(token_place(), _gave_up[-1]),
    )
    return _usable(_stored())


def token_place() -> str:
    """Return where the token comes from, for messages; empty if there is none."""
    if os.environ.get("HF_OIDC_RESOURCE"):
        return "HF_OIDC_RESOURCE"
    if variable := next((name for name in VARIABLES if os.environ.get(name, "").strip()), None):
        return variable
    if os.path.lexists(constants.HF_TOKEN_PATH):
        return constants.HF_TOKEN_PATH
    return "the secret HF_TOKEN of Colab" if "google.colab" in sys.modules else ""


def _is_official(endpoint: str) -> bool:
    return urlsplit(endpoint)[:2] == urlsplit(settings.OFFICIAL)[:2]


def _usable(token: str) -> str:
    """Return a token that a header can hold, else none."""
    if not token or TOKEN.fullmatch(token):
        return token
    log.warning(
        "the token in %s is ignored: expected at most 4096 printable ASCII characters without "
        "spaces; log in again with `hf auth login`",
        token_place(),
    )
    return ""


def _stored() -> str:
    """Return the token of a variable, or else of the file of `hf auth login`."""
    tokens = (os.environ.get(name, "").strip() for name in VARIABLES)
    return next((token for token in tokens if token), "") or _token_in(constants.HF_TOKEN_PATH)


def _token_in(path: str) -> str:
    try:
        return (read_regular(Path(path), MAX_TOKEN) or b"").decode(errors="replace").strip()
    except StoreError as error:
        log.warning("%s; requests are sent without a token", error)
        return ""
