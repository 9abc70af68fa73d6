// Beside each moment in UTC, the same moment in the reader's own zone.
//
// The text comes from an attribute (app.css), so that a refresh of the page, which compares elements
// with what the server sent, finds no text that it did not write.
(() => {
  "use strict";
  const spelled = new Intl.DateTimeFormat(undefined, {
    dateStyle: "short", timeStyle: "medium",
  });
  const say = (moment) => {
    const at = new Date(moment.dateTime);
    const text = Number.isNaN(at.getTime()) ? "" : spelled.format(at);
    if (moment.dataset.local !== text) moment.dataset.local = text;
  };
  const all = (root) => root.querySelectorAll("time[datetime]").forEach(say);
  new MutationObserver((changes) => {
    for (const { target } of changes) {
      if (target.nodeType !== Node.ELEMENT_NODE) continue;
      if (target.matches("time[datetime]")) say(target);
      else all(target);
    }
  }).observe(document.documentElement, {
    subtree: true, childList: true, attributes: true, attributeFilter: ["datetime", "data-local"],
  });
  document.addEventListener("DOMContentLoaded", () => all(document));
})();
