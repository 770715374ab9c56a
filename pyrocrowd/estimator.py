"""The door for scikit-learn: features and noisy labels in, a classifier of new items out."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.sparse import issparse
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    has_fit_parameter,
    validate_data,
)

from pyrocrowd.data import Crowd
from pyrocrowd.errors import PyrocrowdError
from pyrocrowd.infer.run import fit

NEGLIGIBLE = 1e-3  # an item whose class is less probable than this is not shown to the classifier under that class
LABELS = {"accept_sparse": True, "ensure_all_finite": "allow-nan", "ensure_2d": False, "dtype": None}


class CrowdClassifier(ClassifierMixin, BaseEstimator):
    """A scikit-learn classifier that learns from the labels of many annotators.

    A model with a network of its own predicts with it. A model of the labels alone (such as `dawid_skene`) infers the
    truth of the training items, and `classifier` then learns from it: every labelled item counts for each class with
    its posterior probability as `sample_weight`.

    Parameters
    ----------
    model : str, path, function or class
        As in `pyrocrowd.fit`.
    engine : EM, MAP, SVI, NUTS or its name, optional
    classifier : scikit-learn classifier whose `fit` takes `sample_weight`, or a Pipeline that ends in one, optional
        Default: logistic regression on standardised features. Only used for models of the labels alone.
    hyper_parameters : dict, optional
        Keywords of the model.
    seed : int
    device : "auto", "cpu", "cuda" or "mps"

    Attributes
    ----------
    classes_ : array, shape (n_classes,)
        The labels that were given, sorted.
    truth_ : array, shape (n_items, n_classes)
        Posterior probability of each class for each training item.
    fit_ : Fit
        Annotators, posteriors and all else that was learned.
    classifier_ : fitted classifier, or None where the model predicts by itself
    n_features_in_ : int

    Notes
    -----
    `cross_val_score` and `GridSearchCV` split Y by rows; leave their `scoring` alone, see `score`. With a number as
    `cv`, scikit-learn looks into Y and understands -1 and "", not None or NaN: for these, and for a sparse Y (which
    only the searches take), give a splitter such as `cv=KFold(5)`.

    Examples
    --------
    >>> import numpy as np
    >>> from pyrocrowd import CrowdClassifier
    >>> X = np.array([[0.0], [0.1], [0.2], [0.8], [0.9], [1.0]])
    >>> Y = np.array([["no", "no", ""], ["no", "", "no"], ["no", "no", "yes"],
    ...               ["yes", "yes", "no"], ["", "yes", "yes"], ["yes", "yes", ""]])
    >>> model = CrowdClassifier("dawid_skene").fit(X, Y)
    >>> model.predict([[0.05], [0.95]])
    array(['no', 'yes'], dtype='<U3')
    """

    def __init__(self, model="dawid_skene", engine=None, classifier=None, hyper_parameters=None, seed=0, device="auto"):
        self.model = model
        self.engine = engine
        self.classifier = classifier
        self.hyper_parameters = hyper_parameters
        self.seed = seed
        self.device = device

    def fit(self, X, Y):
        """Learn from noisy labels.

        Parameters
        ----------
        X : array, shape (n_items, n_features), or (n_items, ...) for images
        Y : array, shape (n_items, n_annotators), sparse matrix, DataFrame, or array of shape (n_items,)
            Labels: numbers or names. Missing is -1, NaN, None or ""; in a sparse matrix also what is not stored. One
            dimension is one annotator; -1 is a label there if all the labels are -1 and 1, else missing. Labels alone
            cannot tell where a single annotator errs; `majority_vote` takes such labels at their word.

        Returns
        -------
        CrowdClassifier
            Itself.
        """
        annotators = getattr(Y, "columns", None)
        X, Y = validate_data(self, X, _as_array(Y), validate_separately=({"allow_nd": True}, LABELS))
        check_consistent_length(X, Y)
        one_annotator = Y.ndim == 1
        item, annotator, label = _given_labels(Y, signed=one_annotator and set(Y.tolist()) == {-1, 1})
        check_classification_targets(label)
        self.classes_, code = np.unique(label, return_inverse=True)
        if len(self.classes_) < 2:
            raise PyrocrowdError(
                f"All labels are {self.classes_[0]}: there is nothing to tell apart with one class (-1 means no label)."
            )
        names = np.arange(1 if one_annotator else Y.shape[1]) if annotators is None else annotators
        items = np.arange(X.shape[0])
        crowd = Crowd(
            item, annotator, code, item_names=items, annotator_names=names, class_names=self.classes_, features=X
        )
        self.fit_ = fit(self.model, crowd, self.engine, self.seed, self.device, **(self.hyper_parameters or {}))
        self.truth_ = self.fit_.truth
        self.classifier_ = None if self.fit_.anatomy.reads_features else self._learn_softly(X, crowd)
        return self

    def predict(self, X):
        """The likeliest class of each item, shape (n_items,)."""
        X = self._check_new(X)
        if self.classifier_ is not None:
            return self.classifier_.predict(_flat(X))
        return self.classes_[self._probabilities(X).argmax(1)]

    def predict_proba(self, X):
        """Probability of each class in the order of `classes_`, shape (n_items, n_classes)."""
        return self._probabilities(self._check_new(X))

    def score(self, X, y, sample_weight=None):
        """Accuracy against true labels; against a crowd's labels, the share of them that equal the prediction.

        The second cannot reach 1 where annotators contradict each other, but of two classifiers on the same labels the
        better one scores higher unless the annotators share its mistakes: good enough to choose by when nobody knows
        the truth.

        Parameters
        ----------
        X : array, shape (n_items, ...)
        y : array, shape (n_items,), or labels of annotators as in `fit`
            Missing ones do not count.
        sample_weight : array, shape (n_items,), optional
        """
        y = check_array(_as_array(y), **LABELS, input_name="y")
        check_consistent_length(X, y, sample_weight)
        check_is_fitted(self)
        item, _, label = _given_labels(y, signed=y.ndim == 1 and -1 in self.classes_.tolist())
        weight = None if sample_weight is None else np.asarray(sample_weight)[item]
        return accuracy_score(label, self.predict(X)[item], sample_weight=weight)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _check_new(self, X):
        check_is_fitted(self)
        return validate_data(self, X, reset=False, allow_nd=True)

    def _probabilities(self, X):
        if self.classifier_ is None:
            return self.fit_.predict_proba(X)
        probabilities = np.zeros((X.shape[0], len(self.classes_)))
        seen = np.searchsorted(self.classes_, self.classifier_.classes_)  # a class may be nobody's likely truth
        probabilities[:, seen] = self.classifier_.predict_proba(_flat(X))
        return probabilities

    def _learn_softly(self, X, crowd):
        classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        classifier = classifier if self.classifier is None else clone(self.classifier)
        item, code = np.nonzero((self.truth_ > NEGLIGIBLE) & (crowd.labels_per_item > 0)[:, None])
        weight = self.truth_[item, code]
        takers = ["sample_weight"]
        if hasattr(classifier, "steps"):
            *before, last = classifier.steps
            before = [name for name, step in before if has_fit_parameter(step, "sample_weight")]
            takers = [f"{name}__sample_weight" for name in (*before, last[0])]
        with config_context(enable_metadata_routing=False):  # the weights are ours, nobody routes them
            return classifier.fit(_flat(X)[item], self.classes_[code], **dict.fromkeys(takers, weight))


def _as_array(Y):
    """Lists as objects: numpy would write the NaN in a list of names as the name 'nan'."""
    return np.array(Y, dtype=object) if isinstance(Y, (list, tuple)) else Y


def _given_labels(Y, signed):
    """Items, annotators and labels of the entries that are not missing; `signed`: -1 is a label."""
    entries = Y.tocoo() if issparse(Y) else None
    values = Y.ravel() if entries is None else entries.data
    if values.dtype.kind in "OUS":
        missing = np.isin(values.astype(str), [""] if signed else ["", "-1", "-1.0"])
    else:
        missing = (values == -1) & (not signed)
    given = np.flatnonzero(~(missing | pd.isna(values)))
    if not len(given):
        raise PyrocrowdError("The labels hold no class: every entry is missing.")
    if entries is None:
        item, annotator = np.divmod(given, 1 if Y.ndim == 1 else Y.shape[1])
    else:
        item, annotator = entries.row[given], entries.col[given]
    return item, annotator, np.array(values[given].tolist())


def _flat(X):
    """Images as vectors, which is what scikit-learn's classifiers read."""
    return X.reshape(len(X), -1)
