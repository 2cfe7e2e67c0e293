"""How a problem ends: the question, with or without one last operation, and the side remarks.

An ending's key says what the question still asks for, given the running amount v:

    plain v · need n−v · together v+n · together_times v+v·k · together_more v+(v+n) · gap v−n · gap_under n−v ·
    per v/k · bags v/k (counted in containers) · cost v·k (counted in dollars)
"""

from __future__ import annotations

from loopscope.tasks.arithmetic.frames_people import Frames

PEOPLE: Frames = {
    "plain": (
        "How many {x} does {A} have now?",
        "How many {x} does {A} have in the end?",
        "How many {x} does {A} have after all this?",
        "What is the number of {x} that {A} has now?",
        "With how many {x} does {A} end up?",
        "How many {x} is that for {A}?",
    ),
    "need": (
        "{A} needs {n} {x} for {project}. How many {x} are missing?",
        "How many more {x} does {A} need to have {n}?",
        "{A} wants to have {n} {x}. How many more must {A} get?",
        "The plan of {A} calls for {n} {x}. How many {x} are still to come?",
    ),
    "together": (
        "{B} has {n} {x}. How many {x} do {A} and {B} have together?",
        "If {B} has {n} {x}, how many {x} do the two have in all?",
        "{B} owns {n} {x}, and {A} and {B} put all their {x} on one table. How many {x} lie there?",
    ),
    "together_times": (
        "{B} has {k} times as many {x} as {A}. How many {x} do {A} and {B} have together?",
        "If {B} has {k} times as many {x} as {A}, how many {x} do the two have in all?",
    ),
    "together_more": (
        "{B} has {n} more {x} than {A}. How many {x} do {A} and {B} have together?",
        "If {B} has {n} more {x} than {A}, how many {x} do the two have in all?",
    ),
    "gap": (
        "{B} has {n} {x}. How many more {x} does {A} have than {B}?",
        "How many {x} is {A} ahead of {B}, who has {n} {x}?",
    ),
    "gap_under": (
        "{B} has {n} {x}. How many fewer {x} does {A} have than {B}?",
        "How many {x} is {A} behind {B}, who has {n} {x}?",
    ),
    "per": (
        "{A} packs the {x} into {k} {c}, the same number into each. How many {x} are in one {c1}?",
        "If {k} {friends} share the {x} of {A} equally, how many {x} does each one get?",
        "How many {x} go into each of {k} {c} if all of them get the same?",
    ),
    "bags": (
        "{A} packs the {x} into {c}, {k} to a {c1}. How many {c} does {A} fill?",
        "A {c1} holds {k} {x}. How many {c} does {A} need for all the {x}?",
        "How many {c} can {A} fill with {k} {x} each?",
    ),
    "cost": (
        "Each {x1} is worth {k} dollars. How many dollars are all the {x} of {A} worth?",
        "If {A} sells every {x1} for {k} dollars, how many dollars is that?",
        "{A} wants {k} dollars for each {x1}. How many dollars does {A} ask for all of them?",
    ),
    "first": (
        "Find out how many {x} {A} has in the end.",
        "The question is how many {x} {A} has at the end of this story.",
        "Work out the number of {x} that {A} ends up with.",
    ),
}

MONEY: Frames = {
    "plain": (
        "How many dollars does {A} have now?",
        "How many dollars does {A} have in the end?",
        "How much money in dollars does {A} have after all this?",
        "With how many dollars does {A} end up?",
    ),
    "need": (
        "{A} wants to buy a tent for {n} dollars. How many dollars are missing?",
        "How many more dollars does {A} need to have {n} dollars?",
        "A bike costs {n} dollars. How many dollars must {A} still save for it?",
    ),
    "together": (
        "{B} has {n} dollars. How many dollars do {A} and {B} have together?",
        "If {B} adds {n} dollars, how many dollars do the two have in all?",
    ),
    "together_times": ("{B} has {k} times as much money as {A}. How many dollars do the two have together?",),
    "together_more": ("{B} has {n} dollars more than {A}. How many dollars do the two have together?",),
    "gap": ("{B} has {n} dollars. How many dollars more does {A} have than {B}?",),
    "gap_under": ("{B} has {n} dollars. How many dollars fewer does {A} have than {B}?",),
    "per": (
        "If {k} {friends} share the money of {A} equally, how many dollars does each one get?",
        "{A} spends all of it evenly over {k} days. How many dollars is that a day?",
    ),
    "first": (
        "Find out how many dollars {A} has in the end.",
        "The question is how much money in dollars {A} has at the end.",
    ),
}

