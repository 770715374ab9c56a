"""`Simulated`: a crowd and everything that it was drawn from, in memory and as a folder that `Crowd.read` reads."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pyrocrowd.errors import PyrocrowdError, listed
from pyrocrowd.folders import Kind

if TYPE_CHECKING:
    from pyrocrowd.data.crowd import Crowd

RECORD, HIDDEN = "simulation.json", "hidden.npz"
BY_SPLIT = [name.format(split) for split in ("train", "valid", "test") for name in ("features_{}.npy", "truth_{}.csv")]
FOLDER = Kind("simulated crowd", RECORD, (RECORD, HIDDEN, "annotations.csv", "tasks.txt", "classes.txt", *BY_SPLIT))


@dataclass(repr=False)
class Simulated:
    """A crowd and what it was drawn from.

    Attributes
    ----------
    crowd : Crowd
        With its truth.
    confusion : array, shape (annotators, classes, classes)
        The matrices that the labels were drawn from, rows = true class.
    hidden : dict of str to array
        All else that the labels were drawn from, by name; what there is depends on the simulator.
    valid, test : Crowd or None
        Items nobody has labelled, with features and truth, in the classes and annotators of the crowd.
    simulator : str
        The function that made it.
    arguments : dict
        What that function was called with; of arrays only the shape.
    """

    crowd: Crowd
    confusion: np.ndarray
    hidden: dict[str, np.ndarray] = field(default_factory=dict)
    valid: Crowd | None = None
    test: Crowd | None = None
    simulator: str = ""
    arguments: dict = field(default_factory=dict)

    def __repr__(self) -> str:
        splits = {"valid": self.valid, "test": self.test}
        others = [f"{name} {part.n_items:,} items" for name, part in splits.items() if part is not None]
        known = listed([*self.hidden, "confusion"], 12)
        return f"Simulated by {self.simulator or 'hand'} ({'; '.join([*others, f'known: {known}'])})\n{self.crowd!r}"

    def save(self, folder, force=False) -> Path:
        """Write the crowd as `Crowd.read(folder)` and `Crowd.read(folder, split="valid")` read it.

        The truth behind it goes to `hidden.npz` (see `hidden`), the call that made it to `simulation.json`.

        Parameters
        ----------
        folder : str or Path
            New or empty. A failure leaves nothing half-written in it.
        force : bool
            Replace a simulated crowd that is there already; other files in its folder stay.
        """
        with FOLDER.written(folder, force) as place:
            self._write(place)
        return Path(folder)

    def _write(self, place: Path) -> None:
        crowd = self.crowd
        crowd.to_frame().to_csv(place / "annotations.csv", index=False)
        for name, words in (("tasks.txt", crowd.item_names), ("classes.txt", crowd.class_names)):
            (place / name).write_text("\n".join(map(str, words)) + "\n", encoding="utf-8")
        for split, part in (("train", crowd), ("valid", self.valid), ("test", self.test)):
            if part is not None:
                _write_split(part, place, split)
        names = np.asarray(crowd.annotator_names)
        names = names if names.dtype.kind in "iu" else names.astype(str)  # objects could only be pickled
        np.savez_compressed(place / HIDDEN, **self.hidden, confusion=self.confusion, annotator_names=names)
        arguments = dict(self.arguments)
        record = {"simulator": self.simulator, "seed": arguments.pop("seed", None), "arguments": arguments}
        record["pyrocrowd"] = version("pyrocrowd")
        (place / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")


def hidden(folder) -> dict[str, np.ndarray]:
    """What a simulated crowd in a folder was drawn from, by name.

    Beside what the simulator itself keeps, there is `confusion`, and `annotator_names`: whose matrices they are, in
    their order. Annotators without a single label are among them, and not in the crowd that is read from the folder.
    """
    path = Path(folder) / HIDDEN
    if not path.exists():
        raise PyrocrowdError(f"{folder} holds no hidden truth: there is no {HIDDEN} in it.")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise PyrocrowdError(f"{path} cannot be read: {error}") from None


def _write_split(part: Crowd, place: Path, split: str) -> None:
    import pandas as pd

    if part.features is not None:
        if not hasattr(part.features, "shape"):
            raise PyrocrowdError("Only features that are an array can be saved, not those of a Dataset.")
        np.save(place / f"features_{split}.npy", np.asarray(part.features))
    if part.truth is not None:
        known = part.truth >= 0
        table = pd.DataFrame({"item": part.item_names[known], "label": part.class_names[part.truth[known]]})
        table.to_csv(place / f"truth_{split}.csv", index=False)
