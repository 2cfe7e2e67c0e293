import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from loopscope.studies.tables.mechanism import SIGNALS, diagnostics


@pytest.fixture
def four(records, synthetic):
    """Gains -0.5, -0.25, 0.25, 0.5 with signals set by hand."""
    paths = synthetic.Paths.of([-0.5, 0.5, 0.25, 0.5], [0.0, -0.75, 0.0, 0.0])
    columns = {
        "update_norm": np.array([4.0, 3.0, 2.0, 1.0]),
        "relative_change": np.array([1.0, 1.0, 1.0, 1.0]),
        "cosine_change": np.array([1.0, 2.0, 3.0, 4.0]),
        "output_kl": np.array([2.0, 1.0, 2.0, 1.0]),
        "entropy_change": np.array([4.0, 3.0, 2.0, 1.0]),
    }
    return records(synthetic.Task("sums", {4: paths}, columns=columns))


def by_signal(result):
    return {row.key: row for row in result.rows}


def test_orientation_is_fixed_and_negative_but_for_entropy(four):
    rows = by_signal(diagnostics.table(four))
    # A large norm goes with harm here, so its fixed (negative) orientation is wrong throughout and stays so.
    assert (rows["update_norm"]["spearman"].value, rows["update_norm"]["auroc"].value) == (-1.0, 0.0)
    assert (rows["cosine_change"]["spearman"].value, rows["cosine_change"]["auroc"].value) == (1.0, 1.0)
    assert (rows["entropy_change"]["spearman"].value, rows["entropy_change"]["auroc"].value) == (-1.0, 1.0)


def test_a_constant_signal_ranks_nothing(four):
    rows = by_signal(diagnostics.table(four))
    assert (rows["relative_change"]["spearman"].value, rows["relative_change"]["auroc"].value) == (None, 0.5)


def test_ties_count_half(four):
    rows = by_signal(diagnostics.table(four))
    assert rows["output_kl"]["auroc"].value == 0.5
    assert rows["output_kl"]["spearman"].value == pytest.approx(spearmanr([2, 1, 2, 1], [1, 2, 3, 4]).statistic)


def test_geometry_signals(four):
    rows = by_signal(diagnostics.table(four))
    # A = (-0.5, 0.5, 0.25, 0.5) against ΔU = (-0.5, -0.25, 0.25, 0.5).
    assert rows["slope"]["spearman"].value == pytest.approx(spearmanr([1, 3.5, 2, 3.5], [1, 2, 3, 4]).statistic)
    assert rows["slope"]["auroc"].value == pytest.approx(roc_auc_score([1, 1, 0, 0], [0.5, -0.5, -0.25, -0.5]))
    assert (rows["slope_quadratic"]["spearman"].value, rows["slope_quadratic"]["auroc"].value) == (1.0, 1.0)


def test_signals_stand_in_the_papers_order(four):
    assert [row.key for row in diagnostics.table(four).rows] == list(SIGNALS)


def test_without_harm_there_is_no_auroc(awkward):
    assert all(row["auroc"].value is None for row in diagnostics.table(awkward["no failures"]).rows)
