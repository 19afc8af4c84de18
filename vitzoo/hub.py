"""Questions to the authority: what commit, size and sha256 a Hub file has; torch-free."""

from __future__ import annotations

import functools
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.hf_api import ModelInfo

from vitzoo.asking import proxies, refusal, session, within
from vitzoo.errors import EntryNotFound, Offline, PinError, RefusedResponse, TransferError
from vitzoo.pins import COMMIT, SHA256, Pin
from vitzoo.remote import Remote
from vitzoo.settings import limits, may_see_token, trust_endpoint

NEEDED = (
    "its word is needed on first use, and a mirror's is not taken: fetch it once where there is a "
    "network, or bring the file with a lock that names it (VITZOO_LOCK, see docs/offline.md)"
)


def ask(repo: str, revision: str, file: str, *, label: str = "", gated: bool = False) -> Pin:
    """Ask the authority what a file is.

    Args:
        repo, revision, file: where it lies on the Hub.
        label: what it is, for messages: `vit_b16:augreg_in21k`.
        gated: whether a refusal means that terms have to be accepted.

    Raises:
        NetworkError: one of its kinds.
        PinError: the authority does not state a sha256 for it.
    """
    authority = trust_endpoint()
    address = f"hf://{repo}@{revision}/{file}"
    what = address if label in ("", address) else f"{label}: {address}"
    remote = Remote(repo, revision, file, sha256="", label=label or address, gated=gated)
    info = _model_info(remote, authority, what)
    for sibling in info.siblings or ():
        if sibling.rfilename == file:
            return _pin(what, authority, info.sha, sibling)
    raise EntryNotFound(f"{what}: {authority} lists no such file at this revision")


def _model_info(remote: Remote, authority: str, what: str) -> ModelInfo:
    seconds = limits().first_byte
    api = HfApi(
        endpoint=authority,
        token=None if may_see_token(authority) else False,
        library_name="vitzoo",
    )
    question = functools.partial(
        api.model_info,
        remote.repo,
        revision=remote.revision,
        files_metadata=True,
        timeout=seconds,
    )
    try:
        session()
    except ValueError as error:
        raise TransferError(f"{what}: {authority}: {error}") from error
    try:
        return within(seconds, question)
    except HfHubHTTPError as error:
        raise refusal(error.response, remote, urlsplit(authority).netloc) from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise TransferError(
            f"{what}: {authority} cannot be reached: {type(error).__name__}: {error}"
            f"{proxies()}; {NEEDED}"
        ) from error
    except OfflineModeIsEnabled as error:
        raise Offline(
            f"{what}: {authority} cannot be asked: huggingface_hub is offline; unset "
            f"HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, then start again; {NEEDED}"
        ) from error
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise RefusedResponse(
            f"{what}: {authority} gave an answer that is none of a Hub "
            f"({type(error).__name__}); a login page or a proxy may have given it; {NEEDED}"
        ) from error


def _pin(what: str, authority: str, commit: object, sibling: object) -> Pin:
    lfs = getattr(sibling, "lfs", None)
    size, sha256 = (getattr(lfs, "size", None), getattr(lfs, "sha256", None))
    stated = (
        isinstance(commit, str) and COMMIT.fullmatch(commit)
        and isinstance(sha256, str) and SHA256.fullmatch(sha256)
        and type(size) is int and size > 0
    )  # fmt: skip
    if not stated:
        raise PinError(
            f"{what}: {authority} states no usable commit, size and LFS sha256 for it; only files "
            "kept in LFS can be trusted on first use"
        )
    return Pin(str(commit), int(size or 0), str(sha256), authority)
