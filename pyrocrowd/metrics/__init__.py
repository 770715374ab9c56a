"""The judging room: plain numpy arrays enter, plain numbers leave; no model, no engine and no torch.

Conventions shared by every function (C classes, R annotators, N items, n annotations):

- ``crowd``: any object with integer arrays ``item``, ``annotator``, ``label`` of shape (n,), integers ``n_items``,
  ``n_annotators``, ``n_classes``, and ``truth`` of shape (N,), -1 where unknown, or None. Annotations on items of
  unknown truth are left out wherever the truth is needed.
- ``truth``: (N,) true classes, -1 = unknown and left out. ``probs``: (N, C) class probabilities.
- ``confusion``: (..., C, C), row = true class, column = given label. Leading dimensions are batches.
"""

from pyrocrowd.metrics.agreement import hard_vote, krippendorff_alpha, redundancy_curve, soft_vote
from pyrocrowd.metrics.annotators import (
    annotator_accuracy,
    annotator_accuracy_error,
    annotator_confusions,
    class_entropy,
    classes_by_weight,
    common_mistakes,
    global_confusion,
    mean_annotator_accuracy,
    noise_rates,
)
from pyrocrowd.metrics.bound import minimax_bound, minimax_envelope, remaining_uncertainty
from pyrocrowd.metrics.labels import (
    accuracy,
    area_under_roc,
    epoch_accuracies,
    expected_accuracy_with_random_ties,
    expected_calibration_error,
    macro_f1,
    mean_average_precision,
    negative_log_likelihood,
)
from pyrocrowd.metrics.matrices import (
    annotator_distance,
    bias_score,
    biased_class,
    cm_error,
    confusion_entropy,
    diagonally_dominant,
    dominance,
    global_js,
    group_inertia,
    identity_similarity,
    individual_js,
    js_divergence,
    norm_f,
    skill,
    spammer_score,
)
from pyrocrowd.metrics.recovery import (
    group_recovery,
    match_matrices,
    meta_purity,
    quality_error,
    rank_error,
    source_recovery,
)

__all__ = [
    "accuracy",
    "annotator_accuracy",
    "annotator_accuracy_error",
    "annotator_confusions",
    "annotator_distance",
    "area_under_roc",
    "bias_score",
    "biased_class",
    "class_entropy",
    "classes_by_weight",
    "cm_error",
    "common_mistakes",
    "confusion_entropy",
    "diagonally_dominant",
    "dominance",
    "epoch_accuracies",
    "expected_accuracy_with_random_ties",
    "expected_calibration_error",
    "global_confusion",
    "global_js",
    "group_inertia",
    "group_recovery",
    "hard_vote",
    "identity_similarity",
    "individual_js",
    "js_divergence",
    "krippendorff_alpha",
    "macro_f1",
    "match_matrices",
    "mean_annotator_accuracy",
    "mean_average_precision",
    "meta_purity",
    "minimax_bound",
    "minimax_envelope",
    "negative_log_likelihood",
    "noise_rates",
    "norm_f",
    "quality_error",
    "rank_error",
    "redundancy_curve",
    "remaining_uncertainty",
    "skill",
    "soft_vote",
    "source_recovery",
    "spammer_score",
]
