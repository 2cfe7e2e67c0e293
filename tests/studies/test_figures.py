"""Figures: what they show, what they save next to themselves, and that they can be drawn from anything."""

import itertools
import json

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from loopscope.errors import LoopscopeError
from loopscope.path import Outcome
from loopscope.stats import Bootstrap
from loopscope.store import sha256_bytes
from loopscope.studies import FIGURES, figure
from loopscope.studies.figures import GREEN, OUTCOMES, SERIES_COLOURS, SMALLEST_TYPE, WIDTH
from loopscope.studies.records import Records
from loopscope.studies.topics.single_paths import lower_median_failure

QUICK = Bootstrap(resamples=40)
ROUNDING = 4
"""Pixels of 100 per inch by which a label's box may be wider than its ink."""


@pytest.fixture(scope="module")
def drawn(lively):
    opened = Records([lively])
    # The figure of fitted scales is about longer steps, which tests of control measure.
    return {name: figure(name, opened, QUICK) for name in FIGURES if name != "fitted-scale"}


def test_every_figure_saves_with_ids_and_input_hashes(drawn, lively, tmp_path):
    shard = sha256_bytes((lively.path / "questions" / "000000.parquet").read_bytes())
    for (name, result), kind in zip(drawn.items(), itertools.cycle(("svg", "pdf", "png")), strict=False):
        target = result.save(tmp_path / f"{name}.{kind}", dpi=50)
        beside = json.loads((tmp_path / f"{name}.json").read_text())
        assert beside["figure"] == name
        assert beside["file"] == {"name": f"{name}.{kind}", "sha256": sha256_bytes(target.read_bytes())}
        assert beside["shown"]
        (source,) = beside["inputs"]
        assert source["manifest_sha256"] == lively.manifest.digest
        assert source["shards"]["questions/000000.parquet"] == shard


def test_pdf_fonts_are_embedded_and_saving_twice_gives_the_same_bytes(drawn, tmp_path):
    first, second = (drawn["contraction"].save(tmp_path / f"{name}.pdf").read_bytes() for name in "ab")
    assert first == second
    assert b"/FontFile2" in first
    assert b"/Type3" not in first


def test_mistakes_in_a_file_name_are_one_line(drawn):
    with pytest.raises(LoopscopeError, match="pdf, png, svg"):
        drawn["concept"].save("figure.jpeg")


def test_one_question_can_be_drawn(records, synthetic):
    made = records(synthetic.Task("sums", {4: synthetic.Paths.of([0.5], [-1.0])}))
    # Policies are fitted on some questions and tested on others.
    empty = {name for name, study in FIGURES.items() if not study.figure(made, QUICK).shown}
    assert empty <= {"control", "families", "fitted-scale"}


@pytest.mark.parametrize(
    ("level", "reason"), [("full", "no finite-step failure"), ("quick", "measure with level='grid'")]
)
def test_a_figure_without_data_says_why(records, synthetic, level, reason):
    made = records(synthetic.Task("sums", {4: synthetic.Paths.of([0.5, 0.25], [0.1, -0.1])}), level=level)
    for name in ("concept", "scale-prediction", "contraction"):
        result = FIGURES[name].figure(made, QUICK)
        assert result.shown == {}
        assert reason in result.caption


HOSTILE = [
    *("$\\frac{1}{$", "a\\$b_{x}^2", "\x1b[31mred\x00", "\u202eesrever"),
    *("模型-🙂", "_hidden", "x" * 5000, "%&#{}~^<>|\"'`"),
]


def test_names_are_drawn_as_they_stand(synthetic, tmp_path):
    """Nothing is read as mathematics, and no character asks for a glyph that the fonts lack (warnings are errors)."""
    runs = []
    for number, hostile in enumerate(HOSTILE):
        task = synthetic.Task(f"{hostile[:80]} 1", {4: synthetic.Paths.of([0.5, 2.0], [-1.0, -1.0])})
        runs.append(synthetic.write_run(tmp_path / str(number), [task], model={"name": hostile, "toy": False}))
    made = Records(runs)
    for name in ("direction-progress", "contraction", "depth-curves", "scale-prediction"):
        FIGURES[name].figure(made, QUICK).save(tmp_path / f"{name}.svg")


def test_the_picture_of_an_unfinished_run_says_so(unfinished_run):
    result = FIGURES["direction-progress"].figure(Records([unfinished_run]), QUICK)
    assert "2 of 4 questions" in result.figure.get_supxlabel()


def test_direction_progress_shows_every_record_on_equal_axes(drawn, lively):
    panels = drawn["direction-progress"].shown["panels"]
    assert sum(panel["records"] for panel in panels) == lively.records.height
    assert all(sum(panel["outcomes"].values()) == len(panel["ids"]) for panel in panels)
    for axes in drawn["direction-progress"].figure.axes:
        assert axes.get_xscale() == axes.get_yscale() == "symlog"
        assert axes.get_xlim() == axes.get_ylim()
        assert axes.xaxis.get_transform().linthresh == axes.yaxis.get_transform().linthresh
        assert len(axes.get_xticks()) == len(axes.get_yticks()) == 5


