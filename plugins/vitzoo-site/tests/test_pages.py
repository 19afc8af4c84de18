"""The written pages, parsed and compared with the registry."""

from __future__ import annotations

import json
import re

import pytest

import vitzoo
from plugin_files import UNTOUCHABLE
from site_pages import FULL, Page, entries
from vitzoo import PartSpec
from vitzoo_site import write_site
from vitzoo_site.index_data import RESULTS

CORE_BUILDER = vitzoo.describe("vit_ti16").builder

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)> \"quoted\" 'quoted' & "
    "javascript:alert(3) http://example.org/plain {{ 7 * 7 }} <!-- [a](javascript:alert(4))"
)
FREE = (  # texts of the plugin
    "a small network", "made by the test", "Acme", "Acme-12M", "Acme's 5 classes", "CC-BY-NC-4.0",
    "MIT", "ImageNet-1k validation", "H200", "torch 2.15", "bench.csv", "Private-3B",
    "net_patch8_32", "arXiv:2010.11929", "arXiv:2010.11929, table 6",
    "table 3 of https://example.org/report.pdf",
)  # fmt: skip
UNSEEN = ", file not seen:"
LABELS = {"confirmed": "confirmed: ", "reported": "reported: ", "first-use": "trust on first use: "}


def px(size):
    return f"{size[0]}" if size[0] == size[1] else f"{size[0]}x{size[1]}"


def of_network(variant):
    """Return what the page of a variant must say about the network, by field."""
    spec = variant.spec
    expected = {
        "params": f"{variant.params:,}",
        "image_size": px(spec.image_size),
        "patch_size": px(spec.patch_size),
        "source": variant.source,
        "class_token": "yes" if spec.class_token else "no",
        "pre_norm": "yes" if spec.pre_norm else "no",
        "final_norm": "yes" if spec.final_norm else "no",
        "num_registers": str(spec.num_registers),
        "dropout": str(spec.dropout),
    }
    for name in ("embed_dim", "depth", "num_heads", "mlp_dim", "in_chans", "num_classes"):
        expected[name] = f"{getattr(spec, name):,}"
    for number, (_, name) in enumerate(variant.known_as):
        expected[f"known_as_{number}"] = name
    for row in variant.throughput:
        expected[row.name] = str(row.images_per_second)
    stated = {
        "gmacs": variant.gmacs and str(variant.gmacs),
        "activations": variant.activations and f"{variant.activations:,}",
        "paper": variant.paper,
        "builder": variant.builder if variant.builder != CORE_BUILDER else "",
    }
    return expected | {key: text for key, text in stated.items() if text}


def of_weights(variant, weights):
    """Return what the page must say about weights, by field; texts around numbers are left out."""
    images = weights.preprocessing
    classes = variant.spec.num_classes if weights.num_classes is None else weights.num_classes
    stated = {
        "license": weights.license_note,
        "num_classes": f"{classes:,}",
        "label_set": weights.label_set,
        "pretraining": weights.pretraining,
        "pretraining_data": weights.pretraining_data,
        "evaluation": weights.evaluation,
        "evaluation_size": weights.evaluation_size and px(weights.evaluation_size),
        "source": weights.source,
        "format": weights.format,
        "mean": ", ".join(map(str, images.mean)),
        "std": ", ".join(map(str, images.std)),
        "interpolation": images.interpolation,
        "crop_pct": f"{images.crop_pct} ({images.crop_mode})",
        "revision": weights.revision,
        "size": weights.size and f"{weights.size:,}",
        "predicted_size": weights.predicted_size and f"{weights.predicted_size:,}",
        "sha256": weights.sha256,
        **{name: getattr(weights, name) for name in RESULTS},
    }
    return {key: str(text) for key, text in stated.items() if text not in (None, "")}


def check_page(out, variant):
    """Compare each field of a variant's page with the registry."""
    page = Page(out / "networks" / f"{variant.name}.html")
    text = {key: value for key, value in page.fields.items() if value}
    network = {field: value for (weights, field), value in text.items() if not weights}
    expected = of_network(variant)
    assert expected.items() <= network.items(), variant.name
    parts = {"patch_embed", "pos_embed", "block", "pool", "head", "drop_path"}
    assert network.keys() - expected.keys() <= parts | {"options"}
    for kind in parts - {"block"}:
        chosen = getattr(variant.spec, kind)
        assert network[kind].split()[0] == chosen.name
        assert all(f"{key}=" in network[kind] for key, _ in chosen.options)
    assert {weights for weights, _ in text} == {"", *(row.name for row in variant.weights)}
    others = {"commercial", "task", "evaluation_source", "overrides", "file", "pin"}
    for row in variant.weights:
        found = {field: value for (weights, field), value in text.items() if weights == row.name}
        expected = of_weights(variant, row)
        assert expected.items() <= found.items(), (variant.name, row.name)
        assert found.keys() - expected.keys() <= others
        seen = LABELS[row.pin] if row.file_seen else LABELS[row.pin].replace(":", UNSEEN)
        assert found["pin"].startswith(seen)
        assert found["file"].startswith(f"{row.repo}/{row.file}" if row.repo else row.file)
        assert row.evaluation_source in found.get("evaluation_source", "")
        assert row.evaluation_commit in found.get("evaluation_source", "")
    assert "first-use" not in [text.strip() for text in page.texts]
    calls = "".join(page.texts).count(f'vitzoo.create("{variant.name}"')
    assert calls == 1 + len(variant.weights)


