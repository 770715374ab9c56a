"""Files in, crowds out: .csv, .tsv, .parquet, .jsonl, and folders with features and truth beside the annotations."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from pyrocrowd.data import naming
from pyrocrowd.errors import PyrocrowdError, did_you_mean, listed

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
        names = naming.find_columns(table, columns, source=table_path.name)
        items = _names_or_codes(folder / "tasks.txt", table[names["item"]])
        classes = _names_or_codes(folder / "classes.txt", table[names["label"]])
    features = None if features is False or features is None else read_features(features)
    truth, truth_source = _read_truth(truth)
    crowd = naming.crowd_from_frame(
        cls, table, columns, items, classes, features, None, truth, table_path.name, truth_source
    )
    return crowd if split is None else read_split(crowd, path, split)


def read_split(crowd, folder, split):
    """The unlabelled items of `features_SPLIT.npy` with `truth_SPLIT.csv`, in the classes and annotators of a crowd."""
    features = _beside(Path(folder), "features", (".npy",), (f"_{split}",))
    if features is None:
        raise PyrocrowdError(f"{folder} has no split {split!r}: there is no features_{split}.npy in it.")
    part = crowd.new_items(read_features(features))
    truth, source = _read_truth(_beside(Path(folder), "truth", TABLE_KINDS, (f"_{split}",)))
    return part._with(truth=naming.code_truth(truth, part.item_names, crowd.class_names, source))


def read_table(path) -> pd.DataFrame:
    """A table as it stands in the file: text stays text, so that no name is changed on the way in."""
    path = Path(path)
    kind = path.suffix.lower()
    if not path.exists():
        raise PyrocrowdError(f"{path} does not exist.")
    if path.is_dir():
        raise PyrocrowdError(f"{path} is a folder where a table ({', '.join(TABLE_KINDS)}) is expected.")
    if kind not in TABLE_KINDS:
        raise PyrocrowdError(f"{path} is of no kind that pyrocrowd reads ({', '.join(TABLE_KINDS)}, or a folder).")
    try:
        if kind == ".parquet":
            table = pd.read_parquet(path)
        elif kind == ".jsonl":
            table = _read_json_lines(path)
        else:
            table = _read_text_table(path, "," if kind == ".csv" else "\t")
    except pd.errors.EmptyDataError:
        raise PyrocrowdError(f"{path} is empty.") from None
    except UnicodeDecodeError as error:
        raise PyrocrowdError(
            f"{path} is not UTF-8 text (byte {error.start} cannot be read): save it as UTF-8 and try again."
        ) from None
    except (pd.errors.ParserError, pd.errors.ParserWarning, ValueError, OSError) as error:
        raise PyrocrowdError(f"{path} cannot be read as {kind}: {_in_plain_words(error)}") from None
    if not len(table.columns):
        raise PyrocrowdError(f"{path} is empty.")
    return table


def _read_text_table(path, separator):
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header lose their last cells
        return pd.read_csv(
            path,
            sep=separator,
            dtype=str,
            index_col=False,  # else the first column of such rows would become an index, and all cells move by one
            skipinitialspace=True,
            keep_default_na=False,  # only an empty cell is missing: "NA" and "None" may well be labels
            na_values=["", "nan", "NaN"],
            encoding="utf-8-sig",
        )


def _read_json_lines(path):
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if not isinstance(rows[-1], dict):
            raise ValueError(f'line {number} is not an object such as {{"item": 1, "annotator": ...}}.')
    return pd.DataFrame(rows)


def read_features(features):
    """Features from a .npy file (memory-mapped), a table with a column for the item, or as they are."""
    if not isinstance(features, (str, Path)):
        return features
    path = Path(features)
    if not path.exists():
        raise PyrocrowdError(f"The features file {path} does not exist.")
    if path.suffix.lower() == ".npy":
        try:
            return np.lib.format.open_memmap(path, mode="r")
        except (ValueError, OSError, EOFError) as error:
            raise PyrocrowdError(f"{path} cannot be read as an array of numbers: {_in_plain_words(error)}") from None
    frame = read_table(path)
    if len(frame.columns) < 2:
        raise PyrocrowdError(f"{path} needs a column for the item and a number in each other column.")
    item = naming.known_columns(frame, "item")[0] if naming.known_columns(frame, "item") else frame.columns[0]
    names = pd.Index(naming.tidy(frame.pop(item)))
    if names.has_duplicates:
        raise PyrocrowdError(f"{path} has more than one row for {listed(names[names.duplicated()].unique())}.")
    try:
        return frame.set_index(names).astype(float)
    except ValueError as error:
        raise PyrocrowdError(f"{path}: every column but {item} must hold numbers: {_in_plain_words(error)}") from None


def _read_truth(truth):
    """The truth as a table or as it was given, and what to call it in a message."""
    if truth is None or truth is False:
        return None, "truth"
    return (read_table(truth), Path(truth).name) if isinstance(truth, (str, Path)) else (truth, "truth")


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


def _names_or_codes(path, column):
    """All names in order, one per line of a file; where the table holds their places 0, 1, 2 ..., those instead."""
    if not path.exists():
        return None
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise PyrocrowdError(f"{path} is not UTF-8 text: save it as UTF-8 and try again.") from None
    names, codes, values = naming.tidy(lines), np.arange(len(lines)), naming.tidy(column.dropna())
    are_codes = (naming.match(values, names) < 0).any() and (naming.match(values, codes) >= 0).all()
    return codes if are_codes else names


def _in_plain_words(error) -> str:
    """The first line of a message, with pandas' complaint about ragged rows in words that speak of the file."""
    text = str(error).strip().split("\n")[0]
    ragged = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", text)
    if ragged:
        return f"line {ragged[2]} has {ragged[3]} cells and the header {ragged[1]}."
    return "its rows have more cells than its header." if isinstance(error, pd.errors.ParserWarning) else text
