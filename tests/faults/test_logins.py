"""The user's token: where it comes from, how it is renewed, and what happens if it is refused."""

from __future__ import annotations

import logging
import sys
import threading
import time
import types

import pytest
from huggingface_hub.errors import DeviceCodeError, OAuthErrorCode, OIDCError

from helpers import refuses, says
from internals import reply, serve
from vitzoo.errors import AccessDenied, AuthenticationError, GatedRepo

OLD, NEW = "hf_old", "hf_new"
REASON = "Invalid credentials in Authorization header"


@pytest.fixture(autouse=True)
def _new_process(net, hub, clock, monkeypatch):
    """Forget what this process has learned; the loopback Hub may see the token."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _auth

    monkeypatch.setattr("vitzoo.store.exchange._without_token", set())
    monkeypatch.setattr("vitzoo.store.token._gave_up", [])
    monkeypatch.setattr("vitzoo.store.token._warned", set())
    monkeypatch.setattr(_auth, "_OAUTH_REFRESH_CACHE", None)
    monkeypatch.setattr(_auth, "_OIDC_TOKEN_CACHE", None)
    monkeypatch.setattr(_auth, "_OAUTH_REFRESH_WARNED", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.setenv("VITZOO_TOKEN_HOSTS", hub.host)
    for name in ("HF_OIDC_RESOURCE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (net.root / "hf").mkdir(exist_ok=True)
    assert clock.slept == []


@pytest.fixture
def login(net):
    """A login in the browser whose token has expired."""
    (net.root / "hf" / "token").write_text(OLD)
    fields = f"[me]\nhf_token = {OLD}\nrefresh_token = hf_refresh\nexpires_at = 1\n"
    (net.root / "hf" / "stored_tokens").write_text(fields)


def renewing(monkeypatch, renew):
    """Let huggingface_hub's request for a new token answer as given; return its arguments."""
    asked = []

    def refresh_access_token(token):
        asked.append(token)
        return renew()

    monkeypatch.setattr("huggingface_hub.utils._auth.refresh_access_token", refresh_access_token)
    return asked


def sent(hub):
    """Return the token of each request, without its scheme."""
    texts = (headers.get("authorization") for _, _, headers in hub.requests)
    return [text and text.removeprefix("Bearer ") for text in texts]


def raising(error):
    def call(*_arguments, **_options):
        raise error

    return call


@pytest.mark.usefixtures("login")
def test_an_expired_login_is_renewed(net, hub, monkeypatch):
    asked = renewing(monkeypatch, lambda: {"access_token": NEW, "expires_in": 10**7})
    net.assert_right(net.create())
    assert sent(hub) == [NEW]
    assert asked == ["hf_refresh"]
    assert (net.root / "hf" / "token").read_text() == NEW


@pytest.mark.usefixtures("login")
def test_a_login_that_is_not_renewed_costs_no_download(net, hub, monkeypatch, caplog):
    error = DeviceCodeError("revoked", error_code=OAuthErrorCode.INVALID_GRANT)
    renewing(monkeypatch, raising(error))
    hub.tokens = {NEW}
    net.assert_right(net.create())
    assert sent(hub) == [OLD, None]
    (said,) = refusals(caplog)
    says(said, hub.host, str(net.root / "hf" / "token"), "no longer valid", "`hf auth login`")


@pytest.mark.usefixtures("login")
def test_a_renewal_that_hangs_is_not_waited_for_again(net, hub, monkeypatch, caplog):
    ended = threading.Event()
    asked = renewing(monkeypatch, lambda: ended.wait(20))
    monkeypatch.setattr("vitzoo.store.token.PATIENCE", 0.3)
    net.first_use()
    net.assert_right(net.create())
    ended.set()
    assert sent(hub) == [OLD] * 2
    assert asked == ["hf_refresh"]
    said = [m for m in caplog.messages if "gave no token" in m]
    assert len(said) == 1
    says(said[0], str(net.root / "hf" / "token"), "ReadTimeout: ", "0.3 s", "`hf auth login`")


