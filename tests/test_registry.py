"""Names: what is registered, how it is found, what a registry file may say."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import json
import re
import runpy
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vitzoo
from vitzoo.errors import RegistryError, UnknownName, UnknownOption, VitzooError
from vitzoo.manifest import Manifest, read_manifest
from vitzoo.registry import Registry

HERE = Path(__file__).parent
NAMES = re.findall(
    r"\w+",
    """
    vit_ti16 vit_s16 vit_s32 vit_b8 vit_b16 vit_b32 vit_l16 vit_l32 vit_h14 vit_g14 vit_gg14
    vit_ti16_384 vit_s16_384 vit_s32_384 vit_b16_384 vit_b32_384 vit_l16_384 vit_l32_384
    vit_b16_in21k vit_b32_in21k vit_l16_in21k vit_l32_in21k vit_h14_in21k vit_digits
    """,
)

# Browsing


@pytest.mark.parametrize("name", NAMES)
def test_every_bare_name_of_the_design_is_registered(name):
    assert vitzoo.describe(name).name == name


def test_a_variant_knows_the_name_it_is_registered_under():
    for variant in vitzoo.variants():
        assert variant.spec.variant == variant.name


def test_every_row_says_where_it_comes_from():
    for variant in vitzoo.variants(namespace="core"):
        assert variant.source, variant.name
        assert all(w.source and w.license for w in variant.weights), variant.name


@pytest.mark.parametrize(
    ("name", "width", "depth", "heads", "mlp", "params"),
    [  # seeds, section D, and arXiv:2106.04560, table 2
        ("vit_b16", 768, 12, 12, 3072, 86e6),
        ("vit_b32", 768, 12, 12, 3072, 88e6),
        ("vit_l16", 1024, 24, 16, 4096, 304e6),
        ("vit_h14", 1280, 32, 16, 5120, 632e6),
        ("vit_gg14", 1664, 48, 16, 8192, 1.84e9),
    ],
)
def test_numbers_are_the_published_ones(name, width, depth, heads, mlp, params):
    variant = vitzoo.describe(name)
    spec = variant.spec
    assert (spec.embed_dim, spec.depth, spec.num_heads, spec.mlp_dim) == (width, depth, heads, mlp)
    assert variant.params == pytest.approx(params, rel=0.01)


def test_in21k_variants_have_21843_classes_behind_a_tanh_layer():
    found = vitzoo.variants("vit_*_in21k")
    assert len(found) == 5
    assert {(v.spec.num_classes, v.spec.head.name) for v in found} == {(21843, "tanh")}


def test_a_pattern_selects_names():
    assert [v.name for v in vitzoo.variants("vit_l*_384")] == ["vit_l16_384", "vit_l32_384"]


def test_several_patterns_are_a_union_in_registered_order():
    found = [v.name for v in vitzoo.variants(["vit_h14", "vit_b1?"])]
    assert found == ["vit_b16", "vit_h14"]


def test_a_pattern_that_matches_nothing_gives_an_empty_list():
    assert vitzoo.variants("resnet*") == []


def test_patterns_are_case_sensitive():
    assert vitzoo.variants("VIT_B16") == []


def test_filters_compare_values():
    found = [v.name for v in vitzoo.variants("vit_*", depth=12, image_size=384, embed_dim=768)]
    assert found == ["vit_b16_384", "vit_b32_384"]


def test_filters_may_be_functions():
    found = [v.name for v in vitzoo.variants(namespace="core", params=lambda n: n > 1e9)]
    assert found == ["vit_g14", "vit_gg14"]


def test_an_unknown_filter_suggests_the_field():
    with pytest.raises(UnknownOption, match="unknown field 'embed_dims'; did you mean 'embed_dim'"):
        vitzoo.variants(embed_dims=768)


def test_an_unknown_filter_lists_all_fields():
    with pytest.raises(UnknownOption, match="fields: name, params, image_size, "):
        vitzoo.variants(zzz=1)


def test_what_the_registry_hands_out_is_frozen():
    variant = vitzoo.describe("vit_b16")
    for thing, field in ((variant, "name"), (variant.spec, "depth"), (variant.spec.block, "x")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, field, 1)


def test_variants_hash_and_compare_by_value():
    first, second = vitzoo.describe("vit_b16"), copy.deepcopy(vitzoo.describe("vit_b16"))
    assert first == second
    assert len({first, second, vitzoo.describe("vit_b32")}) == 2


def test_the_list_is_the_callers_own():
    vitzoo.variants().clear()
    assert vitzoo.variants()


# Unknown names


def test_an_unknown_variant_suggests_the_nearest():
    with pytest.raises(UnknownName, match=r"unknown variant 'vit_b61'; did you mean 'vit_b16'"):
        vitzoo.describe("vit_b61")


def test_a_variant_unlike_any_other_points_to_the_list():
    with pytest.raises(UnknownName, match="unknown variant 'zzzzzz'; `vitzoo list` shows all"):
        vitzoo.describe("zzzzzz")


@pytest.mark.parametrize("name", ["", "vit_b16 ", "VIT_B16", "core/vit_b16", "vit_b16/", "a/b/c"])
def test_a_name_is_taken_literally(name):
    with pytest.raises(UnknownName, match="unknown variant"):
        vitzoo.describe(name)


def test_a_namespace_that_nobody_installed_is_named():
    with pytest.raises(UnknownName, match="no plugin 'nobody' is installed"):
        vitzoo.describe("nobody/vit_b16")


@pytest.mark.parametrize(
    ("theirs", "library", "ours"),
    [
        ("vit_base_patch16_224", "timm", "vit_b16"),
        ("vit_base_patch16_224.augreg_in21k", "timm", "vit_b16"),
        ("vit_large_patch32_384", "timm", "vit_l32_384"),
        ("vit_b_16", "torchvision", "vit_b16"),
        ("vit_h_14", "torchvision", "vit_h14"),
        ("google/vit-base-patch16-224-in21k", "transformers", "vit_b16_in21k"),
    ],
)
def test_a_name_of_another_library_is_refused_with_the_call_to_make(theirs, library, ours):
    expected = rf"'{theirs}': that is the name in {library}; here it is vitzoo.create\('{ours}'"
    for use in (vitzoo.describe, vitzoo.create):
        with pytest.raises(UnknownName, match=expected):
            use(theirs)


def test_no_name_of_another_library_is_a_name_here():
    registered = vitzoo.variants()
    names = {v.name for v in registered}
    assert not names & {theirs for v in registered for _, theirs in v.known_as}


def test_a_name_of_another_library_means_one_variant():
    rows = [row for v in vitzoo.variants() for row in v.known_as]
    assert len(rows) == len(set(rows))


# Released names


def test_released_names_keep_their_meaning():
    tool = runpy.run_path(str(HERE / "update_released.py"))
    released = json.loads((HERE / "released.json").read_text())
    problems = tool["changes"](released, tool["snapshot"]())
    assert not problems, "a released name keeps its meaning; give the change a new name"


def test_every_core_name_is_in_the_snapshot():
    tool = runpy.run_path(str(HERE / "update_released.py"))
    released = json.loads((HERE / "released.json").read_text())
    how = "freeze what is new with `python tests/update_released.py` and commit released.json"
    assert tool["snapshot"]() == tool["normal"](released), how


def test_the_snapshot_takes_additions(tmp_path):
    path = tmp_path / "released.json"
    released = json.loads((HERE / "released.json").read_text())
    path.write_text(json.dumps({"vit_b16": released["vit_b16"]}))
    tool = runpy.run_path(str(HERE / "update_released.py"))
    assert tool["main"](path) == 0
    assert json.loads(path.read_text()) == tool["snapshot"]()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"params": 1}, "vit_b16: params was 1, is 86567656"),
        ({"builder": "x:y"}, "vit_b16: builder was 'x:y', is 'vitzoo.build:build'"),
        ({"default": "lost"}, "vit_b16: default was 'lost', is 'augreg2_in21k_ft_in1k'"),
        ({"weights": {"lost": "ab"}}, "vit_b16: weights lost had sha256 ab, now None"),
    ],
)
def test_the_snapshot_refuses_changes(tmp_path, capsys, change, message):
    path = tmp_path / "released.json"
    released = json.loads((HERE / "released.json").read_text())
    before = json.dumps({"vit_b16": released["vit_b16"] | change})
    path.write_text(before)
    assert runpy.run_path(str(HERE / "update_released.py"))["main"](path) == 1
    assert message in capsys.readouterr().out
    assert path.read_text() == before


def test_the_snapshot_refuses_a_name_that_is_gone(tmp_path, capsys):
    path = tmp_path / "released.json"
    released = json.loads((HERE / "released.json").read_text())
    path.write_text(json.dumps({"vit_gone": released["vit_b16"]}))
    assert runpy.run_path(str(HERE / "update_released.py"))["main"](path) == 1
    assert "vit_gone is gone" in capsys.readouterr().out


# The schema of registry files

VALID = """\
api = 1

