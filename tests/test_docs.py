"""The documentation is tested: snippets run, signatures and links hold, pages are fresh."""

import ast
import contextlib
import dataclasses
import doctest
import importlib
import inspect
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitzoo
from helpers import says
from pages import outputs
from tables import cases
from terminal import lines
from vitzoo import errors
from vitzoo.formats import Format, KeyMap
from vitzoo.parts import protocols
from vitzoo.plugin import hookspecs
from vitzoo.registry.registry import registry
from vitzoo.schema import manifest, reader
from vitzoo.testing import check_checkpoint_format

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXECUTED = [
    *(
        ROOT / "docs" / f"{n}.md"
        for n in (
            "backbones",
            "create",
            "gpu",
            "lora",
            "parts",
            "questions",
        )
    ),
]  # test_families.py and test_readme.py run the other pages


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def names(pages):
    return [str(page.relative_to(ROOT)) for page in pages]


@pytest.mark.docs
@pytest.mark.parametrize("page", EXECUTED, ids=names(EXECUTED))
@pytest.mark.usefixtures("page_folder")
def test_python_snippets_run_in_order(page):
    scope, found = {}, blocks(page, "python")
    assert found
    for block in found:
        exec(compile(block, str(page), "exec"), scope)


@pytest.mark.docs
@pytest.mark.usefixtures("page_folder")
@pytest.mark.parametrize(
    ("name", "generated", "shown"),
    [("predicting", "no part", 4), ("cli", "## vitzoo list", 1), ("errors", "## Tree", 1)],
)
def test_a_page_shows_what_its_blocks_print(name, generated, shown, capsys):
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert outputs(page.partition(generated)[0], lambda: capsys.readouterr().out) == shown


@pytest.mark.docs
@pytest.mark.long
def test_the_page_about_probing_shows_what_its_commands_print(page_folder, capsys):
    """Other processors may predict a few images differently."""
    page, scope, shown = (ROOT / "docs" / "probing.md").read_text(encoding="utf-8"), {}, 0
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        if language == "python":
            exec(compile(block, "docs/probing.md", "exec"), scope)
            continue
        command, *expected = block.splitlines()
        found = lines(*shlex.split(command)[2:], columns=80, TERM="dumb")
        if expected:
            shown += 1
            number = re.compile(r"\d[\d.]*")
            assert [" ".join(number.sub("N", line).split()) for line in found] == [
                " ".join(number.sub("N", line).split()) for line in expected
            ]
            scores = [[t for t in text if "has C = " not in t] for text in (found, expected)]
            numbers = [[float(n) for n in number.findall("\n".join(t))] for t in scores]
            assert numbers[0] == pytest.approx(numbers[1], abs=4)
        else:
            assert len(found) > 30, found
    assert shown == 1
    says(capsys.readouterr().out, "360 of 360")
    assert {path.name for path in page_folder.iterdir()} >= {
        *("labelled", "classifier.safetensors", "confusion.png", "trained.png"),
    }  # fmt: skip


def test_the_page_about_trust_counts_the_pins_of_the_registry():
    tool = runpy.run_path(str(ROOT / "tests" / "update_pins.py"))
    page = tool["PAGE"].read_text(encoding="utf-8")
    assert page == tool["filled"](page), tool["BY_HAND"]
    assert "| `confirmed` | 1 | 1 |" in page  # `vit_digits`, as the sentence above the table says


# Words that people write. Both numbers may only fall.
WORDS = {"outside records": 30_000, "READMEs of plugins": 2_686}


def test_people_write_no_more_words_than_before():
    tool = runpy.run_path(str(ROOT / "docs" / "count_words.py"))
    found = tool["sums"]()
    assert {name: found[name] for name in WORDS if found[name] > WORDS[name]} == {}
    files = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert set(tool["count"](*tool["PAGES"])) == files
    assert all(any(fnmatch(file, pattern) for file in files) for pattern in tool["RECORDS"])
    assert tool["is_record"]("docs/decisions/README.md")


