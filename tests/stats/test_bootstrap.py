"""The bootstrap against SciPy's own, against brute force and against what it promises; rank statistics with ties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats as scipy_stats
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from loopscope.errors import LoopscopeError
from loopscope.stats import Auroc, Best, Bootstrap, Difference, Mean, Quantile, Ratio, Spearman
from loopscope.stats.bootstrap import Block


@pytest.fixture
def columns():
    rng = np.random.default_rng(7)
    x = rng.normal(size=83)
    y = 0.7 * x + rng.normal(size=83)
    # Rounded, so that there are ties within a column and across resamples.
    return np.round(x, 1), np.round(y, 1)


def scipy_interval(data, statistic, seed=20260904, resamples=400):
    """SciPy's percentile interval from the same stream of draws."""
    result = scipy_stats.bootstrap(
        data,
        statistic,
        n_resamples=resamples,
        method="percentile",
        paired=True,
        vectorized=False,
        rng=np.random.default_rng(seed),
    )
    return result.confidence_interval.low, result.confidence_interval.high


SETTINGS = Bootstrap(resamples=400)


STATISTICS = {
    "mean": (lambda x, y: (Mean(x), (x,)), np.mean),
    "ratio": (lambda x, y: (Ratio(x > 0.3, y > -0.5), (x > 0.3, y > -0.5)), lambda a, b: a.sum() / b.sum()),
    "spearman": (lambda x, y: (Spearman(x, y), (x, y)), lambda a, b: spearmanr(a, b).statistic),
    "best": (
        lambda x, y: (Best([2, 5], np.stack([x, y], 1)), (x, y)),
        lambda a, b: 5.0 if b.mean() > a.mean() else 2.0,
    ),
    "difference": (lambda x, y: (Difference(Mean(x), Mean(y)), (x, y)), lambda a, b: b.mean() - a.mean()),
    "auroc": (lambda x, y: (Auroc(x, y > 0.4), (x, y > 0.4)), lambda a, b: roc_auc_score(b, a)),
    **{
        f"quantile {p}": (lambda x, y, p=p: (Quantile(x, p), (x,)), lambda a, p=p: np.quantile(a, p))
        for p in (0.0, 0.25, 0.9, 1.0)
    },
}


@pytest.mark.parametrize("name", STATISTICS)
def test_values_and_intervals_are_those_of_scipys_paired_bootstrap(columns, name):
    make, theirs = STATISTICS[name]
    statistic, data = make(*columns)
    ours = SETTINGS.estimate({0: statistic})[0]
    assert ours.value == pytest.approx(theirs(*data), rel=1e-13)
    assert (ours.interval.low, ours.interval.high) == pytest.approx(scipy_interval(data, theirs), rel=1e-10, abs=1e-12)


def test_block_size_does_not_change_the_draws(monkeypatch):
    rng = np.random.default_rng(1)
    values = rng.exponential(size=57)
    whole = Bootstrap(resamples=101).replicates({0: Mean(values)})[0]
    monkeypatch.setattr("loopscope.stats.bootstrap.BLOCK_ELEMENTS", 200)
    pieces = Bootstrap(resamples=101).replicates({0: Mean(values)})[0]
    np.testing.assert_allclose(pieces, whole, rtol=1e-13)


def test_statistics_share_their_resamples():
    rng = np.random.default_rng(2)
    first, second = rng.normal(size=(2, 40))
    replicates = Bootstrap(resamples=64).replicates({"a": Mean(first), "b": Mean(second), "d": Mean(first - second)})
    np.testing.assert_allclose(replicates["a"] - replicates["b"], replicates["d"], atol=1e-14)


def test_statistics_of_different_populations_do_not_mix():
    with pytest.raises(ValueError, match="cannot share"):
        Bootstrap().replicates({"a": Mean([1.0]), "b": Mean([1.0, 2.0])})


def test_resamples_without_a_denominator_are_left_out_and_counted():
    # One harmful record of three: a resample misses it with probability (2/3)^3.
    estimate = Bootstrap().estimate({0: Ratio([1.0, 0.0, 0.0], [1.0, 0.0, 0.0])})[0]
    assert estimate.value == 1.0
    assert (estimate.interval.low, estimate.interval.high) == (1.0, 1.0)
    assert estimate.interval.undefined / 2000 == pytest.approx(8 / 27, abs=0.03)


@pytest.mark.parametrize("statistic", [Mean([]), Ratio([], []), Ratio([0.0, 0.0], [0.0, 0.0]), Quantile([], 0.5)])
def test_nothing_to_estimate_has_neither_value_nor_interval(statistic):
    estimate = Bootstrap().estimate({0: statistic})[0]
    assert estimate.value is None
    assert estimate.interval is None


def test_one_record_has_a_value_and_no_interval():
    estimate = Bootstrap().estimate({0: Mean([3.0])})[0]
    assert (estimate.value, estimate.n, estimate.interval) == (3.0, 1, None)


