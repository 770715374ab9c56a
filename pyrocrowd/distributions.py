"""The few distributions that the models share."""

from __future__ import annotations

import torch
from pyro.distributions import TorchDistribution, constraints


class _GivenTruth(TorchDistribution):
    """A label whose chances are row `truth` of a matrix; what the matrices are made of is left to those below.

    With `truth` enumerated by Pyro, scoring looks up one column of the matrix per annotation, over all true classes at
    once, and lays it on the enumeration dimension; it never copies a row of classes for every annotation and class.
    """

    arg_constraints = {}
    has_enumerate_support = False

    def __init__(self, matrices, annotator, truth, validate_args=None):
        self.matrices, self.annotator, self.truth = matrices, annotator, truth
        batch_shape = torch.broadcast_shapes(annotator.shape, truth.shape)
        super().__init__(batch_shape, validate_args=validate_args)

    def _classes(self) -> int:
        raise NotImplementedError

    def _log_columns(self, label):
        """log P(label | truth = c) of every annotation for all c: (..., classes)."""
        raise NotImplementedError

    def _rows(self):
        """P(label = l | truth) of every annotation for all l: (..., classes)."""
        raise NotImplementedError

    def _log_entries(self, label):
        """log P(label | truth) of every annotation, where the truth is not enumerated."""
        raise NotImplementedError

    @property
    def support(self):
        return constraints.integer_interval(0, self._classes() - 1)

    def expand(self, batch_shape, _instance=None):
        batch_shape = torch.Size(batch_shape)
        if batch_shape == self.batch_shape:
            return self
        return type(self)(self.matrices, self.annotator.expand(batch_shape), self.truth, validate_args=False)

    def log_prob(self, label):
        if self._validate_args:
            self._validate_sample(label)
        if not self._truth_is_enumerated():
            return self._log_entries(label)
        scores = self._log_columns(label)
        between = self.truth.dim() - scores.dim()  # ones between truth's own dimension and the plates
        return scores.movedim(-1, 0).reshape(self.truth.shape[0], *(1,) * between, *scores.shape[:-1])

    def sample(self, sample_shape=()):
        shape = torch.Size(sample_shape) + self.batch_shape
        rows = self._rows().expand(*shape, -1)
        return torch.multinomial(rows.reshape(-1, rows.shape[-1]), 1).reshape(shape)

    def _truth_is_enumerated(self):
        """Pyro lays an enumerated site out as `arange(classes)` on a dimension of its own, left of all plates."""
        truth, classes = self.truth, self._classes()
        return (
            truth.dim() > self.annotator.dim()
            and truth.shape[0] == classes == truth.numel()
            and bool((truth.flatten() == torch.arange(classes, device=truth.device)).all())
        )


class Confused(_GivenTruth):
    """The label an annotator gives to an item of a given true class: row `truth` of the annotator's matrix.

    `P(label = l) = confusion[annotator, truth, l]`, the same as `Categorical(confusion[annotator, truth])`, but faster
    where the truth is enumerated.

    Parameters
    ----------
    confusion : torch.Tensor, shape (matrices, classes, classes)
        Row-stochastic: rows are true classes, columns given labels.
    annotator : torch.Tensor of int
        Which matrix; broadcasts with `truth`.
    truth : torch.Tensor of int
        True class, observed, drawn or enumerated by Pyro.
    """

    def __init__(self, confusion, annotator, truth, validate_args=None):
        super().__init__(confusion, annotator, truth, validate_args)
        if self._validate_args and not constraints.simplex.check(confusion).all():
            raise ValueError("Expected parameter confusion to satisfy the constraint Simplex(), but found others")

    def _classes(self):
        return self.matrices.shape[-1]

    def _log_matrices(self):
        # The floor keeps a zero cell (EM without smoothing) from turning into NaN where it is multiplied by zero.
        return self.matrices.clamp(min=torch.finfo(self.matrices.dtype).tiny).log()

    def _log_columns(self, label):
        columns = self._log_matrices().transpose(-1, -2).reshape(-1, self._classes())
        return torch.nn.functional.embedding(self.annotator * self._classes() + label, columns)

    def _log_entries(self, label):
        return self._log_matrices()[self.annotator, self.truth, label]

    def _rows(self):
        return self.matrices[self.annotator, self.truth]


class ConfusedLowRank(_GivenTruth):
    """`Confused` for many classes: matrices `diag(d_r) + U_r V_r^T` that are never written out.

    Parameters
    ----------
    factors : tuple of torch.Tensor, shapes (matrices, classes), (matrices, classes, rank), (matrices, classes, rank)
        d, U and V, not negative; the rows of the matrix sum to one.
    annotator, truth : torch.Tensor of int
        As for `Confused`.
    """

    def _classes(self):
        return self.matrices[0].shape[-1]

    def _log_columns(self, label):
        diagonal, left, right = self.matrices
        column = torch.einsum("...ck,...k->...c", left[self.annotator], right[self.annotator, label])
        own = diagonal[self.annotator, label].unsqueeze(-1)
        return column.scatter_add(-1, label.unsqueeze(-1), own.expand(*label.shape, 1)).log()

    def _log_entries(self, label):
        diagonal, left, right = self.matrices
        entry = (left[self.annotator, self.truth] * right[self.annotator, label]).sum(-1)
        return (entry + diagonal[self.annotator, label] * (self.truth == label)).log()

    def _rows(self):
        diagonal, left, right = self.matrices
        rows = torch.einsum("...k,...lk->...l", left[self.annotator, self.truth], right[self.annotator])
        own = torch.nn.functional.one_hot(self.truth, self._classes()) * diagonal[self.annotator]
        return rows + own


def imagined_labels(classes, strength) -> torch.Tensor:
    """A prior of confusion matrices, in labels: `strength` for items of each class, two thirds of them right.

    Rows are true classes, columns answers, shape (classes, classes). Annotators are believed to be better than chance,
    and one who is not shows it within a few labels.
    """
    wrong = strength / 3 / (classes - 1)
    return torch.full((classes, classes), wrong) + torch.eye(classes) * (2 * strength / 3 - wrong)
