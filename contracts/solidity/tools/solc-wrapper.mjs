#!/usr/bin/env node
// Looks like the native solc to forge, slither and halmos; compiles with npm's solcjs.
// Answers `--version`; otherwise reads standard JSON from stdin and prints standard JSON.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const solc = createRequire(import.meta.url)("solc");

if (process.argv.includes("--version")) {
  const version = solc.version().replace(/\.Emscripten.*$/, "");
  process.stdout.write(`solc, the solidity compiler commandline interface\nVersion: ${version}.Linux.g++\n`);
} else if (process.argv.includes("--standard-json")) {
  process.stdout.write(solc.compile(readFileSync(0, "utf8")));
} else {
  process.stderr.write("solc-wrapper: only --version and --standard-json are supported\n");
  process.exitCode = 2;
}
