"""The question-cluster bootstrap: tokens of a question are resampled together."""

import numpy as np
import pytest

from loopscope.stats import Bootstrap, Clusters, cluster_sums
from loopscope.stats.statistics import Block


def test_ratio_is_recomputed_from_whole_questions():
    question = np.array([3, 3, 1, 2, 2, 2])
    recovered = np.array([1.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    failures = np.array([1.0, 1.0, 1.0, 0.0, 1.0, 1.0])
    clusters = Clusters.of(question)
    statistic = clusters.ratio(recovered, failures)
    assert clusters.count == statistic.size == 3
    # Question 1 twice and question 3 once: (1 + 1 + 1) / (1 + 1 + 2).
    assert statistic.replicates(Block(np.array([[2.0, 0.0, 1.0]])))[0] == pytest.approx(3 / 4)


def test_token_weighted_mean_equals_brute_force_resampling_of_questions():
    rng = np.random.default_rng(3)
    question = np.repeat(np.arange(9), rng.integers(1, 6, 9))
    gain = rng.normal(size=question.size)
    settings = Bootstrap(resamples=30)
    fast = settings.replicates({0: Clusters.of(question).mean(gain)})[0]
    slow = []
    for counts_BN in settings.counts(9):
        for counts in counts_BN.astype(int):
            tokens = np.concatenate([gain[question == q] for q in np.repeat(np.arange(9), counts)])
            slow.append(tokens.mean())
    np.testing.assert_allclose(fast, slow, rtol=1e-12)


def test_sums_follow_the_order_of_the_labels():
    assert cluster_sums([1.0, 10.0, 100.0], [7, 5, 7]).tolist() == [10.0, 101.0]