[sizes.one]
embed_dim = 32
depth = 2
num_heads = 2
mlp_dim = 64
source = "a paper"

[heads.flat]
target = "acme.parts:Flat"
summary = "a head"

[variants.net]
summary = "a network"
size = "one"
params = 24000
source = "a paper"

[variants.net.weights.first]
file = "first.safetensors"
size = 4096
sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
pin = "confirmed"
format = "timm"
license = "apache-2.0"
source = "made up"
default = true

[variants.net.weights.first.preprocessing]
mean = [0.5, 0.5, 0.5]
std = [0.5, 0.5, 0.5]
interpolation = "bicubic"

[aliases]
old = "net"
"""
SHA = "0123456789abcdef" * 4
FIRST = "variants.net.weights.first"
SECOND = VALID[VALID.index("[variants.net.weights") : VALID.index("[aliases]")].replace(
    "first", "second"
)


@pytest.fixture
def read(tmp_path):
    def read(text: str | bytes, package: str | None = "acme") -> Manifest:
        path = tmp_path / "registry.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_manifest(path, package=package)

    return read


@pytest.fixture
def problem(read, tmp_path):
    """Read a registry file that is wrong; return the message after the file's name."""

    def problem(text: str | bytes, package: str | None = "acme") -> str:
        with pytest.raises(RegistryError) as caught:
            read(text, package)
        file, _, message = str(caught.value).partition("registry.toml: ")
        assert file == f"{tmp_path}/"
        return message

    return problem


