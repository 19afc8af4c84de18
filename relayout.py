"""Move modules into folders: the table of old and new paths, and the rewriting of imports.

    python relayout.py FOLDER     # moves what belongs into vitzoo/FOLDER, and its tests

Removed when all folders have been moved.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent
COPIED = {"log"}  # assigned in every module that needs it, never imported
PUBLIC = {
    "create",
    "plugins",
    "labels",
    "convert",
    "predict",
    "transform",
    "fetch",
}  # functions of vitzoo

# New module: what it consists of. "old" is a whole module, "old:a,b>c" some of its names, b as c.
TABLE: dict[str, dict[str, list[str]]] = {
    "files": {
        "files.access": [
            "store:CHUNK,LEFT,open_regular,hash_file,make_folder,write_atomic,_clear_leftovers,"
            "sync_folder",
            "locate:make_folder_or_raise,_unwritable",
            "writers:check_target,arriving",
        ],
        "files.names": ["hubnames"],
        "files.strict_json": ["header:strict_json"],
        "files.safetensors": ["header"],
        "files.npz": ["npz"],
        "files.shard_index": ["shard_index"],
    },
    "schema": {
        "schema.reader": ["schema"],
        "schema.spec": ["spec"],
        "schema.rows": ["catalogue", "locate:HF_ADDRESS,from_address,choose"],
        "schema.manifest": [
            "manifest:API,CORE_BUILDER,MAX_MANIFEST,MAX_PLUGIN_MANIFEST,MAX_DEPTH,MAX_KEY,MAX_DOTS,"
            "DOTTED,TARGET,SHA256,COMMIT,C,Manifest,read_manifest,_read,_check_shape,_check_api,"
            "_parts,_target,_sizes,_variant_row,_paper_results,check_variant,_known_as,"
            "_weights_row,_block_facts,_part_fact,check_pin,PIN_NEEDS,_percentage,_preprocessing,"
            "read_preprocessing,_aliases",
            "plugins:CORE_MANIFEST",
        ],
    },
    "plugin": {
        "plugin.hookspecs": ["hookspecs"],
        "plugin.entry_points": ["discovery"],
        "plugin.switches": ["switches"],
        "plugin.info": ["plugin_states"],
        "plugin.requirements": ["requirements"],
        "plugin.validation": ["contributed"],
        "plugin.manifest_plugin": ["manifest"],
        "plugin.guard": ["quiet", "reasons", "plugin_probe:_raised_at>raised_at"],
        "plugin.package_files": [
            "plugins:data_file,_manifest_path>manifest_path",
            "plugin_source:module_file,package_folders,_top>top_package",
        ],
        "plugin.source_lines": ["plugin_source"],
        "plugin.host": ["plugins"],
    },
    "registry": {
        "registry.registry": ["registry"],
        "registry.listing": ["listing"],
        "registry.listing_cache": ["listing_index"],
        "registry.label_sets": ["labels"],
    },
    "store": {
        "store.stamp": ["store:MAX_STAMP,GRAIN_NS,Stamp,read_stamp"],
        "store.store": ["store"],
        "store.lockfile": ["pins", "locate:source_of,pin_of"],
        "store.hub_file": ["remote"],
        "store.hub_client": ["asking"],
        "store.hub_metadata": ["hub", "locate:ask_authority"],
        "store.download": ["fetch"],
        "store.partial_file": ["partial"],
        "store.hub_cache": ["locate:FICLONE,_from_hub_cache>from_hub_cache,_from_cached,_copy"],
        "store.progress": ["progress"],
        "store.obtain": ["locate"],
    },
    "formats": {
        "formats.base": ["formats:Format,Expresses,StatesHeads,LeavesOut,NeedsHeads"],
        "formats.keymap": ["formats.keys"],
        "formats.unsupported": ["formats.networks"],
    },
    "checkpoint": {
        "checkpoint.containers": ["container", "safetensors_file", "npz_file", "shards"],
        "checkpoint.sidecars": [
            "siblings",
            "checkpoint:CONFIGS,MAX_CONFIG,_config>configs_beside,_read_config",
        ],
        "checkpoint.writers": ["writers"],
        "checkpoint.detect": ["weights:format_of,format_name,_claimants"],
        "checkpoint.saved": ["saved"],
        "checkpoint.checkpoint": ["checkpoint"],
    },
    "loading": {
        "loading.request": [
            "origin:Origin,from_saved,_from_mapping>from_mapping,_nameless>nameless"
        ],
        "loading.overrides": ["facts"],
        "loading.trained_spec": ["native"],
        "loading.adapt": [
            "weights:LOADABLE,HEADS,CLASSIFIERS,Foreign,Adaptation,_Adapted>Adapted,_adapt>adapt,_resample,"
            "_change_channels,_drop_head,_left_out>left_out,_fresh_head>fresh_head",
        ],
        "loading.misfit": [
            "weights:MAX_NAMES,fitting,_numbers,_numbers_of,_check>check,_hint,_unnamed_kernel,"
            "_raise_if>raise_if",
        ],
        "loading.load": ["weights"],
    },
    "images": {
        "images.decode": ["pictures"],
        "images.transform": ["images"],
        "images.lookup": ["inputs"],
    },
    "inference": {"inference.predict": ["predict"]},
    "tools": {
        "tools.plugin_check": ["plugin_check"],
        "tools.plugin_check_worker": ["plugin_probe"],
        "tools.plugin_why": ["plugin_trace"],
        "tools.plugin_compile": ["plugin_compile"],
        "tools.plugin_new": ["plugin_template"],
        "tools.registry_pin": ["audit:Pinned,pin,_pin_row"],
        "tools.registry_check": ["audit"],
    },
    "top": {
        "saving": ["create:save,_written"],
        "factory": ["create"],
        "resolve": ["origin"],
        "conversion": ["convert"],
    },
}
# Tests move beside: old file to new one, below tests/.
TESTS: dict[str, dict[str, str]] = {
    "schema": {"test_spec": "schema/test_spec"},
    "plugin": {
        "test_isolation": "plugin/test_host",
        "test_isolation_installed": "plugin/test_installed",
        "test_hooks": "plugin/test_hookspecs",
    },
    "registry": {
        "test_registry": "registry/test_registry",
        "test_labels": "registry/test_label_sets",
    },
    "store": {"test_progress": "store/test_progress"},
    "parts": {
        "test_blocks": "parts/test_block",
        "test_positions": "parts/test_pos_embed",
        "test_parts": "parts/test_parts",
        "test_pooled_stem": "parts/test_pooled_stem",
    },
    "formats": {"test_formats": "formats/test_formats"},
    "checkpoint": {
        "test_siblings": "checkpoint/test_sidecars",
        "test_saved": "checkpoint/test_saved",
    },
    "loading": {"test_weights": "loading/test_load", "test_misfits": "loading/test_misfit"},
    "images": {
        "test_pictures": "images/test_decode",
        "test_images": "images/test_transform",
        "test_inputs": "images/test_lookup",
    },
    "inference": {"test_predict": "inference/test_predict"},
    "tools": {"test_template": "tools/test_plugin_new"},
    "top": {
        "test_convert": "test_conversion",
        "test_cli": "cli/test_cli",
        "test_cli_plugins": "cli/test_plugins",
    },
}
# Docstrings of packages, and of modules that are split off or put together.
DOCS = {
    "files": "Bytes on disk, checked before any data is read: no network, no registry, no torch.",
    "schema": "The registry as data: what a manifest can state, read strictly; torch-free.",
    "plugin": "Plugins: found without being imported, loaded, and kept from doing damage; torch-free.",
    "registry": "What a name means: variants, parts, labels and their listing; torch-free.",
    "store": "Verified bytes by sha256, from the store, the Hub cache or the Hub; torch-free.",
    "checkpoint": "An open weights file: its container, its format, and the files beside it.",
    "loading": "Tensors of a checkpoint into a network.",
    "images": "Images in, tensors out.",
    "inference": "Networks at work on images.",
    "tools": "What `vitzoo plugins ...` and `vitzoo registry ...` run.",
    "files.access": "Opening, hashing and writing files; torch-free.",
    "files.strict_json": "JSON in which no key occurs twice; torch-free.",
    "schema.rows": "What is registered, as frozen dataclasses: parts, variants, weights; torch-free.",
    "schema.manifest": "A manifest (`registry.toml`) as data, read strictly; torch-free.",
    "plugin.manifest_plugin": "A manifest as a plugin: the hooks that return its entries; torch-free.",
    "plugin.guard": "Running the code of plugins: its output goes to stderr, its errors get a line.",
    "plugin.package_files": "Files of a package, found without importing it; torch-free.",
    "plugin.source_lines": "File and line where a contribution is defined; torch-free.",
    "store.stamp": "Stamps: what a file looked like when its bytes were last hashed; torch-free.",
    "store.lockfile": "The lock file: the sha256 of weights that were trusted on first use; torch-free.",
    "store.hub_metadata": "Metadata of the trusted Hub: commit, size, sha256 of a file; torch-free.",
    "store.hub_cache": "Files in the user's Hub cache, copied while they are hashed; torch-free.",
    "formats.base": "What a checkpoint format does, and what it may do besides.",
    "checkpoint.containers": "Safetensors, npz and sharded files as open tensors.",
    "checkpoint.sidecars": "Files beside the weights: `config.json`, `preprocessor_config.json`.",
    "checkpoint.detect": "Which checkpoint format a file has.",
    "loading.request": "The network that a call asks for, before its weights are known.",
    "loading.overrides": "Config overrides of weights: settings that no tensor shape shows.",
    "loading.trained_spec": "The network that weights were trained as.",
    "loading.adapt": "Changing weights for other classes, channels and image sizes.",
    "loading.misfit": "Checking that a file fits a network, and explaining why it does not.",
    "tools.registry_pin": "Pinning the weights of a registry file.",
    "saving": "Saving a network with its spec.",
}

# Places of data files, one folder up from the new modules.
FIXES = {
    "schema.manifest": [
        ('Path(__file__).with_name("registry.toml")', 'Path(__file__).parents[1] / "registry.toml"')
    ],
    "registry.label_sets": [
        ('Path(__file__).with_name("data")', 'Path(__file__).parents[1] / "data"')
    ],
    "plugin.guard": [
        ('f"{Path(__file__).parent}/"', 'f"{Path(__file__).parents[1]}/"'),
        ("is_relative_to(Path(__file__).parent)", "is_relative_to(Path(__file__).parents[1])"),
    ],
    "tools.plugin_new": [('files("vitzoo")', 'files("vitzoo.tools")')],
}

# What no rule finds.
BY_HAND = {
    "plugin": [
        ("tests/test_imports.py", "vitzoo.plugins, vitzoo.", "vitzoo.plugin.host, vitzoo."),
    ],
    "top": [
        ("tests/tools/test_plugin_new.py", "vitzoo.create.create", "vitzoo.factory.create"),
    ],
}


def main(folder: str) -> None:
    """Move one folder."""
    move_tests(TESTS.get(folder, {}))
    moves = TABLE.get(folder, {})
    if folder not in ("top", "parts"):
        package = ROOT / "vitzoo" / folder / "__init__.py"
        package.parent.mkdir(exist_ok=True)
        if not package.exists() and not (ROOT / f"vitzoo/{folder}.py").exists():
            package.write_text(f'"""{DOCS[folder]}"""\n', "utf-8")
    names: dict[tuple[str, str], tuple[str, str]] = {}
    whole: dict[str, str] = {}
    sources = {old: Source(old) for parts in moves.values() for old in map(module_of, parts)}
    taken: dict[str, set[str]] = {old: set() for old in sources}
    for new, parts in moves.items():
        for part in parts:
            old, _, listed = part.partition(":")
            for item in filter(None, listed.split(",")):
                name, _, other = item.strip().partition(">")
                if name not in sources[old].segments:
                    raise SystemExit(f"{old} has no {name}")
                names[old, name] = new, other or name
                taken[old].add(name)
    for new, parts in moves.items():
        for part in parts:
            if ":" not in part:
                whole[part] = new
                for name in sources[part].segments:
                    if name not in taken[part] and (name not in COPIED or len(parts) == 1):
                        names[part, name] = new, name
    written: dict[str, str] = {}
    for new, parts in moves.items():
        written[new] = compose(new, parts, names, sources)
    for old, source in sources.items():
        rest = [name for name in source.segments if (old, name) not in names or name in COPIED]
        if [name for name in rest if name not in COPIED] or old == "formats":
            source.path.write_text(source.without(names, old), "utf-8")
        else:
            git_move(old, whole.get(old))
    for new, text in written.items():
        for wrong, right in FIXES.get(new, []):
            if wrong not in text:
                raise SystemExit(f"{new}: no {wrong}")
            text = text.replace(wrong, right)
        path = path_of(new)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    if folder not in ("top", "parts"):
        package = ROOT / "vitzoo" / folder / "__init__.py"
        if not package.exists():
            package.write_text(f'"""{DOCS[folder]}"""\n', "utf-8")
    for file, wrong, right in BY_HAND.get(folder, []):
        path = ROOT / file
        text = path.read_text("utf-8")
        if wrong not in text:
            raise SystemExit(f"{file}: no {wrong}")
        path.write_text(text.replace(wrong, right), "utf-8")
    for path in files():
        before = path.read_text("utf-8")
        after = rewrite(before, names, whole, path)
        if path == ROOT / "vitzoo/__init__.py":
            after = re.sub(
                r'    "(\w+)": "([\w.]+)",',
                lambda m: f'    "{m[1]}": "{names.get((m[2], m[1]), (m[2],))[0]}",',
                after,
            )
        if after != before:
            path.write_text(after, "utf-8")
    if folder == "tools":
        git("mv", ROOT / "vitzoo/templates", ROOT / "vitzoo/tools/templates")
        for path in files():
            text = path.read_text("utf-8")
            if "vitzoo/templates" in text:
                path.write_text(text.replace("vitzoo/templates", "vitzoo/tools/templates"), "utf-8")
    touched = [path_of(new) for new in written] + [s.path for s in sources.values()]
    tidy([path for path in touched if path.exists()])


def move_tests(table: dict[str, str]) -> None:
    """Move test files, and correct the paths that they reckon from their own place."""
    for old, new in table.items():
        source, target = ROOT / f"tests/{old}.py", ROOT / f"tests/{new}.py"
        target.parent.mkdir(exist_ok=True)
        git("mv", source, target)
        if target.parent != source.parent:
            text = target.read_text("utf-8")
            text = re.sub(
                r"Path\(__file__\)\.parents\[(\d)\]",
                lambda m: f"Path(__file__).parents[{int(m[1]) + 1}]",
                text,
            )
            text = re.sub(r"Path\(__file__\)\.parent(?!s)", "Path(__file__).parents[1]", text)
            text = re.sub(
                r"Path\(__file__\)\.with_name\(([^)]*)\)", r"(Path(__file__).parents[1] / \1)", text
            )
            target.write_text(text, "utf-8")
    if table:
        for path in files():
            text = path.read_text("utf-8")
            after = re.sub(
                r"\btests/(test_\w+)\.py", lambda m: f"tests/{table.get(m[1], m[1])}.py", text
            )
            if after != text:
                path.write_text(after, "utf-8")


class Source:
    """A module before it is moved: its docstring, imports and top-level statements by name."""

    def __init__(self, old: str) -> None:
        self.old, self.path = old, path_of(old)
        text = self.path.read_text("utf-8")
        self.lines = text.splitlines(keepends=True)
        body = ast.parse(text).body
        self.docstring = ""
        self.imports: list[str] = []
        self.segments: dict[str, str] = {}
        self.nodes: dict[str, list[ast.AST]] = {}
        self.spans: dict[str, tuple[int, int]] = {}
        last = None
        for index, node in enumerate(body):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
            end = node.end_lineno or node.lineno
            while first and self.lines[first - 1].startswith("#"):
                first -= 1
            text = "".join(self.lines[first:end])
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                if index == 0:
                    self.docstring = text
                elif last:  # explains the assignment before it
                    self._add(last, text, node, (self.spans[last][0], end))
                continue
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.imports.append(text if "#" in text else ast.unparse(node) + "\n")
                last = None
                continue
            if isinstance(node, ast.If):
                self.imports.append(text)  # only `if TYPE_CHECKING:` occurs
                continue
            last = name_of(node)
            self._add(last, text, node, (first, end))

    def _add(self, name: str, text: str, node: ast.AST, span: tuple[int, int]) -> None:
        self.segments[name] = self.segments.get(name, "") + text
        self.nodes.setdefault(name, []).append(node)
        self.spans[name] = span

    def uses(self, name: str) -> set[str]:
        """Return the names of this module's own statements that a statement uses."""
        found = {n.id for top in self.nodes[name] for n in ast.walk(top) if isinstance(n, ast.Name)}
        # Annotations are strings to nobody here, as `from __future__ import annotations` is on.
        return {n for n in found if n in self.segments and n != name}

    def without(self, names: dict[tuple[str, str], tuple[str, str]], old: str) -> str:
        """Return the module without what was moved, and with imports of what it still uses."""
        gone = {n for n in self.segments if (old, n) in names}
        kept = [n for n in self.segments if n not in gone]
        lines = list(self.lines)
        for name in gone:
            start, end = self.spans[name]
            lines[start:end] = [""] * (end - start)
        needed = {n for k in kept for n in self.uses(k) if n in gone}
        if old == "formats":  # a public package: it offers what its modules hold
            lines_ = "".join(f"from vitzoo.{names[old, n][0]} import {n} as {n}\n" for n in gone)
            return f"{self.docstring}\nfrom __future__ import annotations\n\n{lines_}"
        text = "".join(lines)
        extra = "".join(import_line(*names[old, n], as_=n) for n in sorted(needed))
        return insert_imports(rename(text, {n: names[old, n][1] for n in gone}), extra)


