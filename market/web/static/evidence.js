// One peer-step from its WorkClaim to the money, derived again: which part of a trace holds?
//
// `checkTrace` takes a trace as `/v1` gives it and the sealed steps by number, and returns checks in
// the order of the evidence: {name, wrong, nodes}; nothing is wrong where all of it follows. What a
// part leads to is what the next one starts from. Twins: contracts/terms/merkle.py, typed_data.py
// (SEAL), work.py (draw_name).
import { blake3 } from "./vendor/noble-hashes/blake3.js";
import { keccak_256 } from "./vendor/noble-hashes/sha3.js";
import {
  amount, batchLeaf, bytes, fromHex, integer, joined, path, payLeaf, plainLeaf, stepNumber, toHex,
} from "./merkle.js";

const text = (words) => new TextEncoder().encode(words);
const digest = (kind, data) => blake3(data, { context: text(`tallystick 1 ${kind}`) });

// MessagePack of a value as contracts/terms/encoding.py writes it; integers are BigInt.
const LARGE = (1n << 63n) - 1n;
const packedInteger = (value) => {
  if (value < 0x80n) return integer(value, 1);
  if (value > LARGE) return packed(integer(value, 16));
  const [tag, length] = value < 0x100n ? [0xcc, 1] : value < 0x10000n ? [0xcd, 2]
    : value < 0x100000000n ? [0xce, 4] : [0xcf, 8];
  return joined([tag], integer(value, length));
};
const packed = (value) => {
  if (typeof value === "boolean") return Uint8Array.of(value ? 0xc3 : 0xc2);
  if (typeof value === "bigint") return packedInteger(value);
  if (typeof value === "string" && value.length < 32) return joined([0xa0 + value.length], text(value));
  if (value instanceof Uint8Array && value.length < 256) return joined([0xc4, value.length], value);
  if (Array.isArray(value)) {
    const tag = value.length < 16 ? [0x90 + value.length] : [0xdc, ...integer(BigInt(value.length), 2)];
    return joined(tag, ...value.map(packed));
  }
  throw new Error(`${value} is not packed here`);
};
const packedMap = (fields) => joined(
  [0x80 + Object.keys(fields).length],
  ...Object.keys(fields).sort().flatMap((name) => [packed(name), packed(fields[name])]));
const whole = (value) => {
  if (!Number.isSafeInteger(value) || value < 0) throw new Error(`${value} is no number of its kind`);
  return BigInt(value);
};

const KIND = "seal.v3";
const SEAL = keccak_256(text("Seal(bytes32 job,bytes32 payRoot,bytes32 details)"));

// The EIP-712 struct hash of a sealed step: its seal's name, which a batch holds.
export const sealHash = (job, step) => {
  if (typeof step.last !== "boolean") throw new Error("a seal that does not say whether it is the last");
  stepNumber(step.step);
  const details = digest(KIND, packedMap({
    kind: KIND, job: bytes(job, 32), step: BigInt(step.step), previous: bytes(step.previous, 32),
    messages_root: bytes(step.messages_root, 32), gradient_norm: amount(step.gradient_norm),
    pay_root: bytes(step.pay_root, 32), earned: amount(step.earned), vested: amount(step.vested),
    next: whole(step.next), unsealed: step.unsealed.map((ends) => ends.map(whole)),
    updates: whole(step.updates), last: step.last,
  }));
  return keccak_256(joined(SEAL, bytes(job, 32), bytes(step.pay_root, 32), details));
};

// What the PRF of a peer-step is taken of: its claim's name, with 0 where one of a bucket has a number.
export const drawName = (peer, round, seq, stage) =>
  packed(["work", bytes(peer, 32), whole(round), whole(seq), whole(stage), 0n]);

const NOTHING = "0".repeat(64);
const hex = (nodes) => nodes.map(toHex);
const tried = (name, derive) => {
  try {
    return { name, ...derive() };
  } catch (error) {
    return { name, wrong: [error.message], nodes: [] };
  }
};
const found = (nodes, ...claims) =>
  ({ nodes: hex(nodes), wrong: claims.filter(([holds]) => !holds).map(([, words]) => words) });

