// Has an order signed by the wallet of the browser (EIP-1193), and posts it. What is signed, and how
// it is encoded, the market says; the wallet shows it to its owner.
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

const post = async () => {
  if (!window.ethereum) throw new Error("there is no wallet in this browser");
  const [account] = await window.ethereum.request({ method: "eth_requestAccounts" });
  const { key } = place.dataset;
  const wanted = { ...JSON.parse(place.dataset.order), poster: hex(account) };
  const typed = await send("/v1/orders/typed-data", wanted, `${key}-${hex(account)}`);
  show("\u25b8", "busy", "1 of 2: sign the order in the wallet");
  const signature = hex(await sign(account, typed.order));
  show("\u25b8", "busy", "2 of 2: sign the permit in the wallet");
  const permit = { deadline: typed.permit_deadline, signature: hex(await sign(account, typed.permit)) };
  const order = { spec: typed.spec, signature, permit };
  return send("/v1/orders", order, `${key}-${permit.signature.slice(-40)}`);
};

button.hidden = false;
button.addEventListener("click", async () => {
  button.disabled = true;
  try {
    const { job } = await post();
    show("\u2713", "good", `Posted: ${job}`);
    location.assign(`/jobs/${job}`);
  } catch (error) {
    show("\u2716", "bad", `Not posted: ${error.message ?? error}`);
    button.disabled = false;
  }
});