def change(old: str, new: str) -> str:
    assert VALID.count(old) == 1, old
    return VALID.replace(old, new)


def test_the_minimal_registry_is_valid(read):
    manifest = read(VALID)
    (variant,) = manifest.variants
    assert (variant.name, variant.spec.embed_dim) == ("net", 32)
    assert variant.default_weights.name == "first"
    assert [head.name for head in manifest.heads] == ["flat"]
    assert manifest.aliases == {"old": "net"}


def test_numbers_of_a_size_may_be_overridden(read):
    text = change('size = "one"', 'size = "one"\ndepth = 3\nimage_size = [32, 64]')
    (variant,) = read(text).variants
    assert (variant.spec.depth, variant.spec.image_size) == (3, (32, 64))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # keys
        ("depth = 2", "dept = 2", "[sizes.one]: missing key 'depth'; was it meant by 'dept'?"),
        ("depth = 2\n", "", "[sizes.one]: missing key 'depth'"),
        ('summary = "a network"\n', "", "[variants.net]: missing key 'summary'"),
        ('summary = "a head"\n', "", "[heads.flat]: missing key 'summary'"),
        ("api = 1\n", "", "missing key 'api'"),
        ("pin =", "pim =", f"[{FIRST}]: missing key 'pin'; was it meant by 'pim'?"),
        (
            'size = "one"',
            'size = "one"\nimage_siz = 32',
            "[variants.net]: unknown key 'image_siz'; did you mean 'image_size'",
        ),
        (
            "size = 4096",
            "size = 4096\nzz = 1",
            f"[{FIRST}]: unknown key 'zz'; known keys: block, default",
        ),
        ("mean = ", "crop = 1\nmean = ", f"[{FIRST}.preprocessing]: unknown key 'crop'"),
        ("[aliases]", "[alias]", "unknown key 'alias'; did you mean 'aliases'"),
        ("[heads.flat]", "[head.flat]", "unknown key 'head'; did you mean 'heads'"),
        # types
        ("depth = 2", 'depth = "2"', "[sizes.one]: depth must be a whole number, got '2' (str)"),
        ("depth = 2", "depth = 2.0", "[sizes.one]: depth must be a whole number, got 2.0 (float)"),
        ("depth = 2", "depth = true", "[sizes.one]: depth must be a whole number, got True (bool)"),
        ("depth = 2", "depth = inf", "[sizes.one]: depth must be a whole number, got inf"),
        ("= true", "= 1", f"[{FIRST}]: default must be true or false, got 1 (int)"),
        ('"a paper"\n\n[heads', '["x"]\n[heads', "[sizes.one]: source must be a string, got ['x']"),
        ('"a network"', '""', "[variants.net]: summary must be printable text, got ''"),
        ('"a network"', r'"\u001b[2J"', r"[variants.net]: summary must be printable text"),
        ('old = "net"', "old = 1", "[aliases]: old must be a string, got 1 (int)"),
        ("[0.5, 0.5, 0.5]\nstd", "[true]\nstd", f"[{FIRST}.preprocessing]: mean must be a list of"),
        ("[0.5, 0.5, 0.5]\nstd", "[nan]\nstd", f"[{FIRST}.preprocessing]: mean must be a list of"),
        ("[0.5, 0.5, 0.5]\nstd", "0.5\nstd", f"[{FIRST}.preprocessing]: mean must be a list, got"),
        # numbers
        ("depth = 2", "depth = -2", "[sizes.one]: depth must be a whole number from 1, got -2"),
        ("depth = 2", "depth = 0", "[sizes.one]: depth must be a whole number from 1, got 0"),
        ("depth = 2", f"depth = {2**53}", "[sizes.one]: depth must be a whole number from 1, got"),
        ("size = 4096", "size = 0", f"[{FIRST}]: size must be a whole number from 1, got 0"),
        ("params = 24000", "params = -1", "[variants.net]: params must be a whole number from 1"),
        (
            "params = 24000",
            "params = 1\nimage_size = true",
            "[variants.net]: image_size must be a whole number of px from 1 to 65536",
        ),
        (
            "params = 24000",
            "params = 1\nimage_size = [32, 0]",
            "[variants.net]: image_size must be a whole number of px from 1 to 65536",
        ),
        (
            "params = 24000",
            "params = 1\nimage_size = [32, 32, 3]",
            "[variants.net]: image_size must be a whole number of px from 1 to 65536",
        ),
        (
            "params = 24000",
            "params = 1\ndropout = 1.0",
            "[variants.net]: dropout must be a rate of at least 0 and below 1, got 1.0",
        ),
        (
            "params = 24000",
            "params = 1\ndropout = nan",
            "[variants.net]: dropout must be a rate of at least 0 and below 1, got nan",
        ),
        ("std = [0.5,", "std = [0,", f"[{FIRST}.preprocessing]: std must be positive, got (0.0"),
        ("std = [0.5,", "std = [", f"[{FIRST}.preprocessing]: mean and std need one number per"),
        # choices
        (
            "params = 24000",
            'params = 1\nblock = { activation = "glu" }',
            (
                "[variants.net.block]: activation must be one of gelu, gelu_tanh, quick_gelu, got "
                "'glu'; did you mean 'gelu'"
            ),
        ),
        (
            "params = 24000",
            "params = 1\nblock = { norm_esp = 1e-6 }",
            "[variants.net.block]: unknown key 'norm_esp'; did you mean 'norm_eps'",
        ),
        (
            "params = 24000",
            "params = 1\nblock = { norm_eps = 1 }",
            "[variants.net.block]: norm_eps must lie between 0 and 1, got 1.0",
        ),
        ('size = "one"', 'size = "ane"', "[variants.net]: size must be one of one, got 'ane'; did"),
        ('"bicubic"', '"cubic"', f"[{FIRST}.preprocessing]: interpolation must be one of nearest"),
        ('"confirmed"', '"hoped"', f"[{FIRST}]: pin must be one of confirmed"),
        # names
        (
            "[heads.flat]",
            "[heads.Flat]",
            "[heads.Flat]: the name 'Flat' must be 1 to 64 lower-case",
        ),
        ("[sizes.one]", '[sizes."o ne"]', "[sizes.o ne]: the name 'o ne' must be 1 to 64"),
        ("[variants.net]", "[variants._net]", "[variants._net]: the name '_net' must be 1 to 64"),
        ("[variants.net]", '[variants."a/b"]', "[variants.a/b]: the name 'a/b' must be 1 to 64"),
        ("[variants.net]", '[variants.""]', "[variants.]: the name '' must be 1 to 64"),
        (
            "params = 24000",
            'params = 1\nhead = "os:system"',
            (
                "[variants.net]: head must be a registered name such as 'linear' or "
                "'acme/overlap', got 'os:system' (str); names are looked up, never imported"
            ),
        ),
        (
            "params = 24000",
            "params = 1\nhead = { hidden_dim = 3 }",
            "[variants.net]: head must say which part it configures: add a 'name' to",
        ),
        # targets
        (
            "acme.parts:Flat",
            "os:system",
            "[heads.flat]: target must lie inside the package 'acme', got 'os:system'",
        ),
        (
            "acme.parts:Flat",
            "acmes.parts:Flat",
            "[heads.flat]: target must lie inside the package 'acme', got 'acmes.parts:Flat'",
        ),
        (
            "params = 24000",
            'params = 1\nbuilder = "vitzoo.build:build"',
            "[variants.net]: builder must lie inside the package 'acme'",
        ),
        # aliases
        (
            'old = "net"',
            'old = "nett"',
            "[aliases]: old points to 'nett', which is no variant of this file; did you mean 'net'",
        ),
        (
            'old = "net"',
            'net = "net"',
            "[aliases]: 'net' is a variant; a former name is never used again",
        ),
        ('old = "net"', 'old = "net"\nolder = "old"', "[aliases]: older points to 'old', which is"),
        # versions
        (
            "api = 1",
            "api = 2",
            "api is 2, this vitzoo reads up to 1; the file was written for a newer one",
        ),
        ("api = 1", "api = 0", "api must be a whole number from 1, got 0"),
        # syntax
        ("depth = 2", "depth = ", "is not valid TOML: Invalid value (at line 5"),
        ("depth = 2", "depth = 2\ndepth = 2", "is not valid TOML: Cannot overwrite a value"),
        ("[aliases]", "[heads.flat]", "is not valid TOML: Cannot declare ('heads', 'flat') twice"),
    ],
)
def test_a_registry_that_breaks_the_schema_is_refused(problem, old, new, message):
    assert problem(change(old, new)).startswith(message)


