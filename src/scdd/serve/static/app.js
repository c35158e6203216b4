// The playground: from the controls to a request, and back.
import { ApiError, call, store, stream } from "./api.js";
import { Form } from "./form.js";
import { Player } from "./player.js";

const $ = id => document.getElementById(id), TASKS = ["generate", "infill", "correct"];
const NAMES = { generate: "Generate", infill: "Fill in", correct: "Correct" };
const SAMPLE = "The river runs to the sea, and the falcon flies over the old town.";
let task = "generate", facts = null, sampling = null, process = null, running = null, masked = new Set();
const player = new Player();

// -- the controls ---------------------------------------------------------------------------------------------------
function choose(name, focus) {
  task = TASKS.includes(name) ? name : "generate";
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const mine = tab.dataset.task === task;
    tab.setAttribute("aria-selected", mine); tab.tabIndex = mine ? 0 : -1; if (mine && focus) tab.focus();
  }
  for (const part of document.querySelectorAll("[data-for]")) part.hidden = part.dataset.for !== task;
  $("panel").setAttribute("aria-labelledby", `tab-${task}`);
  $("run").textContent = NAMES[task];
  $("sampling").hidden = task === "correct";
  remember();
}
const spans = text => [...text.matchAll(/\[MASK(?::\d+)?\]|\s+|[^\s[]+|\[/g)].map(m => m[0]);
const isWord = piece => /\S/.test(piece) && !/^\[MASK(:\d+)?\]$/.test(piece);

function words() {
  const pieces = spans($("infill-text").value);
  masked = new Set([...masked].filter(i => i < pieces.length && isWord(pieces[i])));
  $("words").replaceChildren(...pieces.flatMap((piece, i) => {
    if (!isWord(piece)) return [];
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: piece });
    button.setAttribute("aria-pressed", masked.has(i));
    button.onclick = () => { masked.has(i) ? masked.delete(i) : masked.add(i); button.setAttribute("aria-pressed", masked.has(i)); remember(); };
    return [button];
  }));
}
async function holes() {  // the text with its masked words as holes of as many tokens as the words had
  const pieces = spans($("infill-text").value), out = [];
  for (let i = 0; i < pieces.length; i++) {
    if (!masked.has(i)) { out.push(pieces[i]); continue; }
    let gone = pieces[i];
    while (i + 2 < pieces.length && masked.has(i + 2) && /^\s+$/.test(pieces[i + 1])) { gone += pieces[i + 1] + pieces[i + 2]; i += 2; }
    const spaced = out.length && /\s$/.test(out[out.length - 1]);
    const { tokens } = await call("/v1/tokenize", { text: (spaced ? " " : "") + gone });
    out.push(`[MASK:${tokens.length}]`);
  }
  return out.join("");
}
const number = id => $(id).value === "" ? undefined : Number($(id).value);

async function request() {  // [path, body]
  const body = { steps: number("steps"), seed: number("seed") }, other = process.read();
  if (task !== "correct") {
    const how = sampling.read();
    Object.assign(body, { sampler: how.sampler, grid: how.grid.kind, final: how.final, top_p: how.top_p, temperature: how.temperature, top_k: how.top_k });
  }
  if (other) body.process = other;
  if (task === "generate") Object.assign(body, { prompt: $("prompt").value, suffix: $("suffix").value, length: number("length"), num: number("num") });
  if (task === "infill") body.text = await holes();
  if (task === "correct") {
    Object.assign(body, { text: $("correct-text").value, strength: number("strength"), mode: $("mode").value });
    if ($("mode").value === "pass") { delete body.steps; delete body.seed; }
  }
  return [`/v1/${task}`, JSON.parse(JSON.stringify(body))];
}

