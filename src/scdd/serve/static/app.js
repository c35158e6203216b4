// The playground: from the controls to a request, and back.
import { ApiError, call, stream } from "./api.js";
import { asCurl, asPython } from "./code.js";
import { EXAMPLES } from "./examples.js";
import { $, el, store, theme } from "./page.js";
import { Pickers } from "./pickers.js";
import { Player } from "./player.js";
import { Words } from "./words.js";

const NAMES = { generate: "Generate", infill: "Fill in", correct: "Correct" }, TASKS = Object.keys(NAMES);
const TEXTS = { generate: "prompt", infill: "infill-text", correct: "correct-text" };
const OWN = { generate: ["prompt", "suffix", "length", "num"], infill: ["infill-text"], correct: ["correct-text", "strength", "mode"] };
const FIELDS = [...Object.values(OWN).flat(), "steps", "seed"];
const steps = { usual: {}, chosen: {} };  // of drawing and of repairs: one field, and two numbers
const tabs = [...document.querySelectorAll("[role=tab]")], phone = matchMedia("(max-width: 860px)");
const player = new Player(), words = new Words(remember);
let task = "generate", facts = null, pickers = null, running = null, drawn = null, quiet = true;

// -- the controls ---------------------------------------------------------------------------------------------------
const kind = () => task === "correct" ? "repair" : "sampling";
const mode = () => task === "correct" ? $("mode").value || "reverse" : "";
const unsent = () => ({ edit: ["steps"], pass: ["steps", "seed"] })[mode()] || [];  // what this method does not look at
const sent = () => [...OWN[task], ...["steps", "seed"].filter(id => !unsent().includes(id))];
const usual = id => id === "steps" ? steps.usual[kind()] : $(id).dataset.usual;

function choose(name, focus) {
  steps.chosen[kind()] = $("steps").value;
  task = TASKS.includes(name) ? name : "generate";
  $("steps").value = steps.chosen[kind()] || usual("steps") || "";
  for (const tab of tabs) {
    const mine = tab.dataset.task === task;
    tab.setAttribute("aria-selected", mine);
    tab.tabIndex = mine ? 0 : -1;
    if (mine && focus) tab.focus();
  }
  for (const part of document.querySelectorAll("[data-for]")) part.hidden = part.dataset.for !== task;
  $("panel").setAttribute("aria-labelledby", `tab-${task}`);
  $("run").textContent = NAMES[task];
  $("sampling").hidden = task === "correct";
  fit();
  remember();
}
function fit() { for (const id of ["steps", "seed"]) $(`${id}-field`).hidden = unsent().includes(id); }
function example() {  // the next one of this task
  const all = EXAMPLES[task], field = $(TEXTS[task]);
  const next = all[(all.findIndex(({ text }) => text === field.value) + 1) % all.length];
  field.value = next.text;
  if (task === "infill") words.state = usualMask();
  remember();
}
const number = id => $(id).value === "" ? undefined : Number($(id).value);

async function request() {  // [path, body]; JSON leaves out what is undefined
  const body = { steps: number("steps"), seed: number("seed"), process: pickers.process.read() || undefined };
  if (task !== "correct") Object.assign(body, pickers.read());
  if (task === "generate") {
    const [length, num] = [number("length"), number("num")];
    Object.assign(body, { prompt: $("prompt").value, suffix: $("suffix").value, length, num });
  }
  if (task === "infill") body.text = await words.holes();
  if (task === "correct") {
    Object.assign(body, { text: $("correct-text").value, strength: number("strength"), mode: mode() });
  }
  for (const id of unsent()) body[id] = undefined;
  return [`/v1/${task}`, JSON.parse(JSON.stringify(body))];
}
async function again() {  // the request that gave what is shown, as far as the controls still say it
  const [path, body] = await request();
  return [path, body.seed === undefined && drawn !== null && body.mode !== "pass" ? { ...body, seed: drawn } : body];
}

// -- running --------------------------------------------------------------------------------------------------------
function say(text) { $("note").textContent = text; }
function fail(error) {
  if (error.name === "AbortError") { say("Stopped."); return; }
  $("error").textContent = error.message;
  $("error").hidden = false;
  if (error instanceof ApiError && error.status === 401) { $("token-box").hidden = false; $("token").focus(); }
}
async function walk() {
  if (!facts) await ready();
  const [path, body] = await request();
  if (phone.matches) $("output").scrollIntoView({ block: "start" });
  if (body.mode && body.mode !== "reverse") {
    const found = await call(path, body, running.signal);
    player.fixed(found);
    if (body.mode === "edit") { drawn = found.seed; say(`Seed ${drawn}`); }
    return;
  }
  for await (const [kind, data] of stream("/v1/denoise", { task, ...body }, running.signal)) {
    if (kind === "start") { player.begin(data); drawn = data.seed; say(`Seed ${data.seed}`); }
    if (kind === "frame") player.frame(data);
    if (kind === "result") player.end(data);
  }
}
async function run() {
  if (running) return;
  running = new AbortController();
  $("error").hidden = $("offer").hidden = true;
  say("");
  $("run").disabled = true;
  $("halt").disabled = false;
  try { await walk(); } catch (error) { fail(error); }
  running = null;
  $("run").disabled = false;
  $("halt").disabled = true;
  player.following = false;
}

