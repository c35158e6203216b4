// Trajectories on the page: the text at any step, what moved, what was doubted and what was changed.
import { $, el, worded } from "./page.js";
import { draw, point, stepAt } from "./plot.js";
import { KINDS, Way, odds, percent, quoted } from "./way.js";

const CONTROLS = ["play", "back", "next", "step"];

export class Player {
  constructor() {
    this.timer = null;
    $("play").onclick = () => this.timer ? this.stop() : this.play();
    $("back").onclick = () => this.jump(this.at - 1);
    $("next").onclick = () => this.jump(this.at + 1);
    $("step").oninput = e => this.jump(+e.target.value);
    $("speed").onchange = () => { if (this.timer) { this.stop(); this.play(); } };
    $("which").onchange = e => { this.row = +e.target.value; this.lay(); this.show(Infinity); };
    for (const radio of document.querySelectorAll("[name=view]")) radio.onchange = () => this.look(radio.value);
    $("text").onkeydown = e => this.key(e);
    $("text").onpointermove = e => this.tip(e);
    $("text").onpointerleave = () => { $("tip").hidden = true; };
    $("text").onclick = e => {
      const i = e.target.closest(".tok")?.dataset.i;
      this.held = i === undefined ? null : +i;
      this.show(this.at);
    };
    $("plot").onclick = e => this.jump(stepAt(e, this.total));
    this.clear();
  }

  get way() { return this.ways[this.row]; }
  get edited() { return this.correction?.mode === "edit"; }  // then there are no steps, and no tokens but the first ones
  get total() { return Math.max(this.steps, this.way?.last || 0); }

  // -- from the server ----------------------------------------------------------------------------------------------
  clear() {
    this.ways = []; this.row = 0; this.at = 0; this.steps = 0; this.spans = [];
    this.correction = null; this.held = null; this.following = true; this.view = "steps";
    this.stop();
    $("text").replaceChildren();
    $("detail").textContent = "";
    $("step").max = 0;
    for (const id of ["which", "views", "changes-card"]) $(id).hidden = true;
    for (const id of CONTROLS) $(id).disabled = true;
    for (const id of ["bar", "plot-card"]) $(id).hidden = false;
    $("first-view").textContent = "Steps";
    this.mark();
    draw([], 0, 0);
  }
  open(texts, steps) {
    this.clear();
    this.ways = texts.map(text => new Way(text));
    this.steps = steps;
    $("which").replaceChildren(...texts.map((_, i) => el("option", { value: i, textContent: `text ${i + 1}` })));
    $("which").hidden = texts.length < 2;
    $("written").hidden = !this.ways[0].holes.includes(true);
    for (const id of CONTROLS) $(id).disabled = false;
    this.lay();
  }
  begin({ texts, steps }) { this.open(texts, steps); this.show(0); }
  frame(frame) {
    this.ways[frame.row].add(frame);
    if (frame.row !== this.row) return;
    this.plot();
    if (this.following) this.show(Infinity); else this.slide();
  }
  end(result) {
    this.following = false;
    result.samples?.forEach(sample => { if (sample.ended) this.ways[sample.index].end = sample.tokens.length; });
    if (result.samples?.[0].tried.length) this.ranked(result.samples[0].tried);
    this.show(Infinity);
    if (result.changes) this.corrected(result);
  }
  ranked(tried) {  // gaps of open length: all fillings, best first, each with its length and bound
    const options = tried.map(t => el("option", {
      value: t.index, textContent: `${t.lengths.join(" + ")} tokens · ${t.nats.toFixed(2)} nats a token`,
    }));
    $("which").replaceChildren(...options);
    this.row = tried[0].index;
    this.lay();
  }
  fixed(result) {  // a correction without steps
    if (result.mode === "edit") { this.rewritten(result); return; }
    const after = new Map(result.changes.map(c => [c.position, c]));
    this.open([result.doubts.map(d => d.text)], 1);
    this.way.add({
      s: 0, offset: 0, moves: result.changes.map(c => [c.position, 2, c.after]),
      p: result.doubts.map(d => after.get(d.position)?.p_after ?? d.p),
    });
    this.plot();
    this.end(result);
  }
  rewritten(result) {
    const many = (n, what) => `${n || "No"} ${what}${n === 1 ? "" : "s"}`;
    this.open([result.doubts.map(d => d.text)], 0);
    this.following = false;
    for (const id of ["bar", "plot-card"]) $(id).hidden = true;
    $("first-view").textContent = "Text";
    this.corrected(result);
    this.tell(`${many(result.edits.length, "edit")} in ${many(result.nfe, "network evaluation")}`, true);
    if (!result.edits.length) this.look("steps");
  }
  corrected(result) {
    this.correction = result;
    $("views").hidden = false;
    this.table();
    if (result.changes.length || result.edits.length) this.look("diff");
  }

