// The page: head, one view per section, theme, keys, print.

const BLOCKS = {
  text: textBlock, command: commandBlock, items: itemsBlock, table: tableBlock, bars: barsBlock, areas: areasBlock,
  points: pointsBlock, heat: heatBlock, cluster: clusterBlock, timeline: timelineBlock, choice: choiceBlock,
};

function choiceBlock(block) {
  const host = make("div");
  const drawn = new Map();
  const buttons = block.options.map(([name, inner], i) => make("button",
    { type: "button", "aria-pressed": i === 0 ? "true" : "false", click: () => select(i), text: name }));
  const select = (i) => {
    if (!drawn.has(i)) drawn.set(i, BLOCKS[block.options[i][1].kind](block.options[i][1]));
    host.replaceChildren(drawn.get(i));
    buttons.forEach((button, j) => button.setAttribute("aria-pressed", i === j ? "true" : "false"));
  };
  select(0);
  return figure(block, make("div", { class: "switch", role: "group", "aria-label": block.title }, buttons), host);
}

function factCell(fact) {
  const range = fact.low === null || fact.high === null ? null
    : make("span", { class: "range", text: `likely ${showRange(fact.low, fact.high, fact.unit)}` });
  return make("div", { class: "fact " + (fact.tone ? "tone-" + fact.tone : "") },
    make("dt", { text: fact.name }),
    make("dd", {}, make("span", { class: "big", text: show(fact.value, fact.unit) }), range,
      fact.note ? make("span", { class: "quiet", text: fact.note }) : null));
}

/** Return a range with one unit for both ends. */
function showRange(low, high, unit) {
  const { texts, words } = showColumn([low, high], unit);
  return `${texts[0]} to ${texts[1]} ${words}`.trim();
}

function head(page, writer) {
  const isOld = page.version !== writer;
  const version = isOld
    ? `Result of trine ${page.version}, shown by trine ${writer}`
    : `trine ${page.version}`;
  return make("header", {},
    make("div", { class: "top" },
      make("p", { class: isOld ? "version old" : "version", text: `${version} · ${page.subject}` }), themeButton()),
    make("p", { class: "title", text: page.title, dir: "auto" }),
    make("h1", { text: glue(page.answer), dir: "auto" }),
    page.facts.length ? make("dl", { class: "facts" }, page.facts.map(factCell)) : null);
}

function themeButton() {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const name = () => (isDark() ? "Light" : "Dark");
  const button = make("button", { type: "button", class: "screen theme", text: name(), click: () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    button.textContent = name();
    dispatchEvent(new Event("themechange"));
  } });
  system.addEventListener("change", () => {
    button.textContent = name();
    dispatchEvent(new Event("themechange"));
  });
  return button;
}

/** Build the page. Each section is drawn when it is shown first, and all of them before printing. */
function build({ page, writer }) {
  const sections = page.sections.map((section) => ({
    section, isDrawn: false, content: make("div"), element: make("section", { id: section.key, "aria-labelledby": section.key + "-title" },
      make("h2", { id: section.key + "-title", text: section.question }),
      make("p", { class: "answer", text: glue(section.answer), dir: "auto" })),
  }));
  const links = sections.map(({ section }) => make("a", { href: "#" + section.key, text: section.question }));
  const nav = make("nav", { "aria-label": "Questions" }, links);
  const drawSection = (each) => {
    if (each.isDrawn) return;
    each.isDrawn = true;
    each.content.replaceChildren(...each.section.blocks.map((block) => BLOCKS[block.kind](block)));
  };
  const select = () => {
    const wanted = sections.findIndex(({ section }) => section.key === addressedSection());
    const shown = Math.max(0, wanted);
    sections.forEach((each, i) => {
      each.element.classList.toggle("hidden", i !== shown);
      if (i === shown) links[i].setAttribute("aria-current", "page");
      else links[i].removeAttribute("aria-current");
    });
    if (sections.length) {
      nav.scrollLeft = links[shown].offsetLeft - nav.offsetLeft - 40;
      drawSection(sections[shown]);
    }
    dispatchEvent(new Event("sectionchange"));
  };
  const move = (by) => {
    const now = links.findIndex((link) => link.hasAttribute("aria-current"));
    location.hash = links[(now + by + links.length) % links.length].getAttribute("href");
  };
  sections.forEach((each) => each.element.append(each.content));
  NARROW.addEventListener("change", () => {
    fitCharts();
    sections.forEach((each) => { each.isDrawn = false; });
    select();
  });
  document.body.append(
    make("a", { class: "skip", href: "#content", text: "Skip to the content", click: (event) => {
      event.preventDefault();
      main.focus();
    } }));
  const main = make("main", { id: "content", tabindex: "-1" }, sections.map(({ element }) => element));
  document.body.append(head(page, writer), nav, main,
    make("footer", { text: "Keys: [ and ] change the question. The file loads nothing from a network." }));
  addEventListener("hashchange", () => {
    select();
    scrollTo(0, 0);
    dispatchEvent(new Event("viewchange"));
  });
  let theme;
  addEventListener("beforeprint", () => {
    theme = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    sections.forEach((each) => {
      drawSection(each);
      each.element.classList.remove("hidden");
    });
    dispatchEvent(new Event("printing"));
  });
  addEventListener("afterprint", () => {
    if (theme === undefined) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    select();
    dispatchEvent(new Event("themechange"));
  });
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (event.key === "]") move(1);
    else if (event.key === "[") move(-1);
  });
  select();
}

build(JSON.parse(document.getElementById("data").textContent));
