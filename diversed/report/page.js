"use strict";
(() => {
  const FATES = {
    a: "accepted: drafted, judged, kept",
    x: "rejected: drafted, judged, replaced by the recovered token",
    u: "unjudged: drafted behind a rejected token, never judged",
    r: "recovered: drawn in the place of the rejected token",
    b: "bonus: drawn after a block that passed whole, or without a draft",
  };
  const NUMBERS = ["p (target)", "q (draft)", "ν = w·p + (1 − w)·q", "TV(q, p)", "w", "accept probability min(1, π/q)"];
  const TOKEN = ".tokens > span > *";
  const NARROW = window.matchMedia("(max-width: 48rem)");
  const HIDE_AFTER_MS = 150;
  const panel = document.getElementById("panel");
  const form = document.getElementById("filters");
  const count = document.getElementById("count");
  const prompts = Array.from(document.querySelectorAll(".prompt"), (article) => ({
    article,
    text: article.querySelector("header").textContent.toLowerCase(),
    answers: Array.from(article.querySelectorAll(".answer")),
  }));

  // ---- the numbers of a token

  let active = null;
  let timer = 0;

  function readable(number) {
    if (number === "-") return "–";
    return number === "1-" ? "> 0.999" : number.replace(/^\./, "0.");
  }

  function show(token) {
    window.clearTimeout(timer);
    if (token === active) return;
    release();
    active = token;
    const block = token.parentElement;
    const index = Array.prototype.indexOf.call(block.children, token);
    const [round, ...entries] = block.dataset.n.split(",").map((entry) => entry.split(" "));
    const numbers = entries[index];
    const is_drafted = "axu".includes(token.classList[0]);
    const place = is_drafted ? index : block.querySelectorAll(".a").length;
    const rows = NUMBERS.map((name, i) => [name, readable(numbers[i])]);
    rows.push(["block", round[0]]);
    rows.push(["place in the block", String(place)]);
    rows.push(["position in the answer", String(Number(round[1]) + place)]);
    const list = document.createElement("dl");
    for (const [name, value] of rows) {
      list.append(element("dt", name), element("dd", value));
    }
    const text = JSON.stringify(token.textContent);
    panel.replaceChildren(element("b", text), element("div", FATES[token.classList[0]]), list);
    panel.hidden = false;
    token.classList.add("active");
    block.classList.add("active");
    token.setAttribute("aria-describedby", panel.id);
    place_panel();
  }

  function element(name, text) {
    const made = document.createElement(name);
    made.textContent = text;
    return made;
  }

  function release() {
    if (!active) return;
    active.classList.remove("active");
    active.parentElement.classList.remove("active");
    active.removeAttribute("aria-describedby");
    active = null;
  }

  function hide() {
    window.clearTimeout(timer);
    release();
    panel.hidden = true;
  }

  function place_panel() {
    if (!active) return;
    if (NARROW.matches) {
      panel.style.left = panel.style.top = "";
      return;
    }
    const boxes = active.getClientRects();
    if (!boxes.length) return hide();
    const { left, top, bottom } = boxes[0];
    const { width, height } = panel.getBoundingClientRect();
    const room = document.documentElement;
    const below = bottom + 6;
    const y = below + height <= room.clientHeight ? below : Math.max(4, top - height - 6);
    panel.style.left = `${Math.max(4, Math.min(left, room.clientWidth - width - 4))}px`;
    panel.style.top = `${y}px`;
  }

  const token_of = (event) => (event.target instanceof Element ? event.target.closest(TOKEN) : null);

  document.addEventListener("pointerover", (event) => {
    const token = token_of(event);
    if (token) show(token);
    else if (panel.contains(event.target)) window.clearTimeout(timer);
    else if (active && active !== document.activeElement) {
      window.clearTimeout(timer);
      timer = window.setTimeout(() => {
        const focused = document.activeElement;
        if (focused && focused.matches(TOKEN)) show(focused);
        else hide();
      }, HIDE_AFTER_MS);
    }
  });
  document.addEventListener("focusin", (event) => {
    const token = token_of(event);
    if (token) show(token);
    else hide();
  });
  document.addEventListener("focusout", (event) => {
    if (token_of(event) && !event.relatedTarget) hide();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    if (event.ctrlKey || event.altKey || event.metaKey || !(event.target instanceof Element)) return;
    const tokens = event.target.closest(".tokens");
    if (!tokens) return;
    const shown = Array.from(tokens.querySelectorAll(":scope > span > *")).filter(
      (token) => token.getClientRects().length
    );
    const at = shown.indexOf(event.target);
    const last = shown.length - 1;
    const next = { ArrowRight: Math.min(at + 1, last), ArrowLeft: Math.max(at - 1, 0), Home: 0, End: last }[event.key];
    if (next === undefined || last < 0) return;
    event.preventDefault();
    shown[next].tabIndex = -1;
    shown[next].focus();
  });
  window.addEventListener("scroll", place_panel, { passive: true });
  window.addEventListener("resize", place_panel);

  // ---- filters

  function apply() {
    hide();
    const data = new FormData(form);
    const words = data.get("query").toLowerCase().split(/\s+/).filter(Boolean);
    const outcome = data.get("outcome");
    const run = data.get("run") || "";
    const shown = new Set(data.getAll("shown"));
    const is_shown = (answer) => !form.elements.shown || shown.has(answer.dataset.run);
    let number = 0;
    for (const { article, text, answers } of prompts) {
      for (const answer of answers) answer.hidden = !is_shown(answer);
      const asked = answers.filter(run ? (answer) => answer.dataset.run === run : is_shown);
      const outcomes = asked.map((answer) => answer.dataset.outcome).filter(Boolean);
      const fits =
        outcome === "differ" ? new Set(outcomes).size > 1
        : outcome ? outcomes.includes(outcome)
        : run ? outcomes.length > 0
        : true;
      article.hidden = !(fits && words.every((word) => text.includes(word)));
      number += !article.hidden;
    }
    const body = document.body.classList;
    body.toggle("no-x", !data.has("rejected"));
    body.toggle("no-u", !data.has("unjudged"));
    count.textContent = `${number} of ${prompts.length} shown`;
  }

  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => window.setTimeout(apply));
  apply();
})();