def test_tables_are_counted_but_not_code_and_what_scripts_write():
    by_hand = runpy.run_path(str(ROOT / "docs" / "count_words.py"))["by_hand"]
    table = "| a | b |\n|---|---|\n| c | d |\n"  # eleven words, as `wc -w` counts them
    code = "```python\nimport vitzoo\n```\n\n1. one\n\n   ```sh\n   vitzoo list\n   ```\n"
    written = f"<!-- weights: clip -->\n{table}<!-- end -->\n"
    assert by_hand("docs/create.md", table) == 11
    assert by_hand("docs/create.md", f"three words here\n\n{code}\n{written}\nmore\n") == 6
    assert by_hand("docs/cli.md", "one\n\n## vitzoo list\n\ntwo\n") == 1
    assert by_hand("docs/testing.md", "one\n\n## What is tested\n\ntwo\n\n## End\n") == 3


@cases("page", PAGES, ids=names(PAGES))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page}: {target}"


def test_every_page_is_reached_from_the_index():
    """Directly, or from a page that lists others: the site makes its navigation of them."""
    index = ROOT / "docs" / "index.md"
    reached = {index}
    lists = ("api/README.md", "decisions/README.md", "maintainers.md")
    for page in (index, *(ROOT / "docs" / name for name in lists)):
        links = re.findall(r"\]\(([^)#:]+\.md)\)", page.read_text(encoding="utf-8"))
        reached |= {(page.parent / link).resolve() for link in links}
    assert {*PAGES, *ROOT.glob("plugins/*/README.md")} - reached == set()


def test_cli_page_is_the_commands_own_help():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        generate = importlib.import_module("generate_cli")
    finally:
        sys.path.pop(0)
    assert (ROOT / "docs" / "cli.md").read_text() == generate.page(), (
        "docs/cli.md is out of date: python docs/generate_cli.py"
    )


def test_the_page_of_exceptions_is_made_from_their_docstrings():
    tool = runpy.run_path(str(ROOT / "docs" / "generate_errors.py"))
    page = tool["PAGE"].read_text(encoding="utf-8")
    assert page == tool["page"](), "docs/errors.md is out of date: python docs/generate_errors.py"


def test_tables_are_made_from_docstrings_and_the_registry():
    tool = runpy.run_path(str(ROOT / "docs" / "generate_tables.py"))
    pages = {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in tool["PAGES"]}
    stale = [name for name, text in pages.items() if tool["filled"](name, text) != text]
    assert stale == [], "python docs/generate_tables.py"


def exceptions():
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind)]
    here = [kind for kind in kinds if kind.__module__ == errors.__name__]
    return [kind for kind in here if issubclass(kind, Exception)]


@cases("kind", exceptions(), ids=lambda kind: kind.__name__)
def test_an_exception_says_when_it_is_raised_and_what_to_do(kind):
    when, _, fix = kind.__doc__.partition("\n\n    Fix: ")
    assert "\n" not in when
    assert when.endswith(".")
    assert len(fix.split()) >= 3
    assert issubclass(kind, errors.VitzooError) != issubclass(kind, Warning)


HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("vitzoo_"))


def hook_page(name: str) -> Path:
    return ROOT / "docs" / "hooks" / f"{name.removeprefix('vitzoo_')}.md"


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_has_a_page_headed_by_its_exact_signature(name):
    heading = hook_page(name).read_text().partition("\n")[0]
    signature = str(inspect.signature(getattr(hookspecs, name))).replace("'", "")
    assert heading == f"# `{name}{signature}`"


def test_every_page_of_a_hook_is_linked_from_the_plugin_page():
    page = (ROOT / "docs" / "plugins.md").read_text()
    assert {path.name for path in ROOT.glob("docs/hooks/*.md")} == {
        hook_page(name).name for name in HOOKS
    }
    assert all(f"](hooks/{hook_page(name).name})" in page for name in HOOKS)


