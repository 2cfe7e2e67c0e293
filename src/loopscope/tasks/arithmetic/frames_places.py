"""Sentence frames for places whose contents change, and for work that adds up.

The slots and keys are those of `frames_people.py`. A place has no {B}: its {x} come and go. In the work
stories the amount is what {A} has done so far, in units {x}.
"""

from __future__ import annotations

from typing import NamedTuple

from loopscope.tasks.arithmetic.frames_people import Frames
from loopscope.tasks.arithmetic.words import Noun


class Place(NamedTuple):
    """A place, what is in it, and the sentences only this place has."""

    place: str
    things: Noun
    frames: Frames


ANYWHERE: Frames = {
    "start": (
        "There are {n} {x} {in} {p}.",
        "{In} {p} there are {n} {x}.",
        "On {day}, someone counts {n} {x} {in} {p}.",
        "The day begins with {n} {x} {in} {p}.",
        "A sign says that {n} {x} are {in} {p}.",
    ),
    "start_mul": (
        "{In} {p} there are {a} groups of {b} {x}.",
        "{a} groups of {b} {x} each are {in} {p}.",
        "Someone counts {a} times {b} {x} {in} {p}.",
    ),
    "start_sum": (
        "{In} {p} there are {a} {x} on one side and {b} {x} on the other side.",
        "First {a} {x} and later {b} {x} come to {p}, which was empty before.",
        "There are {a} large {x} and {b} small {x} {in} {p}.",
    ),
    "add": (
        "Another {n} {x} are added.",
        "The number of {x} goes up by {n}.",
        "On {day}, {n} more {x} are {in} {p}.",
        "By {time}, there are {n} {x} more.",
    ),
    "sub": (
        "The number of {x} goes down by {n}.",
        "On {day}, {n} of the {x} are gone.",
        "By {time}, there are {n} {x} less.",
        "Of these {x}, {n} do not stay.",
    ),
    "add_mul": (
        "In each of the next {a} hours, {b} more {x} come.",
        "{a} more groups of {b} {x} come.",
        "For {a} days, {b} {x} a day are added.",
    ),
    "sub_mul": (
        "In each of the next {a} hours, {b} of the {x} go away.",
        "{a} groups of {b} {x} go away.",
        "For {a} days, {b} {x} a day are lost.",
    ),
    "mul": (
        "By {time}, there are {k} times as many {x} {in} {p}.",
        "The number of {x} becomes {k} times as large.",
        "On {day}, someone finds {k} times as many {x}.",
    ),
    "double": ("The number of {x} doubles.", "By {time}, there are twice as many {x}."),
    "triple": ("The number of {x} triples.", "By {time}, there are three times as many {x}."),
    "div": (
        "All the {x} are sorted into {k} equal groups, and only one group stays.",
        "Only one out of every {k} {x} stays.",
        "The {x} are spread equally over {k} places, and {p} is one of them.",
    ),
    "half": ("Half of the {x} go away.", "By {time}, only half of the {x} are still there."),
    "third": ("By {time}, only a third of the {x} are still there.",),
    "quarter": ("By {time}, only a quarter of the {x} are still there.",),
}

