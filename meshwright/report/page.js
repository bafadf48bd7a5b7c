"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");
page.textContent = "";
const SVG = "http://www.w3.org/2000/svg";

function node(name, attributes, ...children) {
  const made = document.createElement(name);
  return fill(made, attributes, children);
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
function bytes(value) {
  for (const [scale, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (Math.abs(value) >= scale) return `${digits(value / scale)} ${unit}`;
  return `${value} B`;
}
function seconds(value) {
  for (const [scale, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "us"]])
    if (Math.abs(value) >= scale) return `${digits(value / scale)} ${unit}`;
  return value ? `${digits(value * 1e9)} ns` : "0 s";
}
function digits(value) {
  const size = Math.abs(value);
  return value.toLocaleString("en-US", { maximumFractionDigits: size >= 100 ? 0 : size >= 10 ? 1 : 2 });
}
function percent(value) { return `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`; }
function colour(name) { return `var(--${name})`; }
function card(title, ...children) {
  const id = title.toLowerCase().replace(/[^a-z]+/g, "-");
  return node("section", { class: "card", "aria-labelledby": id }, node("h2", { id }, title), ...children);
}
function legend(entries) {
  return node("div", { class: "legend" }, entries.map(([name, tone]) =>
    node("span", {}, node("i", { style: `background:${colour(tone)}` }), name)));
}
function table(head, rows, caption) {
  const cell = (kind, value, place) => {
    const number = typeof value === "object" && value !== null && !(value instanceof Node) && "number" in value;
    return node(kind, { class: number ? "number" : null, scope: kind === "th" ? "col" : null }, number ? value.number : value);
  };
  return node("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    node("table", {}, node("caption", { class: "visually-hidden" }, caption),
      node("thead", {}, node("tr", {}, head.map((one) => cell("th", one)))),
      node("tbody", {}, rows.map((row) => node("tr", {}, row.map((one) => cell("td", one)))))));
}
const right = (text) => ({ number: text });

function recommendation() {
  const unit = data.tokens_per_s !== data.samples_per_s ? ["tokens per second", data.tokens_per_s] : ["samples per second", data.samples_per_s];
  const gap = data.gap < 1 ? `proven within ${percent(data.gap)} of the best possible` : "no bound known: nobody searched";
  const figure = (name, value, more) => node("div", { class: "figure" }, node("span", { class: "soft" }, name), node("b", {}, value),
    node("span", { class: "soft" }, more));
  const settings = [`global batch ${data.batch}`, data.precision, data.optimizer, ...data.constraints.map((one) => `constraint ${one}`)];
  return [
    node("p", { class: "eyebrow" }, `${data.title} on ${data.devices} x ${data.device} (${data.cluster}); ${settings.join(", ")}`),
    node("h1", {}, data.headline),
    node("div", { class: "figures" },
      figure("Step", seconds(data.step_s), gap),
      figure("Speed", digits(unit[1]), unit[0] + (data.mfu === null ? "" : `, MFU ${percent(data.mfu)}`)),
      figure("Memory", bytes(data.peak_bytes), `of ${bytes(data.limit_bytes)} per device (${percent(data.peak_bytes / data.limit_bytes)})`)),
    data.launch ? node("pre", { tabindex: "0", "aria-label": "the command that runs this plan" }, data.launch) : null,
  ];
}

function timeCard() {
  const rows = data.time, whole = rows.reduce((sum, row) => sum + Math.max(0, row.seconds), 0);
  const tones = { forward: "forward", backward: "backward", "weights and gradients": "gather", optimizer: "optimizer" };
  const bar = node("div", { class: "bar", role: "img", "aria-label": rows.map((row) => `${row.name} ${seconds(row.seconds)}`).join(", ") },
    rows.filter((row) => row.seconds > 0).map((row) => node("span", {
      style: `width:${100 * row.seconds / whole}%;background:${colour(tones[row.name] || "idle")}`, title: `${row.name} ${seconds(row.seconds)}` })));
  return card("Where the time goes", bar,
    table(["part", right("time"), right("of the step")], rows.map((row) =>
      [row.name, right(seconds(row.seconds)), right(percent(row.seconds / data.step_s))]), "parts of the step"));
}

function memoryCard() {
  const tones = ["static", "activation", "temporary"], full = Math.max(data.limit_bytes, data.peak_bytes);
  const bar = node("div", { class: "bar", role: "img", "aria-label": `peak ${bytes(data.peak_bytes)} of ${bytes(data.limit_bytes)}` },
    data.memory.map((part, place) => node("span", {
      style: `width:${100 * part.bytes / full}%;background:${colour(tones[place])}`, title: `${part.name} ${bytes(part.bytes)}` })));
  return card("Memory at the peak", bar, legend(data.memory.map((part, place) => [`${part.name} ${bytes(part.bytes)}`, tones[place]])
    .concat([[`free ${bytes(Math.max(0, data.limit_bytes - data.peak_bytes))}`, "idle"]])), memoryOverTime());
}

function memoryOverTime() {
  if (!data.timeline) return null;
  const width = 1040, high = 120, found = [], fullest = Math.max(...data.timeline.stages.map((stage) => stage.peak_bytes));
  data.timeline.stages.forEach((stage, number) => {
    if (number >= 16) return;
    const near = data.limit_bytes < 3 * fullest, top = near ? Math.max(fullest, data.limit_bytes) * 1.06 : fullest * 1.25;
    const x = (at) => 60 + at / 1e6 * (width - 70), y = (held) => high - 18 - held / top * (high - 34);
    let path = `M ${x(0)} ${y(0)}`, held = 0;
    for (const [at, size] of stage.memory) { path += ` L ${x(at)} ${y(held)} L ${x(at)} ${y(size)}`; held = size; }
    path += ` L ${x(1e6)} ${y(held)} L ${x(1e6)} ${y(0)} Z`;
    const label = `${bytes(stage.peak_bytes)}${stage.peak_name ? `: ${stage.peak_name}` : ""}`;
    const late = stage.peak_at > 6e5;
    found.push(shape("svg", { viewBox: `0 0 ${width} ${high}`, role: "img",
      "aria-label": `memory over the step on stage ${number}, peak ${label}` },
      shape("path", { d: path, fill: colour("activation"), "fill-opacity": 0.75 }),
      shape("rect", { x: x(0), y: y(stage.static_bytes), width: x(1e6) - x(0), height: y(0) - y(stage.static_bytes), fill: colour("static") }),
      near ? [shape("line", { x1: x(0), x2: x(1e6), y1: y(data.limit_bytes), y2: y(data.limit_bytes), stroke: colour("limit"), "stroke-dasharray": "5 4" }),
        shape("text", { x: x(0) + 4, y: y(data.limit_bytes) - 4, class: "soft" }, `limit ${bytes(data.limit_bytes)}`)] : null,
      shape("circle", { cx: x(stage.peak_at), cy: y(stage.peak_bytes), r: 4, fill: colour("limit") }),
      shape("text", { x: x(stage.peak_at) + (late ? -8 : 8), y: y(stage.peak_bytes) - 6, "text-anchor": late ? "end" : "start" }, `peak ${label}`),
      shape("text", { x: 0, y: high / 2, class: "soft" }, data.timeline.stages.length > 1 ? `stage ${number}` : "memory"),
      shape("text", { x: x(0), y: high - 4, class: "soft" }, "0"),
      shape("text", { x: x(1e6), y: high - 4, "text-anchor": "end", class: "soft" }, seconds(data.timeline.step_s))));
  });
  return node("div", {}, node("p", { class: "soft" }, "Over one step: weights, optimizer and gradients below, activations and temporary buffers above."), found);
}

function alternativesCard() {
  if (!data.alternatives.length) return null;
  const points = [...data.alternatives.map((one, place) => ({ ...one, mark: place + 1 })).filter((one) => one.step_s !== null),
    { name: "this plan", mark: "*", step_s: data.step_s, peak_bytes: data.peak_bytes, fits: true, mine: true }];
  const width = 1040, high = 320, left = 70, low = 44;
  const most = Math.max(data.limit_bytes * 1.02, ...points.map((one) => one.peak_bytes)) * 1.05, slowest = Math.min(4 * data.step_s, Math.max(...points.map((one) => one.step_s))) * 1.12;
  const x = (size) => left + size / most * (width - left - 20), y = (time) => high - low - Math.min(time, slowest) / slowest * (high - low - 14);
  const plot = shape("svg", { viewBox: `0 0 ${width} ${high}`, role: "img", "aria-label": "step time against peak memory of this plan and of known recipes; the table below has the figures" },
    shape("line", { x1: left, x2: width - 20, y1: high - low, y2: high - low, stroke: colour("line") }),
    shape("line", { x1: left, x2: left, y1: 10, y2: high - low, stroke: colour("line") }),
    shape("line", { x1: x(data.limit_bytes), x2: x(data.limit_bytes), y1: 10, y2: high - low, stroke: colour("limit"), "stroke-dasharray": "5 4" }),
    shape("text", { x: x(data.limit_bytes) - 6, y: high - low - 6, "text-anchor": "end", class: "soft" }, `limit ${bytes(data.limit_bytes)}`),
    shape("text", { x: width - 20, y: high - 10, "text-anchor": "end", class: "soft" }, "peak memory per device"),
    shape("text", { x: 0, y: 14, class: "soft" }, "step time"),
    [0.25, 0.5, 0.75, 1].map((part) => [
      shape("text", { x: left - 6, y: y(part * slowest / 1.12) + 4, "text-anchor": "end", class: "soft" }, seconds(part * slowest / 1.12)),
      shape("text", { x: x(part * most / 1.05), y: high - low + 16, "text-anchor": "middle", class: "soft" }, bytes(part * most / 1.05))]),
    points.map((one) => [shape("circle", { cx: x(one.peak_bytes), cy: y(one.step_s), r: one.mine ? 10 : 8,
      fill: one.mine ? colour("accent") : one.fits ? colour("good") : colour("bad"), stroke: colour("card") },
    shape("title", {}, `${one.name}: ${seconds(one.step_s)}, ${bytes(one.peak_bytes)}`)),
    shape("text", { x: x(one.peak_bytes), y: y(one.step_s) + 4, "text-anchor": "middle", class: "mark" }, one.step_s > slowest ? `${one.mark}\u2191` : one.mark)]));
  const rows = [["*", "this plan", right(seconds(data.step_s)), right("1.00x"), right(bytes(data.peak_bytes)), node("span", { class: "ok" }, "fits")]].concat(
    data.alternatives.map((one, place) => one.step_s === null ? ["", one.name, right(""), right(""), right(""), `not possible: ${one.why}`] :
      [place + 1, one.name, right(seconds(one.step_s)), right(`${(one.step_s / data.step_s).toFixed(2)}x`), right(bytes(one.peak_bytes)),
        node("span", { class: one.fits ? "ok" : "no" }, one.fits ? "fits" : "does not fit")]));
  return card("Against the recipes people know", plot, table(["", "recipe", right("step"), right("against this plan"), right("peak"), ""], rows, "known recipes under the same prices"));
}

function clusterCard() {
  const rows = [], moved = [];
  for (const stage of data.stages) {
    const layers = stage.layers.map(([first, end]) => end - first === 1 ? `${first}` : `${first} to ${end - 1}`).join(", ");
    const axes = stage.axes.filter((axis) => axis.size > 1).map((axis) =>
      `${axis.name} = ${axis.size}: ${axis.words}, ${axis.hops.map((hop) => `${hop.level} ${digits(hop.bandwidth / 1e9)} GB/s`).join(" then ")}`);
    rows.push([stage.number, layers, `${stage.devices} x ${stage.device}`, axes.join("; ") || "no axis", right(bytes(stage.peak_bytes)),
      right(stage.bubble_s === undefined ? "" : percent(stage.bubble_s / data.step_s))]);
    for (const one of stage.traffic)
      moved.push([data.stages.length > 1 ? stage.number : "", one.kind.replaceAll("_", "-"), one.axis, right(one.count), right(bytes(one.bytes)),
        right(one.seconds ? seconds(one.seconds) : "")]);
  }
  return card("Who works with whom", table(["stage", "layers", "devices", "mesh axes and their links", right("peak"), right("idle")], rows, "stages and their meshes"),
    moved.length ? node("details", { open: moved.length < 14 ? "" : null }, node("summary", {}, `Collectives and messages of one step (${moved.length} kinds)`),
      table(["stage", "collective", "over", right("times"), right("bytes"), right("alone takes")], moved, "communication by kind and mesh axis")) : null);
}

function tiles(states, names) {
  return states.map((state, place) => node("span", { class: `tile ${state[0]}`,
    title: `${names[place]}: ${{ S: `sharded on dim ${state.slice(2, -1)}`, R: "replicated, used by different work", I: "replicated, the same work", P: "partial sum" }[state[0]]}` }, state));
}

function layersCard() {
  if (!data.layers.length) return null;
  const detail = node("div", { "aria-live": "polite" });
  const buttons = [], chain = node("div", { class: "chain", role: "group", "aria-label": "layers of the model in order" });
  let stage = data.layers[0].stage;
  data.layers.forEach((layer, place) => {
    if (layer.stage !== stage) {
      chain.append(node("span", { class: "cut" }, `stage ${layer.stage}`));
      stage = layer.stage;
    }
    const kind = data.kinds[layer.kind];
    const button = node("button", { type: "button", "aria-pressed": "false", class: kind.recomputed ? "remat" : null,
      title: kind.recomputed ? "activation checkpointing" : null, onclick: () => show(place) }, layer.name);
    buttons.push(button);
    chain.append(button);
  });
  function show(place) {
    buttons.forEach((one, number) => one.setAttribute("aria-pressed", String(number === place)));
    const layer = data.layers[place], kind = data.kinds[layer.kind];
    const names = data.stages[layer.stage].axes.map((axis) => axis.name);
    const same = data.layers.filter((one) => one.kind === layer.kind).length;
    detail.textContent = "";
    detail.append(node("h3", {}, layer.name),
      node("p", { class: "soft" }, [same > 1 ? `${same} layers run like this one.` : "No other layer runs like this one.",
        kind.recomputed ? ` Activation checkpointing: ${kind.recomputed} values are recomputed in backward.` : "",
        kind.chunks > 1 ? ` Runs in ${kind.chunks} chunks.` : "", kind.offload.length ? ` Offloads ${kind.offload.join(", ")}.` : ""].join("")),
      table(["op", "kind", "shape", `layout over ${names.join(", ")}`, right("forward"), right("backward"), ""], kind.ops.map((op) =>
        [node("span", { class: "mono", title: op.module }, op.name), node("span", { class: "mono" }, op.target.replace(/^aten\./, "").replace(/\.default$/, "")),
          op.shape.join(" x "), tiles(op.layout, names), right(seconds(op.forward_s)), right(seconds(op.backward_s)),
          [op.collectives.join(", "), op.recomputed ? "recomputed" : ""].filter(Boolean).join("; ")]), `operators of ${layer.name}`),
      kind.weights.length ? table(["weight", right("size"), "computed with", "stored"], kind.weights.map((one) =>
        [node("span", { class: "mono", title: one.words }, one.name), right(bytes(one.bytes)), one.compute.length ? tiles(one.compute, names) : one.words, tiles(one.storage, names)]), `weights of ${layer.name}`) : "");
  }
  show(data.layers.findIndex((layer) => data.layers.filter((one) => one.kind === layer.kind).length > 1) === -1 ? 0 :
    data.layers.findIndex((layer) => data.layers.filter((one) => one.kind === layer.kind).length > 1));
  return card("The model, layer by layer", chain,
    legend([["S(d) sharded on dim d", "s"], ["R replicated, different work", "r"], ["I replicated, same work", "i"], ["P partial sum", "p"], ["activation checkpointing", "temporary"]]), detail);
}

function scheduleCard() {
  const found = data.timeline;
  if (!found) return null;
  const tone = { forward: "forward", pass: "forward", recompute: "temporary", backward: "backward", backward_input: "backward", backward_weight: "optimizer", step: "optimizer", gather: "gather", reduce: "reduce", value: "gather", gradient: "reduce" };
  const row = 34, high = found.stages.length * row + 26, box = node("div", { class: "gantt", tabindex: "0", role: "region", "aria-label": "timeline; plus and minus zoom" });
  let zoom = 1;
  const tip = node("p", { class: "soft", "aria-live": "polite" }, "Point at a span to read it. Zoom with the buttons or with + and -.");
  function words(stage, [kind, first, last, microbatch, began, over]) {
    const layers = first === null || first < 0 ? "" : first === last ? ` of ${found.names[first]}` : ` of ${found.names[Math.min(first, last)]} to ${found.names[Math.max(first, last)]}`;
    const mine = microbatch === null ? "" : `, micro-batch ${microbatch}`;
    return `stage ${stage}: ${kind.replace("_", " ")}${layers}${mine}: ${seconds((over - began) / 1e6 * found.step_s)} from ${seconds(began / 1e6 * found.step_s)}`;
  }
  function draw() {
    const width = 1040 * zoom, x = (at) => 66 + at / 1e6 * (width - 76);
    const svg = shape("svg", { viewBox: `0 0 ${width} ${high}`, style: `width:${100 * zoom}%`, role: "img",
      "aria-label": `schedule of ${found.stages.length} stages; bubble ${percent(found.bubble)}, exposed communication ${percent(found.exposed)}` });
    found.stages.forEach((stage, number) => {
      const top = number * row;
      svg.append(shape("text", { x: 0, y: top + 20 }, `stage ${number}`), shape("rect", { x: x(0), y: top + 4, width: x(1e6) - x(0), height: 16, fill: colour("idle") }));
      for (const [spans, at, tall] of [[stage.spans, 4, 16], [stage.moved, 22, 6]])
        for (const span of spans)
          svg.append(shape("rect", { x: x(span[4]), y: top + at, width: Math.max(0.5, x(span[5]) - x(span[4])), height: tall,
            fill: colour(tone[span[0]] || "optimizer"), stroke: colour("card"), "stroke-width": zoom > 3 ? 0.6 : 0.2,
            onmouseenter: () => { tip.textContent = words(number, span); } }, shape("title", {}, words(number, span))));
    });
    for (let part = 0; part <= 4 * zoom; part++)
      svg.append(shape("text", { x: x(part / (4 * zoom) * 1e6), y: high - 4, "text-anchor": part ? "middle" : "start", class: "soft" }, seconds(part / (4 * zoom) * found.step_s)));
    box.replaceChildren(svg);
  }
  function scale(factor) { zoom = Math.min(32, Math.max(1, zoom * factor)); draw(); }
  box.addEventListener("keydown", (event) => {
    if (event.key === "+" || event.key === "=") scale(2);
    if (event.key === "-") scale(0.5);
  });
  draw();
  const button = (text, factor, label) => node("button", { type: "button", "aria-label": label, onclick: () => scale(factor) }, text);
  return card("The schedule of one step", node("div", { class: "controls" }, button("+", 2, "zoom in"), button("-", 0.5, "zoom out"),
    node("span", { class: "soft" }, `bubble ${percent(found.bubble)}, exposed communication ${percent(found.exposed)}`)), box,
    legend([["forward", "forward"], ["backward", "backward"], ["optimizer, weight half", "optimizer"], ["gather or value sent", "gather"], ["reduce or gradient sent", "reduce"], ["idle", "idle"]]), tip);
}

function sourcesCard() {
  const rows = Object.entries(data.rules).filter(([, targets]) => targets.length).map(([tier, targets]) => [tier, right(targets.length), targets.join(", ")]);
  return rows.length ? card("Where the rules come from", node("details", {}, node("summary", {}, "Sharding rules by their source"), table(["source", right("ops"), "which"], rows, "rules by source"))) : null;
}

for (const part of [...recommendation(), memoryCard(), timeCard(), alternativesCard(), clusterCard(), scheduleCard(), layersCard(), sourcesCard()])
  if (part) page.append(part);