@pytest.fixture
def documented(distribution, monkeypatch, new_registry):
    """Install a plugin of documented files: a function of its entry point and files."""
    found = set()

    def install(entry_point, files):
        found.update(Path(file).parts[0] for file in files)
        monkeypatch.syspath_prepend(distribution("acme-doc", f"acme = {entry_point}", files))
        new_registry()

    yield install
    for name in [name for name in sys.modules if name.partition(".")[0] in found]:
        del sys.modules[name]


@pytest.mark.docs
@pytest.mark.usefixtures("page_folder")
@pytest.mark.parametrize("name", HOOKS)
def test_the_manifest_and_the_code_on_a_hooks_page_work(name, documented):
    plugin, _, use = hook_page(name).read_text().partition("\n## Use\n")
    toml, code = (
        re.findall(rf"^```{language}\n(.*?)^```", plugin, re.MULTILINE | re.DOTALL)
        for language in ("toml", "python")
    )
    usage, *_ = re.findall(r"^```python\n(.*?)^```", use, re.MULTILINE | re.DOTALL)
    module = re.search(r'^(?:target|builder) = "acme_vit\.(\w+):', toml[0], re.MULTILINE)[1]
    target = "\n".join(code)
    files = {"acme_vit/__init__.py": "", "acme_vit/registry.toml": toml[0]}
    documented("acme_vit:registry.toml", files | {f"acme_vit/{module}.py": target})
    names = {**vars(importlib.import_module(f"acme_vit.{module}"))}
    exec(compile(usage, str(hook_page(name)), "exec"), names)
    for hook, row in registry().host.rows["acme"]:
        assert hook == name
        assert registry().host.import_target("acme", row)


def words_to_learn(page: Path) -> set[str]:
    """Return tables and keys of a page's manifest, and names and keywords of vitzoo in its code."""
    toml, code = blocks(page, "toml")[0], ast.parse(blocks(page, "python")[0])
    words = {*re.findall(r"^(\[\w+|\w+(?= =))", toml, re.MULTILINE)}
    ours = set()
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("vitzoo"):
            ours |= {alias.name for alias in node.names}
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "vitzoo":
            ours.add(node.attr)
    calls = [node for node in ast.walk(code) if isinstance(node, ast.Call)]
    of_ours = [call for call in calls if ast.unparse(call.func).rpartition(".")[2] in ours]
    return words | ours | {str(keyword.arg) for call in of_ours for keyword in call.keywords}


@pytest.mark.parametrize(
    ("names", "most"), [(["pools"], 4), (["variants", "checkpoint_formats"], 24)]
)
def test_an_author_learns_few_words(names, most):
    """Of a pool, and of a family: variants, builder and format; commands write its weights."""
    words = set().union(*(words_to_learn(hook_page(f"vitzoo_{name}")) for name in names))
    assert 1 < len(words) <= most, sorted(words)


def test_the_module_of_the_page_about_modules_works(documented):
    page = ROOT / "docs" / "module-plugins.md"
    (code,) = blocks(page, "python")
    documented("acme_vit.hooks", {"acme_vit/__init__.py": "", "acme_vit/hooks.py": code})
    for name, first in (("acme/late_50", 6), ("acme/late_75", 9)):
        drop_path = {"name": name, "rate": 0.1}
        model = vitzoo.create("vit_ti16", drop_path=drop_path, device="meta")
        assert [block.drop_path.rate for block in model.blocks] == [0.0] * first + [0.1] * (
            12 - first
        )
    model = vitzoo.create("acme/vit_b16_gap", device="meta")
    assert sum(p.numel() for p in model.parameters()) == vitzoo.describe("acme/vit_b16_gap").params


