"""Requests and files that huggingface_hub makes of its own, and vitzoo does not.

The one exception, `get_token`, is in test_logins.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

FETCH = """
import sys, warnings
import vitzoo
warnings.simplefilter("ignore", vitzoo.FirstUseWarning)
for name in sys.argv[1:]:
    vitzoo.fetch(name)
"""
ADDRESS = "hf://acme/net@main/model.safetensors"


def fetch(net, **variables):
    """Fetch the registered weights and an address in a fresh process, as the user's first call."""
    code = [sys.executable, "-W", "error", "-c", FETCH, net.name, ADDRESS]
    # Variables by which huggingface_hub recognises an agent, and would ask which one it is.
    env = net.environment() | {"AI_AGENT": "some-agent", "AGENT": "some-agent"} | variables
    done = subprocess.run(code, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def tree(folder):
    """Return every path below a folder with what it is and how long."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


@pytest.fixture
def hf_home(net):
    """A folder of huggingface_hub with a token file, and the place where its cache would be."""
    folder = net.root / "hf"
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text("hf_secret", encoding="utf-8")
    return folder


@pytest.fixture
def bystander(second_hub, monkeypatch):
    """A Hub that HF_ENDPOINT names and VITZOO_ENDPOINTS does not."""
    monkeypatch.setenv("HF_ENDPOINT", second_hub.endpoint)
    return second_hub


def test_only_the_named_hosts_are_asked(net, hub, bystander, hf_home):
    before = tree(hf_home)
    fetch(net)
    assert bystander.requests == []
    asked = [path.partition("?")[0] for _, path, _ in hub.requests]
    assert asked == [
        "/acme/net/resolve/0123456789abcdef0123456789abcdef01234567/model.safetensors",
        "/api/models/acme/net/revision/main",
    ]  # the second name has the same bytes, which are in the store by then
    assert tree(hf_home) == before


def test_no_file_is_written_through_a_link(net, hf_home, bystander):
    """The cache of agent names is a link out of HF_HOME."""
    target = net.root / "precious.json"
    target.write_text("{}", encoding="utf-8")
    os.utime(target, (1, 1))  # old enough for huggingface_hub to write it anew
    (hf_home / ".agent_harnesses.json").symlink_to(target)
    before = tree(net.root / "hf"), target.read_bytes(), target.lstat().st_mtime_ns
    fetch(net)
    assert (tree(net.root / "hf"), target.read_bytes(), target.lstat().st_mtime_ns) == before
    assert bystander.requests == []


def test_no_login_is_renewed_through_a_mirror(net, hub, bystander, hf_home):
    """huggingface_hub would ask HF_ENDPOINT for a new one and write it."""
    stored = "[me]\nhf_token = hf_secret\nrefresh_token = r\nexpires_at = 1\n"
    (hf_home / "stored_tokens").write_text(stored, encoding="utf-8")
    before = tree(hf_home)
    fetch(net, VITZOO_TOKEN_HOSTS=hub.host)
    assert bystander.requests == []
    assert tree(hf_home) == before
    assert {headers.get("authorization") for _, _, headers in hub.requests} == {"Bearer hf_secret"}


def test_no_oidc_token_is_asked_for_through_a_mirror(net, hub, bystander, hf_home):
    before = tree(hf_home)
    fetch(net, HF_OIDC_RESOURCE="acme/net", HF_OIDC_ID_TOKEN="id", VITZOO_TOKEN_HOSTS=hub.host)
    assert bystander.requests == []
    assert tree(hf_home) == before


@pytest.mark.parametrize(
    ("variables", "file", "sent"),
    [
        ({"HF_TOKEN": "hf_one", "HUGGING_FACE_HUB_TOKEN": "hf_two"}, "hf_three", "hf_one"),
        ({"HUGGING_FACE_HUB_TOKEN": "hf_two"}, "hf_three", "hf_two"),
        ({}, " hf_three\r\n", "hf_three"),
        ({"HF_TOKEN": " \n"}, "hf_three", "hf_three"),
        ({}, "", None),
        ({}, None, None),
        ({"HF_TOKEN": "hf_one", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, "hf_three", None),
        ({}, "hf_" + "x" * 1_000_000, None),  # no token is that long
        ({}, "hf_three\nX-Evil: 1", None),  # would add a header
        ({"HF_TOKEN": "h\u00e9"}, None, None),  # no header can hold it
    ],
)
def test_the_token_is_read_where_huggingface_hub_keeps_it(net, hub, hf_home, variables, file, sent):
    if file is None:
        (hf_home / "token").unlink()
    else:
        (hf_home / "token").write_text(file, encoding="utf-8")
    fetch(net, VITZOO_TOKEN_HOSTS=hub.host, **variables)
    wanted = f"Bearer {sent}" if sent else None
    assert {headers.get("authorization") for _, _, headers in hub.requests} == {wanted}


def test_requests_name_vitzoo_and_its_version(net, hub):
    import vitzoo

    fetch(net)
    agents = {headers["user-agent"] for _, _, headers in hub.requests}
    assert len(agents) == 1
    assert agents.pop().split("; ")[0] == f"vitzoo/{vitzoo.__version__}"
    assert json.dumps(hub.requests).count("some-agent") == 0