@pytest.mark.slow
def test_every_page_says_what_the_registry_says(everything):
    variants = vitzoo.variants()
    assert len(variants) == everything.variants > 300
    assert sum(len(variant.weights) for variant in variants) == everything.weights > 300
    for variant in variants:
        check_page(everything.index.parent, variant)


def check_index(index):
    """Compare the data of the index with the registry."""
    rows, variants = entries(Page(index).data), vitzoo.variants()
    assert [row["name"] for row in rows] == [variant.name for variant in variants]
    for row, variant in zip(rows, variants, strict=True):
        assert row["summary"] == variant.summary
        assert (row["namespace"], row["params"]) == (variant.namespace, variant.params)
        assert row["gmacs"] == variant.gmacs
        assert str(row["image_size"]) == px(variant.spec.image_size)
        assert str(row["patch_size"]) == px(variant.spec.patch_size)
        speeds = {name: number for name, number in row["throughput"].items() if number is not None}
        assert speeds == {each.name: each.images_per_second for each in variant.throughput}
        assert [each["weights"] for each in row["weights"]] == [w.name for w in variant.weights]
        for found, weights in zip(row["weights"], variant.weights, strict=True):
            results = weights.label_set == "imagenet-1k"
            assert found["license"] == weights.license_note
            assert (found["pin"], found["default"]) == (weights.pin, weights.default)
            assert found["file"] == (weights.repo or weights.file)
            for name in RESULTS:
                assert found[name] == (getattr(weights, name) if results else None)


@pytest.mark.slow
def test_the_index_has_the_numbers_of_the_registry(everything):
    check_index(everything.index)


def test_every_figure_of_a_plugin_is_shown(full, out):
    site = full(out)
    check_index(site.index)
    for name in ("acme/net", "acme/bare"):
        check_page(out, vitzoo.describe(name))
    page = Page(out / "networks" / "acme" / "net.html")
    (paper,) = vitzoo.describe("acme/net").paper_results
    (row,) = re.findall(
        '<tr class="paper-result">.*?</tr>', (out / "networks/acme/net.html").read_text()
    )
    cells = [re.sub("<.*?>", "", cell) for cell in re.findall("<t[hd].*?>(.*?)</t[hd]>", row)]
    numbers = [str(value) for _, value in paper.accuracies]
    assert cells == ["acme/net", "Private-3B", "7", "", *numbers, "224.0", "", paper.source]
    assert "belong to no file" in "".join(page.texts)
    best = {field: text for (weights, field), text in page.fields.items() if weights == "best"}
    assert best["commercial"] == "no"
    assert best["overrides"] == "block.activation=quick_gelu, pool=mean"
    assert best["evaluation_source"] == "table 3 of https://example.org/report.pdf (commit 0123abc)"
    assert page.fields["", "block"] == "layer_scale=0.1, norm_eps=1e-05"
    assert page.fields["", "pos_embed"] == "sincos_2d temperature=20.5"
    speed = "H200, bf16, compiled, batch 256, torch 2.15"
    assert speed in page.texts
    (option,) = [at for tag, at in Page(site.index).tags if at.get("value") == "h200"]
    assert option["data-heading"] == f"Images/s, {speed}"


OWN = """\
api = 1

[variants.products]
variant = "vit_ti16"
num_classes = 5
params = 5525957
summary = "product photos"
source = "run 7"
"""
PLACE = """
[variants.products.weights.{name}]
{place}
pin = "confirmed"
size = 22132288
sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
format = "timm"
license = "proprietary"
source = "run 7"
preprocessing = {{ mean = [0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5], interpolation = "bicubic" }}
"""


def test_entries_of_the_user_publish_no_secret(local_registry, monkeypatch, tmp_path, out):
    monkeypatch.setenv("VITZOO_PLUGINS", "acme")
    url = PLACE.format(name="url", place='url = "https://example.org/a.safetensors?key=secret"')
    path = PLACE.format(name="disk", place=f'path = "{tmp_path}/b.safetensors"')
    local_registry(OWN + url + path)
    site = write_site(out)
    page = Page(out / "networks" / "local" / "products.html")
    assert page.fields["url", "file"] == "https://example.org/a.safetensors"
    assert "https://example.org/a.safetensors" in page.links
    assert page.fields["disk", "file"].startswith("b.safetensors ")
    assert page.fields["", "base"] == "vit_ti16"
    for file in out.rglob("*.*"):
        assert "secret" not in file.read_text()
        assert str(tmp_path) not in file.read_text()
    (row,) = [row for row in entries(Page(site.index).data) if row["namespace"] == "local"]
    assert [w["file"] for w in row["weights"]] == [
        "https://example.org/a.safetensors",
        "b.safetensors",
    ]