def name_of(node: ast.AST) -> str:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        return target.id if isinstance(target, ast.Name) else ",".join(e.id for e in target.elts)
    if isinstance(node, ast.AnnAssign):
        return node.target.id
    raise SystemExit(f"cannot move {ast.dump(node)[:200]}")


def compose(new: str, parts: list[str], names, sources) -> str:
    olds = [module_of(part) for part in parts]
    single = len(parts) == 1 and ":" not in parts[0]
    keep = [
        (o, n)
        for o in dict.fromkeys(olds)
        for n in sources[o].segments
        if names.get((o, n), ("",))[0] == new
    ]
    if new in DOCS:
        doc = f'"""{DOCS[new]}"""\n'
        whole = [o for o in olds if f":" not in "".join(p for p in parts if module_of(p) == o)]
        if whole and sources[whole[0]].docstring.count("\n") > 1:  # keeps its long description
            doc = sources[whole[0]].docstring
    else:
        doc = sources[olds[0]].docstring
    imports = "".join(line for o in dict.fromkeys(olds) for line in sources[o].imports)
    body, extra, copied, body_plain = "", "", set(), False
    renames: dict[str, str] = {}
    for old, name in keep:
        renames[name] = names[old, name][1]
        plain = isinstance(sources[old].nodes[name][0], ast.Assign | ast.AnnAssign)
        body += ("" if plain and body_plain else "\n\n") + sources[old].segments[name]
        body_plain = plain
        for used in sorted(sources[old].uses(name)):
            if used in COPIED:
                copied.add(sources[old].segments[used])
                continue
            home, other = names.get((old, used), (old, used))
            if home != new:
                extra += import_line(home, other)
                renames.setdefault(used, other)
    if single:  # everything that is left, as it stands
        old = olds[0]
        text = sources[old].without({k: v for k, v in names.items() if v[0] != new}, old)
        return text
    future = "from __future__ import annotations\n"
    imports = imports.replace(future, "")
    text = doc + "\n" + future + "\n" + imports + extra + "\n" + "".join(sorted(copied)) + body
    for module in {p for p in olds if ":" not in p}:  # `facts.applied` in one module with it
        text = re.sub(rf"^from vitzoo import {module}\n", "", text, flags=re.M)
        if any(o == module for o, _ in keep) and len(set(olds)) > 1:
            inner = "|".join(re.escape(n) for o, n in keep if o == module)
            text = re.sub(rf"\b{module}\.({inner})\b", r"\1", text)
    own = {(o, n) for o, n in keep}
    text = drop_own_imports(text, own)
    return rename(text, renames)