const checkMessages = ({ work_claim, sealed }) => {
  const nodes = path(plainLeaf(work_claim.claim), sealed.siblings);
  const [leaf] = hex(nodes), top = hex(nodes).at(-1);
  return found(nodes,
    [leaf === sealed.leaf, "the WorkClaim is another leaf"],
    [top === sealed.messages_root, "the path does not lead to the root of messages"]);
};
const checkSeal = (job, number, claimed, step, field, root) => {
  if (step?.step !== number) throw new Error(`the seal of step ${number} is not there`);
  const hash = sealHash(job, step);
  return found([hash],
    [toHex(hash) === claimed, "what the seal says has another hash"],
    [step[field] === root, "the seal names another root"]);
};
const checkBatch = (job, step, seal, { leaf, siblings, anchor }) => {
  const nodes = path(batchLeaf(job, step, seal), siblings);
  return found(nodes,
    [hex(nodes)[0] === leaf, "the seal is another leaf"],
    [hex(nodes).at(-1) === anchor.batch, "the path does not lead to the root of the batch"]);
};
const checkPay = ({ account, pay }) => {
  const nodes = path(payLeaf(pay.account, amount(pay.earned), amount(pay.vested)), pay.siblings);
  return found(nodes,
    [pay.account === account, "the leaf is of another account"],
    [hex(nodes)[0] === pay.leaf, "the pay makes another leaf"],
    [hex(nodes).at(-1) === pay.pay_root, "the path does not lead to the root of pay"]);
};

const fraction = (rate) => {
  const parts = rate.split("/").map(BigInt);
  if (parts.length !== 2 || parts[1] <= 0n) throw new Error(`${rate} is no chance`);
  return parts;
};
// Drawn iff prf / 2^256 < rate; a beacon that came too late draws all, and rate 0 nobody.
const checkDraw = ({ job, peer, step, seq, stage, sealed, anchored, audits: { draw } }) => {
  const [numerator, denominator] = fraction(draw.rate);
  const claims = [[draw.name === toHex(drawName(peer, step, seq, stage)), "another name was drawn"]];
  if (anchored && draw.beacon.batch !== NOTHING) {
    const { batch, block, beacon } = anchored.anchor;
    claims.push([draw.beacon.batch === batch && draw.beacon.block === block, "the beacon is of another batch"]);
    claims.push([beacon === null || draw.beacon.beacon === beacon, "the anchor has another beacon"]);
  }
  if (draw.beacon.batch === NOTHING || draw.beacon.beacon === NOTHING) {
    claims.push([draw.drawn === numerator > 0n, "a beacon that came too late draws all"]);
    return found([], ...claims);
  }
  const beacon = digest("step beacon", joined(bytes(job, 32), stepNumber(sealed.step), bytes(draw.beacon.beacon, 32)));
  const prf = digest("draw", joined(beacon, fromHex(draw.name)));
  const isDrawn = BigInt(`0x${toHex(prf)}`) * denominator < numerator << 256n;
  claims.push(
    [toHex(beacon) === draw.step_beacon, "the beacon of the step does not follow from the block hash"],
    [toHex(prf) === draw.prf, "the number of the draw does not follow from the beacon"],
    [isDrawn === draw.drawn, "the number of the draw decides otherwise"]);
  return found([beacon, prf], ...claims);
};

export const checkTrace = (trace, steps) => {
  const { job, sealed, anchored, audits, pay } = trace;
  const checks = [];
  const add = (name, derive) => checks.push(tried(name, derive));
  add("messages", () => checkMessages(trace));
  add("seal", () =>
    checkSeal(job, sealed.step, sealed.seal, steps[sealed.step], "messages_root", sealed.messages_root));
  if (anchored) add("batch", () => checkBatch(job, sealed.step, sealed.seal, anchored));
  if (audits?.draw.beacon) add("draw", () => checkDraw(trace));
  if (pay) {
    add("pay", () => checkPay(trace));
    add("pay-seal", () => checkSeal(job, pay.step, pay.seal, steps[pay.step], "pay_root", pay.pay_root));
    if (pay.anchored) add("pay-batch", () => checkBatch(job, pay.step, pay.seal, pay.anchored));
  }
  return checks;
};
