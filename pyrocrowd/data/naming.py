"""From names to integers: the one place where columns are recognised, coded and matched."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from pyrocrowd.errors import PyrocrowdError, counted, did_you_mean, listed

KNOWN_COLUMNS = {
    "item": ("item", "task", "unit", "item_id", "task_id", "unit_id", "instance", "question_id", "example"),
    "annotator": ("annotator", "worker", "rater", "annotator_id", "worker_id", "rater_id", "user", "coder", "judge"),
    "label": ("label", "response", "answer", "annotation", "rating", "class", "judgment", "judgement", "category"),
}


def crowd_from_frame(
    cls, frame, columns, items, classes, features, annotator_features, truth, source="the table", truth_source="truth"
):
    """The work behind `Crowd.from_frame`: recognise the columns, code the names, line features and truth up."""
    from pyrocrowd.data.crowd import warn_about_repeats
    from pyrocrowd.data.features import as_features

    frame = pd.DataFrame(frame)
    names = find_columns(frame, columns, source=source)
    table = frame[[names["item"], names["annotator"], names["label"]]].set_axis(
        ["item", "annotator", "label"], axis="columns"
    )
    _refuse_missing(table, source)
    if isinstance(features, pd.DataFrame):
        items, features = _line_up(features, items)
    features = as_features(features)
    item_codes, item_names = code(table["item"], _item_names(table["item"], items, features), "item", source)
    annotator_names = None
    if isinstance(annotator_features, pd.DataFrame):
        annotator_names = tidy(pd.Series(annotator_features.index))
        annotator_features = annotator_features.to_numpy()
    annotator_codes, annotator_names = code(table["annotator"], annotator_names, "annotator", source)
    label_codes, class_names = code(table["label"], None if classes is None else tidy(classes), "label", source)
    if len(class_names) < 2:
        raise PyrocrowdError(
            f"All labels in {source} are {class_names[0]!r}: there is nothing to tell apart with one class."
        )
    crowd = cls(
        item_codes,
        annotator_codes,
        label_codes,
        item_names=item_names,
        annotator_names=annotator_names,
        class_names=class_names,
        features=features,
        annotator_features=annotator_features,
        truth=code_truth(truth, item_names, class_names, truth_source),
    )
    warn_about_repeats(crowd)
    return crowd


def crowd_from_matrix(cls, matrix, missing, features, truth, classes, annotators):
    """The work behind `Crowd.from_matrix`: dense with a missing value, or scipy sparse with its stored entries."""
    from pyrocrowd.data.features import as_features

    if hasattr(matrix, "tocoo"):
        entries = matrix.tocoo()
        given = _given(entries.data, missing)
        item, annotator, label, shape = entries.row[given], entries.col[given], entries.data[given], entries.shape
    else:
        matrix = np.asarray(matrix)
        if matrix.ndim != 2:
            raise PyrocrowdError(f"from_matrix needs an items x annotators array, not {matrix.ndim} dimensions.")
        given = _given(matrix, missing)
        (item, annotator), label, shape = np.nonzero(given), matrix[given], matrix.shape
    if not len(label):
        raise PyrocrowdError(f"The matrix holds no label: every entry is missing ({missing}).")
    names = None if classes is None else tidy(classes)
    label_codes, class_names = code(pd.Series(label), names, "label", "the matrix")
    if len(class_names) < 2:
        raise PyrocrowdError(f"All labels in the matrix are {class_names[0]!r}: there is nothing to tell apart.")
    annotators = np.arange(shape[1]) if annotators is None else np.asarray(annotators)
    return cls(
        item,
        annotator,
        label_codes,
        item_names=np.arange(shape[0]),
        annotator_names=annotators,
        class_names=class_names,
        features=as_features(features),
        truth=code_truth(truth, np.arange(shape[0]), class_names),
    )


def _given(values, missing) -> np.ndarray:
    """Where there is a label: neither the missing value, nor NaN or None."""
    return ~(pd.isna(values) | (values == missing))


def find_columns(frame, columns=None, wanted=("item", "annotator", "label"), source="the table") -> dict:
    """Which column of the frame plays which part, by the user's word or by its name."""
    columns = dict(columns or {})
    unknown = [part for part in columns if part not in KNOWN_COLUMNS]
    problems = [f"columns: {part!r} is not one of item, annotator, label." for part in unknown]
    problems += [f"{source}: two columns are called {name!r}." for name in frame.columns[frame.columns.duplicated()]]
    found = {}
    for part in wanted:
        if part in columns:
            if columns[part] in frame.columns:
                found[part] = columns[part]
            else:
                hint = did_you_mean(columns[part], frame.columns)
                problems.append(f"{source}: there is no column {columns[part]!r} for the {part}.{hint}")
            continue
        matches = known_columns(frame, part)
        if matches:
            found[part] = matches[0]
        else:
            problems.append(
                f"{source}: no column for the {part} among {listed(frame.columns, 8)}; name it one of "
                f"{', '.join(KNOWN_COLUMNS[part][:3])}, or say --column {part}=NAME (in Python, columns=)."
            )
    if problems:
        raise PyrocrowdError(problems)
    return found


