// Trajectories on the page: the text at any step, what moved, and the plot of moves.
const $ = id => document.getElementById(id), KINDS = ["", "unmasked", "corrected", "remasked"];
const quoted = text => text === null ? "mask" : JSON.stringify(text);
const percent = p => p === null || p === undefined ? "?" : p > 0 && p < 0.001 ? p.toExponential(1) : (100 * p).toFixed(1) + "%";
const SVG = "http://www.w3.org/2000/svg";

class Way {  // one text: its states after each step, from the differences that the server sends
  constructor(start) {
    this.states = [{ tokens: start, kind: new Uint8Array(start.length), p: new Array(start.length).fill(null), step: 0, s: null }];
    this.past = start.map(text => [[0, text, 0]]);
    this.sums = []; this.end = Infinity;  // beyond an end-of-text, nothing is part of the text
  }
  add(frame) {
    const last = this.states[this.states.length - 1], tokens = last.tokens.slice(), p = last.p.slice(), kind = new Uint8Array(tokens.length);
    const sums = [0, 0, 0];
    for (const [i, k, text] of frame.moves) { tokens[i] = text; kind[i] = k; sums[k - 1]++; this.past[i].push([this.states.length, text, k]); }
    frame.p.forEach((value, i) => { p[frame.offset + i] = value; });
    this.states.push({ tokens, kind, p, step: frame.step, s: frame.s });
    this.sums.push(sums);
  }
}

export class Player {
  constructor() {
    this.ways = []; this.row = 0; this.at = 0; this.timer = null; this.view = "steps"; this.correction = null; this.held = null; this.spans = [];
    $("play").onclick = () => this.timer ? this.stop() : this.play();
    $("back").onclick = () => { this.stop(); this.show(this.at - 1); };
    $("next").onclick = () => { this.stop(); this.show(this.at + 1); };
    $("step").oninput = e => { const n = +e.target.value; this.stop(); this.show(n); };
    $("speed").onchange = () => { if (this.timer) { this.stop(); this.play(); } };
    $("which").onchange = e => { this.row = +e.target.value; this.lay(); this.show(Infinity); };
    for (const radio of document.querySelectorAll("[name=view]")) radio.onchange = () => { this.view = radio.value; this.lay(); this.show(this.at); };
    $("text").onkeydown = e => {
      const jump = { ArrowLeft: this.at - 1, ArrowRight: this.at + 1, Home: 0, End: Infinity }[e.key];
      if (jump !== undefined) { e.preventDefault(); this.stop(); this.show(jump); }
      if (e.key === " ") { e.preventDefault(); $("play").click(); }
    };
    $("text").onpointermove = e => this.tip(e);
    $("text").onpointerleave = () => { $("tip").hidden = true; };
    $("text").onclick = e => { const i = e.target.closest(".tok")?.dataset.i; this.held = i === undefined ? null : +i; this.show(this.at); };
    $("plot").onclick = e => { const box = $("plot").getBoundingClientRect(); this.stop(); this.show(Math.round((e.clientX - box.left) / box.width * this.total() + .5)); };
    this.clear();
  }
  get way() { return this.ways[this.row]; }
  total() { return Math.max(this.steps, (this.way?.states.length || 1) - 1); }

