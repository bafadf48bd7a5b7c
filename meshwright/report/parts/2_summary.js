function recommendation() {
  const tokens = data.tokens_per_s !== data.samples_per_s;
  const speed = tokens ? data.tokens_per_s : data.samples_per_s, unit = tokens ? "tokens per second" : "samples per second";
  const gap = data.gap_words;
  const used = data.peak_bytes / data.limit_bytes;
  const figure = (name, value, more, tone) => node("div", { class: `figure ${tone}` },
    node("span", { class: "soft" }, name), node("b", {}, value), node("span", { class: "soft" }, more));
  const settings = [`global batch ${data.batch}`, data.precision, data.optimizer,
    ...data.constraints.map((one) => `constraint ${one}`)];
  return node("header", {},
    node("p", { class: "eyebrow" }, `${data.title} on ${data.device} (${data.cluster}) · ${settings.join(" · ")}`),
    node("h1", {}, data.headline[0].toUpperCase() + data.headline.slice(1)),
    node("div", { class: "figures" },
      figure("Predicted step", seconds(data.step_s), gap, "time"),
      figure("Speed", digits(speed), unit + (data.mfu === null ? "" : `, MFU ${percent(data.mfu)}`), "speed"),
      figure("Peak memory", bytes(data.peak_bytes), `of ${bytes(data.limit_bytes)} per device (${percent(used)})`,
        used > 1 ? "over" : "memory")),
    node("p", { class: "soft" }, `How sure: ${data.expected_error}.${data.notes.map((one) => ` Note: ${one}.`).join("")}`),
    data.launch ? launch() : null);
}

function launch() {
  const said = node("span", { class: "soft", role: "status" });
  const copy = node("button", { type: "button", onclick: () => {
    const range = document.createRange();
    range.selectNodeContents(code);
    const chosen = window.getSelection();
    chosen.removeAllRanges();
    chosen.addRange(range);
    said.textContent = document.execCommand("copy") ? "copied" : "selected: copy it by hand";
  } }, "copy");
  const code = node("code", {}, data.launch);
  return node("div", { class: "launch" },
    node("pre", { tabindex: "0", "aria-label": "the command that runs this plan" }, code), copy, said);
}

function timeCard() {
  const rows = data.time, whole = rows.reduce((sum, row) => sum + Math.max(0, row.seconds), 0);
  const tones = { forward: "forward", backward: "backward", "weights gathered and cast, gradients reduced; not overlapped": "gather", "pipeline bubble and waiting": "wait", optimizer: "optimizer" };
  const bar = stackedBar(rows.filter((row) => row.seconds > 0).map((row) =>
    [row.name, row.seconds, tones[row.name] || "wait", seconds(row.seconds)]), whole,
  rows.map((row) => `${row.name} ${seconds(row.seconds)}`).join(", "));
  return card("Where the time goes", `Of a step of ${seconds(data.step_s)}, on the busiest device${data.overlapped_s ? `; ${seconds(data.overlapped_s)} of communication run while it computes` : ""}.`, bar,
    table(["part", right("time"), right("of the step")], rows.map((row) =>
      [node("span", {}, node("i", { class: "dot", style: `background:${colour(row.seconds < 0 ? "idle" : tones[row.name] || "wait")}` }),
        row.name), right(seconds(row.seconds)), right(percent(row.seconds / data.step_s))]), "parts of the step"));
}

function againstCard() {
  if (!data.against || !data.against.length) return null;
  return card("Against another plan", null, data.against.map((other) => node("div", {},
    table(["", "this plan", other.name], other.rows.map(([name, mine, theirs]) => node("tr", { class: mine === theirs ? "same" : null },
      cell("td", name), cell("td", mine), cell("td", theirs))), `this plan against ${other.name}`),
    folded("What they decide differently", other.differs.length < 20,
      node("pre", { tabindex: "0", "aria-label": "differences" }, other.differs.join("\n"))))));
}

function searchCard() {
  if (!data.search || !data.search.length) return null;
  return card("How it was found", "Each line is a plan that was better than those before it. Of plans whose steps hardly differ (--simpler-within) the simplest is taken.",
    table([right("after"), "found"], data.search.map(([after, text]) => [right(seconds(after)), text]), "the search, in order", true));
}

function sourcesCard() {
  const rules = Object.entries(data.rules).filter(([, targets]) => targets.length);
  return card("Where each figure comes from", "Predictions are made of these; change one and plan again.",
    folded(`Devices, links and measurements (${data.sources.length})`, false,
      table(["figure", "source"], data.sources, "sources of figures")),
    rules.length ? folded("Sharding rules of the model's operators", false, table(["source", right("ops"), "which"],
      rules.map(([tier, targets]) => [tier, right(targets.length), targets.join(", ")]), "rules by source")) : null);
}
