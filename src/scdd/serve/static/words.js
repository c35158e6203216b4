// A text whose words can be masked by pressing them.
import { call } from "./api.js";
import { $, el } from "./page.js";

const pieces = () => [...$("infill-text").value.matchAll(/\[MASK(?::\d+(?:-\d+)?)?\]|\s+|[^\s[]+|\[/g)].map(m => m[0]);
const isWord = piece => /\S/.test(piece) && !/^\[MASK(:\d+(-\d+)?)?\]$/.test(piece);

export class Words {
  constructor(changed) { this.changed = changed; this.masked = new Set(); }

  get state() { return [...this.masked].join(","); }
  set state(text) { this.masked = new Set(text.split(",").filter(Boolean).map(Number)); this.lay(); }

  find(words) {  // the state with these words masked, the first of each
    const all = pieces();
    return words.map(word => all.indexOf(word)).filter(i => i >= 0).join(",");
  }

  lay() {
    const all = pieces();
    this.masked = new Set([...this.masked].filter(i => i < all.length && isWord(all[i])));
    $("words").replaceChildren(...all.flatMap((piece, i) => isWord(piece) ? [this.button(piece, i)] : []));
  }
  button(piece, i) {
    const made = el("button", { type: "button", textContent: piece });
    const show = () => made.setAttribute("aria-pressed", this.masked.has(i));
    made.onclick = () => {
      if (!this.masked.delete(i)) this.masked.add(i);
      show();
      this.changed();
    };
    show();
    return made;
  }

  async holes() {  // the text with its masked words as holes of as many tokens as the words had
    const all = pieces(), out = [];
    for (let i = 0; i < all.length; i++) {
      if (!this.masked.has(i)) { out.push(all[i]); continue; }
      let gone = all[i];
      while (this.masked.has(i + 2) && /^\s+$/.test(all[i + 1])) {
        gone += all[i + 1] + all[i + 2];
        i += 2;
      }
      const space = /\s$/.test(out.at(-1) || "") ? " " : "";  // tokens carry their space in front
      const { tokens } = await call("/v1/tokenize", { text: space + gone });
      out.push(`[MASK:${tokens.length}]`);
    }
    return out.join("");
  }
}
