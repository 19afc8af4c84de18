"""What a registry file may say, and how large and deep it may be."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import vitzoo
from helpers import refuses, says
from internals import (
    MAX_PLUGIN_MANIFEST,
    Entries,
    Manifest,
    Reader,
    Registry,
    read_manifest,
    table_of,
)
from plugin_files import FRESH, NET as SMALL_NET
from plugin_helpers import state
from tables import cases
from vitzoo.errors import RegistryError


@pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")
@cases(
    ("text", "cause"),
    [
        ("#" * (MAX_PLUGIN_MANIFEST + 1), ("1048576 bytes",)),
        ('"a\\u001b[31m" = 1', ("key 'api'",)),
        ('api = 1\n[heads."a\\u001b[31m"]\n', (r"'a\x1b[31m'", "letters")),
        ("api = 1\n[variants.nul]\n", ("'nul'", "Windows device")),  # a page cannot have the name
        ("x = " + "9" * 5000, ("TOML",)),
        ("api = 1\n[heads]\n[heads.flat]\n[heads.flat]\n", ("TOML", "duplicate key", "line 4")),
        ("\0", ("TOML",)),
        ("api = 2", ("api", "2", "1")),
    ],
)
def test_a_manifest_beyond_the_limits_is_refused(acme, text, cause):
    acme(text)
    info = state("acme")
    assert info.state == ("incompatible" if text == "api = 2" else "broken")
    says(info.cause, "acme-parts 1.0", "/acme/registry.toml", *cause)
    assert info.cause.isprintable()
    assert "acme" not in sys.modules


@pytest.mark.parametrize(
    ("of_file", "of_entry", "expected"),
    [
        ("", "", ("", "")),
        ('pretraining = "supervised"', "", ("supervised", "")),
        ('pretraining_data = "LAION-2B"', 'pretraining = "image-text"', ("image-text", "LAION-2B")),
        (
            'pretraining = "supervised"\npretraining_data = "ImageNet-21k"',
            'pretraining = "self-supervised"\npretraining_data = "LVD-142M"',
            ("self-supervised", "LVD-142M"),
        ),
    ],
)
def test_weights_have_the_pretraining_of_their_file_or_their_own(
    tmp_path, of_file, of_entry, expected
):
    path = tmp_path / "registry.toml"
    path.write_text(SMALL_NET.replace("api = 1", f"api = 1\n{of_file}") + FRESH + of_entry)
    ((weights,),) = (v.weights for v in read_manifest(path, package="acme").variants)
    assert (weights.pretraining, weights.pretraining_data) == expected
    table = table_of(weights)
    assert (table.get("pretraining", ""), table.get("pretraining_data", "")) == expected


@pytest.mark.parametrize("place", ["file", "entry"])
def test_an_unknown_objective_of_the_pretraining_is_refused(tmp_path, place):
    path, line = tmp_path / "registry.toml", 'pretraining = "selfsupervised"\n'
    if place == "file":
        path.write_text(SMALL_NET.replace("api = 1", f"api = 1\n{line}") + FRESH)
    else:
        path.write_text(SMALL_NET + FRESH + line)
    with refuses(RegistryError, "pretraining", "'selfsupervised'", "'self-supervised'"):
        read_manifest(path, package="acme")


@pytest.mark.slow
@pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")
@pytest.mark.parametrize("data", [b"\xff\xfe", b"api = 1\n# \xff"])
def test_a_manifest_that_is_no_text_is_refused(acme, data, new_registry):
    acme().write_bytes(data)
    new_registry()
    says(state("acme").cause, "acme-parts 1.0", "/acme/registry.toml", "TOML")


@pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")
def test_a_manifest_of_terabytes_is_refused_unread(acme, new_registry):
    path = acme()
    with path.open("wb") as file:
        file.truncate(8 * 1024**4)  # sparse
    new_registry()
    says(state("acme").cause, "/acme/registry.toml", "1048576 bytes")
    assert vitzoo.variants("vit_b16")


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
        place = caught.value.place or f"{tmp_path}/registry.toml"
        assert place.startswith(f"{tmp_path}/registry.toml")
        start, _, message = str(caught.value).partition(f"{place}: ")
        assert not start
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
    assert [head.name for head in manifest.rows("vitzoo_heads")] == ["flat"]
    assert manifest.aliases == {"old": "net"}


def test_numbers_of_a_size_may_be_overridden(read):
    text = change('size = "one"', 'size = "one"\ndepth = 3\nimage_size = [32, 64]')
    (variant,) = read(text).variants
    assert (variant.spec.depth, variant.spec.image_size) == (3, (32, 64))


NET = "[variants.net]"
ROW = f"[{FIRST}]"
PREPROCESSING = f"[{FIRST}.preprocessing]"
PARAMS = "params = 24000"


@cases(
    ("old", "new", "said"),
    [
        # keys
        ("depth = 2", "dept = 2", ("[sizes.one]", "'depth'", "'dept'")),
        ("depth = 2\n", "", ("[sizes.one]", "'depth'")),
        ('summary = "a network"\n', "", (NET, "'summary'")),
        ('summary = "a head"\n', "", ("[heads.flat]", "'summary'")),
        ("api = 1\n", "", ("'api'",)),
        ("pin =", "pim =", (ROW, "'pin'", "'pim'")),
        ('size = "one"', 'size = "one"\nimage_siz = 32', (NET, "'image_siz'", "'image_size'")),
        ("size = 4096", "size = 4096\nzz = 1", (ROW, "'zz'", "block, default")),
        ("mean = ", "crop = 1\nmean = ", (PREPROCESSING, "'crop'", "crop_mode")),
        ("[aliases]", "[alias]", ("'alias'", "'aliases'")),
        ("[heads.flat]", "[head.flat]", ("'head'", "'heads'")),
        # types
        ("depth = 2", 'depth = "2"', ("[sizes.one]", "depth", "whole number", "'2' (str)")),
        ("depth = 2", "depth = 2.0", ("[sizes.one]", "depth", "whole number", "2.0 (float)")),
        ("depth = 2", "depth = true", ("[sizes.one]", "depth", "whole number", "True (bool)")),
        ("depth = 2", "depth = inf", ("[sizes.one]", "depth", "whole number", "inf")),
        ("= true", "= 1", (ROW, "default", "true", "false", "1 (int)")),
        ('"a paper"\n\n[heads', '["x"]\n[heads', ("[sizes.one]", "source", "string", "['x']")),
        ('"a network"', '""', (NET, "summary", "printable", "''")),
        ('"a network"', r'"\u001b[2J"', (NET, "summary", "printable", r"\x1b[2J")),
        ('old = "net"', "old = 1", ("[aliases]", "old", "string", "1 (int)")),
        ("[0.5, 0.5, 0.5]\nstd", "[true]\nstd", (PREPROCESSING, "mean", "list", "[True]")),
        ("[0.5, 0.5, 0.5]\nstd", "[nan]\nstd", (PREPROCESSING, "mean", "list", "[nan]")),
        ("[0.5, 0.5, 0.5]\nstd", "0.5\nstd", (PREPROCESSING, "mean", "list", "0.5 (float)")),
        # numbers
        ("depth = 2", "depth = -2", ("[sizes.one]", "depth", "whole number", "-2")),
        ("depth = 2", "depth = 0", ("[sizes.one]", "depth", "whole number", "0")),
        ("depth = 2", f"depth = {2**53}", ("[sizes.one]", "depth", "whole number", f"{2**53}")),
        ("size = 4096", "size = 0", (ROW, "size", "whole number", "0")),
        (PARAMS, "params = -1", (NET, "params", "whole number", "-1")),
        (PARAMS, "params = 1\nimage_size = true", (NET, "image_size", "px", "65536", "True")),
        (PARAMS, "params = 1\nimage_size = [32, 0]", (NET, "image_size", "px", "65536", "[32, 0]")),
        (
            PARAMS,
            "params = 1\nimage_size = [32, 32, 3]",
            (NET, "image_size", "px", "65536", "[32, 32, 3]"),
        ),
        (PARAMS, "params = 1\ndropout = 1.0", (NET, "dropout", "rate", "1.0")),
        (PARAMS, "params = 1\ndropout = nan", (NET, "dropout", "rate", "nan")),
        ("std = [0.5,", "std = [0,", (PREPROCESSING, "std", "positive", "(0.0")),
        ("std = [0.5,", "std = [", (PREPROCESSING, "mean", "std", "channel")),
        # choices
        (
            PARAMS,
            'params = 1\nblock = { activation = "glu" }',
            ("[variants.net.block]", "activation", "gelu, gelu_tanh, quick_gelu", "'glu'"),
        ),
        (
            PARAMS,
            "params = 1\nblock = { norm_esp = 1e-6 }",
            ("[variants.net.block]", "'norm_esp'", "'norm_eps'"),
        ),
        (
            PARAMS,
            "params = 1\nblock = { norm_eps = 1 }",
            ("[variants.net.block]", "norm_eps", "0", "1.0"),
        ),
        ('size = "one"', 'size = "ane"', (NET, "size", "'ane'", "'one'")),
        ('"bicubic"', '"cubic"', (PREPROCESSING, "interpolation", "nearest", "'cubic'")),
        ('"confirmed"', '"hoped"', (ROW, "pin", "confirmed", "reported", "'hoped'")),
        # names
        ("[heads.flat]", "[heads.Flat]", ("[heads.Flat]", "'Flat'", "64", "lower-case")),
        ("[sizes.one]", '[sizes."o ne"]', ("[sizes.o ne]", "'o ne'", "64", "lower-case")),
        ("[variants.net]", "[variants._net]", ("[variants._net]", "'_net'", "64", "lower-case")),
        ("[variants.net]", '[variants."a/b"]', ("[variants.a/b]", "'a/b'", "64", "lower-case")),
        ("[variants.net]", '[variants.""]', ("[variants.]", "''", "64", "lower-case")),
        (
            PARAMS,
            'params = 1\nhead = "os:system"',
            (NET, "head", "'linear'", "'acme/overlap'", "'os:system' (str)"),
        ),
        (PARAMS, "params = 1\nhead = { hidden_dim = 3 }", (NET, "head", "'name'")),
        # targets
        ("acme.parts:Flat", "os:system", ("[heads.flat]", "target", "'acme'", "'os:system'")),
        (
            "acme.parts:Flat",
            "acmes.parts:Flat",
            ("[heads.flat]", "target", "'acme'", "'acmes.parts:Flat'"),
        ),
        (
            PARAMS,
            'params = 1\nbuilder = "vitzoo.network.build:build"',
            (NET, "builder", "'acme'", "'vitzoo.network.build:build'"),
        ),
        # aliases
        ('old = "net"', 'old = "nett"', ("[aliases]", "old", "'nett'", "'net'")),
        ('old = "net"', 'net = "net"', ("[aliases]", "'net'", "former")),
        ('old = "net"', 'old = "net"\nolder = "old"', ("[aliases]", "older", "'old'")),
        # versions
        ("api = 1", "api = 2", ("api", "2", "1")),
        ("api = 1", "api = 0", ("api", "whole number", "0")),
        ("api = 1", "api = 1\nzebra = 1", ("'zebra'", "pretraining, pretraining_data", "variants")),
        # syntax
        ("depth = 2", "depth = ", ("TOML", "line 5")),
        ("depth = 2", "depth = 2\ndepth = 2", ("TOML", "duplicate key", "line 6")),
        ("[aliases]", "[heads.flat]", ("TOML", "duplicate key", "line 35")),
    ],
)
def test_a_registry_that_breaks_the_schema_is_refused(problem, old, new, said):
    says(problem(change(old, new)), *said)


@pytest.mark.parametrize("first", ["1", "1.0"])
def test_a_wrong_value_after_an_equal_valid_one_is_refused(problem, first):
    """Equal preprocessing tables are read once, and `1 == True` in Python."""
    both = f"crop_pct = {first}\n\n{SECOND}crop_pct = true\n\n[aliases]"
    said = problem(change("[aliases]", both))
    says(said, "weights.second.preprocessing", "crop_pct must be a number", "True (bool)")


def test_a_date_in_a_preprocessing_is_refused(problem):
    said = problem(change('interpolation = "bicubic"', "interpolation = 2020-01-01"))
    says(said, "interpolation must be a string", "date")


def test_a_table_must_be_a_table(problem):
    says(problem("api = 1\nheads = 1"), "heads", "table", "1 (int)")
    says(problem("api = 1\nheads = { flat = 1 }"), "[heads.flat]", "table", "1 (int)")


@pytest.mark.parametrize(
    "sha256",
    [SHA[:-1], SHA + "0", SHA.upper(), SHA[:32], "g" + SHA[1:], " " + SHA[1:], "\uff10" + SHA[1:]],
    ids=["63 digits", "65 digits", "upper-case", "md5", "no hex", "space", "full-width digit"],
)
def test_a_sha256_is_64_lower_case_hex_digits(problem, sha256):
    says(problem(change(SHA, sha256)), ROW, "sha256", "64 lower-case hex digits", repr(sha256))


def test_weights_without_sha256_are_refused(problem):
    message = problem(change(f'sha256 = "{SHA}"\n', ""))
    says(message, ROW, "'confirmed'", "sha256", "size", "revision")


@cases(
    "file", ["../x", "/x", "a/b", "..", ".hidden", "a\\b", "a b", "x" * 300, "é", "C:x", "~", "-f"]
)
def test_a_file_is_a_plain_name(problem, file):
    says(problem(change('"first.safetensors"', json.dumps(file))), ROW, "file", repr(file))


def test_a_file_name_has_no_nul(problem):
    message = problem(change('"first.safetensors"', r'"a\u0000b"'))
    says(message, ROW, "file", "printable", r"'a\x00b'")


@cases(
    "target",
    ["acme", "acme.parts", "acme.parts:", ":Flat", "acme:a.b", "acme..x:F", "acme.1:F", "acme:F()"],
)
def test_a_target_is_module_and_name(problem, target):
    message = problem(change("acme.parts:Flat", target))
    says(message, "[heads.flat]", "target", "'package.module:Name'", repr(target))


@cases("text", ["torch >>> 99", "pluggy >", "$(reboot)", "pluggy; nonsense == '1'", "two words"])
@cases("table", ["[heads.flat]", NET])
def test_a_requirement_is_written_as_pip_reads_it(problem, read, table, text):
    changed = change(table + "\n", f"{table}\nrequires = [{json.dumps(text)}]\n")
    says(problem(changed), table, "requires", repr(text), "'timm>=1.0'")
    fine = ["timm", "timm>=1.0.31,<1.1", "a.b-c_d ~= 2.0", 'timm>=1; python_version > "3"']
    read(change(table + "\n", f"{table}\nrequires = {json.dumps(fine)}\n"))


def test_two_defaults_are_refused(problem):
    says(problem(VALID + SECOND), NET, "weights", "default")


def test_the_only_weights_are_the_default(read):
    text = change("default = true\n", "")
    (variant,) = read(text).variants
    assert variant.weights[0].default
    (variant,) = read(text + SECOND.replace("default = true\n", "")).variants
    assert variant.default_weights is None


def test_the_size_names_of_the_core_cannot_be_taken(tmp_path):
    path = tmp_path / "registry.toml"
    path.write_text(VALID)
    sizes = Registry().host.core.sizes
    path.write_text(change("[sizes.one]", "[sizes.b]"))
    with refuses(RegistryError, "size 'b'", "core"):
        read_manifest(path, package="acme", sizes=sizes)


def test_a_missing_file_says_so(tmp_path):
    with refuses(RegistryError, "none.toml:"):
        read_manifest(tmp_path / "none.toml", package="acme")


def test_a_folder_is_no_registry(tmp_path):
    with refuses(RegistryError, tmp_path):
        read_manifest(tmp_path, package="acme")


@pytest.mark.parametrize("data", [b"\xff\xfe", VALID.encode("utf-16"), b"\x00", b"PK\x03\x04"])
def test_a_file_that_is_no_text_is_refused(problem, data):
    assert "TOML" in problem(data)


def test_an_empty_file_lacks_its_api(problem):
    assert "'api'" in problem("")


def test_deep_nesting_is_refused(problem):
    assert "TOML" in problem("api = " + "[" * 5000 + "]" * 5000)


@cases(
    ("text", "parts"),
    [
        ("a" + ".a" * 500_000 + " = 1", ("nested", "12", "line 1")),
        ("api = 1\n[" + "a . " * 200_000 + "a]", ("nested", "12", "line 2")),
        ("a" + '."b\\"."' * 100_000 + " = 1", ("nested", "12", "line 1")),
        ("a" + ".'b'" * 200_000 + " = 1", ("nested", "12", "line 1")),
        ("a" + ("\t" * 20 + ".b") * 40_000 + " = 1", ("nested", "12", "line 1")),
        ("x" + ".x" * 13 + " = 1", ("nested", "12")),
        ("x = " + "[" * 14 + "]" * 14, ("nested", "12")),
        ("x = " + "{a = " * 14 + "1" + "}" * 14, ("nested", "12")),
        ('"a\\u001b[31m" = 1', (r"key 'a\x1b[31m'", "128", "printable")),
        ('"a\\nb" = 1', (r"key 'a\nb'", "128", "printable")),
        ("k" * 129 + " = 1", ("128", "printable")),
    ],
)
@cases("package", [None, "acme"])
def test_a_file_of_no_installed_package_has_limits(problem, text, parts, package):
    says(problem(text, package), *parts)


@pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")
@pytest.mark.parametrize(("key", "value"), [("x", "[" * 14 + "]" * 14), ("k" * 129, "1")])
def test_the_manifest_of_an_installed_package_is_trusted(acme, key, value):
    acme(f"api = 1\n{key} = {value}\n")
    says(state("acme").cause, f"'{key}'")


def test_dots_in_texts_do_not_count_as_nesting(read):
    dotted = '"' + "a sentence, then one more. " * 50 + "pkg." * 20 + '"'
    sizes = VALID[: VALID.index("[heads")]
    assert read(sizes.replace('"a paper"', dotted, 1), None).sizes["one"].depth == 2


@pytest.mark.parametrize("number", ["1" * 5000, "0x" + "1" * 5000, str(10**400)])
def test_a_number_of_many_digits_is_refused(problem, number):
    says(problem(f"api = {number}"), "TOML", "overflowed", "line 1")


def test_a_size_in_px_has_an_upper_bound(problem):
    message = problem(change(PARAMS, f"params = 1\nimage_size = {10**30}"))
    says(message, NET, "image_size", "65536")


@pytest.mark.parametrize("field", ["patch_embed", "pos_embed", "pool", "head", "drop_path"])
def test_a_part_is_no_truth_value(problem, field):
    message = problem(change(PARAMS, f"params = 1\n{field} = true"))
    says(message, NET, field, "name", "mapping", "True")


def test_a_registry_has_no_opaque_parts(problem):
    part = '{ name = "os:system", opaque = true }'
    says(problem(change(PARAMS, f"params = 1\nhead = {part}")), NET, "head", "'os:system'")


def test_a_builder_accepts_fields_that_exist(problem):
    says(problem(change(PARAMS, 'params = 1\naccepts = ["dept"]')), NET, "accepts", "'dept'")


@pytest.mark.parametrize("top1", ["nan", "inf", "-1", "101"])
def test_an_accuracy_is_a_percentage(problem, top1):
    says(
        problem(change("default = true", f"top1 = {top1}")), ROW, "top1", "percentage", float(top1)
    )


@cases("variant", vitzoo.variants(namespace="core"), ids=lambda v: v.name)
def test_a_variant_written_as_a_table_is_read_as_the_same_variant(variant):
    table = json.loads(json.dumps(table_of(variant)))
    again = Entries("vitzoo").variant(variant.name, Reader(table, variant.name))
    spec = dataclasses.replace(again.spec, variant=variant.name)
    assert dataclasses.replace(again, spec=spec) == variant


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
    assert isinstance(result, Manifest) or str(result).startswith(f"{path}:")


@pytest.mark.slow
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_random_bytes_are_read_or_refused(data):
    reads_or_refuses(data)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
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


@pytest.mark.slow
@cases("place", PLACES, ids=".".join)
def test_nasty_values_everywhere_are_read_or_refused(to_toml, place):
    for value in NASTY:
        table: Any = tomllib.loads(RICH)
        row = table
        for key in place[:-1]:
            row = row[key]
        row[place[-1]] = value
        reads_or_refuses(to_toml(table).encode())


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_valid_registry_with_one_random_change_is_read_or_refused(to_toml, data):
    table: Any = tomllib.loads(RICH)
    place = table
    for key in data.draw(st.sampled_from(PLACES)):
        where, place = place, place[key]
    where[data.draw(st.just(key) | KEYS)] = data.draw(VALUES)
    reads_or_refuses(to_toml(table).encode())
