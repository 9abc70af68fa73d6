// Merkle trees, as contracts/terms/merkle.py and SumTree.sol have them.
//
// Hashes are bytes, sums are BigInt and fit 12 bytes. A node of a plain tree is {hash}, of an
// epoch's trees {hash, sum}, of a pay tree {hash, earned, vested}. Siblings come from the bottom up.
import { keccak_256 } from "./vendor/noble-hashes/sha3.js";

const SETTLEMENT_LEAF = 0, SUM_NODE = 1, PAY_LEAF = 2, PAY_NODE = 3, JOB_LEAF = 4;
const BATCH_LEAF = 5, PLAIN_NODE = 6, PLAIN_LEAF = 7;
const WIDE_BYTES = 12, STEP_BYTES = 8;

export const fromHex = (text) => {
  const digits = text.startsWith("0x") ? text.slice(2) : text;
  if (digits.length % 2 || !/^[0-9a-fA-F]*$/.test(digits)) throw new Error(`no hex: ${text}`);
  return Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
};
export const toHex = (bytes) => Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");

// Bytes of a name in hex that has to be so long.
export const bytes = (name, length) => {
  const value = fromHex(name);
  if (value.length !== length) throw new Error(`${name} is not ${length} bytes`);
  return value;
};
// Amounts cross JSON as decimal text, and never as anything else.
export const amount = (text) => {
  if (typeof text === "bigint") return text;
  if (!/^[0-9]{1,40}$/.test(text)) throw new Error(`${text} is no amount`);
  return BigInt(text);
};
export const integer = (value, length) => {
  if (value < 0n || value >= 1n << BigInt(8 * length)) throw new Error(`${value} is no uint${8 * length}`);
  return fromHex(value.toString(16).padStart(2 * length, "0"));
};
export const stepNumber = (step) => {
  if (!Number.isSafeInteger(step)) throw new Error(`${step} is no number of a step`);
  return integer(BigInt(step), STEP_BYTES);
};
export const joined = (...parts) => Uint8Array.from(parts.flatMap((part) => [...part]));

const wide = (value) => integer(value, WIDE_BYTES);
const hashed = (tag, ...fields) => keccak_256(joined([tag], ...fields));

export const settlementLeaf = (account, jobsRoot, cumulative) => ({
  hash: hashed(SETTLEMENT_LEAF, bytes(account, 20), bytes(jobsRoot, 32), wide(cumulative)),
  sum: cumulative,
});
export const jobLeaf = (job, cumulative) => ({
  hash: hashed(JOB_LEAF, bytes(job, 32), wide(cumulative)), sum: cumulative,
});
export const payLeaf = (account, earned, vested) => ({
  hash: hashed(PAY_LEAF, bytes(account, 20), wide(earned), wide(vested)), earned, vested,
});
export const batchLeaf = (job, step, seal) => ({
  hash: hashed(BATCH_LEAF, bytes(job, 32), stepNumber(step), bytes(seal, 32)),
});
export const plainLeaf = (digest) => ({ hash: hashed(PLAIN_LEAF, bytes(digest, 32)) });

export const sumNode = (left, right) => {
  const sum = left.sum + right.sum;
  wide(sum);
  return { hash: hashed(SUM_NODE, left.hash, wide(left.sum), right.hash, wide(right.sum)), sum };
};
export const payNode = (left, right) => {
  const earned = left.earned + right.earned, vested = left.vested + right.vested;
  const own = (node) => joined(node.hash, wide(node.earned), wide(node.vested));
  wide(earned), wide(vested);
  return { hash: hashed(PAY_NODE, own(left), own(right)), earned, vested };
};
export const plainNode = (left, right) => ({ hash: hashed(PLAIN_NODE, left.hash, right.hash) });

const EMPTY_SUM = { hash: new Uint8Array(32), sum: 0n };

// A level with an odd node carries its last node up unchanged.
export const root = (leaves, join = sumNode, empty = EMPTY_SUM) => {
  let level = leaves;
  while (level.length > 1) {
    const above = [];
    for (let i = 0; i + 1 < level.length; i += 2) above.push(join(level[i], level[i + 1]));
    if (level.length % 2) above.push(level.at(-1));
    level = above;
  }
  return level[0] ?? empty;
};

const readSum = ({ hash, sum }) => ({ hash: bytes(hash, 32), sum: amount(sum) });
const readPay = ({ hash, earned, vested }) =>
  ({ hash: bytes(hash, 32), earned: amount(earned), vested: amount(vested) });
const readPlain = ({ hash }) => ({ hash: bytes(hash, 32) });

const climb = (leaf, siblings, join, read) => {
  const nodes = [leaf];
  for (const each of siblings) {
    if (typeof each.left !== "boolean") throw new Error("a sibling without a side");
    const below = nodes.at(-1), sibling = read(each);
    nodes.push(each.left ? join(sibling, below) : join(below, sibling));
  }
  return nodes;
};
// The nodes from the leaf to the root, both included.
export const path = (leaf, siblings) => climb(leaf, siblings, sumNode, readSum);
export const payPath = (leaf, siblings) => climb(leaf, siblings, payNode, readPay);
export const plainPath = (leaf, siblings) => climb(leaf, siblings, plainNode, readPlain);

// Derives everything that a proof claims: what is wrong with it, and the nodes of its path.
export const check = (proof) => {
  const wrong = [];
  const jobs = root(proof.jobs.map(({ job, cumulative }) => jobLeaf(job, amount(cumulative))));
  if (toHex(jobs.hash) !== proof.jobs_root) wrong.push("the jobs do not make the root of jobs");
  if (jobs.sum !== amount(proof.cumulative)) wrong.push("the jobs do not sum up to the pay");
  const leaf = settlementLeaf(proof.account, toHex(jobs.hash), amount(proof.cumulative));
  const nodes = path(leaf, proof.siblings);
  const top = nodes.at(-1);
  if (toHex(top.hash) !== proof.root) wrong.push("the path does not lead to the root");
  if (top.sum !== amount(proof.root_sum)) wrong.push("the sums do not make the sum under the root");
  return { wrong, nodes };
};
