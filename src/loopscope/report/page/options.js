// The options of a choice side by side: their words, tinted by token, and their scores at both ends.

function optionCards(set, details, text, transition, marksOut) {
  const [from, to] = [transition, transition + 1].map((depth) => details.optionScores?.[set.depths.indexOf(depth)]);
  return h(
    "div",
    { class: "option-cards" },
    text.options.map((option, index) => {
      const tokens = (details.tokens ?? []).filter((token) => token.option === index);
      const shown = tokenText(option, tokens);
      if (shown) marksOut.push(...shown.marks);
      const strip = !shown && tokens.length ? tokenStrip(tokens) : null;
      if (strip) marksOut.push(...strip.marks);
      return h(
        "article",
        { class: `option${index === text.right ? " right" : ""}`, "aria-label": `Option ${letter(index)}${index === text.right ? ", the right one" : ""}` },
        h("header", {}, h("span", {}, letter(index)), index === text.right && h("span", { class: "badge" }, "right")),
        shown ? shown.block : prose(option),
        strip && strip.block,
        from && scoreLine(from, to, index),
      );
    }),
  );
}

const letter = (index) => (index < 26 ? String.fromCharCode(65 + index) : String(index + 1));

function scoreLine(from, to, index) {
  const best = (scores) => scores.indexOf(Math.max(...scores)) === index;
  const score = (scores) => h(best(scores) ? "strong" : "span", { class: "number", title: best(scores) ? "chosen" : null }, number(scores[index]), best(scores) && " ✓");
  return h("p", { class: "scores" }, score(from), h("span", { class: "soft" }, "→"), score(to), h("span", { class: "soft small" }, "nats per token"));
}
