"""The processes of `gpu_pipeline.py` that decode: they sleep, and give the pixels of one image."""

from __future__ import annotations

import os
import time

from vitzoo.apps.embed import decode_processes


def slow(decoded):
    """Return a function that decodes the first image, and later sleeps and repeats the result."""
    seconds, kept = float(os.environ["GPU_PIPELINE_DECODE"]), []

    def sleep(*args):
        if not kept:
            kept.append(decoded(*args))
        if seconds:
            time.sleep(seconds)
        return kept[0]

    return sleep


def main():
    """Decode as the processes of `embed`."""
    decode_processes.decoded = slow(decode_processes.decoded)
    decode_processes.main()
