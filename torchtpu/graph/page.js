// A graph to move about in: hover or click a node for its line, shapes and code; open a folded one; search; keyboard.
// The drawings come ready-made from Python, so that page and picture agree. Text enters the page as text, never as markup.
"use strict";
const $ = (id) => document.getElementById(id);
const element = (name, text, attributes = {}) => {
  const e = document.createElement(name);
  e.textContent = text ?? "";
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  return e;
};

// A notebook's theme is not the system's: inside a frame, the text around it tells.
function theme() {
  let dark = matchMedia("(prefers-color-scheme: dark)").matches;
  try {
    const around = window.frameElement?.parentElement;
    if (around) {
      const [r, g, b] = getComputedStyle(around).color.match(/[\d.]+/g).map(Number);
      dark = 0.2126 * r + 0.7152 * g + 0.0722 * b > 128;
    }
  } catch { /* another origin: the system's then */ }
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("dark").media = dark ? "all" : "not all";
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

function start(graph) {
  const view = $("view"), about = $("about"), search = $("search");
  let scene, svg, selected = null, wires = new Map(), near = new Map();
  let box = { x: 0, y: 0, k: 1 }, fitted = false;

  const tile = (key) => (key ? svg.querySelector(`g[id="${CSS.escape(key)}"]`) : null);
  const keyAt = (target) => target.closest?.("g[id]")?.id ?? null;

  // ---- moving about
  function apply() {
    const { clientWidth: w, clientHeight: h } = view;
    svg.setAttribute("viewBox", `${box.x} ${box.y} ${w / box.k} ${h / box.k}`);
  }
  function fit() {
    const room = view.clientWidth - 16;
    fitted = room > 0; // not so while what it stands in is closed
    box.k = Math.min(1.25, Math.max(0.35, room / scene.width));
    box.x = (scene.width - view.clientWidth / box.k) / 2;
    box.y = -8;
    if (scene.height * box.k < view.clientHeight - 40) box.y = (scene.height - (view.clientHeight - 36) / box.k) / 2;
    apply();
  }
  function zoom(factor, px = view.clientWidth / 2, py = view.clientHeight / 2) {
    const k = Math.min(4, Math.max(0.1, box.k * factor));
    box.x += px / box.k - px / k;
    box.y += py / box.k - py / k;
    box.k = k;
    apply();
  }
  function reveal(key) {
    const b = tile(key)?.getBBox();
    if (!b) return;
    const w = view.clientWidth / box.k, h = (view.clientHeight - 36) / box.k;
    if (b.x < box.x || b.x + b.width > box.x + w) box.x = b.x + b.width / 2 - w / 2;
    if (b.y < box.y || b.y + b.height > box.y + h) box.y = b.y + b.height / 2 - h / 2;
    apply();
  }

  // ---- what is shown
  function open(key, focus = null) {
    scene = graph.scenes[key];
    $("scene").innerHTML = `<svg role="group">${scene.svg}</svg>`;
    svg = $("scene").firstChild;
    svg.setAttribute("aria-label", scene.title);
    wires = new Map();
    near = new Map();
    const add = (map, from, to) => map.set(from, (map.get(from) ?? new Set()).add(to));
    for (const path of svg.querySelectorAll("path[data-e]")) {
      for (const link of path.dataset.e.split(" ")) {
        const [a, b] = link.split(">");
        for (const [from, to] of [[a, b], [b, a]]) { add(wires, from, path); add(near, from, to); }
      }
    }
    const trail = [];
    for (let at = key; at != null; at = graph.scenes[at].parent) trail.unshift(at);
    $("trail").replaceChildren(...trail.map((at, n) => {
      const button = element("button", `${n ? "\u203a " : ""}${graph.scenes[at].title}`);
      if (at === key) button.setAttribute("aria-current", "true");
      button.onclick = () => open(at);
      return button;
    }));
    fit();
    select(focus);
    mark();
  }
  function light(key, on) {
    tile(key)?.classList.toggle("on", on);
    for (const other of near.get(key) ?? []) tile(other)?.classList.toggle("near", on);
    for (const path of wires.get(key) ?? []) path.classList.toggle("hot", on);
  }
  function select(key) {
    if (selected) light(selected, false);
    selected = tile(key) ? key : null;
    if (selected) { light(selected, true); reveal(selected); }
    tell(selected);
  }
  function tell(key) {
    const node = graph.nodes[key];
    if (!node) { about.replaceChildren(...overview()); return; }
    const list = element("dl");
    for (const [name, value] of node.rows) list.append(element("dt", name), element("dd", value));
    const parts = [element("h2", node.title), list];
    for (const [name, lines] of node.code) {
      const details = element("details", null, { open: "" });
      details.append(element("summary", name), element("pre", lines));
      parts.push(details);
    }
    if (graph.scenes[key]) {
      const button = element("button", "Open", { style: "margin-top:8px" });
      button.onclick = () => open(key);
      parts.push(button);
    }
    about.replaceChildren(...parts);
  }
  function overview() {
    const keys = "Click a node. Wheel: move, with Ctrl: zoom. Arrow keys: next node, Enter: open, Backspace: back, +, -, 0: zoom, /: search.";
    return [element("h2", graph.name), element("div", graph.summary), element("p", keys, { class: "quiet" })];
  }

  // ---- search
  function matches() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return [];
    return Object.keys(graph.nodes).filter((key) => words.every((w) => graph.nodes[key].find.includes(w)));
  }
  const sceneOf = (key) => Object.keys(graph.scenes).find((s) => graph.scenes[s].holds.includes(key)) ?? null;
  function mark() {
    const found = new Set(matches());
    for (const g of svg.querySelectorAll("g[id]")) g.classList.toggle("found", found.has(g.id));
  }
  function look() {
    const found = matches();
    mark();
    if (!search.value.trim()) { tell(selected); return; }
    const list = element("ul");
    for (const key of found.slice(0, 50)) {
      const item = element("li"), button = element("button", graph.nodes[key].title);
      button.append(element("span", ` ${graph.nodes[key].where}`, { class: "quiet" }));
      button.onclick = () => go(key);
      item.append(button);
      list.append(item);
    }
    about.replaceChildren(element("h2", `${found.length} found`), list);
  }
  function go(key) {
    const at = sceneOf(key);
    if (at != null && graph.scenes[at] !== scene) open(at, key); else select(key);
    view.focus();
  }
  search.oninput = look;
  search.onkeydown = (event) => {
    if (event.key === "Enter") { const [first] = matches(); if (first) go(first); }
    if (event.key === "Escape") { search.value = ""; look(); view.focus(); }
  };

  // ---- mouse
  let drag = null;
  view.onpointerdown = (event) => { drag = { x: event.clientX, y: event.clientY, moved: false }; };
  window.onpointermove = (event) => {
    if (!drag) return;
    const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    drag = { x: event.clientX, y: event.clientY, moved: true };
    box.x -= dx / box.k;
    box.y -= dy / box.k;
    apply();
  };
  window.onpointerup = (event) => {
    if (drag && !drag.moved && view.contains(event.target)) select(keyAt(event.target));
    drag = null;
  };
  view.ondblclick = (event) => { const key = keyAt(event.target); if (graph.scenes[key]) open(key); };
  view.onmouseover = (event) => { if (!drag && !search.value) tell(keyAt(event.target) ?? selected); };
  view.onmouseleave = () => { if (!search.value) tell(selected); };
  view.addEventListener("wheel", (event) => {
    event.preventDefault();
    const at = view.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(-event.deltaY / 300), event.clientX - at.x, event.clientY - at.y);
    else { box.x += event.deltaX / box.k; box.y += event.deltaY / box.k; apply(); }
  }, { passive: false });

  // ---- keyboard
  function step(dx, dy) {
    const keys = [...svg.querySelectorAll("g[id]")].map((g) => g.id);
    if (!selected) { select(keys[0]); return; }
    const middle = (key) => { const b = tile(key).getBBox(); return [b.x + b.width / 2, b.y + b.height / 2]; };
    const [x, y] = middle(selected);
    // Up and down along the tensors, where there are some; else to what lies there.
    const far = (key) => {
      const [u, v] = middle(key), along = (u - x) * dx + (v - y) * dy, across = Math.abs((u - x) * dy) + Math.abs((v - y) * dx);
      return along > 1 ? along + 2 * across : Infinity;
    };
    const best = (among) => among.map((key) => [far(key), key]).filter(([d]) => d < Infinity).sort((a, b) => a[0] - b[0])[0]?.[1];
    const next = (dy && best([...(near.get(selected) ?? [])].filter((key) => tile(key)))) || best(keys.filter((key) => key !== selected));
    if (next) select(next);
  }
  const actions = {
    ArrowDown: () => step(0, 1), ArrowUp: () => step(0, -1), ArrowLeft: () => step(-1, 0), ArrowRight: () => step(1, 0),
    Enter: () => { if (graph.scenes[selected]) open(selected); },
    Backspace: () => { const from = Object.keys(graph.scenes).find((k) => graph.scenes[k] === scene); if (scene.parent != null) open(scene.parent, from); },
    Escape: () => select(null), "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), 0: fit,
    "/": () => search.focus(),
  };
  document.onkeydown = (event) => {
    if (event.target === search || event.ctrlKey || event.metaKey || event.altKey || !actions[event.key]) return;
    if (event.key === "Enter" && event.target instanceof HTMLButtonElement) return;
    event.preventDefault();
    actions[event.key]();
  };
  $("in").onclick = () => zoom(1.25);
  $("out").onclick = () => zoom(0.8);
  $("fit").onclick = fit;
  new ResizeObserver(() => (fitted ? apply() : fit())).observe(view);
  open(graph.root);
  document.body.dataset.ready = "true";
}

theme();
document.addEventListener("pointerenter", theme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
unpack($("graph").textContent).then(start);