  // -- what is shown ------------------------------------------------------------------------------------------------
  look(view) { this.view = view; this.mark(); this.lay(); this.show(this.at); }
  mark() {
    document.querySelector(`[name=view][value=${this.view}]`).checked = true;
    $("legend").hidden = this.view !== "steps" || this.edited;
    $("doubt-legend").hidden = this.view !== "doubt";
  }
  lay() {  // one span for each token
    this.spans = (this.way?.states[0].tokens || []).map((_, i) => {
      const span = el("span");
      span.dataset.i = i;
      return span;
    });
    $("text").replaceChildren(...this.spans);
    this.plot();
  }
  plot() { draw(this.way?.sums || [], this.total, this.spans.length); }
  jump(n) {  // whoever moves through the steps wants to see them
    this.stop();
    if (this.view !== "steps") this.look("steps");
    this.show(n);
  }
  show(n) {
    if (!this.way) return;
    this.at = Math.max(0, Math.min(n, this.way.last));
    if (this.at < this.way.last) this.following = false;
    if (this.view === "steps" && this.edited) $("text").replaceChildren(this.correction.text);
    else if (this.view === "diff") this.showDiff();
    else if (this.view === "doubt") this.showDoubts();
    else this.showStep();
    this.slide();
    $("detail").textContent = this.held === null ? "" : this.about(this.held).join(" · ");
  }
  tell(line, aloud) {  // what is seen is always so; a screen reader is not told of every step
    $("status").textContent = line;
    if (aloud) $("heard").textContent = line;
  }
  slide() {
    if (this.edited) return;
    const line = this.way.status(this.at, this.total);
    $("step").max = this.total;
    $("step").value = this.at;
    $("step").setAttribute("aria-valuetext", line);
    const moving = this.timer || this.following;  // then every eighth step is enough to hear
    this.tell(line, !moving || this.at % 8 === 0);
    point(this.at, this.total);
  }
  dress(i, kinds, text) {
    const span = this.spans[i], cls = ["tok", ...kinds, this.held === i && "held"].filter(Boolean).join(" ");
    if (span.className !== cls) span.className = cls;
    if (span.said !== text) span.replaceChildren(...worded(text));
    span.said = text;
    span.lastElementChild.style.backgroundColor = "";
    return span;
  }
  showStep() {
    const { tokens, kind } = this.way.states[this.at], end = this.at === this.way.last ? this.way.end : Infinity;
    tokens.forEach((text, i) => {
      const now = KINDS[kind[i]], mask = text === null;
      const ever = !mask && now !== "corrected" && this.way.wasCorrected(i, this.at);
      const special = /^\[(BOS|EOS)\]$/.test(text);
      const written = !mask && this.way.holes[i] && "written";
      this.dress(i, [mask && "mask", special && "special", written, now, ever && "ever", i >= end && "beyond"],
        mask ? "▁▁▁" : text);
    });
  }
  showDiff() {
    const change = new Map(this.correction.changes.map(c => [c.position, c]));
    const part = (tag, text) => tag === "sub" ? el(tag, { textContent: text }) : el(tag, {}, ...worded(text));
    if (this.correction.edits.length) {  // by characters, not by tokens
      const letters = [...this.correction.before], pieces = [];
      let place = 0;
      for (const e of this.correction.edits) {
        pieces.push(letters.slice(place, e.start).join(""), part("del", e.before), part("ins", e.after));
        place = e.end;
      }
      $("text").replaceChildren(...pieces, letters.slice(place).join(""));
      return;
    }
    this.correction.doubts.forEach((d, i) => {
      const c = change.get(i), span = this.dress(i, [], d.text);
      if (!c) return;
      span.said = null;
      span.replaceChildren(
        part("del", c.before), part("sub", percent(c.p_before)), part("ins", c.after), part("sub", percent(c.p_after)));
    });
  }
  showDoubts() {
    this.correction.doubts.forEach((d, i) => {
      const share = (0.75 * d.doubt).toFixed(3);
      this.dress(i, ["doubt"], d.text).lastElementChild.style.backgroundColor = `rgb(var(--doubt) / ${share})`;
    });
  }
  table() {
    const cell = (text, tag) => el("td", {}, tag ? el(tag, { textContent: text }) : text);
    const byEdits = this.edited;
    const head = byEdits ? ["Before", "After", "Kind", "Odds"] : ["Before", "p", "After", "p", "Doubt"];
    $("changes").tHead.rows[0].replaceChildren(...head.map(textContent => el("th", { textContent })));
    const rows = byEdits
      ? this.correction.edits.map(e => el("tr", {},
        cell(e.before, "code"), cell(e.after, "code"), cell(e.kind), cell(odds(e.log_odds))))
      : this.correction.changes.map(c => el("tr", {},
        cell(c.before, "code"), cell(percent(c.p_before)), cell(c.after, "code"), cell(percent(c.p_after)),
        cell(percent(c.doubt))));
    $("changes").tBodies[0].replaceChildren(...rows);
    $("changes").hidden = !rows.length;
    $("unchanged").hidden = rows.length > 0;
    $("changes-card").hidden = false;
  }

