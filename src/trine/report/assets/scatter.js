// Charts of points and lines: rooflines, Pareto fronts, sweeps. Arrow keys move between points.

function pointsBlock(block) {
  const all = [...block.points.map((point) => [point.x, point.y]), ...block.lines.flatMap((line) => line.points)];
  if (block.x_limit !== null) all.push([block.x_limit, all.length ? all[0][1] : 1]);
  if (block.y_limit !== null) all.push([all.length ? all[0][0] : 1, block.y_limit]);
  const x = axisScale(block.x_axis, ...span(all.map((pair) => pair[0]), block.x_axis), MARGIN.left, WIDTH - MARGIN.right);
  const y = axisScale(block.y_axis, ...span(all.map((pair) => pair[1]), block.y_axis), HEIGHT - MARGIN.bottom, MARGIN.top);
  const svg = chart(`${block.title}: ${block.points.length} points`);
  drawAxes(svg, block.x_axis, block.y_axis, x, y);
  drawLimits(svg, block, x, y);
  const taken = [];
  for (const line of block.lines) {
    const path = line.points.map(([a, b], i) => `${i ? "L" : "M"}${x.at(a).toFixed(1)} ${y.at(b).toFixed(1)}`).join("");
    svg.append(draw("path", { class: `line stroke-${line.colour}${line.dashed ? " dashed" : ""}`, d: path }));
    if (line.name) svg.append(lineName(line, x, y, taken));
  }
  const reading = make("p", { class: "reading", role: "status",
    text: block.points.length ? "Select a point to read it." : "" });
  drawPoints(svg, block, x, y, reading, taken);
  const names = block.legend.map(([name, role]) => [name, 1, role]);
  return figure(block, names.length ? legend(names) : null, scrolling(svg, block.title || block.y_axis.title), reading);
}

/** Return the ends of an axis around values, with a margin; an axis that starts near zero starts at zero. */
function span(values, axis) {
  const found = values.filter((value) => Number.isFinite(value) && (!axis.log || value > 0));
  const [low, high] = found.length ? [Math.min(...found), Math.max(...found)] : [0, 1];
  if (axis.log) return [low / 1.25, high * 1.25];
  const margin = (high - low || Math.abs(high) || 1) * 0.07;
  return [low >= 0 && low < 0.35 * high ? 0 : low - margin, high + margin];
}

function drawLimits(svg, block, x, y) {
  if (block.y_limit !== null) {
    const at = y.at(block.y_limit);
    svg.append(draw("line", { class: "capacity", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: at, y2: at }));
    svg.append(draw("text", { class: "label", x: WIDTH - MARGIN.right, y: at - 5, "text-anchor": "end",
      text: `${block.limit_name} ${show(block.y_limit, block.y_axis.unit)}` }));
  }
  if (block.x_limit !== null) {
    const at = x.at(block.x_limit);
    svg.append(draw("line", { class: "capacity", x1: at, x2: at, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    svg.append(draw("text", { class: "label", x: at - 5, y: MARGIN.top + 10, "text-anchor": "end",
      text: `${block.limit_name} ${show(block.x_limit, block.x_axis.unit)}` }));
  }
}

/** Return the name of a line, above the right end of it, and add its place to those that are taken. */
function lineName(line, x, y, taken) {
  const [a, b] = line.points[line.points.length - 1];
  const words = short(line.name, 50);
  const to = Math.min(x.at(a), WIDTH - MARGIN.right) - 12;
  const at = Math.max(y.at(b) - 12, 11);
  taken.push({ from: to - words.length * 6.3, to, at });
  return draw("text", { class: "label halo", x: to, y: at, "text-anchor": "end", text: words });
}

function drawPoints(svg, block, x, y, reading, taken) {
  const labels = [];
  const radius = (point) => 3.5 + 6 * Math.sqrt(point.size);
  for (const point of block.points) {
    taken.push({ from: x.at(point.x) - radius(point), to: x.at(point.x) + radius(point), at: y.at(point.y) + 4, high: radius(point) + 6 });
  }
  const marks = block.points.map((point, i) => {
    const [cx, cy] = [x.at(point.x), y.at(point.y)];
    const mark = draw("circle", {
      class: `point ${point.hollow ? "hollow stroke-" : "fill-"}${point.colour}`, cx, cy, r: radius(point),
      tabindex: i === 0 ? "0" : "-1", role: "img",
      "aria-label": `${short(point.name)}: ${show(point.x, block.x_axis.unit)}, ${show(point.y, block.y_axis.unit)}`,
    }, draw("title", { text: short(point.name, 120) }));
    if (point.label) labels.push(placeLabel(point.label, cx, cy, taken));
    return mark;
  });
  const read = (i) => {
    const point = block.points[i];
    marks.forEach((mark, j) => {
      mark.classList.toggle("selected", i === j);
      mark.setAttribute("tabindex", i === j ? "0" : "-1");
    });
    reading.replaceChildren(make("b", { text: short(point.name, 160), dir: "auto" }),
      ` ${block.x_axis.title} ${show(point.x, block.x_axis.unit)}, ${block.y_axis.title} ${show(point.y, block.y_axis.unit)}`,
      point.detail ? `; ${point.detail}` : "");
  };
  const order = block.points.map((_, i) => i).sort((a, b) => block.points[a].x - block.points[b].x);
  marks.forEach((mark, i) => {
    mark.addEventListener("pointerenter", () => read(i));
    mark.addEventListener("focus", () => read(i));
    mark.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (!move) return;
      event.preventDefault();
      marks[order[(order.indexOf(i) + move + order.length) % order.length]].focus();
    });
  });
  svg.append(draw("g", {}, marks), draw("g", {}, labels));
}

/** Return a label beside a point; null if it would cover points or other labels everywhere. */
function placeLabel(text, cx, cy, taken) {
  const words = short(text, 34);
  const width = words.length * 6.3;
  const isLeft = cx + 10 + width > WIDTH - MARGIN.right;
  const [from, to] = isLeft ? [cx - 10 - width, cx - 10] : [cx + 10, cx + 10 + width];
  for (const shift of [4, -9, 17, -22, 30, -35, 43, -48, 56]) {
    const at = cy + shift;
    if (at < MARGIN.top || at > HEIGHT - MARGIN.bottom - 2) continue;
    if (taken.some((box) => from < box.to && to > box.from && Math.abs(at - box.at) < (box.high ?? 13))) continue;
    taken.push({ from, to, at });
    const end = isLeft ? to : from;
    const isFar = Math.abs(shift - 4) > 14;
    return draw("g", {}, isFar ? draw("line", { class: "leader", x1: cx, y1: cy, x2: end, y2: at - 4 }) : null,
      draw("text", { class: "label halo", x: end, y: at, "text-anchor": isLeft ? "end" : "start", text: words }));
  }
  return null;
}
