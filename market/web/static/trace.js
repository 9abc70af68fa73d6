// Fetches the trace of a peer-step as programs get it, derives each part again, and says what holds.
import { checkTrace } from "./evidence.js";
import { say } from "./verdict.js";

const place = document.getElementById("trace");
const verdict = document.getElementById("verdict");
const places = (name) => new Map(
  [...document.querySelectorAll(`[data-${name}]`)].map((each) => [each.dataset[name], each]));

const fetched = async (source) => {
  const answer = await fetch(source);
  if (!answer.ok) throw new Error(`${source}: status ${answer.status}`);
  return answer.json();
};
const sealedStep = async (number) => {
  const { steps } = await fetched(`${place.dataset.steps}?after=${number - 1}&limit=1`);
  return [number, steps[0]];
};
const load = async () => {
  const trace = await fetched(place.dataset.source);
  const numbers = new Set([trace.sealed.step, ...(trace.pay ? [trace.pay.step] : [])]);
  return [trace, Object.fromEntries(await Promise.all([...numbers].map(sealedStep)))];
};

// What the page shows, not what was fetched, is what a reader compares with the chain.
const shown = (trace) => {
  const wrong = [];
  for (const name of ["job", "peer", "account", "step", "seq"])
    if (String(trace[name]) !== place.dataset[name]) wrong.push(`the page is of another ${name}`);
  const claim = document.getElementById("work-claim").textContent;
  if (claim !== trace.work_claim.claim) wrong.push("the page shows another WorkClaim");
  return wrong;
};
const fill = ({ name, wrong, nodes }, cells, ends) => {
  const said = [...wrong];
  for (const [level, node] of nodes.entries()) {
    const cell = cells.get(`${name}/${level}`);
    if (cell) { cell.textContent = node; cell.className = "whole"; }
    else said.push("the page shows another path");
  }
  const end = ends.get(name);
  if (end && nodes.length && end.textContent !== nodes.at(-1)) said.push("the page shows another hash");
  return said;
};
const judge = (trace, steps) => {
  const notes = places("check"), cells = places("node"), ends = places("end");
  const checks = checkTrace(trace, steps);
  const wrong = shown(trace);
  for (const each of checks) {
    const said = fill(each, cells, ends), note = notes.get(each.name);
    if (!note) said.push(`the page does not show it: reload (${each.name})`);
    else if (said.length) say(note, "bad", `Does not hold: ${said.join("; ")}.`);
    else say(note, "good", `Checked here: ${note.dataset.claim}.`);
    wrong.push(...said);
    notes.delete(each.name);
  }
  for (const [name, note] of notes) {
    say(note, "bad", "Not checked: the data has no such proof.");
    wrong.push(`no proof of ${name}`);
  }
  return [wrong, checks.length];
};

try {
  say(verdict, "busy", "Computing the hashes");
  const [wrong, many] = judge(...await load());
  if (wrong.length) say(verdict, "bad", `Not verified: ${wrong.join("; ")}.`);
  else say(verdict, "good", `Verified here: all ${many} parts of this evidence that are there follow from each other.`);
} catch (error) {
  say(verdict, "bad", `Not verified: ${error.message}`);
}
