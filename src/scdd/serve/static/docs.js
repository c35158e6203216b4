// The OpenAPI document as a page: routes, the fields of their bodies, and their answers.
const el = (tag, props = {}, ...children) => { const e = Object.assign(document.createElement(tag), props); e.append(...children); return e; };
const dark = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })() || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
document.documentElement.dataset.theme = dark;
const schema = await (await fetch("/openapi.json")).json(), defs = schema.components.schemas;
const name = ref => ref.split("/").pop();
function kind(s) {
  if (!s) return "";
  if (s.$ref) return name(s.$ref);
  if (s.const !== undefined) return JSON.stringify(s.const);
  if (s.enum) return s.enum.map(v => JSON.stringify(v)).join(" | ");
  if (s.anyOf || s.oneOf) return (s.anyOf || s.oneOf).map(kind).join(" | ");
  return s.type === "array" ? `${kind(s.items)}[]` : s.type || "any";
}
function table(id) {
  const rows = Object.entries(defs[id].properties || {}).map(([key, s]) => el("tr", {}, el("td", {}, el("code", { textContent: key + (defs[id].required?.includes(key) ? " *" : "") })), el("td", { textContent: kind(s) }), el("td", { textContent: [s.description, s.default !== undefined && s.default !== null ? `Default: ${JSON.stringify(s.default)}.` : ""].filter(Boolean).join(" ") })));
  return el("details", {}, el("summary", { textContent: id }), el("div", { className: "scroll" }, el("table", {}, ...rows)));
}
const cards = [];
for (const [path, methods] of Object.entries(schema.paths)) for (const [method, op] of Object.entries(methods)) {
  const body = op.requestBody?.content["application/json"].schema, bodies = body ? (body.oneOf || body.anyOf || [body]).filter(s => s.$ref) : [];
  const answer = op.responses["200"]?.content?.["application/json"]?.schema;
  cards.push(el("article", { className: "card" }, el("h3", {}, el("b", { textContent: method.toUpperCase() }), path), el("p", { textContent: op.description || op.summary }),
    ...bodies.map(s => table(name(s.$ref))), ...(answer?.$ref ? [table(name(answer.$ref))] : [])));
}
document.getElementById("main").replaceChildren(el("p", { className: "hint", textContent: "Fields with * are needed. Every error is {\"error\": {message, type, param, code}}. Where the server has a token, send Authorization: Bearer …." }), ...cards);
