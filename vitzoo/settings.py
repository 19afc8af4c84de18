"""Environment variables: registry files, and paths, rules and limits of weights; torch-free.

| variable | meaning |
|---|---|
| `VITZOO_REGISTRY` | the user's registry files, separated as the folders of PATH are |
| `VITZOO_HOME` | folder of store and lock file; `:memory:` writes nothing to disk |
| `VITZOO_OFFLINE`, `HF_HUB_OFFLINE`, `TRANSFORMERS_OFFLINE` | 1: open no socket |
| `VITZOO_ENDPOINTS`, `HF_ENDPOINT` | mirrors that may serve files, tried in order |
| `VITZOO_TRUST_ENDPOINT` | trusted Hub endpoint, in place of the official Hub |
| `VITZOO_TOKEN_HOSTS` | further hosts that may receive the user's Hub token |
| `VITZOO_PINS` | `required`: no trust on first use; `warn`: FirstUseWarning for each such file |
| `VITZOO_FROZEN` | 1: never write the lock file |
| `VITZOO_LOCK` | path of the lock file |
| `VITZOO_VERIFY` | `stamp` (default), `always`: hash at each load, `tensors`: hash loaded bytes |
| `VITZOO_TIMEOUT` | seconds of each try, and of all waits that a server asks for |
| `HF_HUB_ETAG_TIMEOUT`, `HF_HUB_DOWNLOAD_TIMEOUT` | seconds of each try for metadata, for a file |
| `VITZOO_MAX_SCANS` | scans of a JPEG file, by default 100 |
| `VITZOO_DEVICE` | device to compute on where a call names none, such as `cpu` or `cuda:1` |
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from vitzoo.errors import InvalidOption

OFFICIAL = "https://huggingface.co"
MEMORY = ":memory:"
TRUE = ("1", "true", "yes", "on")
FALSE = ("", "0", "false", "no", "off")
DEVICE = re.compile(
    r"(cpu|cuda|mps|xpu|hpu|mtia|xla|npu|maia|ipu|meta|privateuseone)(:\d{1,4})?", re.ASCII
)


class _Here(threading.local):
    """State of a thread."""

    without_network = False


_HERE = _Here()


class Limits(NamedTuple):
    """Limits of one download.

    Args:
        first_byte: seconds of one try for a file until its first byte.
        metadata: seconds of one try for metadata or a config until its last byte.
        connect: seconds of all tries after the first failed connection, until a host has answered.
        stall: seconds without a byte after which the connection counts as lost.
        min_rate: bytes per second, measured over every `window` seconds.
        attempts: tries in a row without progress.
        retry_after: seconds that servers may ask to wait, together; the Hub counts requests in
            windows of 300 s.
        redirects: redirects in a row.
        lock_wait: seconds to wait for another process that fetches the same file.
    """

    first_byte: float = 10.0
    metadata: float = 10.0
    connect: float = 2.0
    stall: float = 10.0
    min_rate: float = 4096.0
    window: float = 30.0
    attempts: int = 5
    retry_after: float = 330.0
    redirects: int = 8
    lock_wait: float = 900.0


def home() -> Path | None:
    """Return the folder of vitzoo, None if nothing may be written to disk."""
    explicit = os.environ.get("VITZOO_HOME", "")
    if explicit == MEMORY:
        return None
    if explicit:
        return _absolute(explicit, "VITZOO_HOME")
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _absolute(cache, "VITZOO_HOME is not set, and the cache folder") / "vitzoo"


def registry_files() -> list[Path]:
    """Return the user's registry files in order, each once."""
    texts = os.environ.get("VITZOO_REGISTRY", "").split(os.pathsep)
    return list(dict.fromkeys(_absolute(text, "VITZOO_REGISTRY") for text in texts if text))


