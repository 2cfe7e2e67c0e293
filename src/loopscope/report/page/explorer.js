// Plot and table of the same updates, under one filter that lives in the address.

const explorer = { order: null, filter: { ...NO_FILTER } };

async function showExplorer(main, params) {
  await recordsReady();
  let filter = filterFromAddress(params);
  if (filter.q) await searchable();
  const scatter = new Scatter({
    opened: (record) => (location.hash = recordAddress(record)),
    pointed: () => {},
  });
  const table = new Table({
    sorted: (sort, dir) => apply({ sort, dir }, false),
    pointed: (record) => scatter.point(scatter.records.indexOf(record)),
  });
  const bar = h("div");
  const apply = (changes, refilter = true) => {
    filter = { ...filter, ...changes };
    if (refilter) scatter.show(matching(filter));
    const order = sorted(scatter.records, filter.sort, filter.dir);
    Object.assign(explorer, { order, filter });
    table.show(order, filter.sort, filter.dir);
    note("questions", filterValues(filter));
    redrawBar();
  };
  const redrawBar = () => {
    // A field that is being typed into must keep its caret; the others follow the filter.
    const active = document.activeElement;
    if (bar.contains(active) && active.type === "search") return;
    const key = bar.contains(active) ? [...bar.querySelectorAll("input, select")].indexOf(active) : -1;
    replace(bar, filterBar(filter, apply));
    if (key >= 0) bar.querySelectorAll("input, select")[key].focus();
  };
  replace(
    main,
    h("div", { class: "intro" }, h("h1", {}, "Questions"), h("p", {}, "Each point is one update of one question. To the right the update starts uphill; below the line it ends lower than it began. The tinted quarter holds the finite-step failures: right direction, wrong step.")),
    bar,
    h("div", { class: "explorer" }, h("div", { class: "card plot-card" }, scatter.box), table.box),
  );
  apply({});
  main.repaint = () => scatter.draw();
}
