"""What a story may say: sentences by what they do in it, and the phrases that fill their gaps.

Slots in braces hold for a whole story: {A} and {B} its two people, {S} {A} by name or pronoun at the start of a
sentence, {x}/{x1} its things, {c1} what they are kept in, {place} where it happens. Names in angle brackets are drawn
anew each time from `PHRASES`, whose entries may have gaps of their own.
"""

from __future__ import annotations

SENTENCES: dict[str, tuple[str, ...]] = {
    "opening": (
        "On a <sky> <day> <hour>, {A} went to {place}.",
        "It was a <sky> <hour> when {A} left the house for {place}.",
        "One <hour> {A} and {B} met at {place}.",
        "{A} had been waiting for this <day> for <span>.",
        "Nobody in the village had seen such a <sky> <hour> for <span>.",
        "Early on <day>, before <noise> could wake anyone, {A} set out for {place}.",
        "{B} had told {A} about {place} <often>, and on <day> they went.",
        "When the <season> came, {A} worked at {place} with {B}.",
        "In the <season> {A} lived near {place}, next to <someone>.",
        "<Someone> needed help at {place}, so {A} came by in the <hour>.",
        "For <span> {A} had wanted to show {B} the <look> {c1} at {place}.",
        "There was a <look> {c1} at {place} that only {A} could open.",
    ),
    "travel": (
        "The way there led <path>.",
        "{S} walked <path> and sang.",
        "{A} took the <vehicle>, because {B} had <excuse>.",
        "The <vehicle> was <late>, and {A} arrived with <feeling>.",
        "They went <path>, past <someone> and a <look> <animal>.",
        "It took {A} <span> to get <path>.",
        "{S} got lost <path> and asked <someone> for help.",
        "Halfway <path>, the <vehicle> stopped.",
    ),
    "weather": (
        "The sky was <sky>, and <noise> came from the <corner>.",
        "After <span> it began to <fall>.",
        "The wind blew the <look> leaves <path>.",
        "It smelled of <smell> and of <smell>.",
        "From the <corner> came <noise>.",
        "The light in the <corner> was <sky> and <look>.",
        "Then it would <fall> for <span>, and everyone ran to the <corner>.",
    ),
    "talk": (
        '"<Exclaim>," said {B}, "<remark>."',
        '"<Remark>," {A} <said>.',
        '{B} asked, "<Question>?"',
        '"<Question>?" {A} <said>, and {B} <answered>.',
        "{A} told {B} that <fact>.",
        "{B} <told> that <fact>, but {A} <answered>.",
        '"<Exclaim>!" cried <someone> from the <corner>.',
        "{A} whispered something about <topic> to {B}.",
        "They talked about <topic> and about <topic>.",
        '"If <fact>," {B} <said>, "then <fact>."',
    ),
    "thought": (
        "{A} wondered whether <fact>.",
        "{S} felt <feeling> and thought of <topic>.",
        "{B} did not know that <fact>.",
        "{A} remembered <topic> from <span> ago.",
        "With <feeling>, {A} looked at the {x}.",
        "{S} was sure that <fact>.",
        "To {B} it seemed that <fact>.",
        "Neither {A} nor {B} had thought of <topic>.",
    ),
    "event": (
        "A <look> <animal> ran <path>.",
        "Suddenly <someone> opened the door with <feeling>.",
        "{B} opened the <look> {c1} and found a <look> <find>.",
        "{A} dropped the {c1}, and the {x} rolled <path>.",
        "Under the {x} lay a <look> <find>.",
        "<Someone> had hidden a <find> in the <corner>.",
        "The <animal> looked at {A} and then <animal_did>.",
        "{B} mended the <find> with <tool> while {A} held the {c1}.",
        "{A} painted the {c1} <colour> and <colour>.",
        "They built a <look> tower of {x} in the <corner>.",
        "{A} showed {B} how to use <tool>.",
        "<Someone> brought <food> and <food> for everyone.",
        "{S} ate <food> and gave the rest to the <animal>.",
        "{B} fell asleep in the <corner> for <span>.",
    ),
    "ending": (
        "In the end they shared <food> and went home.",
        "That <hour>, {A} wrote a letter about <topic>.",
        "{A} never told <someone> about the <find>.",
        "So it came that {A} kept the <look> {c1} for <span>.",
        "When the bell rang, {B} was already <path_end>.",
        "After that <day>, everyone in the village knew that <fact>.",
        "{A} and {B} still speak of <topic> today.",
        "The <animal> stayed with {A} from that <hour> on.",
        "And {B}, with <feeling>, put the {x} back into the {c1}.",
        "Nobody ever found out whether <fact>.",
    ),
}

