// What both pages need: elements, a memory that may be forbidden, dark and light.
export const $ = id => document.getElementById(id);

export function el(tag, props = {}, ...children) {
  const made = Object.assign(document.createElement(tag), props);
  made.append(...children);
  return made;
}

export function worded(text) {  // a token's mark is on its word alone: the space in front would hang at a line's end
  const [, space, word] = /^(\s*)(\S[^]*)$/.exec(text) || [null, "", text];
  return [space, el("span", { className: "word", textContent: word })];
}

export const store = {
  get(key, where = sessionStorage) { try { return where.getItem(key); } catch { return null; } },
  set(key, value, where = sessionStorage) { try { where.setItem(key, value); } catch { /* then forget it */ } },
};

const dark = matchMedia("(prefers-color-scheme: dark)");

export function theme(name) {
  const chosen = name || store.get("theme", localStorage) || (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = chosen;
  if (name) store.set("theme", name, localStorage);
}