  clear() {
    this.stop(); this.ways = []; this.row = 0; this.at = 0; this.correction = null; this.held = null; this.steps = 0; this.following = true;
    $("text").replaceChildren(); $("plot").replaceChildren(); $("sums").textContent = ""; $("detail").textContent = "";
    $("which").hidden = true; $("views").hidden = true; $("changes-card").hidden = true; $("step").max = 0;
    this.view = "steps"; document.querySelector("[name=view][value=steps]").checked = true;
    for (const id of ["play", "back", "next", "step"]) $(id).disabled = true;
    this.legend();
  }
  begin(start) {
    this.clear();
    this.ways = start.texts.map(text => new Way(text)); this.steps = start.steps;
    $("which").replaceChildren(...this.ways.map((_, i) => Object.assign(document.createElement("option"), { value: i, textContent: `text ${i + 1}` })));
    $("which").hidden = this.ways.length < 2;
    for (const id of ["play", "back", "next", "step"]) $(id).disabled = false;
    this.lay(); this.show(0);
  }
  frame(frame) {
    this.ways[frame.row].add(frame);
    if (frame.row === this.row) { this.plot(); if (this.following) this.show(Infinity); else this.slide(); }
  }
  end(result) {
    if (result.changes) { this.correction = result; $("views").hidden = false; this.table(); }
    result.samples?.forEach((sample, i) => { if (sample.ended) this.ways[i].end = sample.tokens.length; });
    this.following = false; this.show(Infinity);
  }
  fixed(result) {  // a correction in one pass, which has no steps
    this.clear(); this.correction = result;
    const way = new Way(result.doubts.map(d => d.text)), after = new Map(result.changes.map(c => [c.position, c]));
    way.add({ step: 1, s: 0, offset: 0, moves: [...after].map(([i, c]) => [i, 2, c.after]), p: result.doubts.map(d => after.get(d.position)?.p_after ?? d.p) });
    this.ways = [way]; this.steps = 1; $("views").hidden = false; this.following = false;
    for (const id of ["play", "back", "next", "step"]) $(id).disabled = false;
    this.lay(); this.table(); this.plot(); this.show(1);
  }

  lay() {  // one span for each token
    this.spans = (this.way?.states[0].tokens || []).map((_, i) => { const e = document.createElement("span"); e.dataset.i = i; return e; });
    $("text").replaceChildren(...this.spans);
    this.legend(); this.plot();
  }
  legend() { $("legend").hidden = this.view !== "steps"; $("doubt-legend").hidden = this.view !== "doubt"; }

