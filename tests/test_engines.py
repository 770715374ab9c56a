"""The engines: what they reach, how they stop, what they select."""

import os
import signal

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from stories import Classifier, hard_items, noise_sources

import pyrocrowd
from pyrocrowd import EM, MAP, NUTS, SVI, Confused, Crowd, PyrocrowdError, metrics
from pyrocrowd.data.sets import digits
from pyrocrowd.data.simulate import from_confusions, hammers_and_spammers


@pytest.fixture(scope="module")
def crowd():
    return digits(items=200).crowd


def one_coin(crowd):
    """One accuracy per annotator: conjugate enough to be checked by hand."""
    with crowd.annotators:
        accuracy = pyro.sample("accuracy", dist.Beta(2.0, 1.0))
    wrong = (1 - accuracy)[:, None, None] / (crowd.n_classes - 1)
    confusion = wrong + torch.eye(crowd.n_classes) * (accuracy[:, None, None] - wrong)
    with crowd.items:
        truth = pyro.sample("truth", dist.Categorical(torch.full((crowd.n_classes,), 1 / crowd.n_classes)))
        with crowd.annotations as annotator:
            pyro.sample("label", Confused(confusion, annotator, truth), obs=crowd.label)


def test_svi_and_nuts_find_the_same_posterior():
    truth = np.random.default_rng(0).integers(3, size=60)
    crowd = from_confusions(truth, hammers_and_spammers(4, 0, 3), 4, seed=1).crowd
    svi = pyrocrowd.fit(one_coin, crowd, SVI(steps=1500))
    nuts = pyrocrowd.fit(one_coin, crowd, NUTS(draws=300, warmup=200))
    means = [fit.draws["accuracy"].mean((0, 1)) for fit in (svi, nuts)]
    spreads = [fit.draws["accuracy"].std((0, 1)) for fit in (svi, nuts)]
    assert np.abs(means[0] - means[1]).max() < 0.03
    assert np.abs(spreads[0] / spreads[1] - 1).max() < 0.35
    assert np.abs(svi.truth - nuts.truth).max() < 0.06
    assert nuts.notes["divergences"] == 0 and nuts.stats["lp"].shape == (2, 300)


def test_mini_batches_are_scaled_to_the_whole_crowd(crowd):
    whole = pyrocrowd.fit("dawid_skene", crowd, MAP(steps=1))
    start = np.mean(
        [pyrocrowd.fit("dawid_skene", crowd, MAP(steps=1, batch_size=50), seed=seed).losses[0] for seed in range(30)]
    )
    assert start == pytest.approx(whole.losses[0], rel=0.02)


def test_mini_batches_reach_what_the_whole_crowd_reaches(crowd):
    whole = pyrocrowd.fit("dawid_skene", crowd, EM())
    batched = pyrocrowd.fit("dawid_skene", crowd, MAP(epochs=200, batch_size=50, learning_rate=0.02, patience=0))
    assert np.abs(batched.confusion().values - whole.confusion().values).mean() < 0.02
    assert (batched.predict() == whole.predict()).mean() > 0.95


def test_values_of_the_items_own_are_learned_from_mini_batches(crowd):
    fit = pyrocrowd.fit(hard_items, crowd, SVI(epochs=60, batch_size=64, learning_rate=0.05))
    ease = fit.draws["ease"].mean((0, 1))
    agreement = metrics.soft_vote(crowd).max(1)
    assert ease.shape == (200,)
    assert ease[agreement == 1].mean() > ease[agreement < 0.5].mean() + 0.3


def test_the_posterior_of_a_noise_source_is_kept_for_every_label(crowd):
    fit = pyrocrowd.fit(noise_sources, crowd, SVI(steps=5, draws=20), weight=0.3)
    assert fit.marginals["source"].shape == (crowd.n_annotations, 2)
    assert np.allclose(fit.marginals["source"].sum(1), 1)


@pytest.mark.parametrize("engine", [EM(), MAP(steps=30), SVI(steps=30), NUTS(draws=5, warmup=5, chains=1)])
def test_the_same_seed_gives_the_same_fit_and_leaves_the_callers_randomness_alone(engine, crowd):
    torch.manual_seed(5)
    first = pyrocrowd.fit("dawid_skene", crowd, engine, seed=3)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert after == torch.rand(1)
    second = pyrocrowd.fit("dawid_skene", crowd, engine, seed=3)
    assert all((first.draws[name] == second.draws[name]).all() for name in first.draws)
    assert (first.truth == second.truth).all()


def test_restarts_keep_the_best_start(crowd):
    few = Crowd.from_matrix(np.random.default_rng(0).integers(3, size=(30, 4)))
    one = pyrocrowd.fit("dawid_skene", few, EM(restarts=1), smoothing=0.1)
    many = pyrocrowd.fit("dawid_skene", few, EM(restarts=8), smoothing=0.1)
    assert many.losses[-1] < one.losses[-1] and many.notes["start"] > 0


def test_em_without_convergence_says_so(crowd):
    fit = pyrocrowd.fit("dawid_skene", crowd, EM(max_iter=3))
    assert fit.notes["stopped"] == "max_iter" and not fit.notes["converged"] and len(fit.losses) == 3


def test_a_settled_loss_stops_early(crowd):
    fit = pyrocrowd.fit("dawid_skene", crowd, MAP(steps=5000, learning_rate=0.05, schedule="constant", tolerance=1e-4))
    assert fit.notes["stopped"] == "converged" and len(fit.losses) < 5000


