// Light, dark or as the system says; remembered. Runs before anything is shown.
(() => {
  "use strict";
  const root = document.documentElement;
  const next = { system: "light", light: "dark", dark: "system" };
  const read = () => {
    try { return localStorage.getItem("theme") ?? "system"; } catch { return "system"; }
  };
  const keep = (theme) => {
    try { localStorage.setItem("theme", theme); } catch { /* no storage: until the next page */ }
  };
  let theme = read() in next ? read() : "system";
  const show = () => {
    root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${theme}`;
    document.dispatchEvent(new Event("themechange"));
  };
  root.classList.add("js");
  show();
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    button.hidden = false;
    button.addEventListener("click", () => { theme = next[theme]; keep(theme); show(); });
    show();
  });
})();
