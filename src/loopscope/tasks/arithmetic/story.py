"""Tells a word problem: picks a family, sentences and numbers, and keeps the computation beside the text.

A story follows one running amount v. Each sentence frame stands for one operation on v (or two, where the
sentence itself holds a product); the numbers are drawn so that every result is a whole number from 2 to 999.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from loopscope.tasks.arithmetic import frames_endings, frames_people, frames_places, words
from loopscope.tasks.arithmetic.frames_people import Frames
from loopscope.tasks.arithmetic.problem import LITERAL, REQUESTS, STYLES, Chooser, Problem, Step, render

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
    remarks: tuple[str, ...]


def _merged(*parts: Frames) -> Frames:
    return {kind: sum((part.get(kind, ()) for part in parts), ()) for part in parts for kind in part}


_PEOPLE = tuple(
    Family(
        group.name,
        _merged(frames_people.COMMON, frames_people.BY_GROUP[group.name]),
        frames_endings.PEOPLE,
        frames_endings.REMARKS_PEOPLE,
    )
    for group in words.GROUPS
)
_PLACES = tuple(
    Family(
        place.place, _merged(frames_places.ANYWHERE, place.frames), frames_endings.PLACE, frames_endings.REMARKS_PLACE
    )
    for place in frames_places.PLACES
)
_MONEY = Family("money", frames_people.MONEY, frames_endings.MONEY, frames_endings.REMARKS_PEOPLE)
_WORK = Family("work", frames_places.WORK, frames_endings.WORK, frames_endings.REMARKS_PEOPLE)


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
        self.person = choose.of(words.SHE if female else words.HE)
        slots["A"] = slots["S"] = slots["s"] = self.person
        self.owners.append(self.person)
        self._other()
        slots.update(
            where=choose.of(words.WHERE), day=choose.of(words.DAYS), time=choose.of(words.TIMES),
            friends=choose.of(words.FRIENDS),
        )  # fmt: skip
        draw = choose.uniform()
        if draw < 0.5:
            index = choose.below(len(_PEOPLE))
            group = words.GROUPS[index]
            self.family = _PEOPLE[index]
            thing, container = choose.of(group.things), choose.of(group.containers)
            order = choose.order(len(group.kinds))
            slots.update(
                x=thing.plural, x1=thing.singular, c=container.plural, c1=container.singular,
                kind=group.kinds[order[0]], other=group.kinds[order[1]], project=choose.of(words.PROJECTS),
            )  # fmt: skip
            self.unit = thing.plural
        elif draw < 0.66:
            self.family = _MONEY
            self._money_slots()
            self.unit = "dollars"
        elif draw < 0.86:
            index = choose.below(len(_PLACES))
            place = frames_places.PLACES[index]
            self.family = _PLACES[index]
            preposition, _, where = place.place.partition(" ")
            slots.update(x=place.things.plural, x1=place.things.singular, p=where)
            slots["in"], slots["In"] = preposition, preposition.capitalize()
            self.unit = place.things.plural
        else:
            self.family = _WORK
            does, done, thing = choose.of(frames_places.WORK_UNITS)
            slots.update(does=does, done=done, x=thing.plural, x1=thing.singular)
            self.unit = thing.plural

    def _money_slots(self) -> None:
        choose = self.choose
        order = choose.order(len(words.CHORES))
        goods = choose.of(words.GOODS)
        self.slots.update(
            g=goods.plural, goodone=f"an old {goods.singular}", purchase=choose.of(words.PURCHASES),
            chore=words.CHORES[order[0]], chore2=words.CHORES[order[1]],
        )  # fmt: skip

    def _other(self) -> None:
        while True:
            name = self.choose.of(words.NAMES)
            if name not in self.owners:
                break
        self.slots["B"] = name

    def say(self, frame: str, connect: bool = True) -> None:
        """Fills one frame and adds it to the story."""
        choose, slots = self.choose, self.slots
        if "{where}" in frame:
            slots["where"] = choose.of(words.WHERE)
        if "{day}" in frame:
            slots["day"] = choose.of(words.DAYS)
        if "{time}" in frame:
            slots["time"] = choose.of(words.TIMES)
        connector = choose.of(frames_endings.CONNECTORS) if connect and choose.chance(0.4) else ""
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
        result = (
            left + right if op == "+" else left - right if op == "-" else left * right if op == "*" else left // right
        )
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
