// Views by address.

const VIEWS = {
  overview: { title: "Overview", show: showOverview },
  questions: { title: "Questions", show: showExplorer },
  question: { show: showQuestion },
  studies: { title: "Studies", show: showStudies },
  provenance: { title: "Provenance", show: showProvenance },
};

let opened = null;

async function route() {
  // The skip link is an address too; it moves the focus and opens nothing.
  if (location.hash === "#main") return;
  const { view, params } = readAddress();
  const name = view in VIEWS ? view : "overview";
  const main = byId("main");
  const turn = (opened = Symbol(name));
  main.repaint = null;
  const stage = h("div");
  stage.repaint = null;
  for (const link of byId("views").children) {
    const mine = link.dataset.view === name || (name === "question" && link.dataset.view === "questions");
    if (mine) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  await VIEWS[name].show(stage, params);
  // A slower view that was left meanwhile must not replace the one that is open now.
  if (turn !== opened) return;
  main.replaceChildren(stage);
  main.repaint = stage.repaint;
  main.dataset.view = name;
  document.title = `${VIEWS[name].title ?? "Question"} · ${page.meta.runs.map((run) => run.model).join(", ")} · loopscope`;
  if (route.moved) {
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
  }
  route.moved = true;
}

async function start() {
  startTheme(() => byId("main").repaint?.());
  await load();
  replace(
    byId("views"),
    Object.entries(VIEWS).filter(([, view]) => view.title).map(([name, view]) => h("a", { href: address(name), "data-view": name }, view.title)),
  );
  replace(byId("warnings"), page.meta.warnings.map((text) => h("p", { class: "warning", role: "note" }, text)));
  replace(byId("foot"), `Written by loopscope ${page.meta.version}. This file holds everything it shows and loads nothing.`);
  addEventListener("hashchange", route);
  await route();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start().catch((error) => {
  replace(byId("main"), h("p", { class: "loading", role: "alert" }, `This page could not be read: ${error.message}`));
  throw error;
});
