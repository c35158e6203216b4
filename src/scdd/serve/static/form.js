// A form made from the recipe's JSON schema: choices by `kind`, enumerations, numbers with their bounds.
import { el } from "./page.js";

const TITLES = { top_p: "Top-p", top_k: "Top-k", p_u: "p_u", t_on: "t_on", t_off: "t_off", t_peak: "t_peak",
  eta: "η", alpha_on: "α_on", gamma: "γ", rho: "ρ" };
const title = name => TITLES[name] || name[0].toUpperCase() + name.slice(1).replaceAll("_", " ");
const without = (object, key) => Object.fromEntries(Object.entries(object).filter(([k]) => k !== key));
const known = fields => Object.fromEntries(fields.map(([key, f]) => [key, f.read()]).filter(([, v]) => v !== null));

export class Form {  // every field is { node, read }; a choice also has { select, hint }
  constructor(defs, changed) { this.defs = defs; this.changed = changed; }

  resolve(schema) {
    if (schema.$ref) return { ...this.defs[schema.$ref.split("/").pop()], ...without(schema, "$ref") };
    const real = schema.anyOf?.filter(s => s.type !== "null");
    if (real?.length !== 1) return schema;
    return { ...this.resolve(real[0]), nullable: true, description: schema.description, default: schema.default };
  }

  variants(schema) {  // the alternatives of a choice, one for each kind
    return (schema.oneOf || []).flatMap(option => {
      const section = this.resolve(option), kind = section.properties.kind;
      return (kind.enum || [kind.const]).map(name => [name, section]);
    });
  }

  field(id, name, schema, value, own) {
    schema = this.resolve(schema);
    if (schema.oneOf) return this.choice(id, name, schema, value, own);
    if (schema.properties) return this.section(id, schema, value);
    const about = schema.description || "", given = value ?? schema.default ?? "";
    const input = schema.enum ? this.options(id, schema.enum) : this.number(id, schema);
    input.value = given;
    input.title = about;
    input.addEventListener("change", this.changed);
    const label = el("label", { htmlFor: id, textContent: title(name), title: about });
    const read = () => schema.enum ? input.value : input.value === "" ? null : Number(input.value);
    return { node: el("div", {}, label, input), read };
  }

  options(id, names, first = []) {
    return el("select", { id }, ...first, ...names.map(name => el("option", { value: name, textContent: name })));
  }

  number(id, schema) {
    const step = schema.type === "integer" ? "1" : "any";
    const input = el("input", { id, type: "number", step, placeholder: schema.nullable ? "off" : "" });
    if (schema.minimum !== undefined) input.min = schema.minimum;
    if (schema.maximum !== undefined) input.max = schema.maximum;
    return input;
  }

  section(id, schema, value) {  // fields of one section, side by side
    const parts = Object.entries(schema.properties).filter(([key, s]) => !(key === "kind" && "const" in s))
      .map(([key, s]) => [key, this.field(`${id}-${key}`, key, s, value?.[key])]);
    const node = el("div", { className: parts.length > 1 ? "pair" : "" }, ...parts.map(([, f]) => f.node));
    return { node, read: () => known(parts) };
  }

  choice(id, name, schema, value, own) {  // a picker of kinds, and the fields of the kind that is picked
    const variants = this.variants(schema), fields = el("fieldset"), hint = el("p", { className: "hint" });
    const first = own ? [el("option", { value: "", textContent: own })] : [];
    const select = this.options(id, variants.map(([kind]) => kind), first);
    let inner = null;
    const show = given => {
      const section = variants.find(([kind]) => kind === select.value)?.[1];
      inner = section ? this.section(id, { properties: without(section.properties, "kind") }, given) : null;
      fields.replaceChildren(...(inner ? [inner.node] : []));
      fields.hidden = !inner?.node.children.length;
      // the paper's labels are for readers of the code
      hint.textContent = (section?.description || "").replace(/ ?\(`[^`]*`\)/g, "");
      hint.hidden = !hint.textContent;
    };
    select.value = value?.kind ?? (own ? "" : schema.default?.kind ?? variants[0][0]);
    select.addEventListener("change", () => { show(); this.changed(); });
    show(value);
    const label = el("label", { htmlFor: id, textContent: title(name), title: schema.description || "" });
    const read = () => select.value ? { kind: select.value, ...inner.read() } : null;
    return { node: el("div", {}, label, select, hint, fields), read, select, hint };
  }
}

export { known };
