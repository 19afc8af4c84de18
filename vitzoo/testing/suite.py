"""`PluginTests`: the checks as pytest tests, one for each contribution and check; and fixtures.

It has no assert statements (PYTEST_DONT_REWRITE), so it may be imported before pytest loads it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

import vitzoo
from vitzoo.errors import PluginError, did_you_mean
from vitzoo.plugin.info import CORE
from vitzoo.registry.registry import registry
from vitzoo.schema.rows import Weights
from vitzoo.testing import (
    archives,
    drop_path,
    formats,
    heads,
    modules,
    patch_embed,
    plugin as whole,
    pools,
    positions,
    variants,
    weights,
)
from vitzoo.testing.hub import Hub
from vitzoo.testing.subject import ModuleSubject, Sizes, Subject, fail, require

Options = Mapping[str, Any]
PARTS: dict[str, type[Subject]] = {
    "patch_embedder": patch_embed.PatchEmbedder,
    "position_embedding": positions.PositionEmbedding,
    "pool": pools.Pool,
    "head": heads.Head,
    "drop_path_policy": drop_path.DropPathPolicy,
}
MODULES = ("patch_embedder", "position_embedding", "pool", "head")
KINDS_IN_WORDS = {
    "made": "part",
    "hooks_of": "module of hooks",
    "python_variant": "variant from a module of hooks",
    "row": "weights",
    "bundled": "bundled weights",
    "hosted": "weights on the Hub",
}


class PluginTests:
    """Tests of everything that one plugin contributes; derive a class from it and say which.

    Attributes:
        namespace: of the plugin: the name of its entry point.
        options: sample options by part, where they have no default, or several to try. Names are
            the registered ones, `acme/overlap`; where parts of two kinds have one name, with the
            kind in front, `head acme/linear`.
        sizes: by part, numbers of the network it is checked in, where the usual ones do not fit.
        networks: by variant, changes to its small copy; by format, to the network it holds. Either
            may be a list of several to try.
        project: folder with the plugin's pyproject.toml; looked for above the test's file.
        archives: whether wheel and sdist are built and looked into.
    """

    namespace: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Options | Sequence[Options]]] = {}
    sizes: ClassVar[Mapping[str, Sizes]] = {}
    networks: ClassVar[Mapping[str, Options | Sequence[Options]]] = {}
    project: ClassVar[Path | None] = None
    archives: ClassVar[bool] = True

    @pytest.fixture(autouse=True)
    def _has_samples(self, request: pytest.FixtureRequest) -> None:
        """Let `test_part_constructor` alone say which options have no default and no sample."""
        params = getattr(request.node, "callspec", None)
        for subject in params.params.values() if params else ():
            if request.node.originalname == "test_part_constructor" or not isinstance(
                subject, Subject
            ):
                continue
            if lacking := _lacking(subject):
                pytest.skip(f"{subject} needs {', '.join(lacking)}: see test_part_constructor")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give each test that asks for a `head`, a `variant`, ... every one of the plugin's."""
        if not self.namespace:
            raise pytest.UsageError(f"{type(self).__name__}: set namespace = 'the plugin's'")
        for argument, found in _subjects(self).items():
            if argument in metafunc.fixturenames:
                kind = KINDS_IN_WORDS.get(argument, argument.replace("_", " "))
                nothing = f"nothing to check: {self.namespace} contributes no {kind}"
                none = [pytest.param(None, marks=pytest.mark.skip(nothing), id="none")]
                params = [pytest.param(subject, id=name) for name, subject in found]
                metafunc.parametrize(argument, params or none)

    # The plugin as a whole.

    def test_plugin_loads(self) -> None:
        """It is installed, loaded and contributes something."""
        whole.check_loads(self.namespace)

    def test_plugin_settings(self) -> None:
        """The tables of this class name contributions that exist."""
        known = _known(self.namespace)
        for table in ("options", "sizes", "networks"):
            for name in getattr(self, table):
                near = did_you_mean(name, known) or f"; it has: {', '.join(sorted(known))}"
                require(
                    name in known,
                    f"{type(self).__name__}.{table} names {name!r}{near}",
                    "names are the registered ones, with the namespace",
                )

    def test_plugin_discovery(self) -> None:
        """Listing imports neither the plugin nor torch."""
        whole.check_discovery(self.namespace)

    def test_plugin_hooks(self, hooks_of: str) -> None:
        """Hook functions of a module are marked, known and annotated rightly."""
        whole.check_hooks(hooks_of)

    def test_plugin_in_a_spawned_worker(self) -> None:
        """It works in a spawned worker without registration code."""
        whole.check_spawned(self.namespace)

    def test_plugin_is_offline(self) -> None:
        """It opens no socket."""
        whole.check_offline(self.namespace)

    def test_plugin_can_be_disabled(self) -> None:
        """`VITZOO_DISABLE_PLUGINS` hides it."""
        if self.namespace == CORE:
            pytest.skip("nothing to check: the core cannot be disabled")
        whole.check_disabled(self.namespace)

    def test_plugin_archives(self, tmp_path: Path) -> None:
        """Wheel and sdist hold the manifest, the code and bundled files."""
        if not self.archives:
            pytest.skip(f"{type(self).__name__}.archives is False: no wheel, no sdist was checked")
        start = Path(inspect.getfile(type(self)))
        project = self.project or archives.project_of(self.namespace, start)
        if project is None:
            fail(
                f"no pyproject.toml above {start} declares the namespace {self.namespace!r}",
                "set project = Path(...) in the test class, or archives = False",
            )
        archives.check_archives(self.namespace, project, tmp_path)

    # Every part that is a module.

    def test_part_constructor(self, made: Subject) -> None:
        """Keywords only, each of them named."""
        modules.check_constructor(made)

    def test_part_options(self, made: Subject) -> None:
        """Options are data."""
        modules.check_options(made)

    def test_part_initialisation(self, part: ModuleSubject) -> None:
        """Parameters are drawn from torch's global generator."""
        modules.check_initialisation(part)

    def test_part_weight_decay(self, part: ModuleSubject) -> None:
        """`no_weight_decay` names parameters of the part."""
        modules.check_weight_decay(part)

    def test_part_gradients(self, part: ModuleSubject) -> None:
        """A loss reaches every parameter."""
        modules.check_gradients(part)

    def test_part_dtypes(self, part: ModuleSubject) -> None:
        """The result has the network's type."""
        modules.check_dtypes(part)

    def test_part_meta(self, part: ModuleSubject) -> None:
        """Building on `meta` costs no memory, and after loading nothing is left there."""
        modules.check_meta(part)

    def test_part_compiles(self, part: ModuleSubject) -> None:
        """`torch.compile` makes one graph of it."""
        modules.check_compiles(part)

    def test_part_copies(self, part: ModuleSubject) -> None:
        """It can be copied and pickled."""
        modules.check_copies(part)

    def test_part_instances(self, part: ModuleSubject) -> None:
        """Instances share nothing, and samples do not mix."""
        modules.check_instances(part)

    def test_part_saved(self, part: Subject) -> None:
        """A saved network with it is restored."""
        modules.check_saved(part)

    # Patch embedders.

    def test_patch_embedder_protocol(self, patch_embedder: patch_embed.PatchEmbedder) -> None:
        """It has what the protocol names."""
        patch_embed.check_protocol(patch_embedder)

    def test_patch_embedder_grid(self, patch_embedder: patch_embed.PatchEmbedder) -> None:
        """The grid agrees with the tokens."""
        patch_embed.check_grid(patch_embedder)

    def test_patch_embedder_order(self, patch_embedder: patch_embed.PatchEmbedder) -> None:
        """Tokens come row by row."""
        patch_embed.check_order(patch_embedder)

    def test_patch_embedder_sizes(self, patch_embedder: patch_embed.PatchEmbedder) -> None:
        """Sizes that do not fit are refused."""
        patch_embed.check_sizes(patch_embedder)

    def test_patch_embedder_input_conv(self, patch_embedder: patch_embed.PatchEmbedder) -> None:
        """`input_conv` names the kernel that reads the image."""
        patch_embed.check_input_conv(patch_embedder)

    # Position embeddings.

    def test_position_embedding_protocol(
        self, position_embedding: positions.PositionEmbedding
    ) -> None:
        """It has what the protocol names."""
        positions.check_protocol(position_embedding)

    def test_position_embedding_table(
        self, position_embedding: positions.PositionEmbedding
    ) -> None:
        """The table is fresh and fits the grid."""
        positions.check_table(position_embedding)

    def test_position_embedding_tokens(
        self, position_embedding: positions.PositionEmbedding
    ) -> None:
        """Tokens keep their shape, and what is added to the attention fits them."""
        positions.check_tokens(position_embedding)

    def test_position_embedding_resample(
        self, position_embedding: positions.PositionEmbedding
    ) -> None:
        """The table follows another grid."""
        positions.check_resample(position_embedding)

    def test_position_embedding_to_grid(
        self, position_embedding: positions.PositionEmbedding
    ) -> None:
        """Moved to another grid it acts as one built for it."""
        positions.check_to_grid(position_embedding)

    # Pools.

    def test_pool_protocol(self, pool: pools.Pool) -> None:
        """It has what the protocol names."""
        pools.check_protocol(pool)

    def test_pool_outputs(self, pool: pools.Pool) -> None:
        """It gives the vectors it states, for every grid and number of prefix tokens."""
        pools.check_outputs(pool)

    def test_pool_reads(self, pool: pools.Pool) -> None:
        """It reads no token beyond those it states."""
        pools.check_reads(pool)

    def test_pool_network(self, pool: pools.Pool) -> None:
        """A network with it gives the same with and without gradients, at other sizes too."""
        pools.check_network(pool)

    # Heads.

    def test_head_protocol(self, head: heads.Head) -> None:
        """It has what the protocol names."""
        heads.check_protocol(head)

    def test_head_outputs(self, head: heads.Head) -> None:
        """Logits and pre-logits have their shapes."""
        heads.check_outputs(head)

    def test_head_no_classes(self, head: heads.Head) -> None:
        """Without classes the pre-logits come out."""
        heads.check_no_classes(head)

    def test_head_reset(self, head: heads.Head) -> None:
        """`reset` gives a fresh head."""
        heads.check_reset(head)

    # Drop-path policies.

    def test_drop_path_policy_rates(self, drop_path_policy: drop_path.DropPathPolicy) -> None:
        """One rate for each block."""
        drop_path.check_rates(drop_path_policy)

    def test_drop_path_policy_meta(self, drop_path_policy: drop_path.DropPathPolicy) -> None:
        """Rates do not depend on where a network is built."""
        drop_path.check_meta(drop_path_policy)

    def test_drop_path_policy_trains(self, drop_path_policy: drop_path.DropPathPolicy) -> None:
        """A network trains with it."""
        drop_path.check_trains(drop_path_policy)

    # Checkpoint formats.

    def test_checkpoint_format_protocol(self, checkpoint_format: formats.FormatSubject) -> None:
        """It is a `vitzoo.formats.Format`."""
        formats.check_protocol(checkpoint_format)

    def test_checkpoint_format_matches(self, checkpoint_format: formats.FormatSubject) -> None:
        """It matches its own files alone."""
        formats.check_matches(checkpoint_format)

    def test_checkpoint_format_round_trip(self, checkpoint_format: formats.FormatSubject) -> None:
        """What it writes comes back bit by bit."""
        formats.check_round_trip(checkpoint_format)

    def test_checkpoint_format_meta(self, checkpoint_format: formats.FormatSubject) -> None:
        """It works without data."""
        formats.check_meta(checkpoint_format)

    def test_checkpoint_format_unknown_keys(self, checkpoint_format: formats.FormatSubject) -> None:
        """Unknown keys stay."""
        formats.check_unknown_keys(checkpoint_format)

    def test_checkpoint_format_executes_nothing(
        self, checkpoint_format: formats.FormatSubject
    ) -> None:
        """Nothing is run because of what a file says."""
        formats.check_executes_nothing(checkpoint_format)

    def test_checkpoint_format_overrides(self, checkpoint_format: formats.FormatSubject) -> None:
        """Overrides are changes to a spec."""
        formats.check_overrides(checkpoint_format)

    # Variants and their weights.

    def test_variant_params(self, variant: variants.VariantSubject) -> None:
        """It has as many parameters as stated."""
        variants.check_params(variant)

    def test_variant_spec(self, python_variant: variants.VariantSubject) -> None:
        """A spec made in Python comes back from TOML and JSON."""
        variants.check_spec(python_variant)

    def test_variant_runs(self, variant: variants.VariantSubject) -> None:
        """A small copy runs and trains."""
        variants.check_runs(variant)

    def test_weights_row(self, row: weights.WeightsSubject) -> None:
        """The row is complete and fits its variant."""
        weights.check_row(row)

    def test_weights_bundled(self, bundled: weights.WeightsSubject) -> None:
        """A bundled file has the bytes of its row."""
        weights.check_bundled(bundled)

    def test_weights_served(self, hosted: weights.WeightsSubject, tmp_path: Path) -> None:
        """A changed byte is refused, for each kind of pin."""
        weights.check_served(hosted, tmp_path)