def test_colours_have_one_meaning_and_outcomes_differ_in_shape(drawn):
    assert set(OUTCOMES) == set(Outcome)
    colours = {look["color"] for look in OUTCOMES.values()}
    assert len(colours) == len({look["marker"] for look in OUTCOMES.values()}) == len(Outcome)
    assert not {*SERIES_COLOURS} & {*colours, GREEN}
    for name in ("scale-prediction", "depth-curves"):
        lines = {line.get_color() for axes in drawn[name].figure.axes for line in axes.lines}
        assert not lines & {
            OUTCOMES[each]["color"] for each in (Outcome.FINITE_STEP_FAILURE, Outcome.DIRECTIONAL_FAILURE)
        }


@pytest.mark.parametrize(
    ("slopes", "example", "optimum", "of"),
    [
        ([0.8, 0.2, 0.6, 0.4], "sums-00003", 0.2, 4),  # of four the second by optimum
        ([0.4, 0.4, 0.4], "sums-00001", 0.2, 3),  # ids break ties
        ([1.5, 0.9, -0.5], "sums-00001", 0.45, 1),  # updates that do not fail are no candidates
    ],
)
def test_the_lower_median_failure_is_the_example(records, synthetic, slopes, example, optimum, of):
    """With Q = -1 the optimum is half the slope."""
    made = records(synthetic.Task("sums", {4: synthetic.Paths.of(slopes, -np.ones(len(slopes)))}))
    chosen = lower_median_failure(made.updates[0])
    described = chosen.described()
    assert (described["example_id"], described["chosen_from"]) == (example, of)
    assert chosen.optimum == pytest.approx(optimum)


def test_overlapping_predictions_are_counted(records, synthetic):
    made = records(synthetic.Task("sums", {4: synthetic.Paths.of([0.5, 2.0, 2.0, 2.0], -np.ones(4))}))
    result = FIGURES["scale-prediction"].figure(made, QUICK)
    assert "3 points" in [text.get_text() for axes in result.figure.axes for text in axes.texts]
    sized = (c for axes in result.figure.axes for c in axes.collections if hasattr(c, "get_sizes"))
    areas = sorted(float(size) for collection in sized for size in collection.get_sizes())
    assert areas[-1] / areas[0] == pytest.approx(np.sqrt(3))
    # The quadratic rule loses nothing: zero has no place on the logarithmic axis.
    assert result.shown["conditions"][0]["regret"]["quad."][0] == pytest.approx(0, abs=1e-15)


def test_two_models_are_shown_before_two_tasks(tmp_path, synthetic):
    runs = []
    for name, family in (("toy-ouro", "ouro"), ("toy-huginn", "huginn")):
        tasks = [
            synthetic.Task(task, {4: synthetic.Paths.of([0.5, 0.3, 0.2][:n], [-1.0] * n)})
            for task, n in (("sums", 3), ("more", 2))
        ]
        model = {"name": name, "family": family, "affine_readout": family == "ouro"}
        runs.append(synthetic.write_run(tmp_path / name, tasks, model=model))
    shown = FIGURES["scale-prediction"].figure(Records(runs), QUICK).shown["conditions"]
    assert [panel["condition"] for panel in shown] == ["toy-ouro sums test 4→5", "toy-huginn sums test 4→5"]


def test_figures_have_their_width_and_legible_type_that_stays_inside(drawn):
    for name, result in drawn.items():
        inches = result.figure.get_size_inches()
        assert inches[0] == WIDTH, name
        # Policies have a legend of some twenty lines below the panels: four panels are more than a page.
        assert inches[1] <= (9.0 if name != "control" else 11.0), name
        texts = [text for text in result.figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
        assert min(text.get_fontsize() for text in texts if text.get_alpha() != 0) >= SMALLEST_TYPE, name
        renderer, whole = FigureCanvasAgg(result.figure).get_renderer(), result.figure.bbox
        for axes in (axes for axes in result.figure.axes if axes.get_visible()):
            for axis, along in ((axes.xaxis, 0), (axes.yaxis, 1)):
                labels = (label for label in axis.get_ticklabels() if label.get_visible() and label.get_text())
                shown = axis.get_tick_params().get("labelbottom", True)
                boxes = [label.get_window_extent(renderer) for label in labels if shown]
                ends = sorted((box.min[along], box.max[along]) for box in boxes if box.width)
                assert all(one[1] <= other[0] + 1 for one, other in itertools.pairwise(ends)), (name, ends)
            box = axes.get_tightbbox(renderer)
            assert whole.x0 - ROUNDING <= box.x0 < box.x1 <= whole.x1 + ROUNDING, name


def test_the_mark_of_a_decline_lies_on_its_point(records, synthetic):
    utility = np.array([-2.0, -1.0, -1.5, -1.8]) + np.random.default_rng(1).normal(0, 0.01, (30, 4))
    task = synthetic.Task("sums", {3: synthetic.Paths.of(np.full(30, 0.5), -np.ones(30))}, utility=utility)
    (axes,) = figure("depth-curves", records(task, depths=(1, 2, 3, 4)), QUICK).figure.axes
    (mark,) = [line for line in axes.lines if line.get_marker() == "v"]
    assert mark.get_xydata()[0] == pytest.approx([3, utility[:, 2].mean()])