  // -- one token ----------------------------------------------------------------------------------------------------
  about(i) {
    if (this.view === "steps" || !this.correction) return this.way.about(i, this.at);
    const d = this.correction.doubts[i], best = `likeliest ${quoted(d.best)} at ${percent(d.p_best)}`;
    return [`${quoted(d.text)}: p = ${percent(d.p)}, doubt ${percent(d.doubt)}`, best];
  }
  tip(e) {
    const i = e.target.closest?.(".tok")?.dataset.i, tip = $("tip");
    tip.hidden = i === undefined || e.pointerType === "touch";
    if (tip.hidden) return;
    tip.textContent = this.about(+i).join("\n");
    const below = e.clientY + 22, fits = below + tip.offsetHeight <= innerHeight;
    tip.style.left = Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = (fits ? below : e.clientY - tip.offsetHeight - 12) + "px";
  }

  // -- time ---------------------------------------------------------------------------------------------------------
  key(e) {
    const jump = { ArrowLeft: this.at - 1, ArrowRight: this.at + 1, Home: 0, End: Infinity }[e.key];
    const by = { ArrowUp: -1, ArrowDown: 1 }[e.key];
    if (jump === undefined && !by && e.key !== " ") return;
    if (this.edited && !by) return;
    e.preventDefault();
    if (e.key === " ") $("play").click(); else if (by) this.hold(by); else this.jump(jump);
  }
  hold(by) {  // what a pointer finds out about a token, for whoever has none
    const last = this.spans.length - 1;
    if (last < 0) return;
    if (this.edited && this.view !== "doubt") this.look("doubt");  // where its tokens are
    this.held = this.held === null ? (by > 0 ? 0 : last) : Math.max(0, Math.min(this.held + by, last));
    this.show(this.at);
    this.spans[this.held].scrollIntoView({ block: "nearest" });
  }
  play() {
    if (!this.way?.last) return;
    if (this.view !== "steps") this.look("steps");
    if (this.at >= this.way.last) this.show(0);
    this.timer = setInterval(() => {
      this.show(this.at + 1);
      if (this.at >= this.way.last) this.stop();
    }, +$("speed").value);
    this.button("❚❚", "Pause");
  }
  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.button("▶", "Play");
    if (this.way) this.slide();
  }
  button(sign, name) { $("play").textContent = sign; $("play").setAttribute("aria-label", name); }
}
