"""Names: what is registered, and what a name means.

Bare names are the core's, `namespace/name` a plugin's, and `local/name` the user's own file,
which `VITZOO_REGISTRY` points to. Nothing here imports torch or the code of a plugin's parts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from vitzoo.catalogue import Contribution, Variant, Weights
from vitzoo.errors import RegistryError, UnknownName, did_you_mean
from vitzoo.manifest import ManifestPlugin, read_manifest
from vitzoo.plugins import CORE, LOCAL, PluginHost, PluginInfo
from vitzoo.schema import describe as describe_value

KINDS = {
    "vitzoo_patch_embedders": "patch embedder",
    "vitzoo_position_embeddings": "position embedding",
    "vitzoo_heads": "head",
    "vitzoo_drop_path_policies": "drop-path policy",
    "vitzoo_checkpoint_formats": "checkpoint format",
}


class Registry:
    """All names, after discovery.

    Args:
        local: the user's own registry file, None for none.
    """

    def __init__(self, local: Path | None = None) -> None:
        self.host = PluginHost()
        self._lock = threading.RLock()
        self.variants: dict[str, Variant] = {}
        self.aliases: dict[str, str] = dict(self.host.core.aliases)
        self.parts: dict[str, dict[str, tuple[str, Contribution]]] = {
            kind: {} for kind in KINDS.values()
        }
        for namespace, info in list(self.host.infos.items()):
            if info.state in ("core", "loaded"):
                self._collect(namespace)
        if local is not None:
            self._read_local(local)

    def variant(self, name: str) -> Variant:
        """Return the variant that `name` means, following aliases.

        Raises:
            UnknownName: nothing is registered under it; the nearest names are suggested.
            PluginError: the plugin it belongs to cannot be used.
        """
        if not isinstance(name, str):
            raise UnknownName(f"the name of a variant is a string, got {describe_value(name)}")
        self._load_namespace_of(name)
        name = self.aliases.get(name, name)
        if name not in self.variants:
            raise UnknownName(self._unknown_variant(name))
        return self.variants[name]

    def match(self, patterns: Iterable[str]) -> list[Variant]:
        """Return the variants whose names match a shell-style pattern.

        A pattern inside the namespace of a lazy plugin (`acme/*`) imports that plugin.
        """
        patterns = list(patterns)
        for pattern in patterns:
            self._load_namespace_of(pattern)
        return [
            variant
            for name, variant in self.variants.items()
            if any(fnmatchcase(name, pattern) for pattern in patterns)
        ]

    def part(self, kind: str, name: str) -> Any:
        """Return the constructor registered for a part, importing it now."""
        namespace, row = self.contribution(kind, name)
        return self.host.import_target(namespace, row.target)

    def contribution(self, kind: str, name: str) -> tuple[str, Contribution]:
        """Return (namespace, contribution) of a part without importing its code."""
        self._load_namespace_of(name)
        rows = self.parts[kind]
        namespace, slash, _ = name.partition("/")
        if slash and namespace not in self.host.infos:
            near = did_you_mean(namespace, self.host.infos)
            raise UnknownName(
                f"unknown {kind} {name!r}: no plugin {namespace!r} is installed{near}"
            )
        if name not in rows:
            near = did_you_mean(name, rows)
            raise UnknownName(
                f"unknown {kind} {name!r}{near or '; known: ' + ', '.join(sorted(rows))}"
            )
        return rows[name]

    def plugins(self) -> list[PluginInfo]:
        """Return every plugin and its state, the core first."""
        return list(self.host.infos.values())

    def known_elsewhere(self, name: str) -> list[tuple[str, Variant, Weights | None]]:
        """Return (library, variant, weights) for a name of timm, torchvision or another library.

        A timm tag (`vit_base_patch16_224.augreg_in21k`) also picks the weights of that name.
        """
        architecture, _, tag = name.partition(".")
        found: list[tuple[str, Variant, Weights | None]] = []
        for variant in self.variants.values():
            for library, theirs in variant.known_as:
                if theirs in (name, architecture):
                    weights = next((w for w in variant.weights if w.name == tag), None)
                    found.append((library, variant, weights))
        return found

    def _elsewhere(self, name: str) -> str:
        """Say what a name of another library is here, empty if it is none."""
        elsewhere = self.known_elsewhere(name)
        if not elsewhere:
            return ""
        library, variant, weights = elsewhere[0]
        tag = name.partition(".")[2]
        if tag and weights is None:
            names = ", ".join(row.name for row in variant.weights) or "none"
            return (
                f"unknown variant {name!r}: its network is {variant.name!r} here, but the weights "
                f"{tag!r} of {library} are not registered; registered: {names}"
            )
        call = f"vitzoo.create({variant.name!r}"
        call += f", weights={weights.name!r})" if weights else ")"
        return f"unknown variant {name!r}: that is the name in {library}; here it is {call}"

    def _collect(self, namespace: str) -> None:
        plugin = self.host.manager.get_plugin(namespace)
        if isinstance(plugin, ManifestPlugin) and namespace != CORE:
            self._add_aliases(namespace, plugin.manifest.aliases)
        for hook, row in self.host.rows[namespace]:
            name = row.name if namespace == CORE else f"{namespace}/{row.name}"
            if hook == "vitzoo_variants":
                self._add_variant(name, namespace, row)
            else:
                self.parts[KINDS[hook]][name] = (namespace, row)

    def _add_aliases(self, namespace: str, aliases: Mapping[str, str]) -> None:
        for former, present in aliases.items():
            self.aliases[f"{namespace}/{former}"] = f"{namespace}/{present}"

    def _add_variant(self, name: str, namespace: str, row: Variant) -> None:
        spec = replace(row.spec, variant=name)
        self.variants[name] = replace(row, name=name, spec=spec, namespace=namespace)

    def _read_local(self, path: Path) -> None:
        try:
            manifest = read_manifest(path, package=None, sizes=self.host.core.sizes)
        except RegistryError as error:
            raise RegistryError(
                f"VITZOO_REGISTRY names a file that cannot be used: {error}"
            ) from error
        self.host.infos[LOCAL] = PluginInfo(LOCAL, "loaded", "", "", "", str(path))
        self._add_aliases(LOCAL, manifest.aliases)
        for row in manifest.variants:
            self._add_variant(f"{LOCAL}/{row.name}", LOCAL, row)

    def _load_namespace_of(self, name: str) -> None:
        namespace, slash, _ = name.partition("/")
        if slash and namespace in self.host.infos:
            with self._lock:
                if self.host.load(namespace):
                    self._collect(namespace)

    def _unknown_variant(self, name: str) -> str:
        if elsewhere := self._elsewhere(name):
            return elsewhere
        namespace, slash, _ = name.partition("/")
        if slash and namespace not in self.host.infos:
            near = did_you_mean(namespace, self.host.infos)
            return f"unknown variant {name!r}: no plugin {namespace!r} is installed{near}"
        near = did_you_mean(name, [*self.variants, *self.aliases])
        return f"unknown variant {name!r}{near or '; `vitzoo list` shows all'}"


def registry() -> Registry:
    """Return the registry of this process, read once."""
    return _registry(os.environ.get("VITZOO_REGISTRY", ""))


@lru_cache(maxsize=8)
def _registry(local: str) -> Registry:
    return Registry(Path(local).expanduser() if local else None)


def variants(pattern: str | Iterable[str] = "*", **filters: Any) -> list[Variant]:
    """Return the registered variants that match, sorted as registered.

    Args:
        pattern: shell-style pattern of names, or several; one match suffices.
        filters: values that fields of the variant must have (`depth=12`, `namespace="core"`),
            or functions of the value that must hold (`params=lambda n: n < 1e8`).

    Raises:
        UnknownOption: a filter names no field.

    >>> [v.name for v in variants("vit_b*", embed_dim=768, image_size=384)]
    ['vit_b16_384', 'vit_b32_384']
    """
    from vitzoo.listing import fields, keeps

    matching = registry().match([pattern] if isinstance(pattern, str) else pattern)
    return [variant for variant in matching if keeps(fields(variant), filters)]


def describe(name: str) -> Variant:
    """Return the variant registered under `name`.

    Raises:
        UnknownName: nothing is; the message suggests the nearest names.

    >>> describe("vit_b16").params
    86567656
    """
    return registry().variant(name)


def plugins() -> list[PluginInfo]:
    """Return every plugin with its state, the core first."""
    return registry().plugins()
