function alternativesCard() {
  if (!data.alternatives.length) return null;
  const rows = [node("tr", { class: "mine" }, cell("td", node("span", { class: "badge mine" }, "★")), cell("td", "this plan"), cell("td", right(seconds(data.step_s))),
    cell("td", right("1.00×")), cell("td", right(bytes(data.peak_bytes))), cell("td", node("span", { class: "ok" }, "fits")))];
  data.alternatives.forEach((one, place) => rows.push(one.step_s === null ?
    ["", one.name, right("–"), right(""), right("–"), node("span", { class: "soft" }, one.why)] :
    [node("span", { class: `badge ${one.fits ? "good" : "bad"}` }, place + 1), one.name, right(seconds(one.step_s)),
      right(`${(one.step_s / data.step_s).toFixed(2)}×`), right(bytes(one.peak_bytes)),
      node("span", { class: one.fits ? "ok" : "no" }, one.fits ? "fits" : "does not fit")]));
  return card("Against the recipes people know", "Priced as this plan is, each in as many micro-batches as suit it, activations kept unless its name says otherwise. Lower left is better.",
    chart(alternativesPlot()), table(["", "recipe", right("step"), right("against this plan"), right("peak memory"), ""], rows, "known recipes under the same prices"));
}

function alternativesPlot() {
  const others = data.alternatives.map((one, place) => ({ ...one, mark: place + 1 })).filter((one) => one.step_s !== null);
  const points = [...others, ...(data.against || []).map((one) => ({ ...one, mark: "≠", fits: one.peak_bytes <= data.limit_bytes })),
    { name: "this plan", mark: "★", step_s: data.step_s, peak_bytes: data.peak_bytes, fits: true, mine: true }];
  const width = 1080, high = 330, left = 76, low = 46, top = 16;
  const most = Math.max(1.2 * data.limit_bytes, Math.min(2.6 * data.limit_bytes, ...[Math.max(...points.map((one) => one.peak_bytes)) * 1.06]));
  const slowest = Math.min(3 * data.step_s, Math.max(...points.map((one) => one.step_s))) * 1.1;
  const fastest = Math.min(...points.map((one) => one.step_s)) * (slowest > 1.6 * data.step_s ? 0.6 : 0.85);
  const x = (size) => left + Math.min(size, most) / most * (width - left - 24);
  const y = (time) => top + (1 - (Math.min(time, slowest) - fastest) / (slowest - fastest)) * (high - low - top);
  const inside = points.filter((one) => one.peak_bytes <= most && one.step_s <= slowest), outside = points.length - inside.length;
  if (inside.length < 2) return null;
  const bottom = high - low, ticks = [0.25, 0.5, 0.75, 1];
  const frontier = points.filter((one) => one.fits).sort((a, b) => a.peak_bytes - b.peak_bytes)
    .reduce((kept, one) => !kept.length || one.step_s < kept[kept.length - 1].step_s ? [...kept, one] : kept, []);
  return shape("svg", { viewBox: `0 0 ${width} ${high}`, role: "img",
    "aria-label": "step time against peak memory of this plan and of known recipes; the table below has the figures" },
  shape("rect", { x: x(data.limit_bytes), y: top, width: Math.max(0, width - 24 - x(data.limit_bytes)), height: bottom - top, fill: colour("bad"), "fill-opacity": 0.06 }),
  ticks.map((part) => {
    const time = fastest + part * (slowest - fastest) / 1.1, size = part * most / 1.06;
    return [shape("line", { x1: left, x2: width - 24, y1: y(time), y2: y(time), stroke: colour("line") }),
      shape("text", { x: left - 8, y: y(time) + 4, "text-anchor": "end", class: "soft tick" }, seconds(time)),
      shape("text", { x: x(size), y: bottom + 17, "text-anchor": "middle", class: "soft tick" }, bytes(size))];
  }),
  shape("line", { x1: left, x2: width - 24, y1: bottom, y2: bottom, stroke: colour("soft") }),
  shape("line", { x1: x(data.limit_bytes), x2: x(data.limit_bytes), y1: top, y2: bottom, stroke: colour("limit"), "stroke-dasharray": "5 4" }),
  shape("text", { x: x(data.limit_bytes) - 6, y: bottom - 8, "text-anchor": "end", class: "soft" }, `limit ${bytes(data.limit_bytes)}`),
  shape("text", { x: width - 24, y: high - 6, "text-anchor": "end", class: "soft" }, "peak memory per device →"),
  shape("text", { x: 0, y: 11, class: "soft" }, "↑ step time"),
  frontier.length > 1 ? shape("polyline", { points: frontier.map((one) => `${x(one.peak_bytes)},${y(one.step_s)}`).join(" "), fill: "none", stroke: colour("accent"), "stroke-opacity": 0.5, "stroke-width": 2 }) : null,
  outside ? shape("text", { x: width - 24, y: 11, "text-anchor": "end", class: "soft" }, `${plural(outside, "recipe")} beyond the edges, in the table`) : null,
  spread(inside.map((one) => ({ ...one, x: x(one.peak_bytes), y: y(one.step_s) })), { left, right: width - 24, top, bottom }).map((one) => [
    one.moved ? shape("line", { x1: one.x, y1: one.y, x2: one.at[0], y2: one.at[1], stroke: colour("soft"), "stroke-opacity": 0.6 }) : null,
    one.moved ? shape("circle", { cx: one.x, cy: one.y, r: 4, fill: tone(one) }) : null,
    shape("g", { class: "spot" }, shape("title", {}, one.titles.join("\n")),
      shape("rect", { x: one.at[0] - one.half, y: one.at[1] - one.high, width: 2 * one.half, height: 2 * one.high, rx: one.high, fill: tone(one), stroke: colour("card"), "stroke-width": 2 }),
      shape("text", { x: one.at[0], y: one.at[1] + 4, "text-anchor": "middle", class: "mark" }, one.text))]));
}