def known_columns(frame, part) -> list:
    """The columns whose name says that they play this part, the likeliest first."""
    by_plain_name = {re.sub(r"[\s-]+", "_", str(name).strip().lower()): name for name in reversed(frame.columns)}
    return [by_plain_name[name] for name in KNOWN_COLUMNS[part] if name in by_plain_name]


def tidy(names) -> np.ndarray:
    """Names as integers where every one of them is a whole number in plain writing, else as strings.

    `007` stays a string: a leading zero is part of a name, and nothing that a user gave us is lost. `1.0` is 1 where
    all are written so: that is what becomes of integers in a column that once had a gap.
    """
    series = pd.Series(names).reset_index(drop=True)
    if series.dtype.kind in "iu":
        return series.to_numpy(np.int64)
    if series.dtype.kind == "f":
        values = series.to_numpy(float)
        whole = np.isfinite(values).all() and (values == np.floor(values)).all()
        return values.astype(np.int64) if whole else values.astype(str).astype(object)
    text = series.astype(str)
    distinct = text.drop_duplicates()
    for writing in (r"-?[1-9][0-9]{0,17}|0", r"(-?[1-9][0-9]{0,14}|0)\.0"):
        if len(distinct) and distinct.str.fullmatch(writing).all():
            return text.str.removesuffix(".0").to_numpy(object).astype(np.int64)
    return text.to_numpy(object)


def code(column, names, part, source):
    """Integers for a column of names, and the names: the sorted distinct ones, or those that are given."""
    values = tidy(column)
    if names is None:
        codes, found = pd.factorize(values, sort=True)
        return codes, found
    what = {"label": "classes", "item": "items", "annotator": "annotators"}[part]
    codes = match(values, names)
    strange = pd.unique(values[codes < 0])
    if len(strange):
        raise PyrocrowdError(
            [
                f"{source}: {part} {name!r} is not one of the {len(names)} {what} ({listed(names)})."
                f"{did_you_mean(name, names)}"
                for name in strange[:5].tolist()
            ]
            + ([f"{source}: {len(strange) - 5} more {part} names are unknown."] if len(strange) > 5 else [])
        )
    return codes, np.asarray(names)


def match(values, names) -> np.ndarray:
    """Place of each value among the names, -1 where it is not there; numbers and their writing are the same."""
    values, names = np.asarray(values), np.asarray(names)
    if values.dtype.kind != "i" or names.dtype.kind != "i":
        values, names = values.astype(str).astype(object), names.astype(str).astype(object)
    index = pd.Index(names)
    if index.has_duplicates:
        raise PyrocrowdError(f"The list of names holds {listed(index[index.duplicated()].unique())} more than once.")
    return index.get_indexer(values)