def test_a_table_must_be_a_table(problem):
    assert problem("api = 1\nheads = 1") == "heads must be a table, got 1 (int)"
    assert problem("api = 1\nheads = { flat = 1 }") == "[heads.flat]: expected a table, got 1 (int)"


@pytest.mark.parametrize(
    "sha256",
    [SHA[:-1], SHA + "0", SHA.upper(), SHA[:32], "g" + SHA[1:], " " + SHA[1:], "\uff10" + SHA[1:]],
    ids=["63 digits", "65 digits", "upper-case", "md5", "no hex", "space", "full-width digit"],
)
def test_a_sha256_is_64_lower_case_hex_digits(problem, sha256):
    message = problem(change(SHA, sha256))
    assert message == f"[{FIRST}]: sha256 must be 64 lower-case hex digits, got {sha256!r}"


def test_weights_without_sha256_are_refused(problem):
    assert problem(change(f'sha256 = "{SHA}"\n', "")) == (
        f"[{FIRST}]: a 'confirmed' pin needs sha256, size and, on the Hub, revision"
    )


@pytest.mark.parametrize(
    "file", ["../x", "/x", "a/b", "..", ".hidden", "a\\b", "a b", "x" * 300, "é", "C:x", "~", "-f"]
)
def test_a_file_is_a_plain_name(problem, file):
    message = problem(change('"first.safetensors"', json.dumps(file)))
    assert message == f"[{FIRST}]: file must be a plain file name, got {file!r}"


