const MEMORY_TONES = ["static", "activation", "temporary"];

function memoryCard() {
  const full = Math.max(data.limit_bytes, data.peak_bytes), free = data.limit_bytes - data.peak_bytes;
  const bar = stackedBar(data.memory.map((part, place) => [part.name, part.bytes, MEMORY_TONES[place], bytes(part.bytes)]), full,
    `peak ${bytes(data.peak_bytes)} of ${bytes(data.limit_bytes)}`);
  const names = data.memory.map((part, place) => [`${part.name} ${bytes(part.bytes)}`, MEMORY_TONES[place]]);
  const left = free >= 0 ? [`free ${bytes(free)}`, "idle"] : [`over the limit by ${bytes(-free)}`, "limit"];
  return card("Memory at the peak", `Of the fullest device, against its limit of ${bytes(data.limit_bytes)}.`, bar,
    legend([...names, left]), memoryOverTime());
}

function memoryOverTime() {
  if (!data.timeline) return null;
  const stages = data.timeline.stages, shown = stages.slice(0, 16);
  const many = stages.length > 1;
  return node("div", { class: "curves" },
    node("p", { class: "soft about" }, "Over one step: weights and optimizer state below, activations, gradients and temporary buffers above"
      + (shown.length < stages.length ? `; the first ${shown.length} of ${stages.length} stages.` : ".")),
    shown.map((stage, number) => chart(memoryCurve(stage, number, many, many ? 92 : 170))));
}

function memoryCurve(stage, number, many, high) {
  const scale = data.timeline.unit_bytes;
  const width = 1080, left = 64, low = 18, fullest = Math.max(...data.timeline.stages.map((one) => one.peak_bytes));
  const near = data.limit_bytes < 3 * fullest, top = near ? Math.max(fullest, data.limit_bytes) * 1.16 : fullest * 1.25;
  const x = (at) => left + at / 1e6 * (width - left - 8), y = (held) => high - low - held / top * (high - low - 8);
  const curve = stage.memory.map(([at, held]) => [at, held * scale]);
  let path = `M ${x(0)} ${y(0)}`, held = curve.length ? curve[0][1] : 0;
  path += ` L ${x(0)} ${y(held)}`;
  for (const [at, size] of curve) {
    path += ` L ${x(at).toFixed(1)} ${y(held).toFixed(1)} L ${x(at).toFixed(1)} ${y(size).toFixed(1)}`;
    held = size;
  }
  path += ` L ${x(1e6)} ${y(held)} L ${x(1e6)} ${y(0)} Z`;
  const label = `${bytes(stage.peak_bytes)}${stage.peak_name ? ` in ${stage.peak_name}` : ""}`, late = stage.peak_at > 6e5;
  const limit = near ? [
    shape("line", { x1: x(0), x2: x(1e6), y1: y(data.limit_bytes), y2: y(data.limit_bytes), stroke: colour("limit"), "stroke-dasharray": "5 4" }),
    shape("text", { x: x(1e6), y: y(data.limit_bytes) - 4, "text-anchor": "end", class: "soft" }, `limit ${bytes(data.limit_bytes)}`)] : null;
  return shape("svg", { viewBox: `0 0 ${width} ${high}`, role: "img", "aria-label": `memory over the step${many ? ` on stage ${number}` : ""}, peak ${label}` },
    shape("path", { d: path, fill: colour("activation"), "fill-opacity": 0.8 }),
    shape("rect", { x: x(0), y: y(stage.static_bytes), width: x(1e6) - x(0), height: y(0) - y(stage.static_bytes), fill: colour("static") }),
    limit,
    shape("circle", { cx: x(stage.peak_at), cy: y(stage.peak_bytes), r: 4, fill: colour("limit"), stroke: colour("card") }),
    shape("text", { x: x(stage.peak_at) + (late ? -9 : 9), y: Math.max(12, y(stage.peak_bytes) - 2), "text-anchor": late ? "end" : "start", class: "halo" }, `peak ${label}`),
    shape("text", { x: 0, y: high / 2, class: "soft" }, many ? `stage ${number}` : ""),
    [0, 0.5].map((part) => shape("text", { x: left - 6, y: y(part * fullest) + 4, "text-anchor": "end", class: "soft tick" }, many && part ? "" : bytes(part * fullest))),
    shape("text", { x: x(0), y: high - 4, class: "soft tick" }, "0"),
    shape("text", { x: x(1e6), y: high - 4, "text-anchor": "end", class: "soft tick" }, seconds(data.timeline.step_s)));
}