def code_truth(truth, item_names, class_names, source="truth") -> np.ndarray | None:
    """True classes as integers in the order of the items, -1 where unknown."""
    if truth is None:
        return None
    if isinstance(truth, pd.DataFrame):
        parts = find_columns(truth, wanted=("item", "label"), source=source)
        truth = truth.set_index(parts["item"])[parts["label"]]
    if isinstance(truth, dict):
        truth = pd.Series(truth)
    if not isinstance(truth, pd.Series):
        truth = np.asarray(truth)
        if len(truth) != len(item_names):
            raise PyrocrowdError(f"{source} has {len(truth)} entries for {len(item_names)} items.")
        truth = pd.Series(truth, index=item_names)
        if truth.dtype.kind in "if":  # -1 and NaN both say "unknown" in an array
            truth = truth[(truth >= 0) | (truth.isin(class_names))]
    rows = np.flatnonzero(truth.notna())
    truth = truth.iloc[rows]
    items, labels = match(tidy(pd.Series(truth.index)), item_names), tidy(truth)
    codes, known = match(labels, class_names), items >= 0
    strange = pd.Series(rows + 1, labels)[known & (codes < 0)]
    strange = strange[~strange.index.duplicated()]
    problems = [
        f"{source}, row {row}: label {name!r} is not one of the {len(class_names)} classes ({listed(class_names)})."
        f"{did_you_mean(name, class_names)}"
        for name, row in strange[:5].items()
    ]
    if len(strange) > 5:
        problems.append(f"{source}: {counted(len(strange) - 5, 'more label', 'is', 'are')} not among the classes.")
    if len(truth) and not known.any():
        problems.append(f"{source}: none of its {len(truth)} items is in the crowd ({listed(truth.index, 3)}).")
    coded = np.full(len(item_names), -1, np.int64)
    coded[items[known]] = codes[known]
    twofold = np.unique(items[known][coded[items[known]] != codes[known]])
    if len(twofold):
        names, count = listed(np.asarray(item_names)[twofold]), counted(len(twofold), "item", "has", "have")
        problems.append(f"{source}: {count} two different true labels ({names}).")
    if problems:
        raise PyrocrowdError(problems)
    return coded


def _line_up(features, items):
    """Item names and the rows of a features table in their order."""
    index = tidy(pd.Series(features.index))
    if items is None:
        return index, features.to_numpy()
    items = tidy(items)
    places = match(items, index)
    if (places < 0).any():
        raise PyrocrowdError(f"The features table has no row for the items {listed(items[places < 0])}.")
    return items, features.to_numpy()[places]


def _item_names(column, items, features):
    """The items in the order of the feature rows, or None when any order will do."""
    if items is not None:
        return tidy(items)
    if features is None or getattr(features, "ndim", 1) == 0:  # a single value: the crowd says what is wrong with it
        return None
    values, rows = tidy(column), len(features)
    if values.dtype.kind == "i" and values.min() >= 0 and values.max() < rows:
        return np.arange(rows)
    if values.dtype.kind == "i" and values.max() >= rows:
        raise PyrocrowdError(
            f"The features have {rows} rows, numbered from 0, and the table has an item {values.max()}: give the items "
            "in the order of the rows (items=..., or a file tasks.txt beside the features)."
        )
    raise PyrocrowdError(
        f"The features have {rows} rows and the items have names: give the names in the order of the rows (items=..., "
        "a data frame of features indexed by item, or a file tasks.txt beside the features)."
    )


def _refuse_missing(table, source):
    if not len(table):
        raise PyrocrowdError(f"{source} holds no labels.")
    problems = []
    for part in table:
        column = table[part]
        missing = column.isna()
        if column.dtype.kind not in "iufb":
            missing |= column.astype(str).str.strip() == ""
        if missing.any():
            rows = (np.flatnonzero(missing) + 1).tolist()
            problems.append(f"{source}: {counted(len(rows), 'row', 'has', 'have')} no {part} (row {listed(rows)}).")
    if problems:
        raise PyrocrowdError(problems)