PLACE: Frames = {
    "plain": (
        "How many {x} are there now?",
        "How many {x} are {in} {p} now?",
        "How many {x} is that in the end?",
        "What is the number of {x} after all this?",
    ),
    "need": (
        "There should be {n} {x}. How many {x} are missing?",
        "How many more {x} would make it {n}?",
        "There is room for {n} {x} {in} {p}. How many {x} more would fit?",
    ),
    "together": ("Somewhere else there are {n} {x}. How many {x} is that in both places together?",),
    "gap": ("A year ago there were {n} {x}. How many {x} more are there now?",),
    "gap_under": ("A year ago there were {n} {x}. How many {x} fewer are there now?",),
    "per": (
        "The {x} are divided into {k} equal groups. How many {x} are in one group?",
        "If the {x} are spread equally over {k} rooms, how many {x} are in each room?",
    ),
    "cost": ("For each {x1} there is a fee of {k} dollars. How many dollars is that in all?",),
    "first": ("Find out how many {x} are {in} {p} in the end.", "The question is how many {x} there are at the end."),
}

WORK: Frames = {
    "plain": (
        "How many {x} is that in the end?",
        "How many {x} has {A} {done} now?",
        "What is the total of {A} in {x}?",
        "How many {x} has {A} {done} in all?",
    ),
    "need": (
        "The goal is {n} {x}. How many {x} are still to go?",
        "{A} wants to reach {n} {x}. How many {x} are missing?",
        "How many more {x} are needed for a total of {n}?",
    ),
    "together": ("{B} has {done} {n} {x}. How many {x} have {A} and {B} {done} together?",),
    "together_times": ("{B} has {done} {k} times as many {x} as {A}. How many {x} have {A} and {B} {done} together?",),
    "together_more": ("{B} has {done} {n} more {x} than {A}. How many {x} have {A} and {B} {done} together?",),
    "gap": ("{B} has {done} {n} {x}. How many more {x} has {A} {done} than {B}?",),
    "gap_under": ("{B} has {done} {n} {x}. How many fewer {x} has {A} {done} than {B}?",),
    "per": (
        "{A} took {k} days and did the same number each day. How many {x} is that for one day?",
        "How many {x} is that on each of {k} days if every day counts the same?",
    ),
    "cost": ("{A} is paid {k} dollars for each {x1}. How many dollars does {A} earn?",),
    "first": ("Find out how many {x} {A} has {done} in the end.", "The question is the total of {A} in {x}."),
}

REMARKS_PEOPLE = (
    "{A} is {n} years old.",
    "{B} lives {n} miles away.",
    "{B}, who is {n} years old, looks on.",
    "The ride home takes {n} minutes.",
    "The street where {A} lives has {n} houses.",
    "A radio in the room costs {n} dollars.",
    "{A} has to be home in {n} minutes.",
    "It is {n} degrees outside.",
    "The shirt of {B} has the number {n} on it.",
)
REMARKS_PLACE = (
    "The town has {n} streets.",
    "It is {n} degrees outside.",
    "The nearest city is {n} miles away.",
    "A clock on the wall was made {n} years ago.",
    "The owner is {n} years old.",
    "The building is {n} years old.",
)

CONNECTORS = ("Then ", "After that, ", "Later, ", "Next, ", "Soon after, ", "A little later, ")
