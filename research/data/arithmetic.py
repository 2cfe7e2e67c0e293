"""Tells a word problem: picks a family, sentences and numbers, and keeps the computation beside the text.

A story follows one running amount v. Each sentence frame stands for one operation on v (or two, where the
sentence itself holds a product); the numbers are drawn so that every result is a whole number from 2 to 999.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from research.data.problem import (
    LANGUAGE,
    LITERAL,
    NAMES,
    REQUESTS,
    STYLES,
    WORDS,
    Chooser,
    Problem,
    Step,
    key,
    render,
    split_of,
    wrong_answers,
)

SEED = 20260904
"""The seed of the published rows."""
FRAMES, ENDINGS = LANGUAGE["frames"], LANGUAGE["endings"]
Frames = dict[str, list[str]]

LARGEST = 999
FEWEST, MOST = 2, 6
"""How many operations a problem may have."""

FIXED = {"double": 2, "triple": 3, "half": 2, "third": 3, "quarter": 4, "to_twice": 2, "to_half": 2}
"""The factor or divisor that a frame spells out in words."""

_GROWING = (("mul", 4), ("double", 3), ("triple", 2), ("to_times", 3), ("to_twice", 2))
_SHRINKING = (("div", 4), ("half", 3), ("third", 1), ("quarter", 1), ("to_part", 2), ("to_half", 2))
_REFERS_BACK = re.compile(r"\b(?:She|she|He|he)\b")
_STEP_KIND = {"double": "mul", "triple": "mul", "half": "div", "third": "div", "quarter": "div"}


class Family(NamedTuple):
    """Frames that go together."""

    name: str
    body: Frames
    endings: Frames
    remarks: list[str]


def _merged(*parts: Frames) -> Frames:
    return {kind: [frame for part in parts for frame in part.get(kind, [])] for part in parts for kind in part}


_PEOPLE = [
    Family(group["name"], _merged(FRAMES["common"], group["frames"]), ENDINGS["people"], ENDINGS["remarks_people"])
    for group in WORDS["groups"]
]
_PLACES = [
    Family(place["place"], _merged(FRAMES["anywhere"], place["frames"]), ENDINGS["place"], ENDINGS["remarks_place"])
    for place in FRAMES["places"]
]
_MONEY = Family("money", FRAMES["money"], ENDINGS["money"], ENDINGS["remarks_people"])
_WORK = Family("work", FRAMES["work"], ENDINGS["work"], ENDINGS["remarks_people"])


class _Teller:
    """The state of one story while it is told."""

    def __init__(self, choose: Chooser, operations: int) -> None:
        self.choose = choose
        self.left = operations
        self.steps: list[Step] = []
        self.sentences: list[str] = []
        self.value = 0
        self.source = LITERAL
        self.divisor = 0
        self.alone = True
        self.owners: list[str] = []
        self.slots: dict[str, object] = {}
        self._cast()

    def _cast(self) -> None:
        choose, slots = self.choose, self.slots
        female = choose.chance(0.5)
        self.pronoun = ("She", "she") if female else ("He", "he")
        self.person = choose.of(WORDS["she" if female else "he"])
        slots["A"] = slots["S"] = slots["s"] = self.person
        self.owners.append(self.person)
        self._other()
        for slot, words in (("where", "where"), ("day", "days"), ("time", "times"), ("friends", "friends")):
            slots[slot] = choose.of(WORDS[words])
        draw = choose.uniform()
        if draw < 0.5:
            index = choose.below(len(_PEOPLE))
            group = WORDS["groups"][index]
            self.family = _PEOPLE[index]
            slots["x"], slots["x1"] = choose.of(group["things"])
            slots["c"], slots["c1"] = choose.of(group["containers"])
            kinds = group["kinds"]
            slots["kind"], slots["other"] = (kinds[place] for place in choose.order(len(kinds))[:2])
            slots["project"] = choose.of(WORDS["projects"])
        elif draw < 0.66:
            self.family = _MONEY
            self._money_slots()
        elif draw < 0.86:
            index = choose.below(len(_PLACES))
            place = FRAMES["places"][index]
            self.family = _PLACES[index]
            slots["in"], _, slots["p"] = place["place"].partition(" ")
            slots["In"] = str(slots["in"]).capitalize()
            slots["x"], slots["x1"] = place["things"]
        else:
            self.family = _WORK
            slots["does"], slots["done"], (slots["x"], slots["x1"]) = choose.of(FRAMES["work_units"])
        self.unit = "dollars" if self.family is _MONEY else str(slots["x"])

    def _money_slots(self) -> None:
        choose, slots, chores = self.choose, self.slots, WORDS["chores"]
        order = choose.order(len(chores))
        slots["g"], singular = choose.of(WORDS["goods"])
        slots["goodone"] = f"an old {singular}"
        slots["purchase"] = choose.of(WORDS["purchases"])
        slots["chore"], slots["chore2"] = chores[order[0]], chores[order[1]]

    def _other(self) -> None:
        while True:
            name = self.choose.of(NAMES)
            if name not in self.owners:
                break
        self.slots["B"] = name

    def say(self, frame: str, connect: bool = True) -> None:
        """Fills one frame and adds it to the story."""
        choose, slots = self.choose, self.slots
        for slot, words in (("where", "where"), ("day", "days"), ("time", "times")):
            if f"{{{slot}}}" in frame:
                slots[slot] = choose.of(WORDS[words])
        connector = choose.of(ENDINGS["connectors"]) if connect and choose.chance(0.4) else ""
        if "{B}" in frame:
            self.alone = False
        if self.alone and ("{S}" in frame or "{s}" in frame) and choose.chance(0.45):
            capital, small = self.pronoun
            slots["S"], slots["s"] = (small if connector else capital), small
        else:
            slots["S"] = slots["s"] = self.person
        if connector and frame[0] != "{":
            frame = frame[0].lower() + frame[1:]
        self.sentences.append(connector + frame.format_map(slots))

    def step(self, left: int, op: str, right: int, kind: str, left_from: int, right_from: int, unit: str) -> None:
        """Notes one operation; its result becomes the running amount."""
        result = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[op]
        self.steps.append(Step(left, op, right, result, left_from, right_from, kind, self.person, unit))
        self.value, self.source = result, len(self.steps) - 1
        self.left -= 1

    def amount(self, high: int) -> int:
        """A number from 2 to `high`, more often small than large."""
        choose = self.choose
        limit = 30 if choose.chance(0.4) else 100 if choose.chance(0.6) else 400
        return choose.between(2, max(2, min(limit, high)))

    def product(self, high: int) -> tuple[int, int]:
        """Two factors whose product is at most `high` (which is 4 at least)."""
        choose = self.choose
        first = choose.between(2, min(12, high // 2))
        return first, choose.between(2, min(30 if choose.chance(0.7) else 60, high // first))

    def begin(self) -> None:
        """The first sentence."""
        choose, body, slots = self.choose, self.family.body, self.slots
        draw = choose.uniform()
        if draw < 0.45:
            slots["n"] = self.value = 3 + self.amount(500)
            self.say(choose.of(body["start"]), connect=False)
            return
        if draw < 0.75:
            a, b = self.product(480)
            op, kind = "*", "start_mul"
        else:
            a, b = self.amount(400), self.amount(400)
            op, kind = "+", "start_sum"
        slots["a"], slots["b"] = a, b
        self.say(choose.of(body[kind]), connect=False)
        self.step(a, op, b, "start", LITERAL, LITERAL, self.unit)

    def continue_(self) -> None:
        """One more sentence of the body: one operation, or two where it holds a product."""
        choose, body = self.choose, self.family.body
        if self.divisor:
            self._scale(_SHRINKING, self.divisor)
            return
        draw = choose.uniform()
        divisors = [k for k in range(2, 10) if self.value % k == 0 and self.value // k >= 2]
        if draw < 0.12 and self.value * 2 <= LARGEST:
            self._scale(_GROWING, 0)
        elif draw < 0.24 and divisors:
            self._scale(_SHRINKING, choose.of(divisors))
        elif draw < 0.30 and "price" in body and self.value * 2 <= LARGEST:
            self._sell()
        elif draw < 0.46 and self.left >= 2:
            self._product_change()
        else:
            self._change()

    def _change(self) -> None:
        choose, body, slots = self.choose, self.family.body, self.slots
        grow = choose.chance(0.5)
        if self.value < 6:
            grow = True
        elif self.value > LARGEST - 6:
            grow = False
        n = self.amount(LARGEST - self.value if grow else self.value - 2)
        if self.left >= 2 and choose.chance(0.45):
            n = self._rounded(n, grow)
        kind = "add" if grow else "sub"
        moving = "to_more" if grow else "to_less"
        frame_kind = moving if moving in body and choose.chance(0.2) else kind
        slots["n"] = n
        self.say(choose.of(body[frame_kind]), connect=frame_kind == kind)
        if frame_kind == moving:
            self._move()
        self.step(
            self.value, "+" if grow else "-", n, kind if frame_kind == kind else "to", self.source, LITERAL, self.unit
        )

    def _rounded(self, n: int, grow: bool) -> int:
        """Moves n so that the next sentence can divide the result."""
        k = self.choose.between(2, 9)
        after = self.value + n if grow else self.value - n
        short = after % k
        n = n - short if grow else n + short
        after = self.value + n if grow else self.value - n
        if n < 2 or after < 2 * k:
            return n if n >= 2 and after >= 2 else 2
        self.divisor = k
        return n

    def _product_change(self) -> None:
        choose, body, slots = self.choose, self.family.body, self.slots
        grow = choose.chance(0.5) if self.value >= 12 else True
        room = LARGEST - self.value if grow else self.value - 2
        if room < 4:
            self._change()
            return
        a, b = self.product(min(room, 400))
        slots["a"], slots["b"] = a, b
        before, source = self.value, self.source
        self.say(choose.of(body["add_mul" if grow else "sub_mul"]))
        self.step(a, "*", b, "extra" if grow else "spent", LITERAL, LITERAL, self.unit)
        self.step(before, "+" if grow else "-", a * b, "add" if grow else "sub", source, self.source, self.unit)

    def _scale(self, kinds: tuple[tuple[str, int], ...], divisor: int) -> None:
        """Multiplies (divisor 0) or divides by the divisor."""
        choose, body, slots = self.choose, self.family.body, self.slots
        self.divisor = 0
        options = [
            kind
            for kind, weight in kinds
            if kind in body and FIXED.get(kind, divisor) in (divisor, 2, 3)[: 1 if divisor else 3]
            and self.value * (1 if divisor else FIXED.get(kind, 2)) <= LARGEST
            for _ in range(weight)
        ]  # fmt: skip
        kind = choose.of(options)
        k = FIXED.get(kind) or divisor or choose.between(2, min(9, LARGEST // self.value))
        moving = kind.startswith("to_")
        slots["k"] = k
        self.say(choose.of(body[kind]), connect=not moving)
        if moving:
            self._move()
        step_kind = "to" if moving else _STEP_KIND.get(kind, kind)
        self.step(self.value, "/" if divisor else "*", k, step_kind, self.source, LITERAL, self.unit)

    def _sell(self) -> None:
        """Turns the things into money; the story goes on in dollars."""
        choose, slots = self.choose, self.slots
        k = slots["k"] = choose.between(2, min(9, LARGEST // self.value))
        self.say(choose.of(self.family.body["price"]))
        self.unit = "dollars"
        self.step(self.value, "*", k, "price", self.source, LITERAL, self.unit)
        self.family = _MONEY
        self._money_slots()

    def _move(self) -> None:
        """Makes {B} the person whose amount is followed; whoever was followed before does not come back."""
        self.slots["A"] = self.person = str(self.slots["B"])
        self.owners.append(self.person)
        self._other()

    def end(self) -> bool:
        """The question, with the last operation if one is still to come; True where it asks only for v."""
        choose, endings, slots = self.choose, self.family.endings, self.slots
        kind = "plain"
        if self.left:
            kind = choose.of(self._closings())
            slots["k"] = self.divisor or slots.get("k", 2)
        before, source = self.value, self.source
        unit = self.unit
        if kind == "need":
            n = slots["n"] = self.value + self.amount(LARGEST - self.value)
            self.step(n, "-", before, "need", LITERAL, source, unit)
        elif kind == "together":
            n = slots["n"] = self.amount(LARGEST - self.value)
            self.step(before, "+", n, "together", source, LITERAL, unit)
        elif kind == "together_times":
            k = slots["k"] = choose.between(2, min(9, LARGEST // self.value - 1))
            self._pair(before, "*", k, source, unit)
        elif kind == "together_more":
            n = slots["n"] = self.amount(LARGEST - 2 * self.value)
            self._pair(before, "+", n, source, unit)
        elif kind == "gap":
            n = slots["n"] = self.amount(self.value - 2)
            self.step(before, "-", n, "gap", source, LITERAL, unit)
        elif kind == "gap_under":
            n = slots["n"] = self.value + self.amount(LARGEST - self.value)
            self.step(n, "-", before, "gap", LITERAL, source, unit)
        elif kind in ("per", "bags"):
            k = slots["k"] = self.divisor or choose.of(
                [k for k in range(2, 10) if before % k == 0 and before // k >= 2]
            )
            self.step(before, "/", k, kind, source, LITERAL, str(slots["c"]) if kind == "bags" else unit)
        elif kind == "cost":
            k = slots["k"] = choose.between(2, min(9, LARGEST // self.value))
            self.step(before, "*", k, "cost", source, LITERAL, "dollars")
        self.say(choose.of(endings[kind]), connect=False)
        return kind == "plain"

    def _pair(self, before: int, op: str, number: int, source: int, unit: str) -> None:
        person, self.person = self.person, str(self.slots["B"])
        self.step(before, op, number, "to", source, LITERAL, unit)
        self.person = person
        self.step(before, "+", self.value, "together", source, self.source, unit)

    def _closings(self) -> list[str]:
        """The endings whose numbers work out with the amount and the operations left (1 or 2)."""
        endings, value = self.family.endings, self.value
        if self.left == 2:
            fitting = {"together_times": value * 3 <= LARGEST, "together_more": value * 2 + 2 <= LARGEST}
        else:
            divides = bool(self.divisor) or any(value % k == 0 and value // k >= 2 for k in range(2, 10))
            fitting = {
                "need": value + 2 <= LARGEST, "together": value + 2 <= LARGEST, "gap": value >= 4,
                "gap_under": value + 2 <= LARGEST, "per": divides, "bags": divides,
                "cost": value * 2 <= LARGEST,
            }  # fmt: skip
        return [kind for kind, fits in fitting.items() if fits and kind in endings]

    def remark(self) -> None:
        """A side remark with a number that does not matter, where it breaks no reference to what was said."""
        self.slots["n"] = self.choose.between(3, 60)
        alone, sentences = self.alone, self.sentences
        self.sentences = []
        self.say(self.choose.of(self.family.remarks), connect=False)
        places = [
            place
            for place in range(1, len(sentences) + 1)
            if place == len(sentences) or not _REFERS_BACK.search(sentences[place])
        ]
        sentences.insert(self.choose.of(places), self.sentences[0])
        self.sentences, self.alone = sentences, alone


def tell(choose: Chooser, operations: int) -> Problem:
    """A problem with that many operations; what the chooser draws decides everything else."""
    teller = _Teller(choose, operations)
    teller.begin()
    closing = operations > 1 and choose.chance(0.45)
    double = closing and operations >= 3 and choose.chance(0.2)
    while teller.left > (2 if double else 1 if closing else 0):
        teller.continue_()
    if teller.left and (teller.divisor or not teller._closings()):
        while teller.left:
            teller.continue_()
    remark = choose.chance(0.15)
    if remark:
        teller.remark()
    plain = teller.end()
    sentences = teller.sentences
    if plain and choose.chance(0.2):
        sentences[-1] = choose.of(teller.family.endings["first"]).format_map(teller.slots)
        if choose.chance(0.6):
            sentences.insert(0, sentences.pop())
    style = STYLES[choose.below(len(STYLES))]
    request = choose.of(REQUESTS[style])
    solution = render(teller.steps, style, choose)
    return Problem(" ".join(sentences), request, solution, tuple(teller.steps), teller.family.name, remark)


def problem(split: str, index: int, *, seed: int = SEED, operations: int | None = None) -> Problem:
    """Row `index` of a split: the first story from its own stream whose wording belongs to the split.

    It has 2 + index mod 5 operations unless told otherwise, so that any first rows hold every difficulty alike.
    """
    choose = Chooser(key("arithmetic", seed, split, index))
    while True:
        made = tell(choose, FEWEST + index % (MOST - FEWEST + 1) if operations is None else operations)
        if split_of(made.story) == split:
            return made


def row(split: str, index: int) -> dict[str, object]:
    """What `arithmetic` and `arithmetic-mc` store of a problem; in every four rows each place is right once."""
    made = problem(split, index)
    answer = Chooser(key("arithmetic-mc places", SEED, split, index // 4)).order(4)[index % 4]
    options = wrong_answers(made.steps, Chooser(key("arithmetic-mc", SEED, split, index)))
    options.insert(answer, made.answer)
    return {
        "story": made.story, "request": made.request, "solution": made.solution, "options": options, "answer": answer,
        "family": made.family, "remark": made.remark,
    }  # fmt: skip