def test_a_file_name_has_no_nul(problem):
    message = problem(change('"first.safetensors"', r'"a\u0000b"'))
    assert message == f"[{FIRST}]: file must be printable text, got 'a\\x00b'"


@pytest.mark.parametrize(
    "target",
    ["acme", "acme.parts", "acme.parts:", ":Flat", "acme:a.b", "acme..x:F", "acme.1:F", "acme:F()"],
)
def test_a_target_is_module_and_name(problem, target):
    message = problem(change("acme.parts:Flat", target))
    assert message == f"[heads.flat]: target must look like 'package.module:Name', got {target!r}"


def test_two_defaults_are_refused(problem):
    message = problem(VALID + SECOND)
    assert message == "[variants.net]: at most one of the weights may be the default"


def test_weights_without_a_default_are_fine(read):
    (variant,) = read(change("default = true\n", "")).variants
    assert variant.default_weights is None


def test_the_size_names_of_the_core_cannot_be_taken(tmp_path):
    path = tmp_path / "registry.toml"
    path.write_text(VALID)
    sizes = Registry().host.core.sizes
    path.write_text(change("[sizes.one]", "[sizes.b]"))
    with pytest.raises(RegistryError, match="the size 'b' is the core's; choose another name"):
        read_manifest(path, package="acme", sizes=sizes)


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(RegistryError, match=r"none\.toml: cannot be read: No such file"):
        read_manifest(tmp_path / "none.toml", package="acme")