def _subjects(tests: PluginTests) -> dict[str, list[tuple[str, Any]]]:
    """Return (test id, what is tested) pairs by the name of the argument that takes them."""
    found: dict[str, list[tuple[str, Any]]] = {
        argument: list(_parts(tests, cls)) for argument, cls in PARTS.items()
    }
    found["part"] = [pair for argument in MODULES for pair in found[argument]]
    found["made"] = found["part"] + found["drop_path_policy"]
    found["checkpoint_format"] = [
        (label, formats.FormatSubject(None, name, network))
        for name in _names(tests.namespace, formats.KIND)
        for label, network in _networks(tests, name)
    ]
    rows = _variants(tests.namespace)
    found["variant"] = [
        (label, variants.VariantSubject(row.name, network))
        for row in rows
        for label, network in _networks(tests, row.name)
    ]
    in_python = whole.has_module(tests.namespace)  # a manifest holds what TOML can hold
    found["python_variant"] = found["variant"] if in_python else []
    found["hooks_of"] = [(tests.namespace, tests.namespace)] if in_python else []
    files = [(row, file) for row in rows for file in row.weights]
    by_pin = {file.pin: (row, file) for row, file in reversed(files) if file.repo}
    found["row"] = list(map(_weights, files))
    found["bundled"] = [_weights(pair) for pair in files if not pair[1].repo]
    found["hosted"] = list(map(_weights, by_pin.values()))
    return found