  show(n) {
    if (!this.way) return;
    this.at = Math.max(0, Math.min(n, this.way.states.length - 1));
    if (this.at < this.way.states.length - 1) this.following = false;
    if (this.view === "diff") this.showDiff(); else if (this.view === "doubt") this.showDoubts(); else this.showStep();
    this.slide(); this.detail();
  }
  slide() {
    $("step").max = this.total(); $("step").value = this.at;
    const state = this.way.states[this.at], masks = state.tokens.filter(t => t === null).length;
    const time = state.s === null ? "" : `, t = ${state.s.toFixed(3)}`;
    const line = `Step ${this.at} of ${this.total()}${time}; ${masks} mask${masks === 1 ? "" : "s"} left`;
    if (!this.timer && !this.following) $("status").textContent = line; else if (this.at % 8 === 0 || this.at === this.total()) $("status").textContent = line;
    $("step").setAttribute("aria-valuetext", line);
    const cursor = $("plot").querySelector(".cursor");
    if (cursor) { const x = (this.at - .5) / this.total() * 900; cursor.setAttribute("x1", x); cursor.setAttribute("x2", x); }
  }
  dress(e, cls, text) { if (e.className !== cls) e.className = cls; if (e.textContent !== text || e.firstElementChild) e.textContent = text; e.style.backgroundColor = ""; }
  showStep() {
    const state = this.way.states[this.at], end = this.at === this.way.states.length - 1 ? this.way.end : Infinity;
    state.tokens.forEach((text, i) => {
      const kind = KINDS[state.kind[i]], ever = text !== null && kind !== "corrected" && this.way.past[i].some(m => m[2] === 2 && m[0] < this.at);
      const cls = ["tok", text === null && "mask", /^\[(BOS|EOS)\]$/.test(text) && "special", kind, ever && "ever", i >= end && "beyond", this.held === i && "held"].filter(Boolean).join(" ");
      this.dress(this.spans[i], cls, text === null ? "▁▁▁" : text);
    });
  }
  showDiff() {
    const change = new Map(this.correction.changes.map(c => [c.position, c]));
    this.correction.doubts.forEach((d, i) => {
      const c = change.get(i), e = this.spans[i];
      this.dress(e, "tok" + (this.held === i ? " held" : ""), d.text);
      if (!c) return;
      const part = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });
      e.replaceChildren(part("del", c.before), part("sub", percent(c.p_before)), part("ins", c.after), part("sub", percent(c.p_after)));
    });
  }
  showDoubts() {
    this.correction.doubts.forEach((d, i) => {
      this.dress(this.spans[i], "tok doubt" + (this.held === i ? " held" : ""), d.text);
      this.spans[i].style.backgroundColor = `rgb(var(--doubt) / ${(0.75 * d.doubt).toFixed(3)})`;
    });
  }
  about(i) {
    if (this.view !== "steps" && this.correction) {
      const d = this.correction.doubts[i];
      return `${quoted(d.text)}: p = ${percent(d.p)}, doubt ${percent(d.doubt)}; likeliest ${quoted(d.best)} at ${percent(d.p_best)}`;
    }
    const state = this.way.states[this.at], past = this.way.past[i].filter(m => m[0] <= this.at && m[0] > 0);
    const history = past.slice(-6).map(([n, text, k]) => `step ${n}: ${k === 3 ? "remasked" : `${KINDS[k]} → ${quoted(text)}`}`).join("\n");
    return `${quoted(state.tokens[i])}${state.tokens[i] === null ? "" : `, p = ${percent(state.p[i])}`}${history ? "\n" + history : ""}`;
  }
  detail() { $("detail").textContent = this.held === null ? "" : this.about(this.held).replaceAll("\n", " · "); }
  tip(e) {
    const i = e.target.closest?.(".tok")?.dataset.i, tip = $("tip");
    if (i === undefined || e.pointerType === "touch") { tip.hidden = true; return; }
    tip.textContent = this.about(+i); tip.hidden = false;
    tip.style.left = Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = (e.clientY + 22 + tip.offsetHeight > innerHeight ? e.clientY - tip.offsetHeight - 12 : e.clientY + 22) + "px";
  }
  plot() {
    const sums = this.way?.sums || [], total = this.total() || 1, top = Math.max(4, ...sums.map(s => s[0] + s[1] + s[2])), w = 900 / total;
    const make = (tag, props) => { const e = document.createElementNS(SVG, tag); for (const [k, v] of Object.entries(props)) e.setAttribute(k, v); return e; };
    const bars = [make("line", { class: "grid", x1: 0, x2: 900, y1: 149, y2: 149 })];
    sums.forEach((sum, n) => {
      let y = 149;
      ["u", "c", "r"].forEach((cls, k) => {
        const h = sum[k] / top * 140; if (!h) return;
        y -= h; bars.push(make("rect", { class: cls, x: n * w + w * .1, y, width: w * .8, height: h }));
      });
    });
    bars.push(make("line", { class: "cursor", x1: 0, x2: 0, y1: 0, y2: 150 }));
    $("plot").replaceChildren(...bars);
    const all = [0, 1, 2].map(k => sums.reduce((a, s) => a + s[k], 0)), length = this.way?.states[0].tokens.length || 0;
    const line = length ? `${all[0]} unmasked · ${all[1]} corrected (${(all[1] / length).toFixed(2)} a token) · ${all[2]} remasked, over ${length} tokens` : "";
    $("sums").textContent = line; $("plot").setAttribute("aria-label", `Moves in each step: ${line || "none yet"}`);
  }
  table() {
    const cell = (text, code) => { const td = document.createElement("td"); td.append(code ? Object.assign(document.createElement("code"), { textContent: text }) : text); return td; };
    $("changes").tBodies[0].replaceChildren(...this.correction.changes.map(c => {
      const row = document.createElement("tr");
      row.append(cell(c.before, true), cell(percent(c.p_before)), cell(c.after, true), cell(percent(c.p_after)), cell(percent(c.doubt)));
      return row;
    }));
    $("changes-card").hidden = !this.correction.changes.length;
  }
  play() {
    if (!this.way || this.way.states.length < 2) return;
    if (this.at >= this.way.states.length - 1) this.show(0);
    this.timer = setInterval(() => { this.show(this.at + 1); if (this.at >= this.way.states.length - 1) this.stop(); }, +$("speed").value);
    $("play").textContent = "❚❚"; $("play").setAttribute("aria-label", "Pause");
  }
  stop() { clearInterval(this.timer); this.timer = null; $("play").textContent = "▶"; $("play").setAttribute("aria-label", "Play"); if (this.way) this.slide(); }
}
