// Elements, numbers with units, and packed arrays. Texts reach the page through textContent only.

const SVG = "http://www.w3.org/2000/svg";
const TYPES = {
  u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array,
  f4: Float32Array, f8: Float64Array,
};

/** Return a typed array from {dtype, base64}. */
function unpack(packed) {
  const text = atob(packed.base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new TYPES[packed.dtype](bytes.buffer);
}

/** Create an element. attributes: by name; "text" is its text, functions are event listeners. */
function make(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
function draw(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** Shorten a text from a file for a label; the whole text is in the title of its element. */
function short(text, limit = 60) {
  if (text.length <= limit) return text;
  const tail = Math.floor(limit / 2);
  return text.slice(0, limit - tail - 1) + "…" + text.slice(text.length - tail);
}

// Numbers

const STEPS = {
  s: [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"], [1e-12, "ps"]],
  bytes: [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]],
  "bytes/s": [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"], [1, "B/s"]],
  "flop/s": [[1e15, "PFLOP/s"], [1e12, "TFLOP/s"], [1e9, "GFLOP/s"], [1e6, "MFLOP/s"], [1, "FLOP/s"]],
  J: [[1e6, "MJ"], [1e3, "kJ"], [1, "J"], [1e-3, "mJ"]],
  W: [[1e6, "MW"], [1e3, "kW"], [1, "W"]],
};
/** Sizes that are whole thousands of bytes, as people type them for collectives. */
const DECIMAL_BYTES = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];
const SUFFIX = {
  "tokens/s": "tokens/s", days: "days", hours: "hours", kWh: "kWh", "flop/byte": "FLOP/byte", count: "", number: "",
};

/** Return the scale of a number: its factor and its unit in words. */
function scaleOf(value, unit) {
  const isDecimal = unit === "bytes" && value >= 1000 && value % 1000 === 0 && value % 2 ** 20 !== 0;
  const steps = isDecimal ? DECIMAL_BYTES : STEPS[unit];
  if (unit === "share") return [0.01, "%"];
  if (!steps) return [1, SUFFIX[unit] ?? unit];
  const size = Math.abs(value);
  return steps.find(([factor]) => size >= factor * 0.9995) ?? steps[size === 0 ? 0 : steps.length - 1];
}

/** Return the decimals that show a number with some significant digits. */
function decimalsOf(value, digits = 4) {
  const size = Math.abs(value);
  if (size === 0) return 0;
  const before = Math.floor(Math.log10(size * (1 + 0.5 * 10 ** -digits))) + 1;
  return Math.min(Math.max(digits - before, 0), 6);
}

function withDecimals(value, decimals) {
  const rounded = Number(value.toFixed(decimals));
  if (rounded === 0 && value !== 0) return "< " + (10 ** -decimals).toFixed(decimals);
  return (rounded + 0).toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

/** Return a number as text, with its unit. */
function show(value, unit, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  if (unit === "usd") return "$" + withDecimals(value, Math.abs(value) >= 100 ? 0 : 2);
  if (unit === "count") return withDecimals(value, 0);
  const [factor, words] = scaleOf(value, unit);
  const scaled = value / factor;
  if (unit === "share") return withDecimals(scaled, Math.abs(scaled) < 99.95 && scaled !== 0 ? 1 : 0) + " %";
  const decimals = Number.isInteger(scaled) ? 0 : decimalsOf(scaled, digits);
  return (withDecimals(scaled, decimals) + " " + words).trim();
}

/** Return a sentence whose numbers stay on one line with their units. */
function glue(text) {
  return text.replace(/(\d) (%|[mµnp]?s\b|[KMGT]?i?B\b|[kMGT]?B\/s)/g, "$1\u00a0$2");
}

/**
 * Return values of one column as texts with equal decimals, and their unit in words. If the values differ much
 * (sizes by more than a hundred, others by more than two thousand), each text has its own unit.
 */
function showColumn(values, unit) {
  const numbers = values.filter((value) => typeof value === "number");
  const sizes = numbers.map(Math.abs).filter((value) => value > 0).sort((a, b) => a - b);
  const largest = sizes[sizes.length - 1] ?? 0;
  if (unit === "usd") return { texts: values.map((value) => show(value, unit)), words: "" };
  const isWide = STEPS[unit] !== undefined && largest > (unit === "bytes" ? 100 : 2000) * sizes[0];
  if (isWide) return { texts: values.map((value) => (value === 0 ? "0" : show(value, unit, 3))), words: "" };
  const [factor, words] = scaleOf(largest, unit);
  const isWhole = unit === "count" || sizes.every((value) => Number.isInteger(value / factor));
  const usual = sizes.length ? sizes[Math.floor(sizes.length / 4)] / factor : 0;
  const most = unit === "share" ? 1 : 3;
  const decimals = isWhole ? 0 : Math.min(most, decimalsOf(usual, 3));
  const texts = values.map((value) => {
    if (value === null || value === undefined) return "–";
    return typeof value === "number" ? withDecimals(value / factor, decimals) : value;
  });
  return { texts, words };
}

/** Return round values between two numbers, about `count` of them. */
function ticks(low, high, count, base = 10) {
  const span = high - low;
  if (!(span > 0)) return [low];
  let step;
  if (base === 2) {
    step = 2 ** Math.ceil(Math.log2(span / count));
  } else {
    const rough = span / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  }
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step + 0);
  return found;
}

/** Return powers of ten (or halves of decades in short ranges) between two positive numbers. */
function logTicks(low, high) {
  const factors = Math.log10(high / low) < 3 ? [1, 2, 5] : [1];
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  return found;
}

/** Return the colour of a role, as the style sheet defines it for the theme. */
function colour(role) {
  const style = getComputedStyle(document.documentElement);
  return style.getPropertyValue("--c-" + role).trim() || style.getPropertyValue("--c-other").trim();
}

/** Return a square in the colour of a role. */
function swatch(role) {
  return make("span", { class: "swatch fill-" + role, "aria-hidden": "true" });
}

/** Return the head of a block: its title, and its note below. */
function figure(block, ...content) {
  return make("figure", { class: "block " + block.kind },
    block.title ? make("figcaption", { text: block.title }) : null,
    ...content,
    block.note ? make("p", { class: "note", text: block.note }) : null);
}

/** Return the key of the section that the page's address names; `first` if it names none. */
function addressedSection(first = "") {
  return location.hash.slice(1).split("?")[0] || first;
}

/** Return the part of the page's address that describes a view of the section. */
function addressedView() {
  return location.hash.split("?").slice(1).join("?");
}

/** Replace the children of an element; null leaves a child out. */
function replaceAll(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null));
}
