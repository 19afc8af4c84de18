"""Names: what is registered, how it is found, what the user's own file adds."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import re
import runpy
import sys
from pathlib import Path

import pytest

import vitzoo
from helpers import refuses, says
from internals import CORE_BUILDER
from tables import cases
from vitzoo.errors import RegistryError, UnknownName, VitzooError

HERE = Path(__file__).parents[1]
NAMES = re.findall(
    r"\w+",
    """
    vit_ti16 vit_s16 vit_s32 vit_b8 vit_b16 vit_b32 vit_l16 vit_l32 vit_h14 vit_g14 vit_gg14
    vit_ti16_384 vit_s16_384 vit_s32_384 vit_b16_384 vit_b32_384 vit_l16_384 vit_l32_384
    vit_b16_in21k vit_b32_in21k vit_l16_in21k vit_l32_in21k vit_h14_in21k vit_digits
    """,
)


# Browsing


@cases("name", NAMES)
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
    with refuses(UnknownName, "'vit_b61'", "'vit_b16'"):
        vitzoo.describe("vit_b61")


@pytest.mark.parametrize(
    ("name", "kind"), [("mean", "pool"), ("learned", "position embedding"), ("mlp", "head")]
)
def test_the_name_of_a_part_is_no_variant(name, kind):
    with refuses(UnknownName, f"'{name}'", kind, f"vitzoo which {name}"):
        vitzoo.describe(name)


def test_a_variant_unlike_any_other_points_to_the_list():
    with refuses(UnknownName, "'resnet50'", "`vitzoo list --all`", "ResNets", "timm"):
        vitzoo.describe("resnet50")


@pytest.mark.parametrize("name", ["", "vit_b16 ", "VIT_B16", "core/vit_b16", "vit_b16/", "a/b/c"])
def test_a_name_is_taken_literally(name):
    with pytest.raises(UnknownName, match=f"'{name}'"):
        vitzoo.describe(name)


def test_a_namespace_of_no_installed_plugin_is_named():
    with refuses(UnknownName, "'nobody/vit_b16'", "plugin 'nobody'"):
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
    expected = rf"'{theirs}'.* {library}.* vitzoo\.create\('{ours}'"
    for use in (vitzoo.describe, vitzoo.create):
        with pytest.raises(UnknownName, match=expected):
            use(theirs)


@pytest.mark.parametrize(
    ("theirs", "call"),
    [
        ("google/vit-base-patch16-224-in21k", "create('vit_b16_in21k', weights='google_in21k')"),
        ("google/vit-base-patch16-224", "create('vit_b16', weights='google_in21k_ft_in1k')"),
        ("hf-hub:timm/vit_base_patch16_224.augreg_in21k", "weights='augreg_in21k')"),
        ("https://huggingface.co/google/vit-large-patch16-224", "create('vit_l16', weights="),
        ("ViT-B/16", "the name in the paper; here it is vitzoo.create('vit_b16')"),
        ("ViT_B_16_Weights", "the name in torchvision; here it is vitzoo.create('vit_b16')"),
    ],
)
def test_a_repository_or_a_name_elsewhere_is_answered_with_its_own_weights(theirs, call):
    for use in (vitzoo.describe, vitzoo.create):
        with pytest.raises(UnknownName) as caught:
            use(theirs)
        assert repr(theirs) in str(caught.value)
        assert call in str(caught.value)


@pytest.mark.parametrize("weights", ["IMAGENET1K_V1", "IMAGENET1K_SWAG_E2E_V1", "DEFAULT"])
def test_weights_of_torchvision_are_answered_with_the_network_and_its_weights(weights):
    name = f"ViT_B_16_Weights.{weights}"
    with refuses(UnknownName, f"'{name}'", "'vit_b16'", f"'{weights}'", "torchvision"):
        vitzoo.describe(name)
    with refuses(UnknownName, "augreg2_in21k_ft_in1k", "weights='model.safetensors'"):
        vitzoo.create(name)


@cases(
    ("name", "repo"),
    [
        ("WinKawaks/vit-tiny-patch16-224", "WinKawaks/vit-tiny-patch16-224"),
        ("hf-hub:timm/vit_little.sbb_in1k", "timm/vit_little.sbb_in1k"),
        ("hf_hub:acme/vit_little", "acme/vit_little"),
        ("https://huggingface.co/acme/vit_little/", "acme/vit_little"),
        ("hf:acme/vit_little", "acme/vit_little"),
        ("timm/vit_little.sbb_in1k", "timm/vit_little.sbb_in1k"),  # also the name of a plugin
        ("nobody/vit_b16", "nobody/vit_b16"),
        ("acme/ijepa_vith14_1k", "acme/ijepa_vith14_1k"),
    ],
)
def test_a_repository_that_is_not_registered_is_answered_with_the_call_that_loads_it(
    run, name, repo
):
    for use in (vitzoo.describe, vitzoo.create):
        with pytest.raises(UnknownName) as caught:
            use(name)
        assert repr(name) in str(caught.value)
        assert f"vitzoo.create('hf://{repo}')" in str(caught.value)
    code, out, err = run("which", name)
    assert code == 0
    says(err, repo)
    assert f"vitzoo.create('hf://{repo}')" in out


def test_which_takes_a_misspelt_namespace_for_no_repository(run):
    code, out, err = run("which", "dinov9/vit_b14")
    assert (code, out) == (1, "")
    says(err, "'dinov9/vit_b14'", "'dinov2'")


@pytest.mark.parametrize("use", [vitzoo.describe, vitzoo.create, vitzoo.fetch])
def test_hf_with_one_colon_is_no_plugin(use):
    with refuses(UnknownName, "'hf:acme/vit_little'", "vitzoo.create('hf://acme/vit_little')"):
        use("hf:acme/vit_little")


def test_a_listed_entry_is_answered_with_its_call():
    call = "vitzoo.create('vit_b16', weights='augreg_in21k')"
    with refuses(UnknownName, "'vit_b16:augreg_in21k'", call):
        vitzoo.describe("vit_b16:augreg_in21k")


def test_which_translates_an_address_of_the_hub(run):
    code, out, _ = run("which", "hf://google/vit-base-patch16-224", "--json")
    (row,) = json.loads(out)
    assert (code, row["name"], row["weights"]) == (0, "vit_b16", "google_in21k_ft_in1k")


@pytest.mark.parametrize("name", ["a/b/c", "hf-hub:vit_b16", "a b/c", "../vit", "vit_b16/"])
def test_what_is_no_repository_is_not_answered_with_a_call(name):
    with pytest.raises(UnknownName) as caught:
        vitzoo.describe(name)
    assert "hf://" not in str(caught.value)


def test_no_name_of_another_library_is_a_name_here():
    registered = vitzoo.variants()
    names = {v.name for v in registered}
    assert not names & {theirs for v in registered for _, theirs in v.known_as}


def test_a_name_of_another_library_means_one_variant():
    own = [v for v in vitzoo.variants() if v.builder == CORE_BUILDER]
    rows = [row for v in own for row in v.known_as]
    assert len(rows) == len(set(rows))  # a wrapper has the name of its network, too


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
    assert tool["normal"](json.loads(path.read_text())) == tool["snapshot"]()


def test_the_snapshot_takes_a_hash_where_there_was_none(tmp_path):
    path, frozen = tmp_path / "released.json", (HERE / "released.json").read_text()
    released = json.loads(frozen)
    assert released["vit_ti16"]["weights"]["augreg_in21k_ft_in1k"]
    released["vit_ti16"]["weights"]["augreg_in21k_ft_in1k"] = ""
    path.write_text(json.dumps(released))
    assert runpy.run_path(str(HERE / "update_released.py"))["main"](path) == 0
    assert path.read_text() == frozen


def test_what_is_frozen_stays_as_it_is_written(tmp_path):
    path, frozen = tmp_path / "released.json", (HERE / "released.json").read_bytes()
    path.write_bytes(frozen)
    assert runpy.run_path(str(HERE / "update_released.py"))["main"](path) == 0
    assert path.read_bytes() == frozen


@pytest.mark.parametrize(
    ("option", "before", "now"),
    [("merge", 0, 1), ("proj_bias", True, False), ("qk_scale", None, 0.1), ("norm_eps", 1e-6, 1)],
)
def test_an_option_has_its_frozen_value_where_a_row_does_not_state_it(option, before, now):
    tool = runpy.run_path(str(HERE / "update_released.py"))
    present = {"vit_b16": tool["snapshot"]()["vit_b16"]}
    present["vit_b16"]["spec"]["block"][option] = now
    released = json.loads((HERE / "released.json").read_text())
    problems = tool["changes"]({"vit_b16": released["vit_b16"]}, present)
    assert problems == [f"vit_b16: block.{option} was {before!r}, is {now!r}"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"params": 1}, ("params", "1", "86567656")),
        ({"builder": "x:y"}, ("builder", "'x:y'", "'vitzoo.network.build:build'")),
        ({"default": "lost"}, ("default", "'lost'", "'augreg2_in21k_ft_in1k'")),
        ({"weights": {"lost": "ab"}}, ("weights lost", "sha256 ab", "None")),
        ({"weights": {"lost": ""}}, ("weights lost", "sha256 None, now None")),
        ({"weights": {"augreg2_in21k_ft_in1k": "ab"}}, ("augreg2_in21k_ft_in1k had sha256 ab",)),
    ],
)
def test_the_snapshot_refuses_changes(tmp_path, capsys, change, message):
    path = tmp_path / "released.json"
    released = json.loads((HERE / "released.json").read_text())
    before = json.dumps({"vit_b16": released["vit_b16"] | change})
    path.write_text(before)
    assert runpy.run_path(str(HERE / "update_released.py"))["main"](path) == 1
    says(capsys.readouterr().out, "vit_b16: ", *message)
    assert path.read_text() == before


def test_the_snapshot_refuses_a_name_that_is_gone(tmp_path, capsys):
    path = tmp_path / "released.json"
    released = json.loads((HERE / "released.json").read_text())
    path.write_text(json.dumps({"vit_gone": released["vit_b16"]}))
    assert runpy.run_path(str(HERE / "update_released.py"))["main"](path) == 1
    assert "vit_gone" in capsys.readouterr().out
    assert set(json.loads(path.read_text())) == {"vit_gone"}


SHA = "0123456789abcdef" * 4


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
    monkeypatch.setattr(sys.modules["vitzoo.plugin.host"], "CORE_MANIFEST", path)
    new_registry()


@pytest.mark.usefixtures("renamed")
def test_an_alias_gives_the_variant_under_its_present_name():
    assert vitzoo.describe("old").name == "new"
    assert vitzoo.describe("old") == vitzoo.describe("new")


@pytest.mark.usefixtures("renamed")
def test_an_alias_is_not_listed():
    assert [v.name for v in vitzoo.variants(namespace="core")] == ["new"]


@pytest.mark.usefixtures("renamed")
def test_a_pattern_that_is_an_alias_finds_the_variant():
    assert [v.name for v in vitzoo.variants("old")] == ["new"]
    assert vitzoo.variants("olds") == []


@pytest.mark.usefixtures("renamed")
def test_a_misspelt_alias_is_suggested():
    with refuses(UnknownName, "'olds'", "'old'"):
        vitzoo.describe("olds")


@pytest.mark.usefixtures("renamed")
def test_a_spec_may_name_an_alias():
    from internals import registry
    from vitzoo.opening import stated

    assert stated({"variant": "old"}, registry()).spec.variant == "new"


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
        ('api=1\n[heads.h]\ntarget="os:system"\nsummary="x"\n', ("'heads'",)),
        (
            'api=1\n[variants.x]\nsize="b"\nsummary="x"\nsource="x"\nparams=1\nbuilder="os:system"\n',
            ("[variants.x]", "'builder'"),
        ),
        (
            (
                'api=1\n[variants.x]\nsize="b"\nsummary="x"\nsource="x"\nparams=1\n'
                f'[variants.x.weights.w]\nfile="f"\nsize=1\nsha256="{SHA}"\n'
            ),
            ("[variants.x.weights.w]", "repo", "url", "path"),
        ),
        ("api = ", ("TOML",)),
    ],
)
def test_the_users_own_file_is_data_only(local_registry, text, message):
    path = local_registry(text)
    with pytest.raises(RegistryError) as caught:
        vitzoo.variants()
    says(str(caught.value), "VITZOO_REGISTRY", path, *message)


def own_files(tmp_path, monkeypatch, new_registry, **texts):
    """Write registry files of these names and point vitzoo to them, in this order."""
    paths = [tmp_path / f"{name}.toml" for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text)
    monkeypatch.setenv("VITZOO_REGISTRY", os.pathsep.join(["", *map(str, paths)]))
    new_registry()
    return paths


SIZED = """\
api = 1
[variants.NAME]
summary = "x"
source = "x"
size = "ti"
params = 5717416
"""


def test_several_files_of_the_user_are_read(tmp_path, monkeypatch, new_registry):
    texts = {"one": SIZED.replace("NAME", "a"), "two": SIZED.replace("NAME", "b")}
    paths = own_files(tmp_path, monkeypatch, new_registry, **texts)
    assert [row.name for row in vitzoo.variants("local/*")] == ["local/a", "local/b"]
    (info,) = [info for info in vitzoo.plugins() if info.namespace == "local"]
    assert info.location == os.pathsep.join(map(str, paths))
    monkeypatch.setenv("VITZOO_REGISTRY", os.pathsep.join(map(str, [*paths, paths[0]])))
    assert len(vitzoo.variants("local/*")) == 2  # a file that is named twice is one file


@pytest.mark.parametrize("second", ["[variants.a]", '[aliases]\na = "b"\n[variants.b]'])
def test_one_name_in_two_files_of_the_user_names_both(tmp_path, monkeypatch, new_registry, second):
    texts = {"one": SIZED.replace("NAME", "a"), "two": SIZED.replace("[variants.NAME]", second)}
    paths = own_files(tmp_path, monkeypatch, new_registry, **texts)
    with refuses(RegistryError, "local/a", *paths, "rename"):
        vitzoo.variants()


BASED = """\
api = 1
[variants.products]
variant = "vit_ti16"
summary = "x"
source = "x"
"""


def test_a_variant_of_the_user_starts_from_a_registered_one(local_registry):
    """Missing keys have the values of `vit_ti16`; the number of parameters only without changes."""
    local_registry(BASED)
    core, own = vitzoo.describe("vit_ti16"), vitzoo.describe("local/products")
    assert own.spec == dataclasses.replace(core.spec, variant="local/products")
    assert (own.params, own.paper, own.timm_block) == (core.params, core.paper, core.timm_block)
    assert (own.base, own.weights, own.known_as) == ("vit_ti16", (), ())
    path = local_registry(BASED + "num_classes = 7\nblock = { norm_eps = 1e-5 }\n")
    with refuses(RegistryError, path, "[variants.products]", "params"):
        vitzoo.describe("local/products")
    local_registry(BASED + "params = 1\nnum_classes = 7\nblock = { norm_eps = 1e-5 }\n")
    spec = vitzoo.describe("local/products").spec
    block = dataclasses.replace(core.spec.block, norm_eps=1e-5)
    assert spec == dataclasses.replace(
        core.spec, variant="local/products", num_classes=7, block=block
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"vit_ti16"', '"vit_ti61"', ("variant", "'vit_ti61'", "vit_ti16")),
        ('"vit_ti16"', '"local/products"', ("variant", "'local/products'")),
        ('"vit_ti16"', '"vit_ti16"\nsize = "ti"', ("variant", "size")),
    ],
)
def test_a_variant_of_the_user_cannot_start_from_others(local_registry, old, new, words):
    path = local_registry(BASED.replace(old, new))
    with refuses(RegistryError, path, "[variants.products]", *words):
        vitzoo.variants()


@pytest.mark.parametrize("command", ["check", "pin"])
def test_a_base_whose_plugin_is_missing_costs_only_its_variant(
    local_registry, run, monkeypatch, new_registry, command
):
    """Commands that disable plugins read the file, too."""
    other = BASED.replace("api = 1", "").replace("products", "other")
    path = local_registry(BASED.replace('"vit_ti16"', '"dinov2/vit_s14"') + other)
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "*")
    new_registry()
    assert [row.name for row in vitzoo.variants("local/*")] == ["local/other"]
    for name in ("local/products", {"variant": "local/products"}):
        with refuses(RegistryError, path, "[variants.products]", "VITZOO_DISABLE_PLUGINS"):
            vitzoo.create(name)
    (info,) = [info for info in vitzoo.plugins() if info.namespace == "local"]
    assert info.state == "failed"
    says(info.trouble, path, "[variants.products]", "install")
    says(run("plugins", "why", "local")[1], "failed", path, "[variants.products]", "local/other")
    code, out, err = run("registry", command, path)
    assert code == 1
    says(out + err, "[variants.products]", "VITZOO_DISABLE_PLUGINS")
    local_registry(BASED.replace('"vit_ti16"', '"acne/net"'))
    assert vitzoo.create("vit_ti16", device="meta").spec.variant == "vit_ti16"
    with refuses(RegistryError, path, "[variants.products]", "plugin 'acne'"):
        vitzoo.describe("local/products")


def test_only_the_users_own_file_starts_from_a_registered_variant(tmp_path):
    from internals import read_manifest

    path = tmp_path / "registry.toml"
    path.write_text(f"{BASED}params = 5717416\nsize = 'ti'\n")
    sizes = {"ti": vitzoo.describe("vit_ti16").spec}
    with refuses(RegistryError, "'variant'"):
        read_manifest(path, package="acme", sizes=sizes)


def test_the_users_own_file_must_exist(monkeypatch, tmp_path):
    monkeypatch.setenv("VITZOO_REGISTRY", str(tmp_path / "none.toml"))
    with refuses(RegistryError, "none.toml:"):
        vitzoo.variants()


def test_an_alias_of_the_users_own_file_works(local_registry):
    local_registry(RENAMED)
    assert vitzoo.describe("local/old").name == "local/new"


def test_all_these_errors_are_vitzoo_errors():
    assert issubclass(RegistryError, VitzooError)
    assert issubclass(UnknownName, LookupError)


def test_a_spec_whose_plugin_is_gone_names_it(small, tmp_path):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(small | {"head": "acme/flat"}))
    with refuses(UnknownName, "'acme/flat'", "plugin 'acme'"):
        vitzoo.create(path)
    path.write_text(json.dumps({"variant": "acme/net"}))
    with refuses(UnknownName, "'acme/net'", "plugin 'acme'"):
        vitzoo.create(path)


SHOWN = {
    "vit_b16": "86.6M parameters, 17.6 GMACs, 224 px",
    "vit_g14": "1.01B parameters, 267 GMACs, 224 px",
    "vit_digits": "205k parameters, 0.00354 GMACs, 28 px",
}


@pytest.mark.parametrize("name", SHOWN)
def test_repr_of_a_variant_says_what_it_is(name):
    variant = vitzoo.describe(name)
    first, sizes, *weights = repr(variant).removesuffix(">").split("\n    ")
    assert (first, sizes) == (f"<Variant {name}: {variant.summary}", SHOWN[name])
    assert max(map(len, (first, *weights)), default=0) <= 100


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("vit_b16", ("augreg2_in21k_ft_in1k", "85.11 % top-1", "Apache-2.0", "(10)", "orig_in21k")),
        ("dinov2/vit_s14", ("lvd142m", "79.00 % k-NN", "Apache-2.0", "(1)", "facebook_lvd142m")),
    ],
)
def test_repr_of_a_variant_shows_its_weights(name, shown):
    says(repr(vitzoo.describe(name)), *shown)
