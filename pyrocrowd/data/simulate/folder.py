"""A simulated crowd's folder appears whole or not at all, and never in the place of somebody's own files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyrocrowd.errors import PyrocrowdError

RECORD = "simulation.json"
HIDDEN = "hidden.npz"
SPLITS = ("train", "valid", "test")
FILES = (
    RECORD,
    HIDDEN,
    "annotations.csv",
    "tasks.txt",
    "classes.txt",
    *(f"features_{split}.npy" for split in SPLITS),
    *(f"truth_{split}.csv" for split in SPLITS),
)


def check_place(folder, force=False) -> None:
    """Whether a crowd may be written here; `force` replaces an older simulated one and nothing else."""
    try:
        place = Path(folder).resolve()
        if place.exists() and not place.is_dir():
            raise PyrocrowdError(f"{folder} is a file, not a folder: choose another place for the crowd.")
        if place.is_dir() and any(place.iterdir()):
            if not (place / RECORD).exists():
                raise PyrocrowdError(f"{folder} holds other files and no simulated crowd: choose an empty folder.")
            if not force:
                raise PyrocrowdError(
                    f"{folder} already holds a simulated crowd: choose another folder, or replace it with --force "
                    "(force=True)."
                )
        with tempfile.TemporaryDirectory(dir=_nearest(place)):
            pass
    except OSError as error:
        raise PyrocrowdError(f"{folder} cannot be written: {error.strerror or error}.") from None


@contextmanager
def written_whole(folder, force=False) -> Iterator[Path]:
    """A scratch folder to write to; what is in it moves to its place once the block has ended well."""
    check_place(folder, force)
    place = Path(folder).resolve()  # "." has no name, and what a link points to is replaced, not the link
    with tempfile.TemporaryDirectory(dir=_nearest(place), prefix=".pyrocrowd-") as scratch:
        new = Path(scratch) / "crowd"
        new.mkdir()
        yield new
        if place.exists():
            _swap(new, place, Path(scratch) / "replaced")
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            new.rename(place)


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that exists: a scratch folder there is on the same disk."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def _swap(new: Path, place: Path, aside: Path) -> None:
    """Trade the files of an older crowd for those of the new one; a failure trades them back."""
    aside.mkdir()
    moves = [(place / name, aside / name) for name in FILES if (place / name).exists()]
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
