"""From names to integers: the one place where columns are recognised, coded and matched."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pyrocrowd.errors import PyrocrowdError, did_you_mean, listed

KNOWN_COLUMNS = {
    "item": ("item", "task", "unit", "item_id", "task_id", "unit_id", "instance", "question_id", "example"),
    "annotator": ("annotator", "worker", "rater", "annotator_id", "worker_id", "rater_id", "user", "coder", "judge"),
    "label": ("label", "response", "answer", "annotation", "rating", "class", "judgment", "judgement", "category"),
}


def crowd_from_frame(cls, frame, columns, items, classes, features, annotator_features, truth, source="the table"):
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
        items = list(features.index) if items is None else items
        features = features.reindex(items).to_numpy()
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
        truth=code_truth(truth, item_names, class_names),
    )
    warn_about_repeats(crowd)
    return crowd


def crowd_from_matrix(cls, matrix, missing, features, truth, classes, annotators):
    """The work behind `Crowd.from_matrix`: dense with a missing value, or scipy sparse with its stored entries."""
    from pyrocrowd.data.features import as_features

    if hasattr(matrix, "tocoo"):
        entries = matrix.tocoo()
        item, annotator, label, shape = entries.row, entries.col, entries.data, entries.shape
        given = label != missing
        item, annotator, label = item[given], annotator[given], label[given]
    else:
        matrix = np.asarray(matrix)
        if matrix.ndim != 2:
            raise PyrocrowdError(f"from_matrix needs an items x annotators array, not {matrix.ndim} dimensions.")
        shape = matrix.shape
        given = (matrix == matrix) & (matrix != missing)  # NaN differs from itself: it is missing too
        item, annotator = np.nonzero(given)
        label = matrix[given]
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


def find_columns(frame, columns=None, wanted=("item", "annotator", "label"), source="the table") -> dict:
    """Which column of the frame plays which part, by the user's word or by its name."""
    columns = dict(columns or {})
    unknown = [part for part in columns if part not in KNOWN_COLUMNS]
    problems = [f"columns: {part!r} is not one of item, annotator, label." for part in unknown]
    by_lower_name = {str(name).strip().lower(): name for name in frame.columns}
    found = {}
    for part in wanted:
        if part in columns:
            if columns[part] in frame.columns:
                found[part] = columns[part]
            else:
                hint = did_you_mean(columns[part], frame.columns)
                problems.append(f"{source}: there is no column {columns[part]!r} for the {part}.{hint}")
            continue
        matches = [by_lower_name[name] for name in KNOWN_COLUMNS[part] if name in by_lower_name]
        if matches:
            found[part] = matches[0]
        else:
            problems.append(
                f"{source}: no column for the {part} among {listed(frame.columns, 8)}; name it one of "
                f"{', '.join(KNOWN_COLUMNS[part][:3])}, or say which it is with columns {part}=NAME."
            )
    if problems:
        raise PyrocrowdError(problems)
    return found


def tidy(names) -> np.ndarray:
    """Names as integers where every one of them is a whole number in plain writing, else as strings.

    `007` stays a string: a leading zero is part of a name, and nothing that a user gave us is lost.
    """
    series = pd.Series(names).reset_index(drop=True)
    if series.dtype.kind in "iub":
        return series.to_numpy(np.int64)
    if series.dtype.kind == "f":
        values = series.to_numpy()
        whole = np.isfinite(values).all() and (values == np.floor(values)).all()
        return values.astype(np.int64) if whole else values.astype(str).astype(object)
    distinct = series.astype(str).drop_duplicates()
    if len(distinct) and distinct.str.fullmatch(r"-?(0|[1-9][0-9]{0,17})").all() and not (distinct == "-0").any():
        return series.astype(str).to_numpy(object).astype(np.int64)
    return series.astype(str).to_numpy(object)


def code(column, names, part, source):
    """Integers for a column of names, and the names: the sorted distinct ones, or those that are given."""
    values = tidy(column)
    if names is None:
        codes, found = pd.factorize(values, sort=True)
        return codes, found
    codes = match(values, names)
    strange = pd.unique(values[codes < 0])
    if len(strange):
        what = {"label": "classes", "item": "items", "annotator": "annotators"}[part]
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
    return pd.Index(names).get_indexer(values)


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
    truth = truth[truth.notna()]
    items = match(tidy(pd.Series(truth.index)), item_names)
    labels = tidy(truth)
    codes = match(labels, class_names)
    known = items >= 0
    strange = pd.unique(labels[known & (codes < 0)])
    problems = [
        f"{source}: label {name!r} is not one of the {len(class_names)} classes ({listed(class_names)})."
        f"{did_you_mean(name, class_names)}"
        for name in strange[:5].tolist()
    ]
    if len(strange) > 5:
        problems.append(f"{source}: {len(strange) - 5} more labels are not among the classes.")
    if len(truth) and not known.any():
        problems.append(f"{source}: none of its {len(truth)} items is in the crowd ({listed(truth.index, 3)}).")
    if problems:
        raise PyrocrowdError(problems)
    coded = np.full(len(item_names), -1, np.int64)
    coded[items[known]] = codes[known]
    return coded


def _item_names(column, items, features):
    """The items in the order of the feature rows, or None when any order will do."""
    if items is not None:
        return tidy(items)
    if features is None:
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
            problems.append(f"{source}: {len(rows)} rows have no {part} (row {listed(rows)}).")
    if problems:
        raise PyrocrowdError(problems)
