"""The exact pass: with a noise source inside the annotations, with padding, with values of the items' own."""

from itertools import product

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO, config_enumerate
from stories import hard_items, noise_sources

from pyrocrowd import Confused, Crowd
from pyrocrowd.check import examine
from pyrocrowd.infer.exact import explain, log_volume


@pytest.fixture
def setting(tiny):
    anatomy = examine(noise_sources, tiny)
    trace = poutine.trace(noise_sources).get_trace(tiny.batch())
    return tiny, anatomy, {name: trace.nodes[name]["value"] for name in anatomy.latent}


def brute_force(crowd, values, weight=0.3):
    """P(truth, sources, labels) of every item, summed in plain Python."""
    evidence, truths, sources = [], np.zeros((crowd.n_items, 2)), np.zeros(crowd.n_annotations)
    for item in range(crowd.n_items):
        rows = np.flatnonzero(crowd.item == item)
        total, by_truth, by_source = 0.0, np.zeros(2), np.zeros(len(rows))
        for truth in range(2):
            for choice in product(range(2), repeat=len(rows)):
                chance = 0.5
                for row, source in zip(rows, choice, strict=True):
                    matrix = values["common"] if source else values["own"][crowd.annotator[row]]
                    chance *= (weight if source else 1 - weight) * float(matrix[truth, crowd.label[row]])
                total += chance
                by_truth[truth] += chance
                by_source += chance * np.array(choice)
        evidence.append(np.log(total))
        truths[item], sources[rows] = by_truth / total, by_source / total
    return np.array(evidence), truths, sources


def test_two_enumerated_sites_are_summed_out_exactly_also_where_slots_are_padded(setting):
    crowd, anatomy, values = setting
    evidence, truths, sources = brute_force(crowd, values)
    batch = crowd.batch()
    found = explain(noise_sources, batch, values, anatomy)
    assert np.allclose(found.evidence, evidence, atol=1e-12)
    assert np.allclose(found.truth, truths, atol=1e-12)
    flat = np.zeros(crowd.n_annotations)
    flat[batch.row[batch.mask]] = found.marginals["source"][batch.mask][:, 1]
    assert np.allclose(flat, sources, atol=1e-12)


def test_pyros_elbo_is_the_same_number(setting):
    crowd, anatomy, values = setting
    found = explain(noise_sources, crowd.batch(), values, anatomy)
    story = poutine.condition(config_enumerate(noise_sources), data=values)
    loss = TraceEnum_ELBO(max_plate_nesting=2).loss(story, lambda batch: None, crowd.batch())
    assert -loss == pytest.approx(float(found.evidence.sum() + found.log_prior), abs=1e-10)


def test_pointwise_is_the_evidence_with_and_without_the_label(setting):
    crowd, anatomy, values = setting
    batch = crowd.batch()
    found = explain(noise_sources, batch, values, anatomy, pointwise=True)
    for row in range(crowd.n_annotations):
        rest = crowd.keep(np.arange(crowd.n_annotations) != row)
        without = explain(noise_sources, rest.batch(), values, anatomy).evidence.sum()
        slot = (batch.row == row) & batch.mask
        assert float(found.pointwise[slot]) == pytest.approx(float(found.evidence.sum() - without), abs=1e-10)


def test_items_without_labels_keep_their_prior_and_cost_nothing(tiny):
    crowd = tiny.keep(tiny.item != 2)
    anatomy = examine(noise_sources, crowd)
    values = {"common": torch.eye(2) * 0.8 + 0.1, "own": torch.full((2, 2, 2), 0.5)}
    found = explain(noise_sources, crowd.batch(), values, anatomy)
    assert np.allclose(found.truth[2], 0.5) and float(found.evidence[2]) == pytest.approx(0.0, abs=1e-12)


def test_values_of_the_items_own_follow_the_batch(tiny):
    anatomy = examine(hard_items, tiny)
    assert anatomy.local == {"ease": 0}
    values = {"ease": torch.tensor([0.5, -1.0, 2.0])}
    whole = explain(hard_items, tiny.batch(), values, anatomy)
    for items in ([2], [0, 1], [1, 2]):
        part = explain(hard_items, tiny.batch(items), values, anatomy)
        assert torch.allclose(part.evidence, whole.evidence[items])


def test_confused_scores_like_a_categorical_of_the_rows_enumerated_or_not(tiny):
    batch = tiny.batch()
    confusion = torch.distributions.Dirichlet(torch.ones(2, 2, 2)).sample()
    for truth in (torch.arange(2).reshape(2, 1, 1), torch.tensor([1, 0, 1]), torch.arange(2).reshape(2, 1, 1, 1)):
        ours = Confused(confusion, batch.annotator, truth)
        rows = torch.distributions.Categorical(confusion[batch.annotator, truth])
        assert ours.batch_shape == rows.batch_shape
        assert torch.allclose(ours.log_prob(batch.label), rows.log_prob(batch.label))


def test_confused_draws_labels_with_the_frequencies_of_the_row():
    confusion = torch.tensor([[[0.2, 0.8], [0.5, 0.5]]])
    drawn = Confused(confusion, torch.zeros(20_000).long(), torch.zeros(20_000).long()).sample()
    assert float(drawn.double().mean()) == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(
    "make",
    [
        lambda: dist.Dirichlet(torch.ones(3, 4)),
        lambda: dist.Beta(torch.ones(3), torch.ones(3)),
        lambda: dist.LogNormal(torch.zeros(3), torch.ones(3)),
        lambda: dist.Normal(torch.zeros(3), torch.ones(3)),
    ],
    ids=["simplex", "unit interval", "positive", "real"],
)
def test_log_volume_is_the_log_determinant_of_the_jacobian(make):
    prior = make()
    transform = torch.distributions.biject_to(prior.support)
    value = prior.sample()[0]
    unconstrained = transform.inv(value)
    jacobian = torch.autograd.functional.jacobian(transform, unconstrained)
    if jacobian.dim() == 2:  # a simplex has one dimension less than shares
        jacobian = jacobian[:-1]
    expected = torch.log(torch.linalg.det(torch.atleast_2d(jacobian)).abs())
    assert float(log_volume(prior, value).sum()) == pytest.approx(float(expected), abs=1e-9)


def test_batches_of_a_heavy_tailed_crowd_pad_little_and_hold_every_item_once():
    generator = np.random.default_rng(0)
    counts = np.minimum(generator.zipf(1.6, size=20_000), 3_000)
    item = np.repeat(np.arange(20_000), counts)
    crowd = Crowd(
        item,
        generator.integers(500, size=len(item)),
        generator.integers(2, size=len(item)),
        item_names=np.arange(20_000),
        annotator_names=np.arange(500),
        class_names=np.arange(2),
    )
    for batches in (list(crowd.batches()), list(crowd.batches(512, generator))):
        assert sorted(int(place) for batch in batches for place in batch.index) == list(range(20_000))
        cells = sum(batch.mask.numel() for batch in batches)
        assert crowd.n_annotations / cells > 0.3
        assert sum(int(batch.mask.sum()) for batch in batches) == crowd.n_annotations
