// Buttons that copy a value which is shown shortened.
(() => {
  "use strict";
  const SAID_MILLIS = 1500;
  const selected = (text) => {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy"); // where a page has no secure origin
    area.remove();
    return done;
  };
  const copied = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return selected(text);
    }
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const done = await copied(button.dataset.copy);
    button.textContent = done ? "copied" : "failed";
    document.getElementById("announcer").textContent = done ? "Copied" : "Could not copy";
    setTimeout(() => { button.textContent = "copy"; }, SAID_MILLIS);
  });
})();
