// Keeps the pieces of a page fresh: at once when an event comes, else every two seconds.
//
// An element with `data-gap` is asked for again by htmx when it hears `refresh`; never more often
// than every `data-gap` milliseconds, and once more after the last event; not for events whose kinds
// are in `data-but`, which change nothing in it; with `data-every`, also so many milliseconds after the
// last time, for what no event tells of (heartbeats). Nothing is asked for while the page is hidden or
// the reader has paused it.
(() => {
  "use strict";
  const POLL_MILLIS = 2000;
  const SAY_MILLIS = 10000;
  const last = new Map();
  const waiting = new Map();
  let isOpen = false;
  let isPaused = false;
  let saidAt = 0;
  let willSay = null;

  const pieces = () => document.querySelectorAll("[data-gap]");
  const isOver = () => document.querySelector("[data-over]") !== null;

  const ask = (piece) => {
    waiting.delete(piece.id);
    if (isPaused || document.hidden) return;
    last.set(piece.id, Date.now());
    htmx.trigger(piece, "refresh");
  };
  const refresh = (piece) => {
    if (waiting.has(piece.id)) return;
    const due = (last.get(piece.id) ?? 0) + Number(piece.dataset.gap) - Date.now();
    if (due <= 0) ask(piece);
    else waiting.set(piece.id, setTimeout(() => ask(piece), due));
  };
  const refreshAll = () => pieces().forEach(refresh);
  const isAbout = (kind) => ({ dataset }) => !(dataset.but ?? "").split(" ").includes(kind);
  const hear = (kind) => [...pieces()].filter(isAbout(kind)).forEach(refresh);
  const isOld = ({ id, dataset }) =>
    "every" in dataset && (last.get(id) ?? 0) + Number(dataset.every) <= Date.now();
  const tick = () => {
    if (!isOver()) [...pieces()].filter((piece) => !isOpen || isOld(piece)).forEach(refresh);
  };

  const show = () => {
    const state = document.getElementById("live-state");
    const [glyph, tone, words] = isPaused ? ["\u25cb", "calm", "updates are paused"]
      : isOpen ? ["\u25b8", "good", "live"]
      : ["\u25b8", "busy", "asking every 2 s"];
    const text = `${glyph} ${words}`;
    if (state.textContent === text) return;
    state.textContent = text;
    state.className = `state ${tone}`;
  };
  const opened = (open) => { isOpen = open; show(); };

  const say = () => {
    const said = document.querySelector("[data-announce]");
    const announcer = document.getElementById("announcer");
    if (!said || willSay) return;
    const due = saidAt + SAY_MILLIS - Date.now();
    if (due > 0) {
      willSay = setTimeout(() => { willSay = null; say(); }, due); // the newest is never left out
      return;
    }
    saidAt = Date.now();
    if (announcer.textContent !== said.textContent) announcer.textContent = said.textContent;
  };
  const finish = () => {
    document.querySelector("[data-live]")?.remove(); // which closes the connection
    document.getElementById("live-bar").hidden = true;
  };

  document.addEventListener("DOMContentLoaded", () => {
    if (isOver()) return;
    document.getElementById("live-bar").hidden = false;
    const pause = document.getElementById("live-pause");
    pause.addEventListener("click", () => {
      isPaused = !isPaused;
      pause.setAttribute("aria-pressed", String(isPaused));
      show();
      refreshAll();
    });
    document.body.addEventListener("htmx:sseOpen", () => opened(true));
    document.body.addEventListener("htmx:sseError", () => opened(false));
    document.body.addEventListener("htmx:sseClose", () => opened(false));
    document.body.addEventListener("htmx:sseBeforeMessage", (event) => {
      event.preventDefault(); // the event says that something changed; the page shows the rows
      hear(event.detail.type);
    });
    document.body.addEventListener("htmx:afterSettle", () => { say(); if (isOver()) finish(); });
    document.addEventListener("visibilitychange", refreshAll);
    setInterval(tick, POLL_MILLIS);
    show();
  });
})();
