#!/usr/bin/env node
// Compiles the sources and writes one artifact per deployed contract:
// `node tools/build.mjs [FOLDER [SOURCES]]`, by default contracts/abi and src/.
// Same sources and same package-lock give the same bytes. With SOURCES given (mutation tests) the
// legacy pipeline compiles them, code only: to other bytes that do the same, much sooner.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = join(dirname(fileURLToPath(import.meta.url)), "..");
const DEPLOYED = ["JobEscrow", "Parameters", "SealAnchor", "TestToken"];
const [FOLDER = join(ROOT, "..", "abi"), MUTANT] = process.argv.slice(2);
const SOURCES = MUTANT ?? join(ROOT, "src");
const SETTINGS = {
  evmVersion: "prague",
  optimizer: { enabled: true, runs: MUTANT === undefined ? 10000 : 1 },
  viaIR: MUTANT === undefined,
  metadata: { bytecodeHash: "none", appendCBOR: false },
};
const OUTPUTS = [
  "abi",
  "storageLayout",
  "evm.bytecode.object",
  "evm.deployedBytecode.object",
  "evm.deployedBytecode.immutableReferences",
];

const CODE_ONLY = Object.fromEntries(
  DEPLOYED.map((name) => [`src/${name}.sol`, { [name]: ["evm.bytecode.object"] }]),
);

const require = createRequire(import.meta.url);
const solc = require("solc");
const read = (path) => readFileSync(path, "utf8");

function readImport(path) {
  const folder = path.startsWith("@") ? join(ROOT, "node_modules") : ROOT;
  return { contents: read(join(folder, path)) };
}

function compile() {
  const names = readdirSync(SOURCES).filter((name) => name.endsWith(".sol")).sort();
  const sources = Object.fromEntries(
    names.map((name) => [`src/${name}`, { content: read(join(SOURCES, name)) }]),
  );
  const outputSelection = MUTANT === undefined ? { "*": { "*": OUTPUTS, "": ["ast"] } } : CODE_ONLY;
  const input = { language: "Solidity", sources, settings: { ...SETTINGS, outputSelection } };
  const output = JSON.parse(solc.compile(JSON.stringify(input), { import: readImport }));
  // Warnings of our own sources are errors; the library warns of its own transient storage.
  const ours = (problem) =>
    MUTANT === undefined && (problem.sourceLocation?.file?.startsWith("src/") ?? true);
  const problems = (output.errors ?? []).filter((p) => p.severity === "error" || ours(p));
  if (problems.length > 0) {
    throw new Error(problems.map((problem) => problem.formattedMessage).join("\n"));
  }
  return output;
}

// Names of immutables by AST id; the compiler's own references only carry the id.
function immutableNames(sources) {
  const names = new Map();
  const visit = (node) => {
    if (node === null || typeof node !== "object") return;
    if (node.nodeType === "VariableDeclaration" && node.mutability === "immutable") {
      names.set(String(node.id), node.name);
    }
    Object.values(node).forEach(visit);
  };
  Object.values(sources).forEach((source) => visit(source.ast));
  return names;
}

function namedReferences(references, names) {
  const named = {};
  for (const [id, places] of Object.entries(references)) {
    const name = names.get(id);
    if (name === undefined || name in named) throw new Error(`immutable ${id}: ${name}`);
    named[name] = places.map((place) => place.start).sort((a, b) => a - b);
  }
  return Object.fromEntries(Object.entries(named).sort());
}

// The compiler numbers user-defined types; the numbers mean nothing and move with every edit.
function storageLayout(layout) {
  const plain = (text) => text.replace(/(t_(?:struct|contract|enum)\([^)]*\))\d+/g, "$1");
  return JSON.parse(plain(JSON.stringify(layout, (key, value) => (key === "astId" ? undefined : value))));
}

// Own sources that a contract is made of, by following imports.
function ownSources(name, sources) {
  const found = new Set();
  const visit = (path) => {
    if (!path.startsWith("src/") || found.has(path)) return;
    found.add(path);
    sources[path].ast.nodes
      .filter((node) => node.nodeType === "ImportDirective")
      .forEach((node) => visit(node.absolutePath));
  };
  visit(`src/${name}.sol`);
  return [...found].sort();
}

function sha256(path) {
  const source = readFileSync(join(SOURCES, path.slice("src/".length)));
  return createHash("sha256").update(source).digest("hex");
}

function artifact(name, output, names) {
  const compiled = output.contracts[`src/${name}.sol`][name];
  return {
    contract: name,
    abi: compiled.abi,
    bytecode: `0x${compiled.evm.bytecode.object}`,
    deployedBytecode: `0x${compiled.evm.deployedBytecode.object}`,
    immutableReferences: namedReferences(compiled.evm.deployedBytecode.immutableReferences, names),
    storageLayout: storageLayout(compiled.storageLayout),
    solcVersion: solc.version().replace(/\.Emscripten.*$/, ""),
    openzeppelinVersion: require("@openzeppelin/contracts/package.json").version,
    settings: SETTINGS,
    sourceSha256: Object.fromEntries(ownSources(name, output.sources).map((path) => [path, sha256(path)])),
  };
}

function codeOnly(name, output) {
  const compiled = output.contracts[`src/${name}.sol`][name];
  return { contract: name, bytecode: `0x${compiled.evm.bytecode.object}` };
}

const output = compile();
const names = MUTANT === undefined ? immutableNames(output.sources) : undefined;
mkdirSync(FOLDER, { recursive: true });
for (const name of DEPLOYED) {
  const found = names === undefined ? codeOnly(name, output) : artifact(name, output, names);
  const text = JSON.stringify(found, null, 1);
  writeFileSync(join(FOLDER, `${name}.json`), `${text}\n`);
  process.stdout.write(`${name}\n`);
}
