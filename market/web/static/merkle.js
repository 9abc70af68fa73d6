// Merkle trees, as contracts/terms/merkle.py and PayTree.sol have them.
//
// Hashes are bytes, amounts are BigInt and fit 10 bytes. Siblings come from the bottom up.
import { keccak_256 } from "./vendor/noble-hashes/sha3.js";

const BATCH_LEAF = 5, PLAIN_NODE = 6, PLAIN_LEAF = 7, EARNED_LEAF = 8;
const AMOUNT_BYTES = 10, STEP_BYTES = 8;

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

const hashed = (tag, ...fields) => keccak_256(joined([tag], ...fields));

export const payLeaf = (account, earned, vested) => hashed(
  EARNED_LEAF, bytes(account, 20), integer(earned, AMOUNT_BYTES), integer(vested, AMOUNT_BYTES));
export const batchLeaf = (job, step, seal) =>
  hashed(BATCH_LEAF, bytes(job, 32), stepNumber(step), bytes(seal, 32));
export const plainLeaf = (digest) => hashed(PLAIN_LEAF, bytes(digest, 32));
export const node = (left, right) => hashed(PLAIN_NODE, left, right);

// A level with an odd node carries its last node up unchanged.
export const root = (leaves) => {
  let level = leaves;
  while (level.length > 1) {
    const above = [];
    for (let i = 0; i + 1 < level.length; i += 2) above.push(node(level[i], level[i + 1]));
    if (level.length % 2) above.push(level.at(-1));
    level = above;
  }
  return level[0] ?? new Uint8Array(32);
};

// The nodes from the leaf to the root, both included.
export const path = (leaf, siblings) => {
  const nodes = [leaf];
  for (const { hash, left } of siblings) {
    if (typeof left !== "boolean") throw new Error("a sibling without a side");
    const below = nodes.at(-1), sibling = bytes(hash, 32);
    nodes.push(left ? node(sibling, below) : node(below, sibling));
  }
  return nodes;
};