// -- running --------------------------------------------------------------------------------------------------------
function say(text) { $("note").textContent = text; }
function fail(error) {
  if (error.name === "AbortError") { say("Stopped."); return; }
  $("error").textContent = error.message; $("error").hidden = false;
  if (error instanceof ApiError && error.status === 401) { $("token-box").hidden = false; $("token").focus(); }
}
async function run() {
  if (running) return;
  running = new AbortController(); $("error").hidden = true; say("");
  $("run").disabled = true; $("halt").disabled = false;
  try {
    if (!facts) await ready();
    const [path, body] = await request();
    if (matchMedia("(max-width: 860px)").matches) $("output").scrollIntoView({ block: "start" });
    if (body.mode === "pass") player.fixed(await call(path, body, running.signal));
    else for await (const [kind, data] of stream("/v1/denoise", { task, ...body }, running.signal)) {
      if (kind === "start") { player.begin(data); say(`Seed ${data.seed}`); }
      if (kind === "frame") player.frame(data);
      if (kind === "result") player.end(data);
      if (kind === "error") throw new ApiError(500, data.error.message);
    }
  } catch (error) { fail(error); }
  finally { running = null; $("run").disabled = false; $("halt").disabled = true; player.following = false; }
}

// -- settings in the address, and as code ---------------------------------------------------------------------------
const FIELDS = ["prompt", "suffix", "length", "num", "infill-text", "correct-text", "strength", "mode", "steps", "seed"];
let restoring = true;
function remember() {
  if (restoring) return;
  const state = new URLSearchParams({ task });
  for (const id of FIELDS) if ($(id).value !== $(id).dataset.first) state.set(id, $(id).value);
  if (masked.size) state.set("masked", [...masked].join(","));
  if (JSON.stringify(sampling.read()) !== sampling.first) state.set("sampling", JSON.stringify(sampling.read()));
  if (process.read()) state.set("process", JSON.stringify(process.read()));
  history.replaceState(null, "", `#${state}`);
}
function parsed(text) { try { return text ? JSON.parse(text) : null; } catch { return null; } }
function restore() {
  const state = new URLSearchParams(location.hash.slice(1));
  for (const id of FIELDS) { $(id).dataset.first ??= $(id).value; $(id).value = state.get(id) ?? $(id).dataset.first; }
  masked = new Set((state.get("masked") || "").split(",").filter(Boolean).map(Number));
  build(parsed(state.get("sampling")), parsed(state.get("process")));
  words(); $("strength-value").textContent = $("strength").value;
  restoring = true; choose(state.get("task") || "generate"); restoring = false;
}
function build(given, other) {
  const { $defs, sampling: schema, process: processes } = facts.recipe_schema, form = new Form(null, $defs, remember);
  const whole = form.resolve(schema), { steps, ...rest } = whole.properties, grid = form.resolve(rest.grid);
  const shown = { sampler: rest.sampler, grid: { properties: { kind: grid.properties.kind }, description: grid.description }, final: rest.final, temperature: rest.temperature, top_p: rest.top_p, top_k: rest.top_k };
  const make = value => {
    const sampler = form.field("sampler", "sampler", shown.sampler, value.sampler), kind = form.field("grid", "time grid", shown.grid.properties.kind, value.grid?.kind);
    const others = ["final", "temperature", "top_p", "top_k"].map(name => [name, form.field(name, name, shown[name], value[name])]);
    const warn = () => { const why = facts.refusals[sampler.select.value]; if (why && !process?.read()) sampler.hint.textContent = why; };
    sampler.select.addEventListener("change", warn); setTimeout(warn);
    const boxes = [kind.node, ...others.map(([, f]) => f.node)], row = document.createElement("div");
    row.className = "pair"; row.append(...boxes);
    $("sampling").replaceChildren(sampler.node, row);
    return { read: () => ({ sampler: sampler.read(), grid: { kind: kind.read() }, ...Object.fromEntries(others.map(([name, f]) => [name, f.read()]).filter(([, v]) => v !== null)) }) };
  };
  sampling = make(facts.sampling); sampling.first = JSON.stringify(sampling.read());
  if (given) { const first = sampling.first; sampling = make(given); sampling.first = first; }
  process = form.field("schedule", "noise process and schedule", processes, other, `as trained (${facts.process.kind})`);
  for (const option of [...process.select.options]) if (option.value === "ar") option.remove();
  process.select.title = `As trained: ${facts.process.kind}, ${facts.process.schedule}`;
  $("process").replaceChildren(process.node);
}
async function copy(text, done) {
  try { await navigator.clipboard.writeText(text); }
  catch {  // no clipboard without a secure origin: the old way
    const area = Object.assign(document.createElement("textarea"), { value: text }); document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
  }
  say(done);
}
const shell = text => `'${text.replaceAll("'", "'\\''")}'`;
async function asCurl() {
  const [path, body] = await request(), auth = store.get("token") ? ` \\\n  -H "Authorization: Bearer $SCDD_TOKEN"` : "";
  return `curl ${location.origin}${path} \\\n  -H 'Content-Type: application/json'${auth} \\\n  -d ${shell(JSON.stringify(body))}`;
}
async function asPython() {
  const [path, body] = await request(), auth = store.get("token") ? `, "Authorization": "Bearer " + os.environ["SCDD_TOKEN"]` : "";
  return `import json${auth && ", os"}\nfrom urllib.request import Request, urlopen\n\nbody = json.loads(${JSON.stringify(JSON.stringify(body))})\nrequest = Request(\n    "${location.origin}${path}",\n    json.dumps(body).encode(),\n    {"Content-Type": "application/json"${auth}},\n)\nanswer = json.load(urlopen(request))\n${task === "correct" ? 'print(answer["text"])' : 'for sample in answer["samples"]:\n    print(sample["text"])'}\n`;
}