PLACES = (
    Place("on the bus", Noun("people", "person"), {
        "start": ("A bus leaves the station with {n} people.", "A bus sets out with {n} people on board."),
        "start_mul": ("A bus has {a} full rows with {b} people in each.",),
        "add": ("At the next stop, {n} people get on.", "{n} people who missed the last bus get on."),
        "sub": ("At the next stop, {n} people get off.", "At the bridge, {n} people leave the bus."),
        "add_mul": ("At each of {a} stops, {b} people get on.",),
        "sub_mul": ("At each of {a} stops, {b} people get off.",),
    }),
    Place("in the library", Noun("books", "book"), {
        "start": ("A small library owns {n} books.", "The shelves of the library hold {n} books."),
        "start_mul": ("The library has {a} shelves with {b} books on each.",),
        "add": (
            "The library buys {n} new books.", "Readers bring back {n} books.",
            "A school gives {n} books to the library.",
        ),
        "sub": ("Readers borrow {n} books.", "The library sells {n} old books.", "Water ruins {n} books."),
        "add_mul": ("{a} readers bring back {b} books each.",),
        "sub_mul": ("{a} readers borrow {b} books each.",),
    }),
    Place("in the cellar", Noun("barrels", "barrel"), {
        "start": ("A cellar holds {n} barrels of cider.", "A farmer rolls {n} barrels into an empty cellar."),
        "start_mul": ("A press fills {b} barrels a day, and after {a} days they all lie in the cellar.",),
        "add": ("The new harvest brings {n} barrels.", "The farmer rolls in {n} more barrels."),
        "sub": ("An inn buys {n} barrels.", "The feast in the village empties {n} barrels."),
        "add_mul": ("A press fills {b} more barrels a day for {a} days.",),
        "sub_mul": ("{a} inns buy {b} barrels each.", "A cart takes away {b} barrels on each of {a} trips."),
    }),
    Place("in the parking lot", Noun("cars", "car"), {
        "start": ("In the morning {n} cars stand in the parking lot.",),
        "start_mul": ("The parking lot has {a} full rows of {b} cars.",),
        "add": ("Before lunch, {n} cars drive in.", "A tour brings {n} more cars."),
        "sub": ("After lunch, {n} cars drive away.", "A truck removes {n} cars."),
        "add_mul": ("Through each of {a} gates, {b} cars drive in.",),
        "sub_mul": ("Through each of {a} gates, {b} cars drive out.",),
    }),
    Place("on the farm", Noun("sheep", "sheep"), {
        "start": ("A farmer keeps {n} sheep.", "A flock of {n} sheep lives on the farm."),
        "start_mul": ("On the farm there are {a} fields with {b} sheep in each.",),
        "add": ("In spring, {n} lambs are born and count as sheep.", "The farmer buys {n} sheep."),
        "sub": ("The farmer sells {n} sheep.", "Through a broken fence, {n} sheep run away."),
        "add_mul": ("{a} trucks bring {b} sheep each.",),
        "sub_mul": ("{a} trucks take away {b} sheep each.",),
    }),
    Place("in the warehouse", Noun("boxes", "box"), {
        "start": ("A warehouse stores {n} boxes.", "At dawn the warehouse holds {n} boxes."),
        "start_mul": ("The warehouse has {a} stacks of {b} boxes.",),
        "add": ("A ship brings {n} boxes.", "The factory sends {n} more boxes."),
        "sub": ("A customer picks up {n} boxes.", "A fire destroys {n} boxes."),
        "add_mul": ("{a} trucks deliver {b} boxes each.",),
        "sub_mul": ("{a} vans leave with {b} boxes each.",),
    }),
    Place("in the bakery", Noun("loaves", "loaf"), {
        "start": ("A bakery has {n} loaves ready.", "The baker sets out {n} loaves."),
        "start_mul": ("A bakery bakes {a} trays of {b} loaves.",),
        "add": ("The oven gives {n} more loaves.", "The baker bakes another {n} loaves."),
        "sub": ("Before noon, {n} loaves are sold.", "A hotel takes {n} loaves.", "The baker burns {n} of the loaves."),
        "add_mul": ("The baker adds {a} trays with {b} loaves on each.",),
        "sub_mul": ("{a} customers buy {b} loaves each.",),
    }),
    Place("in the hall", Noun("chairs", "chair"), {
        "start": ("For a concert, {n} chairs stand in the hall.",),
        "start_mul": ("The hall is set up with {a} rows of {b} chairs.",),
        "add": ("Helpers carry in {n} chairs.", "A school lends {n} chairs for the hall."),
        "sub": ("Helpers carry out {n} chairs.", "It turns out that {n} chairs are broken, and they are removed."),
        "add_mul": ("Helpers set up {a} more rows of {b} chairs.",),
        "sub_mul": ("Helpers clear {a} rows of {b} chairs.",),
    }),
    Place("in the pond", Noun("fish", "fish"), {
        "start": ("A pond is home to {n} fish.", "The owner puts {n} fish into a new pond."),
        "start_mul": ("The owner empties {a} buckets with {b} fish each into a new pond.",),
        "add": ("The stream brings {n} more fish.", "The owner adds {n} fish."),
        "sub": ("A heron eats {n} fish.", "Children catch {n} fish."),
        "add_mul": ("The owner adds {a} buckets of {b} fish.",),
        "sub_mul": ("{a} herons eat {b} fish each.", "{a} children catch {b} fish each."),
    }),
    Place("at the museum", Noun("visitors", "visitor"), {
        "start": ("At ten, {n} visitors are at the museum.", "The museum opens, and {n} visitors walk in."),
        "start_mul": ("{a} classes of {b} visitors each enter the empty museum.",),
        "add": ("A boat brings {n} visitors.", "After lunch, {n} more visitors come in."),
        "sub": ("By the side door, {n} visitors leave.", "After the tour, {n} visitors go home."),
        "add_mul": ("{a} tour groups of {b} visitors arrive.",),
        "sub_mul": ("{a} tour groups of {b} visitors leave.",),
    }),
)  # fmt: skip

