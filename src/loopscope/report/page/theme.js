// Light or dark: what the system says, unless the reader chose.

const THEMES = { "": "System colours", light: "Light", dark: "Dark" };

// Storage can be refused to pages opened from disk; the choice then lasts as long as the page.
function remembered() {
  try {
    return localStorage.getItem("loopscope-theme") ?? "";
  } catch {
    return "";
  }
}

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  const button = byId("theme");
  button.textContent = THEMES[name];
  button.setAttribute("aria-label", `Colours: ${THEMES[name]}. Change`);
  try {
    localStorage.setItem("loopscope-theme", name);
  } catch {
    return;
  }
}

function startTheme(changed) {
  const order = Object.keys(THEMES);
  let name = order.includes(remembered()) ? remembered() : "";
  setTheme(name);
  byId("theme").addEventListener("click", () => {
    name = order[(order.indexOf(name) + 1) % order.length];
    setTheme(name);
    changed();
  });
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", changed);
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
