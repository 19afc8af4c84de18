"""The head of a network: replace it, and let spec and labels follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from vitzoo.errors import InvalidOption
from vitzoo.network.activation import check_activation, usual_activation
from vitzoo.network.calls import Network
from vitzoo.parts.heads import classes_of, described_head, linear_head
from vitzoo.parts.protocols import MODULE
from vitzoo.schema.spec import PartSpec


class Classifier(Network):
    """The head, which is a part or any module that a user assigns."""

    _take_pool: Callable[[str], None]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "head" and isinstance(value, nn.Module):
            self._describe_head(value)
        super().__setattr__(name, value)

    def _describe_head(self, head: nn.Module) -> None:
        """Let spec and labels follow a new head; a wrapper of the old head changes neither."""
        old = self._modules.get("head")
        replica = "_is_replica" in vars(self)  # of DataParallel, whose head has no parameters yet
        same = old is None or replica or old in head.modules() or head in old.modules()
        if not same:
            self._note(num_classes=classes_of(head), head=described_head(head, self.num_features))
            self._forget_classes()
        self._plain_head = not hasattr(head, "pre_logits_dim")

    def _forget_classes(self) -> None:
        """Remove what is known about the classes of the former head."""
        self.labels = ()
        self._output_activation = None

    @property
    def output_activation(self) -> str:
        """How logits become answers, `softmax`, `sigmoid` of each class, or `identity`.

        `identity` is for a regression, whose logits are the answers. The default is `softmax`, and
        `sigmoid` for a head of text vectors with a bias. A new head has the default again.

        Raises:
            InvalidOption: another value is assigned.
        """
        return vars(self).get("_output_activation") or usual_activation(self)

    @output_activation.setter
    def output_activation(self, value: str) -> None:
        self._output_activation = check_activation(value)

    @property
    def head_hidden_size(self) -> int:
        """Width of the pre-logits."""
        return self.num_features if self._plain_head else self.head.pre_logits_dim

    @property
    def num_classes(self) -> int:
        """Number k of logits, 0 without a classifier."""
        return classes_of(self.head)

    def get_classifier(self) -> nn.Module:
        """Return the head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier by a new one of the same kind.

        The labels are removed, and the output activation is that of the new head. Layers before the
        classifier, such as `head.pre_logits`, stay. A module that is no `vitzoo.parts.Head`
        is replaced by a linear head.

        Args:
            num_classes: k; with 0 the new head has no classifier.
            global_pool: timm's name of another pool, `token` or `avg`, also `map` where it is the
                pool already; None keeps the pool. The final norm stays where it acts.

        Raises:
            InvalidOption: the number is not possible, or the network cannot take this pool.
        """
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 0:
            raise InvalidOption(
                f"num_classes must be a whole number of at least 0, got {num_classes!r}; "
                "0 means no classifier"
            )
        if global_pool is not None:
            self._take_pool(global_pool)
        sample, plain, spec = next(self.parameters()), self._plain_head, self.spec
        if plain:
            fresh: Any = linear_head(in_dim=self.num_features, num_classes=num_classes)
        else:
            fresh = self._run("head", self.head.reset, MODULE, num_classes)
        self.head = fresh.to(sample.device, sample.dtype).train(self.training)
        self._forget_classes()
        if spec is not None:
            linear = plain or spec.head.name == "none"
            self._note(num_classes=num_classes, head=PartSpec("linear") if linear else spec.head)
