"""The few distributions that the models share."""

from __future__ import annotations

import torch
from pyro.distributions import TorchDistribution, constraints


class Confused(TorchDistribution):
    """The label an annotator gives to an item of a given true class: row `truth` of the annotator's matrix.

    `P(label = l) = confusion[annotator, truth, l]`, the same as `Categorical(confusion[annotator, truth])`, but scoring
    does not copy a row of classes for every annotation: with `truth` enumerated it looks up, once per annotation, the
    column `confusion[annotator, :, label]` and lays it on the enumeration dimension.

    Parameters
    ----------
    confusion : torch.Tensor, shape (matrices, classes, classes)
        Row-stochastic: rows are true classes, columns given labels.
    annotator : torch.Tensor of int
        Which matrix; broadcasts with `truth`.
    truth : torch.Tensor of int
        True class, observed, drawn or enumerated by Pyro.
    """

    arg_constraints = {"confusion": constraints.simplex}
    has_enumerate_support = False

    def __init__(self, confusion, annotator, truth, validate_args=None):
        self.confusion, self.annotator, self.truth = confusion, annotator, truth
        batch_shape = torch.broadcast_shapes(annotator.shape, truth.shape)
        super().__init__(batch_shape, validate_args=validate_args)

    @property
    def support(self):
        return constraints.integer_interval(0, self.confusion.shape[-1] - 1)

    def expand(self, batch_shape, _instance=None):
        batch_shape = torch.Size(batch_shape)
        if batch_shape == self.batch_shape:
            return self
        return Confused(self.confusion, self.annotator.expand(batch_shape), self.truth, validate_args=False)

    def log_prob(self, label):
        if self._validate_args:
            self._validate_sample(label)
        # The floor keeps a zero cell (EM without smoothing) from turning into NaN where it is multiplied by zero.
        log_confusion = self.confusion.clamp(min=torch.finfo(self.confusion.dtype).tiny).log()
        classes = self.confusion.shape[-1]
        if not self._truth_is_enumerated(classes):
            return log_confusion[self.annotator, self.truth, label]
        columns = log_confusion.transpose(-1, -2).reshape(-1, classes)
        scores = torch.nn.functional.embedding(self.annotator * classes + label, columns)
        return scores.movedim(-1, 0).reshape(self._enumerated_shape(scores.shape[:-1]))

    def sample(self, sample_shape=()):
        shape = torch.Size(sample_shape) + self.batch_shape
        rows = self.confusion[self.annotator, self.truth].expand(*shape, -1)
        return torch.multinomial(rows.reshape(-1, rows.shape[-1]), 1).reshape(shape)

    def _truth_is_enumerated(self, classes):
        """Pyro lays an enumerated site out as `arange(classes)` on a dimension of its own, left of all plates."""
        truth = self.truth
        return (
            truth.dim() > self.annotator.dim()
            and truth.shape[0] == classes == truth.numel()
            and bool((truth.flatten() == torch.arange(classes, device=truth.device)).all())
        )

    def _enumerated_shape(self, plates):
        """Classes on truth's own dimension, ones between it and the plates."""
        between = self.truth.dim() - 1 - len(plates)
        return (self.truth.shape[0], *(1,) * between, *plates)


def imagined_labels(classes, strength) -> torch.Tensor:
    """A prior of confusion matrices, in labels: `strength` for items of each class, two thirds of them right.

    Rows are true classes, columns answers, shape (classes, classes). Annotators are believed to be better than chance,
    and one who is not shows it within a few labels.
    """
    wrong = strength / 3 / (classes - 1)
    return torch.full((classes, classes), wrong) + torch.eye(classes) * (2 * strength / 3 - wrong)
