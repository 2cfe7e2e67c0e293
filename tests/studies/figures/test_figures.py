"""Figures: what they show, what they save beside themselves, and that they can be drawn from anything."""

import itertools
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from loopscope.errors import LoopscopeError
from loopscope.path import Outcome
from loopscope.stats import Bootstrap, Estimate, Interval
from loopscope.store import sha256_bytes
from loopscope.studies.figures.depths import Curve, first_shown
from loopscope.studies.figures.examples import lower_median_failure
from loopscope.studies.figures.style import (
    GREEN,
    OUTCOME_COLOURS,
    OUTCOME_MARKERS,
    SERIES_COLOURS,
    SMALLEST_TYPE,
    WIDTHS,
    symlog_threshold,
    symlog_ticks,
)
from loopscope.studies.records import Records
from loopscope.studies.registry import FIGURES, figure

QUICK = Bootstrap(resamples=40)
ROUNDING = 4
"""Pixels of 100 per inch by which a label's box may be wider than its ink."""


@pytest.fixture(scope="module")
def opened(lively):
    return Records([lively])


@pytest.fixture(scope="module")
def drawn(opened):
    return {name: figure(name, opened, QUICK) for name in FIGURES}


@pytest.mark.parametrize("kind", ["pdf", "png", "svg"])
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_saves_with_ids_and_input_hashes(drawn, lively, tmp_path, name, kind):
    target = drawn[name].save(tmp_path / f"{name}.{kind}", dpi=50)
    assert target.stat().st_size > 2000
    beside = json.loads((tmp_path / f"{name}.json").read_text())
    assert beside["figure"] == name
    assert beside["file"] == {"name": f"{name}.{kind}", "sha256": sha256_bytes(target.read_bytes())}
    assert beside["shown"]
    (source,) = beside["inputs"]
    assert source["manifest_sha256"] == lively.manifest.digest
    assert source["shards"]["questions/000000.parquet"] == sha256_bytes(
        (lively.path / "questions" / "000000.parquet").read_bytes()
    )


def test_pdf_fonts_are_embedded_as_truetype(drawn, tmp_path):
    data = drawn["contraction"].save(tmp_path / "figure.pdf").read_bytes()
    assert b"/FontFile2" in data
    assert b"/Type3" not in data


def test_saving_twice_gives_the_same_bytes(drawn, tmp_path):
    first, second = (drawn["contraction"].save(tmp_path / f"{name}.pdf") for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_an_unknown_suffix_is_the_users_mistake(drawn, tmp_path):
    with pytest.raises(LoopscopeError, match="pdf, png, svg"):
        drawn["concept"].save(tmp_path / "figure.jpeg")


def test_a_folder_that_cannot_be_written_is_one_line(drawn, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LoopscopeError, match="is a file: save the figure into a folder"):
        drawn["concept"].save(tmp_path / "file" / "figure.pdf")


def test_a_failed_write_leaves_nothing_half_written(lively, tmp_path):
    """A file-size limit below the figure's size is a full disk on a small scale."""
    program = (
        "import resource, signal, sys; from pathlib import Path;"
        "from loopscope.errors import LoopscopeError;"
        "from loopscope.studies import figure;"
        "made = figure('concept', sys.argv[1]);"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000));"
        "\ntry: made.save(Path(sys.argv[2]) / 'concept.pdf')\nexcept LoopscopeError as error: print(error)"
    )
    target = tmp_path / "new"
    result = subprocess.run(
        [sys.executable, "-c", program, str(lively.path), str(target)], capture_output=True, text=True, check=True
    )
    assert "cannot write" in result.stdout
    assert list(target.iterdir()) == []


def test_notebooks_get_a_picture(drawn):
    picture, size = drawn["concept"]._repr_png_()
    assert picture.startswith(b"\x89PNG")
    # Drawn twice as fine as it is shown.
    assert int.from_bytes(picture[16:20], "big") == pytest.approx(2 * size["width"], abs=2)
    assert len(repr(drawn["concept"])) < 200