def _weights(pair: tuple[vitzoo.Variant, Weights]) -> tuple[str, weights.WeightsSubject]:
    row, file = pair
    return f"{row.name}:{file.name}", weights.WeightsSubject(row.name, file.name)


def _networks(tests: PluginTests, name: str) -> Iterator[tuple[str, Options]]:
    """Yield (test id, changes to the network) for each entry of the `networks` table."""
    for number, changes in enumerate(_several(tests.networks.get(name, {})), 1):
        yield (name if number == 1 else f"{name}-{number}"), changes


def _several(given: Options | Sequence[Options]) -> list[Options]:
    return [given] if isinstance(given, Mapping) else list(given)


def _parts(tests: PluginTests, cls: type[Subject]) -> Iterator[tuple[str, Subject]]:
    for name in _names(tests.namespace, cls.kind):
        full = f"{cls.kind} {name}"
        given = tests.options.get(full, tests.options.get(name, {}))
        several = _several(given)
        sizes = tests.sizes.get(full, tests.sizes.get(name, Sizes()))
        ambiguous = sum(name in rows for rows in registry().parts.values()) > 1
        for options in several:
            said = "-".join(f"{key}={value}" for key, value in options.items())
            label = full if ambiguous else name
            label = f"{label}-{said}" if said and len(several) > 1 else label
            yield label, cls(None, name, sizes, options)


