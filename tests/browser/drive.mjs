// Drives one headless Chromium: a command as a line of JSON on stdin, its answer as one on stdout.
//
// Usage: node drive.mjs PROFILE-FOLDER. The browser is unpacked once, beside its package.
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";
import chromium from "@sparticuz/chromium";
import puppeteer from "puppeteer-core";

const UNPACKED = join(import.meta.dirname, "node_modules", ".chromium");
const DONE = join(UNPACKED, "done");
// Flags for small hosts that would make it another browser than people have.
const LOOSE = ["--disable-web-security", "--allow-running-insecure-content", "--single-process"];
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

async function unpack() {
  if (!existsSync(DONE)) rmSync(UNPACKED, { recursive: true, force: true });
  mkdirSync(UNPACKED, { recursive: true });
  process.env.TMPDIR = UNPACKED; // where the package unpacks to
  const path = await chromium.executablePath();
  writeFileSync(DONE, "");
  return path;
}

const browser = await puppeteer.launch({
  protocolTimeout: 0, // how long is waited is said by whoever waits
  args: [...chromium.args.filter((flag) => !LOOSE.includes(flag)), "--lang=en-US"],
  env: { ...process.env, LC_ALL: "en_US.UTF-8", LANGUAGE: "en_US" }, // not the C locale of a server
  executablePath: await unpack(),
  headless: "shell",
  userDataDir: process.argv[2],
});
let page = null;
let logs = [];

function listen(page) {
  const logs = [];
  page.on("console", (said) => {
    if (["error", "warn"].includes(said.type())) logs.push(`console: ${said.text()}`);
  });
  page.on("pageerror", (error) => logs.push(`exception: ${error.message}`));
  page.on("requestfailed", (request) =>
    logs.push(`failed: ${request.url()} ${request.failure()?.errorText}`));
  page.on("response", (answer) => {
    if (answer.status() >= 400) logs.push(`status ${answer.status()}: ${answer.url()}`);
  });
  return logs;
}

const commands = {
  async open({ url, scripts = true, before = "", scheme = "light", width = 1280, height = 900 }) {
    await commands.leave();
    page = await browser.newPage();
    logs = listen(page);
    if (before) await page.evaluateOnNewDocument(before);
    await page.setJavaScriptEnabled(scripts);
    await page.setViewport({ width, height });
    await page.emulateMediaFeatures([
      { name: "prefers-color-scheme", value: scheme },
      { name: "prefers-reduced-motion", value: "reduce" },
    ]);
    const answer = await page.goto(url, { waitUntil: "load", timeout: 0 });
    return { status: answer.status(), url: page.url(), title: await page.title() };
  },
  async leave() {
    await page?.close();
    page = null;
    return true;
  },
  logs: async () => logs,
  url: async () => page.url(),
  evaluate: async ({ code }) => page.evaluate(code),
  wait: async ({ code, millis }) => {
    await page.waitForFunction(code, { timeout: millis, polling: 50 });
    return true;
  },
  press: async ({ key }) => { await page.keyboard.press(key); return true; },
  type: async ({ text }) => { await page.keyboard.type(text); return true; },
  screenshot: async ({ path, most }) => {
    const { width, height } = await page.evaluate(
      "({ width: innerWidth, height: document.documentElement.scrollHeight })");
    const clip = { x: 0, y: 0, width, height: Math.min(height, most) };
    await page.screenshot({ path, clip, captureBeyondViewport: true });
    return true;
  },
  async axe() {
    await page.evaluate(AXE);
    const rules = "{ 'target-size': { enabled: true } }";  // of WCAG 2.2, so not among axe's own
    const found = await page.evaluate(
      `axe.run(document, { resultTypes: ['violations'], rules: ${rules} })`);
    return found.violations.map(({ id, impact, nodes }) =>
      ({ id, impact, nodes: nodes.map((node) => `${node.target} ${node.failureSummary}`) }));
  },
};

const answer = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

answer({ value: await browser.version() });
for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...values } = JSON.parse(line);
  try {
    answer({ value: (await commands[command](values)) ?? null });
  } catch (error) {
    answer({ error: `${command}: ${error.message}` });
  }
}
await browser.close();
