// The server's API: JSON calls, and the stream of steps.
export const store = {
  get(key, where = sessionStorage) { try { return where.getItem(key); } catch { return null; } },
  set(key, value, where = sessionStorage) { try { where.setItem(key, value); } catch { /* private mode: forget it */ } },
};

export class ApiError extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

function headers() {
  const token = store.get("token");
  return { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
}

async function checked(response) {
  if (response.ok) return response;
  let message = `The server answered ${response.status}.`;
  try { message = (await response.json()).error.message; } catch { /* keep the plain one */ }
  throw new ApiError(response.status, message);
}

export async function call(path, body, signal) {
  const options = body === undefined ? { headers: headers(), signal } : { method: "POST", headers: headers(), body: JSON.stringify(body), signal };
  return (await checked(await fetch(path, options))).json();
}

export async function* stream(path, body, signal) {  // yields [event, data]
  const response = await checked(await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify(body), signal }));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const lines = rest.slice(0, end).split("\n");
      rest = rest.slice(end + 2);
      const kind = lines.find(line => line.startsWith("event: ")), data = lines.find(line => line.startsWith("data: "));
      if (kind && data) yield [kind.slice(7), JSON.parse(data.slice(6))];
    }
  }
}