// -- beginning ------------------------------------------------------------------------------------------------------
async function ready() {
  facts = await call("/v1/settings");
  $("model").textContent = `${facts.model} · ${facts.process.kind}`;
  $("model").title = `${facts.process.kind}, ${facts.process.schedule}; context ${facts.context}`;
  for (const [id, most] of [["length", facts.limits.length], ["steps", facts.limits.steps], ["num", facts.limits.texts]]) $(id).max = most;
  $("length").value ||= facts.room; $("steps").value ||= facts.sampling.steps; $("seed").value ||= 0;
  $("infill-text").value ||= SAMPLE; $("correct-text").value ||= SAMPLE;
  restore();
}
function theme(name) { document.documentElement.dataset.theme = name; store.set("theme", name, localStorage); }
theme(store.get("theme", localStorage) || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
$("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
for (const tab of document.querySelectorAll("[role=tab]")) {
  tab.onclick = () => choose(tab.dataset.task);
  tab.onkeydown = e => { const by = { ArrowRight: 1, ArrowLeft: 2 }[e.key]; if (by) { e.preventDefault(); choose(TASKS[(TASKS.indexOf(task) + by) % 3], true); } };
}
$("panel").onsubmit = e => { e.preventDefault(); run(); };
document.addEventListener("keydown", e => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) { e.preventDefault(); run(); } });
$("halt").onclick = () => running?.abort();
$("dice").onclick = () => { $("seed").value = Math.floor(Math.random() * 2 ** 31); remember(); };
$("unmask").onclick = () => { masked.clear(); words(); remember(); };
$("infill-text").oninput = () => { masked.clear(); words(); };
$("strength").oninput = () => { $("strength-value").textContent = $("strength").value; };
$("token").onchange = () => { store.set("token", $("token").value); $("token-box").hidden = true; $("error").hidden = true; if (!facts) ready().catch(fail); };
for (const id of FIELDS) $(id).addEventListener("change", remember);
$("share").onclick = () => { remember(); copy(location.href, "The link is in the clipboard."); };
$("copy-curl").onclick = () => asCurl().then(text => copy(text, "The command is in the clipboard.")).catch(fail);
$("copy-python").onclick = () => asPython().then(text => copy(text, "The program is in the clipboard.")).catch(fail);
addEventListener("hashchange", () => { if (facts) restore(); });
choose("generate");
if (matchMedia("(max-width: 860px)").matches) $("settings").open = false;
ready().catch(fail);
