"""What a Predictor does on CUDA alone: without it, equal fingerprints could give other bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitzoo.apps.predict.arithmetic import changed_settings
from vitzoo.apps.predict.outputs import Outputs
from vitzoo.errors import InvalidOption


class OutputsOnCuda(Outputs):
    """Results of a network on CUDA, without kernels that are chosen by their time."""

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Map (b, c, h, w) images to results by name, each (b, ...).

        Raises:
            InvalidOption: as `check_kernels`.
        """
        check_kernels()
        return super().forward(images)


def outputs_on(device: torch.device) -> type[Outputs]:
    """Return the class that computes the results of a Predictor on a device."""
    return OutputsOnCuda if device.type == "cuda" else Outputs


def settings_on(device: torch.device) -> dict[str, Any]:
    """Return the settings of torch in the fingerprint of a Predictor.

    Raises:
        InvalidOption: as `check_kernels`.
    """
    if device.type == "cuda":
        check_kernels()
    return changed_settings(device)


def check_kernels() -> None:
    """Raise InvalidOption if torch chooses kernels on CUDA by their time.

    The setting is one of the whole process. It is not changed here, because other threads compute.
    """
    names = []
    if torch.backends.cudnn.benchmark:
        names.append("torch.backends.cudnn.benchmark is True; set it to False")
    if torch.cuda.tunable.is_enabled():
        names.append(
            "TunableOp is enabled; unset PYTORCH_TUNABLEOP_ENABLED, or call "
            "torch.cuda.tunable.enable(False)"
        )
    if names:
        raise InvalidOption(
            "a Predictor promises the same bytes in each process, and on CUDA kernels that are "
            f"chosen by their time can give others: {'; '.join(names)}"
        )
