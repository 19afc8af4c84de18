"""Without faults: fetched once, then loaded from the store without a request."""

import stat
import subprocess
import sys


def test_fetched_once_then_warm(net, hub):
    net.assert_right(net.create())
    assert len(hub.file_requests()) == 1
    net.assert_right(net.create())
    assert len(hub.file_requests()) == 1
    assert stat.S_IMODE(net.stored.stat().st_mode) == 0o444


def test_first_use_is_locked(net):
    net.first_use()
    net.assert_right(net.create())
    net.assert_right(net.create())
    assert (net.home / "vitzoo.lock").exists()
    assert net.stored.exists()


def test_a_warm_store_needs_no_network_library(net):
    net.create()
    code = "import sys, vitzoo; vitzoo.create('faulty/net', pretrained=True)"
    code += "; sys.exit('httpx2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=net.environment(), timeout=120)
    assert done.returncode == 0