@pytest.mark.parametrize("name", FIGURES)
def test_one_question_can_be_drawn(records, synthetic, name):
    task = synthetic.Task("sums", {4: synthetic.Paths.of([0.5], [-1.0])})
    drawn = FIGURES[name].figure(records(task), QUICK)
    # Policies are fitted on some questions and tested on others.
    assert drawn.shown if name != "control" else "two questions" in drawn.caption


@pytest.mark.parametrize("name", ["concept", "scale-prediction", "contraction"])
def test_without_failures_the_figure_says_so(records, synthetic, name):
    task = synthetic.Task("sums", {4: synthetic.Paths.of([0.5, 0.25], [0.1, -0.1])})
    result = FIGURES[name].figure(records(task), QUICK)
    assert result.shown == {}
    assert "no finite-step failure" in result.caption


@pytest.mark.parametrize("name", ["concept", "scale-prediction", "contraction"])
def test_a_quick_run_is_told_what_to_measure_not_that_it_has_no_failures(records, synthetic, name):
    task = synthetic.Task("sums", {4: synthetic.Paths.of([0.5, 0.25], [-1.0, -0.1])})
    result = FIGURES[name].figure(records(task, level="quick"), QUICK)
    assert result.shown == {}
    assert "measure with level='grid'" in result.caption


def test_only_outcomes_that_are_drawn_are_explained(records, synthetic):
    made = records(synthetic.Task("sums", {4: synthetic.Paths.of([0.5, 0.5], [-1.0, 0.1])}))
    caption = FIGURES["direction-progress"].figure(made, QUICK).caption
    assert "Vermillion" in caption
    assert "Grey" in caption
    assert "Blue" not in caption
    assert "crosses" not in caption


HOSTILE = [
    "$\\frac{1}{$",
    "$a$b$",
    "a\\$b_{x}^2",
    "\x1b[31mred\x00",
    "\u202eesrever",
    "模型-🙂",
    "_hidden",
    "x" * 5000,
    "two\nlines\tand a tab",
    "%&#{}~^<>|\"'`",
]


def test_names_are_drawn_as_they_stand(synthetic, tmp_path):
    """Nothing is read as mathematics, and no character asks for a glyph that the fonts lack (warnings are errors)."""
    runs = []
    for number, hostile in enumerate(HOSTILE):
        task = synthetic.Task(f"{hostile[:80]} 1", {4: synthetic.Paths.of([0.5, 2.0], [-1.0, -1.0])})
        runs.append(synthetic.write_run(tmp_path / str(number), [task], model={"name": hostile, "toy": False}))
    made = Records(runs)
    for name, study in FIGURES.items():
        study.figure(made, QUICK).save(tmp_path / f"{name}.pdf")


def test_a_name_with_dollars_reads_as_written(records, synthetic, tmp_path):
    """Text of an SVG without outlines is what a reader sees."""
    import matplotlib

    task = synthetic.Task("cost $5$ or \\$6", {4: synthetic.Paths.of([0.5], [-1.0])})
    figure = FIGURES["contraction"].figure(records(task, model={"name": "m$x_1$", "toy": False}), QUICK).figure
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(tmp_path / "figure.svg")
    written = (tmp_path / "figure.svg").read_text()
    assert "cost $5$ or \\$6 test 4→5" in written
    assert "(a) m$x_1$" in written


def test_the_picture_of_an_unfinished_run_says_so(unfinished_run):
    result = FIGURES["direction-progress"].figure(Records([unfinished_run]), QUICK)
    assert "2 of 4 questions" in result.figure.get_supxlabel()


def test_all_neutral_updates_can_be_drawn(records, synthetic):
    task = synthetic.Task("sums", {4: synthetic.Paths.of(np.zeros(3), np.zeros(3))})
    (panel,) = FIGURES["direction-progress"].figure(records(task), QUICK).shown["panels"]
    assert panel["outcomes"]["neutral"] == 3


def test_direction_progress_shows_every_record(drawn, lively):
    panels = drawn["direction-progress"].shown["panels"]
    assert sum(panel["records"] for panel in panels) == lively.records.height
    assert all(sum(panel["outcomes"].values()) == len(panel["ids"]) for panel in panels)


