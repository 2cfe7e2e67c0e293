"""Tells a story, and a document of several stories about the same people: the rows of the task `stories`.

A story is an opening, some sentences of changing kinds and an ending. Some of its sentences count things, in the frames
of the arithmetic problems, and the count stays right. What comes next can be guessed and never known: a reader's
uncertainty is about one nat a token.
"""

from __future__ import annotations

import re

from research.data.arithmetic import SEED
from research.data.problem import LANGUAGE, NAMES, WORDS, Chooser, key, split_of

STORIES = 4
"""Stories of a document: one to read, the others to be scored."""

FEWEST_SENTENCES, MOST_SENTENCES = 4, 7
"""Between a story's opening and its ending."""
CAST = 4
"""The people of a document; every story is about two of them."""
LARGEST_COUNT = 400

_MIDDLE = ("count", "count", "count", "talk", "talk", "event", "event", "travel", "weather", "thought")
_GAP = re.compile(r"<(\w+)>")
_BEFORE_VOWEL = re.compile(r"\b([Aa])(?= [aeiou])")
_COUNTING = [
    {kind: LANGUAGE["frames"]["common"][kind] + group["frames"].get(kind, []) for kind in ("start", "add", "sub")}
    for group in WORDS["groups"]
]
_LANGUAGE = LANGUAGE["stories"]


class _Teller:
    """The state of one story while it is told."""

    def __init__(self, choose: Chooser, cast: list[str]) -> None:
        self.choose = choose
        first, second = choose.order(len(cast))[:2]
        self.person = cast[first]
        self.pronoun = "She" if self.person in WORDS["she"] else "He"
        number = choose.below(len(_COUNTING))
        group, self.counting = WORDS["groups"][number], _COUNTING[number]
        (x, x1), (c, c1) = choose.of(group["things"]), choose.of(group["containers"])
        self.count: int | None = None
        self.slots: dict[str, object] = {
            "A": self.person, "B": cast[second], "S": self.person, "s": self.person, "x": x, "x1": x1, "c": c, "c1": c1,
            "place": choose.of(_LANGUAGE["places"]), "day": choose.of(WORDS["days"]),
            "where": choose.of(WORDS["where"]),
        }  # fmt: skip

    def say(self, kind: str) -> str:
        """One sentence of a kind."""
        choose = self.choose
        frame = self._count() if kind == "count" else choose.of(_LANGUAGE["sentences"][kind])
        while "<" in frame:
            frame = _GAP.sub(self._phrase, frame)
        self.slots["S"] = self.pronoun if kind != "opening" and choose.chance(0.5) else self.person
        return _BEFORE_VOWEL.sub(r"\1n", frame.format_map(self.slots))

    def _phrase(self, gap: re.Match[str]) -> str:
        """A phrase for a gap; a capital in the gap's name is one in the text."""
        name = gap[1]
        phrase = self.choose.of(_LANGUAGE["phrases"][name.lower()])
        return phrase[0].upper() + phrase[1:] if name[0].isupper() and phrase[0] != "<" else phrase

    def _count(self) -> str:
        choose = self.choose
        if self.count is None:
            kind, number = "start", choose.between(2, 60)
            self.count = number
        elif self.count < 4 or (self.count < LARGEST_COUNT and choose.chance(0.5)):
            kind, number = "add", choose.between(2, 30)
            self.count += number
        else:
            kind, number = "sub", choose.between(2, min(30, self.count))
            self.count -= number
        self.slots["n"] = number
        return choose.of(self.counting[kind])


def tell(choose: Chooser, cast: list[str]) -> str:
    """A story about two people of the cast."""
    teller = _Teller(choose, cast)
    middle = [choose.of(_MIDDLE) for _ in range(choose.between(FEWEST_SENTENCES, MOST_SENTENCES))]
    return " ".join(teller.say(kind) for kind in ("opening", *middle, "ending"))


def document(choose: Chooser, split: str, stories: int = STORIES) -> tuple[str, list[str]]:
    """A head that names the people, and stories about them; the wording of each belongs to the split."""
    cast = [NAMES[index] for index in choose.order(len(NAMES))[:CAST]]
    names = f"{', '.join(cast[:-1])} and {cast[-1]}"
    told: list[str] = []
    while len(told) < stories:
        story = tell(choose, cast)
        if split_of(story) == split:
            told.append(story)
    return choose.of(_LANGUAGE["heads"]).format(names=names), told


def row(split: str, index: int) -> dict[str, str]:
    """What the task `stories` stores of a document: the head and the first story are context, the others are scored."""
    head, (first, *others) = document(Chooser(key("stories", SEED, split, index)), split)
    return {"context": f"{head}\n{first}\n", "continuation": "\n".join(others)}
