"""The table that pairs own answers with given references: agreement, correlations beside SciPy's, what is paired."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from loopscope.path import classify, predicted_scale
from loopscope.studies.records import Records
from loopscope.studies.registry import TABLES

study = TABLES["own-reference"]
N = 12
GIVEN = np.random.default_rng(5).normal(0.3, 0.5, (2, N)) - [[0.0], [0.6]]
OWN = GIVEN + np.random.default_rng(6).normal(0.0, 0.3, (2, N))


@pytest.fixture
def runs(synthetic, tmp_path):
    def make(name, coefficients, questions=N, **changes):
        task = synthetic.Task("sums", {4: synthetic.Paths.of(*coefficients[:, :questions])})
        return synthetic.write_run(tmp_path / name, [task], **changes)

    return make


def test_it_pairs_question_by_question(runs):
    given = runs("given", GIVEN, settings={})
    own = runs("own", OWN, questions=N - 2, settings={"reference": "own"})
    for order in ([given, own], [own, given]):
        (row,) = study.table(Records(order)).rows
        (a, q), (b, r) = (coefficients[:, : N - 2] for coefficients in (GIVEN, OWN))
        assert row.questions == N - 2
        assert row.slope_sign.value == pytest.approx(np.mean(np.sign(a) == np.sign(b)))
        assert row.quadratic_sign.value == pytest.approx(np.mean(np.sign(q) == np.sign(r)))
        assert row.outcome.value == pytest.approx(np.mean(classify(a, a + q) == classify(b, b + r)))
        assert row.slope_rank.value == pytest.approx(spearmanr(a, b).statistic)
        chosen = {"given": predicted_scale(a, q), "own": predicted_scale(b, r)}
        assert row.scale_rank.value == pytest.approx(spearmanr(chosen["given"], chosen["own"]).statistic)
        nearest = {name: np.round(20 * scale) / 20 for name, scale in chosen.items()}
        gains = {name: a * scale + q * scale**2 for name, scale in nearest.items()}
        assert row.own_gain.value == pytest.approx(np.mean(gains["own"]))
        assert row.given_gain.value == pytest.approx(np.mean(gains["given"]))
        assert row.kept.value == pytest.approx(np.mean(gains["own"]) / np.mean(gains["given"]))
        assert row.full_gain.value == pytest.approx(np.mean(a + q))
        assert row.same_reference.value == 1.0  # the made-up texts of both are alike
        assert "(own answers)" in row.condition.set_title


def test_a_reference_of_its_own_agrees_with_itself(runs):
    both = [runs("given", GIVEN, settings={}), runs("own", GIVEN, settings={"reference": "own"})]
    (row,) = study.table(Records(both)).rows
    assert [row.slope_sign.value, row.quadratic_sign.value, row.outcome.value, row.kept.value] == [1.0] * 4
    assert row.scale_rank.value == pytest.approx(1.0)


def test_other_weights_or_one_run_alone_are_not_paired(runs):
    own = runs("own", OWN, settings={"reference": "own"})
    other = runs("other", GIVEN, settings={}, model={"weights": {"model.safetensors": "0" * 64}})
    for several in ([own], [other], [own, other]):
        result = study.table(Records(several))
        assert result.rows == ()
        assert any(
            "without a partner: toy-ouro sums test" in note and "reference='own'" in note for note in result.notes
        )


def test_without_a_grid_there_are_signs_and_no_gains(runs):
    level = {"level": "quick"}
    both = [runs("given", GIVEN, settings={}, **level), runs("own", OWN, settings={"reference": "own"}, **level)]
    result = study.table(Records(both))
    assert result.rows[0].own_gain.value is None
    assert result.rows[0].slope_sign.value is not None
    assert "—" in result.to_text()
