// A cluster as kinds of device joined by tiers of links, and shares over time as a heat map.

/** Width of a cluster's drawing, which scrolls on narrow screens. */
const DRAWING = 860;

function clusterBlock(block) {
  const places = levels(block.tiers);
  const at = devicePlaces(block.tiers, places);
  const height = Math.max(...Object.values(at).map(([, y]) => y), 0) + 34;
  const svg = draw("svg", { class: "chart wide", viewBox: `0 0 ${DRAWING} ${height}`, role: "img",
    "aria-label": block.tiers.map((tier) => `${tier.name} ${show(tier.utilisation, "share")}`).join(", ") });
  for (const tier of block.tiers) svg.append(tierLine(tier, at));
  for (const tier of block.tiers) svg.append(tierName(tier, at));
  for (const name of Object.keys(at)) svg.append(...deviceBox(name, block.counts[name], at[name]));
  return figure(block, scrolling(svg, block.title), tierTable(block.tiers));
}

function tierTable(tiers) {
  return tableBlock({
    kind: "table", title: "", note: "", marked: [], dimmed: [], max_rows: 12,
    columns: [
      { name: "tier", unit: "" }, { name: "links in use", unit: "count" }, { name: "of each", unit: "bytes/s" },
      { name: "bytes on busiest", unit: "bytes" }, { name: "utilisation", unit: "share" }, { name: "busiest link", unit: "" },
    ],
    rows: tiers.map((tier) => [tier.name, tier.links, tier.bytes_per_s, tier.size_bytes, tier.utilisation, tier.busiest]),
  });
}

/** Return the place of each kind of device: its level from the left, beside the devices that it is joined to. */
function devicePlaces(tiers, places) {
  const depth = Math.max(0, ...Object.values(places));
  const step = depth ? Math.min(230, (DRAWING - 150) / depth) : 0;
  const row = {};
  const at = {};
  const joined = (name) => tiers.flatMap((tier) => (tier.target === name ? [tier.source] : tier.source === name ? [tier.target] : []));
  for (let level = 0; level <= depth; level++) {
    const names = Object.keys(places).filter((name) => places[name] === level);
    const parent = (name) => Math.min(...joined(name).filter((other) => places[other] < level).map((other) => row[other]), 99);
    names.sort((a, b) => parent(a) - parent(b) || (a < b ? -1 : 1));
    let next = 0;
    for (const name of names) {
      row[name] = level ? Math.max(next, parent(name) === 99 ? 0 : parent(name)) : next;
      next = row[name] + 1;
      at[name] = [80 + level * step, 30 + row[name] * 62];
    }
  }
  return at;
}

/** Return the level of each kind of device: GPUs at the bottom, each tier one level up where it can be. */
function levels(tiers) {
  const names = [...new Set(tiers.flatMap((tier) => [tier.source, tier.target]))];
  const found = {};
  const start = names.find((name) => name === "gpu") ?? names[0];
  if (start === undefined) return found;
  found[start] = 0;
  for (let round = 0; round < names.length; round++) {
    for (const tier of tiers) {
      if (tier.source in found && !(tier.target in found)) found[tier.target] = found[tier.source] + 1;
      if (tier.target in found && !(tier.source in found)) found[tier.source] = found[tier.target] + 1;
    }
    for (const name of names) if (round === names.length - 1 && !(name in found)) found[name] = 0;
  }
  return found;
}

function tierLine(tier, at) {
  const [from, to] = [at[tier.source], at[tier.target]];
  const width = (1.5 + 10 * tier.utilisation).toFixed(1);
  if (tier.source !== tier.target) {
    return draw("line", { class: "tier", x1: from[0], y1: from[1], x2: to[0], y2: to[1], "stroke-width": width });
  }
  return draw("path", { class: "tier", d: `M${from[0] + 24} ${from[1] - 8}c46 -22 46 38 0 16`, "stroke-width": width });
}

function tierName(tier, at) {
  const [from, to] = [at[tier.source], at[tier.target]];
  const x = tier.source === tier.target ? from[0] + 66 : (from[0] + to[0]) / 2;
  return draw("text", { class: "label halo", x, y: (from[1] + to[1]) / 2 - 7,
    "text-anchor": tier.source === tier.target ? "start" : "middle", text: show(tier.utilisation, "share") });
}

function deviceBox(name, count, [x, y]) {
  const words = count ? `${count.toLocaleString("en-US")} × ${name}` : name;
  const width = words.length * 7.4 + 22;
  return [
    draw("rect", { class: "device", x: x - width / 2, y: y - 14, width, height: 28, rx: 5 }),
    draw("text", { class: "name", x, y: y + 4.5, "text-anchor": "middle", text: words }),
  ];
}

// Heat maps

function heatBlock(block) {
  const values = unpack(block.values);
  const bins = block.values.shape[1];
  const [left, row, top] = [NARROW.matches ? 100 : 170, 18, 4];
  const largest = values.reduce((most, value) => Math.max(most, value), 0);
  const width = WIDTH - left - 60;
  const height = block.names.length * row + top + 40;
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${height}`, role: "img",
    "aria-label": `${block.title}: ${block.names.length} rows` });
  block.names.forEach((name, i) => {
    const y = top + i * row;
    svg.append(draw("text", { class: "tick", x: left - 8, y: y + 13, "text-anchor": "end", text: short(name, NARROW.matches ? 14 : 26) },
      draw("title", { text: name })));
    svg.append(draw("rect", { class: "empty", x: left, y: y + 2, width, height: row - 3 }));
    let mean = 0;
    for (let bin = 0; bin < bins; bin++) {
      const value = values[i * bins + bin];
      mean += value / bins;
      if (value < 0.005 * largest) continue;
      svg.append(draw("rect", { class: "heat", x: (left + (bin * width) / bins).toFixed(2), y: y + 2,
        width: (width / bins + 0.3).toFixed(2), height: row - 3, "fill-opacity": (0.15 + (0.85 * value) / largest).toFixed(2) }));
    }
    svg.append(draw("text", { class: "tick", x: WIDTH - 4, y: y + 13, "text-anchor": "end", text: show(mean, "share") }));
  });
  const labels = ticks(0, block.length_s, NARROW.matches ? 4 : 6);
  const texts = tickTexts({ unit: "s", log: false }, labels);
  labels.forEach((label, i) => svg.append(draw("text", { class: "tick", x: left + (label / block.length_s) * width,
    y: height - 22, "text-anchor": "middle", text: texts.texts[i] })));
  svg.append(draw("text", { class: "axis", x: left + width / 2, y: height - 4, "text-anchor": "middle",
    text: `time in the step (${texts.words})` }));
  svg.append(draw("text", { class: "tick", x: WIDTH - 4, y: height - 22, "text-anchor": "end", text: "mean" }));
  svg.append(draw("text", { class: "tick", x: 0, y: height - 4, text: `darkest: ${show(largest, "share")}` }));
  return figure(block, scrolling(svg, block.title));
}
