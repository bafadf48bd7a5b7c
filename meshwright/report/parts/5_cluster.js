const MOST_DRAWN = 64;

function clusterCard() {
  if (data.devices === 1) return null;
  const many = data.stages.length > 1;
  const rows = data.stages.map((stage) => [stage.number, layersOf(stage), stage.device_words, axesOf(stage) || "no axis",
    right(bytes(stage.peak_bytes)), right(stage.bubble_s === undefined ? "" : percent(stage.bubble_s / data.step_s))]);
  const head = ["stage", "layers", "devices", "mesh axes and their links", right("peak memory"), right("idle")];
  return card("Who works with whom", many ? "Stages pass activations on; within a stage the mesh axes share the work." : "The devices as a mesh; press an axis to see who talks to whom.",
    meshPicture(), many ? table(head, rows, "stages and their meshes", true) : null, trafficTable(many));
}

function layersOf(stage) {
  return stage.layers.map(([first, end]) => end - first === 1 ? `${first}` : `${first} to ${end - 1}`).join(", ");
}
function axesOf(stage) {
  return stage.axes.filter((axis) => axis.size > 1).map((axis) => `${axis.name} = ${axis.size}: ${axis.words}, ${linksOf(axis)}`).join("; ");
}
function linksOf(axis) {
  return axis.hops.map((hop) => `${hop.level} ${digits(hop.bandwidth / 1e9)} GB/s`).join(" then ");
}

// One stage's devices as tiles, the innermost axis across. An axis lights up the devices that the first one talks to along it.
function meshPicture() {
  const box = node("div", { class: "mesh" });
  const shown = data.stages.slice(0, 3);
  shown.forEach((stage) => {
    const sizes = stage.axes.map((axis) => axis.size), across = Math.min(16, sizes.length ? sizes[sizes.length - 1] : 1);
    const count = Math.min(stage.devices, MOST_DRAWN), tiles = [];
    const grid = node("div", { class: "grid", style: `grid-template-columns:repeat(${across},1fr)`, "aria-hidden": "true" });
    for (let place = 0; place < count; place++) {
      const tile = node("span", { class: "device" }, stage.first_rank + place);
      tiles.push(tile);
      grid.append(tile);
    }
    const light = (number) => {
      const stride = sizes.slice(number + 1).reduce((all, one) => all * one, 1);
      tiles.forEach((tile, place) => tile.classList.toggle("lit", place % stride === 0 && place < stride * sizes[number]));
      buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === number)));
    };
    const buttons = stage.axes.map((axis, number) => node("button", { type: "button", "aria-pressed": "false", onclick: () => light(number) },
      node("b", {}, `${axis.name} = ${axis.size}`), ` ${axis.words}`, node("span", { class: "soft" }, ` ${linksOf(axis)}`)));
    box.append(node("div", { class: "stage" },
      node("p", {}, node("b", {}, data.stages.length > 1 ? `Stage ${stage.number}` : stage.device_words),
        node("span", { class: "soft" }, data.stages.length > 1 ? ` layers ${layersOf(stage)}, ${stage.device_words}` : "")),
      grid, count < stage.devices ? node("p", { class: "soft" }, `… and ${stage.devices - count} more`) : null,
      node("div", { class: "axes" }, buttons.filter((_, number) => sizes[number] > 1))));
    if (sizes.some((size) => size > 1)) light(sizes.findIndex((size) => size > 1));
  });
  if (shown.length < data.stages.length) box.append(node("p", { class: "soft" }, `… and ${data.stages.length - shown.length} more stages, in the table`));
  return box;
}

function trafficTable(many) {
  const rows = data.stages.flatMap((stage) => stage.traffic.map((one) => [stage.number, one]));
  if (!rows.length) return null;
  const most = Math.max(...rows.map(([, one]) => one.bytes));
  return folded(`Collectives and messages of one step (${plural(rows.length, "kind")})`, rows.length < 14,
    table([...(many ? ["stage"] : []), "collective", "over", right("times"), right("bytes"), "", right("takes alone")],
      rows.map(([number, one]) => [...(many ? [number] : []), one.kind.replaceAll("_", "-"), one.axis, right(one.count.toLocaleString("en-US")), right(bytes(one.bytes)),
        node("span", { class: "meter" }, node("i", { style: `width:${100 * one.bytes / most}%` })), right(one.seconds ? seconds(one.seconds) : "")]),
      "communication by kind and mesh axis", rows.length > 30));
}
