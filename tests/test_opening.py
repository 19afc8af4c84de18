"""The first argument of `create`: spec files, saved files, and other paths."""

from __future__ import annotations

import errno
import json
import os

import pytest

import vitzoo
from create_helpers import refused
from helpers import says
from vitzoo.errors import InvalidOption, UnknownOption


def test_create_reads_a_toml_file(spec, to_toml, tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(to_toml(spec.to_data()))
    assert vitzoo.create(path).spec == vitzoo.create(str(path)).spec == spec


def test_create_reads_a_json_file(spec, tmp_path):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(spec.to_data()))
    assert vitzoo.create(path).spec == spec


@pytest.mark.parametrize(
    ("file", "text", "parts"),
    [
        ("net.toml", "depth = ", ["TOML", "line 1"]),
        ("net.json", "{", ["JSON", "line 1"]),
        ("net.json", "[]", ["table", "[]", "(list)"]),
        ("net.json", "[" * 100_000, ["JSON"]),
        ("net.toml", 'head = "os:system"', ["head", "'os:system'", "registered name"]),
    ],
)
def test_a_spec_file_that_is_wrong_names_itself(tmp_path, file, text, parts):
    tmp_path.joinpath(file).write_text(text)
    says(refused(InvalidOption, tmp_path / file), tmp_path / file, *parts)


def test_a_spec_file_with_an_unknown_key_names_itself(tmp_path):
    tmp_path.joinpath("net.toml").write_text("depht = 2")
    says(refused(UnknownOption, tmp_path / "net.toml"), "net.toml", "'depht'", "'depth'")


def test_a_spec_file_that_is_missing_says_so(tmp_path):
    message = refused(InvalidOption, tmp_path / "none.toml")
    says(message, f"{tmp_path}/none.toml", os.strerror(errno.ENOENT))


def test_a_path_of_another_kind_says_what_is_read(tmp_path):
    message = refused(InvalidOption, tmp_path / "net.yaml")
    says(message, "net.yaml", ".toml", ".json", ".safetensors")
