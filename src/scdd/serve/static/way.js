// One text's way: its states after each step, put together from the differences that the server sends.
export const KINDS = ["", "unmasked", "corrected", "remasked"];
export const quoted = text => text === null ? "mask" : JSON.stringify(text);

export function percent(p) {
  if (p === null || p === undefined) return "?";
  return p > 0 && p < 0.001 ? "<0.1%" : (100 * p).toFixed(1) + "%";
}

export function odds(x) {  // as people say them; beyond a million nobody counts
  const most = 1e6, size = Math.exp(Math.min(Math.abs(x), Math.log(most)));
  const said = Math.abs(x) > Math.log(most) ? `> ${most.toLocaleString("en")}` : Math.round(size).toLocaleString("en");
  return x > 0 ? `${said} : 1` : `1 : ${said}`;
}

export class Way {
  constructor(start) {
    const kind = new Uint8Array(start.length), p = new Array(start.length).fill(null);
    this.states = [{ tokens: start, kind, p, s: null }];
    this.past = start.map(() => []);  // for each position: [state, text, kind]
    const given = start.some(text => text !== null);
    this.holes = start.map(text => given && text === null);  // what is written between what was given
    this.sums = [];  // for each step: how many were unmasked, corrected, remasked
    this.end = Infinity;  // beyond an end-of-text, nothing is part of the text
  }

  get last() { return this.states.length - 1; }

  add({ moves, p: seen, offset, s }) {
    const { tokens: before, p: known } = this.states[this.last];
    const tokens = before.slice(), p = known.slice(), kind = new Uint8Array(tokens.length), sums = [0, 0, 0];
    for (const [i, k, text] of moves) {
      tokens[i] = text;
      kind[i] = k;
      sums[k - 1]++;
      this.past[i].push([this.states.length, text, k]);
    }
    seen.forEach((value, i) => { p[offset + i] = value; });
    this.states.push({ tokens, kind, p, s });
    this.sums.push(sums);
  }

  wasCorrected(i, at) {  // before the step that is shown
    return this.past[i].some(([n, , k]) => k === 2 && n < at);
  }

  about(i, at) {
    const { tokens, p } = this.states[at];
    const chance = tokens[i] === null ? "" : `, p = ${percent(p[i])}`;
    const told = this.past[i].filter(([n]) => n <= at).slice(-6)
      .map(([n, text, k]) => `step ${n}: ${k === 3 ? "remasked" : `${KINDS[k]} → ${quoted(text)}`}`);
    return [quoted(tokens[i]) + chance, ...told];
  }

  status(at, total) {
    const { tokens, s } = this.states[at], masks = tokens.filter(text => text === null).length;
    const moved = at ? this.sums[at - 1].map((n, k) => n && `${n} ${KINDS[k + 1]}`).filter(Boolean).join(", ") : "";
    const time = s === null ? "" : `, t = ${s.toFixed(3)}`;
    const rest = `${masks} mask${masks === 1 ? "" : "s"} left`;
    return `Step ${at} of ${total}${time}: ${moved ? `${moved}; ` : ""}${rest}`;
  }
}