def _lacking(subject: Subject) -> list[str]:
    try:
        return subject.lacking
    except Exception:  # noqa: BLE001  # whatever it is, the test itself says it
        return []


def _names(namespace: str, kind: str = "") -> list[str]:
    """Return registered names of a plugin: of one kind of part, or of all and its variants."""
    rows = _variants(namespace)  # which loads it
    kinds = [kind] if kind else list(registry().parts)
    parts = [
        name
        for chosen in kinds
        for name, (owner, _) in registry().parts[chosen].items()
        if owner == namespace
    ]
    return parts if kind else [*parts, *(row.name for row in rows)]


def _known(namespace: str) -> set[str]:
    """Return what the tables may name: contributions, those of a kind also with it in front."""
    kinds = [f"{kind} {name}" for kind in registry().parts for name in _names(namespace, kind)]
    return {*_names(namespace), *kinds}


def _variants(namespace: str) -> list[vitzoo.Variant]:
    """Return a plugin's variants; none if it cannot be used, which `test_plugin_loads` says."""
    try:
        vitzoo.variants(f"{namespace}/*")  # which loads it
    except PluginError:
        return []
    return vitzoo.variants(namespace=namespace)


def drop_empty(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Separate tests that have something to test from those that have nothing."""

    def empty(item: pytest.Item) -> bool:
        cls: Any = getattr(item, "cls", None)
        if not inspect.isclass(cls) or not issubclass(cls, PluginTests):
            return False
        params: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        return any(value is None for value in params.values())

    dropped = [item for item in items if empty(item)]
    return [item for item in items if not empty(item)], dropped


@pytest.fixture
def vitzoo_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub on loopback that this process downloads from, into a store of the test's own."""
    for name in [name for name in os.environ if name.startswith("VITZOO_")]:
        monkeypatch.delenv(name)
    with weights.listening(tmp_path / "vitzoo") as hub:
        yield hub


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of kinds that a plugin does not contribute."""
    items[:], dropped = drop_empty(items)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
