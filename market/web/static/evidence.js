// One peer-step from its GradCommit to the money, derived again: which part of a trace holds?
//
// `checkTrace` takes a trace as `/v1` gives it and the sealed steps by number, and returns checks in
// the order of the evidence: {name, wrong, nodes}; nothing is wrong where all of it follows. What a
// part leads to is what the next one starts from. Twins: contracts/terms/merkle.py, typed_data.py
// (SEAL), verification/draws/selection.py.
import { blake3 } from "./vendor/noble-hashes/blake3.js";
import { keccak_256 } from "./vendor/noble-hashes/sha3.js";
import {
  amount, batchLeaf, bytes, fromHex, integer, jobLeaf, joined, path, payLeaf, payPath, plainLeaf,
  plainPath, settlementLeaf, stepNumber, toHex,
} from "./merkle.js";

const text = (words) => new TextEncoder().encode(words);
const digest = (kind, data) => blake3(data, { context: text(`tallystick 1 ${kind}`) });

const SEAL = keccak_256(text(
  "Seal(bytes32 job,uint64 step,bytes32 previous,bytes32 messagesRoot,uint64 gradientNorm,"
  + "bytes32 payRoot,uint96 earned,uint96 vested,bool last)"));
const word = (value, length) => joined(new Uint8Array(32 - length), integer(value, length));

// The EIP-712 struct hash of a sealed step: its seal's name, which a batch holds.
export const sealHash = (job, step) => {
  if (typeof step.last !== "boolean") throw new Error("a seal that does not say whether it is the last");
  return keccak_256(joined(
    SEAL, bytes(job, 32), new Uint8Array(24), stepNumber(step.step), bytes(step.previous, 32),
    bytes(step.messages_root, 32), word(amount(step.gradient_norm), 8), bytes(step.pay_root, 32),
    word(amount(step.earned), 12), word(amount(step.vested), 12), word(BigInt(step.last), 1)));
};

// MessagePack of a number below 2^32, as contracts/terms/encoding.py writes it.
const packed = (value) => {
  if (!Number.isSafeInteger(value) || value < 0 || value > 0xffffffff) throw new Error(`${value} is no place`);
  if (value < 0x80) return integer(BigInt(value), 1);
  const [tag, length] = value < 0x100 ? [0xcc, 1] : value < 0x10000 ? [0xcd, 2] : [0xce, 4];
  return joined([tag], integer(BigInt(value), length));
};
// What the PRF of a peer-step is taken of.
export const drawName = (stage, peer, round) => joined(
  [0x94, 0xa9], text("peer_step"), packed(stage), [0xc4, 0x20], bytes(peer, 32), packed(round));

const NOTHING = "0".repeat(64);
const hex = (nodes) => nodes.map(({ hash }) => toHex(hash));
const tried = (name, derive) => {
  try {
    return { name, ...derive() };
  } catch (error) {
    return { name, wrong: [error.message], nodes: [] };
  }
};
const found = (nodes, ...claims) =>
  ({ nodes: hex(nodes), wrong: claims.filter(([holds]) => !holds).map(([, words]) => words) });