def drop_own_imports(text: str, own: set[tuple[str, str]]) -> str:
    """Remove imports of names that are in the same module now."""
    modules = {f"vitzoo.{o}" for o, _ in own}
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            old = node.module.removeprefix("vitzoo.")
            left = [a for a in node.names if (old, a.name) not in own]
            indent = " " * node.col_offset
            kept = "".join(f"{indent}from {node.module} import {a.name}{as_(a)}\n" for a in left)
            lines[node.lineno - 1 : node.end_lineno] = [kept] + [""] * (
                node.end_lineno - node.lineno
            )
    return "".join(lines)


def rename(text: str, renames: dict[str, str]) -> str:
    for name, other in renames.items():
        if name != other:
            text = re.sub(rf"(?<![\w.]){re.escape(name)}\b", other, text)
    return text


def import_line(module: str, name: str, as_: str | None = None) -> str:
    return f"from vitzoo.{module} import {name}\n"


def insert_imports(text: str, extra: str) -> str:
    if not extra:
        return text
    mark = "from __future__ import annotations\n"
    if mark in text:
        return text.replace(mark, mark + "\n" + extra, 1)
    raise SystemExit("no future import")


def as_(alias: ast.alias) -> str:
    return f" as {alias.asname}" if alias.asname else ""


def rewrite(text: str, names, whole, path: Path) -> str:
    """Rewrite imports and dotted names of one file."""
    text = rewrite_lines(rewrite_dotted(text, names, whole), names, whole)
    if path.suffix != ".py":
        return text
    for (_, name), (_, other) in names.items():
        if name != other:
            text = text.replace(f'"{name}"', f'"{other}"')
    tree = ast.parse(text)
    scopes = {}
    for top in ast.walk(tree):  # outer ones first, so that the innermost stays
        if isinstance(top, ast.Module | ast.FunctionDef):
            scopes |= {id(n): top for n in ast.walk(top)}
    edits: list[tuple[int, int, int, int, str]] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.level:
            continue
        used: dict[str, set[str]] = {}
        for alias in node.names:
            old = ".".join(
                filter(None, [(node.module or "").removeprefix("vitzoo").strip("."), alias.name])
            )
            moved = old in whole or (
                not (node.module or "x.").count(".") and old in {o for o, _ in names}
            )
            if moved and (node.module or "").startswith("vitzoo") and not alias.asname:
                used[alias.name] = swap(scopes[id(node)], alias.name, old, names, whole, edits)
        new = new_imports(node.module or "", node.names, names, whole, used)
        if new is None:
            continue
        indent = " " * node.col_offset
        comment = re.search(r"  # .*$", text.splitlines()[node.end_lineno - 1])
        note = comment[0] if comment else ""
        block = f"\n{indent}".join(line + note for line in new)
        end = len(text.splitlines()[node.end_lineno - 1].encode()) if note else node.end_col_offset
        edits.append((node.lineno, node.col_offset, node.end_lineno, end, block))
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    for first, start, last, end, new in sorted(edits, reverse=True):
        tail = lines[last - 1][end:]
        lines[first - 1] = lines[first - 1][:start] + new.encode() + tail
        lines[first:last] = [b""] * (last - first)
    return b"".join(lines).decode()


