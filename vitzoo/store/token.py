"""The user's token of the Hub, which huggingface_hub reads and renews; torch-free."""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import constants

from vitzoo import settings
from vitzoo.errors import StoreError, printable
from vitzoo.files.access import read_regular
from vitzoo.log import hidden, log

TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")  # what an Authorization header can hold
MAX_TOKEN = 8192  # bytes of a file with a token
PATIENCE = 10.0  # seconds for a renewal
VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_LOCK = threading.Lock()  # one thread at a time asks for a renewal
_gave_up: list[str] = []  # why this process reads the stored token itself
_warned: set[str] = set()  # places whose token this process has called unusable


def user_token() -> str:
    """Return the user's Hub token, empty if there is none.

    `huggingface_hub.get_token` renews the token of a login in a browser, and requests that of a
    service (OIDC). It is called only if vitzoo is online and HF_ENDPOINT names the official host,
    since its requests go there. After it failed, or took more than `PATIENCE` seconds, this process
    uses the stored token as it is.
    """
    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN or not (place := token_place()):
        return ""
    with _LOCK:
        token = _renewed(place) if _renews() else None
    return _usable(_stored() if token is None else token)


def _renewed(place: str) -> str | None:
    """Return the token that huggingface_hub gives, empty if there is none; None after a failure."""
    import httpx2
    from huggingface_hub import get_token

    from vitzoo.store.waiting import SHOWN, within

    try:
        # If its file of tokens is damaged, huggingface_hub would log the line, with the token.
        with hidden("huggingface_hub.utils._auth", "Error parsing"):
            return within(PATIENCE, get_token) or ""
    except Exception as error:  # noqa: BLE001  # of a service, of Colab, or of a file
        # The text of this one kind repeats headers, which can contain a token.
        text = "" if isinstance(error, httpx2.LocalProtocolError) else f": {error}"
        _gave_up.append(printable(type(error).__name__ + text, SHOWN))
    log.warning(
        "huggingface_hub gave no token of %s: %s; until it ends, this process uses the stored "
        "token, if there is one; log in with `hf auth login`, or set HF_TOKEN",
        *(place, _gave_up[-1]),
    )
    return None


def token_place() -> str:
    """Return where the token comes from, for messages; empty if there is none."""
    renews = _renews()
    if renews and os.environ.get("HF_OIDC_RESOURCE"):
        return "HF_OIDC_RESOURCE"
    if variable := next((name for name in VARIABLES if os.environ.get(name, "").strip()), None):
        return variable
    if os.path.lexists(constants.HF_TOKEN_PATH):
        return constants.HF_TOKEN_PATH
    return "the secret HF_TOKEN of Colab" if renews and "google.colab" in sys.modules else ""


def _renews() -> bool:
    """Tell whether huggingface_hub is asked for the token."""
    return not (settings.offline() or _gave_up) and _is_official(constants.ENDPOINT)


def _is_official(endpoint: str) -> bool:
    return urlsplit(endpoint)[:2] == urlsplit(settings.OFFICIAL)[:2]


def _usable(token: str) -> str:
    """Return a token that a header can hold, else none."""
    if not token or TOKEN.fullmatch(token):
        return token
    _warn_once(
        f"the token in {token_place()} is ignored: expected at most 4096 printable ASCII "
        "characters without spaces; log in again with `hf auth login`"
    )
    return ""


def _stored() -> str:
    """Return the token of a variable, or else of the file of `hf auth login`."""
    tokens = (os.environ.get(name, "").strip() for name in VARIABLES)
    if token := next((token for token in tokens if token), ""):
        return token
    try:
        data = read_regular(Path(constants.HF_TOKEN_PATH), MAX_TOKEN) or b""
    except StoreError as error:
        _warn_once(f"{error}; requests are sent without a token")
        return ""
    return data.decode(errors="replace").strip()


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        log.warning("%s", text)