def test_both_axes_of_direction_progress_have_one_transform(drawn):
    for axes in drawn["direction-progress"].figure.axes:
        assert axes.get_xscale() == axes.get_yscale() == "symlog"
        assert axes.get_xlim() == axes.get_ylim()
        assert axes.xaxis.get_transform().linthresh == axes.yaxis.get_transform().linthresh


def test_outcomes_differ_in_colour_and_in_shape():
    assert set(OUTCOME_COLOURS) == set(OUTCOME_MARKERS) == set(Outcome)
    assert len(set(OUTCOME_COLOURS.values())) == len(set(OUTCOME_MARKERS.values())) == len(Outcome)


def relative_luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_outcome_colours_stand_out_from_white_paper():
    for colour in OUTCOME_COLOURS.values():
        assert 1.05 / (relative_luminance(colour) + 0.05) > 3


class TestLowerMedian:
    def failures(self, records, synthetic, slopes):
        """Failures with Q = -1, so that the optimum is half the slope."""
        made = records(synthetic.Task("sums", {4: synthetic.Paths.of(slopes, -np.ones(len(slopes)))}))
        return made.updates[0]

    def test_of_four_the_second_is_shown(self, records, synthetic):
        example = lower_median_failure(self.failures(records, synthetic, [0.8, 0.2, 0.6, 0.4]))
        assert example.described()["example_id"] == "sums-00003"
        assert example.optimum == pytest.approx(0.2)

    def test_ids_break_ties(self, records, synthetic):
        example = lower_median_failure(self.failures(records, synthetic, [0.4, 0.4, 0.4]))
        assert example.described()["example_id"] == "sums-00001"

    def test_updates_that_do_not_fail_are_no_candidates(self, records, synthetic):
        example = lower_median_failure(self.failures(records, synthetic, [1.5, 0.9, -0.5]))
        assert (example.described()["example_id"], example.described()["chosen_from"]) == ("sums-00001", 1)

    def test_stored_nodes_are_drawn_where_the_run_keeps_them(self, records, synthetic):
        task = synthetic.Task("sums", {4: synthetic.Paths.of([0.5], [-1.0])})
        kept = records(task, name="kept", paths=True)
        grid = records(task, name="grid")
        assert len(lower_median_failure(kept.updates[0]).path[0]) == 257
        assert len(lower_median_failure(grid.updates[0]).path[0]) == 21

    def test_grid_optima_serve_at_lower_levels(self, records, synthetic):
        task = synthetic.Task("sums", {4: synthetic.Paths.of([0.53], [-1.0])})
        made = records(task, level="grid")
        assert lower_median_failure(made.updates[0]).optimum == 0.25


def test_overlapping_predictions_are_counted(records, synthetic):
    slopes = [0.5, 2.0, 2.0, 2.0]
    made = records(synthetic.Task("sums", {4: synthetic.Paths.of(slopes, -np.ones(4))}))
    figure = FIGURES["scale-prediction"].figure(made, QUICK).figure
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert "3 points" in texts
    areas = sorted(float(size) for axes in figure.axes for c in axes.collections for size in np.atleast_1d(sizes(c)))
    assert areas[-1] / areas[0] == pytest.approx(np.sqrt(3))


def sizes(collection):
    return collection.get_sizes() if hasattr(collection, "get_sizes") and len(collection.get_sizes()) else []


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
    assert [panel["condition"] for panel in shown] == ["toy-ouro sums test 4→5", "toy-huginn more test 4→5"]


def test_zero_regret_is_left_out_of_the_logarithmic_axis(records, synthetic):
    # Quadratic paths with optima on the grid: the quadratic rule loses nothing.
    made = records(synthetic.Task("sums", {4: synthetic.Paths.of([0.5, 0.3, 0.2], [-1.0, -1.0, -1.0])}))
    result = FIGURES["scale-prediction"].figure(made, QUICK)
    assert result.shown["conditions"][0]["regret"]["quad."]["mean"] == pytest.approx(0, abs=1e-15)