def test_the_lines_to_copy_load_the_weights(full, out):
    full(out)
    page = Page(out / "networks" / "acme" / "net.html")
    first = 'import vitzoo\nmodel = vitzoo.create("acme/net", '
    ends = ("pretrained=True)", "pretrained=True)", 'weights="other")')
    codes = [text for text in page.texts if text.startswith("import")]
    assert codes == [first + end for end in ends]
    bare = Page(out / "networks" / "acme" / "bare.html")
    assert 'import vitzoo\nmodel = vitzoo.create("acme/bare")' in bare.texts
    assert any("acme-parts 1.0" in text for text in bare.texts)
    local = Page(out / "networks" / "vit_b16.html")
    assert any(f"vitzoo {vitzoo.__version__}" in text for text in local.texts)


def check_harmless(path, allowed):
    """Check that a page has no script of its own, no handler and no address of another kind."""
    page = Page(path)
    assert "alert(1)" in "".join(page.texts)
    for tag, attributes in page.tags:
        assert tag not in ("img", "iframe", "object", "embed", "base")
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        if tag == "script":
            own = (attributes.get("src") or "").endswith(("assets/catalogue.js", "assets/copy.js"))
            assert own or attributes.get("type") == "application/json"
    for address in page.links:
        assert re.fullmatch(allowed, address), address
    assert "49" not in "".join(page.texts).split()  # templates in texts are no templates


def test_texts_of_a_plugin_are_texts(install, monkeypatch, out):
    monkeypatch.setenv("VITZOO_PLUGINS", "acme")
    manifest = FULL
    for text in FREE:
        assert json.dumps(text) in manifest, text
        manifest = manifest.replace(json.dumps(text), json.dumps(HOSTILE))
    install(
        "acme-parts", "acme = acme:registry.toml", UNTOUCHABLE | {"acme/registry.toml": manifest}
    )
    site = write_site(out, title=f"{HOSTILE}\u2028")
    assert not site.failed, site.failed[0].cause
    ours = r"data:,|#[\w-]+|(\.\./)*(assets|networks)/[\w./]+|(\.\./)*index\.html(#family=[\w&=]+)?"
    hub = r"https://(huggingface\.co/acme/net|arxiv\.org/abs)/.*"
    for path in (site.index, out / "networks/acme/net.html", out / "networks/acme/bare.html"):
        check_harmless(path, f"{ours}|{hub}")
    (row,) = [row for row in entries(Page(site.index).data) if row["name"] == "acme/net"]
    assert row["summary"] == HOSTILE
    assert any(rf"{HOSTILE}\u2028" in text for text in Page(site.index).texts)
    raw = site.index.read_text()
    assert raw.count("<script") == raw.count("</script>") == 2


@pytest.mark.slow
def test_links_lead_to_pages_of_the_site_or_to_https(everything):
    out = everything.index.parent
    first = [next(folder.glob("*.html")) for folder in out.glob("networks/**/")]
    assert len(first) > 10
    for path in (everything.index, *first):
        page = Page(path)
        anchors = {attributes.get("id") for _, attributes in page.tags}
        for link in page.links:
            target, _, anchor = link.partition("#")
            if not link.startswith(("https://", "data:,")):
                assert path.parent.joinpath(target).is_file() or not target, (path, link)
                assert target or anchor in anchors, (path, link)


def test_pages_have_what_screen_readers_need(everything):
    out = everything.index.parent
    for path in (everything.index, out / "networks" / "vit_b16.html"):
        page = Page(path)
        tags = [tag for tag, _ in page.tags]
        assert tags.count("h1") == tags.count("main") == 1
        assert ("html", {"lang": "en"}) in page.tags
        names = [at for tag, at in page.tags if at.get("role") in ("region", "search", "group")]
        assert all(at.get("aria-label") for at in names)
        ids = [at["id"] for _, at in page.tags if "id" in at]
        assert len(ids) == len(set(ids))


def test_options_of_parts_are_written_as_data(full, out):
    full(out)
    for variant in vitzoo.variants("vit_*"):
        page = Page(out / "networks" / f"{variant.name}.html")
        for kind in ("head", "pool"):
            chosen: PartSpec = getattr(variant.spec, kind)
            written = [
                f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in chosen.options
            ]
            assert page.fields["", kind] == f"{chosen.name} {', '.join(written)}"