@pytest.mark.usefixtures("login")
@pytest.mark.parametrize("why", ["mirror", "http", "disabled"])
def test_no_renewal_is_requested(net, hub, monkeypatch, why):
    """A renewal goes to the host of HF_ENDPOINT, so it must be the official one."""
    asked = renewing(monkeypatch, raising(AssertionError()))
    if why == "disabled":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    else:
        endpoint = "https://mirror.example" if why == "mirror" else "http://huggingface.co"
        template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setenv("HF_OIDC_RESOURCE", "acme/net")  # its identity is no mirror's either
        monkeypatch.setattr("huggingface_hub._oidc.oidc_login", raising(AssertionError()))
    net.assert_right(net.create())
    assert sent(hub) == [None if why == "disabled" else OLD]
    assert asked == []


@pytest.mark.usefixtures("login")
def test_offline_no_renewal_is_requested(monkeypatch):
    from vitzoo.store.token import user_token

    asked = renewing(monkeypatch, raising(AssertionError()))
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    assert user_token() == OLD
    assert asked == []


@pytest.mark.parametrize("works", [True, False])
def test_a_token_of_oidc(net, hub, monkeypatch, caplog, works):
    monkeypatch.setenv("HF_OIDC_RESOURCE", "acme/net")
    monkeypatch.setenv("HF_OIDC_ID_TOKEN", "identity")
    monkeypatch.setenv("HF_TOKEN", OLD)
    exchanged = raising(OIDCError("acme/net is not linked"))
    if works:
        exchanged = lambda **_: {"access_token": NEW}  # noqa: E731
    monkeypatch.setattr("huggingface_hub._oidc.oidc_login", exchanged)
    net.assert_right(net.create())
    assert sent(hub) == [NEW if works else OLD]
    if not works:
        says(caplog.text, "HF_OIDC_RESOURCE", "OIDCError: acme/net is not linked")
    assert "identity" not in caplog.text


def test_a_secret_of_colab(net, hub, monkeypatch, caplog):
    colab = types.ModuleType("google.colab")
    colab.userdata = types.SimpleNamespace(get={"HF_TOKEN": NEW}.__getitem__)
    colab.errors = types.SimpleNamespace(Error=ValueError)
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    monkeypatch.setitem(sys.modules, "google.colab.errors", colab.errors)
    monkeypatch.setattr("huggingface_hub.utils._auth.is_google_colab", lambda: True)
    monkeypatch.setattr("huggingface_hub.utils._auth.is_colab_enterprise", lambda: False)
    monkeypatch.setattr("huggingface_hub.utils._auth._IS_GOOGLE_COLAB_CHECKED", False)
    hub.tokens = {"another"}
    net.assert_right(net.create())
    assert sent(hub) == [NEW, None]
    says(refusals(caplog)[0], "the secret HF_TOKEN of Colab")


def refusals(caplog):
    return [m for m in caplog.messages if "without a token" in m]