function tone(one) { return colour(one.mine ? "accent" : one.fits ? "good" : "bad"); }

// Points on one spot share a mark; marks that would cover another are set aside, a line leads to their point.
function spread(points, box) {
  const groups = [];
  for (const one of points) {
    const title = `${one.name}: ${seconds(one.step_s)}, ${bytes(one.peak_bytes)}`;
    const same = groups.find((other) => !one.mine && other.fits === one.fits && Math.hypot(other.x - one.x, other.y - one.y) < 4);
    if (same) { same.text += `, ${one.mark}`; same.titles.push(title); }
    else groups.push({ ...one, text: String(one.mark), titles: [title] });
  }
  groups.sort((a, b) => Boolean(b.mine) - Boolean(a.mine));
  for (const one of groups) Object.assign(one, { half: one.mine ? 12 : Math.max(10, 5 + 3.3 * one.text.length), high: one.mine ? 12 : 10 });
  const placed = [], covers = (one, at, other, half, high, spot) => other !== one &&
    Math.abs(at[0] - spot[0]) < one.half + half + 1 && Math.abs(at[1] - spot[1]) < one.high + high + 1;
  for (const one of groups) {
    const free = ([across, down]) => across - one.half >= box.left && across + one.half <= box.right && down - one.high >= box.top &&
      down + one.high <= box.bottom && !placed.some((other) => covers(one, [across, down], other, other.half, other.high, other.at));
    const clear = (at) => free(at) && !groups.some((other) => covers(one, at, other, 4, 4, [other.x, other.y]));
    const rings = [...Array(72).keys()].map((step) => [26 + 12 * Math.floor(step / 12), (step % 12) * Math.PI / 6])
      .map(([far, angle]) => [one.x + far * Math.cos(angle), one.y - far * Math.sin(angle)]);
    const here = [one.x, one.y], stays = !placed.some((other) => covers(one, here, other, other.half, other.high, other.at));
    one.at = stays ? here : rings.find(clear) || rings.find(free) || here;
    one.moved = one.at !== here;
    placed.push(one);
  }
  return groups.reverse();
}