const checkMessages = ({ commit, sealed }) => {
  const nodes = plainPath(plainLeaf(commit.grad_commit), sealed.siblings);
  const [leaf] = hex(nodes), top = hex(nodes).at(-1);
  return found(nodes,
    [leaf === sealed.leaf, "the GradCommit is another leaf"],
    [top === sealed.messages_root, "the path does not lead to the root of messages"]);
};
const checkSeal = (job, number, claimed, step, field, root) => {
  if (step?.step !== number) throw new Error(`the seal of step ${number} is not there`);
  const hash = sealHash(job, step);
  return found([{ hash }],
    [toHex(hash) === claimed, "what the seal says has another hash"],
    [step[field] === root, "the seal names another root"]);
};
const checkBatch = (job, step, seal, { leaf, siblings, anchor }) => {
  const nodes = plainPath(batchLeaf(job, step, seal), siblings);
  return found(nodes,
    [hex(nodes)[0] === leaf, "the seal is another leaf"],
    [hex(nodes).at(-1) === anchor.batch, "the path does not lead to the root of the batch"]);
};
const checkPay = ({ account, pay }, step) => {
  const leaf = payLeaf(pay.account, amount(pay.earned), amount(pay.vested));
  const nodes = payPath(leaf, pay.siblings), top = nodes.at(-1);
  return found(nodes,
    [pay.account === account, "the leaf is of another account"],
    [toHex(top.hash) === pay.pay_root, "the path does not lead to the root of pay"],
    [top.earned === amount(step.earned), "the sums do not make what the seal says was earned"],
    [top.vested === amount(step.vested), "the sums do not make what the seal says has vested"]);
};
const checkJobs = ({ job }, slip) => {
  const nodes = path(jobLeaf(job, amount(slip.job_cumulative)), slip.job_siblings);
  return found(nodes,
    [toHex(nodes.at(-1).hash) === slip.jobs_root, "the path does not lead to the root of jobs"],
    [nodes.at(-1).sum === amount(slip.cumulative), "the jobs do not sum up to the pay"]);
};
const checkEpoch = ({ account }, slip) => {
  const leaf = settlementLeaf(slip.account, slip.jobs_root, amount(slip.cumulative));
  const nodes = path(leaf, slip.account_siblings), top = nodes.at(-1);
  return found(nodes,
    [slip.account === account, "the leaf is of another account"],
    [toHex(top.hash) === slip.part.root, "the path does not lead to the root of the epoch"],
    [top.sum === amount(slip.root_sum), "the sums do not make the sum under the root"]);
};

const fraction = (rate) => {
  const parts = rate.split("/").map(BigInt);
  if (parts.length !== 2 || parts[1] <= 0n) throw new Error(`${rate} is no chance`);
  return parts;
};
// Drawn iff prf / 2^256 < rate; a coin that came too late draws all, and rate 0 nobody.
const checkDraw = ({ job, step, stage, peer, round, anchored, audits: { draw } }) => {
  const [numerator, denominator] = fraction(draw.rate);
  const claims = [[draw.name === toHex(drawName(stage, peer, round)), "another name was drawn"]];
  if (anchored && draw.coin.batch !== NOTHING) {
    const { batch, block, coin } = anchored.anchor;
    claims.push([draw.coin.batch === batch && draw.coin.block === block, "the coin is of another batch"]);
    claims.push([coin === null || draw.coin.coin === coin, "the anchor has another coin"]);
  }
  if (draw.coin.batch === NOTHING || draw.coin.coin === NOTHING) {
    claims.push([draw.drawn === numerator > 0n, "a coin that came too late draws all"]);
    return found([], ...claims);
  }
  const coin = digest("step coin", joined(bytes(job, 32), stepNumber(step), bytes(draw.coin.coin, 32)));
  const prf = digest("draw", joined(coin, fromHex(draw.name)));
  const isDrawn = BigInt(`0x${toHex(prf)}`) * denominator < numerator << 256n;
  claims.push(
    [toHex(coin) === draw.step_coin, "the coin of the step does not follow from the block hash"],
    [toHex(prf) === draw.prf, "the number of the draw does not follow from the coin"],
    [isDrawn === draw.drawn, "the number of the draw decides otherwise"]);
  return found([{ hash: coin }, { hash: prf }], ...claims);
};

export const checkTrace = (trace, steps) => {
  const { job, sealed, anchored, audits, pay } = trace;
  const checks = [];
  const add = (name, derive) => checks.push(tried(name, derive));
  add("messages", () => checkMessages(trace));
  add("seal", () =>
    checkSeal(job, sealed.step, sealed.seal, steps[sealed.step], "messages_root", sealed.messages_root));
  if (anchored) add("batch", () => checkBatch(job, sealed.step, sealed.seal, anchored));
  if (audits?.draw.coin) add("draw", () => checkDraw({ ...trace, step: sealed.step }));
  if (pay) {
    add("pay", () => checkPay(trace, steps[pay.step]));
    add("pay-seal", () => checkSeal(job, pay.step, pay.seal, steps[pay.step], "pay_root", pay.pay_root));
    if (pay.anchored) add("pay-batch", () => checkBatch(job, pay.step, pay.seal, pay.anchored));
  }
  for (const slip of trace.epochs) {
    add(`jobs-${slip.part.epoch}`, () => checkJobs(trace, slip));
    add(`epoch-${slip.part.epoch}`, () => checkEpoch(trace, slip));
  }
  return checks;
};
