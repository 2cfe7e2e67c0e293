"""Rank statistics with ties, against SciPy and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from loopscope.stats import Auroc, Spearman
from loopscope.stats.bootstrap import Block

few_values = arrays(np.float64, 12, elements=st.sampled_from([-1.0, -0.5, 0.0, 0.5, 2.0]))
multiplicities = arrays(np.float64, 12, elements=st.integers(0, 3).map(float))


def padded_to_twelve(counts):
    """Counts of a resample of twelve records: what is missing is drawn from the first."""
    counts = counts.copy()
    while counts.sum() > 12:
        counts[np.argmax(counts)] -= 1
    counts[0] += 12 - counts.sum()
    return counts


@pytest.mark.parametrize("size", [2, 3, 50, 5000])
@pytest.mark.parametrize("decimals", [1, 17], ids=["ties", "no ties"])
def test_spearman_is_scipys(size, decimals):
    x, y = np.random.default_rng(size).normal(size=(2, size)).round(decimals)
    assert Spearman(x, x + y).value() == pytest.approx(spearmanr(x, x + y).statistic, rel=1e-14)


@given(few_values, few_values, multiplicities)
def test_spearman_of_a_resample_is_spearman_of_the_repeated_records(x, y, counts):
    counts = padded_to_twelve(counts)
    replicate = Spearman(x, y).replicates(Block(counts[None]))[0]
    repeated_x, repeated_y = np.repeat(x, counts.astype(int)), np.repeat(y, counts.astype(int))
    if np.ptp(repeated_x) == 0 or np.ptp(repeated_y) == 0:
        assert np.isnan(replicate)
    else:
        assert replicate == pytest.approx(spearmanr(repeated_x, repeated_y).statistic, abs=1e-12)


@given(few_values, arrays(np.bool_, 12), multiplicities)
def test_auroc_of_a_resample_is_auroc_of_the_repeated_records(score, label, counts):
    counts = padded_to_twelve(counts)
    replicate = Auroc(score, label).replicates(Block(counts[None]))[0]
    repeated, labels = np.repeat(score, counts.astype(int)), np.repeat(label, counts.astype(int))
    if labels.all() or not labels.any():
        assert np.isnan(replicate)
    else:
        assert replicate == pytest.approx(roc_auc_score(labels, repeated), abs=1e-12)


@pytest.mark.parametrize(("x", "y"), [([], []), ([1.0], [2.0]), ([1.0, 1.0], [1.0, 2.0]), ([1.0, 2.0], [3.0, 3.0])])
def test_spearman_is_undefined_without_two_different_values(x, y):
    assert Spearman(x, y).value() is None


@given(few_values, arrays(np.bool_, 12), multiplicities)
def test_descending_auroc_is_that_of_the_negated_score(score, label, counts):
    counts = padded_to_twelve(counts)[None]
    negated, descending = Auroc(-score, label), Auroc(score, label, descending=True)
    assert descending.value() == pytest.approx(negated.value(), abs=1e-14)
    np.testing.assert_allclose(
        descending.replicates(Block(counts)), negated.replicates(Block(counts)), atol=1e-12, equal_nan=True
    )
