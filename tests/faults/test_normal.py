"""Without faults: fetched once, then loaded from the store without a request."""

import stat

import pytest

import vitzoo


def test_fetched_once_then_warm(net, hub):
    net.assert_right(net.create())
    assert len(hub.file_requests()) == 1
    net.assert_right(net.create())
    assert len(hub.file_requests()) == 1
    assert stat.S_IMODE(net.stored.stat().st_mode) == 0o444


def test_first_use_is_locked(net):
    net.first_use()
    with pytest.warns(vitzoo.errors.FirstUseWarning, match="from now on the lock"):
        net.assert_right(net.create())
    net.assert_right(net.create())
    assert (net.home / "vitzoo.lock").exists()
    assert net.stored.exists()
