// Views by address.

import { byId, h, replace } from "./dom.js";
import { address, load, page, readAddress } from "./data.js";
import { showOverview } from "./overview.js";
import { showExplorer } from "./explorer.js";
import { showQuestion } from "./question.js";
import { showLens } from "./lens.js";
import { lensSets } from "./lens_data.js";
import { showStudies } from "./studies.js";
import { showProvenance } from "./provenance.js";

// A map, because an address may hold any word: "constructor" is a property of every object.
const VIEWS = new Map([
  ["overview", { title: "Overview", show: showOverview }],
  ["questions", { title: "Questions", show: showExplorer }],
  ["question", { show: showQuestion }],
  ["lens", { title: "Lens", show: showLens, offered: () => lensSets().length > 0 }],
  ["studies", { title: "Studies", show: showStudies }],
  ["provenance", { title: "Provenance", show: showProvenance }],
]);

let opened = null;

async function route() {
  // The skip link is an address too; it moves the focus and opens nothing.
  if (location.hash === "#main") return;
  const { view, params } = readAddress();
  const name = VIEWS.has(view) ? view : "overview";
  const { title = "Question", show } = VIEWS.get(name);
  const main = byId("main");
  const turn = (opened = Symbol(name));
  const stage = h("div");
  for (const link of byId("views").children) {
    const mine = link.dataset.view === name || (name === "question" && link.dataset.view === "questions");
    if (mine) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  await show(stage, params);
  // A slower view that was left meanwhile must not replace the one that is open now.
  if (turn !== opened) return;
  main.replaceChildren(stage);
  main.repaint = stage.repaint;
  main.dataset.view = name;
  document.title = `${title} · ${[...new Set(page.meta.runs.map((run) => run.model))].join(", ")} · loopscope`;
  if (route.moved) {
    scrollTo(0, history.state?.y ?? 0);
    main.focus({ preventScroll: true });
  }
  route.moved = true;
}

async function start() {
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", () => byId("main").repaint?.());
  await load();
  const offered = [...VIEWS].filter(([, view]) => view.title && (view.offered?.() ?? true));
  replace(byId("views"), offered.map(([name, view]) => h("a", { href: address(name), "data-view": name }, view.title)));
  replace(byId("warnings"), page.meta.warnings.map((text) => h("p", { class: "warning", role: "note" }, text)));
  replace(byId("foot"), `Written by loopscope ${page.meta.version}. This file holds everything it shows and loads nothing.`);
  addEventListener("hashchange", route);
  // How far a view was scrolled when a link was followed, so that Back returns to that place.
  history.scrollRestoration = "manual";
  addEventListener("click", () => history.replaceState({ y: scrollY }, ""), true);
  await route();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start().catch((error) => {
  replace(byId("main"), h("p", { class: "loading", role: "alert" }, `This page could not be read: ${error.message}`));
  throw error;
});
