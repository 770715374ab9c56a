"""Files in, crowds out: .csv, .tsv, .parquet, .jsonl, and folders with features and truth beside the annotations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from pyrocrowd.data import naming
from pyrocrowd.errors import PyrocrowdError, did_you_mean

TABLE_KINDS = (".csv", ".tsv", ".parquet", ".jsonl")


def read_crowd(cls, path, *, columns=None, features=None, truth=None, split=None):
    """The work behind `Crowd.read`."""
    path = Path(path)
    folder = path if path.is_dir() else None
    table_path = _annotations_of(folder) if folder else path
    table = read_table(table_path)
    items = classes = None
    if folder:
        features = _beside(folder, "features", (".npy",)) if features is None else features
        truth = _beside(folder, "truth", TABLE_KINDS) if truth is None else truth
        items = _lines(folder / "tasks.txt")
        classes = _declared_classes(_lines(folder / "classes.txt"), table, columns, table_path.name)
    features = None if features is False or features is None else read_features(features)
    crowd = naming.crowd_from_frame(
        cls, table, columns, items, classes, features, None, _read_truth(truth), source=table_path.name
    )
    return crowd if split is None else _other_split(crowd, folder, path, split)


def read_table(path) -> pd.DataFrame:
    """A table as it stands in the file: text stays text, so that no name is changed on the way in."""
    path = Path(path)
    if not path.exists():
        raise PyrocrowdError(f"{path} does not exist.")
    if path.is_dir():
        raise PyrocrowdError(f"{path} is a folder where a table ({', '.join(TABLE_KINDS)}) is expected.")
    try:
        if path.suffix in (".csv", ".tsv"):
            # Only an empty cell is missing: "NA" and "None" may well be labels.
            separator = "," if path.suffix == ".csv" else "\t"
            return pd.read_csv(
                path, sep=separator, dtype=str, keep_default_na=False, na_values=["", "nan", "NaN"], encoding="utf-8-sig"
            )
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        if path.suffix == ".jsonl":
            return pd.read_json(path, lines=True, dtype=False, convert_dates=False)
    except pd.errors.EmptyDataError:
        raise PyrocrowdError(f"{path} is empty.") from None
    except UnicodeDecodeError as error:
        raise PyrocrowdError(
            f"{path} is not UTF-8 text (byte {error.start} cannot be read): save it as UTF-8 and try again."
        ) from None
    except (pd.errors.ParserError, ValueError, OSError) as error:
        raise PyrocrowdError(f"{path} cannot be read as {path.suffix}: {_one_line(error)}") from None
    raise PyrocrowdError(f"{path} is of no kind that pyrocrowd reads ({', '.join(TABLE_KINDS)}, or a folder).")


def read_features(features):
    """Features from a .npy file (memory-mapped), a table whose first column is the item, or as they are."""
    if not isinstance(features, (str, Path)):
        return features
    path = Path(features)
    if not path.exists():
        raise PyrocrowdError(f"The features file {path} does not exist.")
    if path.suffix == ".npy":
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise PyrocrowdError(f"{path} cannot be read as an array: {_one_line(error)}") from None
    frame = read_table(path)
    if len(frame.columns) < 2:
        raise PyrocrowdError(f"{path} needs the item in its first column and a number in each other column.")
    frame = frame.set_index(frame.columns[0])
    try:
        return frame.set_index(pd.Index(naming.tidy(pd.Series(frame.index)))).astype(float)
    except ValueError as error:
        raise PyrocrowdError(f"{path}: every column but the first must hold numbers: {_one_line(error)}") from None


def _read_truth(truth):
    if truth is None or truth is False:
        return None
    return read_table(truth) if isinstance(truth, (str, Path)) else truth


def _annotations_of(folder):
    for kind in TABLE_KINDS:
        if (folder / f"annotations{kind}").exists():
            return folder / f"annotations{kind}"
    there = [entry.name for entry in folder.iterdir()]
    hint = did_you_mean("annotations.csv", there)
    raise PyrocrowdError(f"The folder {folder} holds no annotations.csv.{hint}")


def _beside(folder, stem, kinds, splits=("", "_train")):
    for split in splits:
        for kind in kinds:
            if (folder / f"{stem}{split}{kind}").exists():
                return folder / f"{stem}{split}{kind}"
    return None


def _lines(path):
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n") if path.exists() else None



def _declared_classes(lines, table, columns, source):
    """classes.txt may hold the labels themselves, or names for the codes 0, 1, 2 ... that stand in the table."""
    if lines is None:
        return None
    column = naming.find_columns(table, columns, source=source)["label"]
    labels = naming.tidy(table[column].dropna())
    codes = np.arange(len(lines))
    return codes if labels.dtype.kind == "i" and np.isin(labels, codes).all() else lines


def _other_split(crowd, folder, path, split):
    features = _beside(folder, "features", (".npy",), (f"_{split}",)) if folder else None
    if features is None:
        raise PyrocrowdError(f"{path} has no split {split!r}: there is no features_{split}.npy in it.")
    part = crowd.new_items(read_features(features))
    truth = _beside(folder, "truth", TABLE_KINDS, (f"_{split}",))
    return part._with(truth=naming.code_truth(_read_truth(truth), part.item_names, crowd.class_names, f"truth_{split}"))


def _one_line(error) -> str:
    return str(error).strip().split("\n")[0]