def test_a_condition_without_failures_keeps_its_line_and_says_so(records, synthetic):
    made = records(
        synthetic.Task("sums", {4: synthetic.Paths.of([0.5], [-1.0])}),
        synthetic.Task("fine", {4: synthetic.Paths.of([0.5], [0.1])}),
    )
    figure = FIGURES["contraction"].figure(made, QUICK).figure
    assert [text.get_text() for text in figure.axes[0].texts].count("no failure") == 1


@pytest.fixture(scope="module", params=["one", "two"])
def wide(request, opened, drawn):
    """Every figure of a run of sixteen conditions at one width."""
    if request.param == "two":  # as they are drawn without a word
        return request.param, drawn
    return request.param, {name: figure(name, opened, QUICK, width=request.param) for name in FIGURES}


def written_texts(drawn):
    return [
        text for text in drawn.findobj(Text) if text.get_visible() and text.get_text().strip() and text.get_alpha() != 0
    ]


def test_figures_have_the_width_of_a_column_and_legible_type(wide):
    width, made = wide
    for name, result in made.items():
        assert result.figure.get_size_inches()[0] == WIDTHS[width], name
        assert min(text.get_fontsize() for text in written_texts(result.figure)) >= SMALLEST_TYPE, name
        # Policies have a legend of some twenty lines below the panels: four panels are more than a page.
        assert result.figure.get_size_inches()[1] <= (9.0 if name != "control" else 11.0), name


def test_no_text_leaves_the_picture_and_tick_labels_do_not_touch(wide):
    _, made = wide
    for name, result in made.items():
        renderer = FigureCanvasAgg(result.figure).get_renderer()
        whole = result.figure.bbox
        for axes in result.figure.axes:
            if not axes.get_visible():
                continue
            for axis, along in ((axes.xaxis, 0), (axes.yaxis, 1)):
                boxes = [
                    label.get_window_extent(renderer)
                    for label in axis.get_ticklabels()
                    if label.get_visible() and label.get_text() and axis.get_tick_params().get("labelbottom", True)
                ]
                ends = sorted((box.min[along], box.max[along]) for box in boxes if box.width)
                assert all(one[1] <= other[0] + 1 for one, other in itertools.pairwise(ends)), (name, ends)
            box = axes.get_tightbbox(renderer)
            assert box.x0 >= whole.x0 - ROUNDING, name
            assert box.x1 <= whole.x1 + ROUNDING, name


def test_more_than_three_tick_labels_beside_each_panel(lively):
    for axes in figure("direction-progress", lively, QUICK).figure.axes:
        assert len(axes.get_xticks()) == len(axes.get_yticks()) == 5


def test_no_colour_has_two_meanings():
    assert not {*SERIES_COLOURS} & {*OUTCOME_COLOURS.values(), GREEN}
    assert len({*SERIES_COLOURS}) == len(SERIES_COLOURS)


def test_conditions_are_not_drawn_in_the_colours_of_outcomes(drawn):
    for name in ("scale-prediction", "depth-curves"):
        lines = {line.get_color() for axes in drawn[name].figure.axes for line in axes.lines}
        assert not lines & {OUTCOME_COLOURS[Outcome.FINITE_STEP_FAILURE], OUTCOME_COLOURS[Outcome.DIRECTIONAL_FAILURE]}


def test_a_first_depth_that_would_flatten_the_others_is_named_instead(records, synthetic):
    utility = np.array([[-9.0, -1.0, -0.9, -0.95], [-9.2, -1.1, -0.8, -0.85]])
    task = synthetic.Task("sums", {3: synthetic.Paths.of([0.5, 0.4], [-1.0, -1.0])}, utility=utility)
    result = figure("depth-curves", records(task, depths=(1, 2, 3, 4)), QUICK)
    (axes,) = result.figure.axes
    assert axes.get_ylim()[0] > -3
    assert axes.get_title() == "sums test, depth ≥ 2"
    assert "leaves out lower means" in result.caption


def test_a_model_that_goes_deeper_does_not_push_the_others_out():
    """Beyond depth 8 there is one model alone, whose utilities are all alike."""

    def curve(depths, means, reach):
        estimates = [Estimate(mean, 9, Interval(mean - reach, mean + reach)) for mean in means]
        return Curve(SimpleNamespace(depths=depths), estimates, [])

    deep = curve((2, 4, 8, 16, 32, 64), [-7.06] * 6, 1e-4)
    assert first_shown([curve((1, 2, 4, 8), [-7.4, -7.3, -7.6, -7.5], 0.1), deep]) is None
    assert first_shown([curve((1, 2, 4, 8), [-30.0, -7.3, -7.6, -7.5], 0.1), deep]) == 2