def swap(scope, name, old, names, whole, edits) -> set[str]:
    """Rename the uses of an imported module; returns the modules that they are in now."""
    homes = set()
    for node in ast.walk(scope):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == name
        ):
            home, attribute = names.get((old, node.attr), (whole.get(old, old), node.attr))
            homes.add(home)
            value = node.value
            base = home.rpartition(".")[2]
            edits.append(
                (value.lineno, value.col_offset, value.end_lineno, value.end_col_offset, base)
            )
            if attribute != node.attr:
                edits.append(
                    (
                        node.end_lineno,
                        node.end_col_offset - len(node.attr),
                        node.end_lineno,
                        node.end_col_offset,
                        attribute,
                    )
                )
    attributes = {id(n.value) for n in ast.walk(scope) if isinstance(n, ast.Attribute)}
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and node.id == name and id(node) not in attributes:
            homes.add(whole.get(old, old))
            base = whole.get(old, old).rpartition(".")[2]
            edits.append((node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, base))
    return homes or {whole.get(old, old)}


def new_imports(module: str, aliases, names, whole, used) -> list[str] | None:
    """Return the new import statements for one old one, None where it stays."""
    if module != "vitzoo" and not module.startswith("vitzoo."):
        return None
    old = module.removeprefix("vitzoo").strip(".")
    found, changed = [], False
    for alias in aliases:
        inner = f"{old}.{alias.name}" if old else alias.name
        public = not old and alias.name in PUBLIC and not alias.asname and not used
        moved = inner in whole or used.get(alias.name, {inner}) != {inner}
        if moved and not (old, alias.name) in names and not public:
            changed = True
            for home in sorted(used.get(alias.name, {whole.get(inner, inner)})):
                package, _, base = home.rpartition(".")
                found.append(
                    f"from vitzoo{'.' + package if package else ''} import {base}{as_(alias)}"
                )
        elif (old, alias.name) in names and not (old == "formats"):
            changed = True
            home, name = names[old, alias.name]
            found.append(f"from vitzoo.{home} import {name}{as_(alias)}")
        else:
            found.append(f"from {module} import {alias.name}{as_(alias)}")
    return found if changed else None