def test_a_folder_is_no_registry(tmp_path):
    with pytest.raises(RegistryError, match="cannot be read: Is a directory"):
        read_manifest(tmp_path, package="acme")


@pytest.mark.parametrize("data", [b"\xff\xfe", VALID.encode("utf-16"), b"\x00", b"PK\x03\x04"])
def test_a_file_that_is_no_text_is_refused(problem, data):
    assert problem(data).startswith("is not valid TOML: ")


def test_an_empty_file_lacks_its_api(problem):
    assert problem("") == "missing key 'api'"


def test_deep_nesting_is_refused(problem):
    assert problem("api = " + "[" * 5000 + "]" * 5000).startswith("is not valid TOML: ")


def test_deep_nesting_by_dotted_keys_is_refused(problem):
    assert problem("api" + ".a" * 3000 + " = 1").startswith("is nested more than 12 deep")


def test_a_number_of_5000_digits_is_refused(problem):
    assert problem("api = " + "1" * 5000).startswith("is not valid TOML: ")


def test_a_hexadecimal_number_of_5000_digits_is_refused(problem):
    assert problem("api = 0x" + "1" * 5000).startswith("api must be a whole number from 1")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("params = 24000", f"params = 1\ndropout = {10**400}", "[variants.net]: dropout must be"),
        ("[0.5, 0.5, 0.5]\nstd", f"[{10**400}]\nstd", f"[{FIRST}.preprocessing]: mean must be"),
    ],
)
def test_a_number_too_large_for_a_float_is_refused(problem, old, new, message):
    assert problem(change(old, new)).startswith(message)


def test_a_size_in_px_has_an_upper_bound(problem):
    message = problem(change("params = 24000", f"params = 1\nimage_size = {10**30}"))
    assert message.startswith("[variants.net]: image_size must be")


