// Sorts tables by a click on a title, and hands the trace to Perfetto. The page shows its numbers without any of this.
"use strict";

// ---- sorting: figures are compared by their values ("1.2 ms" < "1 s"), words by the alphabet
const UNITS = {
  us: 1e-6, ms: 1e-3, s: 1, min: 60, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, k: 1e3, M: 1e6, G: 1e9, T: 1e12,
};
function value(text) {
  const parts = [...text.replaceAll(",", "").matchAll(/(-?[\d.]+(?:e[-+]?\d+)?)\s*([a-zA-Z]*)/g)];
  if (!parts.length) return -Infinity; // an empty cell
  return parts.reduce((sum, [, number, unit]) => sum + Number(number) * (UNITS[unit] ?? 1), 0);
}
function sort(head, column, isFigure) {
  const body = head.closest("table").tBodies[0];
  const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") !== "descending" : isFigure;
  for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const text = (row) => row.cells[column].innerText.trim();
  const order = isFigure ? (a, b) => value(text(a)) - value(text(b)) : (a, b) => text(a).localeCompare(text(b));
  body.append(...[...body.rows].sort((a, b) => (down ? -order(a, b) : order(a, b))));
}
for (const table of document.querySelectorAll("table")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const isFigure = head.style.textAlign === "right";
    head.classList.add("sorts");
    head.tabIndex = 0;
    head.onclick = () => sort(head, column, isFigure);
    head.onkeydown = (event) => { if (event.key === "Enter") sort(head, column, isFigure); };
  });
}

// ---- Perfetto: its page answers PING with PONG once it listens; then it takes the trace, which stays in the browser
const PERFETTO = "https://ui.perfetto.dev";
const PATIENCE = 20000; // milliseconds for its page to load
const link = document.getElementById("trace");

function handOver(said, instead) {
  const other = window.open(PERFETTO);
  if (!other) { said.textContent = `The browser did not let this page open another one. ${instead}`; return; }
  said.textContent = "Waiting for Perfetto\u2026";
  const start = Date.now();
  const stop = (text) => {
    clearInterval(timer);
    removeEventListener("message", hear);
    said.textContent = text;
  };
  const hear = (event) => {
    if (event.source !== other || event.origin !== PERFETTO || event.data !== "PONG") return;
    const { buffer } = Uint8Array.from(atob(link.href.split(",")[1]), (c) => c.charCodeAt(0));
    other.postMessage({ perfetto: { buffer, title: document.title, fileName: link.download } }, PERFETTO, [buffer]);
    stop("Handed to Perfetto.");
  };
  addEventListener("message", hear);
  const timer = setInterval(() => {
    if (other.closed) stop("");
    else if (Date.now() - start < PATIENCE) other.postMessage("PING", "*"); // to whatever is there: it says nothing
    else { other.close(); stop(`Perfetto did not answer. ${instead}`); }
  }, 100);
}

if (link) {
  const button = document.getElementById("perfetto"), said = document.getElementById("said");
  const instead = "Download the trace: chrome://tracing opens it offline, ui.perfetto.dev when there is a network.";
  button.hidden = false;
  said.textContent = "Loads ui.perfetto.dev; the trace stays in this browser.";
  button.onclick = () => {
    if (!navigator.onLine) said.textContent = `There is no network. ${instead}`;
    else if (self.origin !== "null") handOver(said, instead);
    else { // a page from a file has no origin that Perfetto could ask its reader to trust
      link.click();
      window.open(PERFETTO, "_blank", "noopener");
      said.textContent = `Downloaded ${link.download}: drop it on the page of Perfetto that has opened.`;
    }
  };
}
