// Copying to the clipboard.

import { announce, h } from "./dom.js";

/** A button that copies what `text()` gives at that moment, and says whether that worked. */
export function copyButton(name, text, properties = {}) {
  const button = h("button", { type: "button", class: "button copy", ...properties }, name);
  button.addEventListener("click", async () => {
    const copied = await copy(text());
    announce(copied ? "Copied" : "The browser does not allow copying");
    button.textContent = copied ? "Copied" : "Not allowed";
    setTimeout(() => (button.textContent = name), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // A page from disk may lack the clipboard; a selected field can still be copied.
    const field = h("textarea", { class: "visually-hidden", value: text });
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    return copied;
  }
}