PHRASES: dict[str, tuple[str, ...]] = {
    "sky": (
        "grey", "bright", "cloudy", "windy", "golden", "dark", "clear", "pale", "stormy", "warm", "cold", "misty",
    ),
    "hour": ("morning", "afternoon", "evening", "night", "noon"),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "season": ("spring", "summer", "autumn", "winter"),
    "span": (
        "an hour", "two hours", "three days", "a week", "two weeks", "a month", "half a year", "many years",
        "a few minutes", "a whole day",
    ),
    "often": ("once", "twice", "many times", "in a letter", "at school"),
    "noise": ("music", "thunder", "laughter", "the sound of bells", "a low whistle", "a loud bang", "barking"),
    "someone": (
        "an old sailor", "the baker", "a tall stranger", "the teacher", "a little boy", "the mayor", "a young farmer",
        "the driver", "a tired doctor", "the girl next door", "an aunt of {B}", "the night guard",
    ),
    "look": (
        "small", "old", "heavy", "strange", "broken", "shiny", "wooden", "dusty", "round", "beautiful", "empty", "blue",
    ),
    "path": (
        "over the bridge", "through the forest", "along the river", "down the hill", "across the square",
        "up the stairs", "around the lake", "behind the church", "between the houses", "through the gate",
    ),
    "path_end": ("at home", "over the hill", "on the way to {place}", "asleep", "far away", "on the roof"),
    "vehicle": ("train", "bus", "bicycle", "boat", "wagon", "tram"),
    "late": ("late", "full", "early", "slow", "almost empty"),
    "excuse": ("a cold", "no time", "lost the map", "other plans", "to wait for the mail", "hurt a foot"),
    "feeling": ("joy", "fear", "pride", "relief", "a smile", "a sigh", "tears", "surprise", "doubt", "hope"),
    "animal": ("cat", "dog", "goat", "horse", "crow", "hen", "fox", "donkey", "mouse", "goose"),
    "animal_did": ("ran away", "lay down", "ate the <find>", "jumped <path>", "made <noise>", "followed {B}"),
    "corner": ("kitchen", "garden", "attic", "cellar", "yard", "street", "barn", "hall", "next room"),
    "fall": ("rain", "snow", "hail", "storm", "drizzle"),
    "smell": ("bread", "smoke", "apples", "the sea", "wet grass", "paint", "soup", "old books"),
    "exclaim": ("Look", "Wait", "Oh no", "Listen", "Come here", "At last", "Never mind", "Help"),
    "remark": (
        "I have lost the <find>", "we should go <path>", "this is the best <day> of the year", "I know that <fact>",
        "there is a <animal> in the <corner>", "you can have my <find>", "I would like some <food>",
        "the {x} are <colour>", "I can hear <noise>", "you must never open the {c1}",
    ),
    "question": (
        "where is the <find>", "have you seen <someone>", "do you like <food>", "who painted the {x} <colour>",
        "how long will it <fall>", "is it true that <fact>", "why is the {c1} so <look>",
        "when does the <vehicle> leave",
    ),
    "said": ("said", "shouted", "replied", "murmured", "explained", "laughed"),
    "told": ("said", "was told", "had read", "thought", "believed", "explained"),
    "answered": (
        "said nothing", "nodded", "did not agree", "only smiled", "wanted to know more", "changed the subject",
    ),
    "fact": (
        "the <vehicle> was <late>", "<someone> had the <find>", "it would <fall> by <hour>", "{B} liked <food>",
        "the <animal> was <look>", "the {x} came from {place}", "there was no <food> left",
        "the {c1} was <colour> inside", "<someone> lived in the <corner>", "{A} had been to {place} before",
        "the <find> was worth nothing",
    ),
    "topic": (
        "the <look> <find>", "the <animal> and the <animal>", "<someone>", "last <season>", "the <vehicle> to {place}",
        "<food>", "the weather", "the {x} in the {c1}", "a dream about <noise>", "school",
    ),
    "find": ("key", "letter", "ring", "map", "clock", "lamp", "photo", "flute", "knife", "mirror", "hat", "compass"),
    "tool": ("a hammer", "glue", "a needle", "string", "an old spoon", "wire", "a saw"),
    "colour": ("red", "green", "yellow", "black", "white", "silver", "brown", "orange"),
    "food": ("bread", "soup", "cheese", "pancakes", "cake", "honey", "rice", "berries", "tea", "fresh milk"),
}  # fmt: skip

PLACES = (
    "the market", "the old mill", "the harbor", "the station", "the beach", "the school", "the castle", "the museum",
    "the farm", "the library", "the island", "the lighthouse",
)  # fmt: skip

HEADS = (
    "Stories about {names}", "What happened to {names}", "Tales of {names}", "From the days of {names}",
    "A book about {names}",
)  # fmt: skip
