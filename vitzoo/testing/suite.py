"""`PluginTests`, which runs every check as a test of pytest, and the fixture `vitzoo_hub`.

The module has no assert statements (PYTEST_DONT_REWRITE), so it may be imported before pytest
loads it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from unittest import SkipTest

import pytest

import vitzoo
from vitzoo.errors import PluginError, did_you_mean
from vitzoo.registry.registry import Registry, registry
from vitzoo.schema.rows import built_of_parts
from vitzoo.testing.checks import (
    CHECKS,
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
from vitzoo.testing.subject import ModuleSubject, Sizes, Subject, require

__tracebackhide__ = True
Options = Mapping[str, Any]
Pair = tuple[str, Any]  # test id, subject
KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD
PARTS = {cls.kind().replace(" ", "_").replace("-", "_"): cls for cls in CHECKS}


def of(argument: str, check: Callable[[Any], None]) -> Callable[..., None]:
    """Return a test that runs a check on each of the plugin's contributions of one kind.

    Args:
        argument: name of the test's argument, a key of `_subjects`; empty for the plugin itself.
        check: takes the contribution, or the namespace of the plugin.
    """

    def test(self: PluginTests, *args: Any, **kwargs: Any) -> None:
        (subject,) = (*args, *kwargs.values()) or (self.namespace,)  # pytest passes a keyword
        if isinstance(subject, Subject):
            if check is not modules.check_constructor and (lacking := subject.lacking):
                raise SkipTest(
                    f"{subject} was not tested, because it needs {', '.join(lacking)}: see the "
                    "failure of test_part_constructor"
                )
            subject = subject.rounded()
        check(subject)

    names = ["self", argument] if argument else ["self"]
    signature = inspect.Signature([inspect.Parameter(n, KEYWORD) for n in names])
    test.__signature__ = signature  # type: ignore[attr-defined]  # pytest reads it
    test.__doc__ = check.__doc__
    return test


class PluginTests:
    """Tests of everything that one plugin contributes; derive a class from it.

    Attributes:
        namespace: of the plugin: the name of its entry point.
        options: options by part, for options without a default; a list of them tests the part with
            each. Keys are registered names such as `acme/overlap`. If parts of two kinds have one
            name, the kind precedes it: `head acme/linear`.
        sizes: `Sizes` of the network by part, if the default sizes do not fit.
        networks: by variant, changes to the spec of its small copy; by checkpoint format, changes
            to the spec of the network whose weights it holds. A list tests several.
        project: folder of the plugin's pyproject.toml; searched above the test file if None.
        archives: whether `test_plugin_archives` builds a wheel and an sdist.
    """

    namespace: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Options | Sequence[Options]]] = {}
    sizes: ClassVar[Mapping[str, Sizes]] = {}
    networks: ClassVar[Mapping[str, Options | Sequence[Options]]] = {}
    project: ClassVar[Path | None] = None
    archives: ClassVar[bool] = True

    test_plugin_loads = of("", whole.check_loads)
    test_plugin_discovery = of("", whole.check_discovery)
    test_plugin_hooks = of("hooks_of", whole.check_hooks)
    test_plugin_in_a_spawned_worker = of("", whole.check_spawned)
    test_plugin_is_offline = of("", whole.check_offline)
    test_plugin_can_be_disabled = of("", whole.check_disabled)

    def test_plugin_settings(self) -> None:
        """The keys of `options`, `sizes` and `networks` are names of the plugin's contributions."""
        known, zoo = {row.name for row in _variants(type(self))}, registry()
        for kind in zoo.parts:
            known |= {said for n in _names(type(self), kind, zoo) for said in (n, f"{kind} {n}")}
        for table in ("options", "sizes", "networks"):
            for name in getattr(self, table):
                near = did_you_mean(name, known) or f"; it has: {', '.join(sorted(known))}"
                problem = f"{type(self).__name__}.{table} names {name!r}{near}"
                require(name in known, problem, "use the registered name, with the namespace")

    def test_plugin_archives(self, tmp_path: Path) -> None:
        """An sdist of the project, and a wheel that is built from it, contain the manifest, the
        modules that it names and the bundled weights. The wheel has the entry point.
        """
        test = Path(inspect.getfile(type(self)))
        project = self.project or archives.project_of(self.namespace, test)
        archives.check_archives(self.namespace, project, tmp_path)

    test_part_constructor = of("made", modules.check_constructor)
    test_part_options = of("made", modules.check_options)
    test_part_protocol = of("part", modules.check_protocol)
    test_part_instances = of("part", modules.check_instances)
    test_part_initialisation = of("part", modules.check_initialisation)
    test_part_weight_decay = of("part", modules.check_weight_decay)
    test_part_gradients = of("part", modules.check_gradients)
    test_part_dtypes = of("part", modules.check_dtypes)
    test_part_meta = of("part", modules.check_meta)
    test_part_compiles = of("part", modules.check_compiles)
    test_part_copies = of("part", modules.check_copies)
    test_part_saved = of("part", modules.check_saved)

    test_patch_embedder_grid = of("patch_embedder", patch_embed.check_grid)
    test_patch_embedder_order = of("patch_embedder", patch_embed.check_order)
    test_patch_embedder_sizes = of("patch_embedder", patch_embed.check_sizes)
    test_patch_embedder_input_conv = of("patch_embedder", patch_embed.check_input_conv)

    test_position_embedding_table = of("position_embedding", positions.check_table)
    test_position_embedding_tokens = of("position_embedding", positions.check_tokens)
    test_position_embedding_resample = of("position_embedding", positions.check_resample)
    test_position_embedding_to_grid = of("position_embedding", positions.check_to_grid)

    test_pool_attributes = of("pool", pools.check_attributes)
    test_pool_outputs = of("pool", pools.check_outputs)
    test_pool_reads = of("pool", pools.check_reads)
    test_pool_network = of("pool", pools.check_network)

    test_head_outputs = of("head", heads.check_outputs)
    test_head_no_classes = of("head", heads.check_no_classes)
    test_head_reset = of("head", heads.check_reset)

    test_drop_path_policy_rates = of("drop_path_policy", drop_path.check_rates)
    test_drop_path_policy_meta = of("drop_path_policy", drop_path.check_meta)
    test_drop_path_policy_trains = of("drop_path_policy", drop_path.check_trains)

    test_checkpoint_format_protocol = of("checkpoint_format", formats.check_protocol)
    test_checkpoint_format_matches = of("checkpoint_format", formats.check_matches)
    test_checkpoint_format_round_trip = of("checkpoint_format", formats.check_round_trip)
    test_checkpoint_format_meta = of("checkpoint_format", formats.check_meta)
    test_checkpoint_format_unknown_keys = of("checkpoint_format", formats.check_unknown_keys)
    test_checkpoint_format_executes_nothing = of(
        "checkpoint_format", formats.check_executes_nothing
    )
    test_checkpoint_format_overrides = of("checkpoint_format", formats.check_overrides)

    test_variant_params = of("variant", variants.check_params)
    test_variant_default = of("variant", variants.check_default)
    test_variant_spec = of("python_variant", variants.check_spec)
    test_variant_runs = of("variant", variants.check_runs)
    test_variant_network = of("built", variants.check_network)
    test_variant_lora = of("architecture", variants.check_lora)
    test_weights_row = of("row", weights.check_row)
    test_weights_bundled = of("bundled", weights.check_bundled)
    test_weights_served = of("hosted", weights.check_served)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test with the argument `head` for each head of the plugin; likewise the others."""
        if not self.namespace:
            fix = "set namespace to the name of the plugin's entry point"
            raise pytest.UsageError(f"{type(self).__name__}: {fix}")
        metafunc.config.pluginmanager.import_plugin("vitzoo.testing")  # deselects empty tests
        subjects = _subjects(type(self), registry())  # type: ignore[arg-type]  # is hashable
        for argument, found in subjects.items():
            if argument in metafunc.fixturenames:
                pairs = found or [("none", None)]
                params = [pytest.param(subject, id=name) for name, subject in pairs]
                metafunc.parametrize(argument, params)


@lru_cache(maxsize=1)  # pytest collects the classes one after the other
def _subjects(tests: type[PluginTests], zoo: Registry) -> dict[str, Sequence[Pair]]:
    """Return (test id, subject) pairs by the name of the argument that takes them."""
    rows = _variants(tests)
    parts = {argument: list(_parts(tests, cls, zoo)) for argument, cls in PARTS.items()}
    made = [pair for pairs in parts.values() for pair in pairs]
    names = _names(tests, formats.KIND, zoo)
    layouts = _with_networks(tests, names, lambda *args: formats.FormatSubject(None, *args))
    every = _with_networks(tests, [row.name for row in rows], variants.VariantSubject)
    kinds = variants.one_of_each(tests.namespace) if rows else []
    # Specs of a manifest come from TOML, and a manifest has no hook functions.
    in_python = isinstance(zoo.host.manager.get_plugin(tests.namespace), ModuleType)
    files = [
        (file, (f"{row.name}:{file.name}", weights.WeightsSubject(row.name, file.name)))
        for row in rows
        for file in row.weights
    ]
    architectures = [pair for pair in every if pair[1].name in kinds]
    return {
        **parts,
        "made": made,
        "part": [pair for pair in made if isinstance(pair[1], ModuleSubject)],
        "checkpoint_format": layouts,
        "variant": every,
        "architecture": architectures,
        "built": [pair for pair in architectures if not built_of_parts(pair[1].row)],
        "python_variant": every if in_python else [],
        "hooks_of": [(tests.namespace, tests.namespace)] if in_python else [],
        "row": [pair for _, pair in files],
        "bundled": [pair for file, pair in files if file.bundled],
        "hosted": [*{file.pin: pair for file, pair in reversed(files) if file.repo}.values()],
    }


def _with_networks(
    tests: type[PluginTests], names: Iterable[str], subject: Callable[[str, Options], Any]
) -> list[Pair]:
    """Return a subject for each entry of the `networks` table."""
    return [
        (name if number == 1 else f"{name}-{number}", subject(name, changes))
        for name in names
        for number, changes in enumerate(_several(tests.networks.get(name, {})), 1)
    ]


def _several(given: Options | Sequence[Options]) -> Sequence[Options]:
    return [given] if isinstance(given, Mapping) else given


def _parts(tests: type[PluginTests], cls: type[Subject], zoo: Registry) -> Iterator[Pair]:
    for name in _names(tests, cls.kind(), zoo):
        full = f"{cls.kind()} {name}"
        several = _several(tests.options.get(full, tests.options.get(name, {})))
        sizes = tests.sizes.get(full, tests.sizes.get(name, Sizes()))
        ambiguous = sum(name in rows for rows in zoo.parts.values()) > 1
        for options in several:
            said = [f"{key}={value}" for key, value in options.items() if len(several) > 1]
            label = "-".join([full if ambiguous else name, *said])
            yield label, cls(None, name, sizes, options)


def _names(tests: type[PluginTests], kind: str, zoo: Registry) -> list[str]:
    """Return the registered names of a loaded plugin's parts of one kind."""
    return [name for name, (owner, _) in zoo.parts[kind].items() if owner == tests.namespace]


def _variants(tests: type[PluginTests]) -> list[vitzoo.Variant]:
    """Load a plugin and return its variants; none if it is broken: test_plugin_loads reports it."""
    try:
        registry().host.load(tests.namespace)
    except PluginError:
        return []
    return vitzoo.variants(namespace=tests.namespace)


def _is_empty(item: pytest.Item) -> bool:
    """Tell whether a test has nothing to check, or builds archives that the class switches off."""
    cls = getattr(item, "cls", None)
    if not (inspect.isclass(cls) and issubclass(cls, PluginTests)):
        return False
    params = getattr(getattr(item, "callspec", None), "params", {})
    off = item.name == "test_plugin_archives" and not cls.archives
    return off or any(value is None for value in params.values())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that have nothing to check."""
    if empty := [item for item in items if _is_empty(item)]:
        items[:] = [item for item in items if not _is_empty(item)]
        config.hook.pytest_deselected(items=empty)


@pytest.fixture
def vitzoo_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub on loopback; this process downloads from it alone, into a store of the test."""
    for name in [name for name in os.environ if name.startswith("VITZOO_")]:
        monkeypatch.delenv(name)
    with weights.listening(tmp_path / "vitzoo") as hub:
        yield hub
