"""Folders that appear whole or not at all: never half-written, never in the place of somebody's own files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyrocrowd.errors import PyrocrowdError


@dataclass(frozen=True)
class Kind:
    """One kind of folder that pyrocrowd writes.

    Attributes
    ----------
    what : str
        What to call it in a sentence.
    record : str
        The file by which it is known.
    files : tuple of str
        All files that it may hold; others in the same folder are not ours.
    """

    what: str
    record: str
    files: tuple[str, ...]

    def check(self, folder, force=False) -> None:
        """Whether it may be written here: asked before the work begins, so that no result is lost for want of a place.

        `force` replaces an older one of the same kind and nothing else.
        """
        try:
            place = Path(folder).resolve()
            if place.exists() and not place.is_dir():
                raise PyrocrowdError(f"{folder} is a file, not a folder: choose another place for the {self.what}.")
            if place.is_dir() and any(place.iterdir()):
                if not (place / self.record).exists():
                    raise PyrocrowdError(f"{folder} holds other files and no {self.what}: choose an empty folder.")
                if not force:
                    raise PyrocrowdError(
                        f"{folder} already holds a {self.what}: choose another folder, or replace it with --force "
                        "(force=True)."
                    )
            with tempfile.TemporaryDirectory(dir=_nearest(place)):
                pass
        except OSError as error:
            raise PyrocrowdError(f"{folder} cannot be written: {error.strerror or error}.") from None

    @contextmanager
    def written(self, folder, force=False) -> Iterator[Path]:
        """A scratch folder to write to; what is in it moves to its place once the block has ended well."""
        self.check(folder, force)
        place = Path(folder).resolve()  # "." has no name, and what a link points to is replaced, not the link
        with tempfile.TemporaryDirectory(dir=_nearest(place), prefix=".pyrocrowd-") as scratch:
            new = Path(scratch) / "new"
            new.mkdir()
            yield new
            if place.exists():
                self._swap(new, place, Path(scratch) / "replaced")
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                new.rename(place)

    def _swap(self, new: Path, place: Path, aside: Path) -> None:
        """Trade the files of an older one for the new ones; other files stay, and a failure trades them back."""
        aside.mkdir()
        moves = [(place / name, aside / name) for name in self.files if (place / name).exists()]
        moves += [(path, place / path.name) for path in sorted(new.iterdir())]
        done = []
        try:
            for source, target in moves:
                source.rename(target)
                done.append((source, target))
        except BaseException:
            for source, target in reversed(done):
                target.rename(source)
            raise


def check_file(path: Path, force=False) -> None:
    """Whether a single file may be written here: asked before the work begins."""
    if path.is_dir():
        raise PyrocrowdError(f"{path} is a folder: give the name of a file.")
    if path.exists() and not force:
        raise PyrocrowdError(f"{path} exists: choose another name, or --force to replace it.")
    if not path.parent.is_dir():
        raise PyrocrowdError(f"The folder {path.parent} does not exist.")


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that exists: a scratch folder there is on the same disk."""
    return next(place for place in (folder, *folder.parents) if place.exists())
