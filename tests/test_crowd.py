"""The annotation table: its sizes, its parts, its views."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from pyrocrowd import Crowd, PyrocrowdError, metrics
from pyrocrowd.data.sets import digits

TABLES = some.lists(some.tuples(some.integers(0, 5), some.integers(0, 3), some.integers(0, 2)), min_size=1, max_size=40)


def crowd_of(rows):
    item, annotator, label = np.array(rows).T
    names = dict(item_names=np.arange(6), annotator_names=np.arange(4), class_names=np.arange(3))
    return Crowd(item, annotator, label, **names)


@given(TABLES)
@settings(max_examples=60, deadline=None)
def test_every_row_sits_in_one_unmasked_slot_of_its_item(rows):
    crowd = crowd_of(rows)
    batch = crowd.batch()
    seen = batch.row[batch.mask].numpy()
    assert sorted(seen) == list(range(len(rows)))
    columns = np.broadcast_to(batch.index.numpy(), batch.mask.shape)[batch.mask.numpy()]
    assert (crowd.item[seen] == columns).all()
    assert (crowd.annotator[seen] == batch.annotator[batch.mask].numpy()).all()
    assert (crowd.label[seen] == batch.label[batch.mask].numpy()).all()


@given(TABLES)
@settings(max_examples=60, deadline=None)
def test_count_is_the_sum_over_annotations(rows):
    crowd = crowd_of(rows)
    truth = np.random.default_rng(0).dirichlet(np.ones(3), 6)
    expected = np.zeros((4, 3, 3))
    for item, annotator, label in rows:
        expected[annotator, :, label] += truth[item]
    assert np.allclose(crowd.count(torch.as_tensor(truth)), expected)


@given(TABLES, some.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_limit_redundancy_keeps_at_most_k_labels_and_all_where_there_are_fewer(rows, k):
    crowd = crowd_of(rows)
    assert (crowd.limit_redundancy(k).labels_per_item == np.minimum(crowd.labels_per_item, k)).all()


def test_limit_redundancy_chooses_uniformly_and_by_seed():
    crowd = Crowd.from_matrix(np.tile([[0, 1, 1, 0, 1]], (4000, 1)))
    kept = crowd.limit_redundancy(2, seed=1)
    assert np.allclose(kept.labels_per_annotator / 4000, 0.4, atol=0.03)
    assert (kept.annotator == crowd.limit_redundancy(2, seed=1).annotator).all()


def test_held_out_labels_and_the_rest_are_the_whole():
    crowd = digits(items=100).crowd
    kept, held = crowd.hold_out_annotations(0.2, seed=3)
    assert held.n_annotations == 60 and kept.n_annotations == 240
    both = pd.concat([kept.to_frame(), held.to_frame()]).sort_values(["item", "annotator"]).reset_index(drop=True)
    assert both.equals(crowd.to_frame().sort_values(["item", "annotator"]).reset_index(drop=True))


def test_split_keeps_labels_features_and_truth_with_their_items():
    crowd = digits(items=100).crowd
    first, second = crowd.split(0.7, seed=1)
    assert (first.n_items, second.n_items) == (70, 30)
    assert not set(first.item_names) & set(second.item_names)
    place = {name: k for k, name in enumerate(crowd.item_names)}
    for part in (first, second):
        rows = [place[name] for name in part.item_names]
        assert (part.features == crowd.features[rows]).all() and (part.truth == crowd.truth[rows]).all()
        assert (part.labels_per_item == crowd.labels_per_item[rows]).all()


def test_summary_counts_what_is_there():
    crowd = Crowd.from_frame(
        pd.DataFrame({"task": list("aabbc"), "worker": list("xyxyx"), "label": list("10110")}), truth={"a": 1, "c": 0}
    )
    summary = crowd.summary()
    assert (summary["items"], summary["annotators"], summary["classes"], summary["annotations"]) == (3, 2, 2, 5)
    assert summary["raw agreement"] == pytest.approx(0.5)  # a: 1 and 0 differ; b: both 1
    assert summary["Krippendorff's alpha"] == pytest.approx(metrics.krippendorff_alpha(crowd))
    assert summary["labels equal to the truth"] == pytest.approx(2 / 3)
    assert summary["share of label 1"] == pytest.approx(0.6)
    assert "5 labels by 2 annotators on 3 items in 2 classes (0, 1)" in repr(crowd)
    assert "raw agreement" in crowd._repr_html_()


@pytest.mark.parametrize("kind", ["array", "tensor", "dataset", "images"])
def test_features_of_every_kind_reach_the_batch(kind):
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    features = {
        "array": values,
        "tensor": torch.as_tensor(values),
        "dataset": torch.utils.data.TensorDataset(torch.as_tensor(values)),
        "images": (values * 20).astype(np.uint8).reshape(3, 2, 2),
    }[kind]
    crowd = Crowd.from_matrix([[0, 1], [1, 1], [0, -1]], features=features)
    rows = crowd.batch([2, 0]).features
    assert rows.dtype == torch.get_default_dtype()
    expected = values[[2, 0]] * (20 / 255 if kind == "images" else 1)
    assert torch.allclose(rows.flatten(1), torch.as_tensor(expected, dtype=rows.dtype))
    assert crowd.feature_shape == ((2, 2) if kind == "images" else (4,))
    assert crowd.select_items([1]).batch().features.shape[0] == 1


def test_sizes_that_do_not_fit_are_all_named():
    with pytest.raises(PyrocrowdError) as caught:
        Crowd([0, 7], [0, 5], [0, 1], item_names=[0], annotator_names=[0], class_names=[0, 1], truth=[0, 1])
    assert len(caught.value.problems) == 3


def test_a_gpu_crowd_gives_batches_on_the_gpu():
    device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else None
    if device is None:
        pytest.skip("no CUDA or MPS device on this machine")
    assert digits(items=10).crowd.to(device).batch().label.device.type == device