def rewrite_lines(text: str, names, whole) -> str:
    """Rewrite one-line imports in templates and documents."""

    def line(match: re.Match[str]) -> str:
        aliases = [ast.alias(*(p.strip().split(" as ") + [None])[:2]) for p in match[3].split(",")]
        inner = match[2].removeprefix("vitzoo").strip(".")
        new = new_imports(match[2], aliases, names, whole, {})
        if new is None or any(f"{inner}.{alias.name}" in whole for alias in aliases):
            return match[0]
        return match[1] + ("; " if match[1].strip(" >") else "\n" + match[1]).join(new)

    pattern = r"((?:^|[\"';])[ >]*)from (vitzoo\.[\w.]+) import ([\w, ]+?)(?=$|;|\"|'|\\n)"
    return re.sub(pattern, line, text, flags=re.M)


def rewrite_dotted(text: str, names, whole) -> str:
    """Rewrite `vitzoo.old`, `vitzoo.old.name` and `vitzoo.old:name` outside import statements."""
    fresh = {home for home, _ in names.values()}

    def dotted(match: re.Match[str]) -> str:
        before, path, separator, name = match[2], match[3], match[4] or "", match[5] or ""
        loaded = text[max(0, match.start() - 14) : match.start()].endswith(
            ("import_module(", "sys.modules[")
        )
        if match[1] or (path in PUBLIC and not loaded):
            return match[0]
        if f"{path}.{name}" in fresh:
            return match[0]
        if (path, name) in names and name:
            home, other = names[path, name]
            return f"{before}vitzoo.{home}{separator}{other}"
        if path in whole:
            return f"{before}vitzoo.{whole[path]}{separator}{name}"
        return match[0]

    pattern = (
        r"(^[ \t>]*from )?(?<![\w/.-])([\"']?)vitzoo\.((?:formats\.)?[a-z_]+)"
        r"(?:([.:])([A-Za-z_]\w*))?(?![\w/])"
    )
    return re.sub(pattern, dotted, text, flags=re.M)