@pytest.mark.parametrize("field", ["patch_embed", "pos_embed", "pool", "head", "drop_path"])
def test_a_part_is_no_truth_value(problem, field):
    message = problem(change("params = 24000", f"params = 1\n{field} = true"))
    assert message.startswith(f"[variants.net]: {field} must be a name or a mapping")


def test_a_registry_has_no_opaque_parts(problem):
    part = '{ name = "os:system", opaque = true }'
    message = problem(change("params = 24000", f"params = 1\nhead = {part}"))
    assert message.startswith("[variants.net]: head")


def test_a_builder_accepts_fields_that_exist(problem):
    message = problem(change("params = 24000", 'params = 1\naccepts = ["dept"]'))
    assert message.startswith("[variants.net]: accepts")


@pytest.mark.parametrize("top1", ["nan", "inf", "-1", "101"])
def test_an_accuracy_is_a_percentage(problem, top1):
    message = problem(change("default = true", f"top1 = {top1}"))
    assert message.startswith(f"[{FIRST}]: top1 must")


# A valid registry that uses every key, for random changes.
RICH = VALID.replace(
    "params = 24000",
    """\
params = 24000
image_size = [32, 32]
head = { name = "mlp", hidden_dim = 3 }
drop_path = 0.1
patch_embed = "conv"
pos_embed = "none"
pool = "mean"
dropout = 0.1
class_token = true
accepts = ["depth"]
paper = "a paper"
builder = "acme.build:build"
known_as = { timm = "theirs" }
block = { norm_eps = 1e-6, qk_scale = 0.1, attention_dropout = 0.1, activation = "gelu" }
options = { width = 1 }
""",
).replace("default = true", 'default = true\nlabels = ["a"]\ntop1 = 1.0\nevaluation = "made up"')
KEYS = st.sampled_from(re.findall(r"\w+", RICH)) | st.text(max_size=5)
SCALARS = (
    st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([10**400, "one", "net", "acme:x", "linear", SHA, "confirmed", "os:system"])
    | st.dates()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4)
)


def places(table: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in table.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from places(value, (*above, key))


PLACES = list(places(tomllib.loads(RICH)))


def reads_or_refuses(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "registry.toml")
        path.write_bytes(data)
        result: object
        try:
            result = read_manifest(path, package="acme")
        except RegistryError as error:
            result = str(error)
    assert isinstance(result, Manifest) or str(result).startswith(f"{path}: ")


@settings(max_examples=100)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_random_bytes_are_read_or_refused(data):
    reads_or_refuses(data)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=st.dictionaries(KEYS, VALUES, max_size=5))
def test_random_tables_are_read_or_refused(to_toml, table):
    reads_or_refuses(to_toml({"api": 1} | table).encode())


def test_the_registry_with_every_key_is_valid(read):
    (variant,) = read(RICH).variants
    assert variant.spec.head.options == (("hidden_dim", 3),)


NASTY = [
    True,
    0,
    -1,
    10**400,
    1.5,
    float("inf"),
    float("nan"),
    "",
    "x",
    "os:system",
    "\x00",
    [],
    [True],
    ["x"],
    [10**400],
    [float("nan")],
    [[1]],
    {},
    {"": 1},
    {"a": {}},
    {"name": 1},
    {"name": "x"},
    {"name": "x", "y": {}},
    dt.date(2020, 1, 1),
]


@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_nasty_values_everywhere_are_read_or_refused(to_toml, place):
    for value in NASTY:
        table: Any = tomllib.loads(RICH)
        row = table
        for key in place[:-1]:
            row = row[key]
        row[place[-1]] = value
        reads_or_refuses(to_toml(table).encode())


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_valid_registry_with_one_random_change_is_read_or_refused(to_toml, data):
    table: Any = tomllib.loads(RICH)
    place = table
    for key in data.draw(st.sampled_from(PLACES)):
        where, place = place, place[key]
    where[data.draw(st.just(key) | KEYS)] = data.draw(VALUES)
    reads_or_refuses(to_toml(table).encode())


# Aliases

RENAMED = """\
api = 1

[variants.new]
summary = "a network"
embed_dim = 32
depth = 1
num_heads = 1
params = 1
source = "made up"

[aliases]
old = "new"
"""


