"""Names of timm, and of the Hub's repositories of the authors, mean the right network and file."""

import functools
import inspect
import json
import re
import runpy
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import refuses, says
from internals import explain, registry
from tables import cases
from vitzoo.errors import UnknownName
from vitzoo.files.strict_toml import loads
from vitzoo.registry import foreign_names
from vitzoo.registry.foreign_names import (
    HUB,
    call,
    known_elsewhere,
    known_in_plugins,
    plugin_call,
)
from vitzoo.registry.listing import names_elsewhere
from vitzoo.schema.rows import built_of_parts

ROOT = Path(__file__).parents[2]
PAGE = runpy.run_path(str(ROOT / "tests" / "parity_table.py"), run_name="parity_table")
ROWS = PAGE["rows_of"]((ROOT / "docs" / "parity.md").read_text())
TABLES = loads(foreign_names.TAGS.read_bytes())
QUICK = "_quickgelu"


def is_vit(name):
    return any(fnmatch(name, family) for family in PAGE["FAMILIES"])


@functools.cache
def repositories():
    """Return the repositories of timm's tags, without the address of the endpoint."""
    import timm

    found = {}
    for name in filter(is_vit, timm.list_pretrained()):
        config = timm.get_pretrained_cfg(name)
        if config.hf_hub_id:
            found[name] = config.hf_hub_id
    return found


@pytest.mark.slow
def test_every_tag_with_a_file_is_answered_with_its_network_and_file():
    zoo, wrong, unknown = registry(), [], []
    assert len(repositories()) > 400
    for name, repo in repositories().items():
        matches = known_elsewhere(name, zoo)
        if not matches:
            unknown.append(name)
            continue
        _, variant, weights = matches[0]
        good = weights and weights.repo == repo and f"={weights.name!r}" in call(name, matches[0])
        if not good:
            wrong.append((name, variant.name, weights and weights.repo, repo))
    assert not wrong
    assert not unknown


@pytest.mark.slow
def test_every_architecture_with_a_name_is_answered_with_it():
    zoo = registry()
    for architecture, row in ROWS.items():
        matches = known_elsewhere(architecture, zoo)
        if row.ours() != PAGE["CARRIED"]:
            assert f"`{matches[0][1].name}`" == row.ours(), architecture


@pytest.mark.slow
def test_the_answer_is_the_same_without_the_plugins():
    zoo = registry()
    core = [row for row in zoo.index.rows() if row["namespace"] == "core"]
    index = SimpleNamespace(elsewhere=lambda: names_elsewhere(core))
    alone = SimpleNamespace(host=SimpleNamespace(infos={}), index=index)
    for name in [*repositories(), *TABLES["hub"], *TABLES["former"]][::9]:
        here, there = known_elsewhere(name, zoo), known_in_plugins(name, alone)
        if all(variant.namespace != "core" for _, variant, _ in here):
            names = [(library, v.name, w.name if w else "") for library, v, w in here]
            assert [(library, row["name"], w) for library, row, w in there] == names
            calls = [plugin_call(name, one).replace(", pretrained=True", "") for one in there]
            assert calls == [call(name, match) for match in here]


def test_former_names_are_those_of_timm():
    from timm.models import _registry as theirs

    former = {name: tag for name, tag in theirs._deprecated_models.items() if is_vit(name)}
    renamed = {name for name, tag in former.items() if tag.endswith(".sam")}  # to sam_in1k
    assert TABLES["former"] == former | {name: f"{former[name]}_in1k" for name in renamed}
    assert set(TABLES["former"].values()) <= set(repositories())


@pytest.mark.slow
@cases("name", TABLES["former"])
def test_a_former_name_is_answered_with_the_weights_of_its_tag(name):
    for _, variant, weights in known_elsewhere(name, registry())[:1]:
        assert weights.repo == f"timm/{TABLES['former'][name]}"
        with refuses(UnknownName, repr(name), "timm", repr(variant.name), repr(weights.name)):
            registry().variant(name)
        return
    pytest.fail("no answer")


def stated_in(module):
    """Return the repositories of the authors that comments of timm state, by tag."""
    text = inspect.getsource(module)
    blocks = re.findall(r"'([\w.]+)': _\w*cfg\((.*?)\n    \),", text, re.DOTALL)
    found = [(tag, re.search(r"#\s*hf_hub_id='([^']+)'", block)) for tag, block in blocks]
    return {repo[1]: tag for tag, repo in found if repo and tag in repositories()}


@pytest.mark.parametrize("module", ["eva", "vision_transformer"])
def test_repositories_of_the_authors_are_those_that_timm_states(module, timm):
    found = stated_in(getattr(timm.models, module))
    stated = {k: v for k, v in found.items() if k.startswith(("facebook/PE", "nvidia"))}
    assert stated
    assert stated.items() <= TABLES["hub"].items()