// -- settings in the address, and as code ---------------------------------------------------------------------------
function usualMask() {  // the example's own holes need not be said
  return words.find(EXAMPLES.infill.find(({ text }) => text === $("infill-text").value)?.masked || []);
}
function remember() {  // what this task sends, and nothing that was written for another one
  if (quiet) return;
  const { process, sampling } = pickers.state, state = new URLSearchParams({ task });
  if (process) state.set("process", process);
  if (sampling && task !== "correct") state.set("sampling", sampling);
  for (const id of sent()) if ($(id).value !== usual(id)) state.set(id, $(id).value);
  if (task === "infill" && words.state !== usualMask()) state.set("masked", words.state);
  history.replaceState(null, "", `#${state}`);
}
function restore() {
  const state = new URLSearchParams(location.hash.slice(1));
  quiet = true;
  choose(state.get("task"));
  // a link says nothing about other tasks, unless it is of a time when all were in it
  for (const id of FIELDS) if (state.has(id) || sent().includes(id)) $(id).value = state.get(id) ?? usual(id);
  if (state.has("masked") || state.has("infill-text") || task === "infill" || !words.state) words.state = state.get("masked") ?? usualMask();
  pickers.restore(state);
  $("strength-value").textContent = $("strength").value;
  fit();
  quiet = false;
  $("offer").hidden = ![...state].length;  // nothing runs before somebody says so: a link may come from anywhere
}
async function copy(text, done) {
  try { await navigator.clipboard.writeText(text); }
  catch {  // no clipboard without a secure origin: the old way
    const area = el("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say(done);
}
async function copyCode(write, done) {
  try { await copy(write(...await again(), store.get("token") !== null), done); } catch (error) { fail(error); }
}
function share() {  // a link shows others the same text, so it needs the seed
  if (!$("seed").value && drawn !== null && sent().includes("seed")) $("seed").value = drawn;
  remember();
  copy(location.href, "The link is in the clipboard.");
}

// -- beginning ------------------------------------------------------------------------------------------------------
async function ready() {
  facts = await call("/v1/settings");
  const { model, parameters, process, context, limits, length, sampling, repair } = facts;
  const size = `${(parameters / 1e6).toPrecision(2)} M`;
  $("model").textContent = `${model} · ${size}`;
  $("model").title = `${size} parameters, context ${context}; ${process.kind}, ${process.schedule}`;
  $("length").max = limits.length;
  $("steps").max = limits.steps;
  $("num").max = limits.texts;
  $("length").value ||= length;
  Object.assign(steps.usual, { sampling: String(sampling.steps), repair: String(repair.steps) });
  $("mode").value ||= repair.mode;
  if ($("strength").value === $("strength").defaultValue) $("strength").value = repair.strength;
  $("infill-text").value ||= EXAMPLES.infill[0].text;
  $("correct-text").value ||= EXAMPLES.correct[0].text;
  for (const id of FIELDS) $(id).dataset.usual = $(id).value;
  pickers = new Pickers(facts, remember);
  restore();
}
function listen() {
  for (const tab of tabs) {
    tab.onclick = () => choose(tab.dataset.task);
    tab.onkeydown = e => {
      const by = { ArrowRight: 1, ArrowLeft: TASKS.length - 1 }[e.key];
      if (!by) return;
      e.preventDefault();
      choose(TASKS[(TASKS.indexOf(task) + by) % TASKS.length], true);
    };
  }
  $("panel").onsubmit = e => { e.preventDefault(); run(); };
  document.addEventListener("keydown", e => {
    if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) { e.preventDefault(); run(); }
  });
  for (const button of document.querySelectorAll(".example")) button.onclick = example;
  $("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  $("accept").onclick = run;
  $("halt").onclick = () => running?.abort();
  $("dice").onclick = () => { $("seed").value = Math.floor(Math.random() * 2 ** 31); remember(); };
  $("unmask").onclick = () => { words.state = ""; remember(); };
  $("infill-text").oninput = () => { words.state = ""; };
  $("strength").oninput = () => { $("strength-value").textContent = $("strength").value; };
  $("token").onchange = () => {
    store.set("token", $("token").value);
    $("token-box").hidden = $("error").hidden = true;
    if (!facts) ready().catch(fail);
  };
  $("mode").addEventListener("change", fit);
  for (const id of FIELDS) $(id).addEventListener("change", remember);
  $("share").onclick = share;
  $("copy-curl").onclick = () => copyCode(asCurl, "The command is in the clipboard.");
  $("copy-python").onclick = () => copyCode(asPython, "The program is in the clipboard.");
  addEventListener("hashchange", () => { if (facts) restore(); });
}

theme();
listen();
choose("generate");
if (phone.matches) $("settings").open = false;
ready().catch(fail);
