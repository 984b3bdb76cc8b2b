"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const NONE = "–";
  const NARROW = "screen and (max-width: 46rem)";
  const PAPER = 660;

  async function unpack(id) {
    const bytes = Uint8Array.from(atob($(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  // Everything that comes from data enters the page as text, never as markup.
  function element(tag, text, name) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    return made;
  }
  function isolated(tag, text, name) {
    const made = element(tag, undefined, name), inner = element("bdi");
    // A long name may break after these signs, if it must.
    String(text).split(/(?<=[_./-])/).forEach((part, place) => inner.append(...(place ? [element("wbr"), part] : [part])));
    made.append(inner);
    return made;
  }
  const grouped = (n) => n.toLocaleString("en");

  // ---- the flip browser ----

  function browser(flips, file) {
    const total = flips.id.length;
    const numbers = flips.numbers;
    const label = (i) => flips.classes[flips.label[i]];
    const said = (i) => (flips.new[i] < 0 ? "(none)" : flips.classes[flips.new[i]]);
    const texts = Object.keys(flips.columns);
    const collator = new Intl.Collator("en", { numeric: true });
    const HEADS = {
      old_confidence: ["old confidence", 2], new_confidence: ["new confidence", 2], old_margin: ["old margin", 2],
      new_margin: ["new margin", 2], displacement: ["displacement", 2], rank: ["rank", 0],
    };
    const shown = ["old_confidence", "new_confidence", "displacement", "rank"].filter((name) => name in numbers);
    const figure = (name, i) => {
      const value = numbers[name][i];
      return value === null ? NONE : value.toFixed(HEADS[name][1]);
    };

    // One text per flip to search in, made once.
    const haystack = flips.id.map((id, i) =>
      [id, label(i), said(i), ...texts.map((name) => flips.columns[name][i] ?? ""),
        ...flips.slices.map((s) => s.values[s.codes[i]] ?? "")].join("\n").toLowerCase());

    const state = { rows: [], sort: null, down: false, page: 0, size: 25, chosen: 0 };

    function options(select, counts, names, values) {
      const order = [...counts.keys()].sort((a, b) => collator.compare(names[a], names[b]));
      for (const code of order) {
        const option = element("option", `${names[code]} (${grouped(counts.get(code))})`);
        option.value = values ? values(code) : String(code);
        select.append(option);
      }
    }
    function tally(codes) {
      const counts = new Map();
      for (const code of codes) if (code >= 0) counts.set(code, (counts.get(code) ?? 0) + 1);
      return counts;
    }
    options($("by-label"), tally(flips.label), flips.classes);
    options($("by-new"), tally(flips.new), flips.classes);
    flips.slices.forEach((slice, place) => {
      const group = document.createElement("optgroup");
      group.label = slice.name;
      options(group, tally(slice.codes), slice.values, (code) => `${place}:${code}`);
      $("by-slice").append(group);
    });
    $("slice-label").hidden = !flips.slices.length;
    const kinds = $("by-kind");
    const near = "old_margin" in numbers, far = flips.far !== null && "displacement" in numbers;
    for (const option of [...kinds.options]) {
      if ((option.value === "near" && !near) || (option.value === "far" && !far)) option.remove();
      else if (option.value === "far") option.textContent += ` (moved > ${flips.far.toPrecision(3)})`;
    }
    $("kind-label").hidden = !near && !far;

    function matches() {
      const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
      const [own, other, kind] = ["by-label", "by-new", "by-kind"].map((id) => $(id).value);
      const [place, code] = $("by-slice").value.split(":").map(Number);
      const codes = $("by-slice").value ? flips.slices[place].codes : null;
      const rows = [];
      for (let i = 0; i < total; i++) {
        if (own !== "" && flips.label[i] !== Number(own)) continue;
        if (other !== "" && flips.new[i] !== Number(other)) continue;
        if (codes && codes[i] !== code) continue;
        if (kind === "near" && !(numbers.old_margin[i] !== null && numbers.old_margin[i] <= flips.near)) continue;
        if (kind === "far" && !(numbers.displacement[i] !== null && numbers.displacement[i] > flips.far)) continue;
        if (!words.every((word) => haystack[i].includes(word))) continue;
        rows.push(i);
      }
      return rows;
    }

    const keys = {
      id: (i) => flips.id[i], label, new: said,
      ...Object.fromEntries(shown.map((name) => [name, (i) => numbers[name][i]])),
    };
    function sorted(rows) {
      if (!state.sort) return rows;
      const key = keys[state.sort], sign = state.down ? -1 : 1;
      return rows.map((i) => [key(i), i]).sort(([a, i], [b, j]) => {
        if (a === null || b === null) return (a === null) - (b === null) || i - j;
        return sign * (typeof a === "string" ? collator.compare(a, b) : a - b) || i - j;
      }).map(([, i]) => i);
    }

    const pages = () => Math.max(1, Math.ceil(state.rows.length / state.size));

    function update() {
      state.rows = sorted(matches());
      state.page = 0;
      state.chosen = 0;
      draw();
    }

    function picture(i) {
      const image = element("img");
      image.src = flips.pictures[i];
      image.alt = `sample ${flips.id[i]}`;
      image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth < 48));
      return image;
    }

    function row(i, place) {
      const tr = element("tr");
      tr.dataset.flip = place;
      tr.role = "row";
      if (flips.pictures.length) {
        const td = element("td", undefined, "sample");
        if (flips.pictures[i]) td.append(picture(i));
        tr.append(td);
      }
      const id = isolated("th", flips.id[i]);
      id.scope = "row";
      tr.append(id);
      for (const name of texts) {
        const td = element("td");
        td.dataset.name = name;
        td.append(isolated("div", flips.columns[name][i] ?? NONE, "text"));
        tr.append(td);
      }
      const right = isolated("td", label(i)), wrong = isolated("td", said(i), "wrong");
      right.dataset.name = "right";
      wrong.dataset.name = "now";
      tr.append(right, wrong);
      for (const name of shown) {
        const td = element("td", figure(name, i), "number");
        td.dataset.name = HEADS[name][0];
        tr.append(td);
      }
      if (flips.slices.length) {
        const td = element("td"), chips = element("div", undefined, "chips");
        for (const slice of flips.slices) {
          if (slice.codes[i] >= 0) chips.append(isolated("span", `${slice.name}: ${slice.values[slice.codes[i]]}`));
        }
        td.append(chips);
        tr.append(td);
      }
      for (const cell of tr.cells) cell.role = cell === id ? "rowheader" : "cell";
      return tr;
    }

    function draw() {
      const start = state.page * state.size;
      const part = state.rows.slice(start, start + state.size);
      $("flip-rows").replaceChildren(...part.map((i, place) => row(i, start + place)));
      const of = state.rows.length === total ? `${grouped(total)} flips` : `${grouped(state.rows.length)} of ${grouped(total)} flips`;
      $("status").textContent = part.length ? `${grouped(start + 1)}–${grouped(start + part.length)} of ${of}` : `No flip matches (${grouped(total)} in all).`;
      $("page").value = state.page + 1;
      $("page").max = pages();
      $("pages").textContent = `of ${grouped(pages())}`;
      $("first").disabled = $("previous").disabled = state.page === 0;
      $("last").disabled = $("next").disabled = state.page >= pages() - 1;
      mark();
    }
    function mark(scroll) {
      for (const tr of $("flip-rows").children) {
        const here = Number(tr.dataset.flip) === state.chosen;
        tr.classList.toggle("chosen", here);
        if (here) tr.setAttribute("aria-current", "true");
        else tr.removeAttribute("aria-current");
        if (here && scroll) tr.scrollIntoView({ block: "nearest" });
      }
    }
    function turn(page, chosen) {
      state.page = Math.min(Math.max(page, 0), pages() - 1);
      state.chosen = chosen ?? state.page * state.size;
      draw();
    }
    function choose(place) {
      if (!state.rows.length) return;
      state.chosen = Math.min(Math.max(place, 0), state.rows.length - 1);
      const page = Math.floor(state.chosen / state.size);
      if (page !== state.page) turn(page, state.chosen);
      mark(true);
    }

    // ---- one flip ----

    function open() {
      const i = state.rows[state.chosen];
      if (i === undefined) return;
      $("one-title").textContent = flips.id[i];
      const list = element("dl");
      const add = (name, value, kind) => list.append(element("dt", name), isolated("dd", value, kind));
      add("label, old model", label(i));
      add("new model", said(i), "wrong");
      for (const name of Object.keys(numbers)) add(HEADS[name][0], figure(name, i));
      for (const slice of flips.slices) add(slice.name, slice.values[slice.codes[i]] ?? NONE);
      for (const name of texts) add(name, flips.columns[name][i] ?? NONE);
      $("one-body").replaceChildren(...(flips.pictures[i] ? [picture(i)] : []), list);
      $("one-previous").disabled = state.chosen === 0;
      $("one-next").disabled = state.chosen === state.rows.length - 1;
      if (!$("one").open) $("one").showModal();
    }
    const step = (by) => { choose(state.chosen + by); open(); };

    // ---- taking it away ----

    async function copy() {
      const text = state.rows.map((i) => flips.id[i]).join("\n");
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        const area = element("textarea", text);
        $("browser").append(area);
        area.select();
        document.execCommand("copy");
        area.remove();
      }
      $("status").textContent = `Copied ${grouped(state.rows.length)} ids.`;
    }
    function csv() {
      // A spreadsheet takes a text that begins like this for a formula; an apostrophe before it says that it is none.
      const formula = /^[=+\-@\t\r]/, plain = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
      const quoted = (value) => {
        let text = value === null || value === undefined ? "" : String(value);
        if (formula.test(text) && !plain.test(text)) text = `'${text}`;
        return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
      };
      const head = ["id", "label", "old", "new", ...Object.keys(numbers), ...flips.slices.map((s) => s.name), ...texts];
      const lines = state.rows.map((i) => [
        flips.id[i], label(i), label(i), flips.new[i] < 0 ? "" : said(i), ...Object.values(numbers).map((v) => v[i]),
        ...flips.slices.map((s) => s.values[s.codes[i]]), ...texts.map((name) => flips.columns[name][i]),
      ]);
      return [head, ...lines].map((cells) => cells.map(quoted).join(",")).join("\r\n") + "\r\n";
    }
    function download() {
      const link = element("a");
      link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
      link.download = file;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }

    // ---- what people do ----

    function head() {
      const columns = [["id", "id"], ...texts.map((name) => [null, name]), ["label", "label, old"], ["new", "new says"],
        ...shown.map((name) => [name, HEADS[name][0]])];
      if (flips.pictures.length) columns.unshift([null, "sample"]);
      if (flips.slices.length) columns.push([null, "slices"]);
      for (const [key, name] of columns) {
        const th = element("th", key ? undefined : name, key in HEADS ? "number" : "");
        th.scope = "col";
        th.role = "columnheader";
        if (key) {
          const button = element("button", name);
          button.type = "button";
          button.addEventListener("click", () => sortBy(key, state.sort === key ? !state.down : key in numbers));
          th.append(button);
          th.dataset.key = key;
          const option = element("option", name);
          option.value = key;
          $("sort").append(option);
        }
        $("flip-head").append(th);
      }
    }
    function sortBy(key, down) {
      state.sort = key;
      state.down = down;
      for (const th of $("flip-head").children) {
        if (key && th.dataset.key === key) th.setAttribute("aria-sort", down ? "descending" : "ascending");
        else th.removeAttribute("aria-sort");
      }
      $("sort").value = key ?? "";
      update();
    }
    function filter(key) {
      $("filters").reset();
      const cut = key.indexOf(":");
      $(`by-${key.slice(0, cut)}`).value = key.slice(cut + 1);
      update();
    }
    function pair(own, other) {
      $("filters").reset();
      $("by-label").value = own < 0 ? "" : own;
      $("by-new").value = other < 0 ? "" : other;
      update();
      $("rows").focus();
    }

    let waiting;
    $("search").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(update, 60); });
    for (const id of ["by-label", "by-new", "by-slice", "by-kind"]) $(id).addEventListener("change", update);
    $("filters").addEventListener("submit", (event) => { event.preventDefault(); update(); $("rows").focus(); });
    $("filters").addEventListener("reset", () => setTimeout(() => sortBy(null, false)));
    $("sort").addEventListener("change", () => sortBy($("sort").value || null, $("sort").value in numbers));
    $("first").addEventListener("click", () => turn(0));
    $("previous").addEventListener("click", () => turn(state.page - 1));
    $("next").addEventListener("click", () => turn(state.page + 1));
    $("last").addEventListener("click", () => turn(pages() - 1));
    $("page").addEventListener("change", () => turn((Number($("page").value) || 1) - 1));
    $("size").addEventListener("change", () => {
      state.size = Number($("size").value);
      turn(Math.floor(state.chosen / state.size), state.chosen);
    });
    $("copy").addEventListener("click", copy);
    $("download").addEventListener("click", download);
    $("one-previous").addEventListener("click", () => step(-1));
    $("one-next").addEventListener("click", () => step(1));
    $("one").addEventListener("close", () => $("rows").focus());
    $("one").addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft" || event.key === "ArrowUp") step(-1);
      else if (event.key === "ArrowRight" || event.key === "ArrowDown") step(1);
      else return;
      event.preventDefault();
    });
    $("flip-rows").addEventListener("click", (event) => {
      const tr = event.target.closest("tr");
      if (!tr || String(getSelection())) return;
      choose(Number(tr.dataset.flip));
      open();
    });
    // Keys work while the list has the focus, so that they never take a letter from who types elsewhere.
    $("rows").addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("button")) return;
      const act = {
        ArrowDown: () => choose(state.chosen + 1), j: () => choose(state.chosen + 1),
        ArrowUp: () => choose(state.chosen - 1), k: () => choose(state.chosen - 1),
        ArrowRight: () => turn(state.page + 1), PageDown: () => turn(state.page + 1),
        ArrowLeft: () => turn(state.page - 1), PageUp: () => turn(state.page - 1),
        Home: () => turn(0), End: () => turn(pages() - 1),
        Enter: open, "/": () => $("search").focus(), c: copy,
        Escape: () => { $("filters").reset(); },
      }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });
    for (const link of document.querySelectorAll("a[data-filter]")) {
      link.addEventListener("click", (event) => {
        event.preventDefault();
        filter(link.dataset.filter);
        $("browser").scrollIntoView();
        $("rows").focus({ preventScroll: true });
      });
    }

    $("browser").hidden = false;
    if (matchMedia(NARROW).matches) $("size").value = state.size = 10;
    head();
    update();
    return pair;
  }

  // ---- the pictures ----

  function themed(value, colours) {
    if (typeof value === "string" && value.startsWith("--")) return colours.getPropertyValue(value).trim() || value;
    if (Array.isArray(value)) return value.map((part) => themed(part, colours));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, themed(part, colours)]));
    }
    return value;
  }
  function layout(own, height, narrow) {
    const line = { gridcolor: "--edge", zerolinecolor: "--edge", linecolor: "--edge", fixedrange: narrow };
    const axes = Object.fromEntries(["xaxis", "yaxis", "yaxis2"].filter((a) => a in own).map((a) => [a, { ...line, ...own[a] }]));
    return {
      height, autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 56, r: 16, t: 16, b: 48 }, hovermode: "closest", dragmode: narrow ? false : "zoom",
      font: { family: "system-ui, sans-serif", size: 13, color: "--ink" },
      hoverlabel: { bgcolor: "--page", bordercolor: "--dull", font: { color: "--ink" } },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      ...own, ...axes,
    };
  }

  async function pictures(charts, pair) {
    // The flips are on the screen before the megabytes that draw are unpacked.
    await new Promise((resolve) => setTimeout(resolve));
    const script = element("script", await unpack("plotly"));
    document.head.append(script);
    const dark = matchMedia("(prefers-color-scheme: dark)"), narrow = matchMedia(NARROW);
    const config = { responsive: true, displayModeBar: false, displaylogo: false };
    const paper = () => document.documentElement.classList.contains("paper");
    const drawn = ([id, spec]) => {
      const place = $(`chart-${id}`), small = narrow.matches && !paper();
      const colours = getComputedStyle(document.documentElement);
      const own = layout(spec.layout, Number(place.dataset.height), small);
      const data = small ? spec.data.map((trace) => (trace.type === "heatmap" ? { ...trace, showscale: false } : trace)) : spec.data;
      if (paper()) Object.assign(own, { width: PAPER, autosize: false });
      // A flow that is redrawn moves to its new place, and would still be moving when the paper comes.
      if (data[0]?.type === "sankey") Plotly.purge(place);
      return Plotly.react(place, themed(data, colours), themed(own, colours), config);
    };
    const draw = () => Promise.all(Object.entries(charts).map(drawn));
    for (const id of Object.keys(charts)) $(`chart-${id}`).style.minHeight = `${$(`chart-${id}`).dataset.height}px`;
    // One by one, so that the page can be moved meanwhile.
    for (const chart of Object.entries(charts)) await drawn(chart);
    // plotly measures its texts in a picture of its own, which is none to who listens to the page.
    $("js-plotly-tester")?.setAttribute("aria-hidden", "true");
    dark.addEventListener("change", draw);
    narrow.addEventListener("change", draw);
    // Paper is white and of one width, whatever the screen is.
    const printed = (is) => { document.documentElement.classList.toggle("paper", is); draw(); };
    addEventListener("beforeprint", () => printed(true));
    addEventListener("afterprint", () => printed(false));
    $("chart-confusion")?.on("plotly_click", (event) => pair?.(...event.points[0].customdata));
  }

  async function start() {
    if (!("DecompressionStream" in window)) {
      $("verdict").append(element("p", "This browser is too old for the charts and the flip browser; the tables hold the same figures.", "notes"));
      return;
    }
    const payload = JSON.parse(await unpack("payload"));
    const pair = $("browser") ? browser(payload.flips, payload.file) : null;
    await pictures(payload.charts, pair);
    document.documentElement.dataset.ready = "true";
  }
  start();
})();
