const SPAN_TONES = { forward: "forward", pass: "forward", recompute: "temporary", backward: "backward", backward_input: "backward",
  backward_weight: "weight", step: "optimizer", gather: "gather", reduce: "reduce", value: "gather", gradient: "reduce" };

function scheduleCard() {
  const found = data.timeline;
  if (!found) return null;
  const row = found.stages.length > 24 ? 22 : 36, bar = row - 16, high = found.stages.length * row + 26, left = 66;
  const box = node("div", { class: "gantt", tabindex: "0", role: "region", "aria-label": "timeline of one step; plus and minus zoom, arrows move" });
  const tip = node("p", { class: "soft tip", "aria-live": "polite" }, "Point at a span to read it. Zoom with the buttons or with + and −.");
  let zoom = 1;
  function words(stage, [number, first, last, microbatch, began, lasts]) {
    const kind = found.kinds[number] || "other";
    const named = (place) => found.names[place];
    const layers = first === null || first < 0 ? "" : first === last ? ` of ${named(first)}` : ` of ${named(Math.min(first, last))} to ${named(Math.max(first, last))}`;
    const mine = microbatch === null ? "" : `, micro-batch ${microbatch}`;
    return `stage ${stage}: ${kind.replace("_", " ")}${layers}${mine}: ${seconds(lasts / 1e6 * found.step_s)} from ${seconds(began / 1e6 * found.step_s)}`;
  }
  function draw() {
    const width = 1080 * zoom, x = (at) => left + at / 1e6 * (width - left - 10), parts = 4 * zoom;
    const svg = shape("svg", { viewBox: `0 0 ${width} ${high}`, style: `width:${100 * zoom}%`, role: "img",
      "aria-label": `schedule of ${plural(found.stages.length, "stage")}; bubble ${percent(found.bubble)}, exposed communication ${percent(found.exposed)}` });
    found.stages.forEach((stage, number) => {
      const top = number * row;
      svg.append(shape("text", { x: 0, y: top + bar, class: "soft" }, `stage ${number}`),
        shape("rect", { x: x(0), y: top + 4, width: x(1e6) - x(0), height: bar, fill: colour("idle"), rx: 2 }));
      for (const [spans, at, tall] of [[stage.spans, 4, bar], [stage.moved, bar + 6, 5]])
        for (const span of spans)
          svg.append(shape("rect", { x: x(span[4]).toFixed(2), y: top + at, width: Math.max(0.6, x(span[4] + span[5]) - x(span[4])).toFixed(2), height: tall,
            fill: colour(SPAN_TONES[found.kinds[span[0]]] || "wait"), stroke: colour("card"), "stroke-width": zoom > 3 ? 0.8 : 0.3 },
          shape("title", {}, words(number, span))));
    });
    for (let part = 0; part <= parts; part++)
      svg.append(shape("text", { x: x(part / parts * 1e6), y: high - 5, "text-anchor": part === parts ? "end" : part ? "middle" : "start", class: "soft tick" }, seconds(part / parts * found.step_s)));
    svg.addEventListener("mouseover", (event) => {
      const title = event.target.querySelector && event.target.querySelector("title");
      if (title) tip.textContent = title.textContent;
    });
    box.replaceChildren(svg);
  }
  function scale(factor) {
    const middle = (box.scrollLeft + box.clientWidth / 2) / zoom;
    zoom = Math.min(32, Math.max(1, zoom * factor));
    draw();
    box.scrollLeft = middle * zoom - box.clientWidth / 2;
  }
  box.addEventListener("keydown", (event) => {
    if (event.key === "+" || event.key === "=") scale(2);
    if (event.key === "-") scale(0.5);
  });
  draw();
  const button = (text, factor, label) => node("button", { type: "button", "aria-label": label, onclick: () => scale(factor) }, text);
  const host = data.time.find((row) => row.name === "waiting for kernel launches");
  const waits = host ? `, waiting for kernel launches ${percent(host.seconds / data.step_s)}` : "";
  return card("The schedule of one step", `Bubble ${percent(found.bubble)}, exposed communication ${percent(found.exposed)}${waits} of all devices' time. Thick: compute; thin: communication.`,
    node("div", { class: "controls" }, button("+", 2, "zoom in"), button("−", 0.5, "zoom out"), tip), box,
    legend([["forward", "forward"], ["backward", "backward"], ["weight half of backward", "weight"], ["recompute", "temporary"], ["optimizer", "optimizer"],
      ["gather, or activations sent", "gather"], ["reduce, or gradients sent", "reduce"], ["idle", "idle"]]));
}
