"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

// Elements. Text from the plan is only ever a text node or an attribute, never markup.
function node(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}
function shape(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}
function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined) continue;
    made.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return made;
}

// Figures.
function scaled(value, units) {
  for (const [scale, unit] of units) if (Math.abs(value) >= scale) return `${digits(value / scale)} ${unit}`;
  return null;
}
function bytes(value) {
  return scaled(value, [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) || `${value} B`;
}
function seconds(value) {
  return scaled(value, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]) || "0 s";
}
function digits(value) {
  const size = Math.abs(value);
  return value.toLocaleString("en-US", { maximumFractionDigits: size >= 100 ? 0 : size >= 10 ? 1 : 2 });
}
function percent(value) { return `${(100 * value).toFixed(Math.abs(value) < 0.1 ? 1 : 0)} %`; }
function signed(value, show) { return value === 0 ? "±0" : `${value < 0 ? "−" : "+"}${show(Math.abs(value))}`; }
function plural(count, noun) { return `${count} ${noun}${count === 1 ? "" : "s"}`; }
function colour(name) { return `var(--${name})`; }

// Parts of the page.
function card(title, about, ...children) {
  const id = title.toLowerCase().replace(/[^a-z]+/g, "-");
  return node("section", { class: "card", "aria-labelledby": id }, node("h2", { id }, title),
    about ? node("p", { class: "soft about" }, about) : null, ...children);
}
function legend(entries) {
  return node("div", { class: "legend" }, entries.map(([name, tone]) =>
    node("span", {}, node("i", { style: `background:${colour(tone)}` }), name)));
}
const right = (text) => ({ number: text });
function cell(kind, value) {
  const number = value !== null && typeof value === "object" && !(value instanceof Node) && "number" in value;
  const shown = number ? value.number : value;
  return node(kind, { class: number ? "number" : null, scope: kind === "th" ? "col" : null }, shown);
}
function table(head, rows, caption, tall) {
  return node("div", { class: tall ? "scroll tall" : "scroll", tabindex: "0", role: "region", "aria-label": caption },
    node("table", {}, node("caption", { class: "visually-hidden" }, caption),
      node("thead", {}, node("tr", {}, head.map((one) => cell("th", one)))),
      node("tbody", {}, rows.map((row) => row instanceof Node ? row : node("tr", {}, row.map((one) => cell("td", one)))))));
}
function chart(svg) {
  return svg ? node("div", { class: "chart", tabindex: "0", role: "group", "aria-label": "chart" }, svg) : null;
}
function folded(summary, open, ...children) {
  return node("details", { open: open ? "" : null }, node("summary", {}, summary), ...children);
}
function stackedBar(parts, full, label) {
  return node("div", { class: "bar", role: "img", "aria-label": label }, parts.map(([name, size, tone, text]) =>
    node("span", { style: `width:${100 * size / full}%;background:${colour(tone)}`, title: `${name} ${text}` })));
}
