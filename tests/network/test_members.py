"""The members that apps need are those of the protocol `vitzoo.parts.Network`."""

from __future__ import annotations

import inspect

from vitzoo.network.members import NEEDED
from vitzoo.parts import Network


def test_apps_need_members_of_the_protocol_alone():
    members = {*vars(Network), *inspect.get_annotations(Network)}
    needed = {name for names in NEEDED.values() for name in names}
    assert needed == {name for name in members if name[0] != "_"} - {"num_classes"}
