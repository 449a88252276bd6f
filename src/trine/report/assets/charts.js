// Texts, lists, tables, bars and stacked areas.

function textBlock(block) {
  return make("div", { class: "block text" }, block.lines.map((line) => make("p", { text: line })));
}

function commandBlock(block) {
  const status = make("span", { class: "quiet", role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(block.line);
      status.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code);
      status.textContent = "selected: press Ctrl+C";
    }
  };
  const code = make("code", { text: block.line });
  return figure({ kind: "command", title: block.title },
    make("div", { class: "line" }, make("pre", { tabindex: "0", "aria-label": block.title }, code),
      make("button", { type: "button", class: "screen", click: copy, text: "Copy" })), status);
}

function itemsBlock(block) {
  const rows = block.items.map((item) => make("li", {},
    make("span", { class: "tag tag-" + item.tag.replace(/[^a-z]/g, "-"), text: item.tag }),
    make("span", { text: item.text, dir: "auto" })));
  return figure(block, make("ul", { class: "list" }, rows));
}

// Tables

function tableBlock(block) {
  const shown = block.columns.map((column, place) => {
    if (!column.unit) return null;
    const alike = block.columns.map((other, i) => (i === place || (column.scale && other.scale === column.scale) ? i : -1));
    const values = alike.filter((i) => i >= 0).flatMap((i) => block.rows.map((row) => row[i]));
    const { texts, words } = showColumn(values, column.unit);
    const first = alike.filter((i) => i >= 0).indexOf(place) * block.rows.length;
    return { texts: texts.slice(first, first + block.rows.length), words };
  });
  const marked = new Set(block.marked);
  const dimmed = new Set(block.dimmed);
  const body = make("tbody");
  let order = block.rows.map((_, row) => row);
  let isOpen = false;
  let sorted = { place: -1, isDown: false };

  const fillBody = () => {
    const rows = isOpen ? order : order.slice(0, block.max_rows);
    body.replaceChildren(...rows.map((row) => make("tr",
      { class: (marked.has(row) ? "marked " : "") + (dimmed.has(row) ? "dimmed" : "") },
      block.columns.map((column, place) => cell(block.rows[row][place], shown[place]?.texts[row], place)))));
  };
  const cell = (value, text, place) => {
    const words = text ?? (value === null ? "–" : String(value));
    const attributes = { class: text === undefined ? "" : "number", title: words.length > 60 ? words : null };
    if (place === 0) return make("th", { ...attributes, scope: "row", text: short(words), dir: "auto" });
    return make("td", { ...attributes, text: short(words, 90), dir: "auto" });
  };
  const sort = (place) => {
    sorted = { place, isDown: sorted.place === place ? !sorted.isDown : Boolean(block.columns[place].unit) };
    const sign = sorted.isDown ? -1 : 1;
    order = block.rows.map((_, row) => row).sort((a, b) => {
      const [x, y] = [block.rows[a][place], block.rows[b][place]];
      if (x === null || y === null) return (x === null) - (y === null) || a - b;
      return (x < y ? -sign : x > y ? sign : 0) || a - b;
    });
    heads.forEach((head, i) => {
      if (i === place) head.setAttribute("aria-sort", sorted.isDown ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    fillBody();
  };
  const heads = block.columns.map((column, place) => make("th",
    { scope: "col", class: column.unit ? "number" : "" },
    make("button", { type: "button", click: () => sort(place) }, column.name,
      shown[place]?.words ? make("span", { class: "unit", text: " " + shown[place].words }) : null)));
  const more = make("button", { type: "button", class: "more screen", click: () => {
    isOpen = !isOpen;
    more.textContent = isOpen ? "Show fewer" : "Show all " + block.rows.length.toLocaleString("en-US");
    fillBody();
  }, text: "Show all " + block.rows.length.toLocaleString("en-US") });
  fillBody();
  return figure(block,
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": block.title || "table" },
      make("table", {}, make("thead", {}, make("tr", {}, heads)), body)),
    block.rows.length > block.max_rows ? more : null);
}

// Bars

function barsBlock(block) {
  const totals = block.bars.map((bar) => bar.parts.reduce((sum, part) => sum + part[1], 0));
  const longest = Math.max(...totals, block.limit ?? 0, Number.MIN_VALUE);
  const texts = showColumn(totals, block.unit);
  const list = make("div", { class: "bars", role: "list" });
  let isOpen = false;
  const fillList = () => {
    const count = isOpen ? block.bars.length : Math.min(block.max_rows, block.bars.length);
    list.replaceChildren(...block.bars.slice(0, count).map((bar, row) => barRow(block, bar, row, totals, texts, longest)));
  };
  fillList();
  const more = make("button", { type: "button", class: "more screen", click: () => {
    isOpen = !isOpen;
    more.textContent = isOpen ? "Show fewer" : `Show all ${block.bars.length.toLocaleString("en-US")}`;
    fillList();
  }, text: `Show all ${block.bars.length.toLocaleString("en-US")}` });
  const limit = block.limit === null ? null : make("p", { class: "note" },
    make("span", { class: "mark", "aria-hidden": "true" }), `${block.limit_name} ${show(block.limit, block.unit)}`);
  const isStacked = block.bars.some((bar) => bar.parts.length > 1);
  return figure(block, isStacked ? legend(block.bars.flatMap((bar) => bar.parts)) : null, list, limit,
    block.bars.length > block.max_rows ? more : null);
}

/** Return the names of parts with their colours; null if there is only one. */
function legend(parts) {
  const names = new Map();
  for (const [name, value, role] of parts) if (value > 0 && name) names.set(name, role);
  if (names.size < 2) return null;
  return make("ul", { class: "legend" },
    [...names].map(([name, role]) => make("li", {}, swatch(role), make("span", { text: short(name) }))));
}

function barRow(block, bar, row, totals, texts, longest) {
  const pieces = bar.parts.filter((part) => part[1] > 0).map(([name, value, role]) => {
    const piece = make("span", { class: "piece fill-" + role, title: `${name || bar.name}: ${show(value, block.unit)}` });
    piece.style.width = (100 * value) / longest + "%";
    return piece;
  });
  if (block.limit !== null) {
    const mark = make("span", { class: "limit", "aria-hidden": "true" });
    mark.style.left = (100 * block.limit) / longest + "%";
    pieces.push(mark);
  }
  const share = block.total ? show(totals[row] / block.total, "share") : "";
  const words = bar.parts.length > 1
    ? bar.parts.map(([name, value]) => `${name} ${show(value, block.unit)}`).join(", ") : "";
  return make("div", { class: block.total ? "bar" : "bar plain", role: "listitem" },
    make("span", { class: "name", title: bar.name, dir: "auto" }, short(bar.name),
      bar.note ? make("span", { class: "quiet", text: ` ${bar.note}` }) : null),
    make("span", { class: "track", role: "img", "aria-label": words || show(totals[row], block.unit) }, pieces),
    make("span", { class: "value", text: `${texts.texts[row]} ${texts.words}`.trim() }),
    block.total ? make("span", { class: "share", text: share }) : null);
}

// Stacked areas

/** Narrow screens get narrower charts, whose texts stay readable, instead of a part of a wide one. */
const NARROW = matchMedia("(max-width: 640px)");
let WIDTH = 860;
const fitCharts = () => { WIDTH = NARROW.matches ? 380 : 860; };
fitCharts();
const HEIGHT = 300;
const MARGIN = { left: 76, right: 14, top: 14, bottom: 44 };

/** Return a scale of an axis: a function from values to pixels, and the values to label. */
function axisScale(axis, low, high, from, to) {
  if (axis.log) {
    const [a, b] = [Math.log(low), Math.log(high)];
    return {
      at: (value) => from + ((Math.log(value) - a) / (b - a || 1)) * (to - from),
      labels: axis.ticks.length ? axis.ticks : logTicks(low, high),
    };
  }
  const base = axis.unit === "bytes" ? 2 : 10;
  return {
    at: (value) => from + ((value - low) / (high - low || 1)) * (to - from),
    labels: axis.ticks.length ? axis.ticks : ticks(low, high, NARROW.matches ? 4 : 6, base),
  };
}

/** Return the texts of an axis's labels in one unit. */
function tickTexts(axis, labels) {
  if (axis.labels?.length === labels.length) return { texts: axis.labels.map((label) => short(label, 18)), words: "" };
  if (axis.log) return logTexts(axis.unit, labels);
  const largest = Math.max(...labels.map(Math.abs));
  const [factor, words] = scaleOf(largest, axis.unit);
  const step = labels.length > 1 ? Math.abs(labels[1] - labels[0]) / factor : 1;
  const decimals = step >= 1 ? 0 : Math.min(6, Math.ceil(-Math.log10(step) - 1e-9));
  return { texts: labels.map((label) => withDecimals(label / factor, decimals)), words };
}

/** Return the texts of a logarithmic axis's labels: each with its unit if all are short, else in the middle one's. */
function logTexts(unit, labels) {
  const texts = labels.map((label) => show(label, unit, 3));
  if (texts.every((text) => text.length <= 9)) return { texts, words: "" };
  const [factor, words] = scaleOf(labels[Math.floor(labels.length / 2)], unit);
  const plain = (value) => Number((value / factor).toPrecision(3)).toLocaleString("en-US", { maximumFractionDigits: 6 });
  return { texts: labels.map(plain), words };
}

/** Draw both axes with their grid into an SVG element. */
function drawAxes(svg, xAxis, yAxis, x, y) {
  const [xTexts, yTexts] = [tickTexts(xAxis, x.labels), tickTexts(yAxis, y.labels)];
  const bottom = HEIGHT - MARGIN.bottom;
  let lastEnd = -Infinity;
  x.labels.forEach((label, i) => {
    const at = x.at(label);
    const half = xTexts.texts[i].length * 3.4;
    svg.append(draw("line", { class: "grid", x1: at, x2: at, y1: MARGIN.top, y2: bottom }));
    if (at - half < lastEnd + 6) return;
    lastEnd = at + half;
    svg.append(draw("text", { class: "tick", x: at, y: bottom + 16, "text-anchor": "middle", text: xTexts.texts[i] }));
  });
  y.labels.forEach((label, i) => {
    const at = y.at(label);
    svg.append(draw("line", { class: "grid", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: at, y2: at }));
    svg.append(draw("text", { class: "tick", x: MARGIN.left - 8, y: at + 4, "text-anchor": "end", text: yTexts.texts[i] }));
  });
  const name = (axis, words) => axis.title + (words ? ` (${words})` : "");
  svg.append(draw("text", { class: "axis", x: (WIDTH + MARGIN.left) / 2, y: HEIGHT - 6, "text-anchor": "middle",
    text: name(xAxis, xTexts.words) }));
  const middle = (MARGIN.top + bottom) / 2;
  svg.append(draw("text", { class: "axis", x: 14, y: middle, "text-anchor": "middle",
    transform: `rotate(-90 14 ${middle})`, text: name(yAxis, yTexts.words) }));
}

function chart(label) {
  return draw("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
}

function scrolling(svg, label) {
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, svg);
}

function areasBlock(block) {
  const sums = block.x.map((_, i) => block.series.reduce((sum, series) => sum + series.y[i], 0));
  const peak = Math.max(...sums, Number.MIN_VALUE);
  const isLimitNear = block.limit !== null && block.limit < 3 * peak;
  const top = (isLimitNear ? Math.max(peak, block.limit) : peak) * 1.06;
  const [first, last] = [block.x[0], block.x[block.x.length - 1]];
  const x = axisScale(block.x_axis, first, last, MARGIN.left, WIDTH - MARGIN.right);
  const y = axisScale(block.y_axis, 0, top, HEIGHT - MARGIN.bottom, MARGIN.top);
  const most = show(peak, block.y_axis.unit);
  const svg = chart(`${block.title}: at most ${most}`);
  drawAxes(svg, block.x_axis, block.y_axis, x, y);
  const below = block.x.map(() => 0);
  for (const series of block.series) {
    if (!series.y.some((value) => value > 0)) continue;
    const upper = series.y.map((value, i) => below[i] + value);
    svg.append(draw("path", { class: "area fill-" + series.colour, d: stepPath(block.x, upper, below, x, y) }));
    upper.forEach((value, i) => { below[i] = value; });
  }
  if (isLimitNear) {
    const at = y.at(block.limit);
    svg.append(draw("line", { class: "capacity", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: at, y2: at }));
    svg.append(draw("text", { class: "label", x: WIDTH - MARGIN.right, y: at - 5, "text-anchor": "end",
      text: `${block.limit_name} ${show(block.limit, block.y_axis.unit)}` }));
  }
  const parts = block.series.map((series) => [series.name, Math.max(...series.y), series.colour]);
  const far = block.limit !== null && !isLimitNear
    ? make("p", { class: "note", text: `${block.limit_name} ${show(block.limit, block.y_axis.unit)}, beyond the scale.` })
    : null;
  return figure(block, legend(parts), scrolling(svg, block.title), far);
}

/** Return the outline of a step area between two rows of values. */
function stepPath(xs, upper, lower, x, y) {
  const px = xs.map((value) => x.at(value).toFixed(1));
  const go = [`M${px[0]} ${y.at(upper[0]).toFixed(1)}`];
  for (let i = 1; i < xs.length; i++) go.push(`H${px[i]}V${y.at(upper[i]).toFixed(1)}`);
  go.push(`V${y.at(lower[xs.length - 1]).toFixed(1)}`);
  for (let i = xs.length - 1; i > 0; i--) go.push(`V${y.at(lower[i - 1]).toFixed(1)}H${px[i - 1]}`);
  return go.join("") + "Z";
}
