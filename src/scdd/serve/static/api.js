// The server's API: JSON calls, and the stream of steps.
import { store } from "./page.js";

export class ApiError extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

function headers() {
  const token = store.get("token");
  return { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
}

async function answered(path, body, signal) {
  const sent = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, { headers: headers(), signal, ...sent });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached: is it still running?");
  }
  if (response.ok) return response;
  let message = `The server answered ${response.status}.`;
  try { message = (await response.json()).error.message; } catch { /* keep the plain one */ }
  throw new ApiError(response.status, message);
}

export async function call(path, body, signal) {
  return (await answered(path, body, signal)).json();
}

export async function* stream(path, body, signal) {  // yields [event, data]; throws if it ends before `done`
  const response = await answered(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ApiError(0, "The server broke off: is it still running?");
    rest += value;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const lines = rest.slice(0, end).split("\n");
      rest = rest.slice(end + 2);
      const kind = lines.find(line => line.startsWith("event: "))?.slice(7);
      const data = lines.find(line => line.startsWith("data: "))?.slice(6);
      if (kind === "done") return;
      if (kind === "error") throw new ApiError(500, JSON.parse(data).error.message);
      if (kind) yield [kind, JSON.parse(data)];  // the others are comments, which keep the connection open
    }
  }
}