def test_the_mark_of_a_decline_lies_on_its_point(records, synthetic):
    rng = np.random.default_rng(1)
    utility = np.array([-2.0, -1.0, -1.5, -1.8]) + rng.normal(0, 0.01, (30, 4))
    task = synthetic.Task("sums", {3: synthetic.Paths.of(np.full(30, 0.5), -np.ones(30))}, utility=utility)
    (axes,) = figure("depth-curves", records(task, depths=(1, 2, 3, 4)), QUICK).figure.axes
    (mark,) = [line for line in axes.lines if line.get_marker() == "v"]
    assert mark.get_xydata()[0] == pytest.approx([3, utility[:, 2].mean()])


def test_a_style_file_wins_and_is_checked(lively, tmp_path):
    style = tmp_path / "mine.mplstyle"
    style.write_text("axes.labelsize: 11\nfont.family: DejaVu Sans\n")
    labels = [figure("concept", lively, QUICK, style=given).figure.axes[0].xaxis.label for given in (None, style)]
    assert [label.get_fontsize() for label in labels] == [8, 11]
    assert labels[1].get_fontfamily() == ["DejaVu Sans"]
    for text in ("axes.nonsense: 3\n", "axes.labelsize: green\n"):
        style.write_text(text)
        with pytest.raises(LoopscopeError, match=r"style= mine.mplstyle is not a style of matplotlib"):
            figure("concept", lively, QUICK, style=style)
    with pytest.raises(LoopscopeError, match="style"):
        figure("concept", lively, QUICK, style=tmp_path / "nowhere.mplstyle")
    with pytest.raises(LoopscopeError, match=r"width='three' is not known: choose one, two"):
        figure("concept", lively, QUICK, width="three")


def test_settings_that_the_user_changed_are_respected(lively):
    import matplotlib

    with matplotlib.rc_context({"axes.labelsize": 10}):
        result = figure("concept", lively, QUICK)
    assert result.figure.axes[0].xaxis.label.get_fontsize() == 10


def test_captions_tell_numbers_of_the_data(lively, drawn):
    records = Records([lively])
    assert f"{lively.records.height:,} points" in drawn["direction-progress"].caption
    failures = sum(int(updates.finite_step.sum()) for updates in records.updates)
    recovered = sum(int((updates.finite_step & (updates.quarter_gain > 0)).sum()) for updates in records.updates)
    assert f"{recovered} of {failures} in all" in drawn["contraction"].caption
    shown = drawn["concept"].shown["example"]
    assert f"question {shown['example_id']}" in drawn["concept"].caption
    assert f"scale {shown['optimum']:.3g} gains" in drawn["concept"].caption


def test_symlog_threshold_follows_small_data_and_never_exceeds_the_margin():
    assert symlog_threshold(np.array([0.1, -0.2])) == 1e-4
    assert symlog_threshold(np.array([3e-6, -5e-6, 0.0])) == 1e-6
    assert symlog_threshold(np.zeros(3)) == 1e-4


def test_symlog_ticks_are_few_and_symmetric():
    assert symlog_ticks(1e-4, 2.0, most=2) == pytest.approx([-1.0, -1e-3, 0.0, 1e-3, 1.0])
    assert symlog_ticks(1e-4, 5e-5) == [-1e-4, 0.0, 1e-4]


def test_a_long_reason_has_its_lines(records, synthetic):
    """Many runs without what a figure needs are all named, and the picture has room for them."""
    many = [synthetic.Task(f"task-{number}", {4: synthetic.Paths.of([0.5], [-1.0])}) for number in range(30)]
    drawn = FIGURES["longer-steps"].figure(records(*many, settings={}), QUICK)
    assert "task-29" in drawn.caption
    assert drawn.figure.get_size_inches()[1] > 1.0
