// The plot of moves: one bar a step, a line where the player stands.
import { $ } from "./page.js";

const SVG = "http://www.w3.org/2000/svg", WIDTH = 900, HEIGHT = 150, FLOOR = 149;

function shape(tag, props) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(props)) made.setAttribute(key, value);
  return made;
}

export function draw(sums, total, length) {
  const top = Math.max(4, ...sums.map(s => s[0] + s[1] + s[2])), width = WIDTH / (total || 1);
  const shapes = [shape("line", { class: "grid", x1: 0, x2: WIDTH, y1: FLOOR, y2: FLOOR })];
  sums.forEach((sum, n) => {
    let y = FLOOR;
    ["u", "c", "r"].forEach((kind, k) => {
      const height = sum[k] / top * 140;
      if (!height) return;
      y -= height;
      shapes.push(shape("rect", { class: kind, x: (n + .1) * width, y, width: width * .8, height }));
    });
  });
  shapes.push(shape("line", { class: "cursor", x1: 0, x2: 0, y1: 0, y2: HEIGHT }));
  $("plot").replaceChildren(...shapes);
  const [unmasked, corrected, remasked] = [0, 1, 2].map(k => sums.reduce((all, s) => all + s[k], 0));
  const line = length
    ? `${unmasked} unmasked · ${corrected} corrected (${(corrected / length).toFixed(2)} a token) · `
      + `${remasked} remasked, over ${length} tokens`
    : "One bar a step: how many tokens were unmasked, corrected and remasked in it.";
  $("sums").textContent = line;
  $("plot").setAttribute("aria-label", `Moves in each step: ${line}`);
}

export function point(at, total) {
  const cursor = $("plot").querySelector(".cursor"), x = (at - .5) / total * WIDTH;
  cursor?.setAttribute("x1", x);
  cursor?.setAttribute("x2", x);
}

export function stepAt(event, total) {
  const box = $("plot").getBoundingClientRect();
  return Math.round((event.clientX - box.left) / box.width * total + .5);
}