def test_a_classifier_learns_digits_from_noisy_labels_and_labels_new_ones():
    train, test = digits(items=900).crowd.split(0.7)
    fit = pyrocrowd.fit(Classifier, train, MAP(epochs=60, batch_size=128, learning_rate=0.01, patience=0), net="mlp")
    predicted = fit.predict_proba(test.features)
    voted = metrics.accuracy(train.truth, metrics.soft_vote(train))
    assert metrics.accuracy(test.truth, predicted) > 0.9
    assert metrics.accuracy(train.truth, fit.truth) > voted + 0.1
    assert predicted.shape == (270, 10) and np.allclose(predicted.sum(1), 1)


@pytest.mark.parametrize("select", ["best", "held_out"])
def test_the_selected_state_is_the_best_that_was_looked_at(select):
    train, valid = digits(items=300).crowd.split(0.7)
    engine = MAP(epochs=12, batch_size=64, learning_rate=0.05, select=select, validation=valid, patience=0)
    fit = pyrocrowd.fit(Classifier, train, engine)
    watched = fit.history["validation_accuracy" if select == "best" else "held_out_log_likelihood"]
    assert len(watched) == 12 and fit.notes["selection"] == select
    assert fit.notes["selected_score"] == max(watched)
    assert fit.notes["selected_step"] == fit.history["step"][int(np.argmax(watched))]
    if select == "best":
        assert metrics.accuracy(valid.truth, fit.predict_proba(valid.features)) == pytest.approx(max(watched))


def test_selection_on_a_validation_set_needs_one():
    with pytest.raises(PyrocrowdError, match="needs a validation set"):
        pyrocrowd.fit(Classifier, digits(items=30).crowd, MAP(steps=2, select="best"))


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("schedule", ["cosine", "exponential", "constant"])
def test_every_optimiser_and_schedule_lowers_the_loss(optimizer, schedule, crowd):
    engine = MAP(steps=40, optimizer=optimizer, schedule=schedule, learning_rate=0.05, weight_decay=1e-3)
    fit = pyrocrowd.fit(Classifier, crowd, engine)
    assert fit.losses[-1] < fit.losses[0]


def test_weight_decay_shrinks_the_network_alone(crowd):
    plain, decayed = (
        pyrocrowd.fit(Classifier, crowd, MAP(steps=150, weight_decay=decay, learning_rate=0.05)) for decay in (0.0, 1.0)
    )
    weights = [fit.weights["module.net.2.weight"].norm() for fit in (plain, decayed)]
    assert weights[1] < 0.5 * weights[0]


def test_an_explosion_is_reported_in_one_sentence(crowd):
    def explodes(crowd):
        scale = pyro.param("scale", torch.tensor(1.0))
        scale = torch.where(scale < 1.005, scale, torch.nan)
        with crowd.items:
            truth = pyro.sample("truth", dist.Categorical(torch.full((10,), 0.1)))
            with crowd.annotations:
                pyro.sample("label", dist.Categorical(logits=torch.eye(10)[truth] * scale), obs=crowd.label)

    with pytest.raises(PyrocrowdError, match="the loss is nan after 2 steps; a smaller learning_rate"):
        pyrocrowd.fit(explodes, crowd, MAP(steps=20))


def test_an_interrupt_keeps_what_was_learned(crowd, monkeypatch):
    calls = {"count": 0}

    def impatient(crowd):
        calls["count"] += 1
        if calls["count"] == 40:
            os.kill(os.getpid(), signal.SIGINT)
        one_coin(crowd)

    fit = pyrocrowd.fit(impatient, crowd, SVI(steps=5000, draws=20))
    assert fit.notes["stopped"] == "interrupted" and 0 < len(fit.losses) < 60
    assert np.isfinite(fit.truth).all()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: EM(max_iter=0), "max_iter must be at least 1"),
        (lambda: SVI(learning_rate=0.0), "learning_rate must be above 0"),
        (lambda: MAP(select="bets"), "select must be one of last, best, held_out"),
        (lambda: NUTS(chains=0), "chains must be at least 1"),
        (lambda: NUTS(target_accept=2.0), "target_accept must be below 1"),
        (lambda: EM(tol=float("nan")), "tol must be a number"),
    ],
)
def test_settings_out_of_range_are_refused(make, sentence):
    with pytest.raises(PyrocrowdError, match=sentence):
        make()


def test_unknown_engines_and_devices_are_refused(crowd):
    with pytest.raises(PyrocrowdError, match="Did you mean 'nuts'"):
        pyrocrowd.fit("dawid_skene", crowd, "nutz")
    with pytest.raises(PyrocrowdError, match="cannot be used here"):
        pyrocrowd.fit("dawid_skene", crowd, device="quantum")
    if not torch.cuda.is_available():
        with pytest.raises(PyrocrowdError, match="cuda cannot be used here"):
            pyrocrowd.fit("dawid_skene", crowd, device="cuda")


@pytest.mark.gpu
def test_a_gpu_gives_what_the_cpu_gives(crowd):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    there, here = (pyrocrowd.fit("dawid_skene", crowd, EM(), device=device) for device in ("cuda", "cpu"))
    assert np.allclose(there.truth, here.truth, atol=1e-6)