@pytest.mark.filterwarnings("ignore::vitzoo.FirstUseWarning")
@pytest.mark.parametrize("variable", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_a_refused_token_costs_one_request_and_one_warning(net, hub, monkeypatch, caplog, variable):
    """The metadata and the weights are public."""
    net.first_use()
    monkeypatch.setenv(variable, OLD)
    hub.tokens = {NEW}
    net.assert_right(net.create())
    assert sent(hub) == [OLD, None, None]
    (said,) = refusals(caplog)
    says(said, hub.host, variable, "no longer valid", "`hf auth login`")
    assert OLD not in caplog.text


def test_a_gated_repository_is_asked_with_the_token_again(net, hub, monkeypatch):
    monkeypatch.setattr("vitzoo.store.exchange._without_token", {hub.host})
    monkeypatch.setenv("HF_TOKEN", NEW)
    net.register(gated=True)
    net.assert_right(net.create())
    assert sent(hub) == [NEW]


def test_a_private_repository_is_asked_with_the_token_again(net, hub, monkeypatch, caplog):
    """After another repository was denied to the token, such as one of fine-grained rights."""
    monkeypatch.setattr("vitzoo.store.exchange._without_token", {hub.host})
    monkeypatch.setenv("HF_TOKEN", NEW)

    def private(handler, data):
        if handler.headers.get("Authorization"):
            serve(handler, data)
        else:
            reply(handler, 401, {"X-Error-Code": "RepoNotFound"})

    hub.always = private
    net.assert_right(net.create())
    assert sent(hub) == [None, NEW]
    assert refusals(caplog) == []


GATED = {"X-Error-Code": "GatedRepo"}
MISSING = {"X-Error-Code": "RepoNotFound"}
INVALID = {"X-Error-Message": REASON}
LIMITED = {"X-Error-Message": "The token has no right to read acme/net"}
BOTH = {
    "token-refused": (401, INVALID, 401, MISSING, AuthenticationError, (REASON, "hf auth login")),
    "token-refused-gated": (
        *(401, INVALID, 401, GATED, GatedRepo),
        (REASON, "https://huggingface.co/acme/net", "hf auth login"),
    ),
    "terms-not-accepted": (
        *(403, GATED, 401, GATED, GatedRepo),
        ("accept its terms", "https://huggingface.co/acme/net"),
    ),
    "rights": (403, LIMITED, 401, MISSING, AccessDenied, (LIMITED["X-Error-Message"], "rights")),
    "unknown": (401, MISSING, 401, MISSING, AuthenticationError, ("private",)),
    "bare": (403, {}, 403, {}, AccessDenied, ("check the rights of your token",)),
}


@pytest.mark.parametrize("place", ["api", "file"])
@pytest.mark.parametrize("row", BOTH.values(), ids=BOTH)
def test_the_error_says_whether_token_or_repository_is_the_cause(
    net, hub, monkeypatch, caplog, row, place
):
    status, headers, status_without, headers_without, kind, words = row
    monkeypatch.setenv("HF_TOKEN", OLD)

    def denied(handler, _data):
        with_token = handler.headers.get("Authorization")
        reply(handler, *((status, headers) if with_token else (status_without, headers_without)))

    if place == "api":
        net.first_use()
        hub.api = denied
    hub.always = denied
    with refuses(kind, "faulty/net:main", hub.host, *words) as caught:
        net.create()
    assert type(caught.value) is kind
    assert ("HF_TOKEN" in str(caught.value)) or "terms" in words[0]
    assert OLD not in str(caught.value) + caplog.text
    assert sent(hub) == [OLD, None]
    assert (REASON in str(caught.value)) == (headers is INVALID)


def test_a_refusal_that_may_pass_proves_nothing(net, hub, faults, monkeypatch, caplog):
    """Without the token the host is busy; the next try sends it again."""
    monkeypatch.setenv("HF_TOKEN", OLD)
    hub.script.extend([faults.answer(401, INVALID), faults.answer(503)])
    net.assert_right(net.create())
    assert sent(hub) == [OLD, None, OLD]
    assert refusals(caplog) == []


@pytest.mark.usefixtures("login")
def test_a_renewal_takes_no_time_of_the_request(net, hub, faults, monkeypatch):
    """It takes as long as a try may."""
    net.limit(first_byte=0.5, attempts=1)
    renewing(monkeypatch, lambda: time.sleep(0.5) or {"access_token": NEW, "expires_in": 10**7})

    def slow(handler, data):
        time.sleep(0.2)
        faults.serve(handler, data)

    hub.always = slow
    net.assert_right(net.create())
    assert sent(hub) == [NEW]


def test_a_damaged_file_of_tokens_is_not_printed(net, hub, caplog):
    logger = logging.getLogger("huggingface_hub.utils._auth")
    logger.addHandler(caplog.handler)
    (net.root / "hf" / "token").write_text(OLD)
    (net.root / "hf" / "stored_tokens").write_text(f"hf_token = {OLD}\n")
    net.assert_right(net.create())
    logger.removeHandler(caplog.handler)
    assert sent(hub) == [OLD]
    assert OLD not in caplog.text


def test_a_reason_that_repeats_the_token_is_shown_without_it(net, hub, faults, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", OLD)
    hub.always = faults.answer(401, {"X-Error-Message": f"bad token Bearer {OLD}"})
    with refuses(AuthenticationError, "bad token Bearer ***") as caught:
        net.create()
    assert OLD not in str(caught.value)


def test_after_a_failure_the_place_is_that_of_the_stored_token(net, hub, monkeypatch, caplog):
    monkeypatch.setenv("HF_OIDC_RESOURCE", "acme/net")
    monkeypatch.setenv("HF_TOKEN", OLD)
    monkeypatch.setattr("huggingface_hub._oidc.detect_provider", lambda: None)
    hub.tokens = {NEW}
    net.assert_right(net.create())
    assert sent(hub) == [OLD, None]
    says(refusals(caplog)[0], "HF_TOKEN")
    assert len([m for m in caplog.messages if "gave no token of HF_OIDC_RESOURCE" in m]) == 1
