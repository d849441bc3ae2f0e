"use strict";
(async () => {
  const live = document.body.dataset.live, nonce = document.currentScript.nonce;
  // Data and the chart library come deflated, in base 85.
  const unpack = async (id) => {
    const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;/=>?@^_`{|}~";
    const values = new Uint8Array(128);
    for (let digit = 0; digit < 85; digit++) values[digits.charCodeAt(digit)] = digit;
    const text = document.getElementById(id).textContent, size = Math.floor((text.length * 4) / 5);
    const bytes = new Uint8Array(Math.ceil(text.length / 5) * 4);
    for (let from = 0, to = 0; from < text.length; from += 5, to += 4) {
      let word = 0;
      for (let place = from; place < from + 5; place++) word = word * 85 + (place < text.length ? values[text.charCodeAt(place)] : 84);
      bytes[to] = word >>> 24; bytes[to + 1] = word >>> 16; bytes[to + 2] = word >>> 8; bytes[to + 3] = word;
    }
    const stream = new Blob([bytes.subarray(0, size)]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).text();
  };
  const data = JSON.parse(await unpack("data"));
  document.head.append(Object.assign(document.createElement("script"), { nonce, textContent: await unpack("plotly") }));
  const root = document.documentElement;
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = () => innerWidth < 640;

  // Charts: data comes ready; colours of paper, ink and lines are the page's.
  const folded = 320; // Width of a chart in a closed fold, which has none; opening the fold draws it again.
  const themed = (chart) => {
    const layout = chart.layout;
    const axis = (one, vertical) => ({
      gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true, fixedrange: true,
      ...one, title: { ...(one || {}).title, standoff: vertical ? 8 : 12 },
    });
    const key = `chart-${chart.id}`;
    return {
      width: document.getElementById(key).clientWidth || folded, height: narrow() ? 290 : 340, hovermode: "closest", bargap: 0.25, bargroupgap: 0.06,
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: narrow() ? 11 : 12.5, color: css("--ink") },
      hoverlabel: { bgcolor: css("--paper"), bordercolor: css("--line"), font: { color: css("--ink") }, namelength: 40 },
      margin: { l: 8, r: 12, t: 8, b: 8 },
      legend: { orientation: "h", yanchor: "bottom", y: 1.02, x: 0, traceorder: "normal", font: { size: narrow() ? 11 : 12 } },
      xaxis: axis(layout.xaxis, false), yaxis: axis(layout.yaxis, true),
    };
  };
  const draw = () => Promise.all(data.charts.map((chart) => Plotly.react(
    `chart-${chart.id}`,
    chart.data.map((trace) => (trace.error_x ? { ...trace, error_x: { ...trace.error_x, color: css("--soft") } } : trace)),
    themed(chart), { displayModeBar: false },
  ))).then(() => {
    document.body.dataset.charts = String(document.querySelectorAll(".plot svg.main-svg .xy").length);
    document.body.dataset.overflow = String(root.scrollWidth - root.clientWidth);
  });
  const cue = () => {
    for (const box of document.querySelectorAll(".scroll")) {
      const wide = box.scrollWidth > box.clientWidth;
      box.toggleAttribute("data-wide", wide);
      if (wide) box.tabIndex = 0; else box.removeAttribute("tabindex");
    }
  };
  cue();
  addEventListener("resize", cue);
  draw();
  document.addEventListener("toggle", ({ target }) => {
    if (!target.open || !target.matches(".fold")) return;
    cue();
    if (target.querySelector(".plot")) draw();
  }, true);
  document.querySelector("header").addEventListener("click", ({ target }) => {
    if (target.hash === "#manifest") document.getElementById("all-runs").open = true;
  });
  dark.addEventListener("change", draw);
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (width && now !== width) draw();
    width = now;
  }).observe(document.querySelector("main"));

  // Episodes: filters, kept in the address so that a view can be linked.
  let { episodes } = data.browser, waiting = [];
  const form = document.getElementById("filters"), list = document.getElementById("list");
  const count = document.getElementById("count"), more = document.getElementById("more");
  const PAGE = narrow() ? 6 : 20, selects = ["arm", "seed", "phase", "verdict", "rewrite", "difficulty"];
  let shown = PAGE;
  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== undefined && value !== "") made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const options = () => {
    for (const name of selects) {
      const values = [...new Set(episodes.map((one) => String(one[name])))].filter((value) => value !== "");
      const known = new Set([...form.elements[name].options].map((option) => option.value));
      for (const value of values) if (!known.has(value)) form.elements[name].append(element("option", { value }, value));
      form.elements[name].parentElement.hidden = values.length < 2 && name !== "arm" && name !== "verdict";
    }
  };
  const haystack = (one) => one.hay ??= [one.question, one.cluster, one.task, one.answer, ...(one.steps || []).map((step) => step.arguments || "")].join("\n").toLowerCase();
  const matching = () => {
    const words = form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
    return episodes.filter((one) => selects.every((name) => !form.elements[name].value || String(one[name]) === form.elements[name].value)
      && words.every((word) => haystack(one).includes(word)));
  };
  const tool = (one) => element("div", { class: "call" },
    element("div", { class: "head" }, element("strong", {}, one.tool), element("span", { class: one.failed ? "small wrong" : "small" }, one.result)),
    element("pre", {}, one.arguments), element("pre", {}, one.text));
  const call = (one, texts) => {
    if (one.tool) return tool(one);
    const prompt = element("details", {}, element("summary", {}, "prompt"),
      ...one.messages.map(([role, text]) => element("div", {}, element("span", { class: "small" }, role), element("pre", {}, texts[text]))));
    const head = element("div", { class: "head" }, element("strong", {}, one.role));
    if (one.trained) head.append(element("span", { class: "badge" }, "trained"));
    const ended = { length: ", cut at the token limit", tool_calls: ", calls tools" }[one.finish] || "";
    head.append(element("span", { class: "small" }, `${one.ms} ms${ended}`));
    const made = element("div", { class: one.trained ? "call trained" : "call" }, head, prompt);
    if (one.text || one.finish !== "tool_calls") made.append(element("pre", {}, one.text));
    return made;
  };
  const body = (one, { steps, texts, gold, trouble }) => {
    const made = element("div", { class: "body" });
    if (trouble) made.append(element("p", { class: "small wrong" }, trouble));
    made.append(...steps.map((step) => call(step, texts)));
    made.append(element("p", { class: "small" }, "answer"), element("pre", {}, one.answer || "none"));
    if (gold && one.verdict !== "right") made.append(element("p", { class: "small" }, "gold, which no agent sees"), element("pre", {}, gold));
    const verdict = element("p", {}, element("span", { class: `verdict ${one.verdict}` }, one.verdict), ` · reward ${one.reward === null ? "none" : one.reward}`);
    if (one.first !== null && one.rewrite) verdict.append(` (first answer: ${one.first})`);
    verdict.append(` · ${one.reason || one.detail || one.outcome}`);
    const listed = (what, values) => Object.keys(values).length
      ? [element("p", { class: "small" }, `${what}: ${Object.entries(values).map(([name, value]) => `${name} ${+value.toPrecision(4)}`).join(", ")}`)] : [];
    made.append(verdict, ...listed("parts", one.parts), ...listed("by role", one.by_role), element("p", { class: "small" }, `${one.run} · ${one.task}`));
    return made;
  };
  const card = (one) => {
    const what = [one.arm, `seed ${one.seed}`, one.phase && `${one.phase} step ${one.step}`, one.cluster, one.difficulty, one.rewrite && `rewrite ${one.rewrite}`];
    const made = element("details", { class: "episode" }, element("summary", {},
      element("span", { class: `verdict ${one.verdict}` }, one.verdict), element("span", {}, one.question),
      element("span", { class: "what" }, what.filter(Boolean).join(" · "))));
    made.addEventListener("toggle", async () => {
      if (made.open && made.children.length === 1) {
        made.append(element("div", { class: "body small" }, "reading its calls"));
        made.lastChild.replaceWith(body(one, one.steps ? { steps: one.steps, texts: data.browser.texts, gold: one.gold } : await calls(one)));
      }
      settle();
    });
    return made;
  };
  const calls = async (one) => {
    try {
      const answer = await fetch(`calls?${new URLSearchParams({ at: live, run: one.run, id: one.id })}`);
      if (answer.ok) return await answer.json();
      return { steps: [], texts: [], trouble: await answer.text() };
    } catch { return { steps: [], texts: [], trouble: "The server of this page does not answer." }; }
  };
  // What is shown stays the same element, so that nothing that is read closes or moves.
  const cards = new Map(), key = (one) => (one.id ? `${one.run}/${one.id}` : one);
  const render = () => {
    const found = matching(), wanted = found.filter((one, index) => index < shown || cards.get(key(one))?.open);
    let at = list.firstElementChild;
    for (const one of wanted) {
      if (!cards.has(key(one))) cards.set(key(one), card(one));
      const made = cards.get(key(one));
      if (made === at) at = at.nextElementSibling; else list.insertBefore(made, at);
    }
    while (at) { const next = at.nextElementSibling; at.remove(); at = next; }
    for (const [name, made] of cards) if (!made.isConnected) cards.delete(name);
    count.textContent = `${found.length} episodes${found.length > shown ? `, the first ${shown} shown` : ""}`;
    more.hidden = found.length <= shown;
    document.body.dataset.found = String(found.length);
  };
  const apply = () => {
    shown = PAGE;
    const query = new URLSearchParams();
    for (const name of [...selects, "q"]) if (form.elements[name].value) query.set(name, form.elements[name].value);
    try { history.replaceState(null, "", `#${query}`); } catch { /* some browsers refuse it for local files */ }
    render();
  };
  const fromAddress = () => {
    const query = new URLSearchParams(location.hash.slice(1));
    if (![...selects, "q"].some((name) => query.has(name))) return;
    for (const name of [...selects, "q"]) form.elements[name].value = query.get(name) || "";
    render();
    if (query.has("open") && list.firstElementChild) list.firstElementChild.open = true;
    document.getElementById("episodes").scrollIntoView();
  };
  // Live: what ended meanwhile waits while somebody reads: an episode is open, pointed at, or scrolled to.
  const fresh = document.getElementById("fresh");
  const merge = () => {
    const known = new Set(waiting.map(key));
    episodes = [...waiting, ...episodes.filter((one) => !known.has(key(one)))].slice(0, 1000);
    waiting = [];
    options();
    render();
    fresh.hidden = true;
  };
  const settle = () => {
    const read = list.querySelector("details[open]") || list.matches(":hover") || list.getBoundingClientRect().top < 0;
    if (waiting.length && !read) merge();
    fresh.hidden = !waiting.length;
    fresh.textContent = `${waiting.length} more ended: show them`;
  };
  fresh.addEventListener("click", merge);
  list.addEventListener("mouseleave", settle);
  const swap = (name, html) => {
    const old = document.querySelector(`[data-block="${name}"]`), made = old.cloneNode(false);
    made.innerHTML = html;
    for (const plot of made.querySelectorAll(".plot")) {
      const drawn = document.getElementById(plot.id);
      if (!drawn) continue;
      drawn.setAttribute("aria-label", plot.getAttribute("aria-label"));
      plot.replaceWith(drawn);
    }
    for (const fold of made.querySelectorAll(".fold")) fold.open = Boolean(document.getElementById(fold.id)?.open);
    const moved = [...old.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
    old.replaceWith(made);
    made.querySelectorAll(".scroll").forEach((box, index) => { box.scrollLeft = moved[index] || 0; });
  };
  const take = (found) => {
    for (const [name, html] of Object.entries(found.blocks)) swap(name, html);
    data.charts = found.charts || data.charts;
    if (found.charts || found.blocks.curves !== undefined) draw();
    cue();
    if (found.reset) { episodes = []; waiting = []; list.replaceChildren(); }
    if (found.episodes.length) document.getElementById("episodes").hidden = false;
    const known = new Set([...episodes, ...waiting].map(key));
    waiting = [...found.episodes.filter((one) => !known.has(key(one))), ...waiting].slice(0, 1000);
    settle();
  };
  if (live !== undefined) {
    const source = new EventSource(`events?${new URLSearchParams({ at: live })}`);
    source.onopen = () => { delete document.body.dataset.cut; };
    source.onerror = () => { document.body.dataset.cut = ""; };
    source.onmessage = (event) => take(JSON.parse(event.data));
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", apply);
  more.addEventListener("click", () => { shown += PAGE; render(); });
  addEventListener("hashchange", fromAddress);
  options();
  render();
  fromAddress();
})();
