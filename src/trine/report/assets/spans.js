// The spans of a timeline: typed arrays, their tracks, repeated periods, causes. No drawing here.

/** Return the spans of a block. Columns have one entry per span; spans are sorted by track, then by start. */
function unpackSpans(block) {
  const columns = {};
  for (const name of ["start", "duration", "name", "detail", "colour", "cause", "reason", "critical"]) {
    columns[name] = unpack(block[name]);
  }
  columns.microbatch = block.microbatch ? unpack(block.microbatch) : new Int8Array(columns.start.length).fill(-1);
  const tracks = [];
  block.groups.forEach((group, place) => group.tracks.forEach((track) => tracks.push({
    name: track.name, first: track.first, end: track.first + track.count, isCompute: track.is_compute, group: place,
  })));
  const count = columns.start.length;
  const base = new Int32Array(count).map((_, i) => i);
  return { ...columns, tracks, base, copy: new Int32Array(count), repeats: block.repeats, isExpanded: false };
}

/** Return spans in which each repeated period has its own copies. Copy k of a span is k periods later. */
function expandRepeats(spans) {
  const index = [];
  const copies = [];
  const tracks = spans.tracks.map((track) => {
    const first = index.length;
    let next = track.first;
    for (const repeat of spans.repeats) {
      const [from, to] = [lowerBound(spans.start, next, track.end, repeat.start),
        lowerBound(spans.start, next, track.end, repeat.end)];
      for (; next < to; next++) { index.push(next); copies.push(0); }
      for (let k = 1; k <= repeat.count; k++) {
        for (let i = from; i < to; i++) { index.push(i); copies.push(k * (repeat.end - repeat.start)); }
      }
    }
    for (; next < track.end; next++) { index.push(next); copies.push(0); }
    return { ...track, first, end: index.length };
  });
  const pick = (column) => column.constructor.from(index, (i) => column[i]);
  const expanded = { ...spans, tracks, isExpanded: true, base: Int32Array.from(index), copy: Float64Array.from(copies) };
  for (const name of ["duration", "name", "detail", "colour", "reason", "critical", "cause", "microbatch"]) {
    expanded[name] = pick(spans[name]);
  }
  expanded.start = Uint32Array.from(index, (i, place) => spans.start[i] + copies[place]);
  expanded.original = spans;
  return expanded;
}

/** Return the first index in [from, to) whose value is at least `wanted`; `to` if there is none. */
function lowerBound(values, from, to, wanted) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (values[middle] < wanted) from = middle + 1;
    else to = middle;
  }
  return from;
}

/** Return the track of a span. */
function trackOf(spans, index) {
  return spans.tracks.find((track) => index >= track.first && index < track.end);
}

/** Return the span that released a span, or -1. With copies: the one in the copy's own period, found by its time. */
function causeOf(spans, index) {
  const cause = spans.cause[index];
  if (!spans.isExpanded || cause < 0) return cause;
  const original = spans.original;
  let later = spans.copy[index];
  for (const repeat of spans.repeats) {
    const skipped = repeat.count * (repeat.end - repeat.start);
    const isAfter = later === 0 && original.start[spans.base[index]] >= repeat.end + skipped;
    if (isAfter && original.start[cause] >= repeat.start && original.start[cause] < repeat.end) later = skipped;
  }
  const place = original.tracks.indexOf(trackOf(original, cause));
  const track = spans.tracks[place];
  const wanted = original.start[cause] + later;
  const found = lowerBound(spans.start, track.first, track.end, wanted - 2);
  return found < track.end && Math.abs(spans.start[found] - wanted) <= 2 ? found : -1;
}

/** Return the chain of causes of a span, the nearest first. */
function causesOf(spans, index, most) {
  const chain = [];
  const seen = new Set([index]);
  for (let next = causeOf(spans, index); next >= 0 && chain.length < most && !seen.has(next); next = causeOf(spans, next)) {
    chain.push(next);
    seen.add(next);
  }
  return chain;
}

/** Return the index of the span at a time on a track, or the wait there: {span} or {wait: next span, from, to}. */
function spanAt(spans, track, time, slack) {
  let i = lowerBound(spans.start, track.first, track.end, time + slack) - 1;
  if (i >= track.first && time <= spans.start[i] + spans.duration[i] + slack) return { span: i };
  i += 1;
  if (!track.isCompute || i >= track.end) return null;
  const from = i > track.first ? spans.start[i - 1] + spans.duration[i - 1] : 0;
  return { wait: i, from, to: spans.start[i] };
}

/** Return which spans have a text in their name or detail: Uint8Array[spans], and their number and total duration. */
function matches(spans, block, text) {
  const wanted = text.toLowerCase();
  const inName = block.names.map((name) => name.toLowerCase().includes(wanted));
  const inDetail = block.details.map((detail) => detail.toLowerCase().includes(wanted));
  const found = new Uint8Array(spans.start.length);
  let [count, total] = [0, 0];
  for (let i = 0; i < found.length; i++) {
    if (inName[spans.name[i]] || (spans.detail[i] >= 0 && inDetail[spans.detail[i]])) {
      found[i] = 1;
      count += 1;
      total += spans.duration[i];
    }
  }
  return { found, count, total };
}

/** Return the sums of the parts of spans in an area: their number and total, and per name, the longest first. */
function areaSums(spans, block, tracks, from, to) {
  const names = new Map();
  const sums = { count: 0, total: 0, names: [] };
  for (const track of tracks) {
    const first = Math.max(track.first, lowerBound(spans.start, track.first, track.end, from) - 1);
    for (let i = first; i < track.end && spans.start[i] < to; i++) {
      const inside = Math.min(spans.start[i] + spans.duration[i], to) - Math.max(spans.start[i], from);
      if (inside <= 0) continue;
      const name = block.names[spans.name[i]];
      const entry = names.get(name) ?? { name, count: 0, total: 0 };
      names.set(name, entry);
      entry.count += 1;
      entry.total += inside;
      sums.count += 1;
      sums.total += inside;
    }
  }
  sums.names = [...names.values()].sort((a, b) => b.total - a.total);
  return sums;
}

/** Return a timeline's view as text for the page's address: times in its units, the selected span, a search. */
function viewWords({ from, to }, span, isExpanded, find) {
  const words = new URLSearchParams({ from: String(Math.round(from)), to: String(Math.round(to)) });
  if (span >= 0) words.set("span", String(span));
  if (isExpanded) words.set("expanded", "1");
  if (find) words.set("find", find);
  return words.toString();
}

/** Return the view that a text describes, or null; an address may come from anywhere. */
function viewOf(words, length) {
  const read = new URLSearchParams(words);
  const number = (name, missing) => (/^\d{1,10}$/.test(read.get(name) ?? "") ? Number(read.get(name)) : missing);
  const [from, to] = [number("from", -1), number("to", -1)];
  if (from < 0 || to <= from || from >= length) return null;
  return { words, from, to, span: number("span", -1), isExpanded: read.get("expanded") === "1", find: (read.get("find") ?? "").slice(0, 200) };
}
