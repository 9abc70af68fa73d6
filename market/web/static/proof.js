// Fetches a proof as programs get it, computes it again, and says what came out.
import { check, toHex } from "./merkle.js";
import { say } from "./verdict.js";

const place = document.getElementById("proof");
const verdict = document.getElementById("verdict");

const compare = (proof) => {
  const { wrong, nodes } = check(proof);
  // what this page shows, not what was fetched, is what the reader compares with the chain
  if (document.getElementById("root").textContent !== proof.root) wrong.push("the page shows another root");
  if (proof.account !== place.dataset.account) wrong.push("the page is of another account");
  for (const [level, node] of nodes.entries()) {
    const cell = document.querySelector(`[data-computed="${level}"]`);
    if (cell) { cell.textContent = toHex(node.hash); cell.className = "whole"; }
    else wrong.push("the page shows another path");
  }
  return wrong;
};

try {
  say(verdict, "busy", "Computing the hashes");
  const answer = await fetch(place.dataset.source);
  if (!answer.ok) throw new Error(`the proof is not there: status ${answer.status}`);
  const wrong = compare(await answer.json());
  if (wrong.length) say(verdict, "bad", `The proof is wrong: ${wrong.join("; ")}.`);
  else say(verdict, "good", "Verified here: the leaf and its siblings hash to the root, and the sums add up.");
} catch (error) {
  say(verdict, "bad", `Not verified: ${error.message}`);
}
