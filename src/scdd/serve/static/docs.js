// The OpenAPI document as a page: routes, the fields of their bodies, and their answers.
import { $, el, theme } from "./page.js";

theme();
const schema = await (await fetch("/openapi.json")).json(), defs = schema.components.schemas;
const name = ref => ref.split("/").pop();
const options = s => s?.oneOf || s?.anyOf || (s ? [s] : []);  // a choice's alternatives
const called = id => id.replace(/_([A-Za-z]+)_$/, " of $1");  // a generic's own name has its parts joined

function kind(s) {
  if (!s) return "";
  if (s.$ref) return called(name(s.$ref));
  if (s.const !== undefined) return JSON.stringify(s.const);
  if (s.enum) return s.enum.map(v => JSON.stringify(v)).join(" | ");
  if (s.anyOf || s.oneOf) return (s.anyOf || s.oneOf).map(kind).join(" | ");
  return s.type === "array" ? `${kind(s.items)}[]` : s.type || "any";
}

function inside(id, found = new Set()) {  // the schema of this name, and all that it is made of
  if (found.has(id) || !defs[id]) return found;
  found.add(id);
  const refs = s => s.$ref ? [name(s.$ref)] : [...options(s).flatMap(o => o === s ? [] : refs(o)), ...(s.items ? refs(s.items) : [])];
  for (const ref of Object.values(defs[id].properties || {}).flatMap(refs)) inside(ref, found);
  return found;
}

function table(id) {
  const { properties = {}, required = [] } = defs[id];
  const rows = Object.entries(properties).map(([key, s]) => {
    const usual = s.default === undefined || s.default === null ? "" : `Default: ${JSON.stringify(s.default)}.`;
    const field = el("code", { textContent: key + (required.includes(key) ? " *" : "") });
    const about = [s.description, usual].filter(Boolean).join(" ");
    return el("tr", {}, el("td", {}, field), el("td", { textContent: kind(s) }), el("td", { textContent: about }));
  });
  const summary = el("summary", { textContent: called(id) });
  return el("details", {}, summary, el("div", { className: "scroll" }, el("table", {}, ...rows)));
}

function card(path, method, operation) {
  const body = operation.requestBody?.content["application/json"].schema;
  const bodies = options(body).filter(s => s.$ref);
  const answers = options(operation.responses["200"]?.content?.["application/json"]?.schema).filter(s => s.$ref);
  const replies = new Set(answers.flatMap(s => [...inside(name(s.$ref))]));
  return el("article", { className: "card" },
    el("h3", {}, el("b", { textContent: method.toUpperCase() }), path),
    el("p", { textContent: operation.description || operation.summary }),
    ...bodies.map(s => table(name(s.$ref))), ...[...replies].map(table));
}

const hint = el("p", {
  className: "hint",
  textContent: "Fields with * are needed. Every error is {\"error\": {message, type, param, code}}. "
    + "Where the server has a token, send Authorization: Bearer ….",
});
const cards = Object.entries(schema.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => card(path, method, operation)));
$("main").replaceChildren(hint, ...cards);
