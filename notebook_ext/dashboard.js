// The live panel of `%tpu dashboard`. It changes what has changed, so that focus, selection and scrolling stay.

function element(tag, parent, attributes = {}) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  parent.append(made);
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Give `parent` as many children as there are texts, and each its text.
function setTexts(parent, tag, texts) {
  while (parent.children.length > texts.length) parent.lastChild.remove();
  while (parent.children.length < texts.length) element(tag, parent);
  texts.forEach((text, k) => setText(parent.children[k], text));
}

function render({ model, el }) {
  el.classList.add("torchtpu-dashboard");
  const head = element("div", el);
  setText(element("b", head), "torchtpu session");
  const figures = element("span", head, { class: "figures" });
  setText(element("span", head, { class: "quiet" }), "measured");
  const running = element("div", el, { role: "status", "aria-live": "off" });
  const chart = element("img", el, { height: 72, alt: "" });
  const caption = element("div", el, { class: "quiet" });
  const scroll = element("div", el, { class: "scroll", tabindex: 0, role: "region", "aria-label": "cells" });
  const table = element("table", scroll);
  const titles = element("tr", element("thead", table));
  const body = element("tbody", table);

  function draw() {
    const state = model.get("state");
    if (!state.columns) return;
    setTexts(figures, "span", [state.mode, ...state.figures]);
    setText(running, state.running.length ? `running: ${state.running.join(", ")}` : "");
    chart.hidden = !state.rows.length;
    if (chart.src !== state.chart) chart.src = state.chart;
    setText(caption, state.rows.length ? state.caption : "");
    setTexts(titles, "th", state.columns.map((column) => column.title));
    while (body.children.length > state.rows.length) body.lastChild.remove();
    while (body.children.length < state.rows.length) element("tr", body);
    state.rows.forEach((row, k) => setTexts(body.children[k], "td", row));
    for (const row of [titles, ...body.children]) {
      state.columns.forEach((column, k) => row.children[k].classList.toggle("figure", column.figure));
    }
  }

  model.on("change:state", draw);
  draw();
  return () => model.off("change:state", draw);
}

export default { render };