def module_of(part: str) -> str:
    return part.partition(":")[0]


def path_of(module: str) -> Path:
    base = ROOT / "vitzoo" / module.replace(".", "/")
    file = base.with_suffix(".py")
    return base / "__init__.py" if not file.exists() and module == "formats" else file


def git_move(old: str, new: str | None) -> None:
    source = path_of(old)
    if new is None:
        raise SystemExit(f"{old} is empty, and no module takes its place")
    target = path_of(new)
    if target.exists():
        git("rm", "-q", "-f", source)
    else:
        # A module whose name becomes a folder has to go first.
        aside = source.with_name(f"{source.stem}__old.py")
        git("mv", source, aside)
        target.parent.mkdir(exist_ok=True)
        git("mv", aside, target)


def files() -> list[Path]:
    listed = git("ls-files", "-co", "--exclude-standard").splitlines()
    endings = (".py", ".md", ".toml", ".tmpl", ".yml")
    return [
        ROOT / f
        for f in listed
        if f.endswith(endings)
        and f != "relayout.py"
        and (ROOT / f).is_file()
        and not (ROOT / f).is_symlink()
        and f != "CHANGELOG.md"
    ]


def git(*args) -> str:
    done = subprocess.run(["git", *map(str, args)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {args}: {done.stderr}")
    return done.stdout


def collapse(path: Path) -> None:
    """Write imports without comments on one line, for the formatter to break them anew."""
    text = path.read_text("utf-8")
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.end_lineno > node.lineno:
            if "#" not in "".join(lines[node.lineno - 1 : node.end_lineno]):
                one = " " * node.col_offset + ast.unparse(node) + "\n"
                lines[node.lineno - 1 : node.end_lineno] = [one] + [""] * (
                    node.end_lineno - node.lineno
                )
    path.write_text("".join(lines), "utf-8")


def tidy(touched: list[Path]) -> None:
    ruff = ROOT / ".venv/bin/ruff"
    where = ["vitzoo", "plugins", "tests", "docs", "conftest.py"]
    subprocess.run([ruff, "check", "-q", "--fix", "--select", "F401,I001,F811", *where], cwd=ROOT)
    for path in touched:
        collapse(path)
    subprocess.run([ruff, "check", "-q", "--fix", "--select", "I001", *where], cwd=ROOT)
    subprocess.run([ruff, "format", "-q", *where], cwd=ROOT)
    subprocess.run(
        [ruff, "check", "--select", "F821,F811,E402,F401", "--output-format", "concise", *where],
        cwd=ROOT,
    )


if __name__ == "__main__":
    main(sys.argv[1])