@cases("repo", TABLES["hub"])
def test_a_repository_of_the_authors_is_answered_with_the_network_of_its_tag(repo):
    tag, matches = TABLES["hub"][repo], known_elsewhere(repo, registry())
    architecture = tag.partition(".")[0]
    library, variant, weights = matches[0]
    assert library == HUB
    assert ("timm", architecture) in variant.known_as
    assert weights is None or weights.repo in (f"timm/{tag}", repo)
    assert "vitzoo.create(" in explain(repo, matches)


@cases(
    ("name", "expected"),
    [
        ("google/vit-base-patch16-224", "'vit_b16', weights='google_in21k_ft_in1k'"),
        (
            "google/vit-hybrid-base-bit-384",
            "'hybrid/r50_vit_b16_384', weights='orig_in21k_ft_in1k'",
        ),
        ("vit_base_mci_224.apple_mclip", "'timm/vit_base_mci_224', weights='apple_mclip'"),
        ("facebook/dinov2-base", "'dinov2/vit_b14', weights="),
        ("facebook/sam-vit-huge", "'timm/samvit_huge_patch16', weights='sa1b'"),
        ("facebook/metaclip-b16-fullcc2.5b", "'clip/vit_b16', weights='metaclip_2pt5b'"),
        ("openai/clip-vit-base-patch16", "'clip/vit_b16', weights='openai'"),
        ("openai/clip-vit-large-patch14-336", "'clip/vit_l14_336', weights='openai'"),
        ("hf-hub:laion/CLIP-ViT-B-16-laion2B-s34B-b88K", "'clip/vit_b16', weights='laion2b'"),
        ("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", "'clip/vit_b32', weights='laion2b_full'"),
        ("vit_base_patch16_224_miil_in21k", "'vit_b16', weights='miil_in21k'"),
        ("vit_base_patch16_224_miil.in21k_ft_in1k", "'vit_b16', weights='miil_in21k_ft_in1k'"),
        ("vit_base_patch16_224_miil", "'vit_b16', weights='miil_in21k'"),
        ("vit_base_patch16_clip_quickgelu_224.openai", "'clip/vit_b16', weights='openai')"),
        (
            "vit_base_patch16_clip_quickgelu_224",
            "'clip/vit_b16', block={'activation': 'quick_gelu'})",
        ),
        ("ViT-B-32-quickgelu", "'clip/vit_b32', block={'activation': 'quick_gelu'})"),
        ("vit_base_patch16_224_in21k", "'vit_b16', weights='augreg_in21k')"),
        ("timm/vit_base_patch16_224", "'vit_b16')"),
        ("hf-hub:timm/vit_base_patch16_224", "'vit_b16')"),
        ("timm/vit_base_patch16_224_in21k", "'vit_b16', weights='augreg_in21k')"),
    ],
)
def test_names_of_other_libraries(name, expected):
    matches = known_elsewhere(name, registry())
    assert call(name, matches[0]).startswith(f"vitzoo.create({expected}")
    with refuses(UnknownName, name, expected):
        registry().variant(name)


@pytest.mark.parametrize(
    ("name", "network", "expected"),
    [
        ("vit_base_patch16_224.new", "vit_b16", "create('hf://timm/vit_base_patch16_224.new')"),
        (
            "hf-hub:timm/vit_base_patch16_224.new",
            "vit_b16",
            "create('hf://timm/vit_base_patch16_224.new')",
        ),
        (
            "vit_base_patch16_clip_quickgelu_224.new",
            "clip/vit_b16",
            "create('hf://timm/vit_base_patch16_clip_224.new', block={'activation': 'quick_gelu'})",
        ),
    ],
)
def test_a_tag_without_an_entry_is_answered_with_its_network_and_the_call(name, network, expected):
    with refuses(UnknownName, repr(name), repr(network), expected):
        registry().variant(name)


def test_a_name_of_timm_behind_its_namespace_is_no_repository():
    with refuses(UnknownName, "'timm/vit_base_patch16_224'", "the name in timm", "'vit_b16'"):
        registry().variant("timm/vit_base_patch16_224")


def test_the_networks_of_vitzoo_come_before_wrappers():
    matches = known_elsewhere("eva_giant_patch14_224", registry())
    own = [built_of_parts(variant) for _, variant, _ in matches]
    assert own == sorted(own, reverse=True)


def test_the_command(run):
    code, out, _ = run("which", "laion/CLIP-ViT-B-16-DataComp.XL-s13B-b90K", "--json")
    (row,) = json.loads(out)
    assert (code, row["name"], row["weights"]) == (0, "clip/vit_b16", "datacompxl")
    code, out, err = run("which", "vit_relpos_base_patch16_224.nope")
    assert (code, out) == (1, "")
    says(err, "'timm/vit_relpos_base_patch16_224'", "'nope'", "vitzoo.create('hf://timm/")
    code, out, err = run("which", "vit_base_patch16_rope_mixed_224", "--json")
    expected = "vitzoo.create('rope_vit/vit_b16_mixed', pretrained=True)"
    assert (json.loads(out)[0]["create"], err) == (expected, "")