def expanded(path: str | Path, what: str) -> Path:
    """Return a path with `~` replaced by the home folder; `what` it is, for the message.

    Raises:
        InvalidOption: the user does not exist, or has no home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InvalidOption(
            f"{what} is {str(path)!r}: {error}; write the full path, without ~"
        ) from error


def _absolute(text: str, what: str) -> Path:
    path = expanded(text, what)
    try:
        return path.absolute()
    except OSError as error:  # the working directory was deleted
        raise InvalidOption(
            f"{what} is the relative path {text!r}, and there is no working directory any more "
            f"({error.strerror}); write the full path, or change to another directory"
        ) from error


@contextmanager
def without_network() -> Iterator[None]:
    """Let `offline` return True in this thread during the block, whatever the variables are."""
    before, _HERE.without_network = _HERE.without_network, True
    try:
        yield
    finally:
        _HERE.without_network = before


def offline() -> bool:
    """Tell whether no socket may be opened."""
    return _HERE.without_network or any(
        _flag(f"{name}_OFFLINE") for name in ("VITZOO", "HF_HUB", "TRANSFORMERS")
    )


def endpoints() -> list[str]:
    """Return the addresses that may serve files, in order."""
    listed = os.environ.get("VITZOO_ENDPOINTS") or os.environ.get("HF_ENDPOINT") or OFFICIAL
    found = [_address(text, "VITZOO_ENDPOINTS") for text in listed.replace(",", " ").split()]
    if not found:
        raise InvalidOption(
            f"VITZOO_ENDPOINTS must contain at least one http(s) address, got {listed!r}; unset it "
            "for the official Hub"
        )
    return found


def trust_endpoint() -> str:
    """Return the trusted Hub endpoint, which states the sha256 of a file on first use."""
    return _address(os.environ.get("VITZOO_TRUST_ENDPOINT") or OFFICIAL, "VITZOO_TRUST_ENDPOINT")


def may_see_token(url: str) -> bool:
    """Tell whether the user's Hub token may be sent to the host of `url`."""
    parts = urlsplit(url)
    named = os.environ.get("VITZOO_TOKEN_HOSTS", "").replace(",", " ").split()
    official = parts.scheme == "https" and parts.netloc == urlsplit(OFFICIAL).netloc
    return official or parts.netloc in named


def has_host(url: str) -> bool:
    """Tell whether an address has a valid host and port."""
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")  # the resolver would raise an untyped error
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def pins_required() -> bool:
    """Tell whether weights without a known sha256 are refused."""
    return _pins() == "required"


def pins_warn() -> bool:
    """Tell whether trust on first use of registered weights is a Python warning, too."""
    return _pins() == "warn"


def _pins() -> str:
    value = os.environ.get("VITZOO_PINS", "")
    if value not in ("", "required", "warn"):
        raise InvalidOption(f"VITZOO_PINS must be 'required', 'warn' or unset, got {value!r}")
    return value


def frozen() -> bool:
    """Tell whether the lock must not be written."""
    return _flag("VITZOO_FROZEN")


def lock_path() -> Path | None:
    """Return the path of the lock file, None if nothing may be written to disk."""
    if explicit := os.environ.get("VITZOO_LOCK"):
        return _absolute(explicit, "VITZOO_LOCK")
    folder = home()
    return folder and folder / "vitzoo.lock"


def verify_mode() -> str:
    """Return `stamp`, `always` or `tensors`."""
    value = os.environ.get("VITZOO_VERIFY") or "stamp"
    if value not in ("stamp", "always", "tensors"):
        raise InvalidOption(f"VITZOO_VERIFY must be stamp, always or tensors, got {value!r}")
    return value


def limits() -> Limits:
    """Return the limits of a download."""
    if seconds := _seconds("VITZOO_TIMEOUT"):
        connect = min(seconds, Limits().connect)
        return Limits(seconds, seconds, connect, stall=seconds, retry_after=seconds)
    file = _seconds("HF_HUB_DOWNLOAD_TIMEOUT") or Limits().first_byte
    metadata = _seconds("HF_HUB_ETAG_TIMEOUT") or Limits().metadata
    return Limits(first_byte=file, metadata=metadata, stall=file)


def _seconds(name: str) -> float | None:
    """Return the seconds that a variable states; None if it is not set, or invalid and not ours."""
    text = os.environ.get(name)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86_400:
        if not name.startswith("VITZOO_"):
            return None
        raise InvalidOption(f"{name} must be a positive number of seconds, got {text!r}")
    return seconds


def max_scans() -> int:
    """Return the most scans of a JPEG file that is decoded."""
    text = os.environ.get("VITZOO_MAX_SCANS") or "100"
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:10]) < 10**9):
        raise InvalidOption(f"VITZOO_MAX_SCANS must be a whole number from 1, got {text!r}")
    return int(text[:10])


def device() -> str | None:
    """Return the name of the device to compute on where a call names none; None if it is not set.

    torch decides later whether the device is there.
    """
    text = os.environ.get("VITZOO_DEVICE") or None
    if text is not None and not DEVICE.fullmatch(text):
        raise InvalidOption(
            f"VITZOO_DEVICE must be a device such as cpu, cuda or cuda:1, got {text!r}; set it to "
            "one, or unset it"
        )
    return text


def _flag(name: str) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if name.startswith("VITZOO_") and value not in TRUE + FALSE:
        raise InvalidOption(f"{name} must be 1 or 0, got {value!r}")
    return value in TRUE


def _address(text: str, variable: str) -> str:
    parts = urlsplit(text) if has_host(text) else urlsplit("")
    if parts.scheme not in ("http", "https") or parts.query or parts.username:
        raise InvalidOption(f"{variable} must contain only http(s) addresses, got {text!r}")
    return text.rstrip("/")
