"""A plugin of pytest that runs timm's tests of models on networks of vitzoo: `-p timm_models`.

timm's `tests/test_models.py` runs each test on the names that `timm.list_models` returns when the
file is imported. `.ci/nightly timm` takes the file from timm's sdist.

Of the tests that timm runs on every network, these are left out:

- `test_model_inference`: it downloads expected outputs of networks of timm.
- `test_model_default_cfgs`: for networks whose features are maps; timm leaves its Vision
  Transformers out, too, and tests them by `test_model_default_cfgs_non_std`.
- `test_model_forward_torchscript`, `test_model_forward_fx_torchscript`: TorchScript, deprecated by
  torch, cannot compile vitzoo's networks, and `scriptable=True` is refused.

All other tests of the file are on networks that they name, or on parts of timm.
"""

from __future__ import annotations

import os

import pytest

import vitzoo

# One of each kind: head, pool, positions, norms, registers and patch embedder. Images of at most
# 224 px, since timm skips some tests of larger networks.
NETWORKS = [
    "vitzoo_vit_digits",
    "vitzoo_vit_ti16",
    "vitzoo_beit_beit_b16",
    "vitzoo_clip_vit_xs16",
    "vitzoo_deit_deit_ti16_distilled",
    "vitzoo_dino_vit_s16",
    "vitzoo_eva02_vit_ti14",
    "vitzoo_hybrid_r_vit_ti16",
    "vitzoo_rope_vit_vit_s16_axial",
    "vitzoo_siglip_vit_b16",
]
PRETRAINED = ["vitzoo_vit_digits"]  # its weights need no network
TESTS = {
    "test_model_forward",
    "test_model_backward",
    "test_model_default_cfgs_non_std",
    "test_model_load_pretrained",
    "test_model_features_pretrained",
    "test_model_forward_features",
    "test_model_forward_intermediates_features",
    "test_model_forward_intermediates",
    "test_prune_intermediate_layers_contract",
    "test_model_forward_fx",
    "test_model_backward_fx",
}


def pytest_configure() -> None:
    """Let the file see vitzoo's names when it is imported."""
    import timm

    os.environ.pop("GITHUB_ACTIONS", None)  # there, the file has fewer tests
    vitzoo.register_in_timm()
    timm.list_models = lambda *_, pretrained=False, **__: PRETRAINED if pretrained else NETWORKS


def pytest_collection_modifyitems(config, items) -> None:
    """Keep the tests above; each of them must be there."""
    import timm

    chosen = [item for item in items if item.originalname in TESTS]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen
    if missing := TESTS - {item.originalname for item in chosen}:
        raise pytest.UsageError(
            f"timm {timm.__version__} has no tests {', '.join(sorted(missing))}"
        )


def pytest_sessionfinish(session) -> None:
    """Let the run fail if a test was skipped."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
