"""Ray Data: networks as a step of a pipeline of many workers (extra `ray`)."""

from __future__ import annotations

from vitzoo.ray.embedder import Embedder as Embedder
