// The address holds the view and everything chosen in it, so that a copied link opens the same thing.

function readAddress() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: path || "overview", params: new URLSearchParams(query) };
}

function address(view, values = {}) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== "" && value !== null && value !== undefined) params.set(name, value);
  }
  const query = params.toString();
  return `#/${view}${query ? `?${query}` : ""}`;
}

/** Writes the address without opening anything: for choices within a view. */
function note(view, values) {
  history.replaceState(null, "", address(view, values));
}

const questionAddress = (set, row, transition, more = {}) =>
  address("question", { run: set.run.label, task: set.task, id: set.ids[row], t: transition, ...more });

const recordAddress = (record) => questionAddress(page.sets[page.setOf[record]], page.row[record], page.transition[record]);
