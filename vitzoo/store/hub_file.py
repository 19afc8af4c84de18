"""One record for a registered weights file and its pin; imports no torch and no network library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from vitzoo import settings
from vitzoo.errors import InvalidOption, PinError
from vitzoo.files.names import INDEX, on_hub
from vitzoo.schema.addresses import MAIN, address_of, one_form, parts_of_address
from vitzoo.schema.rows import Variant, Weights
from vitzoo.store.lockfile import UNPINNED, Lock, Pin

if TYPE_CHECKING:
    from vitzoo.registry.registry import Registry

SLACK, SLACK_PERCENT = 4096, 2  # bytes, or percent if more, that a predicted size may be too low

UNSEEN = (
    "the repository seemed not to have this file when its entry was written: correct the entry, "
    "and check it with `vitzoo registry pin`"
)


@dataclass(frozen=True)
class HubFile:
    """A weights file on a Hub, at an https address, at a path, or bundled with a package.

    Args:
        entry: its registry entry; repository, revision and file only say where to look.
        label: its name in messages, `vit_b16:augreg_in21k` or an hf:// address.
        pin: commit, size and sha256 of the file; `UNPINNED` until they are known.
        package: the package that a bundled file lies in.
        small: whether it is a config, which need not be stored with LFS.
        others: the names of the other weights of its variant.
        data: the bytes of a config that arrived with its pin; empty if they did not.
    """

    entry: Weights
    label: str
    pin: Pin = UNPINNED
    package: str = "vitzoo"
    small: bool = False
    others: tuple[str, ...] = ()
    data: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, variant: Variant, entry: Weights, zoo: Registry) -> HubFile:
        """Return the file of registered weights."""
        package = zoo.host.package(variant.namespace) if entry.bundled else ""
        name = f"{variant.name}:{entry.name}"
        others = tuple(f"{variant.name}:{w.name}" for w in variant.weights if w is not entry)
        return cls(entry, name, package=package, others=others)

    @classmethod
    def at(cls, address: str, *, small: bool = False) -> HubFile:
        """Return the file at an hf:// address; `small` if it is a config.

        Raises:
            InvalidOption: the address has another form.
        """
        return cls(from_address(address), one_form(address), small=small)

    @property
    def address(self) -> str:
        """The hf:// address, by which the lock names the file."""
        return self._address(self.entry.revision or MAIN)

    def _address(self, revision: str) -> str:
        return address_of(self.entry.repo, revision, self.entry.file)

    @property
    def name(self) -> str:
        """The name of the file without folders."""
        return (self.entry.file or self.entry.place).rpartition("/")[2]

    @property
    def is_index(self) -> bool:
        """Whether it is the index of weights in several files."""
        return self.entry.file.endswith(INDEX)

    def beside(self, name: str) -> HubFile:
        """Return another file in its folder on the Hub."""
        address = self.address.removesuffix(self.name) + name
        return HubFile.at(address, small=name.endswith(INDEX))

    @property
    def revision(self) -> str:
        """The commit of the pin; before that, the revision of the entry."""
        return self.pin.commit or self.entry.revision or MAIN

    @property
    def needs_pin(self) -> bool:
        """Whether its sha256 is not known yet."""
        return not self.pin.sha256

    @property
    def size(self) -> int | None:
        """Bytes, None if not known."""
        return self.pin.size or None

    @property
    def bound(self) -> int:
        """The most bytes that are ever written to disk for the file."""
        predicted = self.entry.predicted_size or 0
        return self.pin.size or predicted + max(SLACK, predicted * SLACK_PERCENT // 100)

    @property
    def page(self) -> str:
        """Where the terms are: the page of the repository on the official Hub, or the address."""
        return f"https://huggingface.co/{self.entry.repo}" if self.entry.repo else self.entry.place

    @property
    def link(self) -> str:
        """The https address of the file, on the official Hub or the one of its entry."""
        if not self.entry.repo:
            return self.entry.place
        return f"{self.page}/resolve/{quote(self.revision, safe='')}/{quote(self.entry.file)}"

    @property
    def instead(self) -> str:
        """The end of a message about a file that does not exist."""
        others = f"; other weights: {', '.join(self.others)}" if self.others else ""
        return others if self.entry.file_seen else f"{others}; {UNSEEN}"

    def __str__(self) -> str:
        return f"{self.label}: {self.entry.place}"

    def locked(self, pins: Mapping[str, Pin]) -> tuple[str, Pin]:
        """Return address and pin of the file in the lock; the pin is `UNPINNED` if there is none.

        A registered file may have been locked at `main`, before its entry had a revision. That
        `main` had no such file says nothing about another revision.
        """
        former = self._address(MAIN)
        pin = pins.get(former, UNPINNED)
        if self.address in pins or on_hub(self.label) or pin.absent:
            return self.address, pins.get(self.address, UNPINNED)
        return former, pin

    def pinned(self, pins: Callable[[], Mapping[str, Pin]] | None = None) -> HubFile:
        """Return the file with the pin of registry or lock, still unpinned before its first use.

        Args:
            pins: returns the pins of the lock; None reads them from the lock file.

        Raises:
            PinError: registry and lock disagree, or the lock is damaged.
        """
        entry, path = self.entry, settings.lock_path()
        pins = pins or Lock(path).pins
        address, locked = self.locked(pins()) if entry.repo else ("", UNPINNED)
        if not entry.sha256:
            at_commit = len(entry.revision) == 40 and address == self.address
            if at_commit and locked.commit not in ("", entry.revision):
                raise PinError(
                    f"{address}: the lock {path} names commit {locked.commit}, the registry "
                    f"{entry.revision}; find out why, then `vitzoo lock --update`"
                )
            return replace(self, pin=self.pin if locked is UNPINNED else locked)
        if locked.absent:  # of the branch, which an address named before the entry had a sha256
            locked = UNPINNED
        if locked.sha256 not in ("", entry.sha256):
            raise PinError(
                f"{address}: the lock {path} pins sha256 {locked.sha256}, the registry "
                f"{entry.sha256}; find out which is right, then remove it from the lock"
            )
        commit, size = entry.revision or locked.commit or MAIN, entry.size or locked.size
        return replace(self, pin=Pin(commit, size, entry.sha256, "registry"))


def from_address(address: str) -> Weights:
    """Return the weights entry of `hf://owner/repo[@revision]/file`; it has no hash.

    Raises:
        InvalidOption: the address has another form.
    """
    repo, revision, file = parts_of_address(address)
    if not file:
        raise InvalidOption(
            f"a Hub file is written hf://owner/repo@revision/file, got {address[:300]!r}"
        )
    return Weights(address, file=file, repo=repo, revision=revision, pin="first-use", format="")
