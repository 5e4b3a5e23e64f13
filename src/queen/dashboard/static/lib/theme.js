// Light or dark: as the system says, until somebody says otherwise here. That choice is the only
// thing kept in localStorage.

const KEY = "queen.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

export const isDark = () => (localStorage.getItem(KEY) ?? (system.matches ? "dark" : "light")) === "dark";

function apply() { document.documentElement.dataset.theme = isDark() ? "dark" : "light"; }

export function toggle() {
  localStorage.setItem(KEY, isDark() ? "light" : "dark");
  apply();
}

export function start(changed) {
  apply();
  system.addEventListener("change", () => { apply(); changed(); });
}
