// Merkle-sum trees of an epoch, as contracts/terms/merkle.py and SumTree.sol have them.
//
// Hashes are bytes, sums are BigInt and fit 12 bytes; a node is {hash, sum}.
import { keccak_256 } from "./vendor/noble-hashes/sha3.js";

const SETTLEMENT_LEAF = 0, SUM_NODE = 1, JOB_LEAF = 4;
const WIDE_BYTES = 12;
const MOST = (1n << 96n) - 1n;

export const fromHex = (text) => {
  const digits = text.startsWith("0x") ? text.slice(2) : text;
  if (digits.length % 2 || !/^[0-9a-fA-F]*$/.test(digits)) throw new Error(`no hex: ${text}`);
  return Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
};
export const toHex = (bytes) => Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");

const wide = (amount) => {
  if (amount < 0n || amount > MOST) throw new Error(`${amount} is no uint96`);
  return fromHex(amount.toString(16).padStart(2 * WIDE_BYTES, "0"));
};
const bytes = (name, length) => {
  const value = fromHex(name);
  if (value.length !== length) throw new Error(`${name} is not ${length} bytes`);
  return value;
};
const hashed = (tag, ...fields) => keccak_256(Uint8Array.from([tag, ...fields.flatMap((f) => [...f])]));

export const settlementLeaf = (account, jobsRoot, cumulative) => ({
  hash: hashed(SETTLEMENT_LEAF, bytes(account, 20), bytes(jobsRoot, 32), wide(cumulative)),
  sum: cumulative,
});
export const jobLeaf = (job, cumulative) => ({
  hash: hashed(JOB_LEAF, bytes(job, 32), wide(cumulative)), sum: cumulative,
});
export const sumNode = (left, right) => {
  const sum = left.sum + right.sum;
  wide(sum);
  return { hash: hashed(SUM_NODE, left.hash, wide(left.sum), right.hash, wide(right.sum)), sum };
};

// A level with an odd node carries its last node up unchanged.
export const root = (leaves) => {
  let level = leaves;
  while (level.length > 1) {
    const above = [];
    for (let i = 0; i + 1 < level.length; i += 2) above.push(sumNode(level[i], level[i + 1]));
    if (level.length % 2) above.push(level.at(-1));
    level = above;
  }
  return level[0] ?? { hash: new Uint8Array(32), sum: 0n };
};

// The nodes from the leaf to the root, both included.
export const path = (leaf, siblings) => {
  const nodes = [leaf];
  for (const { hash, sum, left } of siblings) {
    const sibling = { hash: bytes(hash, 32), sum: BigInt(sum) };
    nodes.push(left ? sumNode(sibling, nodes.at(-1)) : sumNode(nodes.at(-1), sibling));
  }
  return nodes;
};

// Derives everything that a proof claims: what is wrong with it, and the nodes of its path.
export const check = (proof) => {
  const wrong = [];
  const jobs = root(proof.jobs.map(({ job, cumulative }) => jobLeaf(job, BigInt(cumulative))));
  if (toHex(jobs.hash) !== proof.jobs_root) wrong.push("the jobs do not make the root of jobs");
  if (jobs.sum !== BigInt(proof.cumulative)) wrong.push("the jobs do not sum up to the pay");
  const leaf = settlementLeaf(proof.account, toHex(jobs.hash), BigInt(proof.cumulative));
  const nodes = path(leaf, proof.siblings);
  const top = nodes.at(-1);
  if (toHex(top.hash) !== proof.root) wrong.push("the path does not lead to the root");
  if (top.sum !== BigInt(proof.root_sum)) wrong.push("the sums do not make the sum under the root");
  return { wrong, nodes };
};
