"""The lexicon of the arithmetic problems: people, things, containers, places and times.

Every name starts with a capital letter and is used for nothing else, so that `wording.py` can take the
names out of a text again.
"""

from __future__ import annotations

from typing import NamedTuple


class Noun(NamedTuple):
    """A countable thing in its two forms."""

    plural: str
    singular: str


class Group(NamedTuple):
    """Things that the same verbs suit, with the containers they come in."""

    name: str
    things: tuple[Noun, ...]
    containers: tuple[Noun, ...]
    kinds: tuple[str, ...]


SHE = (
    "Ada", "Bea", "Clara", "Dina", "Elsa", "Fay", "Greta", "Hanna", "Ines", "Jana", "Kira", "Lena",
    "Mia", "Nora", "Olga", "Petra", "Rosa", "Sara", "Tina", "Vera",
)  # fmt: skip
HE = (
    "Adam", "Ben", "Carl", "David", "Emil", "Finn", "Gus", "Hugo", "Ivan", "Jonas", "Karl", "Leo",
    "Max", "Nils", "Omar", "Paul", "Ravi", "Sam", "Tom", "Victor",
)  # fmt: skip
NAMES = SHE + HE


def _nouns(text: str) -> tuple[Noun, ...]:
    return tuple(Noun(*pair.split("/")) for pair in text.split(", "))


GROUPS = (
    Group(
        "keepsakes",
        _nouns(
            "marbles/marble, stickers/sticker, cards/card, coins/coin, stamps/stamp, beads/bead, "
            "buttons/button, shells/shell, badges/badge, toy cars/toy car, stones/stone, postcards/postcard"
        ),
        _nouns("boxes/box, jars/jar, bags/bag, tins/tin, drawers/drawer"),
        ("red", "blue", "green", "old", "new", "small", "large"),
    ),
    Group(
        "food",
        _nouns(
            "apples/apple, pears/pear, plums/plum, lemons/lemon, oranges/orange, carrots/carrot, "
            "eggs/egg, cookies/cookie, muffins/muffin, rolls/roll, nuts/nut, figs/fig"
        ),
        _nouns("baskets/basket, bags/bag, bowls/bowl, crates/crate, trays/tray"),
        ("fresh", "small", "large", "brown", "cold"),
    ),
    Group(
        "garden",
        _nouns("tulips/tulip, roses/rose, seeds/seed, bulbs/bulb, herbs/herb, lilies/lily, ferns/fern"),
        _nouns("pots/pot, bags/bag, trays/tray, buckets/bucket, crates/crate"),
        ("red", "white", "yellow", "small", "young"),
    ),
    Group(
        "school",
        _nouns(
            "pencils/pencil, pens/pen, books/book, notebooks/notebook, markers/marker, erasers/eraser, "
            "rulers/ruler, folders/folder"
        ),
        _nouns("boxes/box, packs/pack, cases/case, drawers/drawer, bags/bag"),
        ("red", "blue", "thin", "thick", "new", "old"),
    ),
    Group(
        "workshop",
        _nouns("nails/nail, screws/screw, tiles/tile, bricks/brick, boards/board, bolts/bolt, hooks/hook"),
        _nouns("boxes/box, buckets/bucket, crates/crate, packs/pack, tins/tin"),
        ("short", "long", "heavy", "light", "new"),
    ),
    Group(
        "craft",
        _nouns(
            "candles/candle, ribbons/ribbon, bracelets/bracelet, paper cranes/paper crane, cups/cup, "
            "lanterns/lantern, flags/flag, masks/mask"
        ),
        _nouns("boxes/box, bags/bag, crates/crate, baskets/basket, packs/pack"),
        ("red", "gold", "silver", "plain", "bright"),
    ),
)

WHERE = (
    "at the park", "on the beach", "at school", "in the attic", "at the market", "on the bus",
    "under the bed", "in the garden", "at the fair", "near the river", "in the kitchen", "at the station",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
TIMES = ("noon", "evening", "the weekend", "spring", "the end of the week", "the end of the month", "winter")
FRIENDS = ("friends", "cousins", "neighbors", "classmates", "children", "guests")
PROJECTS = ("a party", "a school show", "a big order", "the club", "a gift", "the fair")
CHORES = (
    "washing cars", "walking dogs", "mowing lawns", "babysitting", "painting a fence", "raking leaves",
    "carrying boxes", "cleaning windows",
)  # fmt: skip
PURCHASES = (
    "a book", "a lamp", "a pair of shoes", "a kite", "a bike lock", "a jacket", "a train ticket", "a game",
    "dinner", "a haircut", "a backpack", "paint",
)  # fmt: skip
GOODS = _nouns(
    "tickets/ticket, shirts/shirt, plants/plant, lamps/lamp, mugs/mug, hats/hat, puzzles/puzzle, "
    "chairs/chair, maps/map, scarves/scarf"
)
