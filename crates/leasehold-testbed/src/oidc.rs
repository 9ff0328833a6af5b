//! An OIDC issuer: oauth2-mock-server, with a handle to sign what a test wants, to change its keys and to misbehave.

use crate::server::answer_to;
use crate::{Server, Spec, free_port, node_module, program};
use serde_json::{Value, json};

/// Each generation of keys is a server of the package's own; the newest answers. Its own address does both: what is below
/// `/control` is the test's.
const SCRIPT: &str = r#"
import { createHmac, createPublicKey } from 'node:crypto';
import { createServer } from 'node:http';
import { OAuth2Server } from 'MODULE';

const url = 'http://127.0.0.1:PORT';
const generations = [];
let mode = 'well';
let fetches = 0;

async function rotate(algorithm, keep) {
  const server = new OAuth2Server();
  server.issuer.url = url;
  const key = await server.issuer.keys.generate(algorithm);
  if (keep) {
    for (const old of generations) await server.issuer.keys.add(old.key);
  }
  generations.push({ server, key });
  return key.kid;
}

async function token({ generation, header, claims, hmac }) {
  const { server, key } = generations[generation ?? generations.length - 1];
  const change = (head, payload) => {
    Object.assign(head, header);
    Object.assign(payload, claims);
    for (const part of [head, payload]) {
      for (const name of Object.keys(part)) if (part[name] === null) delete part[name];
    }
  };
  const signed = await server.issuer.buildToken({ kid: key.kid, scopesOrTransform: change });
  if (!hmac) return signed;
  const head = Buffer.from(JSON.stringify({ alg: hmac, typ: 'JWT', kid: key.kid })).toString('base64url');
  const { kty, n, e } = key;
  const secret = createPublicKey({ key: { kty, n, e }, format: 'jwk' }).export({ type: 'spki', format: 'pem' });
  const message = head + '.' + signed.split('.')[1];
  return message + '.' + createHmac('sha256', secret).update(message).digest('base64url');
}

async function control(path, body) {
  if (path === '/control/rotate') return await rotate(body.algorithm, body.keep);
  if (path === '/control/token') return await token(body);
  if (path === '/control/mode') return (mode = body.mode);
  if (path === '/control/fetches') return fetches;
}

function misbehave(request, response) {
  if (mode === 'hang') return true;
  const answer = (status, headers, text) => {
    response.writeHead(status, { 'content-type': 'application/json', ...headers });
    response.end(text);
    return true;
  };
  const isKeys = request.url === '/jwks';
  if (mode === 'broken') return answer(500, {}, 'broken');
  if (mode === 'moved') return answer(302, { location: 'https://example.org/' }, '');
  if (mode === 'other' && !isKeys) return answer(200, {}, JSON.stringify({ issuer: 'http://127.0.0.1:1', jwks_uri: url + '/jwks' }));
  if (mode === 'elsewhere' && !isKeys) return answer(200, {}, JSON.stringify({ issuer: url, jwks_uri: 'http://example.org/jwks' }));
  if (mode === 'huge' && isKeys) return answer(200, {}, '{"keys":[' + '{"kty":"RSA"},'.repeat(100000) + '{}]}');
  if (mode === 'nonsense' && isKeys) return answer(200, {}, '{"keys":7}');
  return false;
}

await rotate('RS256', false);
createServer((request, response) => {
  if (!request.url.startsWith('/control')) {
    if (request.url === '/jwks') fetches += 1;
    if (misbehave(request, response)) return;
    return generations[generations.length - 1].server.service.requestHandler(request, response);
  }
  let body = '';
  request.on('data', (piece) => (body += piece));
  request.on('end', async () => {
    response.end(JSON.stringify(await control(request.url, JSON.parse(body))));
  });
}).listen(PORT, '127.0.0.1');
"#;

/// An issuer that runs.
#[derive(Debug)]
pub struct Issuer {
    server: Server,
}

/// Whether keys of before are still published when there are new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldKeys {
    /// The old keys are still published.
    Kept,
    /// Only the new keys are published.
    Withdrawn,
}

impl Issuer {
    /// Starts one with a key for RS256.
    pub fn start() -> Self {
        let (port, folder) = (free_port(), Server::temporary_folder());
        let module = node_module("oauth2-mock-server/dist/index.mjs").canonicalize().unwrap();
        let script = SCRIPT.replace("MODULE", &module.display().to_string()).replace("PORT", &port.to_string());
        let file = folder.path().join("issuer.mjs");
        std::fs::write(&file, script).unwrap();
        let spec = Spec::new(program("node"), port).args([file.display().to_string()]);
        Issuer { server: Server::start(spec, folder) }
    }

    /// Its address, as its tokens have it.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.server.port())
    }

    /// A token with these claims; those that are null are left out. Unless they say otherwise, it is of this issuer, counts
    /// since a moment ago, and for an hour.
    pub fn token(&self, claims: &Value) -> String {
        self.signed(&json!({ "claims": claims }))
    }

    /// The same by the key of a generation, from 0 on, with these fields in its header.
    pub fn token_by(&self, generation: usize, header: &Value, claims: &Value) -> String {
        self.signed(&json!({ "generation": generation, "header": header, "claims": claims }))
    }

    /// The same, signed by HS256 with the text of its public key.
    pub fn token_by_public_key(&self, claims: &Value) -> String {
        self.signed(&json!({ "hmac": "HS256", "claims": claims }))
    }

    fn signed(&self, wanted: &Value) -> String {
        self.control("token", wanted).as_str().unwrap().to_owned()
    }

    /// Makes a new key for this algorithm, by which it signs from now on. Gives its id.
    pub fn rotate(&self, algorithm: &str, old: OldKeys) -> String {
        let keep = old == OldKeys::Kept;
        self.control("rotate", &json!({ "algorithm": algorithm, "keep": keep })).as_str().unwrap().to_owned()
    }

    /// Behaves `well`, or is `broken`, `moved`, claims to be an `other`, names keys `elsewhere`, sends `huge` or `nonsense`
    /// keys, or does `hang`.
    pub fn behave(&self, mode: &str) {
        self.control("mode", &json!({ "mode": mode }));
    }

    /// How often its keys were asked for.
    pub fn fetches(&self) -> u64 {
        self.control("fetches", &json!({})).as_u64().unwrap()
    }

    /// The process, to be killed and started again. Then it has new keys.
    pub const fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn control(&self, what: &str, body: &Value) -> Value {
        let body = body.to_string();
        let length = body.len();
        // Without chunks, and the connection ends with the answer.
        let request = format!("POST /control/{what} HTTP/1.0\r\ncontent-length: {length}\r\n\r\n{body}");
        let answer = answer_to(self.server.port(), &request).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer} {}", self.server.log()))
    }
}
