// A number with its interval on a shared axis that always shows zero.

function sharedRange(entries) {
  const ends = entries.flatMap((entry) => [entry.low, entry.high, entry.value, 0]).filter((value) => value !== null);
  const low = Math.min(...ends);
  const high = Math.max(...ends);
  const pad = (high - low || 1) * 0.04;
  return [low - pad, high + pad];
}

function track(entry, [low, high]) {
  const at = (value) => `${linear(low, high, 0, 100)(value)}%`;
  const box = h("div", { class: "track", "aria-hidden": "true" });
  box.append(h("span", { class: "zero", vars: { left: at(0) } }));
  if (entry.low !== null) {
    const right = 100 - parseFloat(at(entry.high));
    box.append(h("span", { class: "range", vars: { left: at(entry.low), right: `${right}%` } }));
  }
  if (entry.value !== null) box.append(h("span", { class: "dot", vars: { left: at(entry.value) } }));
  return box;
}
