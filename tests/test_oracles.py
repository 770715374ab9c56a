"""Published and computed figures on real crowds. Skipped where the data are not on the machine."""

import warnings

import arviz as az
import numpy as np
import pytest

import pyrocrowd
from pyrocrowd import EM, NUTS, SVI, metrics

STRICT = EM(max_iter=20_000, tol=1e-10)


@pytest.mark.parametrize(
    ("name", "smoothing", "accuracy", "log_likelihood"),
    [
        ("labelme", 1.0, 0.715, -3946.09),
        ("labelme", 0.01, 0.787, -2729.34),
        ("music_genre", 1.0, 0.531, -5207.03),
        ("music_genre", 0.01, 0.746, -4189.94),
    ],
)
def test_dawid_skene_em_reaches_the_oracle(name, smoothing, accuracy, log_likelihood, real):
    fit = pyrocrowd.fit("dawid_skene", real(name), STRICT, smoothing=smoothing)
    assert fit.metrics()["accuracy"] == pytest.approx(accuracy, abs=6e-4)
    assert fit.log_likelihood == pytest.approx(log_likelihood, abs=0.01)


@pytest.mark.parametrize(("name", "low", "high"), [("labelme", 0.786, 0.796), ("music_genre", 0.766, 0.774)])
def test_dawid_skene_em_without_smoothing_is_monotone_and_in_range(name, low, high, real):
    fit = pyrocrowd.fit("dawid_skene", real(name), STRICT, smoothing=0)
    assert low - 5e-4 <= fit.metrics()["accuracy"] <= high + 5e-4
    assert np.diff(fit.losses).max() <= 1e-6


@pytest.mark.parametrize(
    ("name", "vote", "global_js", "individual_js"),
    [
        ("labelme", "soft", 0.02422, 0.21629),
        ("labelme", "hard", 0.03469, 0.22516),
        ("music_genre", "soft", 0.02004, 0.27261),
        ("music_genre", "hard", 0.02282, 0.26308),
    ],
)
def test_majority_vote_has_the_published_divergences(name, vote, global_js, individual_js, real):
    crowd = real(name)
    fit = pyrocrowd.fit("majority_vote", crowd, vote=vote)
    estimated = metrics.global_confusion(crowd, fit.truth)
    assert metrics.global_js(estimated, metrics.global_confusion(crowd)) == pytest.approx(global_js, abs=5e-6)
    same_for_all = np.broadcast_to(estimated, (crowd.n_annotators, *estimated.shape))
    assert metrics.individual_js(same_for_all, metrics.annotator_confusions(crowd)) == pytest.approx(
        individual_js, abs=5e-6
    )


def test_hard_majority_vote_accuracy_with_ties_to_the_lowest_class(real):
    assert pyrocrowd.fit("majority_vote", real("labelme")).metrics()["accuracy"] == pytest.approx(0.769)


@pytest.mark.parametrize("engine", [EM(), SVI(steps=800, draws=100)], ids=["em", "svi"])
@pytest.mark.parametrize("name", ["labelme", "music_genre"])
def test_the_default_prior_beats_majority_vote_on_sparse_crowds(name, engine, real):
    figures = pyrocrowd.fit("dawid_skene", real(name), engine).metrics()
    assert figures["accuracy"] > figures["accuracy_of_majority_vote"] + 0.01


def test_em_svi_and_nuts_agree_on_all_45_patients(real):
    """Dawid and Skene's own data, prior of six imagined labels per class: the same class for every patient, and every
    probability within 0.2 of the sampler's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pyrocrowd.PyrocrowdWarning)  # one anaesthetist answered three times
        crowd = real("dawid_skene_1979")
    em, svi, nuts = (
        pyrocrowd.fit("dawid_skene", crowd, engine, strength=6.0)
        for engine in (EM(), SVI(), NUTS(chains=2, warmup=400, draws=1200))
    )
    assert crowd.n_items == 45
    assert (em.predict() == nuts.predict()).all() and (svi.predict() == nuts.predict()).all()
    assert np.abs(em.truth - nuts.truth).max() < 0.2
    assert np.abs(svi.truth - nuts.truth).max() < 0.2
    assert nuts.notes["divergences"] == 0
    r_hat = az.rhat(nuts.to_arviz())
    worst = max(float(r_hat[name].max()) for name in ("prevalence", "confusion"))
    assert worst < 1.01
