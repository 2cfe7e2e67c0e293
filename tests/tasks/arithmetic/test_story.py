"""The generated problems: right arithmetic, many wordings, frozen text, splits that share nothing."""

import hashlib
import re

import pytest

from loopscope.tasks.arithmetic.problem import LITERAL, SPLITS, answer_of, apply, split_of, wording
from loopscope.tasks.arithmetic.story import FEWEST, LARGEST, MOST
from loopscope.tasks.arithmetic.task import problem
from loopscope.tasks.arithmetic.words import DAYS, GOODS, GROUPS, PROJECTS, PURCHASES, TIMES, WHERE


@pytest.fixture(scope="module")
def made():
    return [problem("train", index) for index in range(6000)]


def test_text_is_frozen():
    """The published rows never change: a digest of text and solutions from all splits."""
    digest = hashlib.sha256()
    for split in SPLITS:
        for index in range(200):
            row = problem(split, index)
            digest.update(f"{row.question}\n{row.solution}\n".encode())
    assert digest.hexdigest() == "0dcba4dbbd3b52f34c0592ed732960b13f6a4f996ce10a10318ed6c7909c064f"


def test_every_step_is_right_whole_and_in_range(made):
    for row in made:
        for step in row.steps:
            assert apply(step.op, step.left, step.right) == step.result
            assert 1 <= step.result <= LARGEST
            assert step.right >= 1


def test_steps_use_earlier_results_and_numbers_of_the_text(made):
    spelled = {
        2: ("twice", "half", "Half", "doubles", "again", "share"),
        3: ("third", "three", "triples"),
        4: ("quarter",),
    }
    for row in made:
        numbers = [int(text) for text in re.findall(r"\d+", row.story)]
        for index, step in enumerate(row.steps):
            for value, source in ((step.left, step.left_from), (step.right, step.right_from)):
                if source == LITERAL:
                    assert value in numbers or any(word in row.story for word in spelled.get(value, ()))
                else:
                    assert source < index
                    assert row.steps[source].result == value


def test_every_result_is_used_and_the_last_is_the_answer(made):
    for row in made:
        used = {source for step in row.steps for source in (step.left_from, step.right_from)}
        assert used >= set(range(len(row.steps) - 1))
        assert answer_of(row.solution) == row.answer == row.steps[-1].result


def test_solution_has_one_line_for_each_operation(made):
    for row in made:
        lines = row.solution.split("\n")
        assert len(lines) == row.operations + 1
        for line, step in zip(lines, row.steps, strict=False):
            assert step.equation in line


def test_side_remarks_have_a_number_that_is_not_used(made):
    share = sum(row.remark for row in made) / len(made)
    assert 0.12 < share < 0.18


def test_difficulty_goes_round(made):
    assert [row.operations for row in made[:5]] == list(range(FEWEST, MOST + 1))


def test_all_four_operations_are_common(made):
    operations = [step.op for row in made for step in row.steps]
    for op in "+-*/":
        assert operations.count(op) / len(operations) > 0.1


def test_thousands_of_wordings(made):
    """Without numbers and names; then without any word that fills a slot, so that only sentence frames count."""
    wordings = {wording(row.story) for row in made}
    assert len(wordings) > 0.95 * len(made)
    nouns = {form for group in GROUPS for noun in (*group.things, *group.containers) for form in noun}
    nouns |= {form for noun in GOODS for form in noun} | {kind for group in GROUPS for kind in group.kinds}
    fillers = sorted(
        nouns | set(WHERE) | set(DAYS) | set(TIMES) | set(PROJECTS) | set(PURCHASES), key=len, reverse=True
    )
    slot = re.compile(r"\b(?:" + "|".join(map(re.escape, fillers)) + r")\b")
    assert len({slot.sub("_", text) for text in wordings}) > 0.9 * len(made)


def test_sentence_frames_number_hundreds(made):
    sentences = {part for row in made for part in re.split(r"(?<=[.?]) ", wording(row.story))}
    assert len(sentences) > 3000


def test_splits_share_no_wording():
    seen = {split: {wording(problem(split, index).story) for index in range(1500)} for split in SPLITS}
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["validation"]
    assert not seen["validation"] & seen["test"]


@pytest.mark.parametrize("split", SPLITS)
def test_split_follows_from_the_text_alone(split):
    """Whatever numbers and names a story gets, it stays on its side: disjoint by construction."""
    for index in range(100):
        story = problem(split, index).story
        renamed = re.sub(r"\d+", "7", story.replace("Mia", "Tom").replace("Leo", "Ada"))
        assert split_of(story) == split_of(renamed) == split


def test_rows_of_the_test_split_are_distinct():
    stories = [problem("test", index).story for index in range(2000)]
    assert len(set(stories)) == len(stories)


def test_other_seed_other_problems():
    assert problem("test", 3).story != problem("test", 3, seed=1).story
