// The timeline: a canvas with zoom, pan and search. A selected span or wait shows its cause and the path back.

const TRACK = 20;
const HEAD = 24;
const AXIS = 22;
const NAMES = 112;
const MAX_CHAIN = 40;
const MAX_SUMS = 12;

function timelineBlock(block) {
  return new TimelineView(block).element;
}

class TimelineView {
  constructor(block) {
    this.block = block;
    this.spans = unpackSpans(block);
    this.view = { from: 0, to: block.length };
    this.selected = null;
    this.chain = [];
    this.area = null;
    this.found = null;
    this.isPathShown = true;
    this.layOut();
    this.buildElement();
    this.readColours();
    this.listen();
    this.showSelected();
    this.readAddress();
  }

  // Layout

  /** Place each track below its rank's name. */
  layOut() {
    this.rows = [];
    let y = 0;
    this.block.groups.forEach((group, place) => {
      this.rows.push({ y, group });
      y += HEAD;
      for (const track of this.spans.tracks) {
        if (track.group !== place) continue;
        this.rows.push({ y, track });
        track.y = y;
        y += TRACK;
      }
      y += 6;
    });
    this.total = y;
  }

  buildElement() {
    const roles = this.block.colours.map((role, code) => ({ role, words: this.block.legend[code] || role, code }))
      .filter(({ code }) => this.spans.colour.includes(code));
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.spacer = make("div", { class: "spacer" }, this.canvas);
    this.port = make("div", { class: "port", tabindex: "0", role: "application",
      "aria-label": "Timeline. Arrow keys move and zoom, n and p select the next and previous span, b goes to the cause, m sums up what is visible." },
    this.spacer);
    this.search = make("input", { type: "search", placeholder: "Search operators, layers", "aria-label": "Search spans" });
    this.result = make("span", { class: "quiet", role: "status" });
    this.range = make("span", { class: "quiet number" });
    this.details = make("div", { class: "details", "aria-live": "polite" });
    const button = (text, label, click) => make("button", { type: "button", "aria-label": label, title: label, click, text });
    this.pathButton = make("button", { type: "button", "aria-pressed": "true", text: "Critical path", click: () => {
      this.isPathShown = !this.isPathShown;
      this.pathButton.setAttribute("aria-pressed", String(this.isPathShown));
      this.redraw();
    } });
    const repeats = this.block.repeats.reduce((sum, repeat) => sum + repeat.count, 0);
    this.repeatButton = repeats === 0 ? null : make("button", { type: "button", "aria-pressed": "false",
      text: `Expand ${repeats.toLocaleString("en-US")} periods`, click: () => this.toggleRepeats() });
    const controls = make("div", { class: "controls screen" },
      button("–", "Zoom out", () => this.zoom(1.6)), button("+", "Zoom in", () => this.zoom(1 / 1.6)),
      button("All", "Show the whole step", () => this.show(0, this.block.length)),
      this.pathButton, this.repeatButton, this.search, this.result, this.range);
    const names = make("ul", { class: "legend" }, roles.map(({ role, words }) => make("li", {}, swatch(role), make("span", { text: words }))),
      make("li", {}, make("span", { class: "swatch path", "aria-hidden": "true" }), make("span", { text: "critical path" })));
    this.element = figure(this.block, controls, names, this.port, this.details);
    this.port.style.height = Math.min(this.total + AXIS + 2, 560) + "px";
    this.spacer.style.height = this.total + AXIS + "px";
  }

  readColours() {
    this.colours = this.block.colours.map((role) => colour(role));
    const read = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    this.ink = { text: read("--ink"), quiet: read("--quiet"), line: read("--line"), back: read("--paper"), row: read("--row"),
      path: read("--path"), select: read("--select"), onDark: read("--on-colour") };
  }

