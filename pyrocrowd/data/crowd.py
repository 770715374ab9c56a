"""`Crowd`: the annotation table. Names come in, integers are stored, and the names are kept for the way out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cached_property
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch

from pyrocrowd import metrics
from pyrocrowd.data import naming
from pyrocrowd.data.batch import Batch
from pyrocrowd.data.features import FeatureSource, check_features
from pyrocrowd.errors import PyrocrowdError, PyrocrowdWarning, listed


class Crowd:
    """Labels that annotators gave to items: a long table of integers, with the names they stand for.

    Build one with `Crowd.from_frame`, `Crowd.from_matrix` or `Crowd.read`; this constructor takes coded arrays.

    Parameters
    ----------
    item, annotator, label : array of int, shape (n_annotations,)
        One row per label. A pair may occur more than once.
    item_names, annotator_names, class_names : array
        What the integers stand for; their lengths are the sizes of the crowd.
    features : array, memory-mapped array, tensor or torch Dataset with n_items rows, optional
    annotator_features : array, shape (n_annotators, dimension), optional
    truth : array of int, shape (n_items,), optional
        True classes where they are known, -1 elsewhere. Used to score a fit, never to make one.
    """

    def __init__(
        self,
        item,
        annotator,
        label,
        *,
        item_names,
        annotator_names,
        class_names,
        features=None,
        annotator_features=None,
        truth=None,
        device="cpu",
    ):
        self.item, self.annotator, self.label = (np.asarray(column, np.int64) for column in (item, annotator, label))
        self.item_names, self.annotator_names = np.asarray(item_names), np.asarray(annotator_names)
        self.class_names = np.asarray(class_names)
        self.features = features
        self.annotator_features = None if annotator_features is None else np.asarray(annotator_features)
        self.truth = None if truth is None else np.asarray(truth, np.int64)
        self.device = torch.device(device)
        self._feature_source = FeatureSource(features)
        self._full_batch, self._made_up = None, False
        problems = self._problems()
        if problems:
            raise PyrocrowdError(problems)

    # ---------------------------------------------------------------- ways in

    @classmethod
    def from_frame(
        cls, frame, *, columns=None, items=None, classes=None, features=None, annotator_features=None, truth=None
    ) -> Crowd:
        """A crowd from a table with one label per row.

        Parameters
        ----------
        frame : pandas.DataFrame
            Columns for the item (`item`, `task`, `unit` ...), the annotator (`annotator`, `worker`, `rater` ...) and
            the label (`label`, `response` ...), in any order and case.
        columns : dict, optional
            For other names: `{"item": "photo", "annotator": "who", "label": "answer"}`.
        items : sequence, optional
            All item names in the order of the rows of `features`. Without it, integer items are row numbers.
        classes : sequence, optional
            All class names in order, when some may never have been given as a label.
        features : array, tensor, Dataset or pandas.DataFrame indexed by item, optional
        annotator_features : array in the order of `annotator_names` or pandas.DataFrame indexed by annotator, optional
        truth : pandas.Series or dict (item -> label), array with one label per item, or DataFrame, optional
        """
        return naming.crowd_from_frame(cls, frame, columns, items, classes, features, annotator_features, truth)

    @classmethod
    def from_matrix(cls, matrix, missing=-1, *, features=None, truth=None, classes=None, annotators=None) -> Crowd:
        """A crowd from an items x annotators array (or scipy sparse matrix, whose stored entries are the labels)."""
        return naming.crowd_from_matrix(cls, matrix, missing, features, truth, classes, annotators)

    @classmethod
    def read(cls, path, *, columns=None, features=None, truth=None, split=None) -> Crowd:
        """A crowd from a .csv, .tsv, .parquet or .jsonl file, or from a folder that holds `annotations.csv`.

        Beside `annotations.csv` a folder may hold `features.npy` (or `features_train.npy`), `truth.csv` (or
        `truth_train.csv`), `tasks.txt` (item names in the order of the feature rows) and `classes.txt`.

        Parameters
        ----------
        path : str or Path
        columns : dict, optional
            As in `from_frame`.
        features, truth : str, Path, array or False, optional
            Instead of the folder's own; False leaves them out.
        split : str, optional
            `"valid"` or `"test"`: the unlabelled items of `features_valid.npy` with `truth_valid.csv`, in the classes
            and annotators of this crowd.
        """
        from pyrocrowd.data.read import read_crowd

        return read_crowd(cls, path, columns=columns, features=features, truth=truth, split=split)

    # ---------------------------------------------------------------- sizes

    @property
    def n_items(self) -> int:
        return len(self.item_names)

    @property
    def n_annotators(self) -> int:
        return len(self.annotator_names)

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def n_annotations(self) -> int:
        return len(self.label)

    def __len__(self) -> int:
        return self.n_annotations

    @cached_property
    def labels_per_item(self) -> np.ndarray:
        return np.bincount(self.item, minlength=self.n_items)

    @cached_property
    def labels_per_annotator(self) -> np.ndarray:
        return np.bincount(self.annotator, minlength=self.n_annotators)

    # ---------------------------------------------------------------- a look at it

    def summary(self) -> pd.Series:
        """Sizes, redundancy, class balance and agreement, in one column.

        Raw agreement is the share of label pairs on the same item that are equal; Krippendorff's alpha corrects it for
        chance (1 perfect, 0 chance).
        """
        per_annotator = self.labels_per_annotator
        rows = {
            "items": self.n_items,
            "annotators": self.n_annotators,
            "classes": self.n_classes,
            "annotations": self.n_annotations,
            "labels per item": self.n_annotations / max(self.n_items, 1),
            "labels per item, least": int(self.labels_per_item.min(initial=self.n_annotations)),
            "labels per item, most": int(self.labels_per_item.max(initial=0)),
            "items without labels": int((self.labels_per_item == 0).sum()),
            "labels per annotator": self.n_annotations / max(self.n_annotators, 1),
            "labels per annotator, median": float(np.median(per_annotator)) if len(per_annotator) else 0.0,
            "labels per annotator, most": int(per_annotator.max(initial=0)),
            "repeated (item, annotator) pairs": self.n_repeated,
            "raw agreement": self.raw_agreement(),
            "Krippendorff's alpha": metrics.krippendorff_alpha(self),
        }
        shares = np.bincount(self.label, minlength=self.n_classes) / max(self.n_annotations, 1)
        rows.update({f"share of label {name}": share for name, share in zip(self.class_names, shares, strict=True)})
        if self.truth is not None:
            known = self.truth[self.item] >= 0
            right = self.label[known] == self.truth[self.item][known]
            rows["items with known truth"] = int((self.truth >= 0).sum())
            rows["labels equal to the truth"] = float(right.mean()) if len(right) else float("nan")
        return pd.Series(rows, name="crowd", dtype=object)

    def raw_agreement(self) -> float:
        """Share of pairs of labels on the same item that agree; NaN when no item has two labels."""
        cells = np.unique(self.item * self.n_classes + self.label, return_counts=True)[1].astype(float)
        counts = self.labels_per_item.astype(float)
        pairs = (counts * (counts - 1)).sum()
        return float((cells * (cells - 1)).sum() / pairs) if pairs else float("nan")

    @cached_property
    def n_repeated(self) -> int:
        """How many rows repeat an (item, annotator) pair that stands further up."""
        return self.n_annotations - len(np.unique(self.item * max(self.n_annotators, 1) + self.annotator))

    def to_frame(self) -> pd.DataFrame:
        """The table with its names back: columns item, annotator, label."""
        names = (self.item_names[self.item], self.annotator_names[self.annotator], self.class_names[self.label])
        return pd.DataFrame(dict(zip(("item", "annotator", "label"), names, strict=True)))

    def __repr__(self) -> str:
        extras = []
        if self.features is not None:
            extras.append(f"features {self._feature_source.describe()}")
        if self.truth is not None:
            extras.append(f"truth of {(self.truth >= 0).sum():,} items")
        return (
            f"Crowd: {self.n_annotations:,} labels by {self.n_annotators:,} annotators on {self.n_items:,} items "
            f"in {self.n_classes} classes ({listed(self.class_names)})" + "".join(f", {extra}" for extra in extras)
        )

    def _repr_html_(self) -> str:
        table = self.summary().map(lambda value: f"{value:,.3f}" if isinstance(value, float) else f"{value:,}")
        return table.to_frame().to_html(header=False)

    # ---------------------------------------------------------------- parts of it

    def keep(self, rows) -> Crowd:
        """The same items, annotators and classes with only some rows of the table (mask or indices)."""
        return self._with(item=self.item[rows], annotator=self.annotator[rows], label=self.label[rows])

    def select_items(self, items) -> Crowd:
        """Only these items (indices), renumbered in the order given, with their labels, features and truth."""
        items = np.asarray(items, np.int64)
        place = np.full(self.n_items, -1)
        place[items] = np.arange(len(items))
        rows = place[self.item] >= 0
        return self._with(
            item=place[self.item[rows]],
            annotator=self.annotator[rows],
            label=self.label[rows],
            item_names=self.item_names[items],
            features=self._feature_source.subset(items),
            truth=None if self.truth is None else self.truth[items],
        )

    def pairs(self, item, annotator) -> Crowd:
        """The same items and annotators with a made-up label for each of these pairs: to ask a model about them."""
        asked = self._with(item=item, annotator=annotator, label=np.zeros(len(item), np.int64))
        asked._made_up = True
        return asked

    def split(self, fraction=0.8, seed=0) -> tuple[Crowd, Crowd]:
        """Two crowds with disjoint items: a random `fraction` of them, and the rest."""
        if not 0 < fraction < 1:
            raise PyrocrowdError(f"split needs a fraction between 0 and 1, not {fraction}.")
        order = np.random.default_rng(seed).permutation(self.n_items)
        first = round(fraction * self.n_items)
        return self.select_items(np.sort(order[:first])), self.select_items(np.sort(order[first:]))

    def limit_redundancy(self, k, seed=0) -> Crowd:
        """At most `k` labels per item, chosen uniformly; items with fewer keep all."""
        if k < 1:
            raise PyrocrowdError(f"limit_redundancy needs at least 1 label per item, not {k}.")
        shuffled = np.random.default_rng(seed).permutation(self.n_annotations)
        shuffled = shuffled[np.argsort(self.item[shuffled], kind="stable")]
        first = np.concatenate([[0], np.cumsum(self.labels_per_item)])[:-1]
        rank = np.arange(self.n_annotations) - first[self.item[shuffled]]
        return self.keep(np.sort(shuffled[rank < k]))

    def hold_out_annotations(self, fraction=0.1, seed=0) -> tuple[Crowd, Crowd]:
        """Two crowds over the same items and annotators: most of the labels, and a random `fraction` of them."""
        if not 0 < fraction < 1:
            raise PyrocrowdError(f"hold_out_annotations needs a fraction between 0 and 1, not {fraction}.")
        held = np.zeros(self.n_annotations, bool)
        order = np.random.default_rng(seed).permutation(self.n_annotations)
        held[order[: max(1, round(fraction * self.n_annotations))]] = True
        return self.keep(~held), self.keep(held)

    def to(self, device) -> Crowd:
        """The same crowd whose batches live on `device`."""
        return self if torch.device(device) == self.device else self._with(device=device)

    def _with(self, **changes) -> Crowd:
        fields = dict(
            item=self.item,
            annotator=self.annotator,
            label=self.label,
            item_names=self.item_names,
            annotator_names=self.annotator_names,
            class_names=self.class_names,
            features=self.features,
            annotator_features=self.annotator_features,
            truth=self.truth,
            device=self.device,
        )
        return Crowd(**fields | changes)

    # ---------------------------------------------------------------- what a model sees

    def batch(self, items=None) -> Batch:
        """The padded view of some items (indices), or of all of them."""
        if items is None:
            dtype = torch.get_default_dtype()  # features come in it, so a batch belongs to one
            if self._full_batch is None or self._full_batch[0] != dtype:
                self._full_batch = dtype, self._build_batch(torch.arange(self.n_items, device=self.device))
            return self._full_batch[1]
        return self._build_batch(torch.as_tensor(items, device=self.device))

    def batches(self, size=None, generator=None) -> Iterator[Batch]:
        """All items once, in batches of about `size`.

        With a numpy `generator` the order is random and items of like redundancy share a batch, so that padding stays
        small on heavy-tailed crowds; without one the items come sorted by redundancy.
        """
        counts = self.labels_per_item
        if generator is None:
            cuts = _cut(np.argsort(counts, kind="stable"), counts, size or self.n_items)
            yield from map(self.batch, cuts if len(cuts) > 1 else [None])
            return
        if size is None or size >= self.n_items:
            yield self.batch()
            return
        pools = np.array_split(generator.permutation(self.n_items), max(1, self.n_items // (16 * size)))
        cuts = [cut for pool in pools for cut in _cut(pool[np.argsort(counts[pool], kind="stable")], counts, size)]
        for place in generator.permutation(len(cuts)):
            yield self.batch(cuts[place])

    def soft_vote(self) -> torch.Tensor:
        """Share of each class among the labels of each item, (n_items, n_classes); uniform where there are none."""
        return torch.as_tensor(metrics.soft_vote(self), dtype=torch.get_default_dtype(), device=self.device)

    def count(self, truth: torch.Tensor, per_label=False) -> torch.Tensor:
        """How often each annotator gave each label to each true class, in expectation.

        Parameters
        ----------
        truth : torch.Tensor, shape (n_items, n_classes)
            Probability of each class for each item.
        per_label : bool
            `truth` has a row for every label of the table instead, in its order: labels may count with weights.

        Returns
        -------
        torch.Tensor, shape (n_annotators, n_classes, n_classes)
            `counts[r, c, l] = sum_{i: y_ir = l} truth[i, c]`: a sparse product, no items x annotators array.
        """
        item, row, offsets = self._by_cell
        counts = torch.nn.functional.embedding_bag(row if per_label else item, truth, offsets, mode="sum")
        return counts.reshape(self.n_annotators, self.n_classes, self.n_classes).transpose(-1, -2)

    @cached_property
    def _by_cell(self):
        """Items and rows sorted by (annotator, label), and where such cells start: the sparse matrix of `count`."""
        cell = self.annotator * self.n_classes + self.label
        order = np.argsort(cell, kind="stable")
        start = np.searchsorted(cell[order], np.arange(self.n_annotators * self.n_classes))
        return tuple(torch.as_tensor(column, device=self.device) for column in (self.item[order], order, start))

    @property
    def feature_shape(self) -> tuple[int, ...] | None:
        """Shape of the features of one item, or None."""
        return None if self.features is None else self._feature_source.shape()

    def new_items(self, features) -> Crowd:
        """Items nobody has labelled, with these features, in the classes and annotators of this crowd."""
        size = len(features)
        empty = np.zeros(0, np.int64)
        return self._with(
            item=empty, annotator=empty, label=empty, item_names=np.arange(size), features=features, truth=None
        )

    @cached_property
    def _by_item(self) -> SimpleNamespace:
        """The table sorted by item, as tensors: the labels of item k stand at start[k] ... start[k] + count[k]."""
        order = np.argsort(self.item, kind="stable")
        start = np.concatenate([[0], np.cumsum(self.labels_per_item)])
        columns = dict(row=order, annotator=self.annotator[order], label=self.label[order])
        columns.update(start=start[:-1], count=self.labels_per_item)
        return SimpleNamespace(**{name: torch.as_tensor(one, device=self.device) for name, one in columns.items()})

    def _build_batch(self, index) -> Batch:
        table = self._by_item
        count = table.count[index]
        slots = max(1, int(count.max())) if len(index) else 1
        slot = torch.arange(slots, device=self.device).unsqueeze(-1)
        mask = slot < count
        annotator = label = row = torch.zeros_like(mask, dtype=torch.long)
        if self.n_annotations:
            row = torch.where(mask, table.start[index] + slot, 0)
            annotator = torch.where(mask, table.annotator[row], 0)
            label = torch.where(mask, table.label[row], 0)
            row = torch.where(mask, table.row[row], 0)
        annotator_features = self.annotator_features
        if annotator_features is not None:
            annotator_features = torch.as_tensor(annotator_features, device=self.device).to(torch.get_default_dtype())
        return Batch(
            (self.n_items, self.n_annotators, self.n_classes, self.n_annotations),
            index,
            annotator,
            label,
            mask,
            row,
            self._feature_source.rows(index, self.device),
            annotator_features,
            self._made_up,
        )

    def _problems(self) -> list[str]:
        problems = []
        if not len(self.item) == len(self.annotator) == len(self.label):
            return ["The columns item, annotator and label differ in length."]
        columns = (("item", self.n_items), ("annotator", self.n_annotators), ("label", self.n_classes))
        for name, size in columns:
            column = getattr(self, name)
            if len(column) and (column.min() < 0 or column.max() >= size):
                problems.append(f"The {name} column holds a number outside 0 ... {size - 1}.")
        problems += check_features(self.features, self.n_items)
        if self.annotator_features is not None and len(self.annotator_features) != self.n_annotators:
            problems.append(
                f"annotator_features has {len(self.annotator_features)} rows for {self.n_annotators} annotators."
            )
        if self.truth is not None and len(self.truth) != self.n_items:
            problems.append(f"truth has {len(self.truth)} entries for {self.n_items} items.")
        return problems

    def __getattr__(self, name):
        if name in ("items", "annotators", "annotations"):
            raise PyrocrowdError(f"A model reads `crowd.{name}` from a padded batch: call it as model(crowd.batch()).")
        raise AttributeError(f"Crowd has no attribute {name!r}")


def warn_about_repeats(crowd: Crowd) -> None:
    """Repeated (item, annotator) rows are kept: someone may have answered twice on purpose."""
    if crowd.n_repeated:
        warnings.warn(
            f"{crowd.n_repeated} rows repeat an (item, annotator) pair; all of them are kept as separate labels.",
            PyrocrowdWarning,
            stacklevel=4,
        )


def _cut(order, counts, size, most_cells=2**21) -> list[np.ndarray]:
    """Cut items sorted by redundancy into batches of at most `size` items whose padding and memory stay small."""
    labels = np.concatenate([[0], np.cumsum(counts[order])])
    cuts, start = [], 0
    while start < len(order):
        stop = min(start + size, len(order))
        while stop - start > 1:
            cells = (stop - start) * counts[order[stop - 1]]
            if cells <= most_cells and cells <= 2 * (labels[stop] - labels[start]) + 4096:
                break
            stop = start + (stop - start) // 2
        cuts.append(order[start:stop])
        start = stop
    return cuts
