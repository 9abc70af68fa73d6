// Has an order signed by the wallet of the browser (EIP-1193), and posts it. What is signed, and how
// it is encoded, the market says; the wallet shows it to its owner. What is about to be signed is kept in
// this browser first, so the same order of the same wallet is one job, whenever it was interrupted.
const place = document.getElementById("order");
const button = document.getElementById("post");
const said = document.getElementById("posted");

const show = (glyph, tone, words) => {
  said.hidden = false;
  said.textContent = `${glyph} ${words}`;
  said.className = `note ${tone}`;
};
const hex = (text) => text.replace(/^0x/, "").toLowerCase();

const send = async (path, body, key) => {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "Idempotency-Key": key },
    body: JSON.stringify(body),
  });
  const told = await answer.json();
  if (!answer.ok) throw new Error(`${told.code}: ${told.detail}`);
  return told;
};

const sign = (account, typed) =>
  window.ethereum.request({ method: "eth_signTypedData_v4", params: [account, JSON.stringify(typed)] });

const find = async (job) => {
  const answer = await fetch(`/v1/jobs/${job}`);
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(`the market answers ${answer.status}`);
  return answer.json();
};

// Unlike `randomUUID` this is there without TLS, too.
const newKey = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(16)).join("");

let isAgain = false;

const marketClock = () => Number(place.dataset.now) + performance.now(); // ms
const isTooLate = ({ wanted, typed }) =>
  Math.min(wanted.deadline, typed?.permit_deadline ?? Infinity) * 1000 <= marketClock();

// The order as it was kept, or a new one: { key, wanted, typed }, the last once the market answered.
const keptOrder = async (account) => {
  const name = `order:${place.dataset.wish}:${account}`;
  const keep = (order) => localStorage.setItem(name, JSON.stringify(order));
  let order = JSON.parse(localStorage.getItem(name));
  const known = order?.typed && (await find(order.typed.job));
  if (known && !isAgain) return { known };
  if (!order || known || isTooLate(order)) {
    const wanted = { ...JSON.parse(place.dataset.order), poster: account };
    order = { key: newKey(), wanted };
    keep(order);
  }
  if (!order.typed) {
    order.typed = await send("/v1/jobs/typed-data", order.wanted, order.key);
    keep(order);
  }
  isAgain = false;
  return order;
};

const post = async () => {
  if (!window.ethereum) throw new Error("there is no wallet in this browser");
  const [account] = await window.ethereum.request({ method: "eth_requestAccounts" });
  const { known, key, typed } = await keptOrder(hex(account));
  if (known) return { ...known, isRepeated: true };
  show("\u25b8", "busy", "1 of 2: sign the order in the wallet");
  const signature = hex(await sign(account, typed.header));
  show("\u25b8", "busy", "2 of 2: sign the permit in the wallet");
  const permit = { deadline: typed.permit_deadline, signature: hex(await sign(account, typed.permit)) };
  const order = { spec: typed.spec, signature, permit };
  return send("/v1/jobs/typed", order, `${key}-${permit.signature.slice(-40)}`);
};

const tellOfRepetition = ({ job, state }) => {
  show("\u2713", "good", `Posted before, nothing is paid again: its job is ${state}. `);
  const link = document.createElement("a");
  link.href = `/jobs/${job}`;
  link.textContent = job;
  said.append(link);
  button.textContent = "Order it once more";
  button.disabled = false;
  isAgain = true;
};

button.hidden = false;
button.addEventListener("click", async () => {
  button.disabled = true;
  try {
    const posted = await post();
    if (posted.isRepeated) return tellOfRepetition(posted);
    show("\u2713", "good", `Posted: ${posted.job}`);
    location.assign(`/jobs/${posted.job}`);
  } catch (error) {
    show("\u2716", "bad", `Not posted: ${error.message ?? error}`);
    button.disabled = false;
  }
});
