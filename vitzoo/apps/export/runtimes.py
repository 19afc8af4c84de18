"""Imports of onnxruntime and openvino that send nothing.

Imported as usual, both report to their makers: onnxruntime 1.29 and newer keep an identifier of the
device in the user's home folder, and openvino asks www.google-analytics.com.
"""

from __future__ import annotations

import os
import sys
from typing import Any

SWITCH = "ORT_DISABLE_TELEMETRY"  # onnxruntime reads it once, when it is imported
TELEMETRY = "openvino_telemetry"


def import_onnxruntime() -> Any:
    """Return onnxruntime, without telemetry unless the program has imported it before."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "1"
    try:
        import onnxruntime
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before
    return onnxruntime


def import_openvino() -> Any:
    """Return openvino, without telemetry unless the program has imported it before.

    openvino has a substitute for its telemetry package, for environments without that package.
    """
    if "openvino" not in sys.modules:
        before = sys.modules.get(TELEMETRY)
        sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # the import of it fails
        try:
            import openvino
        finally:
            del sys.modules[TELEMETRY]
            if before is not None:
                sys.modules[TELEMETRY] = before
    import openvino

    return openvino