  listen() {
    const port = this.port;
    port.addEventListener("scroll", () => this.redraw());
    port.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    port.addEventListener("pointerdown", (event) => this.onPress(event));
    port.addEventListener("keydown", (event) => this.onKey(event));
    this.search.addEventListener("input", () => this.onSearch());
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.selectMatch(event.shiftKey ? -1 : 1);
    });
    addEventListener("sectionchange", () => this.redraw());
    addEventListener("viewchange", () => this.readAddress());
    addEventListener("themechange", () => {
      this.readColours();
      this.redraw();
    });
    addEventListener("printing", () => {
      this.readColours();
      this.paint();
    });
    new ResizeObserver(() => this.redraw()).observe(port);
  }

  // Drawing

  redraw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      this.paint();
    });
    this.writeAddressSoon();
  }

  // The view in the page's address: times and the selected span, so that a copied address opens the same view

  readAddress() {
    const state = viewOf(addressedView(), this.block.length);
    if (state === null || state.words === this.written) return;
    if (state.isExpanded !== this.spans.isExpanded && this.repeatButton) this.toggleRepeats();
    if (state.find !== this.search.value) {
      this.search.value = state.find;
      this.onSearch();
    }
    this.show(state.from, state.to);
    this.select(state.span >= 0 && state.span < this.spans.start.length ? { span: state.span } : null);
    if (this.selected) this.port.scrollTop = trackOf(this.spans, state.span).y - this.port.clientHeight / 2;
  }

  writeAddressSoon() {
    clearTimeout(this.writing);
    this.writing = setTimeout(() => this.writeAddress(), 300);
  }

  writeAddress() {
    const section = this.element.closest("section");
    const isFirst = section?.querySelector(".port") === this.port;
    const isWhole = this.view.from === 0 && this.view.to === this.block.length;
    const isTouched = !isWhole || this.selected?.span >= 0 || this.search.value || this.written;
    if (!isFirst || !isTouched || addressedSection(section.id) !== section.id) return;
    this.written = viewWords(this.view, this.selected?.span ?? -1, this.spans.isExpanded, this.search.value.trim());
    history.replaceState(null, "", `#${section.id}?${this.written}`);
  }

  get namesWidth() {
    return this.port.clientWidth < 560 ? 88 : NAMES;
  }

  paint() {
    const [width, height] = [this.port.clientWidth, this.port.clientHeight];
    if (!width || !height) return;
    const ratio = Math.min(devicePixelRatio || 1, 2);
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = width + "px";
      this.canvas.style.height = height + "px";
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = this.ink.back;
    pen.fillRect(0, 0, width, height);
    const left = this.namesWidth;
    this.scale = (width - left) / (this.view.to - this.view.from);
    pen.save();
    pen.translate(0, AXIS - this.port.scrollTop);
    const [top, bottom] = [this.port.scrollTop - AXIS, this.port.scrollTop + height];
    const shown = this.rows.filter((row) => row.y + HEAD > top && row.y < bottom);
    this.paintNames(pen, shown, left);
    pen.beginPath();
    pen.rect(left, top + AXIS, width - left, height);
    pen.clip();
    for (const row of shown) if (row.track) this.paintTrack(pen, row.track, left, width);
    this.paintRepeats(pen, left, width, top, bottom);
    this.paintChain(pen, left);
    this.paintArea(pen, left);
    pen.restore();
    this.paintAxis(pen, left, width);
    this.range.textContent = `${this.time(this.view.from)} to ${this.time(this.view.to)}`;
  }

  time(units) {
    return show((units * this.block.unit_ps) / 1e12, "s");
  }

  paintNames(pen, rows, left) {
    pen.textBaseline = "middle";
    for (const { y, group, track } of rows) {
      if (group) {
        pen.font = "600 12px system-ui, sans-serif";
        pen.fillStyle = this.ink.text;
        const name = short(group.name, 24);
        pen.fillText(name, 6, y + HEAD / 2);
        const end = 6 + pen.measureText(name).width + 8;
        pen.font = "12px system-ui, sans-serif";
        pen.fillStyle = this.ink.quiet;
        pen.fillText(group.note, end, y + HEAD / 2);
      } else {
        pen.font = "11px system-ui, sans-serif";
        pen.fillStyle = this.ink.quiet;
        const indent = left < 100 ? 6 : 14;
        pen.fillText(short(track.name, 18), indent, y + TRACK / 2, left - indent - 6);
      }
    }
  }

  /** Draw the spans of a track. Of spans within one pixel only the first is drawn. */
  paintTrack(pen, track, left, width) {
    const { start, duration, colour: code, critical, name } = this.spans;
    const { from, to } = this.view;
    const scale = this.scale;
    const y = track.y + 2;
    const high = TRACK - 5;
    pen.fillStyle = this.ink.row;
    pen.fillRect(left, y, width - left, high);
    const first = Math.max(track.first, lowerBound(start, track.first, track.end, from) - 1);
    let lastPixel = -1;
    let lastPath = -1;
    const path = [];
    const labels = [];
    const bars = this.block.colours.map(() => []);
    const dimmed = this.block.colours.map(() => []);
    for (let i = first; i < track.end && start[i] < to; i++) {
      const x = left + (start[i] - from) * scale;
      const long = duration[i] * scale;
      const end = x + long;
      if (end < left) continue;
      if (critical[i] && this.isPathShown && end - lastPath > 1) {
        path.push(x, Math.max(long, 1));
        lastPath = end;
      }
      if (long < 1 && Math.floor(x) === lastPixel) continue;
      lastPixel = Math.floor(end - 0.01);
      const isDim = this.found !== null && !this.found[i];
      (isDim ? dimmed : bars)[code[i]].push(x, Math.max(long > 4 ? long - 0.5 : long, 0.8));
      if (long > 44) labels.push(i);
    }
    this.paintBars(pen, dimmed, y, high, 0.18);
    this.paintBars(pen, bars, y, high, 1);
    pen.fillStyle = this.ink.path;
    for (let i = 0; i < path.length; i += 2) pen.fillRect(path[i], y + high, path[i + 1], 2);
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = this.ink.onDark;
    for (const i of labels) {
      const x = Math.max(left + (start[i] - from) * scale, left);
      const end = Math.min(left + (start[i] + duration[i] - from) * scale, width);
      const room = Math.floor((end - x - 6) / 6.2);
      if (room > 3) pen.fillText(short(this.block.names[name[i]], room), x + 4, y + high / 2 + 0.5);
    }
  }

  /** Fill bars (x and width in turn) of each colour: one change of colour for all of them. */
  paintBars(pen, bars, y, high, alpha) {
    pen.globalAlpha = alpha;
    bars.forEach((pairs, code) => {
      if (pairs.length) pen.fillStyle = this.colours[code];
      for (let i = 0; i < pairs.length; i += 2) pen.fillRect(pairs[i], y, pairs[i + 1], high);
    });
    pen.globalAlpha = 1;
  }

  /** Mark the time in which folded periods repeat. */
  paintRepeats(pen, left, width, top, bottom) {
    if (this.spans.isExpanded) return;
    for (const { start, end, count } of this.block.repeats) {
      const x = left + (end - this.view.from) * this.scale;
      const long = count * (end - start) * this.scale;
      if (x > width || x + long < left) continue;
      const [a, b] = [Math.max(x, left), Math.min(x + long, width)];
      pen.save();
      pen.beginPath();
      pen.rect(a, top, b - a, bottom - top);
      pen.clip();
      pen.globalAlpha = 0.5;
      pen.strokeStyle = this.ink.line;
      for (let at = a - (a % 9) - (bottom - top); at < b; at += 9) {
        pen.beginPath();
        pen.moveTo(at, bottom);
        pen.lineTo(at + (bottom - top), top);
        pen.stroke();
      }
      pen.globalAlpha = 1;
      const words = `${count.toLocaleString("en-US")} × ${this.time(end - start)} like the period before: click to expand`;
      pen.font = "12px system-ui, sans-serif";
      const room = Math.min(pen.measureText(words).width + 16, b - a);
      const middle = Math.max(top, 0) + Math.min(this.total, bottom - Math.max(top, 0)) / 2;
      pen.fillStyle = this.ink.back;
      pen.fillRect((a + b - room) / 2, middle - 12, room, 24);
      pen.fillStyle = this.ink.text;
      pen.textAlign = "center";
      if (b - a > 120) pen.fillText(words, (a + b) / 2, middle, b - a - 12);
      pen.textAlign = "start";
      pen.restore();
    }
  }

  /** Outline the selected span and join the spans that led to it. */
  paintChain(pen, left) {
    if (this.selected === null) return;
    const { start, duration } = this.spans;
    const at = (time) => left + (time - this.view.from) * this.scale;
    const middle = (i) => trackOf(this.spans, i).y + TRACK / 2;
    pen.strokeStyle = this.ink.select;
    pen.lineWidth = 1.5;
    let next = this.index;
    for (const i of this.chain) {
      pen.beginPath();
      pen.moveTo(at(start[next]), middle(next));
      pen.lineTo(at(start[i] + duration[i]), middle(i));
      pen.stroke();
      pen.strokeRect(at(start[i]), trackOf(this.spans, i).y + 1.5, Math.max(duration[i] * this.scale, 1.5), TRACK - 4);
      next = i;
    }
    const { span, wait, from, to } = this.selected;
    const [a, b] = span === undefined ? [from, to] : [start[span], start[span] + duration[span]];
    pen.lineWidth = 2.5;
    if (span === undefined) pen.setLineDash([4, 3]);
    pen.strokeRect(at(a), trackOf(this.spans, span ?? wait).y + 1, Math.max((b - a) * this.scale, 2), TRACK - 3);
    pen.setLineDash([]);
    pen.lineWidth = 1;
  }

  paintArea(pen, left) {
    if (this.area === null) return;
    const { from, to, top, bottom } = this.area;
    const [x, long] = [left + (from - this.view.from) * this.scale, (to - from) * this.scale];
    pen.strokeStyle = this.ink.select;
    pen.fillStyle = this.ink.select;
    pen.globalAlpha = 0.12;
    pen.fillRect(x, top, long, bottom - top);
    pen.globalAlpha = 1;
    pen.strokeRect(x, top, long, bottom - top);
  }

  paintAxis(pen, left, width) {
    pen.fillStyle = this.ink.back;
    pen.fillRect(0, 0, width, AXIS);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const second = 1e12 / this.block.unit_ps;
    const labels = ticks(this.view.from / second, this.view.to / second, Math.max(2, (width - left) / 110));
    const texts = tickTexts({ unit: "s", log: false }, labels);
    labels.forEach((label, i) => {
      const x = left + (label * second - this.view.from) * this.scale;
      if (x < left || x > width - 20) return;
      pen.fillStyle = this.ink.quiet;
      pen.fillText(`${texts.texts[i]} ${texts.words}`, x + 4, AXIS / 2);
      pen.fillRect(x, AXIS - 5, 1, 5);
    });
    pen.fillStyle = this.ink.line;
    pen.fillRect(0, AXIS - 1, width, 1);
  }

  // Moving

  show(from, to) {
    const least = Math.max(20, this.block.length * 1e-7);
    const length = Math.min(Math.max(to - from, least), this.block.length);
    const start = Math.min(Math.max(from, 0), this.block.length - length);
    this.view = { from: start, to: start + length };
    this.redraw();
  }

  zoom(factor, at = 0.5) {
    const { from, to } = this.view;
    const centre = from + (to - from) * at;
    this.show(centre - (centre - from) * factor, centre + (to - centre) * factor);
  }

  pan(share) {
    const length = this.view.to - this.view.from;
    this.show(this.view.from + share * length, this.view.to + share * length);
  }

  onWheel(event) {
    const width = this.port.clientWidth - this.namesWidth;
    const box = this.port.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(event.deltaY * 0.004), Math.max(0, (event.clientX - box.left - this.namesWidth) / width));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.pan((event.deltaX || event.deltaY) / width);
    }
  }

  /** Drag to move; a press without movement selects; a drag with Shift selects an area. */
  onPress(event) {
    if (event.button !== 0) return;
    if (event.shiftKey) {
      this.dragArea(event);
      return;
    }
    const begin = { x: event.clientX, y: event.clientY, view: { ...this.view }, top: this.port.scrollTop };
    let isDrag = false;
    const move = (moved) => {
      const dx = moved.clientX - begin.x;
      if (!isDrag && Math.abs(dx) + Math.abs(moved.clientY - begin.y) < 4) return;
      isDrag = true;
      const shift = dx / this.scale;
      this.show(begin.view.from - shift, begin.view.to - shift);
      this.port.scrollTop = begin.top - (moved.clientY - begin.y);
    };
    const stop = (last) => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", stop);
      removeEventListener("pointercancel", stop);
      if (!isDrag && last.type === "pointerup") this.selectAt(last);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", stop);
    addEventListener("pointercancel", stop);
  }

  dragArea(event) {
    const box = this.canvas.getBoundingClientRect();
    const at = (each) => ({ time: this.view.from + (each.clientX - box.left - this.namesWidth) / this.scale,
      y: each.clientY - box.top - AXIS + this.port.scrollTop });
    const begin = at(event);
    event.preventDefault();
    const move = (moved) => {
      const now = at(moved);
      this.selectArea({ from: Math.max(Math.min(begin.time, now.time), 0), to: Math.min(Math.max(begin.time, now.time), this.block.length),
        top: Math.min(begin.y, now.y), bottom: Math.max(begin.y, now.y) });
    };
    const stop = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", stop);
      removeEventListener("pointercancel", stop);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", stop);
    addEventListener("pointercancel", stop);
  }

  /** Show the sums of an area; without one, of what is visible. */
  selectArea(area) {
    this.select(null);
    const top = this.port.scrollTop;
    this.area = area ?? { ...this.view, top, bottom: top + this.port.clientHeight - AXIS };
    this.showArea();
  }

  onKey(event) {
    const actions = {
      ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15), ArrowUp: () => this.zoom(1 / 1.4),
      ArrowDown: () => this.zoom(1.4), "+": () => this.zoom(1 / 1.4), "-": () => this.zoom(1.4),
      Home: () => this.show(0, this.block.length), n: () => this.step(1), p: () => this.step(-1),
      b: () => this.goToCause(), m: () => this.selectArea(null), Enter: () => this.zoomToSelected(), "/": () => this.search.focus(),
      Escape: () => this.select(null),
    };
    // The keys of ui.perfetto.dev do the same.
    Object.assign(actions, { a: actions.ArrowLeft, d: actions.ArrowRight, w: actions.ArrowUp, s: actions.ArrowDown,
      f: actions.Enter, ".": actions.n, ",": actions.p });
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  }

  // Selecting

  /** The span of the selection: a wait belongs to the span that follows it. */
  get index() {
    return this.selected === null ? -1 : this.selected.span ?? this.selected.wait;
  }

  selectAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const time = this.view.from + (x - this.namesWidth) / this.scale;
    if (x < this.namesWidth || y < AXIS) return;
    if (!this.spans.isExpanded && this.block.repeats.some(({ start, end, count }) =>
      time > end && time < end + count * (end - start))) {
      this.toggleRepeats();
      return;
    }
    const place = y - AXIS + this.port.scrollTop;
    const row = this.rows.find((each) => each.track && place >= each.y && place < each.y + TRACK);
    this.select(row ? spanAt(this.spans, row.track, time, 2 / this.scale) : null);
  }

  select(selected) {
    this.selected = selected;
    this.area = null;
    this.chain = this.index < 0 ? [] : causesOf(this.spans, this.index, MAX_CHAIN);
    this.showSelected();
    this.redraw();
  }

  step(by) {
    if (this.index < 0) {
      const track = this.spans.tracks.find((each) => each.isCompute) ?? this.spans.tracks[0];
      if (track) this.select({ span: lowerBound(this.spans.start, track.first, track.end - 1, this.view.from) });
      return;
    }
    const track = trackOf(this.spans, this.index);
    const next = Math.min(Math.max(this.index + by, track.first), track.end - 1);
    this.select({ span: next });
    this.keepInView(next);
  }

  goToCause() {
    if (!this.chain.length) return;
    const cause = this.chain[0];
    this.select({ span: cause });
    this.keepInView(cause);
  }

  zoomToSelected() {
    if (this.index < 0) return;
    const { start, duration } = this.spans;
    const i = this.index;
    const begin = this.chain.length ? Math.min(start[i], start[this.chain[0]]) : start[i];
    const length = Math.max(start[i] + duration[i] - begin, 1);
    this.show(begin - 0.6 * length, start[i] + duration[i] + 0.6 * length);
    this.keepInView(i);
  }

  keepInView(i) {
    const { start, duration } = this.spans;
    const length = this.view.to - this.view.from;
    if (start[i] < this.view.from || start[i] + duration[i] > this.view.to) {
      this.show(start[i] + duration[i] / 2 - length / 2, start[i] + duration[i] / 2 + length / 2);
    }
    const y = trackOf(this.spans, i).y;
    if (y < this.port.scrollTop || y + TRACK > this.port.scrollTop + this.port.clientHeight - AXIS) {
      this.port.scrollTop = y - this.port.clientHeight / 2;
    }
  }

  toggleRepeats() {
    this.select(null);
    this.spans = this.spans.isExpanded ? this.spans.original : expandRepeats(this.spans);
    this.repeatButton?.setAttribute("aria-pressed", String(this.spans.isExpanded));
    this.layOut();
    this.onSearch();
    this.redraw();
  }

  onSearch() {
    const text = this.search.value.trim();
    if (!text) {
      this.found = null;
      this.result.textContent = "";
    } else {
      const { found, count, total } = matches(this.spans, this.block, text);
      this.found = found;
      const words = `${count.toLocaleString("en-US")} span${count === 1 ? "" : "s"}`;
      this.result.textContent = count ? `${words}, ${this.time(total)} together` : "no span";
    }
    this.redraw();
  }

  selectMatch(by) {
    if (this.found === null) return;
    const count = this.found.length;
    for (let step = 1; step <= count; step++) {
      const i = (this.index + by * step + 2 * count) % count;
      if (this.found[i]) {
        this.select({ span: i });
        this.keepInView(i);
        return;
      }
    }
  }

  // Details of the selection

  nameOf(i) {
    const track = trackOf(this.spans, i);
    const detail = this.spans.detail[i] >= 0 ? ` · ${this.block.details[this.spans.detail[i]]}` : "";
    return { name: this.block.names[this.spans.name[i]] + detail, place: `${this.block.groups[track.group].name}, ${track.name}` };
  }

  /** Return the word by which --zoom finds a span's operator and layer, or its collective; "" for none. */
  zoomWord(i) {
    const collective = this.block.zooms[this.spans.detail[i]];
    if (collective) return collective;
    const [name, layer] = [this.block.names[this.spans.name[i]], this.block.details[this.spans.detail[i]] ?? ""];
    if (!this.block.command || !this.block.programs.includes(this.spans.name[i])) return "";
    return /^[\w.]+$/.test(layer) ? `${name},${layer}` : name;
  }

  /** Return the command that simulates a collective or operator load by load, and the answer if it is in the report. */
  zoomBlock(word, isOperator) {
    const { command, zoomed, zoom_answer: answer } = this.block;
    const line = `${command || "trine train ..."} --zoom ${word}`;
    return make("div", { class: "zoom" },
      word === zoomed ? make("p", {}, "Load by load: ", answer, " ", make("a", { href: "#zoom", text: "Causes" })) : null,
      commandBlock({ title: isOperator ? "Simulate this operator load by load"
        : "Simulate the longest collective of this layer load by load", line }));
  }

  showArea() {
    const { from, to, top, bottom } = this.area;
    const tracks = this.rows.filter(({ y, track }) => track && y + TRACK > top && y < bottom).map(({ track }) => track);
    const sums = areaSums(this.spans, this.block, tracks, from, to);
    const longest = sums.names.slice(0, MAX_SUMS);
    const rest = sums.names.length - longest.length;
    const [times, shares] = [showColumn(longest.map(({ total }) => (total * this.block.unit_ps) / 1e12), "s"),
      (total) => `${(100 * total / ((to - from) * tracks.length)).toFixed(1)} %`];
    replaceAll(this.details,
      make("h3", { text: `Area of ${this.time(to - from)}, ${tracks.length} track${tracks.length === 1 ? "" : "s"}` }),
      make("p", { text: `${sums.count.toLocaleString("en-US")} spans, ${this.time(sums.total)} together, `
        + `${shares(sums.total)} of the area` }),
      longest.length === 0 ? null : make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ["name", "spans", `time in ${times.words}`, "of the area"]
        .map((text, i) => make("th", { scope: "col", class: i ? "number" : null, text })))),
      make("tbody", {}, longest.map(({ name, count, total }, i) => make("tr", {},
        make("td", { text: short(name, NARROW.matches ? 16 : 60), title: name, dir: "auto" }), make("td", { class: "number", text: count.toLocaleString("en-US") }),
        make("td", { class: "number", text: times.texts[i] }), make("td", { class: "number", text: shares(total) })))))),
      rest > 0 ? make("p", { class: "quiet", text: `${rest} more names` }) : null);
    this.redraw();
  }

  showSelected() {
    if (this.selected === null) {
      replaceAll(this.details, make("p", { class: "quiet screen",
        text: "Click a span, or the gap before one, to see what it waited for. Drag to move, Ctrl + wheel to zoom. "
          + "Shift + drag sums up an area, m what is visible." }));
      return;
    }
    const { start, duration, reason, critical } = this.spans;
    const i = this.index;
    const { name, place } = this.nameOf(i);
    const isWait = this.selected.span === undefined;
    const rows = [["where", place], ["start", this.time(start[i])], ["duration", this.time(duration[i])]];
    if (isWait) rows.splice(1, 2, ["wait", `${this.time(this.selected.to - this.selected.from)}, until ${this.time(this.selected.to)}`]);
    const number = this.spans.microbatch[i];
    if (number >= 0) rows.push(["micro-batch", String(number) + (this.spans.copy[i] ? ", in a period that repeats" : "")]);
    if (reason[i] >= 0) rows.push(["waited for", this.block.reasons[reason[i]]]);
    if (critical[i]) rows.push(["critical path", "yes: a shorter span shortens the step"]);
    const causes = this.chain.slice(0, 8).map((cause) => {
      const words = this.nameOf(cause);
      return make("li", {}, make("button", { type: "button", class: "link", dir: "auto",
        title: words.name.length > 70 ? words.name : null, text: short(words.name, 70),
        click: () => { this.select({ span: cause }); this.keepInView(cause); } }),
      make("span", { class: "quiet", text: ` ${words.place}, ${this.time(duration[cause])}` }));
    });
    const zoom = isWait ? "" : this.zoomWord(i);
    replaceAll(this.details,
      make("h3", { dir: "auto", text: isWait ? `Wait before ${short(name, 90)}` : short(name, 110) }),
      make("dl", { class: "rows" }, rows.flatMap(([term, text]) => [make("dt", { text: term }), make("dd", { text, dir: "auto" })])),
      causes.length ? make("div", {}, make("p", { class: "quiet", text: "Released by, back in time:" }), make("ol", {}, causes)) : null,
      zoom ? this.zoomBlock(zoom, !this.block.zooms[this.spans.detail[i]]) : null,
      make("div", { class: "screen" },
        make("button", { type: "button", disabled: !this.chain.length, click: () => this.goToCause(), text: "Go to the cause (b)" }),
        make("button", { type: "button", click: () => this.zoomToSelected(), text: "Zoom to it (Enter)" })));
  }
}