PROTOCOLS = {
    "patch_embedders": [protocols.PatchEmbedder],
    "position_embeddings": [protocols.PositionEmbedding],
    "pools": [protocols.Pool],
    "heads": [protocols.Head],
    "drop_path_policies": [protocols.DropPath],
    "variants": [protocols.Network, protocols.WeightsAdapter],
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_page_of_a_hook_has_every_member_of_its_protocol(name):
    rows = re.findall(r"^\| `?(\w+)", hook_page(name).read_text(), re.MULTILINE)
    for protocol in PROTOCOLS[name]:
        members = {*vars(protocol), *inspect.get_annotations(protocol)}
        public = {member for member in members if member[0] != "_"}
        assert public | ({"call"} if "__call__" in members else set()) <= set(rows)


MOST_NEED = {"keymap", "marks", "ignored", "defaults", "network", "suffix", "configs"}


def test_the_docstrings_of_formats_describe_every_argument_and_method():
    """The page of the hook shows the arguments that most need, a page of its own the others."""
    arguments = (inspect.getdoc(Format) or "").partition("\nRaises:")[0]
    stated = re.findall(r"^    (\w+(?:, \w+)*): ", arguments, re.MULTILINE)
    fields = {field.name for field in dataclasses.fields(Format)}
    assert set(", ".join(stated).split(", ")) == fields
    methods = {v.__name__: v.__doc__ for v in vars(Format).values() if inspect.isfunction(v)}
    assert [name for name, doc in methods.items() if name[0] != "_" and not doc] == []
    others = ROOT.joinpath("docs", "format-arguments.md").read_text(encoding="utf-8")
    named = {*re.findall(r"`(\w+)`", "".join(re.findall(r"^\|.*", others, re.MULTILINE)))}
    named -= {"KeyMap", *KeyMap.__annotations__}
    assert named - methods.keys() == fields - MOST_NEED - {"name"}
    page = hook_page("vitzoo_checkpoint_formats").read_text(encoding="utf-8")
    assert {*re.findall(r"^\| `(\w+)`", page, re.MULTILINE)} == MOST_NEED


def documented_format():
    """Return the code of the format on its hook's page."""
    *code, _ = blocks(hook_page("vitzoo_checkpoint_formats"), "python")
    return "\n".join(code)


@pytest.mark.docs
def test_a_documented_format_says_what_its_network_lacks():
    scope = {}
    exec(documented_format(), scope)
    spec = vitzoo.describe("vit_b16").spec
    assert scope["acme"].unsupported(spec) == []
    registers = dataclasses.replace(spec, num_registers=4)
    assert scope["acme"].unsupported(registers) == ["num_registers = 4"]


@pytest.mark.docs
@pytest.mark.usefixtures("page_folder")
def test_the_documented_folder_is_written_and_read(distribution, monkeypatch, new_registry, run):
    (folder,) = blocks(ROOT / "docs" / "format-arguments.md", "python")
    (toml,) = blocks(hook_page("vitzoo_checkpoint_formats"), "toml")
    code = documented_format() + folder
    files = {"__init__.py": "", "formats.py": code, "registry.toml": toml}
    site = distribution("acme-vit", "acme = acme_vit:registry.toml",
                        {f"acme_vit/{name}": text for name, text in files.items()})  # fmt: skip
    monkeypatch.syspath_prepend(site)
    new_registry()
    spec = {"image_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    try:
        vitzoo.save(vitzoo.create(spec), "net.safetensors")
        assert run("convert", "net.safetensors", "--to", "acme/acme", "folder")[0] == 0
        assert {p.name for p in Path("folder").iterdir()} == {"acme.json", "part-1.safetensors"}
        assert '"tensors": {' in Path("folder/acme.json").read_text(encoding="utf-8")
        assert vitzoo.create(spec, weights="folder/").load_report.format == "acme/acme"
    finally:
        for name in [name for name in sys.modules if name.startswith("acme_vit")]:
            del sys.modules[name]


@pytest.mark.docs
def test_the_documented_format_works_from_a_manifest(distribution, monkeypatch, new_registry):
    """It is short, has a fused and a renamed key, and passes the conformance tests."""
    code = documented_format()
    assert len([line for line in code.splitlines() if line]) <= 40
    (toml,) = blocks(hook_page("vitzoo_checkpoint_formats"), "toml")
    files = {"__init__.py": "", "formats.py": code, "registry.toml": toml}
    site = distribution("acme-vit", "acme = acme_vit:registry.toml",
                        {f"acme_vit/{name}": text for name, text in files.items()})  # fmt: skip
    monkeypatch.syspath_prepend(site)
    new_registry()
    try:
        check_checkpoint_format("acme/acme")
    finally:
        for name in [name for name in sys.modules if name.startswith("acme_vit")]:
            del sys.modules[name]


@pytest.fixture
def documented_plugin(distribution, monkeypatch):
    """The plugin that docs/plugins.md writes out, on the path as an installed distribution."""
    page = (ROOT / "docs" / "plugins.md").read_text()
    files = dict(
        re.findall(r"^`(acme_vit/\S+)`[^\n]*\n\n```\w+\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    )
    assert set(files) == {"acme_vit/registry.toml"}
    files["acme_vit/__init__.py"] = ""
    groups = re.findall(r"^\[project\.entry-points\.(.+)\]\n(.+)$", page, re.MULTILINE)
    points = "\n".join(
        f"[{group.strip(chr(34))}]\n{row.replace(chr(34), '')}" for group, row in groups
    )
    monkeypatch.syspath_prepend(distribution("acme-vit", points.removeprefix("[vitzoo]\n"), files))
    cache = importlib.import_module("vitzoo.registry.registry")._registry
    cache.cache_clear()
    yield
    cache.cache_clear()
    for name in [name for name in sys.modules if name.startswith("acme_vit")]:
        del sys.modules[name]


@pytest.fixture
def documented_app(distribution, monkeypatch):
    """The app that docs/apps.md writes out, on the path as an installed distribution."""
    page = ROOT / "docs" / "apps.md"
    (code,), (project, *_) = blocks(page, "python"), blocks(page, "toml")
    assert len(code.splitlines()) <= 60
    points = tomllib.loads(project)["project"]["entry-points"]["vitzoo.commands"]
    group = "[vitzoo.commands]\n" + "".join(f"{name} = {at}\n" for name, at in points.items())
    site = distribution("acme-duplicates", group, {"acme_duplicates.py": code})
    monkeypatch.syspath_prepend(site)
    yield
    sys.modules.pop("acme_duplicates", None)


@pytest.mark.docs
@pytest.mark.usefixtures("documented_app", "page_folder")
def test_the_documented_app_works(run):
    folder = Path("scans")
    folder.mkdir()
    for seed, names in ((0, ["one"]), (1, ["other", "copy"])):
        pixels = np.random.default_rng(seed).integers(0, 256, (28, 28), np.uint8)
        for name in names:
            Image.fromarray(pixels).save(folder / f"{name}.png")
    pair = [{"cosine": 1.0, "first": "scans/copy.png", "second": "scans/other.png"}]
    options = ("--above", "0.9999", "--json")
    code, out, _ = run("duplicates", "vit_digits", "scans", *options)
    assert (code, json.loads(out)) == (0, pair)
    code, out, err = run(
        "duplicates", "vit_digits", "scans", "gone.png", "--json", "--above=0.9999"
    )
    assert (code, json.loads(out), "there is no file gone.png" in err) == (1, pair, True)
    code, out, err = run("duplicates", "vit_digit", "scans")
    assert (code, out, "did you mean 'vit_digits'" in err) == (1, "", True)
    assert re.search(r"duplicates +of acme-duplicates 1\.0", run("--help")[1])


@pytest.mark.usefixtures("documented_plugin")
def test_the_documented_plugin_works():
    import torch

    variant = vitzoo.describe("acme/vit_ti16_gap")
    model = vitzoo.create("acme/vit_ti16_gap", num_classes=10)
    assert model(torch.zeros(1, 3, 224, 224)).shape == (1, 10)
    whole = vitzoo.create("acme/vit_ti16_gap", device="meta")
    assert sum(p.numel() for p in whole.parameters()) == variant.params


@pytest.mark.docs
def test_the_documented_registry_file_works(tmp_path, monkeypatch):
    texts = blocks(ROOT / "docs" / "registry.md", "toml")
    files = [tmp_path / f"{i}.toml" for i in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text.replace("SHA256", "0" * 64))
    monkeypatch.setenv("VITZOO_REGISTRY", os.pathsep.join(map(str, files)))
    for name in ("local/micro28", "local/products"):
        model = vitzoo.create(name, device="meta")
        assert sum(p.numel() for p in model.parameters()) == vitzoo.describe(name).params
    row = vitzoo.describe("local/products").default_weights
    assert row.path == str(tmp_path / "weights" / "products.safetensors")
    data = sum(p.numel() for p in model.parameters()) * 4
    assert 0 < row.size - data < 64 * 1024  # the header of the file


@pytest.mark.docs
@pytest.mark.long
def test_the_page_on_exports_works(page_folder, monkeypatch, run):
    """Every block, in order; the program runs in a process without vitzoo and torch."""
    page = ROOT / "docs" / "exporting.md"
    found = re.findall(
        r"^```(console|python|python program)\n(.*?)^```(?:\n\n```text\n(.*?)^```)?",
        page.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert len(found) == 10
    monkeypatch.setitem(sys.modules, "openvino_telemetry", None)  # as the page does
    scope, alone = {}, "import sys; sys.modules['vitzoo'] = sys.modules['torch'] = None\n"
    shown = 0
    for language, block, below in found:
        text, _, inside = block.partition("\n") if language == "console" else (block, "", "")
        printed, expected = io.StringIO(), inside or below
        if language == "console":
            code, out, notes = run(*shlex.split(text)[2:])
            assert code == 0, notes
            printed.write(notes + out)
        elif language == "python":
            with contextlib.redirect_stdout(printed):
                exec(compile(text, str(page), "exec"), scope)
        else:
            command = [sys.executable, "-c", alone + text]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
            read = [line.split() for line in done.stdout.splitlines()]
            assert [(name[6], label) for name, label in read] == [(d, d) for d in "0123456789"]
        if expected:
            assert without_numbers(printed.getvalue()) == without_numbers(expected)
            shown += 1
    assert shown == 2
    assert scope["done"].files == ("model.pt2", "preprocessing.json")
    about = scope["about"]
    assert (about["network"]["variant"], about["output"]) == ("vit_ti16", "pooled")
    made = {"digits", "features", "photos", "digits_int8"}
    assert made <= {path.name for path in page_folder.iterdir()}


def without_numbers(text: str) -> list[str]:
    return re.sub(r"\d[\d.]*(e-\d+)?", "N", text).split()


@pytest.mark.docs
def test_the_documented_registration_works(page_folder, tmp_path, monkeypatch):
    """The shell blocks run in a shell, as a reader would run them."""
    page = ROOT / "docs" / "registry.md"
    before, after = blocks(page, "python")
    (commands,) = [text for text in blocks(page, "sh") if "registry add" in text]
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "home"))
    exec(compile(before, str(page), "exec"), {})
    vitzoo_command = Path(sys.executable).with_name("vitzoo")
    script = f"set -e\nvitzoo() {{ '{vitzoo_command}' \"$@\"; }}\n{commands}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    says(done.stdout, "local/products", "proprietary", "vit_ti16", "ok")
    monkeypatch.setenv("VITZOO_REGISTRY", str(page_folder / "zoo.toml"))
    scope = {"vitzoo": vitzoo}
    exec(compile(after, str(page), "exec"), scope)
    assert scope["model"].labels == ("mug", "lamp", "chair")
    assert scope["model"].load_report.license == "proprietary"


CALLS = ROOT / "docs" / "other-libraries.md"
WALKED = [ROOT / "docs" / "publishing.md", pytest.param(CALLS, marks=pytest.mark.long)]
STEP = r"^```(python|sh)\n(.*?)^```|^\| (?:`([^`\n]*)`|[^|\n]*) \| `([^`\n]*)` \|$"
ON_THE_HUB = r"^open_clip|pretrained=(True|\")|from_pretrained\(\"\w+/|push_to|list_pretrained"


def run_shell(block: str) -> None:
    command = Path(sys.executable).with_name("vitzoo")
    script = f"set -e\nvitzoo() {{ '{command}' \"$@\"; }}\n{block}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.docs
@pytest.mark.usefixtures("page_folder")
@pytest.mark.parametrize("page", WALKED, ids=lambda page: page.name)
def test_blocks_and_tables_of_calls_run_in_order(page, tmp_path, monkeypatch, capsys):
    """In a table, calls of another library and of vitzoo; if only the Hub has it, it is refused."""
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "home"))
    for name in ("VITZOO_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "1")
    scope, calls, offline, text = {}, 0, 0, page.read_text(encoding="utf-8")
    for language, block, theirs, ours in re.findall(STEP, text, re.MULTILINE | re.DOTALL):
        if language == "sh":
            run_shell(block)
        elif language:
            exec(compile(block, str(page), "exec"), scope)
        else:
            on_the_hub = re.search(ON_THE_HUB, theirs)
            if not on_the_hub:
                exec(theirs, scope)
            try:
                exec(ours, scope)
            except errors.Offline:
                assert on_the_hub, ours
                offline += 1
            calls += 1
    printed = re.findall(r"^print\(.*?\)  # (.*)$", text, re.MULTILINE)
    assert printed == capsys.readouterr().out.splitlines()
    assert page != CALLS or (calls > 35 and offline == 6)


def test_every_key_of_a_registry_file_is_documented(monkeypatch):
    asked = set()
    done = reader.Reader.done
    monkeypatch.setattr(
        reader.Reader, "done", lambda self: (asked.update(self._asked), done(self))[1]
    )
    path = ROOT / "registry.toml"
    manifest.read_manifest(path, package="vitzoo")
    page = "".join((ROOT / "docs" / name).read_text() for name in ("registry.md", "parts.md"))
    written = set(re.findall(r"[`.]?(\w+)(?:\.NAME)?`", page)) | set(re.findall(r"\w+", page))
    assert len(asked) > 40
    assert asked <= written, sorted(asked - written)


def with_examples(package: Path) -> list[str]:
    """Return the modules of a package whose source holds an example, by their names."""
    found = []
    for path in sorted(package.rglob("*.py")):
        if re.search(r"^ *>>> ", path.read_text(), re.MULTILINE):
            parts = path.relative_to(package.parent).with_suffix("").parts
            found.append(".".join(parts).removesuffix(".__init__"))
    return found


MODULES = with_examples(Path(vitzoo.__file__).parent)


def test_modules_with_examples_are_found(tmp_path):
    example, package = '"""Add.\n\n    >>> 1 + 1\n    2\n"""\n', tmp_path / "acme"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text(example)
    (package / "none.py").write_text("shift = 8 >> 1\n")
    (package / "inner" / "deep.py").write_text(example)
    assert with_examples(package) == ["acme", "acme.inner.deep"]
    assert len(MODULES) >= 10


@pytest.mark.docs
@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    import torch

    result = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch})
    assert result.attempted > 0
    assert result.failed == 0


def test_the_page_of_settings_has_every_variable():
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    stated = re.findall(r"^\| `(VITZOO_\w+)` \|", page, re.MULTILINE)
    source = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("vitzoo/**/*.py"))
    read = set(re.findall(r"(?<![A-Z_])VITZOO_[A-Z]+(?:_[A-Z]+)*\b", source))
    assert sorted(stated) == sorted(read - {"VITZOO_COMPLETE"})
    assert len(stated) == len(set(stated))
