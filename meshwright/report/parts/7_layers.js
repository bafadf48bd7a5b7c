const STATE_WORDS = { R: "replicated, used by different work", I: "replicated, the same work", P: "partial sum" };

function tiles(states, names) {
  return states.map((state, place) => node("span", { class: `tile ${state[0]}`,
    title: `${names[place]}: ${state[0] === "S" ? `sharded on dim ${state.slice(2, -1)}` : STATE_WORDS[state[0]]}` }, state));
}

function layersCard() {
  if (!data.layers.length) return null;
  const detail = node("div", { "aria-live": "polite" }), buttons = [];
  const chain = node("div", { class: "chain", role: "group", "aria-label": "layers of the model in order" });
  const counts = data.kinds.map((_, kind) => data.layers.filter((layer) => layer.kind === kind).length);
  let stage = null;
  data.layers.forEach((layer, place) => {
    if (layer.stage !== stage && data.stages.length > 1) chain.append(node("span", { class: "cut" }, `stage ${layer.stage}`));
    stage = layer.stage;
    const again = data.kinds[layer.kind].recomputed;
    const button = node("button", { type: "button", "aria-pressed": "false", class: again ? "remat" : null, title: again ? "activation checkpointing" : null,
      onclick: () => show(place) }, layer.name);
    buttons.push(button);
    chain.append(button);
  });
  chain.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], place = buttons.indexOf(document.activeElement);
    if (step && place >= 0 && buttons[place + step]) buttons[place + step].focus();
  });
  function show(place) {
    buttons.forEach((one, number) => one.setAttribute("aria-pressed", String(number === place)));
    const layer = data.layers[place], names = data.stages[layer.stage].axes.map((axis) => axis.name);
    detail.replaceChildren(...layerDetail(layer, data.kinds[layer.kind], counts[layer.kind], names));
  }
  show(Math.max(0, data.layers.findIndex((layer) => counts[layer.kind] > 1)));
  return card("The model, layer by layer", "Press a layer to see its operators, how they are sharded, and what else they could do.", chain,
    legend([["S(d) sharded on dim d", "s"], ["R replicated, different work", "r"], ["I replicated, same work", "i"], ["P partial sum", "p"], ["activation checkpointing", "temporary"]]), detail);
}

function layerDetail(layer, kind, same, names) {
  const notes = [same > 1 ? `${same} layers run like this one.` : "No other layer runs like this one.",
    kind.recomputed ? `Activation checkpointing: ${plural(kind.recomputed, "value")} recomputed in backward.` : "",
    kind.chunks > 1 ? `Runs in ${kind.chunks} chunks.` : "", kind.offload.length ? `Offloads ${kind.offload.join(", ")}.` : ""];
  const work = kind.ops.filter((op) => op.forward_s || op.backward_s || op.collectives.length), views = kind.ops.length - work.length;
  const slowest = Math.max(1e-12, ...kind.ops.map((op) => Math.max(op.forward_s, op.backward_s)));
  const timed = (value, tone) => node("span", { class: "timed" }, node("i", { style: `width:${60 * value / slowest}px;background:${colour(tone)}` }), value ? seconds(value) : "–");
  const row = (op) => [
    op.others.length ? folded(node("span", { class: "mono", title: op.module }, op.name), false, othersOf(op)) : node("span", { class: "mono", title: op.module }, op.name),
    node("span", { class: "mono soft" }, op.target.replace(/^aten\./, "").replace(/\.default$/, "")), node("span", { class: "whole" }, op.shape.join(" × ")), tiles(op.layout, names),
    right(timed(op.forward_s, "forward")), right(timed(op.backward_s, "backward")),
    [op.collectives.join(", ").replaceAll("_", "-"), op.recomputed ? "recomputed" : ""].filter(Boolean).join("; ")];
  const head = ["operator", "kind", "shape", names.length ? `layout over ${names.join(", ")}` : "layout", right("forward"), right("backward"), ""];
  const weights = kind.weights.map((one) => [node("span", { class: "mono", title: one.words }, one.name), right(bytes(one.bytes)),
    one.compute.length ? tiles(one.compute, names) : one.words, tiles(one.storage, names)]);
  return [node("h3", {}, layer.name), node("p", { class: "soft" }, notes.filter(Boolean).join(" ")),
    table(head, work.map(row), `operators of ${layer.name}`, true),
    views ? folded(`${plural(views, "view")} and other operators that take no time`, false, table(head, kind.ops.filter((op) => !work.includes(op)).map(row), "operators without work", true)) : "",
    weights.length ? table(["weight", right("size"), "computed with", "stored"], weights, `weights of ${layer.name}`, weights.length > 16) : ""];
}

function othersOf(op) {
  return node("ul", { class: "others" }, op.others.map((one) => node("li", {}, `${signed(one.more_s, seconds)}, ${signed(one.more_bytes, bytes)}: `,
    node("span", { class: "mono" }, one.text))));
}

const page = document.getElementById("page");
page.replaceChildren(...[recommendation(), againstCard(), memoryCard(), timeCard(), alternativesCard(), clusterCard(), scheduleCard(), layersCard(), searchCard(), sourcesCard()].filter(Boolean));
