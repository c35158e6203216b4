// A request as a program that sends it. The token stays out of it: it is read from the environment.
const shell = text => `'${text.replaceAll("'", "'\\''")}'`;

export function asCurl(path, body, guarded) {
  const auth = guarded ? ` \\\n  -H "Authorization: Bearer $SCDD_TOKEN"` : "";
  const json = shell(JSON.stringify(body));
  return `curl ${location.origin}${path} \\\n  -H 'Content-Type: application/json'${auth} \\\n  -d ${json}`;
}

export function asPython(path, body, guarded) {
  const auth = guarded ? `, "Authorization": "Bearer " + os.environ["SCDD_TOKEN"]` : "";
  const shown = path.endsWith("correct")
    ? 'print(answer["text"])'
    : 'for sample in answer["samples"]:\n    print(sample["text"])';
  return `import json${guarded ? ", os" : ""}
from urllib.request import Request, urlopen

body = json.loads(${JSON.stringify(JSON.stringify(body))})
request = Request(
    "${location.origin}${path}",
    json.dumps(body).encode(),
    {"Content-Type": "application/json"${auth}},
)
answer = json.load(urlopen(request))
${shown}
`;
}
