// A form made from the recipe's JSON schema: choices by `kind`, enumerations, numbers with their bounds.
const el = (tag, props = {}, ...children) => { const e = Object.assign(document.createElement(tag), props); e.append(...children); return e; };
const title = name => ({ top_p: "Top-p", top_k: "Top-k", p_u: "p_u", eta: "η", t_on: "t_on", t_off: "t_off", alpha_on: "α_on", t_peak: "t_peak", gamma: "γ", rho: "ρ" }[name] || name[0].toUpperCase() + name.slice(1).replaceAll("_", " "));

export class Form {
  constructor(root, defs, changed) { this.root = root; this.defs = defs; this.changed = changed; }

  resolve(schema) {
    if (schema.$ref) return { ...this.defs[schema.$ref.split("/").pop()], ...Object.fromEntries(Object.entries(schema).filter(([k]) => k !== "$ref")) };
    const real = schema.anyOf?.filter(s => s.type !== "null");
    return real?.length === 1 ? { ...this.resolve(real[0]), nullable: true, description: schema.description, default: schema.default } : schema;
  }
  variants(schema) {  // the alternatives of a choice, one for each kind
    const found = [];
    for (const option of schema.oneOf || []) {
      const section = this.resolve(option), kind = section.properties.kind;
      for (const name of kind.enum || [kind.const]) found.push([name, section]);
    }
    return found;
  }
  field(id, name, schema, value, own) {  // → { node, read }
    schema = this.resolve(schema);
    if (schema.oneOf) return this.choice(id, name, schema, value, own);
    if (schema.properties) return this.section(id, name, schema, value);
    const label = el("label", { htmlFor: id, textContent: title(name), title: schema.description || "" });
    let input;
    if (schema.enum) {
      input = el("select", { id }, ...schema.enum.map(v => el("option", { value: v, textContent: v })));
      input.value = value ?? schema.default;
    } else {
      const whole = schema.type === "integer";
      input = el("input", { id, type: "number", step: whole ? "1" : "any", placeholder: schema.nullable ? "off" : "" });
      for (const [key, target] of [["minimum", "min"], ["maximum", "max"]]) if (schema[key] !== undefined) input[target] = schema[key];
      const given = value ?? schema.default;
      input.value = given ?? "";
    }
    input.title = schema.description || "";
    input.addEventListener("change", this.changed);
    const number = !schema.enum;
    return { node: el("div", {}, label, input), read: () => !number ? input.value : input.value === "" ? null : Number(input.value) };
  }
  section(id, name, schema, value) {  // fields of one section, side by side
    const parts = Object.entries(schema.properties).filter(([key, s]) => !(key === "kind" && "const" in s))
      .map(([key, s]) => [key, this.field(`${id}-${key}`, key, s, value?.[key])]);
    const box = el("div", { className: parts.length > 1 ? "pair" : "" }, ...parts.map(([, f]) => f.node));
    return { node: box, read: () => Object.fromEntries(parts.map(([key, f]) => [key, f.read()]).filter(([, v]) => v !== null)) };
  }
  choice(id, name, schema, value, own) {  // a picker of kinds, and the fields of the kind that is picked
    const variants = this.variants(schema), fields = el("fieldset", {}), hint = el("p", { className: "hint" });
    const select = el("select", { id }, ...(own ? [el("option", { value: "", textContent: own })] : []), ...variants.map(([kind]) => el("option", { value: kind, textContent: kind })));
    let inner = null;
    const show = given => {
      const found = variants.find(([kind]) => kind === select.value);
      inner = found ? this.section(id, name, { properties: Object.fromEntries(Object.entries(found[1].properties).filter(([key]) => key !== "kind")) }, given) : null;
      fields.replaceChildren(...(inner ? [inner.node] : []));
      fields.hidden = !inner || !inner.node.children.length;
      hint.textContent = (found?.[1].description || "").replace(/ ?\(`[^`]*`\)/g, "");  // the paper's labels are for readers of the code
    };
    select.value = value?.kind ?? (own ? "" : schema.default?.kind ?? variants[0][0]);
    select.addEventListener("change", () => { show(); this.changed(); });
    show(value);
    return { node: el("div", {}, el("label", { htmlFor: id, textContent: title(name), title: schema.description || "" }), select, hint, fields), read: () => select.value ? { kind: select.value, ...inner.read() } : null, select, hint };
  }
}
