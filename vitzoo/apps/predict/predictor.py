"""`Predictor`: images to labels, logits, embeddings or tokens, the same bytes in every batch."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from vitzoo.apps.predict.batches import batches
from vitzoo.apps.predict.chunk import CHUNK, is_aligned, largest_chunk
from vitzoo.apps.predict.classes import (
    answers_of,
    check_count,
    check_logits,
    class_names,
    sample_of,
)
from vitzoo.apps.predict.computation import Computation, Labels
from vitzoo.apps.predict.decoding import (
    Decoded,
    Input,
    as_list,
    decoded,
    is_image,
    named,
    size_of_bytes,
)
from vitzoo.apps.predict.fingerprint import (
    Fingerprint,
    changes,
    check_unchanged,
    describe_network,
    describe_parts,
    describe_tensors,
    hash_data,
    hash_tensors,
    versions,
)
from vitzoo.apps.predict.given import absolute, fix_of_argument, on_cpu, opened, placed
from vitzoo.apps.predict.grids import (
    MOST_OF_GRID,
    check_inputs,
    check_one_shape,
    held_of,
    in_order,
    input_shapes,
    of_any_size,
)
from vitzoo.apps.predict.on_cuda import outputs_on, settings_on
from vitzoo.apps.predict.one_thread import one_thread
from vitzoo.apps.predict.outputs import LABELS, LOGITS, POOLED, Row
from vitzoo.apps.predict.prediction import Predictions, classified
from vitzoo.apps.predict.stream import Stream, one_by_one, staging
from vitzoo.display import ResultList
from vitzoo.errors import ImageError, IntegrityError, InvalidOption, short_repr
from vitzoo.images.decode import UNNAMED_BYTES
from vitzoo.images.find import LeftOut
from vitzoo.keywords import check_keywords, check_types
from vitzoo.known import transform
from vitzoo.network.activation import usual_activation
from vitzoo.network.device import choose_device, for_others, of_rank, running_on, same_kind
from vitzoo.network.wrappers import network_of
from vitzoo.opening import is_model
from vitzoo.schema.spec import Spec

CPU = "cpu"
TOP = 5  # classes in `labels`
TRAINED = "tensors were changed after they were loaded"


class Predictor:
    """Maps images to labels, logits, embeddings or tokens.

    The network runs in evaluation mode, on chunks of one size (the last one is padded) and with one
    intra-op thread. Therefore the outputs for an image are the same bytes on one machine, next to
    any other images and at any position. Networks in which the position is not known to have no
    effect run on single images. A Predictor can be pickled: a model object with its
    tensors, otherwise as the arguments, and with the size of its chunks. Loading the pickle then
    checks that the weights are the same, and takes the same kind of device. A model that is not the
    network of its spec, or that has hooks, is not pickled.

    Args:
        model: the network, see docs/create.md#which-network. A variant gets its default weights; a
            model of `create` is set to evaluation mode.
        weights: weights to use instead of the default weights, as in `vitzoo.create`.
        outputs: names of the outputs; the default is `pooled`. `labels` (the most probable
            classes, see `model.output_activation`), `logits`, `pooled` (the embedding that the
            classifier reads), and names of `model.features`, such as `blocks.11` (tokens after
            block 11). A network with another builder has the first two, and `pooled` if it has the
            methods `forward_features` and `forward_head` of timm.
        top: number of classes in `labels`. None: 5.
        dtype: floating type of the parameters, such as `torch.bfloat16`. None: that of the model.
            Arrays of bfloat16 and float16 networks are float32.
        device: of the computation. None: that of a model object; otherwise that of VITZOO_DEVICE,
            or the first of `cuda`, `mps` and `cpu` that is here. A default device of torch other
            than the CPU comes before these three. `cuda` is `cuda:N` in process LOCAL_RANK=N of
            torchrun.
        chunk: number of images in a forward pass. None: on the CPU 8 for networks of vitzoo's own
            parts whose widths are multiples of 16, otherwise 1. On CUDA a trial finds it at the
            first use: 8 to 256 by its memory, or 1 if results depend on the position; at most 32
            with native sizes. On MPS it is 1.
        native_size: resize each image to its own size, as `vitzoo.transform(native_size=)` does; a
            chunk has images of one grid of patches. A number is the largest number of patches;
            True: as many as the network has at its image size. None: one size for all images.

    Attributes:
        model: the network.
        outputs: names of the outputs.
        output_activation: how logits become `labels`; empty without this output.
        native_size: largest number of patches of an image, None with one size for all images.
        transform: prepares images.
        largest_input: shape (c, h, w) of the largest input.
        computation: computes chunks.
        before_cast: what `describe_tensors` returns before and after a model object was cast to
            `dtype`; None if it was not.

    Raises:
        InvalidOption: the model has no classifier for `labels` or `logits`, `top` is given without
            `labels`, or a value is not possible.
        UnknownOption: the model has no such output, or Predictor has no such argument.
        VitzooError: `vitzoo.create` cannot create the model.

    >>> import numpy as np
    >>> predictor = Predictor("vit_digits", outputs=("labels", "pooled"), top=1)
    >>> (row,) = predictor([np.zeros((28, 28), np.uint8)])
    >>> row.outputs["pooled"].shape
    (64,)
    """

    @check_keywords(fix_of_argument)
    def __init__(
        self,
        model: str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module,
        *,
        weights: str | os.PathLike[str] | None = None,
        outputs: str | Iterable[str] = (POOLED,),
        top: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        chunk: int | None = None,
        native_size: bool | int | None = None,
    ) -> None:
        check_types("Predictor", weights=(weights, "text or a path or None"))
        check_types("Predictor", outputs=(outputs, "text or an iterable"))
        check_count("top", TOP if top is None else top)
        check_count("chunk", 1 if chunk is None else chunk)
        native = native_size is not None and native_size is not False
        if native:
            transform(model, native_size=native_size)  # raises, before weights are downloaded
        self._request: Any = None
        self._weights_sha256 = self._loaded = ""
        self.before_cast: tuple[dict[str, list[Any]], dict[str, list[Any]]] | None = None
        if is_model(model):
            network = placed(model, weights, dtype, device)
            if dtype is not None and next(network.parameters()).dtype != sample_of(model).dtype:
                self.before_cast = (
                    describe_tensors(network_of(model)),
                    describe_tensors(network_of(network)),
                )
        else:
            self._request = absolute(model, weights)
            name, weights = self._request
            device = choose_device(device)
            network = opened(name, weights=weights, dtype=dtype, device=device)
            self._weights_sha256 = network.load_report.sha256 if network.load_report else ""
            self._loaded = hash_tensors(network)
            usual = torch.get_default_dtype()  # a process that loads the pickle may have another
            dtype = usual if {p.dtype for p in network.parameters()} == {usual} else dtype
        self.model: nn.Module = network.eval()
        self._options: dict[str, Any] = {"top": top, "dtype": dtype, "device": device}
        self._options["chunk"] = chunk
        network = of_any_size(self.model) if native else self.model
        self.transform = transform(self.model, native_size=native_size)
        self._least, self.largest_input = input_shapes(self.transform)
        self.native_size: int | None = getattr(self.transform, "max_patches", None)
        sample = sample_of(self.model)
        computed = outputs_on(sample.device)(network, outputs)
        self.outputs: tuple[str, ...] = computed.names
        if top is not None and LABELS not in self.outputs:
            raise InvalidOption(
                f"top={top} is the number of classes in 'labels', and the outputs are "
                f"{self.outputs}; leave top= out, or pass outputs={(LABELS, *self.outputs)}"
            )
        labels = Labels()
        if not {LABELS, LOGITS}.isdisjoint(self.outputs):
            check_logits(self.model, labels=LABELS in self.outputs)
        if LABELS in self.outputs:
            count = TOP if top is None else top
            labels = Labels(class_names(self.model), count, answers_of(self.model))
        self.output_activation = labels.activation
        self.computation = Computation(computed, sample, labels, self.transform)

    def __repr__(self) -> str:
        name = self._request[0] if self._request else type(self.model).__name__
        name = os.fspath(name) if isinstance(name, os.PathLike) else name
        return f"Predictor({short_repr(name)}, outputs={self.outputs}, device='{self.device}')"

    def __getstate__(self) -> dict[str, Any]:
        check_unchanged(self.fingerprint().changes, self.device)
        asked = self.device if self._request is None else self._options["device"]
        device = for_others(asked, self.device)
        found = {"chunk": self.chunk, "native_size": self.native_size, "device": str(device)}
        state: dict[str, Any] = {"outputs": self.outputs, "options": {**self._options, **found}}
        if self._request is None:
            state["before_cast"] = self.before_cast
            return state | {"model": self.model if self.device.type == CPU else on_cpu(self.model)}
        return state | {"request": self._request, "identity": self._identity()}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        device = same_kind(state["options"]["device"])
        options: dict[str, Any] = {**state["options"], "device": device}
        model, weights = state.get("request", (None, None))
        if model is None:
            with running_on(device):
                model = state["model"].to(of_rank(device))
        self.__init__(model, weights=weights, outputs=state["outputs"], **options)  # type: ignore[misc]
        self.before_cast = state.get("before_cast")
        if "identity" in state and state["identity"] != (found := self._identity()):
            raise IntegrityError(
                f"{model} had other weights or another network when the Predictor was pickled: "
                f"sha256 {state['identity'][0]}, here {found[0]}; make the same file and the same "
                "vitzoo available to both processes"
            )

    def __call__(self, images: Input | Iterable[Input]) -> list[Row]:
        """Return one row for each image, in their order; a list of one row for one image.

        Args:
            images: one image, or several: paths, bytes of image files, arrays (h, w) or
                (h, w, bands) of uint8, uint16 or floats, Pillow images. An image that cannot be
                used gives a row with its error.
        """
        return ResultList(self.rows(images))

    def rows(self, images: Input | Iterable[Input]) -> Iterator[Row]:
        """Yield one row for each image, in their order; at most one chunk is held.

        On CUDA, threads decode the images of the next chunks; up to five chunks are held, and 32
        images for each thread.

        With native sizes, images wait for others of their grid: at most 1,024, or 256 MiB of inputs
        if that is less, or 16 chunks if that is more.

        Args:
            images: as for a call.
        """
        one: Any = [images] if is_image(images, self.transform.resize) else images
        return self._rows(one)

    def _rows(self, images: Iterable[Input]) -> Iterator[Row]:
        if self.asynchronous:
            with Stream(self, one_by_one(staging(self))) as stream:
                yield from itertools.chain.from_iterable(stream.rows(images, size_of_bytes))
            return
        groups = (list(map(self.decode, batch)) for batch in batches(images, self.chunk))
        yield from itertools.chain.from_iterable(self.rows_of(groups))

    def predict(self, images: Input | Iterable[Input]) -> Predictions:
        """Return the most probable classes of images, also if `outputs` has no `labels`.

        Args:
            images: one image as for `rows`, or several; a folder is replaced by the image files
                in it and in its subfolders, without hidden ones. An image that cannot be used has
                its error and no classes; only `vitzoo.predict` raises the error.

        Raises:
            InvalidOption: the model has no classifier, or an image is of another kind.
            ImageError: a folder contains no images.
        """
        left_out = LeftOut()
        given = as_list("Predictor.predict", images, self.transform.resize)
        every = list(named(given, left_out))
        for _, image in every:
            if isinstance(image, ImageError):  # of a folder
                raise image
        found = Predictions(classified(self._with_labels, every))
        found.left_out = dict(left_out)
        return found

    @cached_property
    def _with_labels(self) -> Predictor:
        """This Predictor, or one of the same network with the classes as its output."""
        if LABELS in self.outputs:
            return self
        chunk, native_size = self._options["chunk"], self.native_size
        return Predictor(self.model, outputs=LABELS, chunk=chunk, native_size=native_size)

    def decode(self, image: Input, name: str = UNNAMED_BYTES) -> Decoded:
        """Prepare an image; several threads may call this. It raises no error about an image.

        Args:
            image: as for `rows`.
            name: of bytes, in messages.
        """
        return decoded(image, name, self.transform.resize, self.transform.prepare)

    def compute(self, inputs: Sequence[Tensor]) -> list[dict[str, Any]]:
        """Return the outputs for prepared images, each as in `Row`.

        Several threads may call this; each computes with one intra-op thread.

        Args:
            inputs: (c, h, w) tensors of `decode`; any number, with native sizes of any grids.

        Raises:
            InvalidInput: a tensor has another shape.
            InvalidOption: the results depend on the position in a chunk.
        """
        groups = batches(map(Decoded, inputs), self.chunk)
        return [dict(row.outputs) for rows in self.rows_of(groups) for row in rows]

    def rows_of(self, groups: Iterable[Sequence[Decoded]]) -> Iterator[list[Row]]:
        """Yield the rows of each group of decoded images, in order.

        Args:
            groups: of at most `chunk` images without an error, and any number with one.

        Raises:
            InvalidInput, InvalidOption: as `compute`; or a group does not fit in the memory.
        """
        if self.native_size is None:
            return self._computed(groups)
        images = itertools.chain.from_iterable(groups)
        held = held_of(self.largest_input, self.chunk)
        return in_order(images, self.chunk, held, self._computed)

    def _computed(self, groups: Iterable[Sequence[Decoded]]) -> Iterator[list[Row]]:
        """Yield the rows of each group of images of one shape, in order."""
        for group in groups:
            with one_thread() as run:
                rows = run(self._compute, group)
            yield rows

    @property
    def asynchronous(self) -> bool:
        """Whether the device computes while this process reads and decodes the next images."""
        return self.device.type == "cuda"

    @property
    def device(self) -> torch.device:
        """The device of the computation."""
        return self.computation.device

    def with_chunk(self, chunk: int) -> Predictor:
        """Return this Predictor with a number of images in a forward pass, unless it was given one.

        The result has the same network.
        """
        if self._options["chunk"] is not None:
            return self
        other = object.__new__(type(self))
        vars(other).update({**vars(self), "_options": {**self._options, "chunk": chunk}})
        for cached in ("chunk", "_with_labels"):
            vars(other).pop(cached, None)
        return other

    @cached_property
    def chunk(self) -> int:
        """Number of images in a forward pass."""
        if self._options["chunk"] is not None:
            return int(self._options["chunk"])
        if self.device.type == CPU:
            with one_thread() as run:
                return CHUNK if run(is_aligned, self.model) else 1
        draws = torch.Generator().manual_seed(0)
        image = torch.randn(
            1, *self.largest_input, generator=draws, device="cpu", dtype=torch.float32
        )
        with one_thread() as run:
            found = run(largest_chunk, self.computation.results, image, self.model)
        return min(found, MOST_OF_GRID) if self.native_size else found

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each output array for one image, (768,) for example; without `labels`.

        The first use computes the outputs of one image, with native sizes of two.

        Raises:
            InvalidOption: the shape of an output depends on the native size.
        """

        def of(*shape: int) -> dict[str, tuple[int, ...]]:
            with one_thread() as run:
                found = run(self.computation.results, torch.zeros(1, *shape, device="cpu"))
            return {name: tuple(x.shape[1:]) for name, x in found.items() if name != LABELS}

        found = of(*self.largest_input)
        if self.native_size is not None:
            check_one_shape(of(*self._least), found)
        return found

    def fingerprint(self) -> Fingerprint:
        """Return what determines the numbers; this reads all tensors."""
        spec: Any = getattr(self.model, "spec", None)
        found = hash_tensors(self.model)
        trained = () if self._loaded in ("", found) else (TRAINED,)
        return Fingerprint(
            weights=self._weights_sha256 if found == self._loaded else found,
            network=describe_network(spec),
            preprocessing=self.transform.preprocessing.to_data(),
            outputs=self.outputs,
            labels=self._describe_labels(),
            dtype=str(self.computation.dtype).removeprefix("torch."),
            chunk=(self.chunk, *self.largest_input)[: 2 if self.native_size else 4],
            versions=versions(self.device),
            changes=(*changes(self.model), *trained),
            parts=describe_parts(self.model, spec),
            settings=settings_on(self.device, self.computation.network),
            native_size=self.native_size or 0,
        )

    def _describe_labels(self) -> str:
        """Return the SHA-256 of class names, their number, and a stated output activation."""
        labels = self.computation.labels
        if not labels.names:
            return ""
        stated = self.output_activation != usual_activation(network_of(self.model))
        return hash_data([labels.names, labels.top, *[self.output_activation] * stated])

    def _identity(self) -> tuple[str, str]:
        spec: Any = getattr(self.model, "spec", None)
        return self._weights_sha256, hash_data(spec.to_data())

    @torch.inference_mode()
    def _compute(self, images: Sequence[Decoded]) -> list[Row]:
        """Return the rows of one chunk of images of one shape."""
        tensors = [image.tensor for image in images if image.tensor is not None]
        check_inputs(tensors, self._least, self.largest_input)
        found: dict[str, Tensor] = {}
        if tensors:
            self.computation.try_grid(tensors[0], self.chunk)
            padded = [*tensors, *[tensors[0]] * (self.chunk - len(tensors))]
            found = self.computation.results(torch.stack(padded))
            self.computation.check_alike(found, len(tensors))  # the padding checks the promise
            found = self.computation.with_classes(found)
        return self.computation.rows(images, range(len(tensors)), found)