@pytest.mark.parametrize("values", [[np.nan, 1.0], [np.inf]])
def test_statistics_refuse_what_is_not_finite(values):
    with pytest.raises(ValueError, match="NaN"):
        Mean(values)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"resamples": 0}, "resamples=0 is too small"),
        ({"resamples": 1.5}, "not a whole number"),
        ({"seed": -1}, "seed=-1 is too small"),
        ({"level": 1.0}, "between 0 and 1"),
        ({"level": "0.95"}, "between 0 and 1"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(LoopscopeError, match=message):
        Bootstrap(**settings)


def test_a_95_percent_interval_covers_the_truth_in_93_to_97_of_100_data_sets():
    """A thousand data sets each: means, shares with a random denominator, token means with question clusters."""
    rng, shape = np.random.default_rng(11), (1000, 150)
    data = rng.normal(0.3, 2.0, size=shape)
    harmful = rng.random(shape) < 0.7
    finite_step = harmful & (rng.random(shape) < 0.4)
    tokens = rng.integers(20, 200, size=shape).astype(float)
    # Tokens of one question share an effect: resampling tokens would cover far too rarely.
    sums = tokens * rng.normal(1.0, 1.0, size=shape) + np.sqrt(tokens) * rng.normal(size=shape)
    for truth, statistics in (
        (0.3, [Mean(row) for row in data]),
        (0.4, [Ratio(*pair) for pair in zip(finite_step, harmful, strict=True)]),
        (1.0, [Ratio(*pair) for pair in zip(sums, tokens, strict=True)]),
    ):
        estimates = Bootstrap().estimate(dict(enumerate(statistics))).values()
        assert 0.93 <= np.mean([estimate.interval.covers(truth) for estimate in estimates]) <= 0.97


def test_token_weighted_mean_equals_brute_force_resampling_of_questions():
    rng = np.random.default_rng(3)
    question = np.repeat(np.arange(9), rng.integers(1, 6, 9))
    gain = rng.normal(size=question.size)
    settings = Bootstrap(resamples=30)
    fast = settings.replicates({0: Ratio.by_cluster(question, gain, np.ones(gain.size))})[0]
    slow = []
    for counts_BN in settings.counts(9):
        for counts in counts_BN.astype(int):
            tokens = np.concatenate([gain[question == q] for q in np.repeat(np.arange(9), counts)])
            slow.append(tokens.mean())
    np.testing.assert_allclose(fast, slow, rtol=1e-12)


few_values = arrays(np.float64, 12, elements=st.sampled_from([-1.0, -0.5, 0.0, 0.5, 2.0]))
multiplicities = arrays(np.float64, 12, elements=st.integers(0, 3).map(float))


def resample(counts):
    """A block with one resample of twelve records, what is missing drawn from the first, and its records."""
    while counts.sum() > 12:
        counts[np.argmax(counts)] -= 1
    counts[0] += 12 - counts.sum()
    return Block(counts[None]), np.repeat(np.arange(12), counts.astype(int))


@pytest.mark.parametrize("size", [2, 3, 50, 5000])
@pytest.mark.parametrize("decimals", [1, 17], ids=["ties", "no ties"])
def test_spearman_is_scipys(size, decimals):
    x, y = np.random.default_rng(size).normal(size=(2, size)).round(decimals)
    assert Spearman(x, x + y).value() == pytest.approx(spearmanr(x, x + y).statistic, rel=1e-14)


@given(few_values, few_values, multiplicities)
def test_spearman_of_a_resample_is_spearman_of_the_repeated_records(x, y, counts):
    block, drawn = resample(counts)
    replicate = Spearman(x, y).replicates(block)[0]
    if np.ptp(x[drawn]) == 0 or np.ptp(y[drawn]) == 0:
        assert np.isnan(replicate)
    else:
        assert replicate == pytest.approx(spearmanr(x[drawn], y[drawn]).statistic, abs=1e-12)


@given(few_values, arrays(np.bool_, 12), multiplicities)
def test_auroc_of_a_resample_is_auroc_of_the_repeated_records(score, label, counts):
    block, drawn = resample(counts)
    replicate = Auroc(score, label).replicates(block)[0]
    negated, descending = Auroc(-score, label), Auroc(score, label, descending=True)
    np.testing.assert_allclose(descending.replicates(block), negated.replicates(block), atol=1e-12, equal_nan=True)
    if label[drawn].all() or not label[drawn].any():
        assert np.isnan(replicate)
    else:
        assert replicate == pytest.approx(roc_auc_score(label[drawn], score[drawn]), abs=1e-12)


@pytest.mark.parametrize(("x", "y"), [([], []), ([1.0], [2.0]), ([1.0, 1.0], [1.0, 2.0]), ([1.0, 2.0], [3.0, 3.0])])
def test_spearman_is_undefined_without_two_different_values(x, y):
    assert Spearman(x, y).value() is None
