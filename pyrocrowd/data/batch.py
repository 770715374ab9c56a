"""What a model sees: some items of a crowd with their labels padded to `(slot, item)`, and the plates over them.

The long table cannot be handed to Pyro as it is: a flat plate over annotations that looks up `truth[item]` breaks the
enumeration rule and is silently wrong. Nesting annotations inside items, one padded slot per label, is exact.
"""

from __future__ import annotations

from contextlib import contextmanager
from copy import copy

import pyro
import torch
from pyro import poutine

from pyrocrowd.errors import PyrocrowdError

ITEM_DIM, ANNOTATION_DIM = -1, -2
PLATE_NESTING = 2


class Batch:
    """Some items of a crowd, ready for a model.

    Attributes
    ----------
    n_items, n_annotators, n_classes, n_annotations : int
        Sizes of the whole crowd; the `items` plate scales a mini-batch up to it.
    index : torch.Tensor, shape (size,)
        Which items of the crowd these are.
    annotator, label, mask : torch.Tensor, shape (slot, size)
        The labels of item `k` stand in column `k`; `mask` is False where the column is padded. `label` is None
        when the labels are hidden (a model then draws them).
    row : torch.Tensor, shape (slot, size)
        Which row of the crowd's table each label is.
    annotator_features : torch.Tensor, shape (n_annotators, dimension), or None
    made_up : bool
        Whether nobody gave these labels: a model is asked about the pairs, and `row` is no row of the fitted table.
    """

    def __init__(
        self, sizes, index, annotator, label, mask, row, features=None, annotator_features=None, made_up=False
    ):
        self.n_items, self.n_annotators, self.n_classes, self.n_annotations = sizes
        self.index, self.annotator, self.label, self.mask, self.row = index, annotator, label, mask, row
        self.annotator_features, self.made_up = annotator_features, made_up
        self.features_were_read = False
        self._features = features
        # The plates live as long as the batch: a model may enter each as often as it likes, and a step builds none.
        size = len(index)
        self.items = pyro.plate(
            "items", max(self.n_items, size), subsample=index if size < self.n_items else None, dim=ITEM_DIM
        )
        self.annotators = pyro.plate("annotators", self.n_annotators, dim=ITEM_DIM)
        self._annotation_plate = pyro.plate("annotations", len(annotator), dim=ANNOTATION_DIM)

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        slots = len(self.annotator)
        return f"Batch of {len(self)} items, up to {slots} labels each, {self.n_classes} classes"

    @property
    def features(self) -> torch.Tensor:
        """Features of these items, shape (size, ...)."""
        self.features_were_read = True
        if self._features is None:
            raise PyrocrowdError("This model reads item features and the crowd has none: give them with --features F.")
        return self._features

    @property
    @contextmanager
    def annotations(self):
        """The plate over the labels of each item, inside `items`; gives who labelled, shape (slot, size)."""
        with self._annotation_plate, poutine.mask(mask=self.mask):
            yield self.annotator

    def hide_labels(self) -> Batch:
        """The same batch with the labels unobserved, so that a model draws them."""
        hidden = copy(self)
        hidden.label = None
        return hidden
