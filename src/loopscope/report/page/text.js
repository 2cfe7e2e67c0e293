// Text from benchmarks and checkpoints is shown as text. Characters that would reorder, hide or break a line unseen
// (bidirectional controls, zero-width marks, control codes, tags) are shown as their code points instead.

// Joiners (U+200C, U+200D) belong to ordinary words and emoji and stay.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

function visible(text) {
  UNSEEN.lastIndex = 0;
  if (!UNSEEN.test(text)) return text;
  UNSEEN.lastIndex = 0;
  return text.replace(UNSEEN, (found) => `⟨U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

const SHOWN = 12000;

/** A cut that does not part a surrogate pair. */
function safeCut(text, length) {
  if (text.length <= length) return text.length;
  const code = text.charCodeAt(length - 1);
  return code >= 0xd800 && code <= 0xdbff ? length - 1 : length;
}

/** Prose of any length; beyond the first screens it is opened on demand, because laying out a megabyte takes a while. */
function prose(text) {
  const block = h("p", { class: "words-text", dir: "auto" });
  const cut = safeCut(text, SHOWN);
  append(block, [text.slice(0, cut)]);
  if (cut === text.length) return block;
  const more = h(
    "button",
    {
      type: "button",
      class: "button reveal",
      onclick: () => {
        append(block, [text.slice(cut)]);
        more.remove();
      },
    },
    `Show all ${text.length.toLocaleString("en")} characters`,
  );
  return [block, more];
}
