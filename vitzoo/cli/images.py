"""The images that a user names in a command; torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from click.exceptions import Exit

from vitzoo.cli.output import say
from vitzoo.errors import ExitCode, ImageError
from vitzoo.images.find import LeftOut, find_images, shown_left_out


@dataclass(frozen=True)
class ImageFiles:
    """The image files that a user names.

    Args:
        paths: in the order of the arguments; those in a folder are sorted.
        errors: of arguments that cannot be read; the user has seen them.
    """

    paths: tuple[Path, ...]
    errors: tuple[ImageError, ...] = ()


def image_files(arguments: Iterable[Path]) -> ImageFiles:
    """Return the image files of arguments; each argument is a file or a folder.

    A folder stands for the images in it and in its subfolders, without hidden files. On stderr, the
    command says which arguments cannot be read, and which files of folders are no images.

    Raises:
        Exit: there is no image file; the exit code of the command is 1.
    """
    errors: list[ImageError] = []

    def note(error: ImageError) -> None:
        errors.append(error)
        say(f"vitzoo: {error}")

    left_out = LeftOut()
    paths = find_images(arguments, note, left_out)
    if left_out:
        say(f"vitzoo: {shown_left_out(left_out)}")
    if not paths:
        raise Exit(ExitCode.FAILED)
    return ImageFiles(tuple(paths), tuple(errors))