@pytest.fixture
def renamed(tmp_path, monkeypatch, new_registry):
    """A core registry with a renamed variant."""
    path = tmp_path / "registry.toml"
    path.write_text(RENAMED)
    # not by the name "vitzoo.plugins", which is the function
    monkeypatch.setattr(sys.modules["vitzoo.plugins"], "CORE_MANIFEST", path)
    new_registry()


@pytest.mark.usefixtures("renamed")
def test_an_alias_gives_the_variant_under_its_present_name():
    assert vitzoo.describe("old").name == "new"
    assert vitzoo.describe("old") == vitzoo.describe("new")


@pytest.mark.usefixtures("renamed")
def test_an_alias_is_not_listed():
    assert [v.name for v in vitzoo.variants(namespace="core")] == ["new"]


@pytest.mark.usefixtures("renamed")
def test_a_misspelt_alias_is_suggested():
    with pytest.raises(UnknownName, match="unknown variant 'olds'; did you mean 'old'"):
        vitzoo.describe("olds")


@pytest.mark.usefixtures("renamed")
def test_a_spec_may_name_an_alias():
    from vitzoo.origin import origin_of

    assert origin_of({"variant": "old"}).spec.variant == "new"


# The user's own file


def test_the_users_own_variants_are_local(local_registry):
    path = local_registry()
    (variant,) = vitzoo.variants("local/*")
    assert (variant.name, variant.namespace, variant.spec.embed_dim) == ("local/net", "local", 32)
    assert vitzoo.plugins()[-1].location == str(path)


def test_the_users_own_variants_can_be_created(local_registry):
    local_registry()
    model = vitzoo.create("local/net", device="meta")
    assert model.spec == vitzoo.describe("local/net").spec
    assert model.num_classes == 5


def test_the_users_own_file_may_use_the_sizes_of_the_core(local_registry):
    local_registry('api=1\n[variants.x]\nsummary="x"\nsource="x"\nparams=1\nsize="ti"\n')
    assert vitzoo.describe("local/x").spec.embed_dim == 192


def test_the_users_own_variant_does_not_shadow_the_core(local_registry):
    local_registry('api=1\n[variants.vit_b16]\nsummary="x"\nsource="x"\nparams=1\nsize="ti"\n')
    assert vitzoo.describe("vit_b16").spec.embed_dim == 768
    assert vitzoo.describe("local/vit_b16").spec.embed_dim == 192


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('api=1\n[heads.h]\ntarget="os:system"\nsummary="x"\n', "unknown key 'heads'"),
        (
            'api=1\n[variants.x]\nsize="b"\nsummary="x"\nsource="x"\nparams=1\nbuilder="os:system"\n',
            r"\[variants.x\]: unknown key 'builder'",
        ),
        (
            (
                'api=1\n[variants.x]\nsize="b"\nsummary="x"\nsource="x"\nparams=1\n'
                f'[variants.x.weights.w]\nfile="f"\nsize=1\nsha256="{SHA}"\n'
            ),
            r"\[variants.x\]: unknown key 'weights'",
        ),
        ("api = ", "is not valid TOML"),
    ],
)
def test_the_users_own_file_is_data_only(local_registry, text, message):
    path = local_registry(text)
    with pytest.raises(RegistryError, match=f"{path}: {message}"):
        vitzoo.variants()


def test_the_users_own_file_must_exist(monkeypatch, tmp_path):
    monkeypatch.setenv("VITZOO_REGISTRY", str(tmp_path / "none.toml"))
    with pytest.raises(RegistryError, match=r"none\.toml: cannot be read: No such file"):
        vitzoo.variants()


def test_an_alias_of_the_users_own_file_works(local_registry):
    local_registry(RENAMED)
    assert vitzoo.describe("local/old").name == "local/new"


def test_all_these_errors_are_vitzoo_errors():
    assert issubclass(RegistryError, VitzooError)
    assert issubclass(UnknownName, LookupError)
