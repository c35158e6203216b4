// The OpenAPI document as a page: routes, the fields of their bodies, and their answers.
import { $, el, theme } from "./page.js";

theme();
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
  const { properties = {}, required = [] } = defs[id];
  const rows = Object.entries(properties).map(([key, s]) => {
    const usual = s.default === undefined || s.default === null ? "" : `Default: ${JSON.stringify(s.default)}.`;
    const field = el("code", { textContent: key + (required.includes(key) ? " *" : "") });
    const about = [s.description, usual].filter(Boolean).join(" ");
    return el("tr", {}, el("td", {}, field), el("td", { textContent: kind(s) }), el("td", { textContent: about }));
  });
  const summary = el("summary", { textContent: id });
  return el("details", {}, summary, el("div", { className: "scroll" }, el("table", {}, ...rows)));
}

function card(path, method, operation) {
  const body = operation.requestBody?.content["application/json"].schema;
  const bodies = body ? (body.oneOf || body.anyOf || [body]).filter(s => s.$ref) : [];
  const answer = operation.responses["200"]?.content?.["application/json"]?.schema;
  return el("article", { className: "card" },
    el("h3", {}, el("b", { textContent: method.toUpperCase() }), path),
    el("p", { textContent: operation.description || operation.summary }),
    ...bodies.map(s => table(name(s.$ref))), ...(answer?.$ref ? [table(name(answer.$ref))] : []));
}

const hint = el("p", {
  className: "hint",
  textContent: "Fields with * are needed. Every error is {\"error\": {message, type, param, code}}. "
    + "Where the server has a token, send Authorization: Bearer ….",
});
const cards = Object.entries(schema.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => card(path, method, operation)));
$("main").replaceChildren(hint, ...cards);
