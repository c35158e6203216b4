// Sampler, filters, noise process and schedule, as the recipe's schema has them.
import { Form, known } from "./form.js";
import { $, el } from "./page.js";

const OTHERS = ["final", "temperature", "top_p", "top_k"];

export class Pickers {
  constructor(facts, changed) {
    this.facts = facts;
    this.form = new Form(facts.recipe_schema.$defs, changed);
    this.process = null;
    this.lay({ ...facts.sampling, grid: facts.sampling.grid.kind });
    this.usual = JSON.stringify(this.read());
  }

  lay(sampling, process) {
    const { form, facts } = this, { sampling: schema, process: processes } = facts.recipe_schema;
    const own = form.resolve(schema).properties, grid = form.resolve(own.grid).properties.kind;
    this.sampler = form.field("sampler", "sampler", own.sampler, sampling.sampler);
    this.fields = [
      ["grid", form.field("grid", "time grid", grid, sampling.grid)],
      ...OTHERS.map(name => [name, form.field(name, name, own[name], sampling[name])]),
    ];
    const row = el("div", { className: "pair" }, ...this.fields.map(([, field]) => field.node));
    $("sampling").replaceChildren(this.sampler.node, row);
    const trained = `as trained (${facts.process.kind})`;
    this.process = form.field("schedule", "noise process and schedule", processes, process, trained);
    const { select } = this.process;
    [...select.options].find(option => option.value === "ar")?.remove();
    select.title = `As trained: ${facts.process.kind}, ${facts.process.schedule}`;
    $("process").replaceChildren(this.process.node);
    for (const picker of [this.sampler, this.process]) picker.select.addEventListener("change", () => this.warn());
    this.warn();
  }
  warn() {  // a sampler that does not fit the model says why
    const why = this.facts.refusals[this.sampler.select.value];
    if (!why || this.process.read()) return;
    this.sampler.hint.textContent = why;
    this.sampler.hint.hidden = false;
  }

  read() { return { sampler: this.sampler.read(), ...known(this.fields) }; }

  get state() {  // what differs from the model's own settings
    const sampling = JSON.stringify(this.read()), process = this.process.read();
    return {
      ...(sampling === this.usual ? {} : { sampling }),
      ...(process ? { process: JSON.stringify(process) } : {}),
    };
  }
  restore(state) {
    const given = name => { try { return JSON.parse(state.get(name)); } catch { return null; } };
    this.lay(given("sampling") || JSON.parse(this.usual), given("process"));
  }
}