WORK_UNITS = (
    ("reads", "read", Noun("pages", "page")),
    ("walks", "walked", Noun("miles", "mile")),
    ("types", "typed", Noun("lines", "line")),
    ("lays", "laid", Noun("bricks", "brick")),
    ("paints", "painted", Noun("tiles", "tile")),
    ("swims", "swum", Noun("laps", "lap")),
    ("writes", "written", Noun("letters", "letter")),
    ("sews", "sewn", Noun("flags", "flag")),
    ("bakes", "baked", Noun("rolls", "roll")),
    ("solves", "solved", Noun("puzzles", "puzzle")),
)

WORK: Frames = {
    "start": (
        "On {day}, {A} {does} {n} {x}.",
        "{A} {does} {n} {x} in the first week.",
        "So far {A} has {done} {n} {x}.",
        "{A} begins well and {does} {n} {x}.",
    ),
    "start_mul": (
        "{A} {does} {b} {x} a day for {a} days.",
        "In each of {a} weeks, {A} {does} {b} {x}.",
        "{A} {does} {b} {x} an hour and goes on for {a} hours.",
        "{A} has a plan for {a} days and {does} {b} {x} on each of them.",
    ),
    "start_sum": (
        "{A} {does} {a} {x} before lunch and {b} {x} after lunch.",
        "{A} {does} {a} {x} on {day} and {b} {x} the day after.",
        "On the first day {A} {does} {a} {x}, and on the second day {b} {x}.",
    ),
    "add": (
        "{S} {does} {n} more {x}.",
        "On {day}, {s} {does} another {n} {x}.",
        "{S} is not tired yet and {does} {n} {x} more.",
        "{S} goes on for {n} further {x}.",
        "With music on, {s} {does} {n} {x} on top of that.",
    ),
    "sub": (
        "{S} finds out that {n} of the {x} do not count.",
        "A judge takes {n} {x} off the total.",
        "Because of a mistake, {n} of the {x} are not counted.",
        "{S} has counted {n} {x} too many and takes them off.",
    ),
    "add_mul": (
        "For {a} more days, {s} {does} {b} {x} a day.",
        "In each of the next {a} hours, {s} {does} {b} {x}.",
        "{S} goes on for {a} evenings with {b} {x} each evening.",
    ),
    "sub_mul": (
        "For each of {a} mistakes, a judge takes {b} {x} off the total.",
        "It turns out that {a} times {b} of the {x} do not count.",
    ),
    "mul": (
        "By {time}, the total is {k} times as large.",
        "{S} goes on until the total is {k} times what it was.",
        "After a long month, {s} has {done} {k} times as many {x}.",
    ),
    "double": ("{S} doubles the total.", "{S} goes on until the total is twice as large."),
    "triple": ("{S} triples the total.",),
    "div": (
        "Only one out of every {k} {x} counts in the end.",
        "The total is shared equally by {k} team members, and {A} is one of them.",
    ),
    "half": ("Only half of the {x} count in the end.",),
    "to_more": ("{B} has {done} {n} more {x} than {A}.", "{A} has {done} {n} fewer {x} than {B}."),
    "to_less": ("{B} has {done} {n} fewer {x} than {A}.", "{A} has {done} {n} more {x} than {B}."),
    "to_times": ("{B} has {done} {k} times as many {x} as {A}.",),
    "to_twice": ("{B} has {done} twice as many {x} as {A}.",),
    "to_part": ("{A} has {done} {k} times as many {x} as {B}.",),
    "to_half": ("{B} has {done} half as many {x} as {A}.",),
}
